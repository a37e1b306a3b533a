"""Charts as SVG, drawn before the page is seen: Vega-Lite says what, vl-convert draws it, no script is left (ring 1).

Colours are those of Okabe and Ito, which people who see few colours can tell apart; what a colour says, a place, a
word or a dash says too. Instants are epoch ms, shown in UTC; lengths are ms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import count, groupby
from typing import Any

import vl_convert
from markupsafe import Markup

from tidemark.report.path_facts import Row
from tidemark.spec.intervals import Interval

INK, PALE, GRID = "#1b1f24", "#57606a", "#e4e7eb"
BLUE, SKY, GREEN, ORANGE, RED, PINK, YELLOW = "#0072b2", "#56b4e9", "#009e73", "#e69f00", "#d55e00", "#cc79a7", "#b59b00"
DASHES = ([], [6, 3], [2, 2], [8, 3, 2, 3], [12, 4], [1, 3], [4, 1], [10, 2, 2, 2])
LINES = (BLUE, RED, GREEN, PINK, ORANGE, SKY, YELLOW, INK)
BAND, PALE_BAND, SILENT = "#7fb8d8", "#cfe3ef", "#9aa4ae"
WIDTH = 900
MOST = len(LINES)
"""Lines, and rows, of a chart: those with most to tell."""
FEW = 40
"""Measurements that are shown as points too."""
NEAR = 1.5
"""Times the highest latency: a promise up to there is drawn."""
MINUTE_MS = 60_000
PARTS = {
    "before_source_ms": ("before the source", "#b8c0c8"),
    "waited_ms": ("waited for a batch", SKY),
    "queued_ms": ("queued for a sibling", PINK),
    "worked_ms": ("worked", BLUE),
}
"""What a window's time went into, by column: its name and colour."""
LENGTH = (
    "abs(datum.value) < 1000 ? datum.value + ' ms' : abs(datum.value) < 120000 ? datum.value / 1000 + ' s' : "
    "format(datum.value / 60000, ',') + ' min'"
)
"""An axis' label, as Vega writes expressions."""
CONFIG: Mapping[str, Any] = {
    "font": "system-ui, sans-serif",
    "background": "transparent",
    "padding": {"left": 30, "right": 10, "top": 5, "bottom": 5},
    "aria": False,
    "view": {"stroke": None},
    "axis": {
        "labelColor": PALE, "gridColor": GRID, "domainColor": PALE, "tickColor": PALE,
        "labelFontSize": 12, "labelLimit": 240,
    },
    "legend": {"labelColor": INK, "labelFontSize": 13, "orient": "top", "title": None, "symbolType": "square", "columnPadding": 40, "labelLimit": 300},
    "header": {"labelColor": INK, "labelFontSize": 13, "labelFontWeight": "bold", "labelAnchor": "start", "title": None},
}  # fmt: skip


def latency_bands(rows: Sequence[Row], interval: Interval) -> Markup:
    """End-to-end latency of terminal operators, a row each: the median, and the bands up to p90 and to p99.

    What is promised is a dashed line where it is near.
    """
    highest = {name: max(row["p99_ms"] for row in of) for name, of in _by(rows, "operator")}
    near = [row if (row["sla_ms"] or 0) <= NEAR * highest[row["operator"]] else row | {"sla_ms": None} for row in rows]
    layers = [
        _band("p50_ms", "p90_ms", BAND),
        _band("p90_ms", "p99_ms", PALE_BAND),
        _line("p50_ms", BLUE, 2.5, points=len(rows) < FEW),
        {"mark": {"type": "line", "strokeDash": [6, 4], "color": RED}, "encoding": {"y": _length("sla_ms")}},
    ]
    chart = {"width": WIDTH, "height": 150, "encoding": {"x": _time(interval)}, "layer": layers}
    return _svg(_rows_of("operator", chart, _gaps(near)), "Latency over time", _bands_told(rows))


