"""Builds the page model: one document with the state of a topology at an instant.

The start page, the topology page, the SLA page, `tidemark status` and the JSON of Airflow's API server show it. The
names of the fields are a promise: docs/reports.md lists them. Lengths are ms, instants are timestamps in UTC.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tidemark.account.warehouse import AccountTables
from tidemark.facts.alerts import budgets, open_alerts, silent_groups
from tidemark.facts.answers import FINISHED, Row, Tables
from tidemark.facts.fact_tables import RECENT_MS, FactTables, stored_in
from tidemark.facts.stream_facts import StreamFacts
from tidemark.facts.topology_changes import DECIDED, topology_changes
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Grain, Interval, utc
from tidemark.model.settings.retention import DAY_MS
from tidemark.model.topology import Topology
from tidemark.reports.pages.topology_state import (
    CHECKS_MISSED,
    PageVerdict,
    TopologyState,
    counts_of,
    stream_row,
    verdict_of,
    worst,
)
from tidemark.reports.paths.live_path import current_path, known_ms
from tidemark.reports.paths.path_text import part_text
from tidemark.reports.promises import Promises
from tidemark.selection import names_in
from tidemark.semantics.critical_path import STANDS_STILL
from tidemark.semantics.incidents import BROKEN
from tidemark.semantics.liveness import Liveness
from tidemark.semantics.sla import Verdict
from tidemark.storage.delta.data_files import naming_damage
from tidemark.why.evidence.findings import NO_REASONS, WhyFinding

HOUR_MS = Grain.HOUR.length_ms
CHANGED_MS = 30 * DAY_MS
"""How far back from its instant a page lists changes and decisions, ms."""
REPORT = re.compile(r"\d{4}-\d{2}-\d{2}[0-9TZ-]*")
"""Matches the name of a page about an interval, as in `page.name_of`."""

NEWEST_RESULT = f"""
    SELECT max(batches.finished_at) AS newest_result_at
    FROM operator_batches JOIN {FINISHED} USING (topology, sub_topology, batch_id)
    WHERE operator IN (SELECT unnest($3::VARCHAR[])) AND emitted + passed + coalesce(repeated, 0) > 0
"""
SET_ASIDE = f"""
    SELECT coalesce(sum(quarantined), 0)::BIGINT AS quarantined, coalesce(sum(late), 0)::BIGINT AS late,
           coalesce(sum(quarantined) FILTER (is_new), 0)::BIGINT AS quarantined_last_hour,
           coalesce(sum(late) FILTER (is_new), 0)::BIGINT AS late_last_hour,
           coalesce(sum(records_in) FILTER (operator IN (SELECT unnest($4::VARCHAR[]))), 0)::BIGINT AS records_in
    FROM (
        SELECT o.*, batches.finished_at > make_timestamptz(($2 - $3) * 1000) AS is_new
        FROM operator_batches AS o JOIN {FINISHED} USING (topology, sub_topology, batch_id)
    )
