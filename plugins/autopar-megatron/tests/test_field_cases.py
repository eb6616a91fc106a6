"""What people reported of Megatron: refused configurations are refused here, tricky files read right.

The cases are those of kinds c and d in tests/data/field/field_cases.tsv that concern this family.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from autopar_core.api import InputError, ModelConfig


SHAPE = {
    "num-layers": "32", "hidden-size": "4096", "num-attention-heads": "32", "seq-length": "4096",
    "max-position-embeddings": "131072", "micro-batch-size": "1", "global-batch-size": "64",
    "vocab-size": "32000", "bf16": "", "position-embedding-type": "rope", "swiglu": "",
}  # fmt: skip
# Case -> flags, devices, the rule, a legal alternative.
REFUSED: dict[str, tuple[dict[str, str], int, str, str]] = {
    "C02": ({"num-layers": "30", "pipeline-model-parallel-size": "4"}, 8,
            "30 layers are not divisible by pipeline size 4", "8/8/7/7"),
    "C04": ({"num-layers": "20", "decoder-last-pipeline-num-layers": "1"}, 8,
            "stage counts must add up to 20 layers", "leave it out"),
    "C05": ({"hidden-size": "64", "group-query-attention": "", "num-query-groups": "5",
             "num-layers": "1"}, 8, "32 attention heads are not divisible by 5", "nearest legal is 4"),
    "C10": ({"num-layers": "46", "pipeline-model-parallel-size": "4", "micro-batch-size": "2",
             "tensor-model-parallel-size": "8", "global-batch-size": "16"}, 32,
            "46 layers are not divisible by pipeline size 4", "11/12/12/11"),
    "C11": ({"num-layers": "40", "pipeline-model-parallel-size": "2",
             "num-virtual-stages-per-pipeline-rank": "12"}, 16,
            "20 layers of a rank are not divisible into 12", "nearest legal is 10"),
    "C12": ({"num-layers": "60", "pipeline-model-parallel-size": "8",
             "num-virtual-stages-per-pipeline-rank": "4"}, 8,
            "60 layers are not divisible by pipeline size 8", "--pipeline-model-parallel-layout"),
    "C14": ({"num-layers": "60", "pipeline-model-parallel-size": "6", "global-batch-size": "3",
             "num-virtual-stages-per-pipeline-rank": "2"}, 6,
            "rounds of 6 micro-batches and 3", "nearest legal global batch: 6"),
    "C15": ({"pipeline-model-parallel-size": "4", "num-virtual-stages-per-pipeline-rank": "2",
             "global-batch-size": "12"}, 8, "rounds of 4 micro-batches and 6",
            "nearest legal global batch: 8 or 16"),
    "C17": ({"seq-length": "50341", "tensor-model-parallel-size": "4", "sequence-parallel": ""}, 4,
            "50341 tokens are not divisible by tp 4", "50340 and 50344"),
    "C18": ({"seq-length": "4100", "context-parallel-size": "4"}, 8,
            "not divisible by 2 x cp 4 = 8", "4096 and 4104"),
    "C29": ({"eval-global-batch-size": "12"}, 8, "evaluation batch 12 is not divisible by 8",
            "nearest legal: 8"),
}  # fmt: skip


def script(changes: dict[str, str], devices: int) -> str:
    flags = {**SHAPE, **changes}
    words = " ".join(f"--{name} {value}" for name, value in flags.items())
    return f"torchrun --nproc_per_node {devices} --nnodes 1 pretrain_gpt.py {words}\n"


@pytest.mark.parametrize("case", REFUSED)
def test_a_reported_failure_is_refused_with_an_alternative(case: str, read: Any) -> None:
    changes, devices, rule, legal = REFUSED[case]
    with pytest.raises(InputError) as error:
        read(script(changes, devices))
    assert rule in str(error.value)
    assert legal in str(error.value)


def test_the_cases_are_in_the_table(samples: Path) -> None:
    table = samples.parent / "field" / "field_cases.tsv"
    with table.open(encoding="utf-8") as file:
        kinds = {row["id"]: row["kind"] for row in csv.DictReader(file, delimiter="\t")}
    assert {kinds[case] for case in REFUSED} == {"c"}
    assert {kinds[case] for case in ("D08", "D10", "D12", "D13", "D20")} == {"d"}


def test_c06_kv_replication_is_legal_here(read: Any) -> None:
    """Two key/value heads over tp 4: torchtitan fails, Megatron replicates them."""
    flags = {
        "group-query-attention": "",
        "num-query-groups": "2",
        "tensor-model-parallel-size": "4",
    }
    assert read(script(flags, 8))["model"]["kv_heads"] == 2


def test_c16_interleaving_over_two_ranks_is_told_not_refused(read: Any) -> None:
    flags = {"pipeline-model-parallel-size": "2", "num-virtual-stages-per-pipeline-rank": "2"}
    tables = read(script(flags, 8))
    assert tables["strategy"]["vpp_degree"] == 2
    assert any("over 2 ranks" in note for note in tables["notes"])


def test_c25_c26_padding_follows_the_divisor(read: Any) -> None:
    toy = {
        "vocab-size": "50257",
        "make-vocab-size-divisible-by": "1",
        "tensor-model-parallel-size": "2",
    }
    notes = read(script(toy, 2))["notes"]
    assert "Megatron pads the vocabulary from 50257 to 50258 rows: a multiple of 1 x tp 2" in notes
    qwen = {"vocab-size": "151936", "make-vocab-size-divisible-by": "1187",
            "tensor-model-parallel-size": "8"}  # fmt: skip
    assert not any("pads" in note for note in read(script(qwen, 8))["notes"])


def test_c27_rows_of_the_embedding_are_taken_not_the_tokenizers_length(read: Any) -> None:
    flags = {
        "padded-vocab-size": "152064",
        "vocab-size": "absent",
        "tokenizer-type": "Qwen2Tokenizer",
    }
    text = script(flags, 8).replace("--vocab-size absent ", "")
    assert read(text)["model"]["vocab"] == 152064


D10 = """#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-1}
CHECKPOINT_PATH=${1:-"checkpoints"}
TOKENIZER_ARG=${3:-"MOCK"}
GPUS_PER_NODE=8
NUM_NODES=1
NODE_RANK=${NODE_RANK:-0}
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
TP_SIZE=1
CP_SIZE=1
PP_SIZE=1     # not used here
MICRO_BATCH_SIZE=1
GLOBAL_BATCH_SIZE=128
DTYPE="fp8"
SEQ_LENGTH=8192
mkdir -p "$(dirname "$CHECKPOINT_PATH")"
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --node_rank $NODE_RANK
    --master_addr ${MASTER_ADDR:-localhost}
)
MODEL_ARGS=(
    --use-mcore-models
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --kv-channels 128
    --seq-length $SEQ_LENGTH
    --max-position-embeddings 8192
    --position-embedding-type rope
    --swiglu
    --normalization RMSNorm
    --untie-embeddings-and-output-weights
    --disable-bias-linear
)
TRAINING_ARGS=(
    --micro-batch-size $MICRO_BATCH_SIZE
    --global-batch-size $GLOBAL_BATCH_SIZE
    --bf16
)
DTYPE_ARGS=()
if [[ "$DTYPE" == "fp8" ]]; then
    DTYPE_ARGS+=(
        "--fp8-format hybrid"
        "--fp8-amax-history-len 1024"
        "--fp8-param-gather"
    )
