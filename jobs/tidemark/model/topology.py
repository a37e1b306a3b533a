"""Reads a topology from TOML, and refuses one that cannot run.

docs/topologies.md lists the keys.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from tidemark.errors import InvalidSpec
from tidemark.graph import cycle_in, inverted, reached
from tidemark.model import topology_keys
from tidemark.model.kinds.boundary import HandingOut, Reading
from tidemark.model.kinds.kafka_end import KafkaEnd
from tidemark.model.kinds.operator import DeclaredOperator, Level, Operator
from tidemark.model.kinds.repartition import HopSource, Repartition
from tidemark.model.kinds.sink import Sink
from tidemark.model.kinds.source import Source
from tidemark.model.operator_graph import (
    OperatorChecks,
    completed,
    sorted_by_inputs,
    unknown_inputs,
    with_inputs,
    without_cycles,
)
from tidemark.model.project.connections import (
    DEFAULT,
    EXAMPLE,
    KAFKA,
    REGISTRY,
    REGISTRY_EXAMPLE,
    Clusters,
    read_clusters,
    shared_clusters,
)
from tidemark.model.project.layout import WATCH
from tidemark.model.project.registries import Registries, read_registries, shared_registries
from tidemark.model.project.spark_settings import DeployMode, SparkSettings, spark_of
from tidemark.model.settings.retention import Retention
from tidemark.model.settings.toml_files import read_toml
from tidemark.model.settings.windows import Windows
from tidemark.model.toml_operators import misshapen, mistakes_of, read_operator
from tidemark.model.topology_keys import MAX_HELD, OPERATORS, SPARK
from tidemark.model.watched import WatchedSet
from tidemark.selection import index_by_name, names_in, omit, outside
from tidemark.semantics.strategy import Strategy

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class JobLaunch:
    """A launch of a PySpark job.

    Attributes:
        application: the job's Python file; empty if unknown.
        arguments: the arguments of the job.
        launched_by: the task of Airflow or the command that launched the job; empty if unknown.
        consumer_groups: how the names of its queries' consumer groups begin; empty if there are no groups.
        observe: the columns of event time by which its queries are observed.
    """

    application: str = ""
    arguments: tuple[str, ...] = ()
    launched_by: str = ""
    consumer_groups: str = ""
    observe: tuple[str, ...] = ()


class Time(StrEnum):
    """What counts as the time of records: their own event time, or the decision time of their batch."""

    EVENT = "event"
    PROCESSING = "processing"


@dataclass(frozen=True)
class SubTopology:
    """The operators of one streaming query, each after those that it reads."""

    name: str
    operators: tuple[Operator, ...]

    @property
    def sources(self) -> list[Reading]:
        """The operators that read from outside of the sub-topology."""
        return [operator for operator in self.operators if isinstance(operator, Reading)]

    # If another class joins `Reading` or `HandingOut`, the types of these lists change, and mypy names their users.
    @property
    def hops_read(self) -> list[HopSource]:
        """The hops that it reads."""
        return [source for source in self.sources if isinstance(source, HopSource)]

    @property
    def outside_sources(self) -> list[Source]:
        """The sources whose records come from outside of the topology."""
        return [source for source in self.sources if not isinstance(source, HopSource)]

    @property
    def reads_hops_alone(self) -> bool:
        """True if all of its records come from other sub-topologies."""
        return not self.outside_sources

    @property
    def handing_out(self) -> list[HandingOut]:
        """The operators whose rows leave the sub-topology."""
        return [operator for operator in self.operators if isinstance(operator, HandingOut)]

    @property
    def sinks(self) -> list[Sink]:
        """The operators whose rows leave the topology."""
        return [operator for operator in self.handing_out if not isinstance(operator, Repartition)]

    def behind(self, operator: str) -> tuple[str, ...]:
        """Returns the operators of the sub-topology that read *operator*, directly or not."""
        return tuple(reached([operator], inverted({o.name: o.inputs for o in self.operators}))[1:])

    def terminals(self) -> frozenset[str]:
        """Returns the operators that no other in this sub-topology reads."""
        read = {*chain.from_iterable(operator.inputs for operator in self.operators)}
        return frozenset(operator.name for operator in self.operators if operator.name not in read)

    def table_inputs(self) -> frozenset[str]:
        """Returns the operators whose records only go into joined tables: they never hold the watermark back."""
        readers = inverted({operator.name: operator.inputs for operator in self.operators})
        joined_tables = {operator.name: operator.joined_table for operator in self.operators}
        tables: set[str] = set()
        # In this order, an operator comes after all that read it, about which it is known already.
        for operator in reversed(self.operators):
            reading = readers[operator.name]
            if reading and all(by in tables or joined_tables[by] == operator.name for by in reading):
                tables.add(operator.name)
        return frozenset(tables)

    def windows(self) -> dict[str, Windows]:
        """Returns the windows of its aggregates, by operator."""
        return {o.name: o.windows for o in self.operators if o.windows}

    def tables_behind_hops(self) -> frozenset[str]:
        """Returns `table_inputs` whose records all come from other sub-topologies."""
        tables: set[str] = set()
        for operator in self.operators:
            over_hop = operator.hop_of or (operator.inputs and tables.issuperset(operator.inputs))
            if over_hop and operator.name in self.table_inputs():
                tables.add(operator.name)
        return frozenset(tables)


OWN = "own"
"""In place of a driver's name: each stream has its own process."""
EVERY = ""
"""In place of a sub-topology's name: all that are not named."""


