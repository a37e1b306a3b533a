"""Reads a topology from its TOML file, and refuses one that cannot run: docs/topologies.md lists the keys."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tidemark.errors import InvalidSpec
from tidemark.spec.connections import DEFAULT, EXAMPLE, Clusters, read_clusters, shared_clusters
from tidemark.spec.operators import (
    Aggregate,
    HopSource,
    Join,
    KeyedTable,
    Kind,
    Level,
    Map,
    Operator,
    Repartition,
    Sink,
    Source,
    Time,
    Union,
    Windows,
    emission_of,
)
from tidemark.spec.retention import Retention, read_retention
from tidemark.spec.spark_settings import SparkSettings, read_spark
from tidemark.spec.toml_keys import Keys, meant, read_toml, read_whole
from tidemark.spec.toml_operators import TAKES_BACK, misshapen, mistakes_of, read_operator
from tidemark.spec.window_columns import sink_window, window_columns


@dataclass(frozen=True)
class SubTopology:
    """The operators that one streaming query runs, each after the ones it reads."""

    name: str
    operators: tuple[Operator, ...]

    @property
    def sources(self) -> list[Source | HopSource]:
        """Those of its operators that read from outside of it."""
        return [operator for operator in self.operators if isinstance(operator, Source | HopSource)]

    def terminals(self) -> frozenset[str]:
        """Operators that nothing in this sub-topology reads."""
        read = {name for operator in self.operators for name in operator.inputs}
        return frozenset(operator.name for operator in self.operators if operator.name not in read)

    def table_inputs(self) -> frozenset[str]:
        """Operators that are read only as the table side of a join: they never hold the watermark back."""
        readers: dict[str, list[Operator]] = {operator.name: [] for operator in self.operators}
        for operator in self.operators:
            for name in operator.inputs:
                readers[name].append(operator)
        found: set[str] = set()
        for operator in reversed(self.operators):
            reading = readers[operator.name]
            if reading and all(
                by.name in found or (isinstance(by, Join) and by.table == operator.name) for by in reading
            ):
                found.add(operator.name)
        return frozenset(found)

    def windows(self) -> dict[str, Windows]:
        """The windows of its aggregates that have some, by operator."""
        return {o.name: o.windows for o in self.operators if isinstance(o, Aggregate) and o.windows}

    def tables_behind_hops(self) -> frozenset[str]:
        """Of `table_inputs` those whose records all come from other sub-topologies."""
        found: set[str] = set()
        for operator in self.operators:
            over_hop = isinstance(operator, HopSource) or (operator.inputs and found.issuperset(operator.inputs))
            if over_hop and operator.name in self.table_inputs():
                found.add(operator.name)
        return frozenset(found)


EVERY = ""
"""In place of the name of a sub-topology: all that are not named."""
MAX_HELD = 50_000
"""Of a source so many records wait for slower partitions: a quarter of what a batch takes in, 10 to 50 MB of memory."""


@dataclass(frozen=True)
class Topology:
    """A DAG of operators; `sub_topologies` come in the order of their first operators.

    `file` is the name of the one that describes it, for errors; `owner` is who answers for its DAGs.
    Its SLAs are checked every `check_every_ms`. `clusters` are those of its file and of its project, by name.
    A partition whose watermark is more than `max_drift_ms` ahead of the slowest one of its sub-topology waits.
    Spark's executors run the operators of a sub-topology in so many `shards`, by its name; others run in the driver.
    Of each source at most `max_held` records do so at once: the least far ahead go on.
    Of streaming windows that are not closed, `max_outstanding_windows` are measured.
    States are written to a file once `flush_keys` of them have moved, or `flush_batches` have moved any.
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
    check_every_ms: int = 600_000
    clusters: Clusters = field(default_factory=dict)
    file: str = field(default="", compare=False)

    @property
    def operators(self) -> Mapping[str, Operator]:
        """All operators by name, each after the ones it reads."""
        return MappingProxyType({o.name: o for sub in self.sub_topologies for o in sub.operators})

    def shards_of(self, sub_topology: str) -> int:
        """In how many shards the operators of *sub_topology* run; 1: in the driver."""
        return self.shards.get(sub_topology, self.shards.get(EVERY, 1))

    @property
    def clusters_used(self) -> frozenset[str]:
        """The Kafka clusters that its sources read and its sinks write."""
        return frozenset(o.kafka for o in self.operators.values() if isinstance(o, (Source, Sink)) and o.topic)

    @property
    def upstreams(self) -> Mapping[str, tuple[str, ...]]:
        """The physical DAG: a hop's reading end comes after the repartition that writes it."""
        return MappingProxyType(
            {o.name: (o.repartition,) if isinstance(o, HopSource) else o.inputs for o in self.operators.values()}
        )

    @property
    def read_by(self) -> Mapping[str, tuple[str, ...]]:
        """The operators that read each: `upstreams` the other way round."""
        found: dict[str, tuple[str, ...]] = dict.fromkeys(self.operators, ())
        for name, read in self.upstreams.items():
            for each in read:
                found[each] += (name,)
        return MappingProxyType(found)

    @property
    def terminals(self) -> tuple[str, ...]:
        """The operators that no other one reads."""
        return tuple(name for name, readers in self.read_by.items() if not readers)

    @property
    def waited_for(self) -> Mapping[str, tuple[str, ...]]:
        """The operators of `upstreams` that a streaming window waits for, which a table behind a hop is not."""
        beside = {name for sub in self.sub_topologies for name in sub.tables_behind_hops()}
        return MappingProxyType(
            {
                o.name: ()
                if isinstance(o, HopSource) and o.name in beside
                else tuple(name for name in self.upstreams[o.name] if name not in beside or o.name in beside)
                for o in self.operators.values()
            }
        )

    def sub_topology(self, name: str) -> SubTopology:
        """The sub-topology *name*; raises InvalidSpec that lists the known ones."""
        for sub in self.sub_topologies:
            if sub.name == name:
                return sub
        known = ", ".join(sub.name for sub in self.sub_topologies)
        raise InvalidSpec.at(self.name, name, "is no sub-topology", f"known: {known}")


