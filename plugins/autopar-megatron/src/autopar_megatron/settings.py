"""Settings of a run, whatever dialect said them: name, values and the place of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import frozen

from autopar_core.api import InputError
from autopar_megatron.shell_values import Token


_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})
_NONE = frozenset({"", "none", "null", "~"})


@frozen
class Setting:
    """One setting.

    Attributes:
        name: As Megatron's parser names it, ``tensor_model_parallel_size``.
        spelled: As the file spells it, ``--tensor-model-parallel-size``.
        values: Its values; empty for a switch.
        line: Line of the name, 0 when the format has no lines.
        value_line: Line that says the value.
        holes: What has no value in it.
    """

    name: str
    spelled: str
    values: tuple[str, ...]
    line: int
    value_line: int = 0
    holes: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """Where it stands, for people."""
        if not self.line:
            return self.spelled
        said = f"line {self.line}, {self.spelled}"
        if self.value_line and self.value_line != self.line:
            said += f", value on line {self.value_line}"
        return said


@frozen
class Settings:
    """Settings of a file by name.

    Attributes:
        label: Name of the file.
        found: Name -> setting.
        flags: The file spells them as flags (``--swiglu``), where an absent one has Megatron's
            default, instead of as fields of configuration classes.
        family: ``megatron``, ``megatron-bridge`` or ``mindspeed``.
    """

    label: str
    found: Mapping[str, Setting]
    flags: bool = True
    family: str = "megatron"

    def __contains__(self, name: str) -> bool:
        return name in self.found and not self.absent(name)

    def absent(self, name: str) -> bool:
        """Whether it is not there, or said to be none."""
        setting = self.found.get(name)
        if setting is None:
            return True
        return bool(setting.values) and setting.values[0].lower() in _NONE and not setting.holes

    def place(self, *names: str) -> str:
        """Where the first of these that is there stands."""
        return next((self.found[name].place for name in names if name in self), "")

    def first(self, *names: str) -> str:
        """The first of these names that is there, else empty."""
        return next((name for name in names if name in self), "")

    def wrong(self, name: str, what: str) -> InputError:
        """The error at a setting."""
        return InputError(
            f"{self.label}: {self.place(name)}" if self.place(name) else self.label, what
        )

    def text(self, name: str) -> str:
        """Its only value.

        Raises:
            InputError: When it has no value here, or several.
        """
        setting = self.found[name]
        if setting.holes:
            hole = setting.holes[0]
            how = f"give it one, for instance as ${{{hole[1:]}:-8}}" if _is_name(hole) else (
                "only an execution could tell; write the value"
            )  # fmt: skip
            raise self.wrong(name, f"{hole} has no value in this file; {how}")
        if len(setting.values) != 1:
            got = " ".join(setting.values) or "none"
            raise self.wrong(name, f"expected one value, got {got}")
        return setting.values[0]

    def whole(self, name: str, least: int = 1) -> int:
        """Its value as a whole number.

        Raises:
            InputError: When it is none or below ``least``.
        """
        text = self.text(name)
        try:
            number = int(text.replace("_", "")) if len(text) < 20 else None
        except ValueError:
            number = None
        if number is None or number < least:
            raise self.wrong(name, f"expected a whole number of at least {least}, got {text!r}")
        return number

    def whole_or(self, name: str, otherwise: int, least: int = 1) -> int:
        """As :meth:`whole`, ``otherwise`` when it is absent."""
        return self.whole(name, least) if name in self else otherwise

    def numbers(self, name: str) -> tuple[int, ...]:
        """Its value as whole numbers joined by commas.

        Raises:
            InputError: When one is none.
        """
        text = self.text(name).strip("\"'[]() ")
        parts = [part.strip() for part in text.split(",") if part.strip()]
        if not parts or not all(part.isdigit() and len(part) < 10 for part in parts):
            raise self.wrong(name, f"expected whole numbers joined by commas, got {text!r:.60}")
        return tuple(int(part) for part in parts)

    def on(self, name: str, otherwise: bool = False) -> bool:
        """Whether a switch is on; a value of true or false is understood.

        Raises:
            InputError: When the value is neither.
        """
        if self.absent(name):
            return otherwise
        setting = self.found[name]
        said = setting.values[0].lower() if setting.values else "true"
        if said not in _TRUE | _FALSE:
            raise self.wrong(name, f"is a switch and takes true or false, got {said!r:.40}")
        return said in _TRUE


def fp8_recipe(settings: Settings) -> str:
    """How 8-bit products are scaled; empty where there are none."""
    if not settings.first("fp8_format", "fp8"):
        return ""
    return settings.text("fp8_recipe") if "fp8_recipe" in settings else "delayed"


def from_tokens(label: str, tokens: Sequence[Token]) -> dict[str, Setting]:
    """Settings of an argument list as argparse groups it: a flag and the values up to the next.

    Raises:
        InputError: For a flag with two different values, two flags in one quoted word, a comment
            inside a string.
    """
    found: dict[str, Setting] = {}
    current: Setting | None = None
    for each in tokens:
        text = each.text
        if text == "#":
            raise InputError(
                f"{label}: line {each.line}", "'#' inside a quoted string starts no comment: "
                "Megatron gets it and what follows; delete the line",
            )  # fmt: skip
        if text.startswith("--") and len(text) > 2:
            if any(char.isspace() for char in text):
                raise InputError(
                    f"{label}: line {each.line}", f"{text!r:.80} reaches Megatron as one word; "
                    "write the value as a word of its own",
                )  # fmt: skip
            if current is not None:
                keep(label, found, current)
            flag, equals, value = text.partition("=")
            values = (value,) if equals else ()
            current = Setting(
                flag[2:].replace("-", "_"), flag, values, each.line, each.last_line if equals else 0,
                each.holes,
            )  # fmt: skip
        elif current is not None:
            current = Setting(
                current.name, current.spelled, (*current.values, text) if text else current.values,
                current.line, each.last_line or each.line, (*current.holes, *each.holes),
            )  # fmt: skip
    if current is not None:
        keep(label, found, current)
    return found


def keep(label: str, found: dict[str, Setting], setting: Setting) -> None:
    """Add a setting.

    Raises:
        InputError: When it is there with other values; both places are named.
    """
    before = found.get(setting.name)
    if before is not None and (before.values, before.holes) != (setting.values, setting.holes):
        one, other = (" ".join(s.values) or "on" for s in (before, setting))
        raise InputError(
            label, f"{setting.spelled} is {one} ({before.place}) and {other} ({setting.place}); "
            "keep one of them",
        )  # fmt: skip
    found.setdefault(setting.name, setting)


def _is_name(hole: str) -> bool:
    return hole[:1] == "$" and hole[1:].isidentifier()
