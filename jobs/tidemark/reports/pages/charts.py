"""Draws the charts of pages.

What a colour shows is also shown by a position, a word or a shape. The time axis has cells of equal length, which are
called places. Instants are epoch ms, shown in UTC; lengths are ms.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from types import MappingProxyType

from markupsafe import Markup

from tidemark.facts.answers import Row
from tidemark.facts.topology_changes import RecordedChange
from tidemark.model.settings.intervals import Interval
from tidemark.model.settings.lengths import by_number, for_people, percent
from tidemark.reports.pages.plots import (
    MOST_TICKS_OF_LOW,
    Bar,
    Numbers,
    Plot,
    Point,
    ValueAxis,
    clock,
    counts_axis,
    even_lengths_axis,
    key,
    lengths_axis,
)
from tidemark.semantics.quantiles import MEDIAN, quantile_of

BANDS = {"p50": "median", "p90": "up to p90", "p99": "up to p99", "limit": "promised latency, drawn if it is near"}
"""The parts of a chart of latency, with their words."""
NEAR = 1.5
"""A promised latency is drawn up to this multiple of the highest latency: beyond that it would flatten the chart."""
MOST = 8
"""At most this many operators or partitions are drawn in a chart, those with the largest values."""
WIDEST = 0.013
"""The bar of a window is at most this wide, as a share of the time axis."""
PARTS = {
    "before_source_ms": "before the source",
    "waited_ms": "waited for a batch",
    "queued_ms": "queued in its batch",
    "worked_ms": "worked",
}
"""The parts of a window's age in the order in which they are stacked: columns, with their words."""
OUTCOMES = ("emitted", "suppressed")
CHANGED = {"changed": "the numbers begin to mean something else"}
Changes = Mapping[str, Sequence[RecordedChange]]
"""The changes of the topology in the time of a chart that concern each operator, by its name."""
NO_CHANGES: Changes = MappingProxyType({})
STRIP = {"idle": 0.06, "backlogged": 0.16}
"""How high the strips below a plot of lag are, as shares of the plot."""


def latency_bands(rows: Iterable[Row], interval: Interval, place_ms: int, changes: Changes = NO_CHANGES) -> Markup:
    """Draws the latency of operators: the median as a line, and bands up to p90 and p99.

    The promised latency is a dashed line, if it is not far above the latencies (NEAR). If a few high values would
    flatten all others, equal distances on the axis are equal ratios. Changes of the topology are upright lines.

    Args:
        rows: rows of `latencies_in_places`.
        interval: the time that the chart covers.
        place_ms: the length of a place of the time axis.
        changes: the changes that concern each operator.
    """
    charts, samples = [], dict(BANDS)
    for operator, of_operator in groupby(rows, key=itemgetter("operator")):
        samples |= CHANGED if changes.get(operator) else {}
        places = list(of_operator)
        p50, p90, p99 = ([(row["at_ms"], row[name]) for row in places] for name in ("p50_ms", "p90_ms", "p99_ms"))
        highest_ms = max(value for _, value in p99)
        promised_ms = places[-1]["sla_ms"]
        near_ms = promised_ms if promised_ms and promised_ms <= NEAR * highest_ms else None
        middle_ms = [value for _, value in p50]
        plot = Plot(interval, lengths_axis([*middle_ms, highest_ms, near_ms or 0], quantile_of(middle_ms, MEDIAN)))
        parts = _unbroken(p50, place_ms)
        drawn = [
            *(plot.band("p99", p90[part], p99[part], place_ms) for part in parts),
            *(plot.band("p90", p50[part], p90[part], place_ms) for part in parts),
            *(plot.line(p50[part], place_ms) for part in parts),
            plot.limit(near_ms),
            plot.moments(_moments(changes, operator)),
        ]
        lowest, highest = for_people(min(middle_ms)), for_people(max(middle_ms))
        medians = f"median {lowest}" if lowest == highest else f"medians of {lowest} to {highest}"
        description = f"{medians}, highest p99 {for_people(highest_ms)}"
        promise = "" if promised_ms is None else f", promised {for_people(promised_ms)}"
        numbers = [
            [clock(row["at_ms"]), *(for_people(row[name]) for name in ("p50_ms", "p90_ms", "p99_ms"))] for row in places
        ]
        columns = ["from, UTC", "median", "p90", "p99"]
        described = description + promise + _lines(changes, operator)
        charts.append(plot.figure(operator, described, drawn, Numbers(columns, numbers)))
    return key(samples) + Markup("").join(charts) if charts else Markup("")