def load(path: Path) -> Topology:
    """The topology that the file at *path* describes; raises InvalidSpec with file, key and remedy."""
    return parse(read_toml(path), file=path.name, folder=path.parent)


def load_part(path: Path) -> tuple[Topology | None, list[InvalidSpec]]:
    """As `load`, but of a file with mistakes the part whose columns are known, and all mistakes."""
    return parse_part(read_toml(path), file=path.name, folder=path.parent)


def load_each(folder: Path) -> dict[Path, Topology | InvalidSpec]:
    """By file of *folder* the topology that it describes, or why it cannot be used.

    Of several with one name the file that is called so is the topology, else the first one.
    """
    found = {path: _load_or_not(path) for path in sorted(folder.glob("*.toml"))}
    of_name: dict[str, Path] = {}
    for path, each in sorted(
        found.items(), key=lambda one: isinstance(one[1], Topology) and one[0].stem != one[1].name
    ):
        if isinstance(each, Topology) and (other := of_name.setdefault(each.name, path)) != path:
            problem = f"is {each.name!r}, as in {other.name}"
            found[path] = InvalidSpec.at(path.name, "name", problem, "give it another name, or remove one of the files")
    return found


def _load_or_not(path: Path) -> Topology | InvalidSpec:
    try:
        return load(path)
    except InvalidSpec as error:
        return error


def parse(content: Mapping[str, Any], *, file: str, folder: Path | None = None) -> Topology:
    """The topology that *content*, a parsed TOML file named *file* in errors, describes.

    Files that it names lie in *folder*.
    """
    topology, mistakes = parse_part(content, file=file, folder=folder)
    if mistakes or topology is None:
        raise InvalidSpec("\n".join(map(str, mistakes)))
    return topology


