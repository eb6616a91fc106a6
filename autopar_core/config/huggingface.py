"""The shape of a dense decoder from a Hugging Face ``config.json``, by model type."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import tomli
from attrs import frozen

from autopar_core.config.catalogue import shipped
from autopar_core.config.converter import nearest
from autopar_core.config.huggingface_refused import Place, key_place, refuse
from autopar_core.domain.findings import Findings
from autopar_core.errors import InputError
from autopar_core.units import counted


_STANDARD = "standard"
_FLAGS = frozenset((
    "tied_embeddings", "qkv_bias", "attention_out_bias", "mlp_bias", "head_bias", "gated_mlp",
))  # fmt: skip
# Width inside the MLP where no key says it: every type without one multiplies by four.
_FFN_TIMES = 4
# One fact under its older and its newer spelling (transformers 5 gathers the position keys).
_RESPELLED = (
    ("torch_dtype", "dtype"), ("rope_theta", "rope_parameters.rope_theta"),
    ("partial_rotary_factor", "rope_parameters.partial_rotary_factor"),
)  # fmt: skip


@frozen
class ModelType:
    """One model type of the catalogue.

    Attributes:
        keys: Model field -> keys, of which the first that is present counts.
        defaults: Key -> value where the file has none.
        fixed: Model field -> value that the type has without a key.
    """

    name: str
    keys: Mapping[str, tuple[str, ...]]
    defaults: Mapping[str, Any]
    fixed: Mapping[str, Any]


@cache
def model_types() -> Mapping[str, ModelType]:
    """Every model type that can be read, by name."""
    tables = tomli.loads(shipped("model_types.toml").read_text(encoding="utf-8"))
    standard = tables.pop(_STANDARD)["keys"]
    return {name: _type(name, table, standard) for name, table in tables.items()}


def _type(name: str, table: Mapping[str, Any], standard: Mapping[str, Any]) -> ModelType:
    keys = {
        field: each for field, each in standard.items() if field not in table.get("without", ())
    }
    keys |= table.get("keys", {})
    spelled = {
        field: (each,) if isinstance(each, str) else tuple(each) for field, each in keys.items()
    }
    return ModelType(name, spelled, table.get("defaults", {}), table.get("fixed", {}))


class Card:
    """A ``config.json`` with typed access; ``place`` says where a key stands."""

    def __init__(self, table: Mapping[str, Any], kind: ModelType, label: str, place: Place) -> None:
        self.table, self.kind, self.label, self.place = table, kind, label, place

    def wrong(self, key: str, what: str) -> InputError:
        """The error for a key."""
        return InputError(f"{self.label}: {self.place(key)}", what)

    def value(self, key: str) -> Any:
        """The value of a dotted key; None where it is absent."""
        at: Any = self.table
        for part in key.split("."):
            at = at.get(part) if isinstance(at, Mapping) else None
        return at

    def flag(self, key: str, default: bool) -> bool:
        """True or false; a null is the default.

        Raises:
            InputError: When it is something else.
        """
        found = self.value(key)
        if found is None:
            return default
        if not isinstance(found, bool):
            raise self.wrong(key, f"expected true or false, got {found!r}")
        return found

    def whole(self, key: str) -> int | None:
        """A positive whole number; None where it is absent or null.

        Raises:
            InputError: When it is something else.
        """
        found = self.value(key)
        if found is None:
            return None
        if isinstance(found, list):
            raise self.wrong(key, "is a list: layers of different shapes cannot be planned")
        if isinstance(found, bool) or not isinstance(found, int) or found < 1:
            raise self.wrong(key, f"expected a positive whole number, got {found!r}")
        return found

    def first(self, keys: Sequence[str]) -> str:
        """The first of several spellings that is present; the first of all where none is.

        Raises:
            InputError: When two are present and disagree.
        """
        there = [key for key in keys if self.value(key) is not None]
        for key in there[1:]:
            if self.value(key) != self.value(there[0]):
                raise InputError(
                    self.label,
                    f"{self.place(there[0])} is {self.value(there[0])!r} and {self.place(key)} is "
                    f"{self.value(key)!r}; they mean the same and must agree",
                )
        return there[0] if there else keys[0]


def hugging_face_model(
    table: Mapping[str, Any], found: Findings, label: str, *, place: Place = key_place,
    kind: str = "",
) -> None:  # fmt: skip
    """Put the model of a ``config.json`` into ``found``, every field with its key.

    Args:
        table: The parsed file, or the table inside another file that has its keys.
        found: Where ``model.*`` goes.
        label: Name of the file, for messages.
        place: Where a key of the table stands: ``"key hidden_size"``, ``"line 7, model.hidden_size"``.
        kind: Model type where the table has no ``model_type``.

    Raises:
        InputError: When it is no dense decoder of a known type, or says something impossible.
    """
    refuse(table, label, place)
    card = Card(table, _kind_of(table, label, place, kind), label, place)
    card_checks(card)
    for field, value, source in _fields(card):
        found.put(f"model.{field}", value, source)
    for sentence in _notes(card):
        found.note(sentence)


def _kind_of(table: Mapping[str, Any], label: str, place: Place, kind: str) -> ModelType:
    asked = table.get("model_type", kind)
    if not isinstance(asked, str) or not asked:
        raise InputError(
            label, f"has no {place('model_type')}, which says what the other keys mean; "
            f"known: {', '.join(model_types())}",
        )  # fmt: skip
    if asked not in model_types():
        raise InputError(
            f"{label}: {place('model_type')}",
            f"{asked!r} cannot be read{nearest(asked, model_types(), noun='known', many=60)}",
        )
    return model_types()[asked]


def card_checks(card: Card) -> None:
    """Refuse two spellings of one fact that disagree, and layer lists of another length."""
    for old, new in _RESPELLED:
        one, other = card.value(old), card.value(new)
        if one is not None and other is not None and one != other:
            raise InputError(
                card.label, f"{card.place(old)} is {one!r} and {card.place(new)} is {other!r}; they "
                "mean the same and must agree",
            )  # fmt: skip
    kinds = card.value("layer_types")
    layers = card.whole(card.first(card.kind.keys["num_layers"]))
    if isinstance(kinds, list) and layers is not None and len(kinds) != layers:
        listed = counted(len(kinds), "layer")
        raise card.wrong("layer_types", f"lists {listed}, but the model has {layers}")


def _fields(card: Card) -> Iterator[tuple[str, Any, str]]:
    """(model field, value, source) of everything that the card says."""
    made: dict[str, tuple[Any, str]] = {}
    own = f"model type {card.kind.name}"
    for field, value in card.kind.fixed.items():
        made[field] = (value, own)
    for field, keys in card.kind.keys.items():
        key = card.first(keys)
        default = next((card.kind.defaults[k] for k in keys if k in card.kind.defaults), None)
        value = card.flag(key, bool(default)) if field in _FLAGS else card.whole(key)
        if card.value(key) is not None:
            made[field] = (value, card.place(key))
        elif default is not None:
            made[field] = (default, f"default of {own}, no {card.place(key)}")
    for field in ("num_layers", "hidden", "heads", "vocab"):
        if field not in made:
            raise InputError(card.label, f"has no {card.place(card.kind.keys[field][0])}")
    if "ffn_hidden" not in made:
        if "ffn_hidden" in card.kind.keys and card.kind.name not in _PLAIN_FFN:
            raise InputError(card.label, f"has no {card.place(card.kind.keys['ffn_hidden'][0])}")
        made["ffn_hidden"] = (_FFN_TIMES * made["hidden"][0], f"{own}: 4 x hidden")
    if "kv_heads" not in made:
        made["kv_heads"] = (made["heads"][0], f"{own}: as many as query heads")
    special = _SPECIAL.get(card.kind.name)
    if special is not None:
        special(card, made)
    for field, (value, source) in made.items():
        yield field, value, source


# Types whose key for the MLP width may be absent or null: four times the hidden width then.
_PLAIN_FFN = frozenset(("gpt2", "gpt_bigcode", "falcon"))

Made = dict[str, tuple[Any, str]]


def _learned(extra: int) -> Callable[[Card, Made], None]:
    def rows(_: Card, made: Made) -> None:
        longest, source = made["max_position_embeddings"]
        made["position_rows"] = (longest + extra, f"{source}{f' + {extra}' if extra else ''}")

    return rows


def _gpt_bigcode(card: Card, made: Made) -> None:
    _learned(0)(card, made)
    if card.flag("multi_query", True):
        made["kv_heads"] = (1, card.place("multi_query"))


def _opt(card: Card, made: Made) -> None:
    _learned(2)(card, made)  # OPT's table begins with two unused rows
    if not card.flag("layer_norm_elementwise_affine", True):
        raise card.wrong("layer_norm_elementwise_affine", "norms without weights cannot be planned")
    before = card.flag("do_layer_norm_before", True)
    kept = before and not card.flag("_remove_final_layer_norm", False)
    made["final_norm"] = (kept, card.place("do_layer_norm_before"))
    width, source = made.get("embedding_width", (0, ""))
    made["embedding_width"] = (0 if width == made["hidden"][0] else width, source)
    if not made["embedding_width"][0]:
        del made["embedding_width"]


def _falcon(card: Card, made: Made) -> None:
    """KV heads and norms depend on the architecture's generation, not on one key."""
    new = card.flag("new_decoder_architecture", False)
    if new:
        heads = card.whole("num_kv_heads") or card.whole("n_head_kv")
        if heads is not None:
            made["kv_heads"] = (heads, card.place("num_kv_heads"))
    elif card.flag("multi_query", True):
        made["kv_heads"] = (1, card.place("multi_query"))
    parallel = card.flag("parallel_attn", True)
    norms = (card.whole("num_ln_in_parallel_attn") or 2) if new else (1 if parallel else 2)
    key = "new_decoder_architecture" if new else "parallel_attn"
    made["norms_per_layer"] = (norms, card.place(key))
    if card.flag("alibi", False):
        made["position"] = ("alibi", card.place("alibi"))


