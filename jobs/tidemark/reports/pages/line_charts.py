"""Draws lines and bands over time that fit any width.

The plot is an SVG that is stretched, and the labels are text beside it, so a telephone shows them in the same size as a
desk. The colours are those of the page's style. Lengths are ms, instants epoch ms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from statistics import median

from markupsafe import Markup

from tidemark.model.settings.intervals import Grain, Interval, utc
from tidemark.model.settings.lengths import for_people
from tidemark.reports.paths.path_facts import Row

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
NEAR = 1.5
"""Highest promise that is drawn, as a multiple of the highest latency."""
_SIZE = (1000, 100)
"""Width and height of a plot in its own units."""
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


def latency_bands(rows: Iterable[Row], interval: Interval, place_ms: int) -> Markup:
    """Draws the latency of operators: median, bands up to p90 and p99.

    The promised latency is a dashed line where it is NEAR. *rows* are those of `latencies_in_places`. An axis on which
    few high values would flatten the others has equal ratios instead of equal distances.
    """
    charts = []
    for operator, of_operator in groupby(rows, key=itemgetter("operator")):
        places = list(of_operator)
        p50, p90, p99 = ([(row["at_ms"], row[name]) for row in places] for name in ("p50_ms", "p90_ms", "p99_ms"))
        highest_ms = max(value for _, value in p99)
        promised_ms = places[-1]["sla_ms"]
        near_ms = promised_ms if promised_ms and promised_ms <= NEAR * highest_ms else None
        middle_ms = [value for _, value in p50]
        axis = lengths_axis([*middle_ms, highest_ms, near_ms or 0], median(middle_ms))
        drawn = [
            *(_area("p99", p90[part], p99[part], axis, interval, place_ms) for part in _unbroken(p50, place_ms)),
            *(_area("p90", p50[part], p90[part], axis, interval, place_ms) for part in _unbroken(p50, place_ms)),
            *(_line(p50[part], axis, interval, place_ms) for part in _unbroken(p50, place_ms)),
            _limit(near_ms, axis),
        ]
        description = (
            f"medians of {for_people(min(middle_ms))} to {for_people(max(middle_ms))}, "
            f"highest p99 {for_people(highest_ms)}"
        )
        charts.append(_chart(operator, description, drawn, axis, interval))
    return Markup("").join(charts)


def length_lines(rows: Iterable[Row], interval: Interval, place_ms: int) -> Markup:
    """Draws a chart of lengths for each name, with its limit.

    The limit is a dashed line. *rows* have `name`, `at_ms`, `value` (ms) and `limit_ms`.
    """
    charts = []
    for name, of_name in groupby(rows, key=itemgetter("name")):
        places = list(of_name)
        points = [(row["at_ms"], row["value"]) for row in places]
        highest_ms, limit_ms = max(value for _, value in points), places[-1]["limit_ms"]
        axis = lengths_axis([value for _, value in points], median(value for _, value in points))
        drawn = [_line(points[part], axis, interval, place_ms) for part in _unbroken(points, place_ms)]
        drawn.append(_limit(limit_ms if limit_ms is not None and limit_ms <= axis.high else None, axis))
        limit = "" if limit_ms is None else f", limit {for_people(limit_ms)}"
        charts.append(_chart(name, f"highest {for_people(highest_ms)}{limit}", drawn, axis, interval))
    return Markup("").join(charts)


def share_lines(rows: Iterable[Row], interval: Interval, place_ms: int) -> Markup:
    """Draws a chart of unused shares of a budget for each name.

    *rows* have `name`, `at_ms` and `value`; None: unknown, and the line is broken. More than half a budget over it is
    drawn as half.
    """
    charts = []
    for name, of_name in groupby(rows, key=itemgetter("name")):
        places = list(of_name)
        parts = [list(part) for is_known, part in groupby(places, key=_is_known) if is_known]
        is_exceeded = any(row["value"] < 0 for part in parts for row in part)
        axis = ValueAxis(-0.5 if is_exceeded else 0, 1, ((0, "0 %"), (0.5, "50 %"), (1, "100 %")))
        newest = places[-1]["value"]
        left = "unknown" if newest is None else f"{max(newest, 0):.0%} of the error budget is left"
        drawn = [_line([(row["at_ms"], row["value"]) for row in part], axis, interval, place_ms) for part in parts]
        drawn.append(_limit(0 if is_exceeded else None, axis))
        charts.append(_chart(name, left, drawn, axis, interval))
    return Markup("").join(charts)


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


def _unbroken(points: Sequence[Point], place_ms: int) -> list[slice]:
    """Returns the parts of *points* in which no place is missing."""
    starts = [0]
    for number in range(1, len(points)):
        if points[number][0] - points[number - 1][0] > place_ms:
            starts.append(number)
    return [slice(start, end) for start, end in zip(starts, [*starts[1:], len(points)], strict=True)]


def _x(at_ms: float, interval: Interval) -> float:
    return round(_SIZE[0] * (at_ms - interval.start_ms) / interval.length_ms, 1)


def _places(points: Sequence[Point], axis: ValueAxis, interval: Interval, place_ms: int) -> Iterator[str]:
    """Yields the points of a line, in the middle of their places."""
    at = [(_x(at_ms + place_ms / 2, interval), axis.y(value)) for at_ms, value in points]
    if len(at) == 1:
        # A line of one point would be invisible: it has the width of its place.
        (x, y), half = at[0], max(2, _SIZE[0] * place_ms / interval.length_ms / 2)
        at = [(round(x - half, 1), y), (round(x + half, 1), y)]
    for x, y in at:
        yield f"{x:g},{y:g}"


def _line(points: Sequence[Point], axis: ValueAxis, interval: Interval, place_ms: int) -> Markup:
    return Markup('<polyline points="{}"/>').format(" ".join(_places(points, axis, interval, place_ms)))


def _is_known(row: Row) -> bool:
    return row["value"] is not None


def _area(
    name: str, lower: Sequence[Point], upper: Sequence[Point], axis: ValueAxis, interval: Interval, place_ms: int
) -> Markup:
    edge = [*_places(lower, axis, interval, place_ms), *reversed([*_places(upper, axis, interval, place_ms)])]
    return Markup('<polygon class="{}" points="{}"/>').format(name, " ".join(edge))


def _limit(value: float | None, axis: ValueAxis) -> Markup:
    if value is None:
        return Markup("")
    return Markup('<line class="limit" x1="0" x2="{}" y1="{y}" y2="{y}"/>').format(_SIZE[0], y=axis.y(value))


def _chart(name: str, description: str, drawn: Iterable[Markup], axis: ValueAxis, interval: Interval) -> Markup:
    """Returns a plot with its labels; *description* is for all readers."""
    at_times = times(interval)
    grid = [Markup('<line class="grid" x1="0" x2="{}" y1="{y}" y2="{y}"/>').format(_SIZE[0], y=axis.y(tick))
            for tick, _ in axis.ticks]  # fmt: skip
    heights = [Markup('<span style="top:{}%">{}</span>').format(axis.y(tick), words) for tick, words in axis.ticks]
    clocks = [Markup('<span style="left:{}%">{}</span>').format(place, words) for place, words in at_times]
    return Markup(
        '<figure class="chart"><figcaption><strong>{}</strong>: {}</figcaption><div class="plot">'
        '<div class="heights" aria-hidden="true">{}</div>'
        '<svg role="img" aria-label="{}: {}" viewBox="0 0 {} {}" preserveAspectRatio="none">{}{}</svg>'
        '<div class="times" aria-hidden="true">{}</div></div></figure>'
    ).format(
        name, description, Markup("").join(heights), name, description, *_SIZE, Markup("").join(grid),
        Markup("").join(drawn), Markup("").join(clocks),
    )  # fmt: skip