def parse_part(
    content: Mapping[str, Any], *, file: str, folder: Path | None = None
) -> tuple[Topology | None, list[InvalidSpec]]:
    """As `parse`, but of a file with mistakes the part whose columns are known, and all mistakes.

    The part serves to find mistakes in its columns and SQL, and for nothing else; None where nothing is left.
    """
    settings, mistakes = read_whole(file, "", content, partial(_settings, file, folder))
    if settings is None:
        return None, mistakes
    tables = settings.pop("operators")
    read = {key: read_operator(file, key, table, folder=folder) for key, table in tables.items()}
    mistakes += [mistake for _, found in read.values() for mistake in found]
    mistakes += _unknown_clusters(file, (operator for operator, _ in read.values()), settings["clusters"])
    operators = {key: operator for key, (operator, found) in read.items() if operator and not misshapen(found)}
    vague = {
        key: operator
        for key, (operator, found) in read.items()
        if operator and _is_looked_at(operator, found) and operator.inputs == (tables[key].get("input"),)
    }
    mistakes += _unknown_inputs(file, {**operators, **vague}, tables)
    whole, circles = _without_circles(file, _with_inputs(operators))
    whole = {**whole, **_reading(whole, vague)}
    mistakes += circles
    try:
        checked = _Check(file, whole, read_by_others=_named_in(tables, whole))
        told = {mistake.key for mistake in mistakes}
        mistakes += [mistake for mistake in checked.all() if mistake.key not in told]
        sound = _with_inputs({name: operator for name, operator in checked.sound().items() if name not in vague})
        others = {name: o for name, o in whole.items() if name not in sound and _is_looked_at(o, mistakes)}
        part = _completed(_in_order(file, {**sound, **_reading(sound, others)}).values())
        subs = _sub_topologies(file, part)
        mistakes += _unknown_shards(file, subs, settings["shards"])
        return Topology(sub_topologies=subs, file=file, **settings), mistakes
    except InvalidSpec as error:
        return None, [*mistakes, error]


def _unknown_shards(file: str, subs: Iterable[SubTopology], shards: Mapping[str, int]) -> list[InvalidSpec]:
    """Sub-topologies that are given *shards* and are not among *subs*."""
    names = [sub.name for sub in subs]
    remedy = f"use one of {', '.join(names)}, or write a number for all of them"
    unknown = [name for name in shards if name not in {EVERY, *names}]
    return [InvalidSpec.at(file, f"shards.{name}", "is no sub-topology", remedy) for name in unknown]


def _settings(file: str, folder: Path | None, keys: Keys) -> dict[str, Any]:
    """What a file says of the whole topology, by field of `Topology`, and the tables of its operators."""
    max_drift_ms = keys.duration("max_drift", "1 min", None)
    max_held = keys.count("max_held", "10_000", MAX_HELD)
    if max_drift_ms is None and "max_held" in keys.content:
        problem = "is there and nothing is held without max_drift"
        keys.fail("max_held", problem, 'write max_drift = "1 min", or leave it out', beside="max_drift")
    return {
        "name": keys.name("name", "flights"),
        "owner": keys.text("owner", "airside", "tidemark"),
        "check_every_ms": keys.duration("check_every", "10 min", 600_000),
        "level": keys.choice("level", Level, Level.INFO),
        "window_ms": keys.duration("window", "10 s", 10_000),
        "trigger_ms": keys.duration("trigger", "1 s", 1_000),
        "max_drift_ms": max_drift_ms,
        "max_held": max_held,
        "shards": keys.counts("shards", "4"),
        "flush_batches": keys.count("flush_batches", "50", 50),
        "flush_keys": keys.count("flush_keys", "50_000", 50_000),
        "max_outstanding_windows": keys.count("max_outstanding_windows", "1_000", 1_000),
        "retention": read_retention(file, keys.get("retention", dict, '{ facts = "30 d" }', {})),
        "spark": read_spark(file, keys.get("spark", dict, '{ memory = "2g" }', {})),
        "clusters": {
            **(shared_clusters(folder) if folder else {}),
            **read_clusters(file, keys.get("kafka", dict, f'{{ eu = {{ bootstrap = "{EXAMPLE}" }} }}', {})),
        },
        "operators": keys.get("operators", dict, "a table per operator: [operators.NAME]"),
    }