def windows_spent(rows: Sequence[Row], interval: Interval) -> Markup:
    """What the time of windows went into, the slowest window of each place of the axis."""
    parts = [
        {"at_ms": _ms(row["window_end"]), "ms": max(0, row[column]), "part": name, "order": order}
        for row in rows
        for order, (column, (name, _)) in enumerate(PARTS.items())
    ]
    over = [{"at_ms": _ms(row["window_end"]), "ms": row["latency_ms"] + row["before_source_ms"]} for row in rows if row["over_sla"]]
    bar = max(1.0, min(14.0, 0.8 * WIDTH / max(1, len(rows))))
    names, colors = zip(*PARTS.values(), strict=True)
    color = {"field": "part", "type": "nominal", "scale": {"domain": names, "range": colors}}
    spec = {
        "width": WIDTH,
        "height": 200,
        "layer": [
            {
                "data": {"values": parts},
                "mark": {"type": "bar", "width": bar},
                "encoding": {"x": _time(interval), "y": {**_length("ms"), "stack": "zero"}, "color": color, "order": {"field": "order"}},
            },
            {
                "data": {"values": over},
                "mark": {"type": "point", "shape": "triangle-down", "color": RED, "filled": True, "size": 45, "yOffset": -8, "opacity": 1},
                "encoding": {"x": _time(interval), "y": _length("ms")},
            },
        ],
    }  # fmt: skip
    slowest = max(rows, key=lambda row: row["latency_ms"] + row["before_source_ms"])
    told = (
        f"{len(over)} of the {len(rows)} windows shown are over their SLA, marked by a triangle. The slowest took "
        f"{slowest['latency_ms'] + slowest['before_source_ms']:,} ms, {slowest['latency_ms']:,} of them along its path."
    )
    return _svg(spec, "What the time of windows went into", told)


def emission(rows: Sequence[Row], interval: Interval) -> Markup:
    """Updates emitted and suppressed over time, a row per operator."""
    totals = {name: sum(row["suppressed"] + row["emitted"] for row in of) for name, of in _by(rows, "operator")}
    shown = sorted(totals, key=lambda name: -totals[name])[:MOST]
    values = [
        {"operator": row["operator"], "at_ms": row["at_ms"], "n": row[what], "became": what}
        for row in rows
        for what in ("emitted", "suppressed")
        if row["operator"] in shown
    ]
    places = len({row["at_ms"] for row in rows})
    chart = {
        "width": WIDTH,
        "height": 64,
        "mark": {"type": "bar", "width": max(1.0, min(14.0, 0.9 * WIDTH / max(1, places)))},
        "encoding": {
            "x": _time(interval),
            "y": {"field": "n", "type": "quantitative", "stack": "zero", "title": None, "axis": {"tickCount": 3, "format": "~s"}},
            "color": {"field": "became", "type": "nominal", "scale": {"domain": ["emitted", "suppressed"], "range": [BLUE, ORANGE]}},
            "order": {"field": "became"},
        },
    }  # fmt: skip
    emitted, suppressed = (sum(row[what] for row in rows) for what in ("emitted", "suppressed"))
    told = f"{emitted:,} updates were emitted and {suppressed:,} suppressed, a row of bars per operator."
    return _svg(_rows_of("operator", chart, values), "Emitted against suppressed", told)


def watermark_lag(lags: Sequence[Row], spans: Sequence[Row], interval: Interval) -> Markup:
    """How far the watermark of each partition is behind the clock, and below when it was idle or had records unread."""
    highest = {name: max(row["lag_ms"] for row in of) for name, of in _by(_named(lags), "input")}
    shown = sorted(sorted(highest, key=lambda name: -highest[name])[:MOST])
    order = count()
    points = [row | {"order": next(order)} for row in _named(lags) if row["input"] in shown]
    scale = {"domain": shown, "range": LINES[: len(shown)]}
    lines = {
        "width": WIDTH,
        "height": 170,
        "data": {"values": points},
        "mark": {"type": "line", "strokeWidth": 1.8, "clip": True},
        "encoding": {
            "x": _time(interval),
            "y": _length("lag_ms"),
            "order": {"field": "order"},
            "color": {"field": "input", "type": "nominal", "scale": scale, "legend": {"symbolType": "stroke", "symbolStrokeWidth": 3}},
            "strokeDash": {"field": "input", "type": "nominal", "scale": {"domain": shown, "range": DASHES[: len(shown)]}, "legend": None},
        },
    }  # fmt: skip
    silent = {
        "width": WIDTH,
        "height": {"step": 20},
        "data": {"values": [row for row in _named(spans) if row["input"] in shown]},
        "mark": {"type": "bar", "height": 11},
        "encoding": {
            "x": _time(interval, "at_ms"),
            "x2": {"field": "until_ms"},
            "y": {"field": "input", "type": "nominal", "title": None, "scale": {"domain": shown}},
            "color": {
                "field": "activity", "type": "nominal", "scale": {"domain": ["idle", "backlogged"], "range": [SILENT, ORANGE]},
                "legend": {"orient": "bottom"},
            },
        },
    }  # fmt: skip
    spec = {"vconcat": [lines, silent], "resolve": {"scale": {"color": "independent"}}, "spacing": 24}
    worst = max(highest, key=lambda name: highest[name])
    told = (
        f"The largest lag is {highest[worst]:,} ms, of {worst}. Of {len(highest)} partitions {len(shown)} are shown, and "
        f"below when they were idle or backlogged: {len(spans)} spans."
    )
    return _svg(spec, "Watermark lag per partition", told)


