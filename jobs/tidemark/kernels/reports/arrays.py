"""Arrays with a value per window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
"""Instants (epoch ms) or lengths (ms), whole numbers, exact up to 2^53; NaN: no value."""
Places = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
NONE = -1
"""Stands for no operator, where a place is expected."""
UNFINISHED = -2
"""The place or clock of an operator without the window."""


def alike(rows: Sequence[npt.NDArray[Any]], windows: int) -> Iterator[Mask]:
    """Divides *windows* into those for which each of *rows* has equal values."""
    if not windows or all((row == row[0]).all() for row in rows):
        yield np.ones(windows, np.bool_)
        return
    kinds, of_window = np.unique(np.stack(rows), axis=1, return_inverse=True)
    for number in range(kinds.shape[1]):
        yield of_window == number