def on_processing_time(topology: Topology) -> Topology:
    """*topology* run on processing time, under a name, and so with tables and a checkpoint, of its own.

    What it would send to Kafka topics it appends to Delta tables named after the sinks: nobody behind is to see it.
    """
    subs = tuple(
        replace(sub, operators=tuple(_on_processing_time(operator) for operator in sub.operators))
        for sub in topology.sub_topologies
    )
    operators = {operator.name: operator for sub in subs for operator in sub.operators}
    check = _Check(topology.file, operators)
    check.sinks()
    for mistake in check.mistakes():
        raise mistake
    name = f"{topology.name}_on_processing_time"
    return replace(topology, name=name, time=Time.PROCESSING, sub_topologies=subs)


def _on_processing_time(operator: Operator) -> Operator:
    """*operator* without a topic that it would send to; of what it reads nothing is ahead."""
    if isinstance(operator, Sink) and operator.topic:
        return replace(operator, topic=None, table=operator.name)
    if isinstance(operator, Source):
        return replace(operator, max_ahead_ms=None)
    return operator


def updates_tables(operators: Mapping[str, Operator]) -> frozenset[str]:
    """Those of *operators*, each after the ones it reads, whose records are updates of a table and not events.

    An update replaces the one before of its key, so that nobody may just add it to a sum.
    """
    found: set[str] = set()
    for operator in operators.values():
        match operator:
            case KeyedTable() | Aggregate():
                found.add(operator.name)
            case Map() | Join() | Union() if found.intersection(operator.flows):
                found.add(operator.name)
    return frozenset(found)


def _is_looked_at(operator: Operator, mistakes: Iterable[InvalidSpec]) -> bool:
    """Whether *operator* is looked at in what it reads although *mistakes* leave open which columns it hands on."""
    return misshapen(mistakes_of(operator.name, mistakes)) and isinstance(
        operator, (Map, Aggregate, KeyedTable, Repartition, Sink)
    )


def _reading(whole: Collection[str], others: Mapping[str, Operator]) -> dict[str, Operator]:
    """Those of *others* that read the *whole* ones."""
    return {name: operator for name, operator in others.items() if {*operator.inputs} <= {*whole}}


def _unknown_clusters(file: str, operators: Iterable[Operator | None], known: Collection[str]) -> Iterator[InvalidSpec]:
    for operator in operators:
        if isinstance(operator, (Source, Sink)) and operator.kafka not in {*known, DEFAULT}:
            problem = f"is {operator.kafka!r}, a cluster that neither this file nor connections.toml has"
            remedy = f'write [kafka.{operator.kafka}] with bootstrap = "{EXAMPLE}"' + (
                f", or use one of {', '.join(sorted(known))}" if known else ""
            )
            yield InvalidSpec.at(file, f"operators.{operator.name}.kafka", problem, remedy)


def _unknown_inputs(file: str, operators: Mapping[str, Operator], known: Collection[str]) -> Iterator[InvalidSpec]:
    for operator in operators.values():
        for name in operator.inputs:
            if name not in known:
                problem, remedy = f"reads {name!r}, which is not there", meant(name, known, "operators")
                yield InvalidSpec.at(file, f"operators.{operator.name}", problem, remedy)


def _with_inputs(operators: Mapping[str, Operator]) -> dict[str, Operator]:
    """Those of *operators* whose inputs are all there, and so are the inputs of these."""
    whole = dict(operators)
    while cut := [name for name, operator in whole.items() if not whole.keys() >= {*operator.inputs}]:
        whole = {name: operator for name, operator in whole.items() if name not in cut}
    return whole


def _without_circles(file: str, operators: Mapping[str, Operator]) -> tuple[Mapping[str, Operator], list[InvalidSpec]]:
    """Those of *operators* that do not come after a circle, and a mistake for each circle."""
    mistakes: list[InvalidSpec] = []
    while True:
        try:
            return _in_order(file, operators), mistakes
        except InvalidSpec as error:
            mistakes.append(error)
            circle = error.__cause__.args[1] if error.__cause__ else ()
            operators = _with_inputs({name: o for name, o in operators.items() if name not in circle})


