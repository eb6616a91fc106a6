"""Array types that the whole code speaks of: one value per candidate row unless a docstring says more."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Array = NDArray[Any]


def ceil_div(a: Ints, b: Ints | int) -> Ints:
    """Integer division rounded up."""
    return np.asarray(-(-a // b), dtype=np.int64)
