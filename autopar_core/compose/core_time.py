"""The core's own time terms: GEMMs, attention, memory-bound kernels, head and loss, optimizer, host."""

from __future__ import annotations

import numpy as np

from autopar_core.domain.arrays import Floats
from autopar_core.domain.framework import CoreProfile, ElementwiseKernel
from autopar_core.domain.system import SystemProfile
from autopar_core.domain.terms import Extent, TimeTerm
from autopar_core.laws.compute import attention_seconds, linear_seconds, moved_seconds
from autopar_core.work.rank_work import RankWork


OWNER = "core"
_GEMM = "launch + 2 M N K / (efficiency x peak) x (1 + k0/K)"
_MOVED = "kernels x launch + bytes / (efficiency x bandwidth)"
_LAW_SOURCE = "laws fitted on H200 operation timings; constants of the system profile"


def core_time(
    work: RankWork, profile: CoreProfile, system: SystemProfile, precision: str
) -> list[TimeTerm]:
    """All time terms of the core for N rows."""
    return [
        *_linears(work, profile, system, precision),
        *_attention(work, profile, system),
        *(t for kernel in profile.elementwise for t in _elementwise(work, kernel, system)),
        *_weight_gradients(work, profile, system),
        *_head(work, system, precision),
        *_optimizer(work, profile, system),
        *_host(work, profile),
    ]


def _term(name: str, seconds: Floats, phase: str, **rest: str | float | Floats) -> TimeTerm:
    return TimeTerm(name=name, seconds=seconds, phase=phase, owner=OWNER,
                    **{"source": _LAW_SOURCE, **rest})  # type: ignore[arg-type]  # fmt: skip


def _linears(
    work: RankWork, profile: CoreProfile, system: SystemProfile, precision: str
) -> list[TimeTerm]:
    tokens = work.extent(Extent.TOKENS)
    terms = []
    for linear in work.linears(profile.fused_qkv, profile.fused_gate_up):
        forward, backward, share = linear_seconds(
            system, precision, tokens, linear.n_in, linear.n_out
        )
        name = f"linear {linear.name}"
        terms.append(_term(name, forward, "forward", kind="linear", formula=_GEMM))
        terms.append(_term(name, backward, "backward", kind="linear", formula=_GEMM,
                           weight_share=share))  # fmt: skip
        terms += [
            _term(name, forward, f"recompute_{mode}", kind="linear", formula=_GEMM)
            for mode, repeated in profile.recompute_linears.items()
            if linear.name in repeated
        ]
    return terms


