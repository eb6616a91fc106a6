"""Sections of this plugin, and the framework profile that it brings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen


@frozen(kw_only=True)
class MegatronConfig:
    """``[plugins.megatron]`` of an input file; nothing to set yet."""


# MindSpeed-LLM runs Megatron core on Ascend. No run of it is among the measured ones, so every cost of
# the Megatron profile stands in unverified; only what its arguments allow is its own.
MINDSPEED_PROFILE: Mapping[str, Any] = {
    "name": "mindspeed",
    "base": "megatron",
    "title": "MindSpeed-LLM (Megatron core on Ascend)",
    "unverified": [
        "core.saved", "core.transient", "core.head", "core.time_scale", "core.context_bytes",
        "tp.overlap",
    ],
    "sources": {
        "core": "the megatron profile stands in: no measured run of MindSpeed-LLM",
        "dp.zero_stages": "MindSpeed-LLM arguments: distributed optimizer; FSDP2 is a separate engine",
    },
    "dp": {"zero_stages": [0, 1], "hybrid_stages": []},
}  # fmt: skip
