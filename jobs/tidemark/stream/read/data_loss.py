"""Stops a stream if a topic or hop lost unread records.

The stream stays stopped until a person accepts the loss. Spark's own check (`failOnDataLoss`) is off: it ends the query
in the middle of planning, names no remedy, and does so again after every restart.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import polars as pl

from tidemark.errors import TidemarkError
from tidemark.kernels.records.loss import lost
from tidemark.model.kinds.repartition import HopSource
from tidemark.model.kinds.source import Source
from tidemark.semantics.progress import InputProgress, PartitionProgress
from tidemark.stream.journal.batch import MicroBatch
from tidemark.stream.kafka.broker import TopicState

log = logging.getLogger("tidemark.stream")

Offsets = Mapping[int, tuple[int, int]]
"""Per partition, a range of offsets: the first, and the one after the last."""
Accepted = Callable[[], Mapping[tuple[str, int, int | str], int]]
"""Returns the losses that a person has accepted (`tidemark accept-loss`).

The key is the source, the partition, and the offset that the stream would read next; the value is the offset from which
it may continue. If the topic was recreated, the id of the new topic stands in place of the offset.
"""
Reread = Callable[[Source, Offsets], pl.DataFrame]
"""Reads records of a source's topic that Spark skipped."""


class DataLost(TidemarkError):
    """Raised when a topic no longer has records that are unread, or the log of a hop no longer has their commits."""


@dataclass(frozen=True)
class CheckedRows:
    """The rows of a source after the check.

    Attributes:
        rows: the rows.
        read_to: per partition, the offset from which the batch reads.
        losses: per partition, the lost offsets, whose loss was accepted.
        topic_ids: the id of the earlier topic of each partition whose topic was recreated after Spark had planned the
            batch, so that nothing of the partition was read.
    """

    rows: pl.DataFrame
    read_to: Mapping[int, int]
    losses: Offsets
    topic_ids: Mapping[int, str | None] = field(default_factory=dict)


def nothing_to_reread(source: Source, _: Offsets) -> pl.DataFrame:
    """Refuses to read records again: only Spark skips records, and here is no Spark.

    Raises:
        TidemarkError: always.
    """
    msg = f"{source.name}: its topic cannot be read again here"
    raise TidemarkError(msg)


