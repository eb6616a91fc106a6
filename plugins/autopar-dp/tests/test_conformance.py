"""The dp plugin keeps the contract, under every framework profile that ships."""

from __future__ import annotations

from autopar_core.testing import DimensionConformance


class TestGeneric(DimensionConformance):
    plugin = "dp"


class TestMegatron(DimensionConformance):
    plugin = "dp"
    framework = "megatron"


class TestTorchtitan(DimensionConformance):
    plugin = "dp"
    framework = "torchtitan"
