"""Units: bytes, seconds and FLOP/s inside; GiB and readable text only at the edges."""

from __future__ import annotations

import re


KIB, MIB, GIB = 2**10, 2**20, 2**30
_UNITS = {
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": KIB, "mib": MIB, "gib": GIB, "tib": 2**40,
}  # fmt: skip
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]+)\s*")


def parse_bytes(text: str) -> int:
    """Bytes of ``"72 GiB"``, ``"80 GB"``; decimal and binary units are told apart.

    Raises:
        ValueError: When the text is no number with a unit.
    """
    match = _SIZE.fullmatch(text)
    if match is None or match[2].lower() not in _UNITS:
        raise ValueError(f'{text!r} is no size; write for instance "72 GiB" or "80 GB"')
    return int(float(match[1]) * _UNITS[match[2].lower()])


def gib(value: float) -> float:
    """Bytes to GiB."""
    return value / GIB


def show_bytes(value: float) -> str:
    """Bytes as text, ``"71.25 GiB"``."""
    return f"{value / GIB:.2f} GiB"


def show_seconds(value: float) -> str:
    """Seconds as text with three significant digits, ``"1.23 s"`` or ``"45.6 ms"``."""
    if value >= 1:
        return f"{value:.3g} s" if value < 1000 else f"{value:.0f} s"
    return f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} us"


def counted(number: float, noun: str) -> str:
    """A number with its noun, ``"1 layer"``, ``"4 layers"``, ``"2 batches"``, ``"3 entries"``."""
    return f"{number} {noun if number == 1 else many(noun)}"


def many(noun: str) -> str:
    """Its plural."""
    if noun.endswith(("ch", "sh", "s", "x")):
        return f"{noun}es"
    return f"{noun[:-1]}ies" if noun[-1] == "y" and noun[-2] not in "aeiou" else f"{noun}s"