@dataclass(frozen=True)
class Topology:
    """A DAG of operators.

    Attributes:
        level: how much is measured of latency.
        window_ms: the length of streaming windows.
        trigger_ms: the trigger interval of its streams.
        sub_topologies: its parts, in the order of their first operators.
        max_drift_ms: a partition waits if its watermark is so far ahead of the slowest one of its sub-topology.
        shards: by sub-topology, the number of shards in which executors run its operators. The operators of other
            sub-topologies run in the driver.
        owner: the owner of its DAGs.
        max_outstanding_windows: the most open streaming windows that are measured.
        max_held: the most records of a source that wait at once. Beyond that, those least far ahead are released.
        flush_batches: states are written to a file after so many batches that changed any state.
        flush_keys: states are written to a file after so many states changed.
        facts_every_ms: how often facts move from the journal to their tables; 0 for with each batch.
        check_every_ms: how often a check of its SLAs is stored if nothing changes.
        consumer_groups: how the names of the consumer groups begin that show the progress of its streams to Kafka's
            own tools; None if there are no groups.
        driver: the process that runs its streams. None for one process of its own, OWN for one process per stream, or a
            name, under which other topologies share the process.
        clusters: the Kafka clusters of its file and of its project, by name.
        registries: the schema registries of its file and of its project, by name.
        jobs: by sub-topology, the last launch of the job that runs it. Empty if no job runs any.
        watched: the sets of tables that other programs write; only the topology WATCH, which has no streams, has them.
        file: the name of its file, for errors.
    """

    name: str
    level: Level
    window_ms: int
    trigger_ms: int
    sub_topologies: tuple[SubTopology, ...]
    max_drift_ms: int | None = None
    shards: Mapping[str, int] = field(default_factory=dict)
    time: Time = Time.EVENT
    retention: Retention = field(default_factory=Retention)
    spark: SparkSettings = field(default_factory=SparkSettings)
    owner: str = "tidemark"
    max_outstanding_windows: int = 1_000
    max_held: int = MAX_HELD
    flush_batches: int = 50
    flush_keys: int = 50_000
    facts_every_ms: int = 30_000
    check_every_ms: int = 600_000
    consumer_groups: str | None = None
    driver: str | None = None
    clusters: Clusters = field(default_factory=dict)
    registries: Registries = field(default_factory=dict)
    jobs: Mapping[str, JobLaunch] = field(default_factory=dict)
    watched: tuple[WatchedSet, ...] = ()
    file: str = field(default="", compare=False)

    @property
    def is_watch(self) -> bool:
        """True if it stands for tables that other programs write: only an SLA's facts differ then."""
        return self.name == WATCH

    @property
    def operators(self) -> Mapping[str, Operator]:
        """All operators by name, each after those that it reads."""
        all_operators = chain.from_iterable(sub.operators for sub in self.sub_topologies)
        return MappingProxyType(index_by_name(all_operators))

    @property
    def shares_processes(self) -> bool:
        """True if one process may run several of its streams.

        Airflow's connection can refuse this, too: no process is shared in cluster mode.
        """
        return self.driver != OWN and self.spark.deploy is not DeployMode.CLUSTER

    def shards_of(self, sub_topology: str) -> int:
        """Returns the number of shards of *sub_topology*; with 1 its operators run in the driver."""
        return self.shards.get(sub_topology, self.shards.get(EVERY, 1))

    def consumer_group(self, sub_topology: str) -> str | None:
        """Returns the consumer group with the offsets of *sub_topology*; None if there is no such group."""
        return consumer_group(self.consumer_groups, self.name, sub_topology)

    @property
    def clusters_used(self) -> frozenset[str]:
        """The Kafka clusters of its sources and sinks."""
        return frozenset(end.kafka for end in self.kafka_ends)

    @property
    def registries_used(self) -> Registries:
        """The registries of its sources, by name."""
        names = {source.registry for source in self.outside_sources if source.registry}
        return MappingProxyType({name: self.registries[name] for name in sorted(names)})

    @property
    def kafka_ends(self) -> tuple[KafkaEnd, ...]:
        """The operators that read or write a topic."""
        return tuple(o for o in self.operators.values() if isinstance(o, KafkaEnd) and o.topic)

    @property
    def outside_sources(self) -> tuple[Source, ...]:
        """The sources whose records come from outside of the topology."""
        return tuple(chain.from_iterable(sub.outside_sources for sub in self.sub_topologies))

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """The operators whose rows leave the topology."""
        return tuple(chain.from_iterable(sub.sinks for sub in self.sub_topologies))

    @property
    def result_tables(self) -> tuple[str, ...]:
        """The Delta tables of its operators for readers outside of the topology."""
        return tuple(o.result_table for o in self.operators.values() if o.result_table)

    @property
    def upstreams(self) -> Mapping[str, tuple[str, ...]]:
        """The operators that each operator reads, across hops too: the source of a hop reads the repartition."""
        return MappingProxyType({o.name: o.upstreams for o in self.operators.values()})

    @property
    def read_by(self) -> Mapping[str, tuple[str, ...]]:
        """The readers of each operator, the inverse of `upstreams`."""
        return MappingProxyType(inverted(self.upstreams))

    @property
    def flows(self) -> Mapping[str, tuple[str, ...]]:
        """The operators of its stream whose records go through each operator."""
        return MappingProxyType({o.name: o.flows for o in self.operators.values()})

    @property
    def upstream_flows(self) -> Mapping[str, tuple[str, ...]]:
        """The operators whose records go through each operator, across hops too."""
        return MappingProxyType({o.name: o.upstream_flows for o in self.operators.values()})

    @property
    def terminals(self) -> tuple[str, ...]:
        """The operators that no other one reads."""
        return tuple(name for name, readers in self.read_by.items() if not readers)

    @property
    def waited_for(self) -> Mapping[str, tuple[str, ...]]:
        """The `upstreams` that a streaming window waits for: all but tables whose records come through a hop."""
        beside: set[str] = set()
        for sub in self.sub_topologies:
            beside |= sub.tables_behind_hops()
        waited_for: dict[str, tuple[str, ...]] = {}
        for name, upstreams in self.upstreams.items():
            if name not in beside:
                waited_for[name] = tuple(outside(upstreams, beside))
            else:
                # The source of the hop before such a table waits for nothing.
                waited_for[name] = () if self.operators[name].hop_of else upstreams
        return MappingProxyType(waited_for)

    @property
    def has_intervals(self) -> bool:
        """True if one of its operators has the key `complete`."""
        return any(operator.complete for operator in self.operators.values())

    def path_into(self, *names: str) -> list[Operator]:
        """Returns the operators *names* and all whose records go through these, in the order of `graph.reached`."""
        operators = self.operators
        return [operators[name] for name in reached(names, self.upstream_flows)]

    def allowed_lateness_ms(self, name: str) -> int:
        """Returns the longest lateness allowed on the way into *name*."""
        return max(operator.allowed_lateness_ms or 0 for operator in self.path_into(name))

    def sets_late_aside(self, name: str) -> bool:
        """Returns True if no late record changes what the operator *name* has of a complete interval.

        That is so if, on each way into *name*, an operator sets late records aside: a strict source, or windows that
        send one result each when they close. Windows that send results earlier still take records of intervals that
        have ended.
        """
        operator = self.operators[name]
        is_strict = isinstance(operator, Source) and operator.allowed_lateness_ms is not None
        emission = operator.emission
        closes = operator.windows is not None and emission and emission.strategy is Strategy.ON_WINDOW_CLOSE
        if self.time is Time.PROCESSING or is_strict or closes:
            return True
        return bool(operator.upstream_flows) and all(map(self.sets_late_aside, operator.upstream_flows))

    def repartition(self, name: str) -> Repartition:
        """Returns the repartition *name*."""
        operator = self.operators[name]
        assert isinstance(operator, Repartition)
        return operator

    def sub_topology(self, name: str) -> SubTopology:
        """Returns the sub-topology *name*.

        Raises:
            InvalidSpec: there is none; it lists the known ones.
        """
        for sub in self.sub_topologies:
            if sub.name == name:
                return sub
        names = ", ".join(names_in(self.sub_topologies))
        raise InvalidSpec.at(self.name, name, "is not a sub-topology", f"known: {names}")

    def sub_topology_of(self, operator: str) -> SubTopology:
        """Returns the sub-topology that runs *operator*.

        Raises:
            StopIteration: there is no such operator.
        """
        return next(sub for sub in self.sub_topologies if operator in names_in(sub.operators))


