"""Plots over time that fit any width: their axes, lines, bands and bars, and a table of their numbers.

A plot is an SVG that is stretched, and its labels are text beside it, so a telephone shows them in the same size as a
desk. What is drawn has a name, and the style of pages gives the name a colour. Lengths are ms, instants epoch ms, shown
in UTC.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup

from tidemark.model.settings.intervals import Grain, Interval, utc
from tidemark.model.settings.lengths import for_people

_HOURS = (1, 2, 3, 6, 12, 24, 48, 120, 240, 720, 2_400, 8_760)
STEPS_MS = (
    1, 2, 5, 10, 20, 50, 100, 200, 500,
    1_000, 2_000, 5_000, 10_000, 15_000, 30_000,
    60_000, 120_000, 300_000, 600_000, 900_000, 1_800_000,
    *(hours * 3_600_000 for hours in _HOURS),
)  # fmt: skip
"""Lengths that may lie between two ticks of an axis, ms."""
DECADES_MS = (1, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000, 360_000_000)
"""Ticks of an axis with equal ratios, ms."""
COUNTS = tuple(digit * 10**zeros for zeros in range(16) for digit in (1, 2, 5))
"""Counts that may lie between two ticks of an axis."""
THOUSANDS = ((10**12, " T"), (10**9, " G"), (10**6, " M"), (1_000, " k"), (1, ""))
MOST_TICKS = 5
MOST_TICKS_OF_LOW = 3
"""Most ticks of a low plot on either side of 0."""
MOST_TIMES = 4
"""Most labels of the time axis; a telephone has room for them."""
LAST_TIME = 86
"""How far to the right a label of the time axis may begin, percent."""
SPREAD = 20
"""Least ratio of highest value to median for an axis with equal ratios."""
WIDTH, HEIGHT = 1000, 100
"""Size of a plot in its own units."""
NARROWEST = 1
"""Least width of a bar, in units of a plot: a shorter time would be invisible."""
Point = tuple[float, float]


class Bar(NamedTuple):
    """A bar from one instant to another, and from one value to another."""

    from_ms: float
    until_ms: float
    low: float
    high: float


@dataclass(frozen=True)
class Numbers:
    """The numbers of a chart: names of the columns and rows of text."""

    columns: Sequence[str]
    rows: Iterable[Sequence[str]]


@dataclass(frozen=True)
class ValueAxis:
    """The axis of values from *low* to *high*, with labelled *ticks*."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    scale: Callable[[float], float] = float
    """Maps a value to a number that is proportional to its height."""

    def y(self, value: float) -> float:
        """Returns the distance of *value* from the top, in percent."""
        low, high = self.scale(self.low), self.scale(self.high)
        share = (self.scale(min(max(value, self.low), self.high)) - low) / (high - low)
        return round(100 * (1 - share), 2)


