"""Renders the page about one interval of a topology.

The page is one HTML file that needs no script, no network and no other file. Values of tables are text: Jinja2 escapes
them, and MarkupSafe escapes them in charts. Should both fail, the page's Content-Security-Policy allows neither script
nor request.
"""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from tidemark.facts.answers import Row, Tables
from tidemark.facts.interval_facts import PageFacts, page_facts
from tidemark.facts.topology_changes import changes_by_operator
from tidemark.model.settings.intervals import Grain, Interval, utc
from tidemark.model.topology import Topology
from tidemark.reports.pages.charts import emission, latency_bands, watermark_lag, windows_spent
from tidemark.reports.pages.drawing import BOX, draw
from tidemark.reports.pages.templates import POLICY, length, template
from tidemark.storage.location import replace

NO_WAY_BACK = "<nav></nav>"
"""Stands in a page that is a file. Where a server hands the page out, `way_back` replaces it with links."""


def way_back(topology: str) -> Markup:
    """Returns the links to other pages of *topology*, from the address at which its reports are served."""
    return Markup(
        '<nav><a href="../../../">All topologies</a><a href="../../{0}">{0}</a>'
        '<a href="../slas">SLAs, incidents and contracts</a></nav>'
    ).format(topology)


def write_pages(
    tables: Tables, topology: Topology, interval: Interval, target: Path, *, now_ms: int | None = None
) -> list[Path]:
    """Writes the page of *interval*.

    Args:
        tables: the tables of the warehouse.
        topology: the topology that the page is about.
        interval: the interval that the page is about.
        target: a file named *.html, or a folder. In a folder the page is named after the interval, and the day in which
            a shorter interval begins has a page too.
        now_ms: the clock, epoch ms. The page of an interval that is not over then has a note. None stands for a time
            after the interval.

    Returns:
        The files written.
    """
    if target.suffix == ".html":
        return [_write(tables, topology, interval, target, now_ms)]
    day = Interval(interval.start_ms, interval.start_ms + 1).widened(Grain.DAY)
    intervals = dict.fromkeys([interval, day] if interval.length_ms < day.length_ms else [interval])
    return [_write(tables, topology, each, target / f"{name_of(each)}.html", now_ms) for each in intervals]


def name_of(interval: Interval) -> str:
    """Returns the name of the page of *interval*: a day, an hour, or both instants of the interval.

    >>> name_of(Interval(0, 3_600_000)), name_of(Interval(0, 86_400_000)), name_of(Interval(0, 1_500))
    ('1970-01-01T00', '1970-01-01', '1970-01-01T000000Z--1970-01-01T000001Z')
    """
    start, end = utc(interval.start_ms), utc(interval.end_ms)
    # Names sort by time.
    for grain, form in ((Grain.DAY, "%Y-%m-%d"), (Grain.HOUR, "%Y-%m-%dT%H")):
        if interval.length_ms == grain.length_ms and interval == interval.widened(grain):
            return start.strftime(form)
    return "--".join(at.strftime("%Y-%m-%dT%H%M%SZ") for at in (start, end))


def page(facts: PageFacts, *, now_ms: int | None = None) -> str:
    """Returns the page that shows *facts*, as HTML, with a note if the interval is not over at *now_ms*, epoch ms."""
    path = facts.paths[0]["path"] if facts.paths else []
    return template("reports/pages/page.html.j2").render(
        facts=facts,
        policy=Markup(POLICY),
        topology=facts.topology,
        path=path,
        drawing=draw(facts.topology.upstreams, path),
        box=BOX,
        box_facts={name: _operator(row) for name, row in facts.operators.items()},
        charts=_charts(facts),
        start=utc(facts.interval.start_ms),
        end=utc(facts.interval.end_ms),
        emission=_emission(facts),
        until=utc(now_ms) if now_ms is not None and now_ms < facts.interval.end_ms else None,
    )


def _operator(row: Row) -> Row:
    """Returns the facts that the box of an operator shows."""
    latency, worked = length(row["latency_ms"]), length(row["worked_ms"])
    text = f"median latency {latency}, worked {worked}, on the path of {row['on_path']:,} of {row['windows']:,} windows"
    share = row["on_path"] / row["windows"] if row["windows"] else None
    return {"latency_ms": row["latency_ms"], "tooltip": text, "share": share}


def _charts(facts: PageFacts) -> dict[str, Markup]:
    """Draws the charts; a chart without anything to draw is empty."""
    interval = facts.interval
    # At most one window is drawn for a place of the axis.
    apart_ms = max(facts.place_ms, facts.topology.window_ms)
    drawn = [change for change in facts.changes if change.at_ms >= interval.start_ms]
    changes = changes_by_operator(drawn, facts.topology)
    return {
        "latencies": latency_bands(facts.latencies, interval, facts.latency_place_ms, changes),
        "spent": windows_spent(facts.spent, interval, apart_ms),
        "emission": emission(facts.emission, interval, facts.place_ms, changes),
        "lags": watermark_lag(facts.lags, facts.spans, interval),
    }


def _emission(facts: PageFacts) -> list[tuple[str, int, int]]:
    """Returns operators, updates emitted and suppressed, most suppressed first."""
    totals: dict[str, tuple[int, int]] = {}
    for row in facts.emission:
        emitted, suppressed = totals.get(row["operator"], (0, 0))
        totals[row["operator"]] = (emitted + row["emitted"], suppressed + row["suppressed"])
    return sorted(((name, *both) for name, both in totals.items()), key=lambda row: (-row[2], row[0]))


def _write(tables: Tables, topology: Topology, interval: Interval, file: Path, now_ms: int | None) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    replace(file, page(page_facts(tables, topology, interval, now_ms=now_ms), now_ms=now_ms))
    return file
