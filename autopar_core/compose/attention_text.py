"""Formula and inputs of the attention calls of a layer, for people who check them by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from autopar_core.domain.system import SystemProfile
from autopar_core.domain.terms import Extent
from autopar_core.laws.compute import (
    ATTENTION_TILE,
    UNFUSED,
    UNFUSED_SHARE,
    attention_law,
    head_padding,
)
from autopar_core.work.rank_work import RankWork


_WORK = "4 b n s_q s_k d share x padding / (peak eta) x (1 + s0 / s_k)"
_TAIL = f"tail x 4 x {ATTENTION_TILE} s_k d units / (peak eta)"


def attention_formula(kernel: str, *, backward: bool) -> str:
    """What the laws of :mod:`autopar_core.laws.compute` evaluate, summed over the calls of a layer."""
    if kernel == UNFUSED:
        twice = 2 if backward else 1
        product = f"4 b n s_q s_k d / ({UNFUSED_SHARE:g} x efficiency x peak)"
        return f"calls x ({2 * twice} launch + {twice} x {product})"
    if backward:
        return f"calls x (3 launch + 2.5 x ({_WORK} + {_TAIL}))"
    return f"calls x (launch + {_WORK} + {_TAIL})"


def attention_inputs(
    work: RankWork, system: SystemProfile, kernel: str, scale: float, backward: bool
) -> dict[str, Any]:
    """Sizes and constants of the calls; the calls of a ring or an exchange are numbered."""
    made: dict[str, Any] = {
        "b": work.extent(Extent.SEQUENCES), "d": work.model.head_dim,
        "launch (s)": system.kernel.launch_seconds,
    }  # fmt: skip
    if kernel == UNFUSED:
        made |= {"efficiency": system.gemm.efficiency, "peak (FLOP/s)": system.peak("bf16")}
    else:
        law = attention_law(system, kernel, work.model.head_dim)
        made |= {
            "padding": head_padding(work.model.head_dim), "units": system.compute_units,
            "peak (FLOP/s)": system.peak("bf16") * scale,
            "eta": law.eta_b if backward else law.eta_f, "s0": law.s0_b if backward else law.s0_f,
            "tail": law.tail_b if backward else law.tail_f,
        }  # fmt: skip
    used = [(rows * call.count, call) for rows, call in work.attention_calls()
            if (rows * call.count).any()]  # fmt: skip
    for number, (calls, call) in enumerate(used, 1):
        name = f" of kind {number}" if len(used) > 1 else ""
        heads = np.maximum(1, work.extent(Extent.ATTENTION_HEADS) // call.heads_divisor)
        made |= {
            f"calls{name}": calls, f"n{name}": heads,
            f"s_q{name}": work.seq_len / call.query_divisor,
            f"s_k{name}": work.seq_len / call.key_divisor,
        }  # fmt: skip
        if kernel != UNFUSED:
            made[f"share{name}"] = call.work_share
    return made