WINDOW_OF_JOBS_MS = 60_000
"""Length of the streaming windows in which queries of jobs are compared."""
TRIGGER_OF_JOBS_MS = 10_000
"""Taken for the trigger of queries that have none."""


def of_jobs(
    name: str,
    subs: Iterable[SubTopology] = (),
    *,
    trigger_ms: int = 0,
    jobs: Mapping[str, JobLaunch] = MappingProxyType({}),
) -> Topology:
    """Returns a topology without a file, of queries that jobs run.

    Args:
        name: its name.
        subs: its queries; empty if only the warehouse knows them.
        trigger_ms: the longest trigger interval of the queries; 0 if none has one.
        jobs: by query, the last launch of its job.
    """
    trigger_ms = trigger_ms or TRIGGER_OF_JOBS_MS
    return Topology(name, Level.INFO, WINDOW_OF_JOBS_MS, trigger_ms, tuple(subs), jobs=jobs)


def of_watched(sets: Iterable[WatchedSet]) -> Topology:
    """Returns the topology WATCH, which has SLAs and no streams: other programs write the tables of its *sets*."""
    return replace(of_jobs(WATCH), watched=tuple(sets))


def load(path: Path) -> Topology:
    """Returns the topology in the file at *path*.

    Raises:
        InvalidSpec: with a line for each mistake.
    """
    return parse(read_toml(path), file=path.name, folder=path.parent)


