"""Builds the page model, the state of a topology.

It describes an instant in one document for every reader. The start page, the topology page, the SLA page,
`tidemark status` and the JSON of Airflow's API server show it.
The names of the fields are a promise: docs/reports.md lists them. Lengths are ms, instants are timestamps in UTC.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from operator import itemgetter
from typing import Any

from tidemark.collecting import names_in, present
from tidemark.errors import InvalidArgument
from tidemark.facts.alerts import budgets, open_alerts, silent_groups
from tidemark.facts.answers import Row, Tables
from tidemark.facts.fact_tables import RECENT_MS, FactTables, stored_in
from tidemark.facts.path_facts import windows_with_paths
from tidemark.facts.stream_facts import StreamFacts
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Grain, utc
from tidemark.model.sla_spec import OF_LATENESS
from tidemark.model.topology import Topology
from tidemark.reports.pages.live_path import known_ms, live_path
from tidemark.reports.pages.partitions import partitions
from tidemark.reports.pages.scenes import scene_of
from tidemark.reports.paths.path_text import PART_WORDS, mostly_before_source
from tidemark.reports.paths.window_paths import STANDS_STILL
from tidemark.reports.promises import Promises
from tidemark.semantics.incidents import BROKEN
from tidemark.semantics.liveness import WORKS, Liveness
from tidemark.semantics.sla import Verdict
from tidemark.storage.delta.data_files import naming_damage
from tidemark.why.causes.drivers import DRAINED, FINISHED
from tidemark.why.evidence.findings import HARMLESS, NEVER_STARTED, NOTHING_WRONG, Trait, WhyFinding
from tidemark.why.evidence.snapshot import Scene
from tidemark.why.walk import Walk, is_harmless

HOUR_MS = Grain.HOUR.length_ms
CHECKS_MISSED = 2
"""An SLA check counts as overdue after so many intervals of `check_every`."""
REPORT = re.compile(r"\d{4}-\d{2}-\d{2}[0-9TZ-]*")
"""Matches the name of a page about an interval, as in `page.name_of`."""

NEWEST_RESULT = """
    SELECT max(batches.finished_at) AS newest_result_at
    FROM operator_batches JOIN batches USING (topology, sub_topology, batch_id)
    WHERE topology = $1 AND operator IN (SELECT unnest($3::VARCHAR[]))
          AND emitted + passed + coalesce(repeated, 0) > 0 AND batches.finished_at <= make_timestamptz($2 * 1000)
"""
SET_ASIDE = """
    SELECT coalesce(sum(quarantined), 0)::BIGINT AS quarantined, coalesce(sum(late), 0)::BIGINT AS late,
           coalesce(sum(quarantined) FILTER (is_new), 0)::BIGINT AS quarantined_last_hour,
           coalesce(sum(late) FILTER (is_new), 0)::BIGINT AS late_last_hour,
           coalesce(sum(records_in) FILTER (operator IN (SELECT unnest($4::VARCHAR[]))), 0)::BIGINT AS records_in
    FROM (
        SELECT o.*, batches.finished_at > make_timestamptz(($2 - $3) * 1000) AS is_new
        FROM operator_batches AS o JOIN batches USING (topology, sub_topology, batch_id)
        WHERE topology = $1 AND batches.finished_at <= make_timestamptz($2 * 1000)
    )
"""
NEWEST_CHECK = """
    SELECT sla, subject, measure, verdict, sla_results.message, culprit, blocked_by, observed_ms, warn_after_ms,
           error_after_ms, excluded_because, objective, target, threshold_ms, window_ms, budget_left,
           stale_groups, checked_at
    FROM sla_results WHERE topology = $1 AND checked_at <= make_timestamptz($2 * 1000)
    QUALIFY dense_rank() OVER (ORDER BY checked_at DESC, run_id DESC) = 1 ORDER BY sla
