"""Launch scripts for Megatron-LM and MindSpeed-LLM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attrs import frozen

from autopar_core.api import CannotExpress, ExportRequest
from autopar_megatron.model_words import Words, words_of
from autopar_megatron.partition import layout_text
from autopar_megatron.plan import CURRENT, DELAYED, SELECTIVE_MODULES, Plan, plan_of


# Flag -> values; a tuple without values is a switch.
Flags = dict[str, tuple[str, ...]]
_MAX_PER_NODE = 8
_ALGORITHM = {
    "p2p": "megatron_cp_algo",
    "a2a": "ulysses_cp_algo",
    "all_gather": "kvallgather_cp_algo",
}
_EIGHT_BIT: Mapping[str, Flags] = {
    DELAYED: {"fp8-format": ("hybrid",), "fp8-recipe": ("delayed",)},
    CURRENT: {"fp8-format": ("hybrid",), "fp8-recipe": ("tensorwise",)},
    "mxfp8": {"fp8-format": ("e4m3",), "fp8-recipe": ("mxfp8",)},
    "nvfp4": {"fp4-format": ("e2m1",), "fp4-recipe": ("nvfp4",)},
}  # fmt: skip


@frozen(kw_only=True)
class Dialect:
    """What differs between the two."""

    name: str
    program: str
    per_node: str
    home: str
    extra: tuple[str, ...] = ()


MEGATRON = Dialect(
    name="Megatron-LM", program="pretrain_gpt.py", per_node="GPUS_PER_NODE", home="MEGATRON_PATH",
    extra=("--transformer-impl transformer_engine",),
)  # fmt: skip
MINDSPEED = Dialect(
    name="MindSpeed-LLM", program="pretrain_gpt.py", per_node="NPUS_PER_NODE",
    home="MINDSPEED_LLM_PATH", extra=("--transformer-impl local", "--use-flash-attn"),
)  # fmt: skip


def export_megatron(request: ExportRequest) -> Mapping[str, str]:
    """``run_megatron.sh``.

    Raises:
        CannotExpress: When Megatron-LM has no way to say the strategy.
    """
    plan = plan_of(request, "Megatron-LM")
    return {"run_megatron.sh": _script(request, plan, words_of(request), MEGATRON)}


def export_mindspeed(request: ExportRequest) -> Mapping[str, str]:
    """``run_mindspeed.sh``.

    Raises:
        CannotExpress: When MindSpeed-LLM has no way to say the strategy.
    """
    plan = plan_of(request, "MindSpeed-LLM")
    if plan.sharding:
        raise CannotExpress(
            "zero_stage", "MindSpeed-LLM shards the optimizer state only", {"zero_stage": 1}
        )
    if plan.precision in _EIGHT_BIT:
        raise CannotExpress(
            "training.precision", f"MindSpeed-LLM trains in bf16, fp16 or fp32 here, not in "
            f"{plan.precision}", {"precision": "bf16"},
        )  # fmt: skip
    if plan.pipeline_inside and plan.data > 1 and plan.pipeline > 1:
        raise CannotExpress(
            "framework.rank_order", "MindSpeed-LLM has data-parallel ranks inside pipeline ranks",
            {"rank_order": "tp-cp-dp-pp"},
        )  # fmt: skip
    words = words_of(request, mindspeed=True)
    return {"run_mindspeed.sh": _script(request, plan, words, MINDSPEED)}


# --- flags -------------------------------------------------------------------------------------
def model_flags(request: ExportRequest, plan: Plan, words: Words, dialect: Dialect) -> Flags:
    """Everything that decides the shape of the model."""
    model = request.model
    flags: Flags = {
        "num-layers": (str(model.num_layers),),
        "hidden-size": (str(model.hidden),),
        "ffn-hidden-size": (str(model.ffn_hidden),),
        "num-attention-heads": (str(model.heads),),
        "kv-channels": (str(model.head_dim),),
        "seq-length": (str(plan.sequence),),
        "max-position-embeddings": (str(words.positions),),
        "position-embedding-type": (words.position,),
        "normalization": ("RMSNorm" if model.norm == "rmsnorm" else "LayerNorm",),
        "vocab-size": (str(model.vocab),),
        "make-vocab-size-divisible-by": (str(plan.vocabulary_multiple),),
        "attention-dropout": ("0.0",),
        "hidden-dropout": ("0.0",),
    }  # fmt: skip
    if model.kv_heads != model.heads:
        flags |= {"group-query-attention": (), "num-query-groups": (str(model.kv_heads),)}
    if words.position == "rope":
        flags["rotary-base"] = ('"$ROTARY_BASE"',)
    switches = {
        "swiglu": model.gated_mlp, "disable-bias-linear": not words.bias, "add-qkv-bias": words.qkv_bias,
        "untie-embeddings-and-output-weights": not model.tied_embeddings,
        "qk-layernorm": model.qk_norm == "head", "post-norm": words.sandwich,
        "embed-layernorm": model.embedding_norm,
    }  # fmt: skip
    flags |= {name: () for name, on in switches.items() if on}
    if dialect is MINDSPEED:
        flags["use-mcore-models"] = ()
    return flags


def parallel_flags(plan: Plan, dialect: Dialect) -> Flags:
    """Degrees, virtual stages, partition, exchange, sharding."""
    flags: Flags = {
        "tensor-model-parallel-size": (str(plan.tensor),),
        "pipeline-model-parallel-size": (str(plan.pipeline),),
        "context-parallel-size": (str(plan.context),),
    }
    if plan.sequence_parallel:
        flags["sequence-parallel"] = ()
    if plan.exchange and dialect is MINDSPEED:
        flags["context-parallel-algo"] = (_ALGORITHM[plan.exchange],)
    elif plan.exchange:
        flags["cp-comm-type"] = (plan.exchange,)
    flags |= partition_flags(plan, dialect)
    if plan.group:
        flags["microbatch-group-size-per-virtual-pipeline-stage"] = (str(plan.group),)
    if plan.pipeline_inside:
        flags["use-tp-pp-dp-mapping"] = ()
    if plan.distributed_optimizer:
        flags["use-distributed-optimizer"] = ()
    if plan.sharding:
        flags |= {
            "use-megatron-fsdp": (), "data-parallel-sharding-strategy": (plan.sharding,),
            "ckpt-format": ("fsdp_dtensor",), "no-gradient-accumulation-fusion": (),
        }  # fmt: skip
    if plan.instances > 1:
        flags["num-distributed-optimizer-instances"] = (str(plan.instances),)
    if plan.overlap_gradients:
        flags["overlap-grad-reduce"] = ()
    if plan.overlap_parameters:
        flags["overlap-param-gather"] = ()
    return flags


def partition_flags(plan: Plan, dialect: Dialect) -> Flags:
    """How layers go to virtual stages; nothing for an even split without virtual stages."""
    if plan.pipeline == 1:
        return {}
    if plan.even and plan.chunks == 1:
        return {}
    if dialect is MINDSPEED and plan.even:
        return {"num-layers-per-virtual-pipeline-stage": (str(plan.stages[0]),)}
    if dialect is MINDSPEED and plan.chunks == 1 and 0 not in plan.stages:
        return {"num-layer-list": (",".join(map(str, plan.stages)),)}
    if plan.even:
        return {"num-virtual-stages-per-pipeline-rank": (str(plan.chunks),)}
    return {"pipeline-model-parallel-layout": (f"'{layout_text(plan.stages)}'",)}


def training_flags(plan: Plan, dialect: Dialect) -> Flags:
    """Batch, recompute, precision."""
    flags: Flags = {
        "micro-batch-size": (str(plan.micro_batch),),
        "global-batch-size": (str(plan.global_batch),),
        "lr": ('"$LR"',),
        "train-iters": ('"$TRAIN_ITERS"',),
    }
    recompute = plan.recompute
    if recompute.granularity:
        flags["recompute-granularity"] = (recompute.granularity,)
    if recompute.granularity == "selective":
        flags["recompute-modules"] = SELECTIVE_MODULES
    if recompute.method:
        flags["recompute-method"] = (recompute.method,)
        flags["recompute-num-layers"] = (str(recompute.layers),)
    if plan.precision != "fp32":
        flags["fp16" if plan.precision == "fp16" else "bf16"] = ()
    flags |= _EIGHT_BIT.get(plan.precision, {})
    if plan.gradient_bits == 16 and plan.precision not in ("fp16", "fp32"):
        flags["grad-reduce-in-bf16"] = ()
    elif plan.precision == "fp16":
        flags["accumulate-allreduce-grads-in-fp32"] = ()
    if dialect is MEGATRON:
        # the estimate counts a fused loss; TransformerEngine's is refused since core 0.19
        flags |= {"cross-entropy-loss-fusion": (), "cross-entropy-fusion-impl": ("native",)}
    return flags


# --- text --------------------------------------------------------------------------------------
def _script(request: ExportRequest, plan: Plan, words: Words, dialect: Dialect) -> str:
    per_node = _per_node(request)
    nodes = plan.devices // per_node
    address = "localhost" if nodes == 1 else ""
    needs_base = words.position == "rope"
    blocks = {
        "MODEL_ARGS": model_flags(request, plan, words, dialect),
        "PARALLEL_ARGS": parallel_flags(plan, dialect),
        "TRAINING_ARGS": training_flags(plan, dialect),
    }
    lines = [
        "#!/usr/bin/env bash",
        request.comment().rstrip("\n"),
        "#",
        f"# For {dialect.name}. Run it on each of the {nodes} nodes, with NODE_RANK set to its number."
        if nodes > 1 else f"# For {dialect.name}, on one node.",
        "# The strategy does not depend on the activation function, the rotary base, data and learning",
        "# rate; check that they are those of your model.",
        "set -euo pipefail",
        "",
        *_environment(plan),
        f"{dialect.per_node}={per_node}",
        f"NNODES={nodes}",
        'NODE_RANK="${NODE_RANK:-0}"' if nodes == 1 else
        'NODE_RANK="${NODE_RANK:?number of this node, from 0}"',
        f'MASTER_ADDR="${{MASTER_ADDR:-{address}}}"' if address else
        'MASTER_ADDR="${MASTER_ADDR:?address of node 0}"',
        'MASTER_PORT="${MASTER_PORT:-6000}"',
        f'{dialect.home}="${{{dialect.home}:?folder of {dialect.name}, which holds '
        f'{dialect.program}}}"',
        'DATA_PATH="${DATA_PATH:?tokenised data, as --data-path takes it}"',
        'TOKENIZER_MODEL="${TOKENIZER_MODEL:?folder or name of the Hugging Face tokenizer}"',
        'TRAIN_ITERS="${TRAIN_ITERS:?number of steps}"',
        'LR="${LR:?peak learning rate}"',
        *(['ROTARY_BASE="${ROTARY_BASE:-10000}"'] if needs_base else []),
        "",
        "DISTRIBUTED_ARGS=(",
        f'    --nproc_per_node "${dialect.per_node}"',
        '    --nnodes "$NNODES"',
        '    --node_rank "$NODE_RANK"',
        '    --master_addr "$MASTER_ADDR"',
        '    --master_port "$MASTER_PORT"',
        ")",
    ]  # fmt: skip
    for name, flags in blocks.items():
        lines += [f"{name}=(", *_flag_lines(flags), ")"]
    lines += ["DATA_ARGS=(", *_data_lines(dialect), ")"]
    lines += [
        "",
        f'torchrun "${{DISTRIBUTED_ARGS[@]}}" "${dialect.home}/{dialect.program}" \\',
        *(f'    "${{{name}[@]}}" \\' for name in blocks),
        '    "${DATA_ARGS[@]}"',
    ]
    return "\n".join(lines) + "\n"


def _environment(plan: Plan) -> list[str]:
    if plan.one_connection:
        return ["export CUDA_DEVICE_MAX_CONNECTIONS=1", ""]
    if plan.sharding:
        return ["unset CUDA_DEVICE_MAX_CONNECTIONS  # Megatron-FSDP refuses the value 1", ""]
    return []


def _data_lines(dialect: Dialect) -> Iterable[str]:
    kind = "HuggingFaceTokenizer" if dialect is MEGATRON else "PretrainedFromHF"
    model = "tokenizer-model" if dialect is MEGATRON else "tokenizer-name-or-path"
    yield '    --data-path "$DATA_PATH"'
    yield "    --split 969,30,1"
    yield f"    --tokenizer-type {kind}"
    yield f'    --{model} "$TOKENIZER_MODEL"'
    for extra in dialect.extra:
        yield f"    {extra}"


def _flag_lines(flags: Flags) -> list[str]:
    return [" ".join((f"    --{name}", *values)) for name, values in flags.items()]


def _per_node(request: ExportRequest) -> int:
    """Devices of one node: at most eight, and no more than one scale-up domain has."""
    most = min(_MAX_PER_NODE, request.cluster.devices_per_domain, request.cluster.devices)
    return next(n for n in range(most, 0, -1) if request.cluster.devices % n == 0)
