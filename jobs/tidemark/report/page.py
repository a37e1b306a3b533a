"""A page about one interval of a topology: one HTML file that needs nothing else, no script and no network (ring 2).

What tables say is text: Jinja2 escapes it, Vega escapes it in charts, and the page's Content-Security-Policy allows
neither script nor request should both fail.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tidemark.report import charts
from tidemark.report.drawing import BOX, drawing
from tidemark.report.page_facts import PageFacts, page_facts
from tidemark.report.path_facts import Tables
from tidemark.spec.intervals import Grain, Interval
from tidemark.spec.topology import Topology

TEMPLATE = "page.html.j2"
NO_OPERATOR = {
    "before_source": "before the source: records came late, or waited unread",
    "waiting": "waiting: for a trigger, or a driver busy with the batch before",
}
"""What blame calls the parts of a window in which no operator worked, said at length."""


def write_pages(tables: Tables, topology: Topology, interval: Interval, target: Path) -> list[Path]:
    """Write the page of *interval* to *target*, a file named *.html or a folder; the files written.

    In a folder it is named after the interval, and the day that a shorter one begins in has a page besides.
    """
    if target.suffix == ".html":
        return [_write(tables, topology, interval, target)]
    day = Interval(interval.start_ms, interval.start_ms + 1).widened(Grain.DAY)
    intervals = dict.fromkeys([interval, day] if interval.length_ms < day.length_ms else [interval])
    return [_write(tables, topology, each, target / f"{name_of(each)}.html") for each in intervals]


def name_of(interval: Interval) -> str:
    """What the page of *interval* is called: a day, an hour, or its instants; names sort by time.

    >>> name_of(Interval(0, 3_600_000)), name_of(Interval(0, 86_400_000)), name_of(Interval(0, 1_500))
    ('1970-01-01T00', '1970-01-01', '1970-01-01T000000Z--1970-01-01T000001Z')
    """
    start, end = at(interval.start_ms), at(interval.end_ms)
    for grain, form in ((Grain.DAY, "%Y-%m-%d"), (Grain.HOUR, "%Y-%m-%dT%H")):
        if interval.length_ms == grain.length_ms and interval == interval.widened(grain):
            return start.strftime(form)
    return "--".join(at.strftime("%Y-%m-%dT%H%M%SZ") for at in (start, end))


def page(facts: PageFacts) -> str:
    """The page that tells *facts*."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "n": "{:,}".format,
        "ms": length,
        "at": at,
        "day_and_clock": "{:%Y-%m-%d %H:%M:%S}".format,
        "percent": percent,
    }
    path = facts.paths[0]["path"] if facts.paths else []
    return environment.get_template(TEMPLATE).render(
        facts=facts,
        topology=facts.topology,
        path=path,
        drawing=drawing(facts.topology.upstreams, path),
        box=BOX,
        charts=_charts(facts),
        no_operator=NO_OPERATOR,
        start=at(facts.interval.start_ms),
        end=at(facts.interval.end_ms),
        emission=_emission(facts),
    )


def at(at_ms: int) -> datetime:
    """The instant of epoch ms, in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def length(ms: float | None) -> str:
    """A length of time for people.

    >>> length(431), length(6_237.5), length(200_000), length(None)
    ('431 ms', '6.24 s', '3.33 min', '–')
    """
    if ms is None:
        return "–"
    if abs(ms) < 1_000:
        return f"{ms:,.0f} ms"
    return f"{ms / 1_000:,.2f} s" if abs(ms) < 120_000 else f"{ms / 60_000:,.2f} min"


def percent(share: float | None) -> str:
    """A part of 1 for people; a dash where it is not known."""
    return "–" if share is None else f"{share:.0%}"


def _charts(facts: PageFacts) -> dict[str, Markup | None]:
    """The charts; None where there is nothing to draw."""
    interval = facts.interval
    apart_ms = max(facts.place_ms, facts.topology.window_ms)
    return {
        "latencies": charts.latency_bands(facts.latencies, interval) if facts.latencies else None,
        "spent": charts.windows_spent(facts.spent, interval, apart_ms) if facts.spent else None,
        "emission": charts.emission(facts.emission, interval, facts.place_ms) if facts.emission else None,
        "lags": charts.watermark_lag(facts.lags, facts.spans, interval) if facts.lags else None,
    }


def _emission(facts: PageFacts) -> list[tuple[str, int, int]]:
    """Operators with what they emitted and suppressed, most suppressed first."""
    totals: dict[str, tuple[int, int]] = {}
    for row in facts.emission:
        emitted, suppressed = totals.get(row["operator"], (0, 0))
        totals[row["operator"]] = (emitted + row["emitted"], suppressed + row["suppressed"])
    return sorted(((name, *both) for name, both in totals.items()), key=lambda row: (-row[2], row[0]))


def _write(tables: Tables, topology: Topology, interval: Interval, file: Path) -> Path:
    """Write the page at once: who opens it sees the old one or the new one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(f".{file.name}.{os.getpid()}")
    unfinished.write_text(page(page_facts(tables, topology, interval)), encoding="utf-8")
    unfinished.replace(file)
    return file