"""


class PageVerdict(StrEnum):
    """The verdict on a topology or an operator, the worst first."""

    UNREADABLE = "unreadable"
    """Its file is not valid, or one of its tables is damaged.

    Running streams use the file that they were started with.
    """
    BROKEN = "broken"
    """An SLA is broken by the newest check."""
    NOT_RUNNING = "not_running"
    """A stream failed, hangs, was drained or was never started.

    It is one that the topology or operator needs.
    """
    WARN = "warn"
    """An SLA is above the threshold of its warning."""
    LATE = "late"
    """Results are late for a cause that `why` names."""
    QUIET = "quiet"
    """It keeps up, and no records come in."""
    NOT_CHECKED = "not_checked"
    """Nothing is known to be wrong, and no SLA about the age of results was measured lately."""
    ON_TIME = "on_time"
    """It keeps up, and every SLA that was measured holds; one of them is about the age of results."""


NEEDS_SOMEONE = frozenset(
    {PageVerdict.UNREADABLE, PageVerdict.BROKEN, PageVerdict.NOT_RUNNING, PageVerdict.WARN, PageVerdict.LATE}
)
"""The verdicts after which somebody should look."""
VERDICT_WORDS = {
    PageVerdict.UNREADABLE.value: "file not valid",
    PageVerdict.BROKEN.value: "SLA broken",
    PageVerdict.NOT_RUNNING.value: "not running",
    PageVerdict.WARN.value: "SLA warning",
    PageVerdict.LATE.value: "late",
    PageVerdict.QUIET.value: "no new records",
    PageVerdict.NOT_CHECKED.value: "age not judged",
    PageVerdict.ON_TIME.value: "on time",
}
"""Verdicts for people."""


def page_model(
    tables: Tables, layout: Layout, topology: Topology, promised: Promises, *, at_ms: int, operator: str | None = None
) -> Row:
    """Returns *topology*'s state at *at_ms* of the drivers' clocks.

    Its newest window is judged by what is *promised*. With an *operator*, `why` has the findings about it.

    Raises UnreadableFile if a table is damaged.
    """
    at = scene_of(tables, layout, topology, at_ms=at_ms)
    with naming_damage(at.tables):
        return _page_model(tables, layout, at, promised, operator)


def _page_model(tables: Tables, layout: Layout, at: Scene, promised: Promises, operator: str | None) -> Row:
    topology, at_ms = at.topology, at.at_ms
    walk = Walk(at)
    findings = walk.explain()
    alerts = open_alerts(tables, topology.name, at_ms=at_ms)
    slas = _slas(tables, topology, at_ms, alerts)
    # Findings come in the order of importance, but what is usual explains less than what is late.
    reasons = [finding for finding in findings if finding.cause is not NOTHING_WRONG]
    # What the facts of a drained stream show is from before, and waits for its start.
    drained = {finding.sub_topology for finding in reasons if finding.cause in {DRAINED, FINISHED}}
    faults = (finding for finding in reasons if not finding.cause.traits & HARMLESS)
    late = [finding for finding in faults if finding.sub_topology not in drained]
    culprits = {finding.sub_topology: finding.operator for finding in reversed(late)}
    of_partitions = partitions(at, findings)
    streams = []
    for sub in topology.sub_topologies:
        unread = present(row["unread"] for row in of_partitions if row["sub_topology"] == sub.name)
        streams.append(_stream(at.facts[sub.name], sub.name, culprits.get(sub.name), unread))
    verdict = _topology_verdict(streams, slas, findings)
    quiet = [each for each in reasons if verdict == PageVerdict.QUIET and Trait.QUIET in each.cause.traits]
    first = next(iter(late or quiet or reasons), None)
    path = _path(tables, at, promised)
    return {
        "topology": topology.name,
        "at": utc(at_ms),
        "verdict": verdict,
        "state": worst(map(itemgetter("state"), streams)),
        **_newest_result(tables, topology, at_ms),
        "cause": first.row if first else None,
        "causes": [finding.row for finding in findings],
        "alerts": alerts,
        "budgets": budgets(slas["rows"]),
        "streams": streams,
        "partitions": of_partitions,
        "silent_groups": silent_groups(slas["rows"], at_ms=at_ms),
        "operators": _operators(topology, streams, slas, findings, path),
        "slas": slas,
        "path": path,
        **tables.ask(SET_ASIDE, [topology.name, at_ms, HOUR_MS, names_in(topology.outside_sources)]).objects[0],
        "report": newest_report(layout, topology.name),
        **({} if operator is None else {"why": [finding.row for finding in walk.explain(operator)]}),
    }


def broken_slas(model: Row) -> str | None:
    """Returns what the newest check measured of the broken SLAs in the page *model*; None: none is broken.

    One with a warning is named as such: the verdict `broken` does not count it.
    """
    broken = [row for row in model["slas"]["rows"] if row["verdict"] in BROKEN]
    if not broken:
        return None
    # With the verdict `broken` the SLAs in error come before those with a warning.
    worst_sla, *others = sorted(broken, key=lambda row: row["verdict"] == Verdict.WARN)
    also = [row["sla"] for row in others if row["verdict"] != Verdict.WARN]
    warned = [row["sla"] for row in others if row["verdict"] == Verdict.WARN]
    more = f"; also broken: {', '.join(also)}" if also else ""
    more += f"; with a warning: {', '.join(warned)}" if warned else ""
    return f"{worst_sla['sla']}: {worst_sla['message']}{more}"


def told_cause(model: Row) -> Row | None:
    """Returns the cause that is told beside the verdict of the page *model*; None: none is.

    What is usual for a healthy stream is no reason for a broken SLA; but that a stream is drained is told with it.
    """
    cause: Row | None = model["cause"]
    is_broken = any(row["verdict"] in BROKEN for row in model["slas"]["rows"])
    if cause and is_broken and is_harmless(cause["cause"]) and model["state"] in WORKS:
        return None
    return cause


def unreadable(layout: Layout, topology: str, error: str, *, at_ms: int) -> Row:
    """Returns the state of a topology whose file is not valid.

    It has the *error* of the file and the streams at *at_ms*, epoch ms.
    """
    # Without the file, the streams are known from the control folders of their drivers.
    streams = []
    for path in sorted(layout.control(topology, "").glob("*")):
        if not path.name.startswith("."):
            home = layout.stream(topology, path.name)
            tables = FactTables(stored_in(home), at_ms, recent_ms=RECENT_MS)
            facts = StreamFacts(tables, home, path, trigger_ms=0)
            streams.append(_stream(facts, path.name))
    return {
        "topology": topology,
        "at": utc(at_ms),
        "verdict": PageVerdict.UNREADABLE.value,
        "state": worst([stream["state"] for stream in streams] or [Liveness.NEVER_STARTED]),
        "error": error,
        "streams": streams,
        "report": newest_report(layout, topology),
    }


def worst(words: Iterable[str]) -> str:
    """Returns the worst of *words*, which are of PageVerdict or of Liveness.

    >>> worst(["running", "drained"]), worst(["on_time", "warn"])
    ('drained', 'warn')
    """
    present, worst_first = set(words), map(str, [*PageVerdict, *Liveness])
    return next(word for word in worst_first if word in present)


def newest_report(layout: Layout, topology: str) -> str | None:
    """Returns the name of the newest interval's page; None: no page."""
    # Names sort by time.
    names = (file.name.removesuffix(".html") for file in layout.report_pages(topology).glob("*.html"))
    return max((name for name in names if REPORT.fullmatch(name)), default=None)


