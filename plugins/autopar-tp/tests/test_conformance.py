"""The tp plugin keeps the contract, under every framework profile that ships."""

from __future__ import annotations

from autopar_core.testing import DimensionConformance


class TestGeneric(DimensionConformance):
    plugin = "tp"


class TestMegatron(DimensionConformance):
    plugin = "tp"
    framework = "megatron"


class TestTorchtitan(DimensionConformance):
    plugin = "tp"
    framework = "torchtitan"
