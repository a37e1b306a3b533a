"""Makes a topology of the queries that listeners have recorded.

A listener of `tidemark.api` describes each query in the query's control folder. A query is a sub-topology: a source for
each place that it reads, and a sink with its own name. Where a query reads the topic, table or folder that another one
writes, its source has the sink of that query as upstream.

The driver of a job describes its launch in the control folder of the job. Until a query of the job is recorded, or if
its last launch failed before a query, the job itself is a sub-topology, with a sink of its name and no source.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tidemark.control.folder import Control, Heartbeat, StreamState
from tidemark.errors import InvalidSpec, TidemarkError
from tidemark.graph import cycle_in, in_order
from tidemark.model.kinds.sink import Sink
from tidemark.model.kinds.source import Source
from tidemark.model.kinds.source_place import DELTA, FILES, Elsewhere
from tidemark.model.project.layout import NAME, WATCH, Layout
from tidemark.model.topology import JobLaunch, SubTopology, Topology, of_jobs
from tidemark.safe_text import one_line
from tidemark.selection import index_by_name, present
from tidemark.storage.location import replace
from tidemark.storage.locks import own_folder

log = logging.getLogger(__name__)

FILE, LAUNCH = "query.json", "job.json"
"""Files that describe a query and a job's launch."""


@dataclass(frozen=True, kw_only=True)
class RecordedQuery:
    """Describes a query of a job.

    A place is `topic:NAME`, `delta:PATH`, `files:PATH`, or the kind of another source, such as `rate:`.

    Attributes:
        name: its sub-topology.
        query_id: Spark's id of it, which a checkpoint keeps.
        first_batch: the recorded number of Spark's batch 0; above 0 after a checkpoint was replaced.
        began_again_ms: when a run with a new checkpoint began, epoch ms; None: it has its first one.
        sources: the place that each source operator reads, by the operator's name.
        sink: the place that it writes; empty: unknown, as of `foreachBatch`.
        trigger_ms: its trigger; 0: it runs one batch after the other.
        job: the job that runs it; empty: unknown.
        application: the Python file of the job; empty: unknown.
        observed_limits_ms: the limits of latency over which its records are counted; None: they are not observed.
    """

    name: str
    query_id: str
    first_batch: int = 0
    began_again_ms: int | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    sink: str = ""
    trigger_ms: int = 0
    job: str = ""
    application: str = ""
    observed_limits_ms: tuple[int, ...] | None = None


def write_query(layout: Layout, topology: str, query: RecordedQuery) -> None:
    """Writes the description of *query* into its control folder."""
    _describe(layout.control(topology, query.name) / FILE, query)


def write_launch(layout: Layout, topology: str, job: str, launch: JobLaunch) -> None:
    """Writes the *launch* of *job* into its control folder."""
    _describe(layout.control(topology, job) / LAUNCH, launch)


def _describe(file: Path, described: RecordedQuery | JobLaunch) -> None:
    """Writes *described* into *file*, in a folder of this user alone."""
    own_folder(file.parent)
    replace(file, json.dumps(asdict(described)))


def read_launch(layout: Layout, topology: str, job: str) -> JobLaunch | None:
    """Returns the last launch of *job*; None: none can be read."""
    try:
        content = json.loads((layout.control(topology, job) / LAUNCH).read_text(encoding="utf-8"))
        words = {key: str(content.get(key) or "") for key in ("application", "launched_by", "consumer_groups")}
        arguments, observe = (_texts(content.get(key)) for key in ("arguments", "observe"))
        return JobLaunch(**words, arguments=arguments, observe=observe)
    except (OSError, ValueError, AttributeError):  # not readable, a text of another form, or not UTF-8
        return None


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()


