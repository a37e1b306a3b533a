"""The critical paths that the reports have found, one object per window, for people, programs and pages (ring 2).

The names of the fields are a promise: docs/reports.md has them. Lengths are whole ms, instants timestamps in UTC.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from tidemark.errors import InvalidArgument
from tidemark.semantics.blame import AgeCause
from tidemark.semantics.critical_path import Path, State, Step, path_to
from tidemark.spec.intervals import iso

Row = dict[str, Any]


class Rows(Protocol):
    """What a query gives."""

    @property
    def columns(self) -> Sequence[str]:
        """The names of its columns."""

    @property
    def rows(self) -> Sequence[Sequence[Any]]:
        """Its rows."""

    @property
    def objects(self) -> list[Row]:
        """Each row by column name."""


class Tables(Protocol):
    """What answers SQL over a warehouse."""

    @property
    def tables(self) -> Mapping[str, Any]:
        """The Delta tables that have been written, by name."""

    def ask(self, text: str, parameters: Sequence[Any] = ()) -> Rows:
        """The answer to *text*, one statement that reads."""


PART_WORDS = {
    AgeCause.BOUND: "the source's bound",
    AgeCause.BLOCKING_PARTITION: "a partition that blocked the watermark",
    AgeCause.BACKLOG: "a backlog (records that waited unread)",
    AgeCause.DRIVER_RESTARTED: "a driver that restarted",
    AgeCause.LATE_PRODUCER: "a producer that wrote late",
    AgeCause.TRIGGER: "waiting for a trigger",
    AgeCause.WAITING: "waiting for a driver",
    AgeCause.QUEUED: "waiting for the journal",
}
"""The parts of a window's age in which no operator worked, for people."""
BEFORE_SOURCE = frozenset(
    {
        AgeCause.BOUND,
        AgeCause.BLOCKING_PARTITION,
        AgeCause.BACKLOG,
        AgeCause.DRIVER_RESTARTED,
        AgeCause.LATE_PRODUCER,
    }
)
"""The parts that lie before a source has finished the window."""
FINISHED_MS = "epoch_ms(window_end) + before_source_ms + latency_ms"
"""Of a row of critical_paths: when the window came to the end of its path, epoch ms."""
WINDOWS = """
    SELECT window_start, window_end, state, path AS path_text, leaf, latency_ms, waited_ms, queued_ms,
           latency_ms - waited_ms - queued_ms AS worked_ms, before_source_ms,
           before_source_ms + latency_ms AS age_ms, skew_error_ms, sla_ms, over_sla,
           moving_average_ms, moving_average_path
    FROM critical_paths
    WHERE topology = $1 AND latency_ms IS NOT NULL
          AND coalesce(window_start <= make_timestamptz($2 * 1000) AND window_end > make_timestamptz($2 * 1000), true)
          AND coalesce(window_end >= make_timestamptz($3 * 1000) AND window_end < make_timestamptz($4 * 1000), true)
    ORDER BY window_end DESC LIMIT $5
"""
STEPS = """
    SELECT window_end, operator, step, sub_topology, kind, slowest_upstream, latency_ms, waited_ms, queued_ms,
           worked_ms, promised_ms, share, slack_ms, state, slowest_task, behind_tasks_ms, hot_key, hot_share
    FROM critical_path_steps WHERE topology = $1 AND window_end IN (SELECT unnest($2::TIMESTAMPTZ[]))
    ORDER BY step NULLS LAST, operator
"""
LEAVES = """
    SELECT window_end, leaf, source, latency_ms, behind_ms, before_source_ms
    FROM critical_path_leaves WHERE topology = $1 AND window_end IN (SELECT unnest($2::TIMESTAMPTZ[]))
    ORDER BY behind_ms, leaf
"""
PARTS = """
    SELECT window_end, subject, operator, kind, input, ms, usual_ms
    FROM window_parts WHERE topology = $1 AND window_end IN (SELECT unnest($2::TIMESTAMPTZ[]))
    ORDER BY ms DESC, operator
"""
BLAME = """
    SELECT interval_end AS window_end, rank, operator, kind, input, no_history, excess_ms, used_ms, usual_ms, share,
           usual_share
    FROM critical_path_blame
    WHERE topology = $1 AND grain = 'window' AND interval_end IN (SELECT unnest($2::TIMESTAMPTZ[]))
    ORDER BY rank, operator
"""
CLOSED = """
    SELECT count(*) AS seen, count(latency_ms) AS closed, min(window_start) FILTER (latency_ms IS NOT NULL) AS first_at,
           max(window_end) FILTER (latency_ms IS NOT NULL) AS last_at
    FROM critical_paths WHERE topology = $1
"""


