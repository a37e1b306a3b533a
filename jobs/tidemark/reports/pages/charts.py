"""Draws the charts of a report as SVG without script.

A chart is specified in Vega-Lite, and vl-convert draws it before the page is opened. Whatever a colour of `colors`
shows, a place, a word or a dash shows too. Instants are epoch ms, shown in UTC; lengths are ms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import vl_convert
from markupsafe import Markup

from tidemark.model.settings.intervals import Grain, Interval
from tidemark.model.settings.lengths import for_people
from tidemark.reports.pages.colors import (
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
from tidemark.reports.pages.plots import ticks_ms
from tidemark.reports.paths.path_facts import Row

LINES = (BLUE, RED, GREEN, PINK, ORANGE, SKY, YELLOW, INK)
DASHES: tuple[list[int], ...] = ([], [6, 3], [2, 2], [8, 3, 2, 3], [12, 4], [1, 3], [4, 1], [10, 2, 2, 2])
MOST = len(LINES)
"""Most lines or rows of a chart.

The others, with smaller values, are left out.
"""
WIDTH = 1080
BAR = 14.0
"""Greatest width of a bar, px."""
PARTS = {
    "before_source_ms": ("before the source", "#b8c0c8"),
    "waited_ms": ("waited for a batch", SKY),
    "queued_ms": ("queued for a sibling", PINK),
    "worked_ms": ("worked", BLUE),
}
"""Parts of a window's time: name and colour, by column."""
_AXIS = {"labelColor": PALE, "gridColor": GRID, "domainColor": PALE, "tickColor": PALE}
_LEGEND = {"labelColor": INK, "orient": "top", "title": None, "symbolType": "square", "columnPadding": 40}
_HEADER = {"labelColor": INK, "labelFontWeight": "bold", "labelAnchor": "start", "title": None}
CONFIG = {
    "font": "system-ui, sans-serif",
    "background": "transparent",
    "padding": {"left": 30, "right": 10, "top": 5, "bottom": 5},
    # Screen readers read the drawing as one image.
    "aria": False,
    "view": {"stroke": None},
    "axis": {**_AXIS, "labelFontSize": 12, "labelLimit": 240},
    "legend": {**_LEGEND, "labelFontSize": 13, "labelLimit": 300},
    "header": {**_HEADER, "labelFontSize": 13},
}


def windows_spent(rows: Sequence[Row], interval: Interval, apart_ms: int) -> Markup:
    """Draws the parts of the time of the windows *rows*.

    Windows are *apart_ms* or more from each other. A triangle marks a place of the axis with a window over its SLA.
    """
    parts, over, ends_ms = [], [], []
    for row in rows:
        at_ms, total_ms = row["end_ms"], row["latency_ms"] + row["before_source_ms"]
        ends_ms.append(total_ms)
        if row["over_sla"]:
            over.append({"at_ms": at_ms, "ms": total_ms})
        for order, (column, (name, _)) in enumerate(PARTS.items()):
            # A part is negative if a clock was ahead, and a bar cannot begin below 0.
            parts.append({"at_ms": at_ms, "ms": max(0, row[column]), "part": name, "order": order})
    bar = {"type": "bar", "width": min(BAR, 0.8 * WIDTH * apart_ms / interval.length_ms)}
    triangle = {"type": "point", "shape": "triangle-down", "color": RED, "filled": True, "size": 45, "yOffset": -8}
    height = _length("ms", ends_ms) | {"stack": "zero"}
    layers = [
        _layer(bar, parts, y=height, color=_colors("part", dict(PARTS.values())), order={"field": "order"}),
        _layer(triangle, over, y=_length("ms", ends_ms), opacity={"value": 1}),
    ]
    description = (
        f"{len(over)} of the {len(rows)} places shown have a window over its SLA. "
        f"The slowest window shown took {for_people(max(ends_ms))} from its end until its leaf had finished it."
    )
    spec = {"width": WIDTH, "height": 200, "encoding": {"x": _time(interval)}, "layer": layers}
    return _svg("spent", spec, "How windows spent their time", description)


def emission(rows: Sequence[Row], interval: Interval, place_ms: int) -> Markup:
    """Draws updates emitted and suppressed per operator, a bar each *place_ms*."""
    outcomes: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    values = []
    for row in rows:
        for became in ("emitted", "suppressed"):
            outcomes[became] += row[became]
            totals[row["operator"]] += row[became]
            # A bar stands in the middle of its time.
            at_ms = row["at_ms"] + place_ms // 2
            values.append({"operator": row["operator"], "at_ms": at_ms, "n": row[became], "became": became})
    # A chart has no space for all operators: those with most updates are drawn.
    shown = sorted(sorted(totals), key=lambda name: -totals[name])[:MOST]
    values = [value for value in values if value["operator"] in shown]
    axis = {"tickCount": 3, "format": "~s"}
    bars = _layer(
        {"type": "bar", "width": 0.9 * WIDTH * place_ms / interval.length_ms},
        x=_time(interval),
        y={"field": "n", "type": "quantitative", "stack": "zero", "title": None, "axis": axis},
        color=_colors("became", {"emitted": BLUE, "suppressed": ORANGE}),
        order={"field": "became"},
    )
    description = (
        f"{outcomes['emitted']:,} updates were emitted and {outcomes['suppressed']:,} suppressed, "
        "a row of bars per operator."
    )
    spec = _rows_of("operator", {"width": WIDTH, "height": 64, **bars}, values)
    return _svg("emission", spec, "Emitted against suppressed", description)