def _chatglm(card: Card, made: Made) -> None:
    if card.flag("multi_query_attention", False):
        groups = card.whole("multi_query_group_num")
        if groups is None:
            raise InputError(card.label, f"has no {card.place('multi_query_group_num')}")
        made["kv_heads"] = (groups, card.place("multi_query_group_num"))
    if not card.flag("rmsnorm", True):
        made["norm"] = ("layernorm", card.place("rmsnorm"))
    bias = made["attention_out_bias"]
    if bias[0]:
        made["qkv_bias"] = bias


def _baichuan(_: Card, made: Made) -> None:
    # No key says so: the 13B models use ALiBi, the 7B models rotary positions.
    if made["hidden"][0] >= 5120:
        made["position"] = ("alibi", "inferred: hidden width of the 13B models")


def _mpt(card: Card, made: Made) -> None:
    ratio = card.value("expansion_ratio")
    if ratio is not None:
        width = made["hidden"][0] * ratio if isinstance(ratio, int | float) else 0
        if isinstance(ratio, bool) or width <= 0 or width != int(width):
            raise card.wrong("expansion_ratio", f"{ratio!r} x hidden is no whole width")
        made["ffn_hidden"] = (int(width), f"{card.place('expansion_ratio')} x hidden")
    grouped = card.whole("attn_config.kv_n_heads")
    if grouped is not None:
        made["kv_heads"] = (grouped, card.place("attn_config.kv_n_heads"))
    if not card.flag("no_bias", True):
        for field in ("qkv_bias", "attention_out_bias", "mlp_bias"):
            made[field] = (True, card.place("no_bias"))
        made["norm"] = ("layernorm", card.place("no_bias"))
    if not card.flag("attn_config.alibi", True):
        longest, source = made["max_position_embeddings"]
        made["position"] = ("learned", card.place("attn_config.alibi"))
        made["position_rows"] = (longest, source)
    if card.flag("attn_config.qk_ln", False):
        made["qk_norm"] = ("full", card.place("attn_config.qk_ln"))