def windows_with_paths(
    tables: Tables, topology: str, *, at_ms: int | None = None, interval: tuple[int, int] | None = None, last: int = 1
) -> list[Row]:
    """The *last* closed windows of *topology*, oldest first: their paths.

    Each has `steps`, `off_path`, `leaves`, `parts` of its age at its leaf, and `blame`.
    With *at_ms* the one that holds this instant of record time; with *interval* those that end in it, epoch ms.

    Raises:
        InvalidArgument: there is none; it says what to do.
    """
    start_ms, end_ms = interval or (None, None)
    found = tables.ask(WINDOWS, [topology, at_ms, start_ms, end_ms, last]).objects[::-1]
    if not found:
        raise InvalidArgument(_why_none(tables, topology, at_ms))
    ends = [window["window_end"] for window in found]
    steps, leaves, parts, blame = (
        _by_window(tables.ask(text, [topology, ends]).objects) for text in (STEPS, LEAVES, PARTS, BLAME)
    )
    return [
        _window(window, steps[end], leaves[end], parts[end], blame[end])
        for window, end in zip(found, ends, strict=True)
    ]


def physical_name(step: Mapping[str, Any]) -> str:
    """Return the operator of *step*, with its task that finished last: `carrier_state[shard 3]`."""
    operator, task = step["operator"], step["slowest_task"]
    return f"{operator}[{task}]" if task else str(operator)


def task_text(step: Mapping[str, Any]) -> str | None:
    """Return how late the slowest task of *step* was, and of which key most of its records; None: it has one task."""
    if not step["slowest_task"]:
        return None
    late = f"{physical_name(step)} finished {step['behind_tasks_ms']:,} ms after the median of its other tasks"
    return f"{late}; {step['hot_share']:.0%} of its records are of {step['hot_key']}" if step["hot_key"] else late


def mostly_before_source(window: Mapping[str, Any]) -> str | None:
    """What most of the time before the source of *window* was spent on, in words; None: on the bound, or not known."""
    longest = next((part["kind"] for part in window["parts"] if part["kind"] in BEFORE_SOURCE), AgeCause.BOUND)
    return None if longest == AgeCause.BOUND else PART_WORDS[longest]


def _window(window: Row, steps: list[Row], leaves: list[Row], parts: list[Row], blame: list[Row]) -> Row:
    walked = {row["operator"]: _step(row) for row in steps}
    on_path = [row for row in steps if row["step"] is not None]
    return {
        **window,
        "path": [row["operator"] for row in on_path],
        "steps": on_path,
        "off_path": [
            {name: value for name, value in row.items() if name not in {"step", "share"}}
            for row in steps
            if row["step"] is None
        ],
        "leaves": [leaf | _walk(path_to(leaf["leaf"], walked)) for leaf in leaves],
        "parts": [
            {name: value for name, value in part.items() if name != "subject"}
            for part in parts
            if part["subject"] == window["leaf"] and part["ms"]
        ],
        "blame": blame,
    }


def _step(row: Row) -> Step:
    return Step(
        operator=row["operator"],
        state=State(row["state"]),
        latency_ms=row["latency_ms"],
        slowest_upstream=row["slowest_upstream"],
    )


def _walk(path: Path) -> Row:
    return {
        "path": [step.operator for step in path.steps],
        "latencies_ms": [step.latency_ms for step in path.steps],
    }


def _by_window(rows: Iterable[Row]) -> Mapping[Any, list[Row]]:
    found: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        found[row.pop("window_end")].append(row)
    return found


def _why_none(tables: Tables, topology: str, at_ms: int | None) -> str:
    (known,) = tables.ask(CLOSED, [topology]).objects
    if not known["seen"]:
        remedy = f"run the DAG tidemark_{topology}_reports, or jobs/critical_path.py"
        return _none(topology, "the reports have seen none of its windows", remedy)
    if not known["closed"]:
        seen = f"{known['seen']} were seen, and none has been finished by every operator"
        return _none(topology, seen, f"`tidemark why {topology}` says who waits for what")
    first, last = (iso(round(known[name].timestamp() * 1000)) for name in ("first_at", "last_at"))
    at = "that interval" if at_ms is None else iso(at_ms)
    return _none(topology, f"{at} has none; those known lie between {first} and {last}", "ask for one of them")


def _none(topology: str, seen: str, remedy: str) -> str:
    return f"a path is that of a closed streaming window, and {topology} has none to show: {seen}; {remedy}"
