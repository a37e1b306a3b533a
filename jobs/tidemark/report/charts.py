"""Charts as SVG, drawn before the page is seen: Vega-Lite says what, vl-convert draws it, no script is left (ring 1).

What a colour of `colors` says, a place, a word or a dash says too. Instants are epoch ms, shown in UTC; lengths are ms.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import vl_convert
from markupsafe import Markup

from tidemark.report.colors import (
    BLUE,
    GREEN,
    GRID,
    INK,
    ORANGE,
    PALE,
    PINK,
    RED,
    SILENT,
    SKY,
    YELLOW,
)
from tidemark.report.path_facts import Row
from tidemark.spec.intervals import Grain, Interval
from tidemark.spec.lengths import for_people

BAND, PALE_BAND = "#7fb8d8", "#cfe3ef"
LINES = (BLUE, RED, GREEN, PINK, ORANGE, SKY, YELLOW, INK)
DASHES: tuple[list[int], ...] = ([], [6, 3], [2, 2], [8, 3, 2, 3], [12, 4], [1, 3], [4, 1], [10, 2, 2, 2])
MOST = len(LINES)
"""Lines, and rows, of a chart: those with most to tell."""
WIDTH = 1080
BAR = 14.0
"""A bar is no wider, px."""
FEW = 40
"""Measurements that are shown as points too."""
NEAR = 1.5
"""Times the highest latency: a promise up to there is drawn."""
PARTS = {
    "before_source_ms": ("before the source", "#b8c0c8"),
    "waited_ms": ("waited for a batch", SKY),
    "queued_ms": ("queued for a sibling", PINK),
    "worked_ms": ("worked", BLUE),
}
"""What a window's time went into, by column: its name and colour."""
STEPS_MS = (
    *(n * size for size in (1, 10, 100) for n in (1, 2, 5)),
    *(n * 1_000 for n in (1, 2, 5, 10, 15, 30)),
    *(n * 60_000 for n in (1, 2, 5, 10, 15, 30)),
    *(n * 3_600_000 for n in (1, 2, 3, 6, 12, 24, 48, 120, 240, 720, 2_400, 8_760)),
)
"""What may lie between two ticks of a length of time."""
MOST_TICKS = 5
_AXIS = {"labelColor": PALE, "gridColor": GRID, "domainColor": PALE, "tickColor": PALE}
_LEGEND = {"labelColor": INK, "orient": "top", "title": None, "symbolType": "square", "columnPadding": 40}
_HEADER = {"labelColor": INK, "labelFontWeight": "bold", "labelAnchor": "start", "title": None}
CONFIG = {
    "font": "system-ui, sans-serif",
    "background": "transparent",
    "padding": {"left": 30, "right": 10, "top": 5, "bottom": 5},
    "aria": False,  # the drawing is told as one image
    "view": {"stroke": None},
    "axis": {**_AXIS, "labelFontSize": 12, "labelLimit": 240},
    "legend": {**_LEGEND, "labelFontSize": 13, "labelLimit": 300},
    "header": {**_HEADER, "labelFontSize": 13},
}


def latency_bands(rows: Sequence[Row], interval: Interval) -> Markup:
    """End-to-end latency of terminal operators, a row each: the median, and the bands up to p90 and to p99.

    What is promised is a dashed line where it is near.
    """
    highest = {name: max(row["p99_ms"] for row in of) for name, of in _by(rows, "operator")}
    point = {"color": BLUE, "size": 25} if len(rows) < FEW else False
    charts = []
    for name, of in _by(rows, "operator"):
        near = [row if (row["sla_ms"] or 0) <= NEAR * highest[name] else row | {"sla_ms": None} for row in of]
        ends_ms = [row[column] or 0 for row in near for column in ("p50_ms", "p99_ms", "sla_ms")]
        layers = [
            _layer({"type": "area", "color": BAND}, y=_length("p50_ms", ends_ms), y2={"field": "p90_ms"}),
            _layer({"type": "area", "color": PALE_BAND}, y=_length("p90_ms", ends_ms), y2={"field": "p99_ms"}),
            _layer({"type": "line", "color": BLUE, "strokeWidth": 2.5, "point": point}, y=_length("p50_ms", ends_ms)),
            _layer({"type": "line", "color": RED, "strokeDash": [6, 4]}, y=_length("sla_ms", ends_ms)),
        ]
        chart = {"width": WIDTH, "height": 150, "encoding": {"x": _time(interval)}, "layer": layers}
        title = {"text": name, "anchor": "start", "fontSize": 13, "color": INK}
        charts.append({"title": title, "data": {"values": _with_gaps(near)}, **chart})
    medians = "; ".join(
        f"{name}: medians of {for_people(min(row['p50_ms'] for row in of))} to "
        f"{for_people(max(row['p50_ms'] for row in of))}, highest p99 {for_people(highest[name])}"
        for name, of in _by(rows, "operator")
    )
    told = f"By minute of the finish clock. {medians}."
    return _svg("latencies", {"vconcat": charts, "spacing": 24}, "Latency over time", told)