def _stream(facts: StreamFacts, sub_topology: str, culprit: str | None = None, unread: Sequence[int] = ()) -> Row:
    """Returns the state of a stream, and its driver's last heartbeat.

    *culprit* is the operator of the first finding about it that is a fault, *unread* has the records that the newest
    batch left unread in each partition. The number in a heartbeat is older; it counts where an estimate is made of it.
    """
    beat, state = facts.driver.beat, facts.driver.liveness
    newest = facts.tables.batches.tail(1)
    behind = beat.records_behind if beat else None
    if unread and (beat is None or beat.eta_at_ms is None):
        behind = sum(unread)
    return {
        "sub_topology": sub_topology,
        "state": state.value,
        "reason": beat.reason if beat else None,
        "last_heartbeat_at": utc(beat.at_ms) if beat else None,
        "since": utc(facts.driver.started_ms) if beat else None,
        "last_batch_at": utc(newest["finished_at"].item()) if newest.height else None,
        "records_in": int(facts.tables.every_batch["records_in"].sum()),
        "records_behind": behind,
        "arrival_per_s": beat.arrival_per_s if beat else None,
        "working_per_s": beat.working_per_s if beat else None,
        "culprit": culprit,
        "eta_at": utc(beat.eta_at_ms) if beat and beat.eta_at_ms is not None else None,
    }