def _named_in(tables: Mapping[str, Any], whole: Collection[str]) -> set[str]:
    """What the tables of operators that are not among the *whole* ones name: they may be meant to read it."""
    others = (table for name, table in tables.items() if name not in whole and isinstance(table, dict))
    values = (value for table in others for value in table.values())
    texts = (text for value in values for text in (value if isinstance(value, list) else [value]))
    return {text for text in texts if isinstance(text, str) and text in tables}


def _in_order(file: str, operators: Mapping[str, Operator]) -> dict[str, Operator]:
    """The operators, each after the ones it reads, otherwise in the order of the file."""
    try:
        order = TopologicalSorter({name: operator.inputs for name, operator in operators.items()}).static_order()
        return {name: operators[name] for name in order}
    except CycleError as error:
        circle = " → ".join(error.args[1])
        raise InvalidSpec.at(file, "operators", f"form a circle: {circle}", "cut one of these inputs") from error


class _Check:
    """Finds what cannot run: whatever the shape of the DAG, and not the columns, gives away.

    What is *read_by_others* is read by operators that are not there, because of mistakes of their own.
    """

    def __init__(
        self, file: str, operators: Mapping[str, Operator], *, read_by_others: Collection[str] = frozenset()
    ) -> None:
        self._file, self._operators, self._read_by_others = file, operators, read_by_others
        self._updates = updates_tables(operators)
        self._mistakes: list[InvalidSpec] = []
        self._unsound: set[str] = set()

    def sound(self) -> dict[str, Operator]:
        """The operators of which nothing wrong was found in what they read."""
        return {name: operator for name, operator in self._operators.items() if name not in self._unsound}

    def mistakes(self) -> list[InvalidSpec]:
        """Those that were found."""
        return self._mistakes

    def all(self) -> list[InvalidSpec]:
        """Everything that is wrong."""
        for operator in self._operators.values():
            known = len(self._mistakes)
            self._reading(operator)
            if len(self._mistakes) > known:
                self._unsound.add(operator.name)
        self._histories()
        read = {name for operator in self._operators.values() for name in operator.inputs} | {*self._read_by_others}
        for operator in self._operators.values():
            if isinstance(operator, Repartition) and operator.name not in read:
                self._fail(operator, "", "is read by nobody", "let another operator read it, or take it out")
        self.sinks()
        self._topics()
        return self._mistakes

    def _reading(self, operator: Operator) -> None:
        for name in operator.inputs:
            self._edge(operator, self._operators[name])
        match operator:
            case Aggregate():
                self._aggregate(operator, self._operators[operator.inputs[0]])
            case Join(table=str() as table) if self._operators[table].kind is not Kind.TABLE:
                self._fail(operator, "table", f"is the {self._operators[table].kind} {table!r}", "name a table")
            case Union() if self._updates.intersection(operator.inputs) not in ({*operator.inputs}, set()):
                tables = ", ".join(sorted(self._updates.intersection(operator.inputs)))
                remedy = "unite streams with streams, and tables with tables"
                self._fail(operator, "inputs", f"has the updates of {tables} beside a stream", remedy)
            case Sink(last_seen_at=True) if emission_of(self._operators[operator.inputs[0]]) is None:
                read = self._operators[operator.inputs[0]]
                found = f"is true, but it reads the {read.kind} {read.name!r}, which suppresses nothing"
                remedy = "read a table, an aggregate or a map with a strategy, or use the column timestamp"
                self._fail(operator, "last_seen_at", found, remedy)
            case Repartition(id=()) if operator.inputs[0] in self._updates:
                remedy = 'give it an id, such as id = ["id"], so that an old value can be retracted'
                self._fail(operator, "id", f"is missing, and {operator.inputs[0]!r} sends updates", remedy)

    def _histories(self) -> None:
        joins = (operator for operator in self._operators.values() if isinstance(operator, Join))
        joined = {join.table for join in joins} | {*self._read_by_others}
        for table in self._operators.values():
            if not isinstance(table, KeyedTable) or table.name in joined:
                continue
            for key, is_said in (("history", table.history_ms is not None), ("beyond_history", table.is_strict)):
                if is_said:
                    self._fail(
                        table, key, "is that of a table that no join asks", "leave it out, or let a join read it"
                    )

    def _edge(self, operator: Operator, read: Operator) -> None:
        if read.kind is Kind.SINK:
            self._fail(operator, "", f"reads the sink {read.name!r}", "read what the sink reads")
        if isinstance(read, Repartition) and read.id and not isinstance(operator, Aggregate):
            remedy = "let an aggregate read it, or take its id away to hand on a stream"
            self._fail(operator, "", f"is of kind {operator.kind} and reads the table updates of {read.name!r}", remedy)

    def _aggregate(self, operator: Aggregate, read: Operator) -> None:
        if isinstance(read, Repartition):
            if operator.key and operator.key != read.key:
                self._fail(
                    operator, "key", f"is {list(operator.key)}", f"leave it out: {read.name!r} has {list(read.key)}"
                )
        elif not operator.key:
            self._fail(operator, "key", "is missing", 'write key = ["group"], the columns to group by')
        if read.name in self._updates:
            remedy = "put a repartition with an id between them, so that old values are retracted"
            self._fail(operator, "input", f"reads the updates of {read.name!r}", remedy)
        if not isinstance(read, Repartition) or not read.id:
            return
        for name, (function, column) in operator.aggregates.items():
            if function not in TAKES_BACK:
                remedy = f"use {', '.join(sorted(TAKES_BACK))}, or aggregate a stream"
                found = f'is "{function}({column})", which cannot retract what it added'
                self._fail(operator, f"aggregates.{name}", found, remedy)
        if operator.windows:
            self._fail(
                operator, "window", f"is over the table updates of {read.name!r}", "aggregate a stream in windows"
            )

    def _topics(self) -> None:
        seen: dict[str, Source] = {}
        for operator in self._operators.values():
            if isinstance(operator, Source) and operator.topic:
                if (other := seen.get(operator.topic)) is not None:
                    seen_at, remedy = f"is read by {other.name!r} already", f"read {other.name!r} instead"
                    if other.kafka != operator.kafka:
                        seen_at = f"has the same name in the cluster of {other.name!r}"
                        remedy = "read one of them in a topology of its own, and its sink's table here"
                    self._fail(operator, "topic", seen_at, remedy)
                seen[operator.topic] = operator

    def sinks(self) -> None:
        """Look for two sinks that have one table."""
        seen: dict[str, Operator] = {}
        for operator in self._operators.values():
            if isinstance(operator, Sink) and operator.table:
                if operator.table in seen:
                    other = seen[operator.table].name
                    self._fail(operator, "table", f"is that of the sink {other!r} too", "give each sink its own")
                seen[operator.table] = operator

    def _fail(self, operator: Operator, key: str, problem: str, remedy: str) -> None:
        at = f"operators.{operator.name}" + (f".{key}" if key else "")
        self._mistakes.append(InvalidSpec.at(self._file, at, problem, remedy))


