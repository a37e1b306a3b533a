"""Draws measurements over time as lines and bands. Lengths are ms, instants epoch ms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from statistics import median

from markupsafe import Markup

from tidemark.model.settings.intervals import Interval
from tidemark.model.settings.lengths import for_people
from tidemark.reports.pages.plots import Numbers, Plot, Point, ValueAxis, clock, key, lengths_axis
from tidemark.reports.paths.path_facts import Row

BANDS = {"p50": "median", "p90": "up to p90", "p99": "up to p99", "limit": "promised, where near"}
"""What is drawn of the latency of operators, and its words."""
NEAR = 1.5
"""Highest promise that is drawn, as a multiple of the highest latency."""


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
        plot = Plot(interval, lengths_axis([*middle_ms, highest_ms, near_ms or 0], median(middle_ms)))
        parts = _unbroken(p50, place_ms)
        drawn = [
            *(plot.band("p99", p90[part], p99[part], place_ms) for part in parts),
            *(plot.band("p90", p50[part], p90[part], place_ms) for part in parts),
            *(plot.line(p50[part], place_ms) for part in parts),
            plot.limit(near_ms),
        ]
        description = (
            f"medians of {for_people(min(middle_ms))} to {for_people(max(middle_ms))}, "
            f"highest p99 {for_people(highest_ms)}"
        )
        promise = "" if promised_ms is None else f", promised {for_people(promised_ms)}"
        numbers = [
            [clock(row["at_ms"]), *(for_people(row[name]) for name in ("p50_ms", "p90_ms", "p99_ms"))] for row in places
        ]
        columns = ["from, UTC", "median", "p90", "p99"]
        charts.append(plot.figure(operator, description + promise, drawn, Numbers(columns, numbers)))
    return key(BANDS) + Markup("").join(charts) if charts else Markup("")


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
        plot = Plot(interval, axis)
        drawn = [plot.line(points[part], place_ms) for part in _unbroken(points, place_ms)]
        drawn.append(plot.limit(limit_ms if limit_ms is not None and limit_ms <= axis.high else None))
        limit = "" if limit_ms is None else f", limit {for_people(limit_ms)}"
        numbers = Numbers(["from, UTC", "highest"], [[clock(at_ms), for_people(value)] for at_ms, value in points])
        charts.append(plot.figure(name, f"highest {for_people(highest_ms)}{limit}", drawn, numbers))
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
        plot = Plot(interval, ValueAxis(-0.5 if is_exceeded else 0, 1, ((0, "0 %"), (0.5, "50 %"), (1, "100 %"))))
        newest = places[-1]["value"]
        left = "unknown" if newest is None else f"{max(newest, 0):.0%} of the error budget is left"
        drawn = [plot.line([(row["at_ms"], row["value"]) for row in part], place_ms) for part in parts]
        drawn.append(plot.limit(0 if is_exceeded else None))
        numbers = [[clock(row["at_ms"]), f"{row['value']:.0%}" if _is_known(row) else "unknown"] for row in places]
        charts.append(plot.figure(name, left, drawn, Numbers(["at, UTC", "left"], numbers)))
    return Markup("").join(charts)


def _unbroken(points: Sequence[Point], place_ms: int) -> list[slice]:
    """Returns the parts of *points* in which no place is missing."""
    starts = [0]
    for number in range(1, len(points)):
        if points[number][0] - points[number - 1][0] > place_ms:
            starts.append(number)
    return [slice(start, end) for start, end in zip(starts, [*starts[1:], len(points)], strict=True)]


def _is_known(row: Row) -> bool:
    return row["value"] is not None
