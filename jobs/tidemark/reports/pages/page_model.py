"""Builds the page model, the state of a topology.

It describes an instant in one document for every reader. The start page, the topology page, the SLA page,
`tidemark status` and the JSON of Airflow's API server show it.
The names of the fields are a promise: docs/reports.md lists them. Lengths are ms, instants are timestamps in UTC.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from operator import itemgetter
from typing import Any

from tidemark.errors import InvalidArgument
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Grain, utc
from tidemark.model.topology import Topology
from tidemark.reports.paths.path_facts import PART_WORDS, Row, Tables, mostly_before_source, windows_with_paths
from tidemark.semantics.incidents import BROKEN
from tidemark.semantics.sla import Verdict
from tidemark.why.evidence.conditions import Condition, condition
from tidemark.why.evidence.facts import StreamFacts
from tidemark.why.evidence.findings import HARMLESS, NEVER_STARTED, NOTHING_WRONG, Trait, WhyFinding
from tidemark.why.walk import explain, scene

HOUR_MS = Grain.HOUR.length_ms
CHECKS_MISSED = 2
"""An SLA check counts as overdue after so many intervals of `check_every`."""
REPORT = re.compile(r"\d{4}-\d{2}-\d{2}[0-9TZ-]*")
"""Matches the name of a page about an interval, as in `page.name_of`."""

NEWEST_RESULT = """
    SELECT max(finished_at) AS newest_result_at
    FROM outcomes JOIN batches USING (topology, sub_topology, batch_id)
    WHERE topology = $1 AND operator IN (SELECT unnest($3::VARCHAR[]))
          AND emitted + passed + coalesce(repeated, 0) > 0 AND finished_at <= make_timestamptz($2 * 1000)
"""
SET_ASIDE = """
    SELECT coalesce(sum(quarantined), 0)::BIGINT AS quarantined, coalesce(sum(late), 0)::BIGINT AS late,
           coalesce(sum(quarantined) FILTER (is_new), 0)::BIGINT AS quarantined_last_hour,
           coalesce(sum(late) FILTER (is_new), 0)::BIGINT AS late_last_hour,
           coalesce(sum(records_in) FILTER (kind = 'source'), 0)::BIGINT AS records_in
    FROM (
        SELECT o.*, finished_at > make_timestamptz(($2 - $3) * 1000) AS is_new
        FROM outcomes AS o JOIN batches USING (topology, sub_topology, batch_id)
        WHERE topology = $1 AND finished_at <= make_timestamptz($2 * 1000)
    )
"""
NEWEST_CHECK = """
    SELECT sla, subject, measure, verdict, sla_results.said, culprit, held_by, observed_ms, warn_after_ms,
           error_after_ms, quiet, checked_at
    FROM sla_results WHERE topology = $1 AND checked_at <= make_timestamptz($2 * 1000)
    QUALIFY dense_rank() OVER (ORDER BY checked_at DESC, run_id DESC) = 1 ORDER BY sla
"""


class PageVerdict(StrEnum):
    """The verdict on a topology or an operator, the worst first."""

    UNREADABLE = "unreadable"
    """Its file is not valid.

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
    """Nothing is known to be wrong, and no SLA was measured lately."""
    ON_TIME = "on_time"
    """It keeps up, and every SLA that was measured holds."""


VERDICT_WORDS = {
    PageVerdict.UNREADABLE.value: "file not valid",
    PageVerdict.BROKEN.value: "SLA broken",
    PageVerdict.NOT_RUNNING.value: "not running",
    PageVerdict.WARN.value: "SLA warning",
    PageVerdict.LATE.value: "late",
    PageVerdict.QUIET.value: "no new records",
    PageVerdict.NOT_CHECKED.value: "not checked",
    PageVerdict.ON_TIME.value: "on time",
}
"""Verdicts for people."""
RUNNING = frozenset({Condition.RUNNING.value, Condition.CATCHING_UP.value, Condition.STARTING.value})
"""The states of a stream that is not stopped."""