def name_in(path: Path) -> str:
    """Returns the name of the topology in the file at *path*, which may have mistakes.

    If the file has no usable name, that is the name of the file.
    """
    try:
        name = read_toml(path).get("name")
    except (OSError, InvalidSpec):
        return path.stem
    return name if isinstance(name, str) else path.stem


def load_part(path: Path) -> tuple[Topology | None, list[InvalidSpec]]:
    """Returns what `parse_part` makes of the file at *path*."""
    return parse_part(read_toml(path), file=path.name, folder=path.parent)


def load_each(folder: Path) -> dict[Path, Topology | InvalidSpec]:
    """Returns the topology of each file of *folder*, or its error.

    If several files give the same name, the topology is the file that is called so, or else the first one.
    """
    results = {path: _load_or_not(path) for path in sorted(folder.glob("*.toml"))}
    of_name: dict[str, Path] = {}
    # False sorts first: a file that has the name of its topology gets that name before others.
    for path, each in sorted(
        results.items(), key=lambda one: isinstance(one[1], Topology) and one[0].stem != one[1].name
    ):
        if isinstance(each, Topology) and (other := of_name.setdefault(each.name, path)) != path:
            problem = f"is {each.name!r}, which is already the name in {other.name}"
            remedy = "give it another name, or remove one of the files"
            results[path] = InvalidSpec.at(path.name, "name", problem, remedy)
    return results


