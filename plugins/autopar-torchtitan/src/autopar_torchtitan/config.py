"""The section of this plugin in an input file."""

from __future__ import annotations

from attrs import field, frozen, validators

from autopar_torchtitan.flavors import PYTHON_ERA, TOML_ERA


@frozen(kw_only=True)
class TorchTitanConfig:
    """``[plugins.torchtitan]`` of an input file.

    Attributes:
        version: Release whose rules hold: ``0.3.0``, or ``0.2.2``, the last with TOML files.
    """

    version: str = field(default=PYTHON_ERA, validator=validators.in_((PYTHON_ERA, TOML_ERA)))
