"""Device time of GEMMs, fused attention and memory-bound kernels (a roofline with few constants)."""

from __future__ import annotations

import numpy as np

from autopar_core.domain.arrays import Array, Floats
from autopar_core.domain.system import AttentionLaw, SystemProfile


# Rows of queries that one thread block of a fused attention kernel works on (FlashAttention tiles).
ATTENTION_TILE = 128
# Head dimensions above this take the law of the "128" kernel, the others that of "64".
SMALL_HEAD = 64


def gemm_seconds(
    system: SystemProfile, precision: str, rows: Array, columns: Array, inner: Array
) -> Floats:
    """Seconds of a ``rows x inner`` by ``inner x columns`` product, (N,).

    launch + 2 M N K / (efficiency peak) (1 + k0 / K): three constants per system; 236 held-out H200
    shapes within a median of 3.2 %.
    """
    rate = system.gemm.efficiency * system.peak(precision)
    work = 2.0 * np.asarray(rows, dtype=np.float64) * columns * inner
    return np.asarray(system.kernel.launch_seconds + work / rate * (1 + system.gemm.k0 / inner))


def linear_seconds(
    system: SystemProfile, precision: str, tokens: Array, n_in: Array, n_out: Array
) -> tuple[Floats, Floats, Floats]:
    """(forward, backward, weight gradient's share of the backward) of ``y = x W``.

    The backward is the product for the input's gradient and the one for the weights'.
    """
    forward = gemm_seconds(system, precision, tokens, n_out, n_in)
    data = gemm_seconds(system, precision, tokens, n_in, n_out)
    weight = gemm_seconds(system, precision, n_in, n_out, tokens)
    return forward, data + weight, weight / (data + weight)


def attention_law(system: SystemProfile, kernel: str, head_dim: int) -> AttentionLaw:
    """Law of the kernel for this head dimension; the default kernel when it is not known."""
    kernels = system.attention
    table = kernels.get(kernel) or kernels[system.attention_default]
    wanted = "64" if head_dim <= SMALL_HEAD else "128"
    return table.get(wanted) or next(iter(table.values()))


def attention_seconds(
    system: SystemProfile,
    kernel: str,
    head_dim: int,
    sequences: Array,
    heads: Array,
    queries: Array,
    keys: Array,
    work_share: Array,
    scale: float = 1.0,
) -> tuple[Floats, Floats]:
    """(forward, backward) of one fused attention call, (N,) seconds.

    W = 4 b n s_q s_k d x share of the score matrix; backward is 2.5 W (five products instead of
    two); the tail is the longest row block on one compute unit, the critical path when b n / units
    is small. Head dimensions other than 64 and 128 pay the square root of their padding (measured
    on H200: flash and cuDNN, 236 held-out calls, median 3 %). ``scale`` multiplies the efficiency
    (another implementation of the kernel).
    """
    law = attention_law(system, kernel, head_dim)
    peak = system.peak("bf16") * scale
    work = 4.0 * np.asarray(sequences, np.float64) * heads * queries * keys * head_dim * work_share
    if head_dim not in (64, 128):
        work = work * (-(-head_dim // 64) * 64 / head_dim) ** 0.5
    block = 4.0 * ATTENTION_TILE * np.asarray(keys, np.float64) * head_dim * system.compute_units
    forward = work / (peak * law.eta_f) * (1 + law.s0_f / keys)
    forward = forward + law.tail_f * block / (peak * law.eta_f)
    backward = work / (peak * law.eta_b) * (1 + law.s0_b / keys)
    backward = 2.5 * (backward + law.tail_b * block / (peak * law.eta_b))
    launch = system.kernel.launch_seconds
    return np.asarray(launch + forward), np.asarray(3 * launch + backward)


def moved_seconds(system: SystemProfile, moved_bytes: Array, kernels: float = 1) -> Floats:
    """Seconds of memory-bound kernels that move so many bytes (read plus written)."""
    rate = system.memory.elementwise_efficiency * system.memory.bytes_per_second
    return np.asarray(kernels * system.kernel.launch_seconds + np.asarray(moved_bytes) / rate)