def _load_or_not(path: Path) -> Topology | InvalidSpec:
    try:
        return load(path)
    except InvalidSpec as error:
        return error


def parse(content: Mapping[str, Any], *, file: str, folder: Path | None = None) -> Topology:
    """Returns the topology in *content*, a parsed TOML file.

    *file* is its name in errors. Files that it names lie in *folder*.

    Raises:
        InvalidSpec: with a line for each mistake.
    """
    topology, mistakes = parse_part(content, file=file, folder=folder)
    if mistakes or topology is None:
        raise InvalidSpec("\n".join(map(str, mistakes)))
    return topology


def parse_part(
    content: Mapping[str, Any], *, file: str, folder: Path | None = None
) -> tuple[Topology | None, list[InvalidSpec]]:
    """Parses a topology as far as it goes, and returns it with all mistakes.

    If there are mistakes, it has the operators whose output columns are known nevertheless, in which `tidemark check`
    looks for further ones; None where no operator is left.
    """
    written = topology_keys.FORM.read(file, "", content, examples={OPERATORS.name: OPERATORS.meaning})
    mistakes = [*written.mistakes]
    values = written.repaired(topology_keys.FORM)
    submitted = values[SPARK]
    spark = SparkSettings() if submitted is None else spark_of(submitted)
    clusters, wrong_clusters = _connected(
        partial(read_clusters, file, values.get(KAFKA, {}), folder), shared_clusters, folder
    )
    registries, wrong_registries = _connected(
        partial(read_registries, file, values.get(REGISTRY, {}), folder), shared_registries, folder
    )
    mistakes += [*wrong_clusters, *wrong_registries]
    tables = content.get(OPERATORS.name)
    if not isinstance(tables, dict):
        return None, mistakes
    all_read: list[Operator] = []
    well_formed: dict[str, Operator] = {}
    checked_without_columns: dict[str, Operator] = {}
    for key, table in tables.items():
        operator, wrong = read_operator(file, key, table, folder=folder)
        mistakes += wrong
        if operator is None:
            continue
        all_read.append(operator)
        if not misshapen(wrong):
            well_formed[key] = operator
        if _inputs_can_be_checked(operator, wrong) and operator.inputs == (table.get("input"),):
            checked_without_columns[key] = operator
    # If one connection has a mistake, it is not known which names there should be.
    if not wrong_clusters:
        mistakes += _unknown_clusters(file, all_read, clusters)
    if not wrong_registries:
        mistakes += _unknown_registries(file, all_read, registries)
    mistakes += unknown_inputs(file, {**well_formed, **checked_without_columns}, tables)
    acyclic, cycles = without_cycles(file, with_inputs(well_formed))
    acyclic = {**acyclic, **_that_read_only(acyclic, checked_without_columns)}
    mistakes += cycles
    try:
        checks = OperatorChecks(file, acyclic, read_by_others=_named_by_others(tables, acyclic))
        # Further mistakes of a key may only follow from its first.
        reported = {mistake.key for mistake in mistakes}
        mistakes += [mistake for mistake in checks.all() if mistake.key not in reported]
        with_columns = with_inputs(omit(checks.sound(), checked_without_columns))
        others = {
            name: operator
            for name, operator in acyclic.items()
            if name not in with_columns and _inputs_can_be_checked(operator, mistakes)
        }
        ordered = completed(sorted_by_inputs({**with_columns, **_that_read_only(with_columns, others)}).values())
        subs = _sub_topologies(file, ordered)
        topology = Topology(
            sub_topologies=subs,
            spark=spark,
            clusters=clusters,
            registries=registries,
            file=file,
            **topology_keys.settings_of(values),
        )
        return topology, [*mistakes, *_unknown_shards(file, subs, topology.shards)]
    except InvalidSpec as error:
        return None, [*mistakes, error]


