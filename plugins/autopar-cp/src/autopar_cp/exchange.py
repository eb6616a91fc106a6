"""Attention calls and exchange of keys and values, by way of communication."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from autopar_core.api import (
    RING,
    SEND,
    AttentionCall,
    AttentionCalls,
    Bools,
    EvalContext,
    Floats,
    Group,
    Ints,
    RankWork,
    StrategyBatch,
    TimeTerm,
    Window,
    all_to_all_seconds,
    host_terms,
    moved_seconds,
    ring_inputs,
    ring_seconds,
    send_inputs,
    send_seconds,
)
from autopar_cp.config import CpConfig, CpProfile


Context = EvalContext[CpConfig, CpProfile]


def uses(batch: StrategyBatch, comm_type: str) -> Bools:
    """(N,) rows that exchange this way."""
    field = batch.fields["cp_comm_type"]
    chosen = batch["cp_comm_type"] == field.encode(comm_type)
    return np.asarray(chosen & (batch["cp_degree"] > 1))


def ring_rows(batch: StrategyBatch, profile: CpProfile) -> Bools:
    """(N,) rows whose attention runs in one call per step of a ring."""
    rows = uses(batch, "p2p")
    return rows | uses(batch, "all_gather") if profile.gathered_as_ring else rows


def _call(count: Ints, queries: Ints, keys: Ints, heads: Ints, share: Floats) -> AttentionCall:
    return AttentionCall(count=count, query_divisor=queries, key_divisor=keys,
                         heads_divisor=heads, work_share=share)  # fmt: skip


def attention_calls(batch: StrategyBatch, profile: CpProfile) -> list[AttentionCalls]:
    """Calls per layer that replace the one causal call.

    Ring: the own causal block, then cp - 1 calls of half the queries against a whole block (zig-zag
    order: every rank does the same work). Without balance the last rank meets every block whole.
    All-gather: one call of a rank's queries against all keys, half of the scores when balanced,
    1 - 1/(2 cp) of them on the last rank otherwise. All-to-all: whole sequences, heads / cp.
    """
    n, cp = len(batch), batch["cp_degree"]
    one, half, whole = np.ones(n, np.int64), np.full(n, 0.5), np.ones(n)
    steps = 2 * cp if profile.balanced else cp
    ring = AttentionCalls(
        ring_rows(batch, profile),
        (_call(one, cp, cp, one, half), _call(cp - 1, steps, cp, one, whole)),
    )
    share = half if profile.balanced else 1 - 0.5 / cp
    gathered_rows = uses(batch, "all_gather") & ~ring.rows
    gathered = AttentionCalls(gathered_rows, (_call(one, cp, one, one, share),))
    heads = AttentionCalls(uses(batch, "a2a"), (_call(one, one, one, cp, half),))
    return [ring, gathered, heads]


def _inputs(
    hops: Ints, law: Callable[..., Mapping[str, Any]], ctx: Context, nbytes: Ints, group: Group
) -> dict[str, Any]:
    return {"hops": hops, **law(ctx.system.links, nbytes, group)}


def ring_terms(batch: StrategyBatch, work: RankWork, group: Group, ctx: Context) -> list[TimeTerm]:
    """Hops of keys and values behind the attention steps; backward also carries their gradients."""
    cp, rows = batch["cp_degree"], uses(batch, "p2p")
    keys_values = 2 * 2 * work.elements("key_value")
    # cp - 1 of the cp attention steps can hide a hop
    window = Window(name="attention", share=(cp - 1) / cp)
    terms = []
    for phase, blocks in (("forward", 1), ("backward", 2), ("recompute_full", 1)):
        hop = send_seconds(ctx.system.links, blocks * keys_values, group)
        inputs = partial(_inputs, cp - 1, send_inputs, ctx, blocks * keys_values, group)
        terms.append(
            TimeTerm(name="ring exchange", seconds=(cp - 1) * hop * rows, resource="link",
                     phase=phase, window=window, inputs=inputs,
                     formula=f"hops x ({SEND}); bytes = {blocks} x 4 B x key_value",
                     source="ring attention; exposed beyond the attention step")
        )  # fmt: skip
    return terms


def gather_terms(
    batch: StrategyBatch, work: RankWork, group: Group, ctx: Context
) -> list[TimeTerm]:
    """All-gather of keys and values forward; the same again and a reduce-scatter backward."""
    rows = uses(batch, "all_gather")
    whole = 2 * 2 * work.elements("key_value") * batch["cp_degree"]
    one = ring_seconds(ctx.system.links, whole, group) * rows
    return [
        TimeTerm(name="key/value all-gather", seconds=times * one, resource="link", phase=phase,
                 inputs=partial(ring_inputs, ctx.system.links, whole, group),
                 formula=f"{times} x ({RING}); bytes = 4 B x key_value x ranks",
                 source="Megatron-LM and torch context parallel: not overlapped")
        for phase, times in (("forward", 1), ("backward", 2), ("recompute_full", 1))
    ]  # fmt: skip


def all_to_all_terms(
    batch: StrategyBatch, work: RankWork, group: Group, ctx: Context
) -> list[TimeTerm]:
    """Queries, keys, values in and attention output out, the same again backward (Ulysses)."""
    rows = uses(batch, "a2a")
    local = 2 * (2 * work.elements("query") + 2 * work.elements("key_value"))
    seconds = all_to_all_seconds(ctx.system.links, local, group, calls=4) * rows
    return [
        TimeTerm(name="head all-to-all", seconds=seconds, resource="link", phase=phase,
                 inputs=partial(ring_inputs, ctx.system.links, local, group),
                 formula="4 latency + bytes x (ranks-1)/ranks / bandwidth; "
                 "bytes = 2 B x (2 query + 2 key_value)",
                 source="DeepSpeed-Ulysses; measured in SimuMax runs")
        for phase in ("forward", "backward", "recompute_full")
    ]  # fmt: skip


def merge_terms(batch: StrategyBatch, work: RankWork, ctx: Context) -> list[TimeTerm]:
    """Kernels that merge the partial results of the ring steps."""
    merge = ctx.profile.merge
    steps = (batch["cp_degree"] - 1) * ring_rows(batch, ctx.profile)
    partial, keys = 0.5 * work.elements("query"), work.elements("key_value")
    forward = moved_seconds(ctx.system, merge.forward * partial, merge.kernels_forward)
    moved = merge.backward * partial + merge.backward_key_value * keys
    backward = moved_seconds(ctx.system, moved, merge.kernels_backward)
    rows = [("forward", forward), ("backward", backward), ("recompute_full", forward)]
    return [
        TimeTerm(name="merge of ring steps", seconds=steps * seconds, phase=phase,
                 kind="elementwise", inputs={"steps": steps, "query": work.elements("query"),
                                             "key_value": keys},
                 formula="steps x kernels reading and writing half of query "
                 "(backward also key_value)",
                 source="bytes counted in the kernels, H200 runs")
        for phase, seconds in rows
    ]  # fmt: skip


def launch_terms(batch: StrategyBatch, ctx: Context) -> list[TimeTerm]:
    """What the host launches for a split layer, and for every further step of a ring."""
    cp = batch["cp_degree"]
    steps = (cp - 1) * ring_rows(batch, ctx.profile)
    return [
        *host_terms(ctx.profile.host, (cp > 1).astype(np.float64)),
        *host_terms(ctx.profile.host_ring, steps.astype(np.float64)),
    ]