def _newest_result(tables: Tables, topology: Topology, at_ms: int) -> Row:
    """Returns when a terminal operator last had a result, and its age.

    None: there was no result.
    """
    ((newest_at,),) = tables.ask(NEWEST_RESULT, [topology.name, at_ms, list(topology.terminals)]).rows
    age_ms = None if newest_at is None else at_ms - round(newest_at.timestamp() * 1000)
    return {"newest_result_at": newest_at, "newest_result_age_ms": age_ms}


def _slas(tables: Tables, topology: Topology, at_ms: int, alerts: Sequence[Row]) -> Row:
    """Returns the newest check of the SLAs: its time, counts and rows.

    Those that are `recovering` hold again, and belong to *alerts*, which are open.
    """
    rows = tables.ask(NEWEST_CHECK, [topology.name, at_ms]).objects
    checked_at = rows[0].pop("checked_at") if rows else None
    # All rows are of one check: its time is returned once.
    for row in rows[1:]:
        del row["checked_at"]
    age_ms = None if checked_at is None else at_ms - round(checked_at.timestamp() * 1000)
    is_overdue = age_ms is None or age_ms > CHECKS_MISSED * topology.check_every_ms
    in_alerts = {sla for alert in alerts for sla in alert["slas"]}
    recovering = sum(row["verdict"] == Verdict.PASS and row["sla"] in in_alerts for row in rows)
    return {"checked_at": checked_at, "is_overdue": is_overdue, **_counts(rows), "recovering": recovering, "rows": rows}


def _counts(rows: Sequence[Row]) -> dict[str, int]:
    """Counts SLAs by their verdict."""
    counts = Counter(row["verdict"] for row in rows)
    broken = sum(counts[verdict] for verdict in BROKEN - {Verdict.WARN})
    return {"n": len(rows), "broken": broken, "warned": counts[Verdict.WARN], "unknown": counts[Verdict.UNKNOWN]}


def _topology_verdict(streams: Sequence[Row], slas: Row, findings: Sequence[WhyFinding]) -> str:
    """Returns the verdict on a topology."""
    causes = {finding.cause for finding in findings}
    ages = (row["verdict"] for row in slas["rows"] if row["measure"] in OF_LATENESS)
    is_measured = not slas["is_overdue"] and any(verdict != Verdict.UNKNOWN for verdict in ages)
    # The worst verdict comes first, and the first that applies counts.
    rules = {
        PageVerdict.BROKEN: slas["broken"] > 0,
        PageVerdict.NOT_RUNNING: any(stream["state"] not in WORKS for stream in streams),
        PageVerdict.WARN: slas["warned"] > 0,
        PageVerdict.LATE: any(not cause.traits & HARMLESS for cause in causes - {NEVER_STARTED}),
        PageVerdict.QUIET: any(Trait.QUIET in cause.traits for cause in causes),
        PageVerdict.NOT_CHECKED: not is_measured,
    }
    return next((standing for standing, holds in rules.items() if holds), PageVerdict.ON_TIME).value


