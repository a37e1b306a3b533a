"""Arrays with one value for each streaming window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
"""Instants (epoch ms) or lengths (ms), whole numbers, exact up to 2^53; NaN where a window has no value."""
Places = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
NONE = -1
"""In place of the index of an operator: there is none."""
UNFINISHED = -2
"""In place of the index or the clock of an operator that has not finished the window."""


def alike(rows: Sequence[npt.NDArray[Any]], windows: int) -> Iterator[Mask]:
    """Divides windows, whose number is *windows*, into groups in which each of *rows* has one value; yields their
    masks.
    """
    if not windows or all((row == row[0]).all() for row in rows):
        yield np.ones(windows, np.bool_)
        return
    kinds, of_window = np.unique(np.stack(rows), axis=1, return_inverse=True)
    for number in range(kinds.shape[1]):
        yield of_window == number
