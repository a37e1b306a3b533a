"""Runs the streams of a topology in memory, in the order and at the instants at which drivers would run them.

The engine's own decider decides each batch. What a driver does with a decision beside that is not done: nothing is
written to a journal, a table or a topic, and no clock is read. States stay in memory, and one stream reads what another
one has handed on at once, in a batch of the same instant.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl
import pyarrow as pa

from tidemark.errors import InvalidSpec
from tidemark.model.kinds.operator import Level
from tidemark.model.kinds.source import Source
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import iso
from tidemark.model.stream import Stream
from tidemark.model.topology import SubTopology, Topology
from tidemark.selection import index_by_name, present
from tidemark.semantics.progress import InputProgress, StreamProgress, TopicPartition
from tidemark.stream.decide.decision import Decider
from tidemark.stream.decide.due import DueTimes
from tidemark.stream.decide.pipeline import Pipeline
from tidemark.stream.journal.batch import MicroBatch, Moment
from tidemark.stream.operate.steps import Steps
from tidemark.stream.read.data_loss import LossCheck, nothing_to_reread
from tidemark.stream.state.memory import Moves
from tidemark.stream.updates.step import Run
from tidemark.testing.file_format import Row, TopologyTest
from tidemark.testing.rows import rows_of_arrival, rows_of_hop, rows_schema
from tidemark.testing.topics import TopicsInMemory

NOWHERE = Layout(Path("/nonexistent"))
MOST_BATCHES = 1_000
"""A test with more batches has a mistake in its times."""


class _WatchedPipeline(Pipeline):
    """A pipeline that keeps the runs of its newest batch."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline, self.newest = pipeline, dict[str, Run]()

    def run(self, arrived: Mapping[str, Run], moves: Moves, moment: Moment) -> dict[str, Run]:
        """Returns every operator's run, as the pipeline that it watches does."""
        self.newest = self._pipeline.run(arrived, moves, moment)
        return self.newest


class _NoMarks:
    """Tables without marks of time."""

    def newest(self, source: Source, versions: Mapping[str, int]) -> None:
        """Returns None: there is no mark."""


@dataclass(frozen=True)
class SeenBatch:
    """What the operators made of a batch, which was decided at *decided_at_ms*, epoch ms."""

    decided_at_ms: int
    runs: Mapping[str, Run]


class StreamInMemory:
    """The stream of *sub*, which starts at *start_ms*.

    Attributes:
        due_at_ms: when a batch without records is due; None: never.
        waiting: rows of hops that it has yet to read.
    """

    def __init__(
        self, topology: Topology, sub: SubTopology, steps: Steps, topics: TopicsInMemory, start_ms: int
    ) -> None:
        self.sub, self._steps, self._topics = sub, steps, topics
        self._now_ms = start_ms
        intact = LossCheck(sub.name, lambda: {}, nothing_to_reread)
        stream = Stream(topology, sub, NOWHERE)
        self._decider = Decider.of(stream, steps, topics, intact, _NoMarks(), lambda: self._now_ms, slow_ms={})
        self._decider.pipeline = self._watched = _WatchedPipeline(self._decider.pipeline)
        self._due = DueTimes(topology, sub, steps.keeps_states)
        self._nothing = pl.DataFrame(schema=rows_schema(sub))
        self._progress = StreamProgress(inputs=_several_topics(sub, topics))
        self.due_at_ms: int | None = start_ms
        self.waiting: list[pl.DataFrame] = []

    def run(self, at_ms: int, rows: Sequence[pl.DataFrame]) -> tuple[SeenBatch | None, dict[str, pl.DataFrame]]:
        """Decides a batch of *rows* at *at_ms*, and takes its states.

        Returns:
            What it did, None if nothing changed; and the rows that it hands on, by repartition.
        """
        self._now_ms = at_ms
        batch = MicroBatch(
            batch_id=self._progress.batch_id + 1,
            epoch=1,
            decided_at_ms=self._progress.decided_at(at_ms),
            started_at_ms=at_ms,
            read_at_ms=at_ms,
            ends=self._topics.read_to(),
        )
        raw = pl.concat([self._nothing, *self.waiting, *rows], how="diagonal")
        self.waiting = []
        decision = self._decider.decide_rows(raw, batch, self._progress)
        seen, handed_on = None, dict[str, pl.DataFrame]()
        if decision is not None:
            assert decision.moves is not None  # only shards keep states elsewhere
            self._steps.apply(decision.moves, watermark_ms=decision.progress.watermark_ms)
            self._progress = decision.progress
            seen = SeenBatch(batch.decided_at_ms, self._watched.newest)
            for name in self._decider.for_tables.hops:
                table = decision.entry.tables[name]
                assert isinstance(table, pa.Table)
                handed_on[name] = pl.DataFrame(table)
        self.due_at_ms = self._due.next_at_ms(self._progress, at_ms)
        return seen, handed_on