@dataclass(frozen=True)
class Plot:
    """A plane with time to the right and values upwards; `is_low` is for charts of which a page has many."""

    interval: Interval
    axis: ValueAxis
    is_low: bool = False

    def line(self, points: Sequence[Point], place_ms: int) -> Markup:
        """Draws a line through *points*, each an instant and a value, in the middle of their places."""
        return Markup('<polyline points="{}"/>').format(" ".join(self._corners(points, place_ms)))

    def band(self, name: str, lower: Sequence[Point], upper: Sequence[Point], place_ms: int) -> Markup:
        """Draws the area between two lines with as many points."""
        edge = [*self._corners(lower, place_ms), *reversed([*self._corners(upper, place_ms)])]
        return Markup('<polygon class="{}" points="{}"/>').format(name, " ".join(edge))

    def bars(self, name: str, bars: Iterable[Bar]) -> Markup:
        """Draws *bars*, cut at the edges of the plot, as one path."""
        drawn = []
        for bar in bars:
            left, right = (min(max(_x(at_ms, self.interval), 0), WIDTH) for at_ms in (bar.from_ms, bar.until_ms))
            top, bottom = self.axis.y(bar.high), self.axis.y(bar.low)
            width = round(max(right - left, NARROWEST), 1)
            drawn.append(f"M{left:g},{top:g}h{width:g}V{bottom:g}h{-width:g}z")
        return Markup('<path class="{}" d="{}"/>').format(name, "".join(drawn))

    def triangles(self, points: Iterable[Point]) -> Markup:
        """Returns a triangle above each of *points*, for the `marks` of a figure."""
        mark = Markup('<i class="mark" style="left:{:g}%;top:{:g}%"></i>')
        return Markup("").join(
            mark.format(_x(at_ms, self.interval) * 100 / WIDTH, self.axis.y(value)) for at_ms, value in points
        )

    def moments(self, at: Iterable[tuple[int, str]]) -> Markup:
        """Draws an upright line at each instant of *at* (epoch ms), which has its words as a tooltip."""
        line = Markup('<line class="changed" x1="{x:g}" x2="{x:g}" y1="0" y2="{}"><title>{}</title></line>')
        return Markup("").join(line.format(HEIGHT, words, x=_x(at_ms, self.interval)) for at_ms, words in at)

    def limit(self, value: float | None) -> Markup:
        """Draws a dashed line at *value*, if there is one."""
        return Markup("") if value is None else self._across("limit", value)

    def figure(
        self, name: str, description: str, drawn: Iterable[Markup], numbers: Numbers, *, marks: Markup | str = ""
    ) -> Markup:
        """Returns the chart with its axes and its numbers.

        Args:
            name: the name of the chart.
            description: what it shows, for all readers.
            drawn: lines, bands and bars, the uppermost last.
            numbers: what a reader without the drawing reads.
            marks: what lies over the drawing and is not stretched with it.
        """
        grid = [self._across("grid", tick) for tick, _ in self.axis.ticks]
        heights = [
            Markup('<span style="top:{}%">{}</span>').format(self.axis.y(tick), words)
            for tick, words in self.axis.ticks
        ]
        clocks = [
            Markup('<span style="left:{}%">{}</span>').format(left, words) for left, words in times(self.interval)
        ]
        return Markup(
            '<figure class="chart{}"><figcaption><strong>{}</strong>: {}</figcaption>{}<div class="plot">'
            '<div class="heights" aria-hidden="true">{}</div>'
            '<svg role="img" aria-label="{}: {}" viewBox="0 0 {} {}" preserveAspectRatio="none">{}{}</svg>{}'
            '<div class="times" aria-hidden="true">{}</div></div></figure>'
        ).format(
            " low" if self.is_low else "",
            name,
            description,
            _table(numbers),
            Markup("").join(heights),
            name,
            description,
            WIDTH,
            HEIGHT,
            Markup("").join(grid),
            Markup("").join(drawn),
            marks,
            Markup("").join(clocks),
        )

    def _across(self, name: str, value: float) -> Markup:
        line = Markup('<line class="{}" x1="0" x2="{}" y1="{y}" y2="{y}"/>')
        return line.format(name, WIDTH, y=self.axis.y(value))

    def _corners(self, points: Sequence[Point], place_ms: int) -> Iterator[str]:
        """Yields the corners of a line: each of *points* in the middle of that part of its place that is shown."""
        at = []
        for at_ms, value in points:
            from_ms, until_ms = max(at_ms, self.interval.start_ms), min(at_ms + place_ms, self.interval.end_ms)
            at.append((_x((from_ms + until_ms) / 2, self.interval), self.axis.y(value)))
        if len(at) == 1:
            # A line of one point would be invisible: it has the width of its place.
            (x, y), half = at[0], max(2, WIDTH * (until_ms - from_ms) / self.interval.length_ms / 2)
            at = [(round(x - half, 1), y), (round(x + half, 1), y)]
        for x, y in at:
            yield f"{x:g},{y:g}"


def lengths_axis(values_ms: Sequence[float], typical_ms: float) -> ValueAxis:
    """Returns an axis for *values_ms*, with equal ratios if the highest value is SPREAD times *typical_ms* or more."""
    low_ms, high_ms = min(0, *values_ms), max(1, *values_ms)
    if low_ms < 0 or high_ms < SPREAD * typical_ms:
        return even_lengths_axis(values_ms)
    from_ms = max(1, min(filter(None, values_ms), default=1))
    first_ms = max(decade for decade in DECADES_MS if decade <= from_ms)
    ticks = [decade for decade in DECADES_MS if first_ms <= decade <= high_ms]
    return ValueAxis(first_ms, high_ms * 1.2, [(tick, _words(tick)) for tick in ticks], math.log)