def page_model(tables: Tables, layout: Layout, topology: Topology, *, at_ms: int) -> Row:
    """Returns *topology*'s state at *at_ms* of the drivers' clocks."""
    at = scene(topology, layout, at_ms)
    findings = explain(at)
    streams = [_stream(at.facts[sub.name], sub.name) for sub in topology.sub_topologies]
    slas = _slas(tables, topology, at_ms)
    # Findings come in the order of importance, but what is usual explains less than what is late.
    reasons = [finding for finding in findings if finding.cause is not NOTHING_WRONG]
    late = [finding for finding in reasons if not finding.cause.traits & HARMLESS]
    first = next(iter(late or reasons), None)
    return {
        "topology": topology.name,
        "at": utc(at_ms),
        "verdict": _topology_verdict(streams, slas, findings),
        "state": worst(map(itemgetter("state"), streams)),
        **_newest_result(tables, topology, at_ms),
        "cause": first.row if first else None,
        "causes": [finding.row for finding in findings],
        "streams": streams,
        "operators": _operators(topology, streams, slas, findings),
        "slas": slas,
        "path": _path(tables, topology, at_ms),
        **tables.ask(SET_ASIDE, [topology.name, at_ms, HOUR_MS]).objects[0],
        "report": newest_report(layout, topology.name),
    }


def unreadable(layout: Layout, topology: str, error: str, *, at_ms: int) -> Row:
    """Returns the state of a topology whose file is not valid.

    It has the *error* of the file and the streams at *at_ms*, epoch ms.
    """
    # Without the file, the streams are known from the control folders of their drivers.
    streams = []
    for path in sorted(layout.control(topology, "").glob("*")):
        if not path.name.startswith("."):
            facts = StreamFacts(layout.stream(topology, path.name), path, at_ms, trigger_ms=0)
            streams.append(_stream(facts, path.name))
    return {
        "topology": topology,
        "at": utc(at_ms),
        "verdict": PageVerdict.UNREADABLE.value,
        "state": worst([stream["state"] for stream in streams] or [Condition.NEVER_STARTED]),
        "error": error,
        "streams": streams,
        "report": newest_report(layout, topology),
    }


def worst(words: Iterable[str]) -> str:
    """Returns the worst of *words*, which are of PageVerdict or of Condition.

    >>> worst(["running", "drained"]), worst(["on_time", "warn"])
    ('drained', 'warn')
    """
    present, worst_first = set(words), map(str, [*PageVerdict, *Condition])
    return next(word for word in worst_first if word in present)


def newest_report(layout: Layout, topology: str) -> str | None:
    """Returns the name of the newest interval's page; None: no page."""
    # Names sort by time.
    names = (file.name.removesuffix(".html") for file in layout.report_pages(topology).glob("*.html"))
    return max((name for name in names if REPORT.fullmatch(name)), default=None)


def _stream(facts: StreamFacts, sub_topology: str) -> Row:
    """Returns the condition of a stream, and its driver's last heartbeat."""
    beat, state = facts.beat, condition(facts)
    newest = facts.batches.tail(1)
    return {
        "sub_topology": sub_topology,
        "state": state.value,
        "reason": beat.reason if beat else None,
        "last_heartbeat_at": utc(beat.at_ms) if beat else None,
        "since": utc(facts.started_ms) if beat else None,
        "last_batch_at": utc(newest["finished_at"].item()) if newest.height else None,
        "records_in": int(facts.batches["records_in"].sum()),
    }


def _newest_result(tables: Tables, topology: Topology, at_ms: int) -> Row:
    """Returns when a terminal operator last had a result, and its age.

    None: there was no result.
    """
    ((newest_at,),) = tables.ask(NEWEST_RESULT, [topology.name, at_ms, list(topology.terminals)]).rows
    age_ms = None if newest_at is None else at_ms - round(newest_at.timestamp() * 1000)
    return {"newest_result_at": newest_at, "newest_result_age_ms": age_ms}