def _operators(
    topology: Topology, streams: Sequence[Row], slas: Row, findings: Sequence[WhyFinding], path: Row | None
) -> dict[str, Row]:
    """Returns the state of each operator, by its name.

    It has the verdict, the state of the stream, the broken SLAs about the operator, the causes that name it, and for
    how long it has been stuck by the window of *path*, ms.
    """
    states = {stream["sub_topology"]: stream["state"] for stream in streams}
    steps = [*path["steps"], *path["off_path"]] if path and path["is_current"] else []
    stuck_ms = {step["operator"]: step["latency_ms"] for step in steps if step["state"] in STANDS_STILL}
    by_operator: dict[str, Row] = {}
    for sub in topology.sub_topologies:
        for operator in sub.operators:
            subjects = subjects_of(topology, operator.name)
            own = [row for row in slas["rows"] if row["subject"] in subjects]
            here = []
            for finding in findings:
                if operator.name in (finding.operator, finding.input) and finding.cause is not NOTHING_WRONG:
                    here.append(finding)
            by_operator[operator.name] = {
                "verdict": _operator_verdict(states[sub.name], own, here),
                "state": states[sub.name],
                "slas": [row["sla"] for row in own if row["verdict"] in BROKEN],
                "causes": list(dict.fromkeys(str(finding.cause) for finding in here)),
                "stuck_ms": stuck_ms.get(operator.name),
            }
    return by_operator


def subjects_of(topology: Topology, operator: str) -> list[str]:
    """Returns the subjects of SLAs about *operator*: its name, and its table."""
    # An SLA of staleness is about the table of a sink.
    table = topology.operators[operator].result_table
    return [operator, *([table] if table and table != operator else [])]


def _operator_verdict(state: str, slas: Sequence[Row], findings: Sequence[WhyFinding]) -> str:
    """Returns the verdict on one operator.

    *state* is that of its stream, *slas* are about it, and *findings* name it.
    """
    # An operator follows the rules of a topology with one stream.
    return _topology_verdict([{"state": state}], {"is_overdue": False, **_counts(slas), "rows": slas}, findings)


def _path(tables: Tables, at: Scene, promised: Promises) -> Row | None:
    """Returns the newest window with a path, and when it was finished.

    `tidemark path` describes a window in the same way. A window that no report has seen yet has `is_live`, and nobody
    is blamed for it. None: no window has a path.
    """
    topology, at_ms = at.topology, at.at_ms
    window, is_live = live_path(tables, at, promised), True
    with suppress(InvalidArgument):
        (reported,) = windows_with_paths(tables, topology.name)
        # Of one window the report knows more, but the parts only of one that every operator has finished.
        if window is None or reported["window_end"] >= window["window_end"]:
            is_same = window is not None and reported["window_end"] == window["window_end"]
            parts = reported["parts"] or (window["parts"] if window and is_same else [])
            window, is_live = {**reported, "parts": parts}, False
    if window is None:
        return None
    finished_ms = known_ms(window)
    ago_ms = at_ms - finished_ms
    return {
        **window,
        "finished_at": utc(finished_ms),
        "finished_ago_ms": ago_ms,
        "is_live": is_live,
        "is_current": ago_ms <= CHECKS_MISSED * topology.check_every_ms,
        "mostly_before_source": mostly_before_source(window),
        "spent": [*_parts_of_age(window)],
    }


def _parts_of_age(window: Mapping[str, Any]) -> Iterator[Row]:
    """Yields the parts of the whole age of *window*, longest first."""
    for part in window["parts"]:
        name = PART_WORDS.get(part["kind"], part["operator"])
        yield {"part": f"{name} ({part['input']})" if part["input"] else name, "kind": part["kind"], "ms": part["ms"]}