def windows_spent(rows: Sequence[Row], interval: Interval, apart_ms: int) -> Markup:
    """What the time of the windows *rows*, *apart_ms* or more, went into; a triangle marks one over its SLA."""
    totals = [{"at_ms": row["end_ms"], "ms": row["latency_ms"] + row["before_source_ms"]} for row in rows]
    parts = [
        {"at_ms": row["end_ms"], "ms": max(0, row[column]), "part": name, "order": order}
        for row in rows
        for order, (column, (name, _)) in enumerate(PARTS.items())
    ]
    over = [total for total, row in zip(totals, rows, strict=True) if row["over_sla"]]
    bar = {"type": "bar", "width": min(BAR, 0.8 * WIDTH * apart_ms / interval.length_ms)}
    triangle = {"type": "point", "shape": "triangle-down", "color": RED, "filled": True, "size": 45, "yOffset": -8}
    ends_ms = [total["ms"] for total in totals]
    height = _length("ms", ends_ms) | {"stack": "zero"}
    layers = [
        _layer(bar, parts, y=height, color=_colors("part", dict(PARTS.values())), order={"field": "order"}),
        _layer(triangle, over, y=_length("ms", ends_ms), opacity={"value": 1}),
    ]
    told = (
        f"{len(over)} of the {len(rows)} windows shown are over their SLA. "
        f"The slowest took {for_people(max(ends_ms))} from its end until its leaf had finished it."
    )
    spec = {"width": WIDTH, "height": 200, "encoding": {"x": _time(interval)}, "layer": layers}
    return _svg("spent", spec, "What the time of windows went into", told)


