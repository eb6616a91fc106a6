"""The pp plugin keeps the contract, under every framework profile that ships."""

from __future__ import annotations

from autopar_core.testing import DimensionConformance


class TestGeneric(DimensionConformance):
    plugin = "pp"


class TestMegatron(DimensionConformance):
    plugin = "pp"
    framework = "megatron"


class TestTorchtitan(DimensionConformance):
    plugin = "pp"
    framework = "torchtitan"