fi
MODEL_PARALLEL_ARGS=(
    --tensor-model-parallel-size $TP_SIZE
    --context-parallel-size $CP_SIZE
    # --pipeline-model-parallel-size $PP_SIZE # not set for pp 1
    --sequence-parallel
)
DDP_ARGS=(--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather)
TRAINING_ARGS+=("${DDP_ARGS[@]}")
DATA_ARGS=()
if [[ "$TOKENIZER_ARG" == "MOCK" ]] || [[ -z "$TOKENIZER_ARG" ]]; then
    DATA_ARGS+=("--mock-data" "--tokenizer-type NullTokenizer" "--vocab-size 128256")
else
    DATA_ARGS+=("--data-path $DATA_ARG")
fi
if [ ! -f pretrain_gpt.py ]; then
    echo "not here"
    exit 1
fi
torchrun ${DISTRIBUTED_ARGS[@]} \\
    pretrain_gpt.py \\
    ${MODEL_ARGS[@]} \\
    ${TRAINING_ARGS[@]} \\
    ${DTYPE_ARGS[@]} \\
    ${MODEL_PARALLEL_ARGS[@]} \\
    ${DATA_ARGS[@]}
set +x
"""


def test_d10_arrays_defaults_arithmetic_and_a_commented_flag(read: Any) -> None:
    tables = read(D10)
    assert ModelConfig(**tables["model"]).parameters == 8030261248
    strategy = tables["strategy"]
    assert (strategy["dp_degree"], strategy["pp_degree"], strategy["cp_degree"]) == (8, 1, 1)
    assert strategy["micro_batch_num"] == 16
    assert strategy["sequence_parallel"] is False
    assert strategy["zero_stage"] == 1
    assert tables["training"]["precision"] == "fp8-delayed"
    assert tables["cluster"]["devices"] == 8


D12 = """#!/bin/bash
export HCCL_CONNECT_TIMEOUT=1200
NPUS_PER_NODE=8
MASTER_ADDR=localhost
MASTER_PORT=6000
NNODES=8
NODE_RANK=0
TOKENIZER_PATH="./model_from_hf/llama-2-70b-hf/"
TP=8
PP=8
DISTRIBUTED_ARGS="
    --nproc_per_node $NPUS_PER_NODE \\
    --nnodes $NNODES
    --node_rank $NODE_RANK \\
    --master_addr $MASTER_ADDR
