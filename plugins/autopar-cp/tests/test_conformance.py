"""The cp plugin keeps the contract, under every framework profile that ships."""

from __future__ import annotations

from autopar_core.testing import DimensionConformance


class TestGeneric(DimensionConformance):
    plugin = "cp"


class TestMegatron(DimensionConformance):
    plugin = "cp"
    framework = "megatron"


class TestTorchtitan(DimensionConformance):
    plugin = "cp"
    framework = "torchtitan"