def _completed(ordered: Iterable[Operator]) -> list[Operator]:
    """*ordered* with what follows from the others: keys of aggregates behind a repartition, sinks' windows."""
    operators = {operator.name: operator for operator in ordered}
    for operator in operators.values():
        if isinstance(operator, Aggregate) and isinstance(read := operators[operator.inputs[0]], Repartition):
            operators[operator.name] = replace(operator, key=read.key)
    for sink in [operator for operator in operators.values() if isinstance(operator, Sink)]:
        columns = window_columns(sink, operators)
        operators[sink.name] = replace(sink, bounds=dict(columns.bounds), window=sink_window(columns))
    return list(operators.values())


def _sub_topologies(file: str, ordered: Iterable[Operator]) -> tuple[SubTopology, ...]:
    """Cut the DAG behind its repartitions; a part has the name that one of its operators gives it, or its first source.

    The first source in the order of the operators; of a part behind a repartition, that one. Names are those of the
    streams: of their folders, tasks and logs.
    """
    ordered = list(ordered)
    repartitions = frozenset(o.name for o in ordered if isinstance(o, Repartition))
    operators = [part for operator in ordered for part in _with_hop(operator, repartitions)]
    label: dict[str, int] = {}
    for number, operator in enumerate(operators):
        joined = {label[name] for name in operator.inputs}
        lowest = min(joined, default=number)
        label = {name: lowest if was in joined else was for name, was in label.items()} | {operator.name: lowest}
    parts = [[o for o in operators if label[o.name] == number] for number in sorted(set(label.values()))]
    given = [_given_name(file, part) for part in parts]
    names = [name or _default_name(part, given) for part, name in zip(parts, given, strict=True)]
    if len(set(names)) < len(names):
        raise InvalidSpec.at(
            file, "operators", f"sub-topologies are named {names}", "give each a sub_topology of its own"
        )
    home = {operator.name: name for part, name in zip(parts, names, strict=True) for operator in part}
    found = {
        name: SubTopology(
            name,
            tuple(replace(o, upstream=home[o.repartition]) if isinstance(o, HopSource) else o for o in part),
        )
        for part, name in zip(parts, names, strict=True)
    }
    return _upstream_first(file, found)


