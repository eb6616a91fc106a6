"""The core's own time terms: GEMMs, attention, memory-bound kernels, head and loss, optimizer, host."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from attrs import evolve

from autopar_core.compose.attention_text import attention_formula, attention_inputs
from autopar_core.compose.core_casts import casts
from autopar_core.domain.arrays import Floats
from autopar_core.domain.framework import CoreProfile, ElementwiseKernel
from autopar_core.domain.precision import PrecisionRecipe
from autopar_core.domain.system import SystemProfile
from autopar_core.domain.terms import Extent, TimeTerm
from autopar_core.laws.compute import (
    UNFUSED,
    attention_seconds,
    gemm_inputs,
    linear_seconds,
    moved_inputs,
    moved_seconds,
    unfused_attention_seconds,
)
from autopar_core.work.profile_terms import host_terms
from autopar_core.work.rank_work import RankWork


OWNER = "core"
_GEMM = "launch + 2 M N K / (efficiency x peak) x (1 + k0/K)"
_GEMM_CAST = "launch + 2 M N K / (efficiency x peak) x (1 / speed + k0/K)"
_MOVED = "kernels x launch + bytes / (efficiency x bandwidth)"
_LAW_SOURCE = "laws fitted on H200 operation timings; constants of the system profile"
_MEMORY_SOURCE = "bytes of the framework profile, bandwidth of the system profile"


def core_time(
    work: RankWork, profile: CoreProfile, system: SystemProfile, recipe: PrecisionRecipe
) -> list[TimeTerm]:
    """All time terms of the core for N rows."""
    return [
        *_linears(work, profile, system, recipe),
        *casts(work, profile, system, recipe),
        *_attention(work, profile, system),
        *(t for kernel in profile.elementwise for t in _elementwise(work, kernel, system)),
        *_weight_gradients(work, profile, system),
        *_head(work, system, recipe),
        *_optimizer(work, profile, system),
        *_host(work, profile),
    ]


def _term(name: str, seconds: Floats, phase: str, **rest: Any) -> TimeTerm:
    return TimeTerm(name=name, seconds=seconds, phase=phase, owner=OWNER,
                    **{"source": _LAW_SOURCE, **rest})  # fmt: skip


def _gemm_formula(system: SystemProfile, recipe: PrecisionRecipe) -> str:
    text = _GEMM if recipe.sixteen_bit else _GEMM_CAST
    return text.replace("2 M N K", "waves x 2 M N K") if system.gemm.tile[0] else text


def _backward_formula(forward: str) -> str:
    return f"two products, inputs (inner N) and weights (inner M), each {forward}"


def _linears(
    work: RankWork, profile: CoreProfile, system: SystemProfile, recipe: PrecisionRecipe
) -> list[TimeTerm]:
    tokens = work.extent(Extent.TOKENS)
    terms = []
    formula = _gemm_formula(system, recipe)
    for linear in work.linears(profile.fused_qkv, profile.fused_gate_up):
        forward, backward, share = linear_seconds(
            system, recipe.format, tokens, linear.n_in, linear.n_out, recipe.speed_share
        )
        name = f"linear {linear.name}"
        inputs = partial(gemm_inputs, system, recipe.format, tokens, linear.n_out, linear.n_in,
                         recipe.speed_share)  # fmt: skip
        more: dict[str, Any] = {"kind": "linear", "inputs": inputs}
        terms.append(_term(name, forward, "forward", formula=formula, **more))
        both = _backward_formula(formula)
        terms.append(_term(name, backward, "backward", formula=both, weight_share=share, **more))
        terms += [
            _term(name, forward, f"recompute_{mode}", formula=formula, **more)
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
        heads = np.maximum(1, work.extent(Extent.ATTENTION_HEADS) // call.heads_divisor)
        sizes = (work.model.head_dim, work.extent(Extent.SEQUENCES), heads,
                 work.seq_len / call.query_divisor, work.seq_len / call.key_divisor)  # fmt: skip
        if kernel == UNFUSED:
            one = unfused_attention_seconds(system, *sizes)
        else:
            one = attention_seconds(system, kernel, *sizes, call.work_share, scale)
        forward += rows * call.count * one[0]
        backward += rows * call.count * one[1]
    phases = [("forward", forward), ("backward", backward)]
    phases += [(f"recompute_{mode}", forward) for mode in profile.recompute_attention]
    return [
        _term("attention", seconds, phase, kind="attention",
              formula=attention_formula(kernel, backward=phase == "backward"),
              inputs=partial(attention_inputs, work, system, kernel, scale, phase == "backward"))
        for phase, seconds in phases
    ]  # fmt: skip


def _elementwise(
    work: RankWork, kernel: ElementwiseKernel, system: SystemProfile
) -> list[TimeTerm]:
    elements = work.elements(kernel.extent)
    forward = moved_seconds(system, kernel.forward * elements, kernel.kernels_forward)
    backward = moved_seconds(system, kernel.backward * elements, kernel.kernels_backward)
    segment = kernel.segment
    kind = "elementwise" if segment == "block" else ""

    def term(seconds: Floats, phase: str, per_element: float, kernels: int) -> TimeTerm:
        formula = f"{_MOVED}; bytes = {per_element:g} B x {kernel.extent}"
        inputs = partial(moved_inputs, system, per_element * elements, kernels)
        return _term(kernel.name, seconds, phase, segment=segment, kind=kind, formula=formula,
                     inputs=inputs, source=_MEMORY_SOURCE)  # fmt: skip

    ahead = (kernel.forward, kernel.kernels_forward)
    terms = [
        term(forward, "forward", *ahead),
        term(backward, "backward", kernel.backward, kernel.kernels_backward),
    ]
    if segment == "block":
        terms += [term(forward, f"recompute_{mode}", *ahead) for mode in kernel.recompute]
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
              weight_share=1.0, source=_MEMORY_SOURCE,
              inputs={"block parameters": work.parameters("block"),
                      "bandwidth (B/s)": system.memory.bytes_per_second})
    ]  # fmt: skip


def _head(work: RankWork, system: SystemProfile, recipe: PrecisionRecipe) -> list[TimeTerm]:
    """Logits GEMM, always in 16 bits; the loss is among the elementwise kernels of segment ``head``."""
    half = recipe.format if recipe.sixteen_bit else "bf16"
    hidden = np.full(len(work), work.model.hidden, dtype=np.int64)
    forward, backward, share = linear_seconds(
        system, half, work.extent(Extent.TOKENS), hidden, work.extent(Extent.VOCABULARY_ROWS)
    )
    formula = _GEMM.replace("2 M N K", "waves x 2 M N K") if system.gemm.tile[0] else _GEMM
    inputs = partial(gemm_inputs, system, half, work.extent(Extent.TOKENS),
                     work.extent(Extent.VOCABULARY_ROWS), hidden)  # fmt: skip
    return [
        _term("linear logits", forward, "forward", segment="head", formula=formula, inputs=inputs),
        _term("linear logits", backward, "backward", segment="head", inputs=inputs,
              formula=_backward_formula(formula), weight_share=share),
    ]  # fmt: skip


def _optimizer(work: RankWork, profile: CoreProfile, system: SystemProfile) -> list[TimeTerm]:
    """Bytes moved per held element over the optimizer's share of the bandwidth, plus a fixed part."""
    rate = profile.optimizer_efficiency * system.memory.bytes_per_second
    formula = f"{profile.optimizer_bytes:g} B x held elements / ({profile.optimizer_efficiency:g} x bandwidth)"  # noqa: E501
    fixed = np.full(len(work), profile.optimizer_seconds)
    source = "framework profile: optimizer; bandwidth of the system profile"
    terms = [_term("optimizer", fixed, "backward", segment="step", formula="fixed part",
                   inputs={"seconds": profile.optimizer_seconds}, source=source)]  # fmt: skip
    for unit, scale, on in (("block", "layer", "any"), ("embedding", "one", "first"),
                            ("head", "one", "last")):  # fmt: skip
        held = work.held(Extent.OPTIMIZER_COPIES, unit)
        seconds = np.asarray(profile.optimizer_bytes * held / rate, dtype=np.float64)
        terms.append(
            _term("optimizer", seconds, "backward", segment="step", scale=scale, on=on,
                  formula=formula, source=source,
                  inputs={"held elements": held,
                          "bandwidth (B/s)": system.memory.bytes_per_second})
        )  # fmt: skip
    return terms


def _host(work: RankWork, profile: CoreProfile) -> list[TimeTerm]:
    """Floors per layer, and the fixed part of a step."""
    host, n = profile.host, len(work)
    terms = [evolve(term, owner=OWNER) for term in host_terms(host, np.ones(n))]
    steps = [(host.step_seconds, "one", "fixed part"),
             (host.step_layer_seconds, "layer", "per layer of the rank")]  # fmt: skip
    terms += [
        _term("host step", np.full(n, seconds), "backward", segment="step", scale=scale,
              formula=formula, inputs={"seconds": seconds}, source="framework profile: host")
        for seconds, scale, formula in steps if seconds
    ]  # fmt: skip
    return terms
