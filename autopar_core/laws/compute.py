"""Device time of GEMMs, fused attention and memory-bound kernels (a roofline with few constants)."""

from __future__ import annotations

import numpy as np

from autopar_core.domain.arrays import Array, Floats
from autopar_core.domain.system import AttentionLaw, SystemProfile


# Rows of queries that one thread block of a fused attention kernel works on (FlashAttention tiles).
ATTENTION_TILE = 128
# Head dimensions above this take the law of the "128" kernel, the others that of "64".
SMALL_HEAD = 64

# Rate of batched products over heads as a share of the GEMM rate: published GPT runs on A100 with
# attention in separate kernels (Megatron-LM 2021 and 2022), chosen with the step-time model.
UNFUSED_SHARE = 0.7
UNFUSED = "unfused"
# Tensor cores want operands in steps of 16 bytes (NVIDIA, Matrix Multiplication Background); what is left
# of the rate otherwise is assumed.
ALIGNED = 8
MISALIGNED_SHARE = 0.25


def gemm_seconds(
    system: SystemProfile, precision: str, rows: Array, columns: Array, inner: Array,
    speed_share: float = 1.0,
) -> Floats:  # fmt: skip
    """Seconds of a ``rows x inner`` by ``inner x columns`` product, (N,).

    launch + 2 M N K / (efficiency peak) (1 / speed + k0 / K): three constants per system; 236 held-out
    H200 shapes within a median of 3.2 %. ``speed`` is that of the number format, 1 in 16 bits. The term
    in k0 is the output: fitted freely, the bytes of M N cost what the data sheet gives and those of the
    operands a tenth of it. An output has 16 bits whatever the operands have, so the format leaves it.
    ``speed_share`` is the part of the speed that another implementation of the product reaches.
    """
    speed = system.speed(precision) * speed_share
    rate = system.sustained(precision) * speed_share
    work = 2.0 * np.asarray(rows, dtype=np.float64) * columns * inner
    work = work * wave_share(system, rows, columns)
    return np.asarray(
        system.kernel.launch_seconds + work / rate * (1 + speed * system.gemm.k0 / inner)
    )


def gemm_inputs(
    system: SystemProfile, precision: str, rows: Array, columns: Array, inner: Array,
    speed_share: float = 1.0,
) -> dict[str, Array | float]:  # fmt: skip
    """What :func:`gemm_seconds` evaluates, by name, for people who check it by hand."""
    made: dict[str, Array | float] = {
        "M": rows, "N": columns, "K": inner, "efficiency": system.gemm.efficiency,
        "peak (FLOP/s)": system.peak("fp16" if precision == "fp16" else "bf16"),
        "k0": system.gemm.k0, "launch (s)": system.kernel.launch_seconds,
    }  # fmt: skip
    speed = system.speed(precision) * speed_share
    if speed != 1.0:
        made["speed"] = speed
    if system.gemm.tile[0]:
        made["waves"] = wave_share(system, rows, columns)
    return made


def moved_inputs(system: SystemProfile, moved_bytes: Array, kernels: float = 1) -> dict[str, Array]:
    """What :func:`moved_seconds` evaluates, by name."""
    return {
        "bytes": moved_bytes, "kernels": np.asarray(kernels),
        "launch (s)": np.asarray(system.kernel.launch_seconds),
        "efficiency": np.asarray(system.memory.elementwise_efficiency),
        "bandwidth (B/s)": np.asarray(system.memory.bytes_per_second),
    }  # fmt: skip


def wave_share(system: SystemProfile, rows: Array, columns: Array) -> Floats | float:
    """Time of whole waves of output tiles over that of the tiles alone, (N,); 1 below one wave.

    Below a wave libraries split the inner dimension, which fills the device.
    """
    high, wide = system.gemm.tile
    if not high or not wide:
        return 1.0
    waves = np.asarray(rows, np.float64) * columns / (high * wide * system.compute_units)
    return np.asarray(np.where(waves >= 1, np.ceil(waves) / np.maximum(waves, 1), 1.0))


def linear_seconds(
    system: SystemProfile, precision: str, tokens: Array, n_in: Array, n_out: Array,
    speed_share: float = 1.0,
) -> tuple[Floats, Floats, Floats]:  # fmt: skip
    """(forward, backward, weight gradient's share of the backward) of ``y = x W``.

    The backward is the product for the input's gradient and the one for the weights'.
    """
    forward = gemm_seconds(system, precision, tokens, n_out, n_in, speed_share)
    data = gemm_seconds(system, precision, tokens, n_in, n_out, speed_share)
    weight = gemm_seconds(system, precision, n_in, n_out, tokens, speed_share)
    return forward, data + weight, weight / (data + weight)


def attention_law(system: SystemProfile, kernel: str, head_dim: int) -> AttentionLaw:
    """Law of the kernel for this head dimension; the default kernel when it is not known."""
    kernels = system.attention
    table = kernels.get(kernel) or kernels[system.attention_default]
    wanted = "64" if head_dim <= SMALL_HEAD else "128"
    return table.get(wanted) or next(iter(table.values()))


def head_padding(head_dim: int) -> float:
    """Factor on the work of heads that are no whole tiles of 64: the square root of their padding."""
    return float((-(-head_dim // 64) * 64 / head_dim) ** 0.5) if head_dim not in (64, 128) else 1.0


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
    work = work * head_padding(head_dim)
    block = 4.0 * ATTENTION_TILE * np.asarray(keys, np.float64) * head_dim * system.compute_units
    forward = work / (peak * law.eta_f) * (1 + law.s0_f / keys)
    forward = forward + law.tail_f * block / (peak * law.eta_f)
    backward = work / (peak * law.eta_b) * (1 + law.s0_b / keys)
    backward = 2.5 * (backward + law.tail_b * block / (peak * law.eta_b))
    launch = system.kernel.launch_seconds
    return np.asarray(launch + forward), np.asarray(3 * launch + backward)


def unfused_attention_seconds(
    system: SystemProfile, head_dim: int, sequences: Array, heads: Array, queries: Array,
    keys: Array,
) -> tuple[Floats, Floats]:  # fmt: skip
    """(forward, backward) of the two batched products of attention with materialised scores.

    W = 4 b n s_q s_k d, nothing skipped above the diagonal, at ``UNFUSED_SHARE`` of the GEMM rate;
    backward is four products instead of two. What the softmax between them moves is elementwise work.
    """
    rate = UNFUSED_SHARE * system.gemm.efficiency * system.peak("bf16")
    work = 4.0 * np.asarray(sequences, np.float64) * heads * queries * keys * head_dim
    if head_dim % ALIGNED:
        work = work / MISALIGNED_SHARE
    launch = system.kernel.launch_seconds
    return np.asarray(2 * launch + work / rate), np.asarray(4 * launch + 2 * work / rate)


def moved_seconds(system: SystemProfile, moved_bytes: Array, kernels: float = 1) -> Floats:
    """Seconds of memory-bound kernels that move so many bytes (read plus written)."""
    rate = system.memory.elementwise_efficiency * system.memory.bytes_per_second
    return np.asarray(kernels * system.kernel.launch_seconds + np.asarray(moved_bytes) / rate)
