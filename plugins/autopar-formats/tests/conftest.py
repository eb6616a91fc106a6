"""Reading a text with a reader of this plugin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from autopar_core.api import InputError, Reader


@pytest.fixture
def read() -> Callable[..., Mapping[str, Any]]:
    """Tables of a text; the reader must recognise it."""

    def reading(reader: Reader, text: str, name: str = "file") -> Mapping[str, Any]:
        assert reader.recognises(Path(name), text)
        return reader.read(Path(name), text)

    return reading


@pytest.fixture
def refused(read: Callable[..., Mapping[str, Any]]) -> Callable[..., str]:
    """The sentence with which a text is refused."""

    def sentence(reader: Reader, text: str, name: str = "file") -> str:
        with pytest.raises(InputError) as caught:
            read(reader, text, name)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return sentence