class TopologyInMemory:
    """The streams of *topology*, which start at *start_ms*, epoch ms.

    Args:
        topology: the topology; shards and measurements do not change results, so it runs without them.
        tables: the rows of the Delta tables that its joins look up, by their places.
        partitions: the number of partitions of each topic.
        start_ms: when the streams start.

    Attributes:
        schemas: the columns of each operator's output.
        seen: what its batches did, in their order.

    Raises:
        InvalidSpec: its columns and SQL do not fit together.
    """

    def __init__(
        self, topology: Topology, tables: Mapping[str, Sequence[Row]], partitions: Mapping[str, int], start_ms: int
    ) -> None:
        self.topology = replace(topology, shards={}, level=Level.OFF)
        self.topics = TopicsInMemory(partitions)
        frames = {place: pl.DataFrame(rows, infer_schema_length=None) for place, rows in tables.items()}
        self._streams: list[StreamInMemory] = []
        for sub in self.topology.sub_topologies:
            steps = Steps(self.topology, frames.__getitem__)
            self.schemas = steps.schemas
            self._streams.append(StreamInMemory(self.topology, sub, steps, self.topics, start_ms))
        self.seen: list[SeenBatch] = []
        self._batches = 0

    def arrive(self, at_ms: int, rows: Mapping[str, pl.DataFrame]) -> None:
        """Runs all that is due before *at_ms*, and then the batches with *rows*, which are by source."""
        self.wait_until(at_ms - 1)
        for name, frame in rows.items():
            if topic := self.topology.operators[name].topic_read:
                self.topics.have(topic, frame.select("partition", "offset").iter_rows(named=True))
        self._run(at_ms, rows)

    def wait_until(self, at_ms: int) -> None:
        """Runs all that is due up to *at_ms*."""
        while (due_at_ms := min(present(stream.due_at_ms for stream in self._streams), default=at_ms + 1)) <= at_ms:
            self._run(due_at_ms, {})

    def _run(self, at_ms: int, rows: Mapping[str, pl.DataFrame]) -> None:
        """Runs the batches of one instant. Streams come after those that they read."""
        for stream in self._streams:
            own = [rows[source.name] for source in stream.sub.sources if source.name in rows]
            is_due = stream.due_at_ms is not None and stream.due_at_ms <= at_ms
            if not (own or stream.waiting or is_due):
                continue
            self._batches += 1
            if self._batches > MOST_BATCHES:
                msg = (
                    f"a test of {self.topology.name} has over {MOST_BATCHES:,} batches; let it last for a shorter time"
                )
                raise InvalidSpec(msg)
            seen, handed_on = stream.run(at_ms, own)
            self.seen += [seen] if seen else []
            for reader in self._streams:
                for source in reader.sub.hops_read:
                    if source.repartition in handed_on and handed_on[source.repartition].height:
                        reader.waiting.append(rows_of_hop(source, handed_on[source.repartition]))


def _several_topics(sub: SubTopology, topics: TopicsInMemory) -> dict[str, InputProgress]:
    """Returns the progress of sources over several topics before the first batch: with numbers of their partitions.

    For a test all are partitions of the first topic.
    """
    inputs: dict[str, InputProgress] = {}
    for source in sub.outside_sources:
        if source.reads_several:
            first, n = (*source.topics, source.topic or "")[0], topics.partitions[source.topic or ""]
            inputs[source.name] = InputProgress(places=tuple(TopicPartition(first, number) for number in range(n)))
    return inputs


def streams_of(test: TopologyTest, topology: Topology) -> TopologyInMemory:
    """Returns the streams of *topology* for *test*, whose sources it has.

    Raises:
        InvalidSpec: the topology cannot run.
    """
    partitions = defaultdict[str, int](lambda: 1)
    sources = index_by_name(topology.outside_sources)
    for arrival in test.arrivals:
        topic = sources[arrival.source].topic or ""
        partitions[topic] = max([partitions[topic], *(record.partition + 1 for record in arrival.records)])
    return TopologyInMemory(topology, test.tables, partitions, test.start_ms)


def play(test: TopologyTest, streams: TopologyInMemory) -> None:
    """Gives the records of *test* to *streams*, and lets them run to its end.

    Raises:
        InvalidSpec: the arrivals are not in their order, or the test takes too long.
    """
    sources = index_by_name(streams.topology.outside_sources)
    at_ms = test.start_ms
    offsets: Counter[tuple[str, int]] = Counter()
    batches: dict[int, dict[str, list[pl.DataFrame]]] = {}
    for arrival in test.arrivals:
        source = sources[arrival.source]
        if arrival.at_ms is not None and arrival.at_ms < at_ms:
            problem = f"is {iso(arrival.at_ms)}, before {iso(at_ms)}, when the one above it arrives or the test starts"
            raise InvalidSpec.at(test.file, f"{arrival.place}.at", problem, "write arrivals in their order")
        rows = rows_of_arrival(source, arrival, offsets, at_ms if arrival.at_ms is None else arrival.at_ms)
        times = rows.filter(pl.col("reason").is_null())["timestamp_ms"].drop_nulls()
        at_ms = max([at_ms, *times]) if arrival.at_ms is None else arrival.at_ms
        batches.setdefault(at_ms, {}).setdefault(source.name, []).append(rows)
    for arrived_ms, by_source in batches.items():
        streams.arrive(arrived_ms, {name: pl.concat(frames, how="diagonal") for name, frames in by_source.items()})
    until_ms = at_ms if test.until_ms is None else test.until_ms
    if until_ms < at_ms:
        problem = f"is {iso(until_ms)}, before the last arrival at {iso(at_ms)}"
        raise InvalidSpec.at(test.file, f"{test.place}.until", problem, "write a later time: it counts from the start")
    streams.wait_until(until_ms)