def _connected(
    own: Callable[[], Mapping[str, T]], shared: Callable[[Path], Mapping[str, T]], folder: Path | None
) -> tuple[dict[str, T], list[InvalidSpec]]:
    """Returns the connections that a file may use, by name, and the mistakes in their declarations.

    *own* reads the connections of the file, and *shared* those of its project in *folder*. Of two connections
    with the same name the one of the file counts. If there are mistakes, some connections are missing.
    """
    readings: list[Callable[[], Mapping[str, T]]] = [partial(shared, folder), own] if folder else [own]
    found: dict[str, T] = {}
    mistakes: list[InvalidSpec] = []
    for read in readings:
        try:
            found |= read()
        except InvalidSpec as error:
            mistakes.append(error)
    return found, mistakes


def _unknown_shards(file: str, subs: Iterable[SubTopology], shards: Mapping[str, int]) -> list[InvalidSpec]:
    """Returns a mistake for each sub-topology of *shards* that does not exist."""
    names = names_in(subs)
    remedy = f"use one of {', '.join(names)}, or write a number for all of them"
    unknown = outside(shards, {EVERY, *names})
    return [InvalidSpec.at(file, f"shards.{name}", "is not a sub-topology", remedy) for name in unknown]


def consumer_group(prefix: str | None, topology: str, sub_topology: str) -> str | None:
    """Returns the consumer group with the offsets of a stream or a recorded query; None without a *prefix*.

    >>> consumer_group("tidemark", "shop", "orders")
    'tidemark-shop-orders'
    """
    return None if prefix is None else f"{prefix}-{topology}-{sub_topology}"


def different_spark(topologies: Iterable[Topology]) -> list[InvalidSpec]:
    """Returns a mistake for each topology that shares a driver with one that has other Spark settings."""
    first: dict[str, Topology] = {}
    mistakes = []
    for topology in (each for each in topologies if each.driver not in {None, OWN}):
        other = first.setdefault(topology.driver or "", topology)
        if topology.spark != other.spark:
            problem = f"is {topology.driver!r}, as in {other.file}, but [spark] differs there"
            remedy = "write the same [spark] in both, or another driver"
            mistakes.append(InvalidSpec.at(topology.file, "driver", problem, remedy))
    return mistakes


def name_on_processing_time(name: str) -> str:
    """Returns the name that the topology *name* has on processing time."""
    return f"{name}_on_processing_time"


def on_processing_time(topology: Topology) -> Topology:
    """Returns *topology* on processing time, under a name of its own, so that it has its own tables and checkpoint.

    Records for Kafka topics are appended to Delta tables named after the sinks.
    """
    operators: dict[str, Operator] = {}
    subs: list[SubTopology] = []
    for sub in topology.sub_topologies:
        # A sink writes a table in place of its topic: consumers of the topic must not receive records twice.
        own = tuple(operator.on_processing_time() for operator in sub.operators)
        operators |= index_by_name(own)
        subs.append(replace(sub, operators=own))
    check = OperatorChecks(topology.file, operators)
    # The new table of a sink may have the name of another sink's.
    check.sinks()
    for mistake in check.mistakes():
        raise mistake
    name = name_on_processing_time(topology.name)
    return replace(topology, name=name, time=Time.PROCESSING, sub_topologies=tuple(subs))