def even_lengths_axis(values_ms: Sequence[float], most: int = MOST_TICKS) -> ValueAxis:
    """Returns an axis for *values_ms* on which equal distances are equal lengths."""
    return _even_axis(values_ms, STEPS_MS, most, _words)


def counts_axis(values: Sequence[float], most: int = MOST_TICKS) -> ValueAxis:
    """Returns an axis for *values*, which are counts.

    >>> [words for _, words in counts_axis([0, 3_400]).ticks]
    ['0', '1 k', '2 k', '3 k']
    """
    return _even_axis(values, COUNTS, most, _count)


def _even_axis(values: Sequence[float], steps: Sequence[int], most: int, words: Callable[[int], str]) -> ValueAxis:
    low, high = min(0, *values), max(1, *values)
    # Some space above, so that the highest value is not a line at the edge.
    return ValueAxis(low, high * 1.05, [(tick, words(tick)) for tick in ticks(low, high, steps, most)])


def ticks(lowest: float, highest: float, steps: Sequence[int] = STEPS_MS, most: int = MOST_TICKS) -> list[int]:
    """Returns the ticks of an axis from *lowest* to *highest*, *most* or less on either side of 0.

    One of *steps* lies between two of them, or a multiple of the longest.

    >>> ticks(0, 350_000), ticks(0, 1_700), ticks(-40, 90)
    ([0, 120000, 240000], [0, 500, 1000, 1500], [-40, -20, 0, 20, 40, 60, 80])
    >>> ticks(0, 7_000, steps=(1, 100), most=3)
    [0, 2400, 4800]
    """
    longest = max(highest, -lowest)
    multiple = steps[-1] * (int(longest // (most * steps[-1])) + 1)
    step = next((step for step in steps if longest / step < most), multiple)
    return [n * step for n in range(-int(-lowest // step), int(highest // step) + 1)]


def _words(tick_ms: int) -> str:
    return for_people(tick_ms) if tick_ms else "0"


def _count(n: int) -> str:
    size, thousands = next((each for each in THOUSANDS if n >= each[0]), THOUSANDS[-1])
    return f"{n / size:g}{thousands}"


def clock(at_ms: int) -> str:
    """Returns an instant as the tables of charts have it."""
    return f"{utc(at_ms):%Y-%m-%d %H:%M:%S}"


def times(interval: Interval) -> list[tuple[float, str]]:
    """Returns the labels of the time axis, with their distances from its left end in percent.

    >>> times(Interval(0, 3_600_000))
    [(0.0, '00:00'), (25.0, '00:15'), (50.0, '00:30'), (75.0, '00:45')]
    """
    step_ms = next((step for step in STEPS_MS if interval.length_ms / step <= MOST_TIMES), STEPS_MS[-1])
    form = "%m-%d" if step_ms >= Grain.DAY.length_ms else "%H:%M" if step_ms >= Grain.MINUTE.length_ms else "%H:%M:%S"
    first_ms = -(-interval.start_ms // step_ms) * step_ms
    labels = []
    for at_ms in range(first_ms, interval.end_ms, step_ms):
        left = round(_x(at_ms, interval) / 10, 2)
        # A label extends to the right of its instant, and would leave the screen of a telephone.
        if left <= LAST_TIME:
            labels.append((left, utc(at_ms).strftime(form)))
    return labels


def key(samples: Mapping[str, str]) -> Markup:
    """Returns the legend of a chart: the words of *samples*, by the style's name for a colour or a shape."""
    sample = Markup('<li><span class="{}"></span>{}</li>')
    return Markup('<ul class="key">{}</ul>').format(Markup("").join(sample.format(*each) for each in samples.items()))


def _x(at_ms: float, interval: Interval) -> float:
    return round(WIDTH * (at_ms - interval.start_ms) / interval.length_ms, 1)


def _table(numbers: Numbers) -> Markup:
    """Returns *numbers* as a table that a reader opens."""
    row = Markup('<tr><th scope="row">{}</th><td>{}</td></tr>')
    return Markup(
        '<details class="numbers"><summary>Numbers</summary><div class="wide"><table>'
        '<thead><tr><th scope="col">{}</th></tr></thead><tbody>{}</tbody></table></div></details>'
    ).format(
        Markup('</th><th scope="col">').join(numbers.columns),
        Markup("").join(row.format(first, Markup("</td><td>").join(others)) for first, *others in numbers.rows),
    )
