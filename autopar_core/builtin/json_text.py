"""Plain data and its JSON text: no NaN, short lists on one line, the same bytes every time."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from enum import Enum
from typing import Any

import attrs
import numpy as np


LINE = 96


def plain(value: Any) -> Any:
    """The value as dicts, lists, strings and numbers; what is not finite becomes None."""
    if value is None or (isinstance(value, (str, bool, int)) and not isinstance(value, Enum)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, (np.ndarray, np.generic)):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(one) for key, one in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted((plain(one) for one in value), key=str)
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if attrs.has(type(value)):
        return {
            a.name: plain(getattr(value, a.name))
            for a in attrs.fields(type(value))
            if not a.name.startswith("_")
        }
    return str(value)


def dump(value: Any) -> str:
    """JSON text of plain data, indented; a container whose text is short stays on one line."""
    return _text(value, "") + "\n"


def _text(value: Any, indent: str) -> str:
    if not isinstance(value, (dict, list)) or not value:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    members = value.values() if isinstance(value, dict) else value
    if not any(isinstance(one, (dict, list)) and one for one in members):
        flat = json.dumps(value, ensure_ascii=False, allow_nan=False)
        if isinstance(value, list) and not any(isinstance(one, str) for one in value):
            return flat
        if len(flat) + len(indent) <= LINE:
            return flat
    inner = indent + "  "
    if isinstance(value, dict):
        lines = [
            f"{inner}{json.dumps(key, ensure_ascii=False)}: {_text(one, inner)}"
            for key, one in value.items()
        ]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    return "[\n" + ",\n".join(inner + _text(one, inner) for one in value) + f"\n{indent}]"