def _inputs_can_be_checked(operator: Operator, mistakes: Iterable[InvalidSpec]) -> bool:
    """Returns True if *mistakes* leave the output columns of *operator* unknown, and what it reads can be checked."""
    return (
        isinstance(operator, DeclaredOperator)
        and operator.is_checked_in_part
        and misshapen(mistakes_of(operator.name, mistakes))
    )


def _that_read_only(inputs: Collection[str], operators: Mapping[str, Operator]) -> dict[str, Operator]:
    """Returns those of *operators* that read nothing but *inputs*."""
    return {name: operator for name, operator in operators.items() if {*operator.inputs} <= {*inputs}}


def _unknown_clusters(file: str, operators: Iterable[Operator], names: Collection[str]) -> Iterator[InvalidSpec]:
    for operator in operators:
        if isinstance(operator, KafkaEnd) and operator.kafka not in {*names, DEFAULT}:
            problem = f"is {operator.kafka!r}, which neither this file nor connections.toml defines"
            remedy = f'write [kafka.{operator.kafka}] with bootstrap = "{EXAMPLE}"' + (
                f", or use one of {', '.join(sorted(names))}" if names else ""
            )
            yield InvalidSpec.at(file, f"operators.{operator.name}.kafka", problem, remedy)


def _unknown_registries(file: str, operators: Iterable[Operator], names: Collection[str]) -> Iterator[InvalidSpec]:
    for source in operators:
        if isinstance(source, Source) and source.registry is not None and source.registry not in names:
            problem = f"is {source.registry!r}, which neither this file nor connections.toml defines"
            remedy = f'write [registry.{source.registry}] with url = "{REGISTRY_EXAMPLE}"' + (
                f", or use one of {', '.join(sorted(names))}" if names else ""
            )
            yield InvalidSpec.at(file, f"operators.{source.name}.registry", problem, remedy)


def _named_by_others(tables: Mapping[str, Any], understood: Collection[str]) -> set[str]:
    """Returns the operators that may be read by operators that are not *understood*.

    These are all operators that are named in the *tables* of operators that are not understood.
    """
    named: set[str] = set()
    for name, table in tables.items():
        if name in understood or not isinstance(table, dict):
            continue
        for value in table.values():
            # Any text may be the name of an input: the tables were not understood, so their keys say nothing.
            texts = value if isinstance(value, list) else [value]
            named.update(text for text in texts if isinstance(text, str) and text in tables)
    return named


def _sub_topologies(file: str, ordered: Iterable[Operator]) -> tuple[SubTopology, ...]:
    """Cuts the DAG behind its repartitions into sub-topologies.

    A sub-topology has the name that one of its operators gives it, or else the name of its first source. In place of
    the source of a hop, the repartition gives the name. Folders, tasks and logs of the stream have this name, too.
    """
    parts = _connected_parts(ordered)
    given_names = [_given_name(file, part) for part in parts]
    names = [name or _default_name(part, given_names) for part, name in zip(parts, given_names, strict=True)]
    if len(set(names)) < len(names):
        problem = f"give sub-topologies the names {names}, not all different"
        raise InvalidSpec.at(file, "operators", problem, "give each its own sub_topology")
    named_parts = dict(zip(names, parts, strict=True))
    home: dict[str, str] = {}
    for name, part in named_parts.items():
        home |= dict.fromkeys(names_in(part), name)
    # A hop may be read in a part before the one that writes it, so all parts have their names first.
    subs: dict[str, SubTopology] = {}
    for name, part in named_parts.items():
        own = [_with_upstream(home, operator) for operator in part]
        subs[name] = SubTopology(name, tuple(own))
    return _upstream_first(file, subs)