def _slas(tables: Tables, topology: Topology, at_ms: int) -> Row:
    """Returns the newest check of the SLAs: its time, counts and rows."""
    rows = tables.ask(NEWEST_CHECK, [topology.name, at_ms]).objects
    checked_at = rows[0].pop("checked_at") if rows else None
    # All rows are of one check: its time is returned once.
    for row in rows[1:]:
        del row["checked_at"]
    age_ms = None if checked_at is None else at_ms - round(checked_at.timestamp() * 1000)
    is_overdue = age_ms is None or age_ms > CHECKS_MISSED * topology.check_every_ms
    return {"checked_at": checked_at, "is_overdue": is_overdue, **_counts(rows), "rows": rows}


def _counts(rows: Sequence[Row]) -> dict[str, int]:
    """Counts SLAs by their verdict."""
    counts = Counter(row["verdict"] for row in rows)
    broken = sum(counts[verdict] for verdict in BROKEN - {Verdict.WARN})
    return {"n": len(rows), "broken": broken, "warned": counts[Verdict.WARN], "unknown": counts[Verdict.UNKNOWN]}


def _topology_verdict(streams: Sequence[Row], slas: Row, findings: Sequence[WhyFinding]) -> str:
    """Returns the verdict on a topology."""
    causes = {finding.cause for finding in findings}
    is_measured = not slas["is_overdue"] and slas["n"] > slas["unknown"]
    # The worst verdict comes first, and the first that applies counts.
    rules = {
        PageVerdict.BROKEN: slas["broken"] > 0,
        PageVerdict.NOT_RUNNING: any(stream["state"] not in RUNNING for stream in streams),
        PageVerdict.WARN: slas["warned"] > 0,
        PageVerdict.LATE: any(not cause.traits & HARMLESS for cause in causes - {NEVER_STARTED}),
        PageVerdict.QUIET: any(Trait.QUIET in cause.traits for cause in causes),
        PageVerdict.NOT_CHECKED: not is_measured,
    }
    return next((standing for standing, holds in rules.items() if holds), PageVerdict.ON_TIME).value


def _operators(topology: Topology, streams: Sequence[Row], slas: Row, findings: Sequence[WhyFinding]) -> dict[str, Row]:
    """Returns the state of each operator, by its name.

    It has the verdict, the state of the stream, the broken SLAs about the operator, and the causes that name it.
    """
    states = {stream["sub_topology"]: stream["state"] for stream in streams}
    by_operator: dict[str, Row] = {}
    for sub in topology.sub_topologies:
        for operator in sub.operators:
            # An SLA of staleness is about the table of a sink.
            subjects = {operator.name, operator.result_table}
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
            }
    return by_operator


def _operator_verdict(state: str, slas: Sequence[Row], findings: Sequence[WhyFinding]) -> str:
    """Returns the verdict on one operator.

    *state* is that of its stream, *slas* are about it, and *findings* name it.
    """
    # An operator follows the rules of a topology with one stream.
    return _topology_verdict([{"state": state}], {"is_overdue": False, **_counts(slas)}, findings)


def _path(tables: Tables, topology: Topology, at_ms: int) -> Row | None:
    """Returns the newest window with a path, and when it was finished.

    Its leaf finished it then. `tidemark path` describes a window in the same way. None: no window has a path.
    """
    try:
        (window,) = windows_with_paths(tables, topology.name)
    except InvalidArgument:
        return None
    finished_ms = round(window["window_end"].timestamp() * 1000) + window["age_ms"]
    ago_ms = at_ms - finished_ms
    return {
        **window,
        "finished_at": utc(finished_ms),
        "finished_ago_ms": ago_ms,
        "is_current": ago_ms <= CHECKS_MISSED * topology.check_every_ms,
        "mostly_before_source": mostly_before_source(window),
        "spent": [*_parts_of_age(window)],
    }


def _parts_of_age(window: Mapping[str, Any]) -> Iterator[Row]:
    """Yields the parts of the whole age of *window*, longest first."""
    for part in window["parts"]:
        name = PART_WORDS.get(part["kind"], part["operator"])
        yield {"part": f"{name} ({part['input']})" if part["input"] else name, "kind": part["kind"], "ms": part["ms"]}
