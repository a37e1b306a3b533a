"""Renders the pages about the present state of topologies: HTML without script, which refreshes itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from operator import itemgetter
from pathlib import Path

from markupsafe import Markup

from tidemark.facts.answers import Row
from tidemark.facts.history import PastMeasurements
from tidemark.facts.topology_changes import changes_by_operator, concerning
from tidemark.graph import reached
from tidemark.model.kinds.operator import Level, latency_level
from tidemark.model.settings.intervals import utc
from tidemark.model.topology import Topology
from tidemark.reports.pages.charts import latency_bands, length_lines, share_lines
from tidemark.reports.pages.colors import BLUE, GREEN, ORANGE, PINK, RED, SILENT, SKY, YELLOW
from tidemark.reports.pages.drawing import BOX, draw
from tidemark.reports.pages.page_model import subjects_of
from tidemark.reports.pages.templates import REFRESH_S, length, template
from tidemark.reports.pages.topology_state import (
    NEEDS_SOMEONE,
    VERDICT_WORDS,
    PageVerdict,
    broken_slas,
    told_cause,
    unchecked_text,
)
from tidemark.semantics.bounds import COUNTED_AS_LATE
from tidemark.semantics.critical_path import STANDS_STILL
from tidemark.semantics.liveness import AT_REST, Liveness

SOON_S = 3
"""Interval of loading the start page while a line is unknown, s."""
COLORS = (BLUE, ORANGE, SKY, GREEN, PINK, RED, YELLOW, SILENT)
PLACES = {"topic": "topic", "delta": "table", "files": "files in"}
"""Keys of a source that name what the source reads, and their words on pages."""


def start_page(lines: Sequence[Row], *, folder: Path) -> str:
    """Returns the page with one line per topology, the worst first, as HTML.

    Each of *lines* is a page model of an instant of its own, or has only the name of a topology whose state is not
    known yet. *folder* is where topology files belong.
    """
    # The template reads these fields of every line, and pages refuse names that are not defined.
    no_fields: Row = dict.fromkeys(("error", "cause", "slas", "report", "streams"))
    no_fields |= {"alerts": []}
    read = [{**no_fields, **line, **_told(line)} for line in lines if "verdict" in line]
    unread = [line for line in lines if "verdict" not in line]
    read.sort(key=lambda line: ([*PageVerdict].index(line["verdict"]), line["topology"]))
    well = [line for line in read if not _needs_someone(line)]
    return template("reports/pages/start_page.html.j2").render(
        n=len(lines),
        wrong=[line for line in read if _needs_someone(line)],
        well=well,
        # Lines may be a minute old, so the sentence about them is no younger.
        instants=sorted({line["at"].replace(microsecond=0) for line in well}),
        unread=unread,
        states={line["topology"]: _streams_by_state(line["streams"] or ()) for line in read},
        words=VERDICT_WORDS,
        folder=str(folder),
        refresh_s=SOON_S if unread else REFRESH_S,
    )


def _told(model: Row) -> Row:
    """Returns what is told beside the verdict of *model*: its `broken` SLAs and the `cause`, None if it has none."""
    if not model.get("slas"):
        return {"broken": None, "cause": model.get("cause")}
    return {"broken": broken_slas(model), "cause": told_cause(model)}


def _needs_someone(line: Row) -> bool:
    """Returns True for a topology with a bad verdict, or with an alert that is still open.

    A topology that was drained, or a job that has finished, needs nobody.
    """
    is_at_end = line["verdict"] == PageVerdict.NOT_RUNNING and line["state"] in AT_REST
    return (line["verdict"] in NEEDS_SOMEONE and not is_at_end) or bool(line["alerts"])


def _streams_by_state(streams: Sequence[Row]) -> dict[str, list[str]]:
    """Returns the names of the streams in each state, the worst state first."""
    names = defaultdict(list)
    for stream in streams:
        names[stream["state"]].append(stream["sub_topology"])
    return {state: names[state] for state in map(str, Liveness) if state in names}


def topology_page(model: Row, facts: Row | None, topology: Topology | None) -> str:
    """Returns the page of a topology, as HTML.

    *model* is its page model, and *facts* has what `tidemark topology` shows. *facts* and *topology* are None if the
    file of the topology is not valid.
    """
    path = (model.get("path") or {}).get("path", [])
    moving = {row["operator"]: row for row in facts["operators"]} if facts else {}
    known_budgets = [row for row in model.get("budgets", ()) if row["budget_left"] is not None]
    checked_at = model["slas"]["checked_at"] if "slas" in model else None
    starts = [stream["since"] for stream in model["streams"] if stream["since"] is not None]
    return template("reports/pages/topology_page.html.j2").render(
        model={"error": None, **model},
        progress=facts,
        topology=topology,
        path=path,
        drawing=draw(topology.upstreams, path) if topology else None,
        box=BOX,
        operators={name: _operator(row, moving.get(name)) for name, row in model.get("operators", {}).items()},
        words=VERDICT_WORDS,
        colors=COLORS,
        stands_still=STANDS_STILL,
        stuck=[name for name, row in model.get("operators", {}).items() if row["stuck_ms"] is not None],
        **_told(model),
        unchecked=unchecked_text(model),
        budget=min(known_budgets, key=itemgetter("budget_left"), default=None),
        spent_ms=sum(part["ms"] for part in (model.get("path") or {}).get("spent", [])),
        checked_ago_ms=None if checked_at is None else (model["at"] - checked_at).total_seconds() * 1_000,
        # A check before the streams started has little to measure, which says nothing about them.
        is_checked_before_start=checked_at is not None and bool(starts) and checked_at < min(starts),
        refresh_s=REFRESH_S,
    )


def operator_page(
    model: Row,
    facts: Row,
    topology: Topology,
    name: str,
    past: PastMeasurements,
    bounds: Sequence[Mapping[str, object]],
) -> str:
    """Returns the page of the operator *name*, as HTML.

    Args:
        model: the page model, with `why` about the operator.
        facts: what `tidemark topology` shows.
        topology: the topology.
        name: the name of the operator.
        past: its history.
        bounds: the price of each bound, of which only a source has some.
    """
    operator = topology.operators[name]
    moving = next(row for row in facts["operators"] if row["operator"] == name)
    sub = next(sub for sub in topology.sub_topologies if operator in sub.operators)
    subjects = subjects_of(topology, name)
    # The lag and the backlog of an operator are those of the sources whose records reach it.
    sources = reached([name], topology.upstreams)
    return template("reports/pages/operator_page.html.j2").render(
        model=model,
        name=name,
        kind=operator.kind,
        operator=_operator(model["operators"][name], moving),
        moving=moving,
        read_by=topology.read_by[name],
        place=next((f"{word} {at}" for key, word in PLACES.items() if (at := getattr(operator, key, None))), None),
        stream=next(row for row in model["streams"] if row["sub_topology"] == sub.name),
        slas=[row for row in model["slas"]["rows"] if row["subject"] in subjects],
        # An incident stays open for a while after its SLA passes again.
        now_of={sla: now for alert in model["alerts"] for sla, now in alert["states"].items()},
        partitions=[row for row in model["partitions"] if row["source"] in sources],
        silent_groups=[row for row in model["silent_groups"] if row["subject"] in subjects],
        bounds=bounds,
        counted_as_late=COUNTED_AS_LATE,
        bound_ms=getattr(operator, "bound_ms", None),
        history=past,
        changes=concerning(past.changes, topology, name),
        charts=_charts(past, topology),
        unmeasured=_unmeasured(topology, name, latency_level(operator, sub.terminals())),
        refresh_s=REFRESH_S,
    )


def _unmeasured(topology: Topology, name: str, level: Level | None) -> str:
    """Returns why the operator *name* has no end-to-end latency, which is measured from *level* on, if it ever is."""
    if level is None:
        return (
            f"The end-to-end latency of {name} is not measured: it keeps no state, and its work counts at its readers."
        )
    if not topology.level.includes(level):
        return (
            f"The end-to-end latency of {name} is measured from level {level.value} on, and {topology.name} has level "
            f"{topology.level.value}."
        )
    return "No latency was measured in this time."


def history_page(topology: Topology, past: PastMeasurements, *, at_ms: int) -> str:
    """Returns the page with the history of *topology* until *at_ms*, epoch ms, as HTML."""
    return template("reports/pages/history_page.html.j2").render(
        topology=topology.name,
        history=past,
        at=utc(at_ms),
        changes=past.changes,
        charts=_charts(past, topology),
        refresh_s=REFRESH_S,
    )


def _charts(past: PastMeasurements, topology: Topology) -> dict[str, Markup]:
    """Draws the charts of *past*; a chart of which nothing was measured is empty."""
    where = past.interval, past.span.place_ms
    return {
        "latencies": latency_bands(past.latencies, *where, changes_by_operator(past.changes, topology)),
        "staleness": length_lines(past.staleness, *where),
        "budgets": share_lines(past.budgets, *where),
    }


def problem_page(detail: str, *, status: int, start: str, topology: str | None = None) -> str:
    """Returns a page with the reason of a problem, and the way back.

    The page refreshes itself if the problem may end by itself.

    Args:
        detail: the problem and its remedy.
        status: the HTTP status of the answer.
        start: the address of the start page.
        topology: a topology whose page is linked, too, if it has one.
    """
    # Other problems stay: if the page were loaded again, a reader would not see what was wrong with a form.
    refresh_s = REFRESH_S if status >= HTTPStatus.INTERNAL_SERVER_ERROR else None
    title = "Page not found" if status == HTTPStatus.NOT_FOUND else "This page cannot be shown"
    return template("reports/pages/problem_page.html.j2").render(
        title=title, detail=detail, start=start, topology=topology, refresh_s=refresh_s
    )


def _operator(standing: Row, moving: Row | None) -> Row:
    """Returns the values in the box of an operator.

    *standing* is its row in the page model, and *moving* its row in the facts, with the moving average.
    """
    # The latency of an input is 0 by definition, and was not measured.
    latency_ms = moving["moving_average_ms"] if moving and moving["upstreams"] else None
    is_down, stuck_ms = standing["verdict"] == PageVerdict.NOT_RUNNING, standing["stuck_ms"]
    verdict = standing["state"] if is_down else standing["verdict"] if stuck_ms is None else "stuck"
    word = standing["state"].replace("_", " ") if is_down else VERDICT_WORDS[standing["verdict"]]
    word = word if is_down or stuck_ms is None else f"stuck for {length(stuck_ms)}"
    broken = f": {', '.join(standing['slas'])}" if standing["slas"] else ""
    return {
        "latency_ms": latency_ms,
        "tooltip": f"moving average {length(latency_ms)}, {word}{broken}",
        "share": None,
        "verdict": verdict,
        "word": word,
    }