class LossCheck:
    """Compares what a batch read with what brokers and hops still have.

    Args:
        name: the name of the stream, as commands take it.
        accepted: returns the losses that were accepted.
        reread: reads records that Spark skipped.
        hops_begin_at: by source that reads a hop, the first batch that the hop's log still has; 0 if no unread batch is
            missing there.
    """

    def __init__(
        self, name: str, accepted: Accepted, reread: Reread, hops_begin_at: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        self._name, self._accepted, self._reread, self._hops_begin_at = name, accepted, reread, hops_begin_at

    def lost_of_hop(self, source: HopSource, read_to: int) -> tuple[int, int] | None:
        """Returns the unread batches that the log of a hop lost, if that was accepted. *read_to* is the next to read.

        Returns:
            The first lost batch, and the one after the last; None if no batch is lost.

        Raises:
            DataLost: the loss was not accepted.
        """
        until = self._hops_begin_at.get(source.name, 0)
        if until <= read_to:
            return None
        # A hop is one sequence of batches, so an acceptance for it has partition 0.
        if self._accepted().get((source.name, 0, read_to), 0) < until:
            raise self._hop_error(source, read_to, until)
        return read_to, until

    def read_anew(
        self,
        source: Source,
        rows: pl.DataFrame,
        was: InputProgress,
        topic: TopicState | None,
        offsets: Offsets,
        batch: MicroBatch,
    ) -> CheckedRows:
        """Reads a topic that was recreated since the last batch, from the accepted offset to the planned end.

        If the topic was not recreated, *rows* are returned as they are.

        Known limitation: `max_records` does not limit these rows if the loss is accepted while the driver runs. If it
        is accepted before a start, the batch is cut into parts by `accepted_starts`.

        Args:
            source: the source.
            rows: its rows in the batch.
            was: its progress before the batch.
            topic: its topic, as it was after the rows were read, or None for a table or files.
            offsets: earliest and latest offset of each partition of the topic.
            batch: the batch.

        Raises:
            DataLost: the topic was recreated, and no person accepted that.
        """
        read_to = was.positions(offsets)
        # What was read of each partition while it was one of the earlier topic.
        earlier = {n: part for n, part in was.partitions.items() if topic and topic.replaces(n, part.topic_id)}
        if topic is None or not earlier:
            return CheckedRows(rows, read_to, {})
        ends, accepted = batch.ends.get(source.topic or "", {}), self._accepted()
        # A recreated topic may have fewer partitions. Missing partitions leave the progress of the stream.
        existing = {number: part for number, part in earlier.items() if number in offsets}
        read_to = {n: offset for n, offset in read_to.items() if n in existing or n not in earlier}
        # An acceptance names the new topic by its id, so it permits nothing if that is recreated once more.
        starts = {number: accepted.get((source.name, number, topic.id_of(number) or "")) for number in existing}
        # The topic may have lost the accepted offset since.
        not_accepted = {n: offsets[n] for n, start in starts.items() if start is None or start < offsets[n][0]}
        if not_accepted:
            raise self._recreation_error(source, existing, topic, not_accepted)
        losses: dict[int, tuple[int, int]] = {}
        anew: dict[int, tuple[int, int]] = {}
        planned_before: dict[int, str | None] = {}
        for number, part in existing.items():
            if source.reads_several and number not in ends:
                # Spark planned the batch while the topic did not exist. The next plan has the new one from its start.
                planned_before[number] = part.topic_id
                continue
            end = ends.get(number, offsets[number][1])
            if end > offsets[number][1]:
                # Spark planned this batch by the earlier topic, so its end is no offset of the new one.
                planned_before[number] = part.topic_id
                read_to[number], losses[number] = end, (part.until_offset, end)
                continue
            start = min(starts[number] or 0, end)
            read_to[number], losses[number], anew[number] = start, (part.until_offset, start), (start, end)
        # Spark continued at the offsets of the earlier topic, and skipped what is before them in the new one.
        rows = rows.filter(~pl.col("partition").is_in([*earlier]))
        if unread := {number: (start, end) for number, (start, end) in anew.items() if start < end}:
            rows = pl.concat([rows, self._reread(source, unread)], how="diagonal").sort("partition", "offset")
        return CheckedRows(rows, read_to, losses, planned_before)

    def deleted(
        self,
        source: Source,
        rows: pl.DataFrame,
        was: InputProgress,
        topic: TopicState,
        batch: MicroBatch,
        waiting: Collection[int] = (),
    ) -> tuple[Offsets, Offsets]:
        """Returns what is left to record of deleted topics, for a *source* that reads several topics.

        A deleted topic that was read to its end leaves the progress of the source with the first batch that reads
        nothing of it. Known limitation: if records came after the broker was last asked and before the topic was
        deleted, nobody knows of them.

        Args:
            source: the source, with the topic and partition of each input partition.
            rows: its rows in the batch.
            was: its progress before the batch.
            topic: its topics, as they were after the rows were read.
            batch: the batch.
            waiting: input partitions of which records wait for a later batch; they stay in the progress, too.

        Returns:
            By input partition that stays in the progress for this batch, the range of offsets that was read or lost;
            and the ranges that were lost, and whose loss was accepted.

        Raises:
            DataLost: unread records were deleted, and the loss was not accepted.
        """
        ends, accepted = batch.ends.get(source.topic or "", {}), self._accepted()
        read: dict[int, tuple[int, int]] = {}
        losses: dict[int, tuple[int, int]] = {}
        for number in range(len(source.topic_partitions)):
            if topic.has(number):
                continue
            part = was.partitions.get(number, PartitionProgress())
            offsets = rows.filter(pl.col("partition") == number)["offset"].sort().to_list()
            # Before the first batch it is not known where a topic began.
            start = part.until_offset if was.partitions else min(offsets, default=ends.get(number, 0))
            # Offsets without a gap were read. Without the topic it is not known if a gap is one of a compacted topic.
            in_order = sum(offset == start + index for index, offset in enumerate(offsets))
            until = max(start, ends.get(number, start), part.latest_offset or 0)
            lost_from = start + in_order
            if lost_from < until and accepted.get((source.name, number, start), 0) < until:
                observation = f"the topic was deleted before offsets {lost_from} until {until} were read"
                raise self._loss_error(source, number, observation, until)
            if lost_from < until:
                losses[number] = (lost_from, until)
            is_waiting = number in waiting
            if number in was.partitions and until == start and not is_waiting:
                name, partition = source.topic_partition(number)
                log.warning("topic %r was deleted: partition %s was read until offset %s", name, partition, start)
            if until > start or is_waiting:
                read[number] = (start if offsets else until, until)
        return read, losses

    @property
    def has_accepted(self) -> bool:
        """True if any loss was accepted."""
        return bool(self._accepted())

    def accepted_starts(self, source: Source, was: InputProgress, topic: TopicState | None) -> dict[int, int]:
        """Returns the accepted offsets of a recreated *topic*, by partition.

        Args:
            source: the source that reads the topic.
            was: its progress before the batch.
            topic: its topic as it is now, or None for a table or files.
        """
        starts: dict[int, int] = {}
        if topic is None:
            return starts
        accepted = self._accepted()
        for number, part in was.partitions.items():
            start = accepted.get((source.name, number, topic.id_of(number) or ""))
            if start is not None and topic.has(number) and topic.replaces(number, part.topic_id):
                starts[number] = start
        return starts

    def check(
        self,
        source: Source,
        rows: pl.DataFrame,
        read_to: Mapping[int, int],
        offsets: Offsets,
        batch: MicroBatch,
    ) -> CheckedRows:
        """Checks that no record between the last batch and *rows* is missing; accepted losses are skipped.

        The offsets of a recreated topic begin again. The stream continues from the accepted offset, so later rows of
        its tables have offsets that earlier rows have had already.

        Known limitation: in a cluster that gives topics no ids, a recreated topic that has already grown beyond the
        stream's offset is not detected.

        Args:
            source: the source.
            rows: its rows in the batch.
            read_to: per partition, the offset up to which earlier batches read.
            offsets: earliest and latest offset of the partitions that had no rows or a gap.
            batch: the batch.

        Raises:
            DataLost: records were lost, and the loss was not accepted.
        """
        ends = batch.ends.get(source.topic or "", {})
        continues_at = dict(read_to)
        losses: dict[int, tuple[int, int]] = {}
        anew: dict[int, tuple[int, int]] = {}
        for number, (earliest, _) in offsets.items():
            if number not in read_to:
                continue
            next_offset = read_to[number]
            end = ends.get(number, next_offset)
            # Offsets of a topic never go back, so Spark planned this batch on a recreated one.
            if end < next_offset:
                start = self._accepted_start(source, number, next_offset, earliest, end)
                continues_at[number], losses[number], anew[number] = start, (next_offset, start), (start, end)
            elif (gone := lost(rows, number, read_to=next_offset, earliest=earliest)) is not None:
                losses[number] = self._accepted_loss(source, number, next_offset, gone)
                continues_at[number] = gone[1] if gone[0] == next_offset else next_offset
        if unread := {number: (start, end) for number, (start, end) in anew.items() if start < end}:
            # Spark's offset was beyond the new topic's end. Spark continues from that end and skips what is before it.
            again = self._reread(source, unread)
            rows = pl.concat([rows, again], how="diagonal").sort("partition", "offset")
        return CheckedRows(rows, continues_at, losses)

    def _accepted_loss(self, source: Source, number: int, next_offset: int, gone: tuple[int, int]) -> tuple[int, int]:
        """Returns the lost offsets *gone* if their loss was accepted, and raises DataLost otherwise."""
        # An acceptance names the offset that the stream reads next, so it does not permit a later loss.
        if self._accepted().get((source.name, number, next_offset), 0) < gone[1]:
            raise self._loss_error(source, number, f"offsets {gone[0]} until {gone[1]} were lost unread", gone[1])
        return gone

    def _accepted_start(self, source: Source, number: int, next_offset: int, earliest: int, end: int) -> int:
        """Returns the accepted offset from which a recreated topic is read, and raises DataLost if there is none.

        The topic has offsets from *earliest* until *end*; *next_offset* is the next to read by the earlier topic.
        """
        accepted = self._accepted().get((source.name, number, next_offset))
        if accepted is None or not earliest <= accepted <= end:
            observation = (
                f"the topic was recreated or truncated: it ends at offset {end}, but {next_offset} was the next to read"
            )
            raise self._loss_error(source, number, observation, earliest)
        return accepted

    def _loss_error(self, source: Source, number: int, observation: str, until: int) -> DataLost:
        topic, partition = source.topic_partition(number)
        as_input = f" (input partition {number})" if source.reads_several else ""
        return DataLost(
            f"topic {topic!r}, partition {partition}{as_input}: {observation}; records are never skipped silently: "
            f"restore them, or accept the loss and continue from offset {until}: "
            f"{self._command(source.name, number, until)}"
        )

    def _recreation_error(
        self, source: Source, earlier: Mapping[int, PartitionProgress], topic: TopicState, not_accepted: Offsets
    ) -> DataLost:
        """Returns the error for a recreated *topic*.

        Args:
            source: the source.
            earlier: the partitions of the earlier topic, as they were read.
            topic: the new topic.
            not_accepted: earliest and latest offset of the partitions for which no loss was accepted.
        """
        new_id, name = topic.id_of(min(not_accepted)), source.topic_partition(min(not_accepted)).topic
        # Of several recreated topics the next start reports the next one.
        earlier = {n: part for n, part in earlier.items() if source.topic_partition(n).topic == name}
        not_accepted = {n: offsets for n, offsets in not_accepted.items() if n in earlier}
        read = ", ".join(
            f"partition {source.topic_partition(n).partition} was read until offset {earlier[n].until_offset}"
            for n in not_accepted
        )
        ids = ", ".join(sorted({str(earlier[n].topic_id) for n in not_accepted}))
        ends = ", ".join(f"{first} until {last}" for first, last in not_accepted.values())
        firsts = {first for first, _ in not_accepted.values()}
        # One command accepts all partitions that begin at the same offset.
        options = (
            [f"--until {first}" for first in firsts]
            if len(firsts) == 1 and not_accepted.keys() == earlier.keys()
            else [f"--partition {number} --until {first}" for number, (first, _) in not_accepted.items()]
        )
        commands = "; ".join(
            f"tidemark accept-loss {self._name} --source {source.name} --topic-id {new_id} {option} --by NAME "
            "--reason TEXT"
            for option in options
        )
        return DataLost(
            f"topic {name!r} was recreated: its id was {ids} and is {new_id}; {read} of the earlier topic; "
            f"the new one has offsets {ends}; records are never skipped silently: restore the earlier topic, or accept "
            f"the loss of its unread records and read the new one from its beginning: {commands}"
        )

    def _hop_error(self, source: HopSource, read_to: int, until: int) -> DataLost:
        command = self._command(source.name, 0, until)
        return DataLost(
            f"hop_{source.repartition} of {source.upstream}: the commits of batches {read_to} until {until} are "
            f"missing from its log, and {source.name} has not read them; batches are never skipped silently: their "
            f"rows are still in the table (batch_id >= {read_to} AND batch_id < {until}); accept the loss here and "
            f"continue from batch {until}: {command}"
        )

    def _command(self, source: str, partition: int, until: int) -> str:
        options = f"--source {source} --partition {partition} --until {until}"
        return f"tidemark accept-loss {self._name} {options} --by NAME --reason TEXT"