def _connected_parts(ordered: Iterable[Operator]) -> list[list[Operator]]:
    """Divides the operators into parts that only hops connect, in the order of their first operators.

    The source that reads the hop of each repartition is added.
    """
    ordered = list(ordered)
    repartitions = frozenset(o.name for o in ordered if o.hop_table)
    operators: list[Operator] = []
    for operator in ordered:
        operators += _with_hop(operator, repartitions)
    inputs = {operator.name: operator.inputs for operator in operators}
    connected = {name: (*inputs[name], *readers) for name, readers in inverted(inputs).items()}
    first_of: dict[str, str] = {}
    parts: dict[str, list[Operator]] = {}
    for operator in operators:
        if operator.name not in first_of:
            first_of |= dict.fromkeys(reached([operator.name], connected), operator.name)
        parts.setdefault(first_of[operator.name], []).append(operator)
    return list(parts.values())


def _with_upstream(home: Mapping[str, str], operator: Operator) -> Operator:
    """Returns *operator* with the sub-topology that writes its hop, if it reads one.

    *home* has the sub-topology of each operator.
    """
    return replace(operator, upstream=home[operator.repartition]) if isinstance(operator, HopSource) else operator


def _upstream_first(file: str, subs: Mapping[str, SubTopology]) -> tuple[SubTopology, ...]:
    """Returns *subs*, each after those whose hops it reads.

    Raises:
        InvalidSpec: some read each other's hops in a cycle.
    """
    upstreams: dict[str, list[str]] = {}
    for name, sub in subs.items():
        upstreams[name] = list(dict.fromkeys(hop.upstream for hop in sub.hops_read))
    if cycle := cycle_in(upstreams):
        problem = f"make drivers wait for each other: sub-topologies {' → '.join(cycle)}"
        raise InvalidSpec.at(file, "operators", problem, _cut(subs, cycle))
    ordered: dict[str, SubTopology] = {}

    # A topological sort alone would not keep the order of sub-topologies that do not read each other.
    def add(name: str) -> None:
        for upstream in upstreams[name]:
            add(upstream)
        ordered.setdefault(name, subs[name])

    for name in subs:
        add(name)
    return tuple(ordered.values())


def _cut(subs: Mapping[str, SubTopology], cycle: Iterable[str]) -> str:
    """Returns the remedy for a *cycle*: the repartitions that form it."""
    hops: list[str] = []
    for writer, reader in pairwise(cycle):
        hops += [hop.repartition for hop in subs[reader].hops_read if hop.upstream == writer]
    return f"remove one of the repartitions {', '.join(hops)}, or read another topic in its place"


def _with_hop(operator: Operator, repartitions: frozenset[str]) -> tuple[Operator, ...]:
    """Returns *operator*, which reads hops by their sources, and behind a repartition the source of its hop."""
    inputs = tuple(f"{name}_source" if name in repartitions else name for name in operator.inputs)
    operator = replace(operator, inputs=inputs)
    if not isinstance(operator, Repartition):
        return (operator,)
    hop = HopSource(name=f"{operator.name}_source", repartition=operator.name, upstream="")
    return operator, hop


def _given_name(file: str, part: list[Operator]) -> str | None:
    names = sorted({operator.sub_topology for operator in part if operator.sub_topology})
    if len(names) > 1:
        raise InvalidSpec.at(
            file, "operators", f"give one sub-topology the names {' and '.join(names)}", "keep one of them"
        )
    return names[0] if names else None


def _default_name(part: list[Operator], given_names: Collection[str | None]) -> str:
    """Returns the name of the first source of *part*, or else of its first operator, that is not among *given_names*.

    If all of these names are given already, it returns the name of the first source.
    """
    hops = {o.name: o.hop_of for o in part if o.hop_of}
    sources_first = sorted(part, key=lambda operator: not operator.is_source)
    names = [hops.get(operator.name, operator.name) for operator in sources_first]
    return next((name for name in names if name not in given_names), names[0])
