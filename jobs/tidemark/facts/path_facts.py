"""Queries the critical paths that reports have found, as one object for each window.

Pages, commands and programs read these objects: the names of their fields are promised in docs/reports.md. Lengths are
whole ms, instants timestamps in UTC.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tidemark.errors import InvalidArgument
from tidemark.facts.answers import Row, Tables
from tidemark.model.settings.intervals import epoch_ms, iso
from tidemark.selection import omit
from tidemark.semantics.critical_path import FINISHED_MS, STANDS_STILL, LatencyState, Path, PathStep, path_to
from tidemark.semantics.segments import SegmentOwner

UNFINISHED = "state IN ({})".format(", ".join(f"'{state}'" for state in sorted(STANDS_STILL)))
"""SQL: some operator has not come to the window of a row of critical_paths."""
WINDOWS = f"""
    SELECT window_start, window_end, state, path AS path_text, leaf, latency_ms, waited_ms, queued_ms,
           latency_ms - waited_ms - queued_ms AS worked_ms, before_source_ms,
           before_source_ms + latency_ms AS age_ms, skew_error_ms, over_sla, verdicts,
           moving_average_ms, moving_average_path, leaves
    FROM critical_paths
    WHERE topology = $1 AND latency_ms IS NOT NULL
          AND coalesce(window_start <= make_timestamptz($2 * 1000) AND window_end > make_timestamptz($2 * 1000), true)
          AND ($4 IS NULL OR {FINISHED_MS} <= $4 AND NOT {UNFINISHED})
    ORDER BY window_end DESC LIMIT $3
"""
STEPS = """
    SELECT window_end, operator, step, sub_topology, kind, slowest_upstream, latency_ms, waited_ms, queued_ms,
           worked_ms, promised_ms, share, slack_ms, state, task, task_latency_ms,
           behind_tasks_ms, tasks_error_ms, hot_key, hot_share
    FROM critical_path_steps WHERE topology = $1 AND window_end IN (SELECT unnest($2::TIMESTAMPTZ[]))
    ORDER BY step NULLS LAST, operator
"""
PARTS = """
    SELECT window_end, owner, detail, stream, ms, usual_ms
    FROM window_parts WHERE topology = $1 AND window_end IN (SELECT unnest($2::TIMESTAMPTZ[]))
    ORDER BY ms DESC, owner, detail
"""
CLOSED = """
    SELECT count(*) AS seen, count(latency_ms) AS closed, min(window_start) FILTER (latency_ms IS NOT NULL) AS first_at,
           max(window_end) FILTER (latency_ms IS NOT NULL) AS last_at
    FROM critical_paths WHERE topology = $1
