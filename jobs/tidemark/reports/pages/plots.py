"""Plots over time that fit any width: their axes, lines and bands.

The plot is an SVG that is stretched, and the labels are text beside it, so a telephone shows them in the same size as a
desk. The colours are those of the page's style. Lengths are ms, instants epoch ms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

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
MOST_TICKS = 5
MOST_TIMES = 4
"""Most labels of the time axis; a telephone has room for them."""
LAST_TIME = 86
"""Last place of a label of the time axis, percent."""
SPREAD = 20
"""Least ratio of highest value to median for such an axis."""
WIDTH, HEIGHT = 1000, 100
"""Size of a plot in its own units."""
Point = tuple[float, float]


@dataclass(frozen=True)
class ValueAxis:
    """The axis of values from *low* to *high*, with labelled *ticks*."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    place: Callable[[float], float] = float
    """Maps a value to a number that is proportional to its height."""

    def y(self, value: float) -> float:
        """Returns the distance of *value* from the top, in percent."""
        low, high = self.place(self.low), self.place(self.high)
        share = (self.place(min(max(value, self.low), self.high)) - low) / (high - low)
        return round(100 * (1 - share), 2)


@dataclass(frozen=True)
class Plot:
    """A plane with time to the right and values upwards."""

    interval: Interval
    axis: ValueAxis

    def line(self, points: Sequence[Point], place_ms: int) -> Markup:
        """Draws a line through *points*, each an instant and a value, in the middle of their places."""
        return Markup('<polyline points="{}"/>').format(" ".join(self._corners(points, place_ms)))

    def band(self, name: str, lower: Sequence[Point], upper: Sequence[Point], place_ms: int) -> Markup:
        """Draws the area between two lines with as many points; the style of a page has its *name*."""
        edge = [*self._corners(lower, place_ms), *reversed([*self._corners(upper, place_ms)])]
        return Markup('<polygon class="{}" points="{}"/>').format(name, " ".join(edge))

    def limit(self, value: float | None) -> Markup:
        """Draws a dashed line at *value*; nothing for None."""
        return Markup("") if value is None else self._across("limit", value)

    def figure(self, name: str, description: str, drawn: Iterable[Markup]) -> Markup:
        """Returns what was drawn, with its axes; *description* is for all readers."""
        grid = [self._across("grid", tick) for tick, _ in self.axis.ticks]
        heights = [
            Markup('<span style="top:{}%">{}</span>').format(self.axis.y(tick), words)
            for tick, words in self.axis.ticks
        ]
        clocks = [
            Markup('<span style="left:{}%">{}</span>').format(place, words) for place, words in times(self.interval)
        ]
        return Markup(
            '<figure class="chart"><figcaption><strong>{}</strong>: {}</figcaption><div class="plot">'
            '<div class="heights" aria-hidden="true">{}</div>'
            '<svg role="img" aria-label="{}: {}" viewBox="0 0 {} {}" preserveAspectRatio="none">{}{}</svg>'
            '<div class="times" aria-hidden="true">{}</div></div></figure>'
        ).format(
            name,
            description,
            Markup("").join(heights),
            name,
            description,
            WIDTH,
            HEIGHT,
            Markup("").join(grid),
            Markup("").join(drawn),
            Markup("").join(clocks),
        )

    def _across(self, name: str, value: float) -> Markup:
        line = Markup('<line class="{}" x1="0" x2="{}" y1="{y}" y2="{y}"/>')
        return line.format(name, WIDTH, y=self.axis.y(value))

    def _corners(self, points: Sequence[Point], place_ms: int) -> Iterator[str]:
        at = [(_x(at_ms + place_ms / 2, self.interval), self.axis.y(value)) for at_ms, value in points]
        if len(at) == 1:
            # A line of one point would be invisible: it has the width of its place.
            (x, y), half = at[0], max(2, WIDTH * place_ms / self.interval.length_ms / 2)
            at = [(round(x - half, 1), y), (round(x + half, 1), y)]
        for x, y in at:
            yield f"{x:g},{y:g}"


def lengths_axis(values_ms: Sequence[float], typical_ms: float) -> ValueAxis:
    """Returns an axis for *values_ms*.

    Equal distances are equal ratios if the highest value is SPREAD times *typical_ms* or more.
    """
    low_ms, high_ms = min(0, *values_ms), max(1, *values_ms)
    if low_ms < 0 or high_ms < SPREAD * typical_ms:
        # Some space above, so that the highest value is not a line at the edge.
        ticks = ticks_ms(low_ms, high_ms)
        return ValueAxis(low_ms, high_ms * 1.05, [(tick, _words(tick)) for tick in ticks])
    from_ms = max(1, min(filter(None, values_ms), default=1))
    first_ms = max(decade for decade in DECADES_MS if decade <= from_ms)
    ticks = [decade for decade in DECADES_MS if first_ms <= decade <= high_ms]
    return ValueAxis(first_ms, high_ms * 1.2, [(tick, _words(tick)) for tick in ticks], math.log)


def ticks_ms(lowest_ms: float, highest_ms: float) -> list[int]:
    """Returns the ticks of an axis from *lowest_ms* to *highest_ms*.

    They are whole steps of a clock, MOST_TICKS or less on either side of 0.

    >>> ticks_ms(0, 350_000), ticks_ms(0, 1_700), ticks_ms(-40, 90)
    ([0, 120000, 240000], [0, 500, 1000, 1500], [-40, -20, 0, 20, 40, 60, 80])
    """
    longest_ms = max(highest_ms, -lowest_ms)
    step_ms = next((step for step in STEPS_MS if longest_ms / step < MOST_TICKS), STEPS_MS[-1])
    return [n * step_ms for n in range(-int(-lowest_ms // step_ms), int(highest_ms // step_ms) + 1)]


def _words(tick_ms: int) -> str:
    return for_people(tick_ms) if tick_ms else "0"


def times(interval: Interval) -> list[tuple[float, str]]:
    """Returns the labels of the time axis, with their places in percent.

    >>> times(Interval(0, 3_600_000))
    [(0.0, '00:00'), (25.0, '00:15'), (50.0, '00:30'), (75.0, '00:45')]
    """
    step_ms = next((step for step in STEPS_MS if interval.length_ms / step <= MOST_TIMES), STEPS_MS[-1])
    form = "%m-%d" if step_ms >= Grain.DAY.length_ms else "%H:%M" if step_ms >= Grain.MINUTE.length_ms else "%H:%M:%S"
    first_ms = -(-interval.start_ms // step_ms) * step_ms
    labels = []
    for at_ms in range(first_ms, interval.end_ms, step_ms):
        place = round(_x(at_ms, interval) / 10, 2)
        # A label begins at its place, and would leave a telephone at the right.
        if place <= LAST_TIME:
            labels.append((place, utc(at_ms).strftime(form)))
    return labels


def _x(at_ms: float, interval: Interval) -> float:
    return round(WIDTH * (at_ms - interval.start_ms) / interval.length_ms, 1)
