"""What is known of a watched table: its log, its SLAs, the run of its last commit, and the tables that its writer read.

How it works: Airflow's run is that of `userMetadata`, or of the only task that ran when the commit was made. Commits do
not name the tables that were read. They name a streaming query, whose sources a listener may have recorded. If a commit
names its run, Airflow knows the assets that the task declares to read, and those that triggered the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from zoneinfo import ZoneInfo

from tidemark.errors import InvalidArgument, TidemarkError
from tidemark.local.airflow_api import AirflowApi, TaskInstance
from tidemark.model.kinds.source_place import DELTA
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import iso
from tidemark.model.settings.retention import DAY_MS
from tidemark.model.slas.sla_spec import SlaSpec
from tidemark.model.topology import Topology
from tidemark.model.watched import WatchedSet, table_of
from tidemark.recorded_jobs.queries import RecordedQuery, query_with_id
from tidemark.selection import present
from tidemark.sla.measures.status import Status
from tidemark.sla.watched import path_of, watched_statuses
from tidemark.storage.location import location, path_of_url
from tidemark.watch.commits import History, Unreadable, Writer
from tidemark.watch.kept import KeptHistories
from tidemark.watch.reading import read_history
from tidemark.watch.rules import ShownCommit, TableAge, table_age
from tidemark.watch.statistics import TimeColumnRequest


@dataclass(frozen=True, kw_only=True)
class CommitRun:
    """The run of Airflow that made a commit.

    Attributes:
        known_by: how it is known, or why it is not.
        is_named: whether the commit names it; another one that ran alone then need not have made the commit.
        task: the task in that run; None: it is not known, or Airflow cannot be asked.
        newest: the task in the newest run of its DAG, which may be the same; None as above.
        is_paused: whether no further run of the DAG starts by itself.
    """

    known_by: str
    is_named: bool = False
    task: TaskInstance | None = None
    newest: TaskInstance | None = None
    is_paused: bool = False


@dataclass(frozen=True)
class ReadPlace:
    """A place that a writer read, and how that is known; `path` is None if it is no Delta table, such as a topic."""

    name: str
    path: Path | None
    known_by: str


@dataclass(frozen=True, kw_only=True)
class TableEvidence:
    """A table, and its writer.

    Attributes:
        name: SET.TABLE, or the path of a table of no set.
        path: the folder of the table.
        unreadable: why its log cannot be read; None: it can.
        age: what the log says; None if it cannot be read.
        statuses: what its SLAs find.
        run: the run of the last commit that changed data.
        query: the recorded query of that commit, after its topology; None: no listener has recorded it.
        reads: what the writer of that commit read.
    """

    name: str
    path: Path
    unreadable: Unreadable | None = None
    age: TableAge | None = None
    statuses: Sequence[Status] = ()
    run: CommitRun = CommitRun(known_by="the log has no commit that changed data")
    query: tuple[str, RecordedQuery] | None = None
    reads: Sequence[ReadPlace] = ()

    @property
    def last(self) -> ShownCommit | None:
        """The last commit that changed data."""
        return self.age.commits[0] if self.age is not None and self.age.commits else None


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """Where evidence is looked for.

    Attributes:
        watch: the topology of the sets of watched tables.
        specs: its SLAs.
        layout: the warehouse in which listeners have recorded queries; it may not exist.
        airflow: None if no Airflow is known.
        kept: what earlier runs have read of logs.
        at_ms: the present, epoch ms.
    """

    watch: Topology
    specs: Sequence[SlaSpec]
    layout: Layout
    airflow: AirflowApi | None
    kept: KeptHistories | None
    at_ms: int

    def of_subject(self, subject: str) -> TableEvidence:
        """Returns what is known of the table SET.TABLE."""
        each = next(each for each in self.watch.watched if subject.startswith(f"{each.name}."))
        path = path_of(each, table_of(subject))
        if isinstance(path, Unreadable):
            statuses = self._statuses(subject, path)
            return TableEvidence(name=subject, path=path.path, unreadable=path, statuses=statuses)
        return self._evidence(subject, path, each)

    def of_place(self, place: ReadPlace) -> TableEvidence | None:
        """Returns what is known of a table that a writer read; None: the place is no table."""
        if place.path is None:
            return None
        for each in self.watch.watched:
            for top in present(map(_path, each.places)):
                if place.path.is_relative_to(top):
                    below = top.name if place.path == top else place.path.relative_to(top)
                    return self._evidence(f"{each.name}.{below}", place.path, each)
        return self._evidence(place.name, place.path, None)

    def _evidence(self, name: str, path: Path, watched_set: WatchedSet | None) -> TableEvidence:
        asked = TimeColumnRequest()
        if watched_set is not None:
            asked = TimeColumnRequest(watched_set.columns, ZoneInfo(watched_set.timezone))
        # Without earlier commits it is not known what was usual.
        longest_ms = max((spec.over_ms for spec in self.specs if spec.subject == name), default=DAY_MS)
        since_ms = self.at_ms - max(longest_ms, DAY_MS)
        history = read_history(path, asked, since_ms, self.kept)
        statuses = self._statuses(name, history)
        if isinstance(history, Unreadable):
            return TableEvidence(name=name, path=path, unreadable=history, statuses=statuses)
        age = table_age(history, now_ms=self.at_ms, since_ms=since_ms, limit_ms=None)
        evidence = TableEvidence(name=name, path=path, age=age, statuses=statuses)
        return evidence if evidence.last is None else self._with_writer(evidence, evidence.last)

    def _statuses(self, name: str, table: History | Unreadable) -> list[Status]:
        specs = [spec for spec in self.specs if spec.subject == name]
        return watched_statuses(specs, {name: table}, at_ms=self.at_ms)

    def _with_writer(self, evidence: TableEvidence, commit: ShownCommit) -> TableEvidence:
        query = query_with_id(self.layout, commit.writer.query) if commit.writer.query else None
        of_query = [] if query is None else [*_places_of_query(*query)]
        try:
            run = self._run(commit)
            task = run.task if run.is_named else None
            of_assets = [] if self.airflow is None or task is None else [*_places_of_assets(self.airflow, task)]
        except TidemarkError as error:
            run, of_assets = CommitRun(known_by=f"{_noted(commit.writer)}{error}"), []
        except (ValueError, LookupError, TypeError, AttributeError):
            url = "" if self.airflow is None else self.airflow.url
            told = f"what answers at {url} is no Airflow 3; correct TIDEMARK_AIRFLOW_URL"
            run, of_assets = CommitRun(known_by=f"{_noted(commit.writer)}{told}"), []
        by_place = {place.path or place.name: place for place in chain(of_assets, of_query)}
        return replace(evidence, run=run, query=query, reads=[*by_place.values()])

    def _run(self, commit: ShownCommit) -> CommitRun:
        writer, airflow = commit.writer, self.airflow
        if airflow is None:
            unknown = "no Airflow is known that could be asked" if writer.airflow else "no Airflow is known"
            return CommitRun(known_by=f"{_noted(writer)}{unknown}")
        if writer.airflow and writer.run:
            # Names of DAGs and of tasks may have dots.
            names = writer.airflow.split(".")
            ways = ((".".join(names[:n]), ".".join(names[n:])) for n in range(1, len(names)))
            found = (airflow.run_of(dag_id, task_id, writer.run) for dag_id, task_id in ways)
            task = next(filter(None, found), None)
            if task is None:
                return CommitRun(known_by=f"{_noted(writer)}Airflow does not know that run, or not any more")
            return replace(_now(airflow, task, "`userMetadata` of the commit names it"), is_named=True)
        at = iso(commit.at_ms)
        match airflow.some_that_ran_at(commit.at_ms):
            case [task]:
                return _now(airflow, task, f"no other task ran at the commit, {at}")
            case []:
                return CommitRun(known_by=f"the commit names none, and no task of Airflow ran at {at}")
            case _:
                return CommitRun(known_by=f"the commit names none, and several tasks of Airflow ran at {at}")


def _noted(writer: Writer) -> str:
    return f"`userMetadata` of the commit names {writer.airflow}, run {writer.run}; " if writer.airflow else ""


def _now(airflow: AirflowApi, task: TaskInstance, known_by: str) -> CommitRun:
    newest = airflow.newest_run_of(task.dag_id, task.task_id)
    return CommitRun(known_by=known_by, task=task, newest=newest, is_paused=bool(airflow.is_paused(task.dag_id)))


def _places_of_query(topology: str, query: RecordedQuery) -> Iterator[ReadPlace]:
    for place in query.sources.values():
        kind, _, where = place.partition(":")
        path = _path(where) if kind == DELTA.name else None
        name = where if path is not None else f"{kind} {where}".strip()
        yield ReadPlace(name, path, f"recorded of the query {topology}/{query.name}")


def _places_of_assets(airflow: AirflowApi, task: TaskInstance) -> Iterator[ReadPlace]:
    for uri in airflow.assets_that_triggered(task.dag_id, task.run_id):
        yield ReadPlace(uri, _path(uri), f"its asset triggered the run {task.run_id}")
    for uri in airflow.inlets_of(task.dag_id, task.task_id):
        yield ReadPlace(uri, _path(uri), f"an inlet of {task.dag_id}.{task.task_id}")


def _path(address: str) -> Path | None:
    """Returns the path of a URL or of an absolute path; None for other names, such as those of topics."""
    if address.startswith("file:"):
        return path_of_url(address)
    if not address.startswith("/") and "://" not in address:
        return None
    try:
        return location(address)
    except InvalidArgument:
        return None