def _rows_of(field: str, chart: Row, values: Sequence[Row]) -> Row:
    """*chart* once for each value of *field*, one below the other, each with a scale of its own."""
    return {
        "data": {"values": values},
        "facet": {"row": {"field": field, "type": "nominal", "header": {"labelOrient": "top"}}},
        "spec": chart,
        "resolve": {"scale": {"y": "independent"}},
    }


def _band(low: str, high: str, color: str) -> Row:
    return {"mark": {"type": "area", "color": color}, "encoding": {"y": _length(low), "y2": {"field": high}}}


def _line(field: str, color: str, width: float, *, points: bool) -> Row:
    point = {"color": color, "size": 25} if points else False
    mark = {"type": "line", "color": color, "strokeWidth": width, "point": point}
    return {"mark": mark, "encoding": {"y": _length(field)}}


def _time(interval: Interval, field: str = "at_ms") -> Row:
    form = "%H:%M" if interval.length_ms > 10 * MINUTE_MS else "%H:%M:%S"
    scale = {"type": "utc", "domain": [interval.start_ms, interval.end_ms], "nice": False}
    axis = {"format": form, "grid": False, "tickCount": 10}
    return {"field": field, "type": "temporal", "title": None, "scale": scale, "axis": axis}


def _length(field: str) -> Row:
    axis = {"labelExpr": LENGTH, "tickCount": 5}
    return {"field": field, "type": "quantitative", "title": None, "scale": {"zero": True}, "axis": axis}


def _gaps(rows: Sequence[Row]) -> list[Row]:
    """*rows* with one without measurements after each that the next minute does not follow, so that lines break."""
    found: list[Row] = []
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        found.append(row)
        if following and following["operator"] == row["operator"] and following["at_ms"] > row["at_ms"] + MINUTE_MS:
            found.append({"operator": row["operator"], "at_ms": row["at_ms"] + MINUTE_MS, "sla_ms": row["sla_ms"]})
    return found


def _named(rows: Iterable[Row]) -> list[Row]:
    return [row | {"input": f"{row['source']} {row['partition']}"} for row in rows]


def _by(rows: Iterable[Row], field: str) -> list[tuple[str, list[Row]]]:
    return [(name, list(of)) for name, of in groupby(sorted(rows, key=lambda row: row[field]), lambda row: row[field])]


def _bands_told(rows: Sequence[Row]) -> str:
    """What the bands show, for who does not see them."""
    parts = []
    for name, of in _by(rows, "operator"):
        worst = max(of, key=lambda row: row["p99_ms"])
        parts.append(f"{name}: medians from {min(r['p50_ms'] for r in of):,.0f} to {max(r['p50_ms'] for r in of):,.0f} ms, highest p99 {worst['p99_ms']:,.0f} ms")
    return "By minute of the finish clock. " + "; ".join(parts) + "."


def _ms(at: Any) -> int:
    return round(at.timestamp() * 1000)


@cache
def _numbers() -> count[int]:
    return count(1)


def _svg(spec: Row, title: str, told: str) -> Markup:
    """*spec* drawn, with what it is and what it shows for screen readers."""
    drawn = vl_convert.vegalite_to_svg({"config": CONFIG, **spec})
    name = f"chart-{next(_numbers())}"
    words = Markup('<svg role="img" aria-labelledby="{0}-title {0}-told" ').format(name)
    inside = Markup('><title id="{0}-title">{1}</title><desc id="{0}-told">{2}</desc>').format(name, title, told)
    head, _, rest = drawn.removeprefix("<svg ").partition(">")
    return words + Markup(head) + inside + Markup(rest)
