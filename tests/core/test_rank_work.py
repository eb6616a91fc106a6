"""Work of one rank of Llama-3-8B after shards: exact integers."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from attrs import evolve

from autopar_core.domain.model import ModelConfig
from autopar_core.domain.terms import AttentionCall, AttentionCalls, Divide, Extent, Rounding, Shard
from autopar_core.work.rank_work import ELEMENTS, RankWork


LLAMA = ModelConfig(
    num_layers=32, hidden=4096, ffn_hidden=14336, heads=32, kv_heads=8, vocab=128256
)
# query and output 4096 x 4096, key and value 1024 x 4096, gate, up and down 14336 x 4096, two norms
BLOCK = 2 * 16_777_216 + 2 * 4_194_304 + 3 * 58_720_256 + 8_192
TABLE = 128_256 * 4_096


def by(
    extent: Extent, divisor: int, rounding: Rounding = Rounding.EXACT, multiple: int = 1
) -> Divide:
    return Divide(extent, np.array([divisor]), rounding, multiple)


def build(
    shards: Iterable[Shard] = (),
    model: ModelConfig = LLAMA,
    batch: int = 2,
    pipelined: bool = False,
) -> RankWork:
    one = np.array
    return RankWork.build(model, 8192, one([batch]), one([4]), one([pipelined]), shards)


def tensor_parallel(degree: int, sequence_parallel: bool = True) -> list[Shard]:
    return [
        by(Extent.ATTENTION_HEADS, degree),
        by(Extent.KV_HEADS, degree, Rounding.REPLICATED),
        by(Extent.FFN_WIDTH, degree),
        by(Extent.VOCABULARY_ROWS, degree, Rounding.PADDED, 128),
        by(Extent.RESIDUAL_TOKENS, degree if sequence_parallel else 1),
    ]


def test_parameters() -> None:
    work = build()
    assert BLOCK == 218_112_000
    assert work.parameters("block")[0] == 218_112_000
    assert work.parameters("embedding")[0] == TABLE == 525_336_576
    assert work.parameters("head")[0] == TABLE + 4_096
    # 32 blocks, embedding, final norm and head: 8.03 billion
    total = 32 * BLOCK + TABLE + TABLE + 4_096
    assert total == LLAMA.parameters == 8_030_261_248


def test_extents_of_an_unsplit_rank() -> None:
    work = build()
    assert work.extent(Extent.TOKENS)[0] == 2 * 8192
    assert work.extent(Extent.SEQUENCES)[0] == 2
    assert work.extent(Extent.QUERY_TOKENS)[0] == 8192
    assert work.elements("hidden")[0] == 16_384 * 4096
    assert work.elements("key_value")[0] == 16_384 * 1024
    assert work.elements("ffn_in")[0] == 2 * work.elements("ffn")[0] == 2 * 16_384 * 14_336
    assert work.elements("logits")[0] == 16_384 * 128_256
    assert work.elements("whole_positions")[0] == 8192 * 128


def test_tensor_and_context_shards_combine() -> None:
    work = build([*tensor_parallel(8), by(Extent.TOKENS, 4), by(Extent.RESIDUAL_TOKENS, 4)])
    # 8192 / 4 tokens of 2 sequences; the residual stream is also divided by 8
    assert work.extent(Extent.TOKENS)[0] == 4096
    assert work.extent(Extent.RESIDUAL_TOKENS)[0] == 512
    assert work.elements("residual_hidden")[0] == 512 * 4096
    assert work.elements("hidden")[0] == 4096 * 4096
    assert work.elements("query")[0] == 4096 * 4 * 128
    assert work.elements("key_value")[0] == 4096 * 1 * 128
    assert work.elements("ffn")[0] == 4096 * 1792
    # the position table is built for the whole sequence
    assert work.elements("whole_positions")[0] == 8192 * 128


def test_parameters_of_a_tensor_parallel_rank() -> None:
    work = build(tensor_parallel(8))
    # matrices / 8, norms whole: (218 112 000 - 8 192) / 8 + 8 192
    assert work.parameters("block")[0] == 27_271_168
    # 128 256 rows padded to a multiple of 128 x 8 = 1 024: 126 x 1 024 = 129 024; / 8 = 16 128
    assert work.extent(Extent.VOCABULARY_ROWS)[0] == 16_128
    assert work.parameters("embedding")[0] == 16_128 * 4096
    assert work.parameters("head")[0] == 16_128 * 4096 + 4096


@pytest.mark.parametrize(
    ("vocab", "degree", "rows"),
    [(50257, 1, 50304), (50257, 8, 6400), (32004, 4, 8064), (128256, 1, 128256)],
)
def test_vocabulary_padding(vocab: int, degree: int, rows: int) -> None:
    # 50 257: 393 x 128 = 50 304, with 8 ranks 50 x 1 024 = 51 200; 32 004 with 4: 63 x 512 = 32 256
    work = build(tensor_parallel(degree), evolve(LLAMA, vocab=vocab))
    assert work.extent(Extent.VOCABULARY_ROWS)[0] == rows


def test_key_value_heads_are_replicated() -> None:
    # 8 key/value heads on 16 ranks: one head each, the matrices are 128 x 4096
    work = build(tensor_parallel(16))
    assert work.extent(Extent.KV_HEADS)[0] == 1
    assert work.extent(Extent.ATTENTION_HEADS)[0] == 2
    assert work.matrix("key")[0] == work.matrix("value")[0] == 128 * 4096
    # 2 x 256 x 4096 + 2 x 128 x 4096 + 3 x 896 x 4096 + 8 192
    assert work.parameters("block")[0] == 14_163_968


def test_copies_are_divided_exactly() -> None:
    work = build([by(Extent.OPTIMIZER_COPIES, 64)])
    assert work.held(Extent.OPTIMIZER_COPIES, "block")[0] == 218_112_000 // 64
    assert work.held(Extent.PARAMETER_COPIES, "block")[0] == 218_112_000


def test_row_padded_shards() -> None:
    # Three ranks, the rows of every matrix rounded up: 4096 -> 1366, 1024 -> 342, 14336 -> 4779,
    # norms of 4096 -> 1366.
    rows = build([by(Extent.PARAMETER_COPIES, 3, Rounding.ROWS)])
    query_output, key_value = 2 * 1366 * 4096, 2 * 342 * 4096
    gate_up, down, norms = 2 * 4779 * 4096, 1366 * 14336, 2 * 1366
    expected = query_output + key_value + gate_up + down + norms
    assert expected == 72_727_212
    assert rows.held(Extent.PARAMETER_COPIES, "block")[0] == expected
    # 128 256 / 3 = 42 752 rows, and the final norm
    assert rows.held(Extent.PARAMETER_COPIES, "embedding")[0] == 42_752 * 4096
    assert rows.held(Extent.PARAMETER_COPIES, "head")[0] == 42_752 * 4096 + 1366
    # rows after tensor parallelism: 4096 / 8 / 3 = 171 for the query, 4096 / 3 for the output
    both = build([*tensor_parallel(8), by(Extent.PARAMETER_COPIES, 3, Rounding.ROWS)])
    expected = 171 * 4096 + 2 * 43 * 4096 + 1366 * 512 + 2 * 598 * 4096 + 1366 * 1792 + 2 * 1366
    assert both.held(Extent.PARAMETER_COPIES, "block")[0] == expected


def test_one_rank_is_not_padded() -> None:
    work = build([by(Extent.PARAMETER_COPIES, 1, Rounding.ROWS)])
    assert work.held(Extent.PARAMETER_COPIES, "block")[0] == BLOCK


def test_tied_embeddings() -> None:
    tied = evolve(LLAMA, tied_embeddings=True)
    # on one stage the head has no matrix, on another stage it is a copy of the table
    assert build(model=tied).parameters("head")[0] == 4096
    assert build(model=tied, pipelined=True).parameters("head")[0] == TABLE + 4096
    assert build(model=tied, pipelined=True).parameters("embedding")[0] == TABLE


def test_linears() -> None:
    work = build(tensor_parallel(8))
    fused = {each.name: (each.n_in[0], each.n_out[0]) for each in work.linears(True, True)}
    # 4 query heads, 1 key and 1 value head of 128; gate and up of 1792
    assert fused == {
        "qkv": (4096, 768), "output": (512, 4096), "gate_up": (4096, 3584), "down": (1792, 4096)
    }  # fmt: skip
    plain = {each.name: (each.n_in[0], each.n_out[0]) for each in work.linears(False, False)}
    assert plain == {
        "query": (4096, 512), "key": (4096, 128), "value": (4096, 128), "output": (512, 4096),
        "gate": (4096, 1792), "up": (4096, 1792), "down": (1792, 4096),
    }  # fmt: skip


def test_linears_without_a_gate() -> None:
    work = build(model=evolve(LLAMA, gated_mlp=False))
    assert [each.name for each in work.linears(True, True)] == ["qkv", "output", "gate_up", "down"]
    assert work.elements("ffn_gate")[0] == 0
    assert work.elements("ffn_in")[0] == work.elements("ffn")[0]


def test_attention_is_one_causal_call_unless_replaced() -> None:
    whole, *more = build().attention_calls()
    assert not more
    assert whole[0][0] == 1
    assert whole[1].work_share[0] == 0.5
    one = np.array([1])
    call = AttentionCall(
        count=one, query_divisor=one, key_divisor=one, heads_divisor=one * 4,
        work_share=np.array([0.5]),
    )  # fmt: skip
    whole, other = build([AttentionCalls(np.array([True]), (call,))]).attention_calls()
    assert whole[0][0] == 0
    assert other[0][0] == 1
    assert other[1].heads_divisor[0] == 4


def test_tensor_bytes() -> None:
    work = build()
    assert work.tensor_bytes({"hidden": 2, "attention_rows": 4})[0] == (
        2 * 16_384 * 4096 + 4 * 16_384 * 32
    )
    assert work.tensor_bytes({})[0] == 0


def test_unknown_element_count_names_the_known_ones() -> None:
    with pytest.raises(KeyError, match=r"no element count 'hiden'; known: .*hidden"):
        build().elements("hiden")


def test_every_element_count_is_whole_and_not_negative() -> None:
    work = build([*tensor_parallel(4), by(Extent.TOKENS, 2), by(Extent.RESIDUAL_TOKENS, 2)])
    for name in ELEMENTS:
        values = work.elements(name)
        assert values.dtype == np.int64
        assert (values >= 0).all(), name


def test_a_tied_head_keeps_its_own_projection_and_bias() -> None:
    # OPT-350m: a table of width 512 that input and output share, a projection on either side.
    model = ModelConfig(
        num_layers=24, hidden=1024, ffn_hidden=4096, heads=16, kv_heads=16, vocab=50272,
        gated_mlp=False, tied_embeddings=True, embedding_width=512, final_norm=False,
        head_bias=True,
    )  # fmt: skip
    work = build(model=model)
    assert work.parameters("head")[0] == 512 * 1024 + 50272
    units = work.parameters("embedding") + 24 * work.parameters("block") + work.parameters("head")
    assert units[0] == model.parameters
    apart = build(model=model, pipelined=True)
    assert apart.parameters("head")[0] == 512 * 1024 + 50272 + 50272 * 512


def test_the_head_has_a_weight_gradient_although_its_table_is_tied() -> None:
    # one stage: the head owns no table of its own, its product has a gradient of one all the same
    work = build(tensor_parallel(4), model=evolve(LLAMA, tied_embeddings=True))
    assert work.parameters("head")[0] == 4_096
    assert work.elements("head_matrix")[0] == 32_128 * 4_096