def length_lines(rows: Iterable[Row], interval: Interval, place_ms: int) -> Markup:
    """Draws a chart of lengths for each name, with its limit as a dashed line.

    The *rows* have `name`, `at_ms`, `value` (ms) and `limit_ms`.
    """
    charts = []
    for name, of_name in groupby(rows, key=itemgetter("name")):
        places = list(of_name)
        points = [(row["at_ms"], row["value"]) for row in places]
        highest_ms, limit_ms = max(value for _, value in points), places[-1]["limit_ms"]
        values_ms = [value for _, value in points]
        axis = lengths_axis(values_ms, quantile_of(values_ms, MEDIAN))
        plot = Plot(interval, axis)
        drawn = [plot.line(points[part], place_ms) for part in _unbroken(points, place_ms)]
        drawn.append(plot.limit(limit_ms if limit_ms is not None and limit_ms <= axis.high else None))
        limit = "" if limit_ms is None else f", limit {for_people(limit_ms)}"
        numbers = Numbers(["from, UTC", "highest"], [[clock(at_ms), for_people(value)] for at_ms, value in points])
        charts.append(plot.figure(name, f"highest {for_people(highest_ms)}{limit}", drawn, numbers))
    return Markup("").join(charts)


def share_lines(rows: Iterable[Row], interval: Interval, place_ms: int) -> Markup:
    """Draws a chart of unused shares of a budget for each name.

    The *rows* have `name`, `at_ms` and `value`. An unknown value is None, and interrupts the line. The line stays at
    half below 0 if a budget was exceeded by more than half of it.
    """
    charts = []
    for name, of_name in groupby(rows, key=itemgetter("name")):
        places = list(of_name)
        parts = [list(part) for is_known, part in groupby(places, key=_is_known) if is_known]
        is_exceeded = any(row["value"] < 0 for part in parts for row in part)
        plot = Plot(
            interval, ValueAxis(-0.5 if is_exceeded else 0, 1, tuple((share, percent(share)) for share in (0, 0.5, 1)))
        )
        newest = places[-1]["value"]
        left = "unknown" if newest is None else f"{percent(max(newest, 0))} of the error budget is left"
        drawn = [plot.line([(row["at_ms"], row["value"]) for row in part], place_ms) for part in parts]
        drawn.append(plot.limit(0 if is_exceeded else None))
        numbers = [[clock(row["at_ms"]), percent(row["value"]) if _is_known(row) else "unknown"] for row in places]
        charts.append(plot.figure(name, left, drawn, Numbers(["at, UTC", "left"], numbers)))
    return Markup("").join(charts)