"""


def windows_with_paths(
    tables: Tables, topology: str, *, at_ms: int | None = None, last: int = 1, finished_by_ms: int | None = None
) -> list[Row]:
    """Returns closed windows with their paths, oldest first, each as `described_window` does.

    Args:
        tables: the tables of the warehouse.
        topology: the name of the topology.
        at_ms: an instant of record time, epoch ms, that the window must contain; None takes any window.
        last: at most this many windows are returned, the newest ones.
        finished_by_ms: an instant, epoch ms, at which all operators on the path must have finished the window; None
            takes any window.

    Raises:
        InvalidArgument: there is no such window; the message says what to do.
    """
    windows = tables.ask(WINDOWS, [topology, at_ms, last, finished_by_ms]).objects[::-1]
    if not windows:
        raise InvalidArgument(_explain_no_path(tables, topology, at_ms))
    ends = [window["window_end"] for window in windows]
    # Each table is asked once for all windows.
    steps = _group_by_window(tables.ask(STEPS, [topology, ends]).objects)
    parts = _group_by_window(tables.ask(PARTS, [topology, ends]).objects)
    described: list[Row] = []
    for window in windows:
        end = window["window_end"]
        described.append(described_window(window, steps[end], parts[end]))
    return described


def physical_name(step: Mapping[str, Any]) -> str:
    """Returns the operator of *step* with the task that it waited for: `carrier_state[shard 3]`."""
    operator, task = step["operator"], step["task"]
    return f"{operator}[{task}]" if task else str(operator)


def physical_path(steps: Sequence[Mapping[str, Any]]) -> str | None:
    """Returns the path with the task of each step as text; None if no step names a task."""
    if not any(step["task"] for step in steps):
        return None
    walk: list[PathStep] = []
    for step in steps:
        name, state = physical_name(step), LatencyState(step["state"])
        walk.append(PathStep(operator=name, state=state, latency_ms=step["task_latency_ms"]))
    return str(Path(tuple(walk)))


def described_window(window: Row, steps: Sequence[Row], parts: Sequence[Row] = ()) -> Row:
    """Returns *window* with its path, the steps on and off it, the paths of other leaves, and the parts of its age.

    As in Apex, an input has the latency 0. Its work on the window, `worked_ms`, comes from the parts of the age. A part
    of 0 ms has no row: so an input on the path without a part has worked 0 ms if all parts are known, and otherwise its
    work is not known (None).

    Args:
        window: a row of WINDOWS.
        steps: rows of STEPS about the window, in the order of the path.
        parts: rows of PARTS about the window.
    """
    worked_ms = Counter[str]()
    for part in parts:
        if part["owner"] == SegmentOwner.OPERATOR:
            # With shards, the detail is the operator and the shard.
            worked_ms[part["detail"].split(" ")[0]] += part["ms"]
    is_known = bool(parts) and all(part["owner"] != "unknown" for part in parts)
    steps_by_name: dict[str, PathStep] = {}
    on_path, off_path = [], []
    for row in steps:
        steps_by_name[row["operator"]] = _step(row)
        if row["state"] == LatencyState.INPUT:
            known_ms = 0 if is_known and row["step"] is not None else None
            row["worked_ms"] = worked_ms.get(row["operator"], known_ms)
        if row["step"] is None:
            # Only operators on the path have a position and a share in it.
            off_path.append(_without(row, "step", "share"))
        else:
            on_path.append(row)
    return {
        **_without(window, "leaves"),
        "path": [row["operator"] for row in on_path],
        "physical_path": physical_path(on_path),
        "steps": on_path,
        "off_path": off_path,
        # While the first report writes, its windows may be visible before its steps.
        "leaves": [
            leaf | _walk(path_to(leaf["leaf"], steps_by_name))
            for leaf in window["leaves"] or ()
            if leaf["leaf"] in steps_by_name
        ],
        "parts": [*parts],
    }


def _without(row: Row, *names: str) -> Row:
    """Returns *row* without the columns *names*."""
    return omit(row, names)


def _step(row: Row) -> PathStep:
    return PathStep(
        operator=row["operator"],
        state=LatencyState(row["state"]),
        latency_ms=row["latency_ms"],
        slowest_upstream=row["slowest_upstream"],
    )


def _walk(path: Path) -> Row:
    return {
        "path": path.operators,
        "latencies_ms": [step.latency_ms for step in path.steps],
    }


def _group_by_window(rows: Iterable[Row]) -> Mapping[Any, list[Row]]:
    """Returns *rows* by the end of their window, without that column, which is removed from them."""
    by_window: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        by_window[row.pop("window_end")].append(row)
    return by_window


def _explain_no_path(tables: Tables, topology: str, at_ms: int | None) -> str:
    """Returns why there is no path to show, and what to do, as the message of an error."""
    (counts,) = tables.ask(CLOSED, [topology]).objects
    if not counts["seen"]:
        remedy = f"run the DAG tidemark_{topology}_reports, or jobs/critical_path.py"
        remedy += f"; `tidemark topology {topology}` shows the path of the newest window without a report"
        return _no_path(topology, "no report has seen a window of it yet", remedy)
    if not counts["closed"]:
        observation = f"reports have seen {counts['seen']:,}, of which none was finished by every operator"
        return _no_path(topology, observation, f"`tidemark why {topology}` shows what each operator waits for")
    first, last = (iso(epoch_ms(counts[name])) for name in ("first_at", "last_at"))
    at = "that interval" if at_ms is None else iso(at_ms)
    return _no_path(topology, f"{at} has none; the closed ones lie between {first} and {last}", "ask for one of them")


def _no_path(topology: str, observation: str, remedy: str) -> str:
    return f"{topology}: no reported streaming window can be shown, since {observation}; {remedy}"