def watermark_lag(lags: Sequence[Row], spans: Sequence[Row], interval: Interval) -> Markup:
    """Draws the watermark lag of each partition behind the clock.

    Below it are the spans when a partition was idle or had unread records.
    """
    points, lags_ms = [], []
    highest: dict[str, float] = {}
    for order, row in enumerate(lags):
        name, lag_ms = _input(row), row["lag_ms"]
        # Vega-Lite would sort the points of a line by time; rows of one instant have an order, too.
        points.append(row | {"input": name, "order": order})
        lags_ms.append(lag_ms)
        highest[name] = max(highest.get(name, lag_ms), lag_ms)
    silent = [row | {"input": _input(row)} for row in spans]
    # A chart has no space for all partitions: those with the largest lags are drawn, in the order of their names.
    shown = sorted(sorted(sorted(highest), key=lambda name: -highest[name])[:MOST])
    stroke = {"symbolType": "stroke", "symbolStrokeWidth": 2.5, "symbolSize": 500}
    by_input = {"field": "input", "type": "nominal", "legend": stroke}
    lines = _layer(
        {"type": "line", "strokeWidth": 1.8, "clip": True},
        [row for row in points if row["input"] in shown],
        x=_time(interval),
        y=_length("lag_ms", lags_ms),
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
    # Otherwise both charts would have one legend.
    own_scales = {"scale": {"color": "independent", "strokeDash": "independent"}}
    worst = max(sorted(highest), key=lambda name: highest[name])
    description = (
        f"The largest lag is {for_people(highest[worst])}, of {worst}. {len(shown)} of {len(highest)} partitions are "
        f"shown, and below, in {len(silent)} spans, when partitions were idle or backlogged."
    )
    return _svg(
        "lags", {"vconcat": charts, "resolve": own_scales, "spacing": 24}, "Watermark lag per partition", description
    )


def _layer(mark: Row, values: Sequence[Row] | None = None, **encoding: Any) -> Row:
    """Returns a layer with *mark* for *values* (None: those around it)."""
    return {"mark": mark, "encoding": encoding} | ({} if values is None else {"data": {"values": values}})


def _rows_of(field: str, chart: Row, values: Sequence[Row]) -> Row:
    """Repeats *chart* for each value of *field*, with scales of their own."""
    row = {"field": field, "type": "nominal", "header": {"labelOrient": "top"}}
    own_scale = {"scale": {"y": "independent"}}
    return {"data": {"values": values}, "facet": {"row": row}, "spec": chart, "resolve": own_scale}


def _time(interval: Interval) -> Row:
    """Returns the axis of `at_ms`."""
    # Ticks of a short interval need seconds.
    form = "%H:%M" if interval.length_ms > 10 * Grain.MINUTE.length_ms else "%H:%M:%S"
    scale = {"type": "utc", "domain": [interval.start_ms, interval.end_ms], "nice": False, "padding": 0}
    axis = {"format": form, "grid": False, "tickCount": 10, "labelFlush": False, "labelOverlap": True}
    return {"field": "at_ms", "type": "temporal", "title": None, "scale": scale, "axis": axis}


def _length(field: str, values_ms: Sequence[float]) -> Row:
    """Returns the axis of *field* (ms) in a chart of *values_ms*."""
    ticks = ticks_ms(min(0, *values_ms), max(0, *values_ms))
    size_ms, unit = _unit(ticks)
    label = f"datum.value == 0 ? '0' : format(datum.value / {size_ms}, ',') + ' {unit}'"
    axis = {"values": ticks, "labelExpr": label}
    return {"field": field, "type": "quantitative", "title": None, "scale": {"zero": True}, "axis": axis}


def _unit(ticks: Sequence[int]) -> tuple[int, str]:
    """Returns the most readable unit for *ticks*, in ms, and its name."""
    step_ms = ticks[1] - ticks[0] if len(ticks) > 1 else 1
    if step_ms < 1_000 and max(map(abs, ticks)) < 1_000:
        return 1, "ms"
    return next((each for each in ((3_600_000, "h"), (60_000, "min")) if step_ms >= each[0]), (1_000, "s"))


def _colors(field: str, colors: dict[str, str]) -> Row:
    return {"field": field, "type": "nominal", "scale": {"domain": [*colors], "range": [*colors.values()]}}


def _input(row: Row) -> str:
    return f"{row['source']} {row['partition']}"


def _svg(name: str, spec: Row, title: str, description: str) -> Markup:
    """Draws a chart as SVG.

    Args:
        name: of the chart, unique on its page.
        spec: in Vega-Lite, without CONFIG.
        title: of the chart, for screen readers.
        description: of its content, for screen readers.
    """
    # The title has to be the first element of the image.
    head, _, rest = vl_convert.vegalite_to_svg({"config": CONFIG, **spec}).removeprefix("<svg").partition(">")
    words = '<svg role="img" aria-labelledby="{0}-title {0}-told"{1}><title id="{0}-title">{2}</title>'
    return Markup(words + '<desc id="{0}-told">{3}</desc>{4}').format(
        name, Markup(head), title, description, Markup(rest)
    )