def windows_spent(rows: Sequence[Row], interval: Interval, apart_ms: int) -> Markup:
    """Draws a bar for each window of *rows*, made of the parts of its age.

    Windows are at least *apart_ms* from each other. A triangle marks a place of the time axis with a window that broke
    the limit of an SLA.
    """
    if not rows:
        return Markup("")
    half_ms = min(WIDEST * interval.length_ms, 0.8 * apart_ms) / 2
    bars = _stacked(rows, PARTS, [(row["end_ms"] - half_ms, row["end_ms"] + half_ms) for row in rows])
    lowest = min(bar.low for of_part in bars.values() for bar in of_part)
    tops = [max(bar.high for bar in of_window) for of_window in zip(*bars.values(), strict=True)]
    over = [(row["end_ms"], top) for row, top in zip(rows, tops, strict=True) if row["over_sla"]]
    plot = Plot(interval, even_lengths_axis([lowest, *tops]))
    shown_ms, longest_ms = (for_people(max(row[name] for row in rows)) for name in ("age_ms", "longest_ms"))
    description = (
        f"{_places(len(over), len(rows))} a window that broke the limit of an SLA. "
        f"From its end until its leaf had finished it, the slowest window shown took {shown_ms}, "
        f"and the slowest of all windows {longest_ms}."
    )
    numbers = []
    for row in rows:
        lengths = (for_people(row[column]) for column in (*PARTS, "age_ms"))
        numbers.append([clock(row["end_ms"]), *lengths, "over" if row["over_sla"] else ""])
    columns = ["window ends, UTC", *PARTS.values(), "age", "SLA"]
    drawn = [plot.bars(column, bars[column]) for column in PARTS]
    figure = plot.figure("Age", description, drawn, Numbers(columns, numbers), marks=plot.triangles(over))
    return key(PARTS | {"mark": "broke the limit of an SLA"}) + figure


def emission(rows: Sequence[Row], interval: Interval, place_ms: int, changes: Changes = NO_CHANGES) -> Markup:
    """Draws the updates that each operator emitted and suppressed, a bar for each place of *place_ms*.

    Changes of the topology are upright lines.
    """
    if not rows:
        return Markup("")
    by_operator = _grouped(rows, itemgetter("operator"))
    totals = {name: sum(_judged(row) for row in of_operator) for name, of_operator in by_operator.items()}
    charts = [_left_out(totals, "operators", "most updates"), key({name: name for name in OUTCOMES})]
    for name in _largest(totals):
        places = by_operator[name]
        # A twentieth of a place is left free on either side.
        edges = [(row["at_ms"] + 0.05 * place_ms, row["at_ms"] + 0.95 * place_ms) for row in places]
        bars = _stacked(places, OUTCOMES, edges)
        axis = counts_axis([_judged(row) for row in places], MOST_TICKS_OF_LOW)
        plot = Plot(interval, axis, is_low=True)
        counted = (f"{sum(row[became] for row in places):,} {became}" for became in OUTCOMES)
        numbers = [[clock(row["at_ms"]), *(f"{row[became]:,}" for became in OUTCOMES)] for row in places]
        drawn = [*(plot.bars(became, bars[became]) for became in OUTCOMES), plot.moments(_moments(changes, name))]
        described = ", ".join(counted) + _lines(changes, name)
        charts.append(plot.figure(name, described, drawn, Numbers(["from, UTC", *OUTCOMES], numbers)))
    return Markup("").join(charts)


def watermark_lag(lags: Sequence[Row], spans: Sequence[Row], interval: Interval) -> Markup:
    """Draws a line for each partition: how far its watermark was behind the clock.

    Strips below the line show when the partition was idle or had unread records. All lines have one scale.
    """
    if not lags:
        return Markup("")
    lags_of, spans_of = _grouped(lags, _input), _grouped(spans, _input)
    largest_ms = {name: max(row["lag_ms"] for row in of_input) for name, of_input in lags_of.items()}
    shown = _largest(largest_ms)
    axis = even_lengths_axis([row["lag_ms"] for name in shown for row in lags_of[name]], MOST_TICKS_OF_LOW)
    height = axis.high - axis.low
    floor = axis.low - max(STRIP.values()) * height
    plot = Plot(interval, replace(axis, low=floor), is_low=True)
    charts = [_left_out(largest_ms, "partitions", "the largest lags"), key({name: name for name in STRIP})]
    for name in shown:
        drawn, described = [], [f"largest lag {for_people(largest_ms[name])}"]
        for activity, share in STRIP.items():
            silent = [row for row in spans_of[name] if row["activity"] == activity]
            if silent:
                bars = [Bar(row["at_ms"], row["until_ms"], floor, floor + share * height) for row in silent]
                drawn.append(plot.bars(activity, bars))
                longest_ms = max(row["until_ms"] - row["at_ms"] for row in silent)
                described.append(f"longest {activity} time {for_people(longest_ms)}")
        drawn.append(plot.line([(row["at_ms"], row["lag_ms"]) for row in lags_of[name]], 0))
        numbers = Numbers(["at, UTC", "lag", "activity"], _lags_and_spans(lags_of[name], spans_of[name]))
        charts.append(plot.figure(name, ", ".join(described), drawn, numbers))
    return Markup("").join(charts)


