"""Measures two sides in turns and compares their ratio with a target."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import pi, sqrt
from statistics import median, stdev
from typing import TypeVar

T = TypeVar("T")
CORES = 2
MANY = 8
"""Turns from which a figure has a standard error."""


@dataclass(frozen=True)
class Figure:
    """Ratios of every run and the *target*.

    At least the target, or *at_most* it; None: no target.
    """

    name: str
    values: Sequence[float]
    target: float | None = None
    at_most: bool = False
    unit: str = "×"

    def __str__(self) -> str:
        reached = median(self.values)
        spread = f"{min(self.values):,.2f} to {max(self.values):,.2f}" if len(self.values) > 1 else ""
        if len(self.values) >= MANY:
            spread += f" ± {standard_error(self.values):,.3f}"
        return f"{self.name:<66} {reached:>10,.2f} {self.unit:<10} {spread:<22} {self._verdict(reached)}"

    def _verdict(self, reached: float) -> str:
        if self.target is None:
            return ""
        is_reached = reached <= self.target if self.at_most else reached >= self.target
        return f"target {'≤' if self.at_most else '≥'} {self.target:g}: {'reached' if is_reached else 'MISSED'}"


def by_turns(sides: Mapping[str, Callable[[], T]], runs: int) -> dict[str, list[T]]:
    """Calls *sides* in turns, so that disturbances affect all of them."""
    found: dict[str, list[T]] = {name: [] for name in sides}
    for turn in range(runs):
        for name in list(sides)[:: 1 if turn % 2 == 0 else -1]:
            found[name].append(sides[name]())
    return found


def seconds(work: Callable[[], object]) -> float:
    """How long *work* took."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def ratios(found: Mapping[str, Sequence[float]], above: str, below: str) -> list[float]:
    """The ratio of two sides, turn by turn."""
    return [one / other for one, other in zip(found[above], found[below], strict=True)]


def standard_error(values: Sequence[float]) -> float:
    """Returns the standard error of the median of *values*.

    They are taken as independent and normal.
    """
    return sqrt(pi / 2) * stdev(values) / sqrt(len(values))


def pin() -> None:
    """Pins this process and its children to the same cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