def _attention(work: RankWork, profile: CoreProfile, system: SystemProfile) -> list[TimeTerm]:
    """Sum over the attention calls of a layer; a ring is several short ones."""
    n = len(work)
    forward, backward = np.zeros(n), np.zeros(n)
    kernel = profile.attention_kernel or system.attention_default
    scale = profile.attention_scale.get(system.name, profile.attention_scale.get("default", 1.0))
    for rows, call in work.attention_calls():
        one = attention_seconds(
            system, kernel, work.model.head_dim, work.extent(Extent.SEQUENCES),
            np.maximum(1, work.extent(Extent.ATTENTION_HEADS) // call.heads_divisor),
            work.seq_len / call.query_divisor, work.seq_len / call.key_divisor, call.work_share,
            scale,
        )  # fmt: skip
        forward += rows * call.count * one[0]
        backward += rows * call.count * one[1]
    formula = "4 b n s_q s_k d share / (peak eta) (1 + s0/s_k) + longest row block"
    terms = [
        _term("attention", forward, "forward", kind="attention", formula=formula),
        _term("attention", backward, "backward", kind="attention", formula=f"2.5 x ({formula})"),
    ]
    again = profile.recompute_attention
    return terms + [
        _term("attention", forward, f"recompute_{m}", kind="attention", formula=formula)
        for m in again
    ]


def _elementwise(
    work: RankWork, kernel: ElementwiseKernel, system: SystemProfile
) -> list[TimeTerm]:
    elements = work.elements(kernel.extent)
    forward = moved_seconds(system, kernel.forward * elements, kernel.kernels_forward)
    backward = moved_seconds(system, kernel.backward * elements, kernel.kernels_backward)
    segment = kernel.segment
    kind = "elementwise" if segment == "block" else ""
    formula = f"{_MOVED}; bytes = {kernel.forward:g} / {kernel.backward:g} B x {kernel.extent}"
    terms = [
        _term(kernel.name, forward, "forward", segment=segment, kind=kind, formula=formula),
        _term(kernel.name, backward, "backward", segment=segment, kind=kind, formula=formula),
    ]
    if segment == "block":
        terms += [
            _term(kernel.name, forward, f"recompute_{mode}", kind=kind, formula=formula)
            for mode in kernel.recompute
        ]
    return terms


def _weight_gradients(
    work: RankWork, profile: CoreProfile, system: SystemProfile
) -> list[TimeTerm]:
    """Read and write of fp32 main gradients in the weight-gradient epilogue."""
    if not profile.wgrad_bytes:
        return []
    moved = profile.wgrad_bytes * work.parameters("block")
    seconds = np.asarray(moved / system.memory.bytes_per_second, dtype=np.float64)
    formula = f"{profile.wgrad_bytes:g} B x block parameters / bandwidth"
    return [
        _term("gradient accumulation", seconds, "backward", kind="elementwise", formula=formula,
              weight_share=1.0)
    ]  # fmt: skip


def _head(work: RankWork, system: SystemProfile, precision: str) -> list[TimeTerm]:
    """Logits GEMM; the loss is among the elementwise kernels of segment ``head``."""
    half = "fp16" if precision == "fp16" else "bf16"
    hidden = np.full(len(work), work.model.hidden, dtype=np.int64)
    forward, backward, share = linear_seconds(
        system, half, work.extent(Extent.TOKENS), hidden, work.extent(Extent.VOCABULARY_ROWS)
    )
    return [
        _term("linear logits", forward, "forward", segment="head", formula=_GEMM),
        _term("linear logits", backward, "backward", segment="head", formula=_GEMM,
              weight_share=share),
    ]  # fmt: skip


def _optimizer(work: RankWork, profile: CoreProfile, system: SystemProfile) -> list[TimeTerm]:
    """Bytes moved per held element over the optimizer's share of the bandwidth, plus a fixed part."""
    rate = profile.optimizer_efficiency * system.memory.bytes_per_second
    formula = f"{profile.optimizer_bytes:g} B x held elements / ({profile.optimizer_efficiency:g} x bandwidth)"  # noqa: E501
    fixed = np.full(len(work), profile.optimizer_seconds)
    terms = [_term("optimizer", fixed, "backward", segment="step", formula="fixed part")]
    for unit, scale, on in (("block", "layer", "any"), ("embedding", "one", "first"),
                            ("head", "one", "last")):  # fmt: skip
        held = work.held(Extent.OPTIMIZER_COPIES, unit)
        seconds = np.asarray(profile.optimizer_bytes * held / rate, dtype=np.float64)
        terms.append(
            _term("optimizer", seconds, "backward", segment="step", scale=scale, on=on,
                  formula=formula)
        )  # fmt: skip
    return terms


def _host(work: RankWork, profile: CoreProfile) -> list[TimeTerm]:
    host = profile.host
    n = len(work)
    terms = []
    for seconds, phase in ((host.layer_forward_seconds, "forward"),
                           (host.layer_backward_seconds, "backward")):  # fmt: skip
        if seconds:
            terms.append(
                _term("host launches", np.full(n, seconds), phase, resource="host",
                      formula="floor per layer and micro-batch", source="framework profile: host")
            )  # fmt: skip
    if host.step_seconds:
        terms.append(
            _term("host step", np.full(n, host.step_seconds), "backward", segment="step",
                  formula="fixed part", source="framework profile: host")
        )  # fmt: skip
    return terms