def emission(rows: Sequence[Row], interval: Interval, place_ms: int) -> Markup:
    """Updates emitted and suppressed in each *place_ms*, a row per operator."""
    totals = {name: sum(row["suppressed"] + row["emitted"] for row in of) for name, of in _by(rows, "operator")}
    shown = sorted(totals, key=lambda name: -totals[name])[:MOST]
    values = [
        {"operator": row["operator"], "at_ms": row["at_ms"] + place_ms // 2, "n": row[became], "became": became}
        for row in rows
        for became in ("emitted", "suppressed")
        if row["operator"] in shown
    ]
    axis = {"tickCount": 3, "format": "~s"}
    bars = _layer(
        {"type": "bar", "width": 0.9 * WIDTH * place_ms / interval.length_ms},
        x=_time(interval),
        y={"field": "n", "type": "quantitative", "stack": "zero", "title": None, "axis": axis},
        color=_colors("became", {"emitted": BLUE, "suppressed": ORANGE}),
        order={"field": "became"},
    )
    emitted, suppressed = (sum(row[became] for row in rows) for became in ("emitted", "suppressed"))
    told = f"{emitted:,} updates were emitted and {suppressed:,} suppressed, a row of bars per operator."
    spec = _rows_of("operator", {"width": WIDTH, "height": 64, **bars}, values)
    return _svg("emission", spec, "Emitted against suppressed", told)


def watermark_lag(lags: Sequence[Row], spans: Sequence[Row], interval: Interval) -> Markup:
    """How far the watermark of each partition is behind the clock, and below when it was idle or had records unread."""
    points = [row | {"input": _input(row), "order": order} for order, row in enumerate(lags)]
    silent = [row | {"input": _input(row)} for row in spans]
    highest = {name: max(row["lag_ms"] for row in of) for name, of in _by(points, "input")}
    shown = sorted(sorted(highest, key=lambda name: -highest[name])[:MOST])
    stroke = {"symbolType": "stroke", "symbolStrokeWidth": 2.5, "symbolSize": 500}
    by_input = {"field": "input", "type": "nominal", "legend": stroke}
    lines = _layer(
        {"type": "line", "strokeWidth": 1.8, "clip": True},
        [row for row in points if row["input"] in shown],
        x=_time(interval),
        y=_length("lag_ms", [row["lag_ms"] for row in points]),
        order={"field": "order"},
        color=by_input | {"scale": {"domain": shown, "range": LINES[: len(shown)]}},
        strokeDash=by_input | {"scale": {"domain": shown, "range": DASHES[: len(shown)]}},
    )
    bars = _layer(
        {"type": "bar", "height": 11},
        [row for row in silent if row["input"] in shown],
        x=_time(interval),
        x2={"field": "until_ms"},
        y={"field": "input", "type": "nominal", "title": None, "scale": {"domain": shown}},
        color=_colors("activity", {"idle": SILENT, "backlogged": ORANGE}) | {"legend": {"orient": "bottom"}},
    )
    charts = [{"width": WIDTH, "height": 170, **lines}, {"width": WIDTH, "height": {"step": 20}, **bars}]
    own_scales = {"scale": {"color": "independent", "strokeDash": "independent"}}
    worst = max(highest, key=lambda name: highest[name])
    told = (
        f"The largest lag is {for_people(highest[worst])}, of {worst}. {len(shown)} of {len(highest)} partitions are "
        f"shown, and below, in {len(silent)} spans, when partitions were idle or backlogged."
    )
    return _svg("lags", {"vconcat": charts, "resolve": own_scales, "spacing": 24}, "Watermark lag per partition", told)


def _layer(mark: Row, values: Sequence[Row] | None = None, **encoding: Any) -> Row:
    """*mark* for each of *values*, or of those of the chart it is in."""
    return {"mark": mark, "encoding": encoding} | ({} if values is None else {"data": {"values": values}})


def _rows_of(field: str, chart: Row, values: Sequence[Row]) -> Row:
    """*chart* once for each value of *field*, one below the other, each with a scale of its own."""
    row = {"field": field, "type": "nominal", "header": {"labelOrient": "top"}}
    own_scale = {"scale": {"y": "independent"}}
    return {"data": {"values": values}, "facet": {"row": row}, "spec": chart, "resolve": own_scale}


def _time(interval: Interval) -> Row:
    """The axis of `at_ms`."""
    form = "%H:%M" if interval.length_ms > 10 * Grain.MINUTE.length_ms else "%H:%M:%S"
    scale = {"type": "utc", "domain": [interval.start_ms, interval.end_ms], "nice": False, "padding": 0}
    axis = {"format": form, "grid": False, "tickCount": 10, "labelFlush": False, "labelOverlap": True}
    return {"field": "at_ms", "type": "temporal", "title": None, "scale": scale, "axis": axis}


def _length(field: str, values_ms: Sequence[float]) -> Row:
    """The axis of *field*, a length in ms, of a chart that shows *values_ms*."""
    ticks = ticks_ms(min(0, *values_ms), max(0, *values_ms))
    size_ms, unit = _unit(ticks)
    label = f"datum.value == 0 ? '0' : format(datum.value / {size_ms}, ',') + ' {unit}'"
    axis = {"values": ticks, "labelExpr": label}
    return {"field": field, "type": "quantitative", "title": None, "scale": {"zero": True}, "axis": axis}


def ticks_ms(lowest_ms: float, highest_ms: float) -> list[int]:
    """Where the axis of lengths from *lowest_ms* to *highest_ms* has ticks: whole steps of a clock, MOST_TICKS or less.

    >>> ticks_ms(0, 350_000), ticks_ms(0, 1_700), ticks_ms(-40, 90)
    ([0, 120000, 240000], [0, 500, 1000, 1500], [-40, -20, 0, 20, 40, 60, 80])
    """
    longest_ms = max(highest_ms, -lowest_ms)
    step_ms = next((step for step in STEPS_MS if longest_ms / step < MOST_TICKS), STEPS_MS[-1])
    return [n * step_ms for n in range(-int(-lowest_ms // step_ms), int(highest_ms // step_ms) + 1)]


def _unit(ticks: Sequence[int]) -> tuple[int, str]:
    """The unit in which the labels of *ticks* read best, ms, and its name."""
    step_ms = ticks[1] - ticks[0] if len(ticks) > 1 else 1
    if step_ms < 1_000 and max(map(abs, ticks)) < 1_000:
        return 1, "ms"
    return next((each for each in ((3_600_000, "h"), (60_000, "min")) if step_ms >= each[0]), (1_000, "s"))


def _colors(field: str, colors: dict[str, str]) -> Row:
    return {"field": field, "type": "nominal", "scale": {"domain": [*colors], "range": [*colors.values()]}}


def _with_gaps(rows: Sequence[Row]) -> list[Row]:
    """*rows*, and one without measurements after each that the next minute does not follow, so that lines break."""
    found: list[Row] = []
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        found.append(row)
        next_ms = row["at_ms"] + Grain.MINUTE.length_ms
        if following and following["operator"] == row["operator"] and following["at_ms"] > next_ms:
            found.append({"operator": row["operator"], "at_ms": next_ms, "sla_ms": row["sla_ms"]})
    return found


def _input(row: Row) -> str:
    return f"{row['source']} {row['partition']}"


def _by(rows: Iterable[Row], field: str) -> list[tuple[str, list[Row]]]:
    return [(name, list(of)) for name, of in groupby(sorted(rows, key=lambda row: row[field]), lambda row: row[field])]


def _svg(name: str, spec: Row, title: str, told: str) -> Markup:
    """*spec* drawn, with what it is and what it shows for screen readers; *name* is the chart's own on its page."""
    head, _, rest = vl_convert.vegalite_to_svg({"config": CONFIG, **spec}).removeprefix("<svg").partition(">")
    words = '<svg role="img" aria-labelledby="{0}-title {0}-told"{1}><title id="{0}-title">{2}</title>'
    return Markup(words + '<desc id="{0}-told">{3}</desc>{4}').format(name, Markup(head), title, told, Markup(rest))
