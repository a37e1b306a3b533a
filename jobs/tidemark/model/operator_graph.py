"""The operators of a topology as a graph: order, derived fields, mistakes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from tidemark.errors import InvalidSpec
from tidemark.graph import cycle_in, in_order, inverted, reached
from tidemark.model.kinds.operator import Mistake, Operator
from tidemark.model.kinds.source import Source
from tidemark.model.project.connections import HEARTBEATS
from tidemark.model.settings.value_types import suggestion_of
from tidemark.model.settings.window_columns import WindowColumns
from tidemark.selection import in_order_of, omit
from tidemark.semantics.strategy import Strategy


def updates_tables(operators: Mapping[str, Operator]) -> frozenset[str]:
    """Returns the *operators* that send updates of a table, and not events.

    Each of *operators* comes after those that it reads.
    """
    senders: set[str] = set()
    for operator in operators.values():
        # An update replaces the one before of its key: a reader must not just add it to a sum.
        if operator.sends_updates(reads_updates=not senders.isdisjoint(operator.flows)):
            senders.add(operator.name)
    return frozenset(senders)


def unknown_inputs(file: str, operators: Mapping[str, Operator], names: Collection[str]) -> Iterator[InvalidSpec]:
    """Yields a mistake for each input that is not in *names*."""
    for operator in operators.values():
        for name in operator.inputs:
            if name not in names:
                problem, remedy = f"reads {name!r}, which does not exist", suggestion_of(name, names, "operators")
                yield InvalidSpec.at(file, f"operators.{operator.name}", problem, remedy)


def with_inputs(operators: Mapping[str, Operator]) -> dict[str, Operator]:
    """Returns the *operators* whose inputs all exist, directly and further up."""
    readers = inverted(_inputs(operators))
    # An operator is left out if it reads, perhaps through others, a name that no operator has.
    return omit(operators, reached(readers.keys() - operators.keys(), readers))


def without_cycles(file: str, operators: Mapping[str, Operator]) -> tuple[Mapping[str, Operator], list[InvalidSpec]]:
    """Returns *operators* that depend on no cycle, and a mistake per cycle."""
    mistakes: list[InvalidSpec] = []
    while cycle := cycle_in(_inputs(operators)):
        problem = f"form a cycle: {' → '.join(cycle)}"
        mistakes.append(InvalidSpec.at(file, "operators", problem, "remove one of these inputs"))
        operators = with_inputs(omit(operators, cycle))
    return sorted_by_inputs(operators), mistakes


def sorted_by_inputs(operators: Mapping[str, Operator]) -> dict[str, Operator]:
    """Returns *operators* with each after those that it reads, and otherwise in the order of the file."""
    return in_order_of(in_order(_inputs(operators)), operators)


def _inputs(operators: Mapping[str, Operator]) -> dict[str, tuple[str, ...]]:
    return {name: operator.inputs for name, operator in operators.items()}


class OperatorChecks:
    """Finds operators that cannot run, from the shape of the DAG alone: columns are not looked at.

    *operators* lacks those with mistakes of their own. *read_by_others* are the operators that these may read.
    """

    def __init__(
        self, file: str, operators: Mapping[str, Operator], *, read_by_others: Collection[str] = frozenset()
    ) -> None:
        self._file, self._operators, self._read_by_others = file, operators, read_by_others
        self._updates = updates_tables(operators)
        self._mistakes: list[InvalidSpec] = []
        self._unsound: set[str] = set()

    def sound(self) -> dict[str, Operator]:
        """Returns the operators that can read their inputs."""
        return omit(self._operators, self._unsound)

    def mistakes(self) -> list[InvalidSpec]:
        """Returns the mistakes found so far."""
        return self._mistakes

    def all(self) -> list[InvalidSpec]:
        """Finds and returns all mistakes."""
        for operator in self._operators.values():
            mistakes = [*self._of_reading(operator)]
            self._fail(operator, mistakes)
            if mistakes:
                self._unsound.add(operator.name)
        for operator in self._operators.values():
            if operator.name not in self._read_by_others:
                readers = [by for by in self._operators.values() if operator.name in by.inputs]
                self._fail(operator, operator.mistakes_by_readers(readers))
        for operator in self._operators.values():
            if operator.complete:
                self._fail(operator, self._of_completeness(operator))
        self.sinks()
        self._topics()
        return self._mistakes

    def _of_reading(self, operator: Operator) -> Iterator[Mistake]:
        read = in_order_of(operator.inputs, self._operators)
        for name in operator.inputs:
            yield from read[name].mistakes_of_reader(operator)
        yield from operator.mistakes(read, self._updates)

    def _of_completeness(self, operator: Operator) -> Iterator[Mistake]:
        """Yields a mistake if a periodic operator of another stream sends results later than the watermark says."""
        flows = {name: each.flows for name, each in self._operators.items()}
        before = reached(operator.flows, flows)
        repartitions = [name for name in before if self._operators[name].hop_table is not None]
        for name in reached(repartitions, flows):
            emission = self._operators[name].emission
            if emission and emission.strategy is Strategy.PERIODIC:
                problem = f"is set, but {name!r} sends results later than its watermark says, across a repartition"
                yield Mistake("complete", problem, f"write complete at {name!r}, or give it another strategy")

    def _topics(self) -> None:
        sources_by_topic: dict[str, Source] = {}
        for operator in self._operators.values():
            if isinstance(operator, Source) and operator.topic:
                if (other := sources_by_topic.get(operator.topic)) is not None and not operator.reads_several:
                    seen_at, remedy = f"is already read by {other.name!r}", f"read {other.name!r} instead"
                    if other.kafka != operator.kafka:
                        seen_at = f"has the same name as the topic of {other.name!r} in another cluster"
                        remedy = "read one of them in another topology, and the table of a sink of it here"
                    self._fail(operator, [Mistake("topic", seen_at, remedy)])
                sources_by_topic[operator.topic] = operator
                self._fail(operator, [*self._of_several(operator)])

    def _of_several(self, source: Source) -> Iterator[Mistake]:
        """Yields why *source* cannot read its several topics beside what other sources read and sinks write."""
        if not source.reads_several:
            return
        remedy = "read each topic in one source of a topology"
        if source.topic_pattern and source.reads(HEARTBEATS):
            yield Mistake("topics", f"matches {HEARTBEATS!r}, which drivers write", "write a narrower pattern")
        for other in self._operators.values():
            if isinstance(other, Source) and other.topic and other is not source:
                both = [name for name in other.topics or (other.topic,) if source.reads(name)]
                if source.topic_pattern and other.topic_pattern:
                    # A topic that is created later may match both.
                    yield Mistake("topics", f"is a pattern, and {other.name!r} has one, too", remedy)
                # Of two lists the second alone is a mistake.
                elif both and not (source.topics and other.topics and source.name < other.name):
                    yield Mistake("topics", f"matches {both[0]!r}, which {other.name!r} reads", remedy)
            elif (written := other.topic_written) and source.topic_pattern and source.reads(written):
                problem = f"matches {written!r}, which the sink {other.name!r} of this topology writes"
                yield Mistake("topics", problem, "write a narrower pattern, or give the topics in a list")

    def sinks(self) -> None:
        """Finds sinks that share a table."""
        writers: dict[str, Operator] = {}
        for operator in self._operators.values():
            if operator.result_table:
                if operator.result_table in writers:
                    other = writers[operator.result_table].name
                    problem = f"is also the table of the sink {other!r}"
                    self._fail(operator, [Mistake("table", problem, "give each sink its own table")])
                writers[operator.result_table] = operator

    def _fail(self, operator: Operator, mistakes: Iterable[Mistake]) -> None:
        at = f"operators.{operator.name}"
        for key, problem, remedy in mistakes:
            self._mistakes.append(InvalidSpec.at(self._file, f"{at}.{key}" if key else at, problem, remedy))


def completed(ordered: Iterable[Operator]) -> list[Operator]:
    """Returns the operators with the keys and windows that follow from what they read.

    *ordered* has each operator after those that it reads.
    """
    complete: dict[str, Operator] = {}
    columns: dict[str, WindowColumns] = {}
    for operator in ordered:
        read = in_order_of(operator.inputs, complete)
        columns_read = [columns[name] for name in operator.inputs]
        complete[operator.name] = operator.completed(read, operator.window_columns(columns_read))
        # Asked again: an aggregate behind a repartition has its key only now, and its bounds follow from the key.
        columns[operator.name] = complete[operator.name].window_columns(columns_read)
    return list(complete.values())


def event_times(operators: Mapping[str, Operator]) -> dict[str, frozenset[str]]:
    """Returns by operator the columns that have the event time of a record as a source read it."""
    columns: dict[str, frozenset[str]] = {}
    for operator in operators.values():
        columns[operator.name] = operator.event_times([columns[name] for name in operator.upstreams])
    return columns


def window_bounds(operators: Mapping[str, Operator]) -> dict[str, Mapping[str, str]]:
    """Returns by operator the columns of its output that are bounds of windows, as `WindowColumns.bounds`.

    *operators* are each after the ones that they read.
    """
    columns: dict[str, WindowColumns] = {}
    for operator in operators.values():
        columns[operator.name] = operator.window_columns([columns[name] for name in operator.upstreams])
    return {name: each.bounds for name, each in columns.items()}
