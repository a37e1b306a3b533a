"""Explains why a watched table is late: by the first table upstream that is late, and by what that table's writer does.

How it works: the walk goes from a table to those that its writer read, as far as that is known, up to the late one
furthest up. Where several are late side by side, it is the one that has been so for longest. A table is late if it
breaks an SLA. Without an SLA that is judged, it is late if nothing was committed for more than LATE_AFTER times the
usual length.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from tidemark.local.airflow_api import FAILED, SUCCESS, TaskInstance
from tidemark.model.settings.intervals import iso
from tidemark.model.settings.lengths import counted, for_people
from tidemark.safe_text import as_code
from tidemark.semantics.incidents import BROKEN
from tidemark.semantics.sla import Verdict
from tidemark.sla.measures.status import Status
from tidemark.sla.sla_text import measurement_text
from tidemark.sla.watched import STAMPED
from tidemark.sla.watched_evidence import Surroundings, TableEvidence
from tidemark.watch.documents import writer_text
from tidemark.why.evidence.findings import Cause, Trait, WhyFinding

LATE_AFTER = 2
"""So many usual lengths without a commit are more than usual."""
UPSTREAM_LATE = Cause(
    "upstream_late",
    Trait.FAULT,
    "the first table upstream of a watched table that breaks an SLA, or has none and got no commit for more than twice "
    "the usual time",
)
WRITER_FAILED = Cause(
    "writer_failed", Trait.FAULT, "the task that writes a watched table failed in the newest run of its DAG"
)
WRITER_RUNS = Cause(
    "writer_runs", Trait.USUAL, "the task that writes a watched table has not ended in the newest run of its DAG"
)
WRITER_ABSENT = Cause(
    "writer_absent", Trait.FAULT, "no run of the task that writes a watched table came after the one that wrote it last"
)
NOTHING_NEWER = Cause(
    "nothing_newer",
    Trait.QUIET,
    "the writer of a watched table ran or committed, and brought no newer event time, and no table is known to be late "
    "that it read",
)
WRITER_UNKNOWN = Cause(
    "writer_unknown", Trait.FAULT, "a watched table got no commit in time, and nothing says what its writer does"
)
NO_LOG = Cause("no_log", Trait.FAULT, "the log of a watched table cannot be read")
ON_TIME = Cause("on_time", Trait.USUAL, "a watched table keeps its SLAs, or got a commit within twice the usual time")
NOT_JUDGED = Cause(
    "not_judged",
    Trait.USUAL,
    "no SLA of a watched table has a verdict, and it has too few commits to say what is usual",
)
LAST_COMMIT = Cause("last_commit", Trait.USUAL, "when a watched table got its last data commit, and who made it")
AIRFLOW_RUN = Cause(
    "airflow_run",
    Trait.USUAL,
    "the run of Airflow that made the last data commit of a watched table, and its state now",
)
TABLES_READ = Cause("tables_read", Trait.USUAL, "what the last writer of a watched table read, and how that is known")
REMARKS = (
    *(UPSTREAM_LATE, WRITER_FAILED, WRITER_RUNS, WRITER_ABSENT, NOTHING_NEWER, WRITER_UNKNOWN, NO_LOG, ON_TIME),
    *(NOT_JUDGED, LAST_COMMIT, AIRFLOW_RUN, TABLES_READ),
)
LOOK_UPSTREAM = "look at what its writer reads: no table that it read is known to be late"
NAME_THE_RUN = "have its task name its run in `userMetadata`, as docs/watch.md shows"
NAME_AIRFLOW = "`export TIDEMARK_AIRFLOW_URL=https://HOST TIDEMARK_AIRFLOW_TOKEN=TOKEN` names one"


@dataclass(frozen=True)
class Lateness:
    """Why a table is late, and since when, epoch ms (None: not known)."""

    text: str
    since_ms: int | None


@dataclass(frozen=True)
class Rhythm:
    """How long a table has had no commit that changed data, and how long that usually takes."""

    last_at_ms: int
    silent_ms: int
    usual_ms: int

    @property
    def is_silent(self) -> bool:
        """True if the next commit should have come."""
        return self.silent_ms > LATE_AFTER * self.usual_ms

    @property
    def text(self) -> str:
        """Both lengths, as a clause about the table."""
        if self.silent_ms < 0:
            return f"the clock of its last commit is {for_people(-self.silent_ms)} ahead"
        return (
            f"it got no commit that changed data for {for_people(self.silent_ms)}, usually every "
            f"{for_people(self.usual_ms)}"
        )


def explain_table(subject: str, known: Surroundings) -> list[WhyFinding]:
    """Explains the watched table *subject*, SET.TABLE: the cause first, then what is known of each table on the way."""
    asked = known.of_subject(subject)
    walked = [asked, *_way_to_late(asked, known, {asked.path})]
    return [*_conclusions(walked), *(finding for table in walked for finding in _evidence(table))]


def _way_to_late(table: TableEvidence, known: Surroundings, seen: set[Path]) -> list[TableEvidence]:
    """Returns the tables upstream of *table* up to the first late one; empty: none is known to be late.

    *seen* are those that were looked at. A table that keeps its SLAs holds nothing up.
    """
    ways: list[list[TableEvidence]] = []
    for place in table.reads:
        each = None if place.path in seen else known.of_place(place)
        if each is None or _keeps_slas(each):
            continue
        seen.add(each.path)
        further = _way_to_late(each, known, seen)
        if further or lateness_of(each) is not None:
            ways.append([each, *further])
    return min(ways, key=lambda way: _late_since_ms(way[-1]), default=[])


def lateness_of(table: TableEvidence) -> Lateness | None:
    """Returns why *table* is late; None: it is not, or nobody knows."""
    for status in table.statuses:
        if status.verdict in BROKEN:
            return Lateness(f"its SLA {status.spec.name} is broken: {measurement_text(status)}", status.crossed_ms)
    rhythm = _rhythm(table)
    if _kept(table) or rhythm is None or not rhythm.is_silent:
        return None
    return Lateness(rhythm.text, rhythm.last_at_ms + rhythm.usual_ms)


def _kept(table: TableEvidence) -> list[Status]:
    """Returns the SLAs that *table* keeps."""
    return [status for status in table.statuses if status.verdict is Verdict.PASS]


def _keeps_slas(table: TableEvidence) -> bool:
    return bool(table.statuses) and len(_kept(table)) == len(table.statuses)


def _rhythm(table: TableEvidence) -> Rhythm | None:
    """Returns the rhythm of a table; None: it has too few commits to say what is usual."""
    age = table.age
    if age is None or age.commit_at_ms is None or age.commit_age_ms is None or age.usual_gap_ms is None:
        return None
    return Rhythm(age.commit_at_ms, age.commit_age_ms, age.usual_gap_ms)


def _late_since_ms(table: TableEvidence) -> tuple[float, str]:
    lateness = lateness_of(table)
    return (inf if lateness is None or lateness.since_ms is None else lateness.since_ms), table.name


def _conclusions(walked: Sequence[TableEvidence]) -> Iterator[WhyFinding]:
    asked, last = walked[0], walked[-1]
    lateness = lateness_of(last)
    if lateness is None and last.unreadable is None:
        yield _on_time(asked)
        return
    if last is not asked and lateness is not None:
        way = " ← ".join(table.name for table in walked)
        upstream = _finding(
            UPSTREAM_LATE,
            asked,
            f"{lateness.text} ({way})",
            f"{_watch(last)} shows its last commits",
            lateness.since_ms,
        )
        yield replace(upstream, input=last.name)
    cause, seen, remedy = _writer(last)
    if lateness is None:
        yield _finding(cause, last, seen, remedy)
    else:
        told = f"{lateness.text}; {seen}" if last is asked else seen
        yield _finding(cause, last, told, remedy, lateness.since_ms)


def _on_time(table: TableEvidence) -> WhyFinding:
    if kept := _kept(table):
        names = ", ".join(f"{status.spec.name} ({measurement_text(status)})" for status in kept)
        unknown = ", ".join(status.spec.name for status in table.statuses if status not in kept)
        seen = f"it keeps {names}" + (f"; the verdict on {unknown} is not known" if unknown else "")
        return _finding(ON_TIME, table, seen, "no action is needed")
    rhythm = _rhythm(table)
    if rhythm is None:
        remedy = f'promise an SLA of it: `subject = "{table.name}"` in a table of `slas.toml`'
        return _finding(
            NOT_JUDGED, table, "no SLA of it has a verdict, and it has fewer than four data commits", remedy
        )
    return _finding(ON_TIME, table, f"{rhythm.text}; {_newest(table)}", "no action is needed")


def _writer(table: TableEvidence) -> tuple[Cause, str, str]:
    """Returns what the writer of a late *table* does, with a remedy."""
    if table.unreadable is not None:
        return NO_LOG, f"{table.unreadable.file}: {table.unreadable.found}", table.unreadable.remedy
    run, task, newest = table.run, table.run.task, table.run.newest
    if task is None or newest is None or (table.query is not None and not run.is_named):
        return _writer_without_airflow(table)
    name, dag = f"{task.dag_id}.{task.task_id}", shlex.quote(task.dag_id)
    if not run.is_named:
        name += ", which ran alone at the last commit,"
    told = f"{name} {_state(newest)} in its newest run, {newest.run_id}"
    states = as_code(f"airflow tasks states-for-dag-run {dag} {shlex.quote(newest.run_id)}")
    if newest.state in FAILED:
        clear = f"airflow tasks clear {dag} --task-regex {shlex.quote(f'^{task.task_id}$')} --only-failed"
        return WRITER_FAILED, told, f"read its log, correct what it says, then {as_code(clear)}"
    if not newest.has_ended:
        return WRITER_RUNS, told, _why_query(table) or f"{states} shows when it ends"
    rhythm = _rhythm(table)
    goes_on = rhythm is not None and not rhythm.is_silent
    if newest.state == SUCCESS and (goes_on or newest.run_id != task.run_id):
        return NOTHING_NEWER, f"{told}; {_newest(table)}", LOOK_UPSTREAM
    if run.is_paused:
        return WRITER_ABSENT, f"{told}, and its DAG is paused", f"{as_code(f'airflow dags unpause {dag}')} starts it"
    return WRITER_ABSENT, f"{told}, and no run came after it", f"{as_code(f'airflow dags trigger {dag}')} starts one"


def _writer_without_airflow(table: TableEvidence) -> tuple[Cause, str, str]:
    if table.query is not None and (remedy := _why_query(table)):
        return WRITER_UNKNOWN, f"the query {table.query[1].name} wrote it last", remedy
    rhythm = _rhythm(table)
    if rhythm is not None and not rhythm.is_silent:
        return NOTHING_NEWER, f"it is written as usual; {_newest(table)}", LOOK_UPSTREAM
    return WRITER_UNKNOWN, f"what its writer does is unknown: {table.run.known_by}", _how_to_know_the_run(table)


def _why_query(table: TableEvidence) -> str:
    """Returns how to learn what the recorded query of a table does; empty: none is recorded."""
    if table.query is None:
        return ""
    topology, query = table.query
    return f"{as_code(f'tidemark why {topology} {query.name}')} says what its query {query.name} does"


def _newest(table: TableEvidence) -> str:
    newest = table.age.newest if table.age is not None else None
    if newest is None or newest.low_ms is None:
        return "its newest event time is not known"
    return f"its newest event time is {iso(newest.low_ms)}"


def _evidence(table: TableEvidence) -> Iterator[WhyFinding]:
    """Yields who wrote a table last, the run of Airflow, and what was read."""
    last, age = table.last, table.age
    if last is None or age is None or age.commit_age_ms is None:
        return
    ahead = age.commit_age_ms < 0
    ago = f"{for_people(abs(age.commit_age_ms))} {'ahead of this clock' if ahead else 'ago'} {STAMPED[last.clock]}"
    usual = "" if age.usual_gap_ms is None else f", usually every {for_people(age.usual_gap_ms)}"
    rows = "an unknown number of rows" if last.rows is None else counted(last.rows, "row")
    yield _finding(
        LAST_COMMIT,
        table,
        f"{last.operation} of {rows} {ago}{usual}; its writer is {writer_text(last.writer)}",
        f"{_watch(table)} shows the commits before",
        last.at_ms,
    )
    yield _finding(AIRFLOW_RUN, table, *_run(table))
    reads = "; ".join(f"{each.name} ({each.known_by})" for each in table.reads)
    how = (
        "declare what its task reads as `inlets` of Airflow, or let a listener record its queries (docs/any-stream.md)"
    )
    yield _finding(
        TABLES_READ, table, reads or "unknown: commits do not say it", "no action is needed" if reads else how
    )


def _run(table: TableEvidence) -> tuple[str, str]:
    run, task = table.run, table.run.task
    if task is None:
        return f"unknown: {run.known_by}", _how_to_know_the_run(table)
    told = f"{task.dag_id}.{task.task_id}, run {task.run_id} ({run.known_by}), {_state(task)}"
    if run.newest is not None and run.newest.run_id != task.run_id:
        told = f"{told}; the newest run, {run.newest.run_id}, {_state(run.newest)}"
    command = shlex.join(["airflow", "tasks", "states-for-dag-run", task.dag_id, task.run_id])
    return told, f"{as_code(command)} shows its tasks"


def _how_to_know_the_run(table: TableEvidence) -> str:
    is_named = table.last is not None and table.last.writer.airflow
    return NAME_AIRFLOW if is_named else NAME_THE_RUN


def _state(run: TaskInstance) -> str:
    if run.state is None:
        return "is not scheduled yet"
    if run.has_ended:
        return f"ended as {run.state}" + ("" if run.ended_ms is None else f" at {iso(run.ended_ms)}")
    return f"is {run.state}" + ("" if run.started_ms is None else f" since {iso(run.started_ms)}")


def _watch(table: TableEvidence) -> str:
    return as_code(shlex.join(["tidemark", "watch", str(table.path)]))


def _finding(cause: Cause, table: TableEvidence, seen: str, remedy: str, since_ms: int | None = None) -> WhyFinding:
    return WhyFinding(cause=cause, sub_topology=None, operator=table.name, seen=seen, remedy=remedy, since_ms=since_ms)
