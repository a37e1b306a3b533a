"""Draws the charts of a report.

Whatever a colour shows, a place, a word or a shape shows too. Instants are epoch ms, shown in UTC; lengths are ms.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter

from markupsafe import Markup

from tidemark.model.settings.intervals import Interval
from tidemark.model.settings.lengths import for_people
from tidemark.reports.pages.plots import (
    MOST_TICKS_OF_LOW,
    Bar,
    Numbers,
    Plot,
    clock,
    counts_axis,
    even_lengths_axis,
    key,
)
from tidemark.reports.paths.path_facts import Row

MOST = 8
"""Most operators or partitions of a chart.

The others, with smaller values, are left out.
"""
WIDEST = 0.013
"""Greatest width of the bar of a window, as a share of the axis."""
PARTS = {
    "before_source_ms": "before the source",
    "waited_ms": "waited for a batch",
    "queued_ms": "queued for a sibling",
    "worked_ms": "worked",
}
"""Parts of a window's time in the order in which they are stacked: columns and their words."""
OUTCOMES = ("emitted", "suppressed")
STRIP = {"idle": 0.06, "backlogged": 0.16}
"""Heights of the strips below a plot of lag, as shares of the plot."""


def windows_spent(rows: Sequence[Row], interval: Interval, apart_ms: int) -> Markup:
    """Draws the parts of the time of the windows *rows*.

    Windows are *apart_ms* or more from each other. A triangle marks a place of the axis with a window over its SLA.
    """
    if not rows:
        return Markup("")
    half_ms = min(WIDEST * interval.length_ms, 0.8 * apart_ms) / 2
    bars = _stacked(rows, PARTS, [(row["end_ms"] - half_ms, row["end_ms"] + half_ms) for row in rows])
    lowest = min(bar.low for of_part in bars.values() for bar in of_part)
    tops = [max(bar.high for bar in of_window) for of_window in zip(*bars.values(), strict=True)]
    over = [(row["end_ms"], top) for row, top in zip(rows, tops, strict=True) if row["over_sla"]]
    plot = Plot(interval, even_lengths_axis([lowest, *tops]))
    slowest_ms = max(row["age_ms"] for row in rows)
    description = (
        f"{len(over)} of the {len(rows)} places shown have a window over its SLA. "
        f"The slowest window shown took {for_people(slowest_ms)} from its end until its leaf had finished it."
    )
    numbers = []
    for row in rows:
        lengths = (for_people(row[column]) for column in (*PARTS, "age_ms"))
        numbers.append([clock(row["end_ms"]), *lengths, "over" if row["over_sla"] else ""])
    columns = ["window ends, UTC", *PARTS.values(), "age", "SLA"]
    drawn = [plot.bars(column, bars[column]) for column in PARTS]
    figure = plot.figure("Age", description, drawn, Numbers(columns, numbers), marks=plot.triangles(over))
    return key(PARTS | {"mark": "over its SLA"}) + figure


def emission(rows: Sequence[Row], interval: Interval, place_ms: int) -> Markup:
    """Draws the updates that each operator emitted and suppressed, a bar for each place of *place_ms*."""
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
        drawn = [plot.bars(became, bars[became]) for became in OUTCOMES]
        charts.append(plot.figure(name, ", ".join(counted), drawn, Numbers(["from, UTC", *OUTCOMES], numbers)))
    return Markup("").join(charts)


def watermark_lag(lags: Sequence[Row], spans: Sequence[Row], interval: Interval) -> Markup:
    """Draws how far the watermark of each partition was behind the clock.

    Below a line are the spans when its partition was idle or had unread records. All lines have one scale.
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


def _lags_and_spans(lags: Sequence[Row], spans: Sequence[Row]) -> Iterator[Sequence[str]]:
    """Yields the numbers of a partition, in the order of time."""
    for row in sorted([*spans, *lags], key=itemgetter("at_ms")):
        if "activity" in row:
            yield clock(row["at_ms"]), "", f"{row['activity']} until {clock(row['until_ms'])}"
        else:
            yield clock(row["at_ms"]), for_people(row["lag_ms"]), ""


def _stacked(rows: Sequence[Row], columns: Iterable[str], edges: Sequence[tuple[float, float]]) -> dict[str, list[Bar]]:
    """Returns the bars of each column, stacked upwards from 0, and negative ones downwards.

    *edges* are the instants between which the bars of each row lie.
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