"""


def page_model(
    tables: Tables, layout: Layout, topology: Topology, promised: Promises, *, at_ms: int, operator: str | None = None
) -> Row:
    """Returns the state of *topology* at *at_ms* of the drivers' clocks, as one document.

    Its newest window is judged by what is *promised*. If an *operator* is named, `why` has the findings about it.

    Raises UnreadableFile if a table is damaged.
    """
    return document(tables, TopologyState(tables.stored, layout, topology, at_ms=at_ms), promised, operator)


def document(tables: Tables, state: TopologyState, promised: Promises, operator: str | None = None) -> Row:
    """Returns the page model of a *state* of the same *tables*, see `page_model`."""
    with naming_damage(state.scene.tables):
        return _document(tables, state, promised, operator)


def line_of(tables: Tables, state: TopologyState) -> Row:
    """Returns the fields of the page model that a line of the start page shows, of a *state* of the same *tables*."""
    topology, at_ms = state.topology, state.at_ms
    with naming_damage(state.scene.tables):
        alerts = open_alerts(tables, topology.name, at_ms=at_ms)
        return {
            **state.summary(),
            "at": utc(at_ms),
            **_newest_result(tables, topology, at_ms),
            "alerts": alerts,
            "slas": _with_recovering(state.slas, alerts),
            "report": newest_report(state.layout, topology.name),
        }


def _document(tables: Tables, state: TopologyState, promised: Promises, operator: str | None) -> Row:
    topology, at_ms, findings = state.topology, state.at_ms, state.findings
    alerts = open_alerts(tables, topology.name, at_ms=at_ms)
    slas = _with_recovering(state.slas, alerts)
    path = _path(tables, state, promised)
    lately = Interval(at_ms - CHANGED_MS, at_ms + 1)
    return {
        "topology": topology.name,
        "at": utc(at_ms),
        "verdict": state.verdict,
        "state": state.state,
        **_newest_result(tables, topology, at_ms),
        "cause": state.cause,
        "causes": [finding.row for finding in state.about()],
        "alerts": alerts,
        "budgets": budgets(slas["rows"]),
        "streams": state.streams,
        "partitions": state.partitions,
        "silent_groups": silent_groups(slas["rows"], checked_at=slas["checked_at"]),
        "operators": _operators(topology, state.streams, slas, findings, path),
        "slas": slas,
        "path": path,
        **tables.ask(SET_ASIDE, [topology.name, at_ms, HOUR_MS, names_in(topology.outside_sources)]).objects[0],
        "report": newest_report(state.layout, topology.name),
        "changes": [change.row for change in reversed(topology_changes(tables, topology.name, lately))],
        "decisions": tables.ask(DECIDED, [topology.name, lately.start_ms, lately.end_ms]).objects,
        **({} if operator is None else {"why": [finding.row for finding in state.about(operator)]}),
    }


def unreadable(layout: Layout, topology: str, error: str, *, at_ms: int) -> Row:
    """Returns the page model of a topology without a valid file: the *error*, and the streams at *at_ms*, epoch ms."""
    # Without the file, the streams are known from the control folders of their drivers.
    streams = []
    for path in sorted(layout.control(topology, "").glob("*")):
        if not path.name.startswith("."):
            home = layout.stream(topology, path.name)
            tables = FactTables(stored_in(home), at_ms, recent_ms=RECENT_MS)
            facts = StreamFacts(tables, home, path, trigger_ms=0)
            # A table of the stream may be damaged.
            behind = facts.driver.beat.records_behind if facts.driver.beat else None
            streams.append(stream_row(facts, path.name, behind=behind))
    return {
        "topology": topology,
        "at": utc(at_ms),
        "verdict": PageVerdict.UNREADABLE.value,
        "state": worst([stream["state"] for stream in streams] or [Liveness.NEVER_STARTED]),
        "error": error,
        "streams": streams,
        "report": newest_report(layout, topology),
    }


def newest_report(layout: Layout, topology: str) -> str | None:
    """Returns the name of the page about the newest interval, or None if there is no page."""
    # Names sort by time.
    names = (file.name.removesuffix(".html") for file in layout.report_pages(topology).glob("*.html"))
    return max((name for name in names if REPORT.fullmatch(name)), default=None)


def _newest_result(tables: Tables, topology: Topology, at_ms: int) -> Row:
    """Returns when a terminal operator last gave a result, and the age of that result, or None for both."""
    ((newest_at,),) = tables.ask(NEWEST_RESULT, [topology.name, at_ms, list(topology.terminals)]).rows
    age_ms = None if newest_at is None else at_ms - round(newest_at.timestamp() * 1000)
    return {"newest_result_at": newest_at, "newest_result_age_ms": age_ms}


def _with_recovering(slas: Row, alerts: Sequence[Row]) -> Row:
    """Returns *slas* with the number of those that hold again while one of *alerts* about them is still open."""
    in_alerts = {sla for alert in alerts for sla in alert["slas"]}
    rows = slas["rows"]
    recovering = sum(row["verdict"] == Verdict.PASS and row["sla"] in in_alerts for row in rows)
    return {**slas, "recovering": recovering}


def _operators(
    topology: Topology, streams: Sequence[Row], slas: Row, findings: Sequence[WhyFinding], path: Row | None
) -> dict[str, Row]:
    """Returns the state of each operator, by its name.

    `slas` are the broken SLAs about the operator, and `causes` those that name it. `stuck_ms` is how long it has been
    stuck by the window of *path*.
    """
    states = {stream["sub_topology"]: stream["state"] for stream in streams}
    steps = [*path["steps"], *path["off_path"]] if path and path["is_current"] else []
    stuck_ms = {step["operator"]: step["latency_ms"] for step in steps if step["state"] in STANDS_STILL}
    by_operator: dict[str, Row] = {}
    for sub in topology.sub_topologies:
        for operator in sub.operators:
            subjects = subjects_of(topology, operator.name)
            slas_about = [row for row in slas["rows"] if row["subject"] in subjects]
            naming = []
            for finding in findings:
                if operator.name in (finding.operator, finding.input) and finding.cause not in NO_REASONS:
                    naming.append(finding)
            by_operator[operator.name] = {
                "verdict": _operator_verdict(states[sub.name], slas_about, naming),
                "state": states[sub.name],
                "slas": [row["sla"] for row in slas_about if row["verdict"] in BROKEN],
                "causes": list(dict.fromkeys(str(finding.cause) for finding in naming)),
                "stuck_ms": stuck_ms.get(operator.name),
            }
    return by_operator


def subjects_of(topology: Topology, operator: str) -> list[str]:
    """Returns the subjects of SLAs about *operator*: its name, and its table."""
    # An SLA of staleness is about the table of a sink.
    table = topology.operators[operator].result_table
    return [operator, *([table] if table and table != operator else [])]


def _operator_verdict(state: str, slas: Sequence[Row], findings: Sequence[WhyFinding]) -> str:
    # An operator follows the rules of a topology with one stream.
    return verdict_of([{"state": state}], {"is_overdue": False, **counts_of(slas), "rows": slas}, findings)


def _path(tables: Tables, state: TopologyState, promised: Promises) -> Row | None:
    """Returns the window that `current_path` chooses, with when it was finished; None if no window has a path."""
    account = AccountTables(state.layout, state.topology, state.stored)
    window = current_path(tables, account, state.at_ms, promised)
    if window is None:
        return None
    finished_ms = known_ms(window)
    ago_ms = state.at_ms - finished_ms
    is_finished = window["state"] not in STANDS_STILL
    return {
        **window,
        "finished_at": utc(finished_ms),
        "finished_ago_ms": ago_ms,
        "is_finished": is_finished,
        "is_current": not is_finished or ago_ms <= CHECKS_MISSED * state.topology.check_every_ms,
        "spent": [{"part": part_text(part), **part} for part in window["parts"]],
    }