def _upstream_first(file: str, subs: Mapping[str, SubTopology]) -> tuple[SubTopology, ...]:
    """*subs*, each after the ones whose hops it reads, otherwise in their order; raises InvalidSpec for a cycle."""
    upstreams = {
        name: dict.fromkeys(o.upstream for o in sub.operators if isinstance(o, HopSource)) for name, sub in subs.items()
    }
    try:
        TopologicalSorter(upstreams).prepare()
    except CycleError as error:
        circle = " → ".join(error.args[1])
        problem = f"make drivers wait for each other: sub-topologies {circle}"
        raise InvalidSpec.at(file, "operators", problem, _cut(subs, error.args[1])) from error
    found: dict[str, SubTopology] = {}

    def add(name: str) -> None:
        for upstream in upstreams[name]:
            add(upstream)
        found.setdefault(name, subs[name])

    for name in subs:
        add(name)
    return tuple(found.values())


def _cut(subs: Mapping[str, SubTopology], circle: list[str]) -> str:
    """The remedy for a *circle* of sub-topologies: the repartitions that it consists of."""
    hops = [
        operator.repartition
        for writer, reader in pairwise(circle)
        for operator in subs[reader].operators
        if isinstance(operator, HopSource) and operator.upstream == writer
    ]
    return f"take out one of the repartitions {', '.join(hops)}, or read a topic of its own in their place"


def _with_hop(operator: Operator, repartitions: frozenset[str]) -> tuple[Operator, ...]:
    """A repartition is read through the reading end of a hop, which is a source of its own."""
    inputs = tuple(f"{name}_source" if name in repartitions else name for name in operator.inputs)
    operator = replace(operator, inputs=inputs)
    if not isinstance(operator, Repartition):
        return (operator,)
    hop = HopSource(name=f"{operator.name}_source", kind=Kind.SOURCE, repartition=operator.name, upstream="")
    return operator, hop


def _given_name(file: str, part: list[Operator]) -> str | None:
    names = sorted({operator.sub_topology for operator in part if operator.sub_topology})
    if len(names) > 1:
        raise InvalidSpec.at(
            file, "operators", f"one sub-topology is named {' and '.join(names)}", "keep one of the names"
        )
    return names[0] if names else None


def _default_name(part: list[Operator], given: Collection[str | None]) -> str:
    """The first source of *part*, else its first operator, whose name no part was *given*; none: the first source."""
    hops = {o.name: o.repartition for o in part if isinstance(o, HopSource)}
    sources_first = sorted(part, key=lambda operator: not isinstance(operator, Source | HopSource))
    names = [hops.get(operator.name, operator.name) for operator in sources_first]
    return next((name for name in names if name not in given), names[0])