def _stablelm(card: Card, made: Made) -> None:
    if card.flag("qk_layernorm", False):
        raise card.wrong("qk_layernorm", "a norm for each head cannot be planned")
    if card.flag("use_parallel_residual", False):
        made["norms_per_layer"] = (1, card.place("use_parallel_residual"))


def _phi(card: Card, made: Made) -> None:
    if card.flag("qk_layernorm", False):
        made["qk_norm"] = ("head", card.place("qk_layernorm"))


def _cohere(card: Card, _: Made) -> None:
    if card.flag("use_qk_norm", False):
        raise card.wrong("use_qk_norm", "a norm for each head cannot be planned")


_SPECIAL: Mapping[str, Callable[[Card, Made], None]] = {
    "gpt2": _learned(0), "gpt_bigcode": _gpt_bigcode, "opt": _opt, "falcon": _falcon,
    "chatglm": _chatglm, "baichuan": _baichuan, "mpt": _mpt, "stablelm": _stablelm, "phi": _phi,
    "cohere": _cohere,
}  # fmt: skip


def _notes(card: Card) -> Iterator[str]:
    window = card.value("sliding_window")
    kinds = card.value("layer_types")
    slides = isinstance(kinds, list) and "sliding_attention" in kinds
    if isinstance(window, int) and (
        slides or (kinds is None and card.flag("use_sliding_window", True))
    ):
        yield (
            f"{card.place('sliding_window')}: attention over the last {window:,} tokens is estimated "
            "as attention over all"
        )
    if card.value("quantization_config") is not None:
        yield (
            f"{card.place('quantization_config')}: the stored weights are quantised; training is "
            "planned in the precision of the training section"
        )
