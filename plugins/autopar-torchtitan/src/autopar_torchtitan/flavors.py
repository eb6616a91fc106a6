"""The models that TorchTitan knows by name.

Shapes stand in ``torchtitan/models/llama3/__init__.py`` and ``torchtitan/models/qwen3/__init__.py`` of
releases 0.2.2 and 0.3.0. The feed-forward width of Llama is 2/3 of 4 x dim, times
``ffn_dim_multiplier``, rounded up to ``multiple_of``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve, field, frozen

from autopar_core.api import ModelConfig


TOML_ERA, PYTHON_ERA = "0.2.2", "0.3.0"
_BOTH = (TOML_ERA, PYTHON_ERA)


@frozen(kw_only=True)
class Flavor:
    """One named shape.

    Attributes:
        family: Name of the model in TorchTitan.
        name: Name of the flavour.
        title: Name of the model elsewhere.
        fields: Fields of ``model`` in an input file.
        parameters: Exact count; what TorchTitan reports when it builds the model.
        longest: Longest sequence that release 0.3.0 accepts (its RoPE table).
        releases: Releases that have it.
        base: Function of ``config_registry.py`` of release 0.3.0 that trains it; empty when none
            does plain pre-training.
        assets: Last part of ``hf_assets_path``.
    """

    family: str
    name: str
    title: str
    fields: Mapping[str, Any] = field(factory=dict)
    parameters: int
    longest: int
    releases: tuple[str, ...] = _BOTH
    base: str = ""
    assets: str = ""

    @property
    def model(self) -> ModelConfig:
        """The shape."""
        return ModelConfig(**self.fields)


def _llama(
    name: str, layers: int, hidden: int, ffn: int, heads: int, parameters: int, *, title: str = "",
    kv: int = 8, vocab: int = 128256, tied: bool = False, **more: Any,
) -> Flavor:  # fmt: skip
    return Flavor(
        family="llama3", name=name, title=title or f"llama-3-{name.lower()}", parameters=parameters,
        longest=131072, **more,
        fields={
            "num_layers": layers, "hidden": hidden, "ffn_hidden": ffn, "heads": heads, "kv_heads": kv,
            "head_dim": hidden // heads, "vocab": vocab, "tied_embeddings": tied,
        },
    )  # fmt: skip


def _qwen(
    name: str, layers: int, hidden: int, ffn: int, heads: int, parameters: int, *,
    vocab: int = 151936, tied: bool = False, longest: int = 40960, **more: Any,
) -> Flavor:  # fmt: skip
    return Flavor(
        family="qwen3", name=name, title=f"qwen3-{name.lower()}", parameters=parameters,
        longest=longest, **more,
        fields={
            "num_layers": layers, "hidden": hidden, "ffn_hidden": ffn, "heads": heads, "kv_heads": 8,
            "head_dim": 128, "vocab": vocab, "tied_embeddings": tied, "qk_norm": "head",
        },
    )  # fmt: skip


_NEW = (PYTHON_ERA,)
FLAVORS: tuple[Flavor, ...] = (
    _llama("debugmodel", 6, 256, 768, 16, 6163712, kv=16, vocab=2048, base="llama3_debugmodel"),
    _llama("1B", 16, 2048, 8192, 32, 1235814400, title="llama-3.2-1b", tied=True, releases=_NEW,
           assets="Llama-3.2-1B"),
    _llama("3B", 28, 3072, 8192, 24, 3212749824, title="llama-3.2-3b", tied=True, releases=_NEW,
           assets="Llama-3.2-3B"),
    _llama("8B", 32, 4096, 14336, 32, 8030261248, base="llama3_8b", assets="Llama-3.1-8B"),
    _llama("70B", 80, 8192, 28672, 64, 70553706496, base="llama3_70b", assets="Llama-3.1-70B"),
    _llama("405B", 126, 16384, 53248, 128, 405853388800, title="llama-3.1-405b", base="llama3_405b",
           assets="Llama-3.1-405B"),
    _qwen("debugmodel", 8, 256, 3072, 16, 31987968, vocab=2048, tied=True, longest=4096,
          base="qwen3_debugmodel"),
    _qwen("0.6B", 28, 1024, 3072, 16, 596049920, tied=True, base="qwen3_0_6b", assets="Qwen3-0.6B"),
    _qwen("1.7B", 28, 2048, 6144, 16, 1720574976, tied=True, base="qwen3_1_7b", assets="Qwen3-1.7B"),
    _qwen("4B", 36, 2560, 9728, 32, 4022468096, tied=True, assets="Qwen3-4B"),
    _qwen("8B", 36, 4096, 12288, 32, 8190735360, assets="Qwen3-8B"),
    _qwen("14B", 40, 5120, 17408, 40, 14768307200, base="qwen3_14b", assets="Qwen3-14B"),
    _qwen("32B", 64, 5120, 25600, 64, 32762123264, base="qwen3_32b", assets="Qwen3-32B"),
)  # fmt: skip
# Other names of a shape: another attention kernel, or unfused projections.
_SUFFIXES = ("_flex_attn", "_varlen_attn", "_flex", "_varlen", "_non_fused_qkv")

# Model or flavour -> why it is no dense decoder.
_EXPERTS = "a mixture-of-experts model"
OTHER_FAMILIES: Mapping[str, str] = {
    "deepseek_v3": f"{_EXPERTS} with latent attention", "llama4": _EXPERTS, "gpt_oss": _EXPERTS,
    "kimi_k2_7": f"{_EXPERTS} that sees images", "kimi_k3": _EXPERTS,
    "qwen3_5": "a hybrid of linear and full attention that sees images",
    "qwen3_vl": "a multimodal model", "muse_glimmer": "a multimodal model",
    "flux": "an image generation model", "deepseek_v4": _EXPERTS,
}  # fmt: skip
OTHER_FLAVORS: Mapping[tuple[str, str], str] = {
    ("qwen3", name): _EXPERTS for name in ("debugmodel_moe", "30B-A3B", "235B-A22B")
}


def families() -> tuple[str, ...]:
    """Names of the dense families."""
    return tuple(dict.fromkeys(one.family for one in FLAVORS))


def flavor_named(family: str, name: str) -> Flavor:
    """The flavour of a name.

    Raises:
        KeyError: When there is none; the first argument lists the names.
    """
    plain = next((name.removesuffix(s) for s in _SUFFIXES if name.endswith(s)), name)
    for one in FLAVORS:
        if one.family == family and one.name == plain:
            return one
    raise KeyError(", ".join(one.name for one in FLAVORS if one.family == family))


def flavor_of(model: ModelConfig, release: str) -> Flavor | None:
    """The flavour of a release that has a shape; labels do not count."""
    plain = evolve(model, name="", max_position_embeddings=0)
    return next((one for one in FLAVORS if release in one.releases and one.model == plain), None)