"
GPT_ARGS="
    --tensor-model-parallel-size ${TP} \\
    --pipeline-model-parallel-size ${PP} \\
    --num-layers-per-virtual-pipeline-stage 5 \\
    --sequence-parallel
    --num-layers 80 \\
    --hidden-size 8192 \\
    --ffn-hidden-size 28672 \\
    --num-attention-heads 64 \\
    --group-query-attention \\
    --num-query-groups 8 \\
    --tokenizer-type PretrainedFromHF \\
    --tokenizer-name-or-path ${TOKENIZER_PATH} \\
    --seq-length 4096 \\
    --max-position-embeddings 4096 \\
    --micro-batch-size 2 \\
    --global-batch-size 1024 \\
    --untie-embeddings-and-output-weights \\
    --disable-bias-linear \\
    --position-embedding-type rope \\
    --normalization RMSNorm \\
    --swiglu \\
    --bf16
"
torchrun $DISTRIBUTED_ARGS pretrain_gpt.py $GPT_ARGS | tee logs/train.log
"""


def test_d12_layers_per_virtual_stage_and_a_vocabulary_from_the_tokenizer(read: Any) -> None:
    tables = read(D12)
    strategy = tables["strategy"]
    assert (strategy["vpp_degree"], strategy["dp_degree"], strategy["micro_batch_num"]) == (
        2,
        1,
        512,
    )
    assert tables["model"]["vocab"] == 32000
    assert ModelConfig(**tables["model"]).parameters == 68976648192
    assert any("assumed to be 32000" in note for note in tables["notes"])
    assert tables["framework"]["name"] == "mindspeed"


def test_d13_world_size_that_means_nodes(read: Any) -> None:
    words = " ".join(f"--{n} {v}" for n, v in SHAPE.items() if n != "global-batch-size")
    text = (
        "WORLD_SIZE=${WORLD_SIZE:-8}\nNNODES=$WORLD_SIZE\nNPROC_PER_NODE=8\n"
        "GBS=${GBS:-$((4*NNODES))}\n"
        f"torchrun --nproc_per_node $NPROC_PER_NODE --nnodes $NNODES pretrain_gpt.py {words} "
        "--global-batch-size $GBS --tensor-model-parallel-size 2\n"
    )
    tables = read(text)
    assert tables["cluster"]["devices"] == 64
    assert tables["training"]["global_batch_size"] == 32
    assert any("means nodes here" in note for note in tables["notes"])
    with pytest.raises(InputError, match="is LoRA fine-tuning"):
        read(text.replace("--bf16", "--bf16 --lora_rank 8"))


def test_d20_embedding_and_loss_count_as_layers(read: Any) -> None:
    """126 layers and 2 slots are 128 = 8 ranks x 8 chunks x 2."""
    flags = {
        "num-layers": "126", "pipeline-model-parallel-size": "8", "tensor-model-parallel-size": "8",
        "context-parallel-size": "2", "num-virtual-stages-per-pipeline-rank": "8",
        "global-batch-size": "512", "account-for-embedding-in-pipeline-split": "",
        "account-for-loss-in-pipeline-split": "",
    }  # fmt: skip
    rows = read(script(flags, 1024))["strategy"]["stage_partition"]
    assert sum(map(sum, rows)) == 126
    assert (rows[0][0], rows[7][7], rows[3][3]) == (1, 1, 2)
    plain = {k: v for k, v in flags.items() if not k.startswith("account")}
    with pytest.raises(InputError, match="both of --account-for-embedding-in-pipeline-split"):
        read(script(plain, 1024))
