"""Writes the table of docs/growth.md from the raw measurements of growth."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from tidemark.model.project.files import CHECKOUT

PAGE, RAW = CHECKOUT / "docs" / "growth.md", CHECKOUT / "docs" / "growth.jsonl"
BEGINS, ENDS = "<!-- growth: begin -->", "<!-- growth: end -->"
UNITS = {"shards": "shards", "keys": "keys", "topologies": "topologies", "days": "days of facts"}
UNITS |= {"requests": "topologies"}
CLUSTERS = "clusters"
"""The axis of measurements on clusters, by records."""
TOLERANCE = 0.15
"""By so much an exponent may be above its aim."""


@dataclass(frozen=True)
class Sample:
    """Values of a *figure* at one *size* of an *axis*.

    `load` is the load average of the machine.

    The exponent that is aimed at is 0 for what should not depend on the axis, and 1 for what is proportional to it;
    None: nothing is aimed at.
    """

    axis: str
    size: int
    figure: str
    unit: str
    values: Sequence[float]
    aim: float | None = None
    load: float = 0.0


class Exponent(NamedTuple):
    """The slope of log(value) over log(size), and its standard error."""

    slope: float
    error: float


def exponent(sizes: Sequence[float], values: Sequence[float]) -> Exponent:
    """Fits a power law by least squares; both must be above 0."""
    x, y = (np.log(each) - np.log(each).mean() for each in (sizes, values))
    slope = x @ y / (x @ x)
    return Exponent(float(slope), float(np.sqrt(((y - slope * x) ** 2).sum() / max(len(x) - 2, 1) / (x @ x))))


def read(raw: Path = RAW) -> list[Sample]:
    """Returns the measurements."""
    return [Sample(**json.loads(line)) for line in raw.read_text().splitlines()]


def table(samples: Iterable[Sample]) -> str:
    """Returns the table of growth in Markdown, a row for each figure."""
    rows = ["| figure | unit | at | value | at | value | exponent | aimed at |", "|---|---|---|---|---|---|---|---|"]
    figures: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        if sample.axis in UNITS:
            figures.setdefault((sample.axis, sample.figure), []).append(sample)
    for (axis, figure), found in figures.items():
        if len(found) < 2:
            continue
        found.sort(key=lambda sample: sample.size)
        values = [median(sample.values) for sample in found]
        ends = " | ".join(f"{each.size:,} {UNITS[axis]} | {_short(value)}" for each, value in _ends(found, values))
        rows.append(f"| {figure} | {found[0].unit} | {ends} | {_fitted(found, values)} |")
    return "\n".join(rows)


def _ends(found: Sequence[Sample], values: Sequence[float]) -> list[tuple[Sample, float]]:
    return [(found[0], values[0]), (found[-1], values[-1])]


def _fitted(found: Sequence[Sample], values: Sequence[float]) -> str:
    """Returns the exponent and the verdict about it."""
    aim = found[0].aim
    if min(values) <= 0:
        return f"– | {'' if aim is None else f'{aim:g}'}"
    slope, error = exponent([sample.size for sample in found], values)
    spread = f" ± {error:.2f}" if len(found) > 2 else ""
    verdict = "" if aim is None else f"{aim:g}" if slope <= aim + TOLERANCE else f"{aim:g}, **missed**"
    return f"{slope:.2f}{spread} | {verdict}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def write_page(samples: Iterable[Sample], page: Path = PAGE) -> None:
    """Replaces the table between the marks in *page*."""
    text = f"{BEGINS}\n{table(samples)}\n{ENDS}"
    pattern = re.compile(f"{re.escape(BEGINS)}.*?{re.escape(ENDS)}", re.DOTALL)
    page.write_text(pattern.sub(lambda _: text, page.read_text()))


if __name__ == "__main__":
    write_page(read())