def _moments(changes: Changes, operator: str) -> list[tuple[int, str]]:
    return [(change.at_ms, change.line) for change in changes.get(operator, ())]


def _lines(changes: Changes, operator: str) -> str:
    return "".join(f"; {change.line}" for change in changes.get(operator, ()))


def _places(some: int, of_all: int) -> str:
    """Returns a clause that counts the places shown that have something."""
    if of_all == 1:
        return f"The only place shown {'has' if some else 'does not have'}"
    return f"{some:,} of the {of_all:,} places shown {by_number(some, 'has', 'have')}"


def _unbroken(points: Sequence[Point], place_ms: int) -> list[slice]:
    """Returns the stretches of *points* without a gap on the time axis; each is drawn as one line."""
    starts = [0]
    for number in range(1, len(points)):
        if points[number][0] - points[number - 1][0] > place_ms:
            starts.append(number)
    return [slice(start, end) for start, end in zip(starts, [*starts[1:], len(points)], strict=True)]


def _is_known(row: Row) -> bool:
    return row["value"] is not None


def _lags_and_spans(lags: Sequence[Row], spans: Sequence[Row]) -> Iterator[Sequence[str]]:
    """Yields the rows of a table with the lags of a partition, and with its idle and backlogged times, in order."""
    for row in sorted([*spans, *lags], key=itemgetter("at_ms")):
        if "activity" in row:
            yield clock(row["at_ms"]), "", f"{row['activity']} until {clock(row['until_ms'])}"
        else:
            yield clock(row["at_ms"]), for_people(row["lag_ms"]), ""


def _stacked(rows: Sequence[Row], columns: Iterable[str], edges: Sequence[tuple[float, float]]) -> dict[str, list[Bar]]:
    """Returns the bars of each column, stacked upwards from 0, or downwards if they are negative.

    *edges* has the instants between which the bars of a row lie.
    """
    bars: dict[str, list[Bar]] = {column: [] for column in columns}
    for row, (from_ms, until_ms) in zip(rows, edges, strict=True):
        below, above = 0, 0
        for column, of_column in bars.items():
            value = row[column]
            if value < 0:
                of_column.append(Bar(from_ms, until_ms, below + value, below))
                below += value
            else:
                of_column.append(Bar(from_ms, until_ms, above, above + value))
                above += value
    return bars


def _grouped(rows: Iterable[Row], name_of: Callable[[Row], str]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[name_of(row)].append(row)
    return groups


def _largest(sizes: Mapping[str, float]) -> list[str]:
    """Returns the names of the MOST largest *sizes*, in the order of *sizes*."""
    largest = sorted(sizes, key=lambda name: -sizes[name])[:MOST]
    return [name for name in sizes if name in largest]


def _left_out(sizes: Mapping[str, float], what: str, largest: str) -> Markup:
    if len(sizes) <= MOST:
        return Markup("")
    return Markup('<p class="none">{} of {:,} {} are drawn, those with {}.</p>').format(MOST, len(sizes), what, largest)


def _judged(row: Row) -> int:
    return sum(row[became] for became in OUTCOMES)


def _input(row: Row) -> str:
    return f"{row['source']} {row['partition']}"