def read_query(file: Path) -> RecordedQuery | None:
    """Returns the query that *file* describes; None: there is no such file.

    Unknown keys are left out.

    Raises:
        InvalidSpec: the file does not describe a query of its folder's name.
        OSError: it cannot be read.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:  # a text of another form, or not UTF-8
        content = None
    if problem := _problem(content, file.parent.name):
        msg = f"{file}: {problem}; remove the file, and the next run of the query writes it"
        raise InvalidSpec(msg)
    values = {key: content[key] for key in RecordedQuery.__dataclass_fields__ if key in content}
    limits_ms = values.get("observed_limits_ms")
    return RecordedQuery(**{**values, "observed_limits_ms": None if limits_ms is None else tuple(limits_ms)})


def query_with_id(layout: Layout, query_id: str) -> tuple[str, RecordedQuery] | None:
    """Returns the query that has Spark's id *query_id* under any name, with that name; None: none is recorded.

    Broken descriptions are left out.
    """
    for file in sorted(layout.control("", "").glob(f"*/*/{FILE}")):
        with suppress(InvalidSpec):
            query = read_query(file)
            if query is not None and query.query_id == query_id:
                return file.parent.parent.name, query
    return None


def _problem(content: Any, name: str) -> str:
    """Returns why *content* does not describe the query *name*; empty: it does."""
    if not isinstance(content, dict):
        return "it must be an object of JSON"
    for key in ("name", "query_id", "sink", "job", "application"):
        if not isinstance(content.get(key, None if key in {"name", "query_id"} else ""), str):
            return f"{key} must be a text"
    for key in ("first_batch", "began_again_ms", "trigger_ms"):
        number = content.get(key, 0)
        if not isinstance(number, int) and (number, key) != (None, "began_again_ms"):
            return f"{key} must be a whole number"
    limits_ms = content.get("observed_limits_ms")
    if limits_ms is not None and not (isinstance(limits_ms, list) and all(isinstance(each, int) for each in limits_ms)):
        return "observed_limits_ms must be a list of whole numbers"
    sources = content.get("sources", {})
    if not isinstance(sources, dict) or not all(
        operator.startswith(f"{name}:") and isinstance(place, str) for operator, place in sources.items()
    ):
        return f"sources must have a location for each name {name}:PLACE"
    if content["name"] != name or not NAME.fullmatch(name):
        return f"name must be that of its folder, {name}"
    return ""


def recorded_topology(layout: Layout, name: str) -> Topology | None:
    """Returns the topology of the queries and jobs recorded under *name*.

    None: none is recorded; WATCH stands for watched tables. Raises InvalidSpec if a query has a broken description, or
    if a file cannot be read.
    """
    if not NAME.fullmatch(name) or name == WATCH:
        return None
    try:
        return _recorded(layout, name)
    except OSError as error:
        remedy = "make it readable for this user, or try again if the store did not answer"
        msg = f"a file about the jobs of {name} cannot be read: {error}; {remedy}"
        raise InvalidSpec(msg) from error


def _recorded(layout: Layout, name: str) -> Topology | None:
    """Returns the recorded topology *name*, or None."""
    control = layout.control(name, "")
    queries = present(map(read_query, sorted(control.glob(f"*/{FILE}"))))
    jobs = sorted({*(file.parent.name for file in control.glob(f"*/{LAUNCH}"))})
    launches = {job: launch for job in jobs if (launch := read_launch(layout, name, job)) is not None}
    recorded = {each for query in queries for each in (query.name, query.job)}
    alone = [job for job in launches if job not in recorded or _failed_alone(layout, name, job, queries)]
    queries += [RecordedQuery(name=job, query_id="", job=job) for job in alone]
    return topology_of(name, queries, launches) if queries else None


def _failed_alone(layout: Layout, topology: str, job: str, queries: Iterable[RecordedQuery]) -> bool:
    """Returns True if the last launch of *job* failed before a query."""

    def last_beat(name: str) -> Heartbeat | None:
        return Control(layout.control(topology, name)).heartbeat()

    beat, names = last_beat(job), [query.name for query in queries if job in (query.name, query.job)]
    if beat is None or beat.state is not StreamState.FAILED or job in names:
        return False
    return all(of_query is None or of_query.launch_id != beat.launch_id for of_query in map(last_beat, names))


def recorded_topologies(layout: Layout) -> list[Topology]:
    """Returns the topologies of all recorded queries and jobs, by name.

    One with a broken description is left out; a process logs each such problem once.
    """
    topologies: list[Topology] = []
    for name, each in load_each_recorded(layout).items():
        if isinstance(each, Topology):
            topologies.append(each)
        else:
            _warn_once(f"topology {name} is left out: {one_line(str(each))}")
    return topologies


def load_each_recorded(layout: Layout) -> dict[str, Topology | TidemarkError]:
    """Returns the topology of each recorded name, or its error."""
    control = layout.control("", "")
    files = (file for kind in (FILE, LAUNCH) for file in control.glob(f"*/*/{kind}"))
    loaded = {name: _load_or_not(layout, name) for name in sorted({file.parent.parent.name for file in files})}
    return {name: each for name, each in loaded.items() if each is not None}


def _load_or_not(layout: Layout, name: str) -> Topology | TidemarkError | None:
    try:
        return recorded_topology(layout, name)
    except TidemarkError as error:
        return error


@lru_cache(maxsize=1_000)
def _warn_once(problem: str) -> None:
    # A process that serves metrics or pages looks every few seconds.
    log.warning("%s", problem)


def topology_of(
    name: str, queries: Sequence[RecordedQuery], launches: Mapping[str, JobLaunch] = MappingProxyType({})
) -> Topology:
    """Returns the topology *name* of *queries*, each after those that it reads.

    *launches* has the last launch of each job.
    """
    by_name = index_by_name(queries)
    upstreams = _without_cycles({query.name: _writers(query, queries) for query in queries})
    subs = [_sub_topology(by_name[each], by_name, upstreams[each]) for each in in_order(upstreams)]
    trigger_ms = max((query.trigger_ms for query in queries), default=0)
    jobs = {query.name: launches.get(query.job, JobLaunch(application=query.application)) for query in queries}
    return of_jobs(name, subs, trigger_ms=trigger_ms, jobs=jobs)


def _writers(query: RecordedQuery, queries: Iterable[RecordedQuery]) -> list[str]:
    """Returns the other *queries* that write what *query* reads."""
    places = {*query.sources.values()}
    return [each.name for each in queries if each.sink in places and each is not query]


def _without_cycles(upstreams: dict[str, list[str]]) -> dict[str, list[str]]:
    """Removes links of queries that read each other's output."""
    while cycle := cycle_in(upstreams):
        read, reader = cycle[:2]
        upstreams[reader].remove(read)
    return upstreams


def _elsewhere(kind: str, path: str) -> Elsewhere:
    """Returns the place of a source; what Spark reads as neither topic nor table counts as files."""
    return Elsewhere(DELTA.name, path) if kind == DELTA.name else Elsewhere(FILES.name, path or kind)


def _sub_topology(query: RecordedQuery, by_name: Mapping[str, RecordedQuery], upstreams: Iterable[str]) -> SubTopology:
    sources: list[Source] = []
    for operator, place in query.sources.items():
        kind, _, where = place.partition(":")
        writers = tuple(sorted(each for each in upstreams if by_name[each].sink == place))
        sources.append(
            Source(
                name=operator,
                topic=where if kind == "topic" else None,
                elsewhere=None if kind == "topic" else _elsewhere(kind, where),
                fields={},
                timestamp_range_ms=(0, 0),
                bound_ms=0,
                written_to_by=writers,
            )
        )
    kind, _, where = query.sink.partition(":")
    names = tuple(source.name for source in sources)
    sink = Sink(name=query.name, inputs=names, topic=where if kind == "topic" else None)
    return SubTopology(query.name, (*sources, sink))
