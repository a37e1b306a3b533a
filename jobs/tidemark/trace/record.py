"""Follows one record through all operators of a topology.

How it works: facts (the stored measurements and proofs of a stream) name partition and offset of a record wherever its
update was emitted, suppressed, set aside or held. For what they do not name the record is read again from its topic,
and each operator runs over it alone, without state. That gives its key, and whether a condition filtered it out. If an
operator that emits on change has no fact about an update, a newer one had superseded it. Rows between two streams name
the record, too, so the trace continues in the stream that reads them.

Limits: records of tables and files are not read again. Where facts are gone, or a record is and the counts of its
batch leave several outcomes, the outcome is `unknown`; nothing is guessed. A union of two sources that read the same
partition and offset in one batch, with the same key, cannot tell them apart.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import polars as pl

from tidemark.errors import InvalidArgument
from tidemark.facts.record_facts import Row, StreamEvidence, at
from tidemark.facts.versions import NoVersion, version_of
from tidemark.graph import reached
from tidemark.kernels import META
from tidemark.kernels.columns.schemas import META_SCHEMA
from tidemark.kernels.columns.values import key_columns, key_text, parsed
from tidemark.kernels.records.arrivals import held_schema, hop_updates
from tidemark.model.kinds.aggregate import Aggregate
from tidemark.model.kinds.join import Join
from tidemark.model.kinds.operator import Operator
from tidemark.model.kinds.repartition import HopSource, Repartition
from tidemark.model.kinds.sink import Sink
from tidemark.model.kinds.source import Source
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import iso, utc
from tidemark.model.settings.lengths import by_number, for_people
from tidemark.model.settings.windows import Shape
from tidemark.model.stream import Stream
from tidemark.model.topology import SubTopology, Time, Topology
from tidemark.selection import index_by_name, omit
from tidemark.semantics.progress import InputProgress
from tidemark.stream.journal.batch import Moment
from tidemark.stream.operate.registry import step_of
from tidemark.stream.operate.steps import Steps
from tidemark.stream.read.intake import source_rows
from tidemark.stream.read.joined_tables import Reference
from tidemark.stream.startup.load import load_versions
from tidemark.stream.state.memory import Moves
from tidemark.stream.updates.step import Run
from tidemark.trace.outcomes import BatchTimes, OperatorResult, RecordOutcome, RecordPosition, RecordTrace, Visible

ReadRecords = Callable[[Source, int, Collection[int]], pl.DataFrame | None]
"""Returns parsed rows of a source at some offsets of a partition, without those that are gone.

None if the source cannot be read again.
"""
Aborted = Callable[[Source, int, Collection[int]], Collection[int]]
"""Returns those of some offsets of a partition at which there is a record of an aborted transaction."""
WhyUnread = Callable[[Source], str | None]
"""Returns why no record of a source can be read again; None if its topic can be asked."""


def nothing_aborted(source: Source, partition: int, offsets: Collection[int]) -> Collection[int]:
    """Finds no records of aborted transactions, for callers that cannot ask a broker."""
    return ()


def without_topic(source: Source) -> str | None:
    """Returns why records of *source* cannot be read again if it reads no topic."""
    return None if source.topic else "records of tables and files are not read again"


_EXACT = pl.col("last_offset") - pl.col("first_offset") + 1 == pl.col("n")
"""The condition for runs of suppressed updates without gaps: every offset from the first to the last belongs to the
run.
"""


class RecordsAgain(NamedTuple):
    """Records of a source that were read again, by outcome.

    Records that *passed* have the columns that operators read. *places* has `partition` and `offset` of all records.
    """

    passed: pl.DataFrame
    filtered: pl.DataFrame
    quarantined: pl.DataFrame
    places: pl.DataFrame


@dataclass(frozen=True)
class OperatorInput:
    """What an operator reads of the record in one batch; *records* is None where that cannot be made again."""

    batch_id: int
    records: pl.DataFrame | None


class Tracer:
    """Traces records of a topology.

    Args:
        topology: the topology.
        layout: paths of the warehouse.
        read: reads records again.
        aborted: finds records of aborted transactions.
        why_unread: says which sources cannot be read again.
    """

    def __init__(
        self,
        topology: Topology,
        layout: Layout,
        read: ReadRecords,
        aborted: Aborted = nothing_aborted,
        why_unread: WhyUnread = without_topic,
    ) -> None:
        self.topology, self.layout, self._read, self.aborted = topology, layout, read, aborted
        self.why_unread = why_unread
        self.steps = Steps(topology, Reference(layout.warehouse), checks_sql=False)
        subs = topology.sub_topologies
        self.evidence = {sub.name: StreamEvidence(Stream(topology, sub, layout)) for sub in subs}

    def source(self, name: str) -> Source:
        """Returns the source *name*, or the only one of the topic *name*.

        Raises:
            InvalidArgument: there is none, or several.
        """
        sources = index_by_name(self.topology.outside_sources)
        named = [sources[name]] if name in sources else [o for o in sources.values() if o.topic == name]
        if len(named) != 1:
            msg = f"{self.topology.name} has {len(named) or 'no'} sources {name!r}; known: {', '.join(sources)}"
            raise InvalidArgument(msg)
        return named[0]

    def why_gone(self, source: Source, records: int = 1) -> str:
        """Returns why a number of *records* of *source* were not read again."""
        them = by_number(records, "the record", "the records")
        return self.why_unread(source) or f"the topic {source.topic} no longer has {them}"

    def trace(self, place: RecordPosition) -> RecordTrace:
        """Returns what became of the record at *place*.

        Raises:
            InvalidArgument: there is no such source.
        """
        source = self.source(place.source)
        return _RecordWalk(self, source, place._replace(source=source.name)).trace()

    def read_again(
        self, source: Source, partition: int, offsets: Collection[int], decided_at_ms: int
    ) -> RecordsAgain | None:
        """Returns the records of *source* at *offsets* of *partition*, or None if the source cannot be read again.

        *decided_at_ms*, the decision time of their batch, is their record time in a topology of processing time.
        """
        rows = self._read(source, partition, offsets)
        if rows is None:
            return None
        if self.topology.time is Time.PROCESSING:
            rows = rows.with_columns(timestamp_ms=pl.lit(decided_at_ms, pl.Int64))
        sorted_rows = source_rows(
            source,
            rows.sort("partition", "offset"),
            pl.DataFrame(schema=held_schema(self.steps.schemas[source.name])),
            InputProgress(),
            read_to={},
            late_up_to_ms=None,
            allowed_ms=None,
            window_ms=self.topology.window_ms,
            decided_at_ms=decided_at_ms,
        ).rows
        places = rows.select("partition", "offset")
        return RecordsAgain(sorted_rows.on_time, sorted_rows.alive, sorted_rows.bad, places)

    def run(
        self, operator: Operator, inputs: Mapping[str, pl.DataFrame], evidence: StreamEvidence, batch_id: int
    ) -> Run:
        """Runs *operator* again over *inputs*, without state except for the versions that a join looks up.

        Clocks and watermarks are those of the batch *batch_id*, according to *evidence*.
        """
        frames = [
            inputs[name] if name in inputs else pl.DataFrame(schema=dict(self.steps.schemas[name]))
            for name in operator.inputs
        ]
        if isinstance(operator, Join) and operator.table:
            self._load_versions(operator, frames[0], evidence, batch_id)
        batch, before = evidence.batch(batch_id), evidence.before(batch_id)
        moment = Moment(
            was_watermark_ms=before["watermark"] if before else None,
            watermark_ms=batch["watermark"],
            held_by=None,
            was_decided_at_ms=before["decided_at"] if before else None,
            decided_at_ms=batch["decided_at"],
        )
        return self.steps.run(operator, frames, Moves(), moment)

    def _load_versions(self, join: Join, records: pl.DataFrame, evidence: StreamEvidence, batch_id: int) -> None:
        """Loads the versions that *records* may look up into memory."""
        rows, skipped = self.versions(join, records, evidence, batch_id)
        table = self.topology.operators[join.table or ""]
        versions = self.steps.memory.versions
        versions[table.name] = versions[table.name].clear()
        load_versions(self.steps, table, rows.with_columns(pl.from_epoch("timestamp", "ms")), skipped)

    def versions(
        self, join: Join, records: pl.DataFrame, evidence: StreamEvidence, batch_id: int
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Returns the emitted and the suppressed updates, up to a batch, of the table that *join* looks up.

        Only updates of the keys that *records* look up are returned.
        """
        table = self.topology.operators[join.table or ""]
        columns = {of_table: pl.col(column) for column, of_table in join.on.items()}
        asked = records.select(**columns)
        keys = asked.select(key_text(getattr(table, "key", ()), asked.schema)).to_series().unique().drop_nulls()
        where = (pl.col("key").is_in(keys.to_list()), pl.col("batch_id") <= batch_id)
        return evidence.sent(table.name, *where), evidence.skipped(table.name, *where)


class _RecordWalk:
    """Follows the record at *place*."""

    def __init__(self, tracer: Tracer, source: Source, place: RecordPosition) -> None:
        self._tracer, self._topology, self._steps = tracer, tracer.topology, tracer.steps
        self._source, self._place = source, place
        self._is_it = at(place.partition, place.offset)
        self._trace = RecordTrace(place=place, timestamp_ms=None)
        self._came_at_ms: int | None = None
        self._why_no_time = ""

    def trace(self) -> RecordTrace:
        """Returns the trace."""
        sub = self._topology.sub_topology_of(self._source.name)
        evidence = self._tracer.evidence[sub.name]
        arrivals = self._at_source(evidence)
        if arrivals:
            self._through(sub, {self._source.name: arrivals}, self._came_at_ms)
        why_no_time = self._why_no_time if self._came_at_ms is None and self._trace.batches else ""
        return replace(self._trace, timestamp_ms=self._came_at_ms, why_no_time=why_no_time)

    def _add_result(
        self,
        evidence: StreamEvidence,
        operator: Operator,
        batch_id: int | None,
        outcome: RecordOutcome,
        reason: str = "",
        key: str | None = None,
    ) -> None:
        result = OperatorResult(
            sub_topology=evidence.stream.sub.name,
            operator=operator.name,
            kind=operator.kind,
            batch_id=batch_id,
            outcome=outcome,
            key=key,
            reason=reason,
        )
        self._trace.results.append(result)

    def _at_source(self, evidence: StreamEvidence) -> list[OperatorInput]:
        """Adds what became of the record at its source, and returns what the operators downstream read of it."""
        source, (name, partition, offset) = self._source, self._place
        batch_id = evidence.batch_of(name, partition, offset)
        if batch_id is None:
            self._add_result(evidence, source, None, *self._unread(evidence))
            return []
        if self._is_set_aside(evidence, source, pl.col("batch_id") >= batch_id):
            return []
        rows = self._tracer.read_again(source, partition, [offset], evidence.batch(batch_id)["decided_at"])
        if rows and not (rows.passed.height or rows.filtered.height or rows.quarantined.height):
            rows = None
        if rows and rows.passed.height:
            self._came_at_ms = rows.passed["_timestamp_ms"].item()
        else:
            self._why_no_time = self._gone() if rows is None else "read again, the record does not pass its source"
        if held := evidence.held(name, partition, offset, pl.col("batch_id") >= batch_id):
            self._came_at_ms = held["timestamp"]
            released = self._first_named(evidence, pl.col("batch_id") > held["batch_id"], after=name)
            if released is None and offset >= evidence.progress[name].partitions[partition].done_until_offset:
                reason = "other partitions are behind (max_drift)"
            else:
                unnamed = "; it was sent on, and no fact downstream names it" if released is None else ""
                reason = f"other partitions were behind (max_drift){unnamed}"
            self._add_result(evidence, source, held["batch_id"], RecordOutcome.HELD, reason)
            if released is None:
                return []
            batch_id = released
        return self._passed(evidence, batch_id, rows)

    def _is_set_aside(self, evidence: StreamEvidence, operator: Operator, where: pl.Expr) -> bool:
        """Adds that *operator* set the record aside, if it did."""
        _, partition, offset = self._place
        if bad := evidence.bad(operator.name, partition, offset, where):
            detail = f": {bad['detail']}" if bad["detail"] else ""
            self._add_result(evidence, operator, bad["batch_id"], RecordOutcome.QUARANTINED, f"{bad['reason']}{detail}")
        elif late := evidence.late(operator.name, partition, offset, where):
            if operator is self._source:
                self._came_at_ms = late["timestamp"]
            self._add_result(evidence, operator, late["batch_id"], RecordOutcome.LATE, _lateness(late))
        return bool(bad or late)

    def _passed(self, evidence: StreamEvidence, batch_id: int, rows: RecordsAgain | None) -> list[OperatorInput]:
        """Adds whether the source sent the record on, and returns what the operators downstream read of it.

        *rows* is the record read again; None if it is gone.
        """
        source, counts = self._source, evidence.counts(batch_id, self._source.name)
        outcome, reason = RecordOutcome.PASSED, ""
        if rows and rows.filtered.height:
            outcome, reason = RecordOutcome.FILTERED, "it only moves time"
        elif rows is None or counts.get("duplicate"):
            # Only a record that was sent on has facts downstream.
            named = self._first_named(evidence, pl.col("batch_id") == batch_id, after=source.name)
            _, partition, offset = self._place
            if named is None and rows is None and self._tracer.aborted(source, partition, [offset]):
                outcome, reason = RecordOutcome.UNREAD, "it is of an aborted transaction"
            elif named is None:
                otherwise = self._gone() if rows is None else "no fact downstream names it"
                outcome, reason = _by_counts(evidence, batch_id, source, otherwise)
        self._add_result(evidence, source, batch_id, outcome, reason)
        return [OperatorInput(batch_id, rows.passed if rows else None)] if outcome is RecordOutcome.PASSED else []

    def _unread(self, evidence: StreamEvidence) -> tuple[RecordOutcome, str]:
        """Returns outcome and reason of a record that no known batch read."""
        name, partition, offset = self._place
        if evidence.is_lost(name, partition, offset):
            return RecordOutcome.LOST, "it was gone before it was read, and the loss was accepted"
        known = evidence.progress.get(name, InputProgress()).partitions
        if partition not in known:
            numbers = ", ".join(map(str, sorted(known))) or "none"
            return RecordOutcome.UNKNOWN, f"the stream knows no partition {partition}; known: {numbers}"
        reads = evidence.reads.filter(pl.col("source") == name, pl.col("partition") == partition)
        if offset >= (until := known[partition].until_offset):
            looks = reads.drop_nulls("latest_offset").tail(1)
            if looks.height and offset >= (end := looks["latest_offset"].item()):
                batch_id = looks["batch_id"].item()
                decided_at = iso(evidence.batch(batch_id)["decided_at"])
                return RecordOutcome.UNKNOWN, f"batch {batch_id}, of {decided_at}, found the partition's end at {end}"
            return RecordOutcome.UNREAD, f"the stream has read the offsets below {until}"
        return _of_unknown_batch(evidence, name, partition, offset)

    def _gone(self) -> str:
        return self._tracer.why_gone(self._source)

    def _first_named(self, evidence: StreamEvidence, where: pl.Expr, *, after: str) -> int | None:
        """Returns the first batch in which facts of an operator downstream of *after* name the record, or None."""
        batches: list[int] = []
        for operator in evidence.stream.sub.operators:
            if operator.name == after or after not in reached([operator.name], self._topology.flows):
                continue
            named = []
            if operator.emission or operator.hop_table:
                named.append(evidence.sent(operator.name, self._is_it, where))
                named.append(evidence.skipped(operator.name, self._in_run, where))
            elif isinstance(operator, Sink) and operator.table:
                named.append(self._rows_of_sink(evidence, operator, where))
            batches += [rows["batch_id"][0] for rows in named if rows.height]
        return min(batches, default=None)

    @property
    def _in_run(self) -> pl.Expr:
        """The condition for runs of suppressed updates that may include the record."""
        first, last = pl.col("first_offset"), pl.col("last_offset")
        offset = self._place.offset
        return (pl.col("source_partition") == self._place.partition) & (first <= offset) & (last >= offset)

    def _through(self, sub: SubTopology, arrived: dict[str, list[OperatorInput]], came_at_ms: int | None) -> None:
        """Follows the record through the operators of *sub*, and then into the streams that read its results.

        *arrived* has what each source hands on. The record came at *came_at_ms*, None if that is not known.
        """
        evidence = self._tracer.evidence[sub.name]
        batches: dict[int, list[str]] = {}

        def note(name: str, arrivals: Iterable[OperatorInput]) -> None:
            for arrival in arrivals:
                batches.setdefault(arrival.batch_id, []).append(name)

        for name, arrivals in arrived.items():
            note(name, arrivals)
        for operator in (each for each in sub.operators if each.name not in arrived):
            results = arrived[operator.name] = []
            for flow in operator.flows:
                note(operator.name, arrived.get(flow, []))
                results += self._at(evidence, operator, flow, arrived.get(flow, []))
            note(operator.name, results)
        finished: dict[int, int] = {}
        for batch_id, names in sorted(batches.items()):
            times = self._times(evidence, batch_id, names, came_at_ms)
            self._trace.batches.append(times)
            # What was held waits again, from the end of its first batch on.
            finished[batch_id] = came_at_ms = times.finished_at_ms
        for repartition in (self._topology.repartition(each.name) for each in sub.operators if each.hop_table):
            for arrival in arrived[repartition.name]:
                self._over(evidence, repartition, arrival, finished[arrival.batch_id])

    def _at(
        self, evidence: StreamEvidence, operator: Operator, flow: str, arrivals: Iterable[OperatorInput]
    ) -> list[OperatorInput]:
        """Adds what became of *arrivals*, which came from *flow*, at *operator*, and returns the results."""
        if isinstance(operator, Sink):
            return self._at_sink(evidence, operator, arrivals)
        return [*chain.from_iterable(self._at_once(evidence, operator, flow, each) for each in arrivals)]

    def _at_once(
        self, evidence: StreamEvidence, operator: Operator, flow: str, arrival: OperatorInput
    ) -> list[OperatorInput]:
        """Adds what became of one *arrival*, and returns the results; the arguments are those of `_at`."""
        if self._is_set_aside(evidence, operator, pl.col("batch_id") == arrival.batch_id):
            return self._reopened(evidence, operator, arrival)
        run = None
        if arrival.records is not None:
            run = self._tracer.run(operator, {flow: arrival.records}, evidence, arrival.batch_id)
        if operator.emission:
            return _Judged(self, evidence, operator, arrival, run).results()
        return self._plain(evidence, operator, arrival, run)

    def _reopened(self, evidence: StreamEvidence, operator: Operator, arrival: OperatorInput) -> list[OperatorInput]:
        """Adds the outcome of a late record that came in again because its window was reopened."""
        if not isinstance(operator, Aggregate):
            return []
        later = pl.col("batch_id") > arrival.batch_id
        runs = evidence.skipped(operator.name, self._in_run, _EXACT, later)
        named = (evidence.sent(operator.name, self._is_it, later), runs)
        batches = [rows["batch_id"][0] for rows in named if rows.height]
        if not batches:
            return []
        # Run again alone, the record would be late once more, so its keys are read from facts.
        return _Judged(self, evidence, operator, OperatorInput(min(batches), None), None).results()

    def _plain(
        self, evidence: StreamEvidence, operator: Operator, arrival: OperatorInput, run: Run | None
    ) -> list[OperatorInput]:
        """Follows the record through an operator that does not emit on change.

        *run* is what the operator made of *arrival* when it ran again; None if the record cannot be read again.
        """
        counts = evidence.counts(arrival.batch_id, operator.name)
        rows = run.output if run else None
        outcome, reason = RecordOutcome.PASSED, ""
        if run is None:
            named = operator.hop_table and self._handed_rows(evidence, operator, arrival.batch_id).height
            batch = pl.col("batch_id") == arrival.batch_id
            if not named and self._first_named(evidence, batch, after=operator.name) is None:
                outcome, reason = _by_counts(evidence, arrival.batch_id, operator, self._gone())
        elif not run.output.height:
            outcome, reason = RecordOutcome.FILTERED, _condition(operator)
        if counts and outcome.value not in counts and outcome is not RecordOutcome.UNKNOWN:
            # A Delta table that a join looks up may have changed since.
            otherwise = "what it looked up has changed since"
            outcome, reason = _by_counts(evidence, arrival.batch_id, operator, otherwise)
            rows = None
        self._add_result(evidence, operator, arrival.batch_id, outcome, reason)
        return [OperatorInput(arrival.batch_id, rows)] if outcome is RecordOutcome.PASSED else []

    def _at_sink(self, evidence: StreamEvidence, sink: Sink, arrivals: Iterable[OperatorInput]) -> list[OperatorInput]:
        """Adds that *sink* handed the record on in each batch, and the version of its table that first has it.

        A batch may have several updates of the record, and all are in the table.
        """
        by_batch: dict[int, list[OperatorInput]] = {}
        for arrival in arrivals:
            by_batch.setdefault(arrival.batch_id, []).append(arrival)
        for batch_id, of_batch in sorted(by_batch.items()):
            if self._is_set_aside(evidence, sink, pl.col("batch_id") == batch_id):
                continue
            reason = f"sent to the topic {sink.topic}" if sink.topic else f"written to {sink.table}"
            if sink.table:
                commit = version_of(evidence, sink.table, batch_id)
                rows = self._rows_of_sink(evidence, sink, pl.col("batch_id") == batch_id).height
                # Behind a union another source may have a record with this partition and offset in this batch.
                sent = sum(rows if arrival.records is None else arrival.records.height for arrival in of_batch)
                rows = min(rows, sent or rows)
                visible = Visible(table=sink.table, rows=rows, batch_id=batch_id, commit=commit)
                reason = _of_rows(sink, visible)
                if rows or commit is NoVersion.NOT_COMMITTED:
                    self._trace.visible.append(visible)
            self._add_result(evidence, sink, batch_id, RecordOutcome.PASSED, reason)
        return []

    def _rows_of_sink(self, evidence: StreamEvidence, sink: Sink, where: pl.Expr) -> pl.DataFrame:
        """Returns the rows of the table of *sink* that the record caused."""
        return evidence.rows_of_table(sink.table or "", self._is_it, where)

    def _handed_rows(self, evidence: StreamEvidence, operator: Operator, batch_id: int) -> pl.DataFrame:
        return evidence.sent(operator.name, self._is_it, pl.col("batch_id") == batch_id)

    def _over(
        self, evidence: StreamEvidence, repartition: Repartition, arrival: OperatorInput, finished_at_ms: int
    ) -> None:
        """Follows the record into the streams that read what *repartition* wrote."""
        rows = self._handed_rows(evidence, repartition, arrival.batch_id)
        for sub, source in readers_of(self._topology, repartition.name):
            reader = self._tracer.evidence[sub.name]
            batch_id = reader.batch_of(source.name, 0, arrival.batch_id)
            if batch_id is None:
                until = reader.progress.get(source.name, InputProgress()).offsets_read.get(0, 0)
                unread = f"{sub.name} has not read batch {arrival.batch_id} of {repartition.name} yet"
                outcome, reason = (
                    (RecordOutcome.UNREAD, unread)
                    if arrival.batch_id >= until
                    else _of_unknown_batch(reader, source.name, 0, arrival.batch_id)
                )
                self._add_result(reader, source, None, outcome, reason)
                continue
            self._add_result(reader, source, batch_id, RecordOutcome.PASSED)
            records = self._steps.hop_records(source, hop_updates(rows)) if rows.height else None
            self._through(sub, {source.name: [OperatorInput(batch_id, records)]}, finished_at_ms)

    def _path(self, name: str) -> list[str]:
        """Returns *name* and the operators before it through which the record came."""
        flows = self._topology.operators[name].flows
        of_record = [flow for flow in flows if self._source.name in reached([flow], self._topology.flows)] or [*flows]
        return [name, *(self._path(of_record[0]) if of_record else [])]

    def _times(
        self, evidence: StreamEvidence, batch_id: int, names: Iterable[str], came_at_ms: int | None
    ) -> BatchTimes:
        """Returns the times of a batch that the record went through, at the operators *names*."""
        batch, is_named = evidence.work(batch_id), pl.col("operator").is_in([*names])
        clocks = (
            evidence.clocks(batch_id)
            .filter(is_named)
            .group_by("operator")
            .agg(pl.col("finished_at", "queued_ms").max())
        )
        queued: dict[str, int] = dict(clocks.select("operator", "queued_ms").iter_rows())
        last = clocks.sort("finished_at", "operator").tail(1)
        # Branches wait for each other, so only waits on the way to the last result are parts of the time.
        way = self._path(last["operator"].item()) if last.height else []
        # A source's wait includes that of the batch; without rows of latency only that one is known.
        queued_ms = sum(queued.get(name, 0) for name in way) if way else batch["queued_ms"] or 0
        finished_ms = last["finished_at"].item() if last.height else batch["finished_at"]
        started_ms = batch["started_at"]
        return BatchTimes(
            sub_topology=evidence.stream.sub.name,
            batch_id=batch_id,
            came_at_ms=came_at_ms,
            started_at_ms=started_ms,
            finished_at_ms=finished_ms,
            queued_ms=queued_ms,
        )


class _Judged:
    """Finds what became of the updates of one record at an operator that emits on change.

    Args:
        walk: follows the record.
        evidence: the facts of the operator's stream.
        operator: the operator.
        arrival: what it reads of the record.
        run: what it makes of that when it runs again; None if the record's content is unknown.
    """

    def __init__(
        self, walk: _RecordWalk, evidence: StreamEvidence, operator: Operator, arrival: OperatorInput, run: Run | None
    ) -> None:
        self._walk, self._evidence, self._operator, self._arrival, self._run = walk, evidence, operator, arrival, run
        batch = pl.col("batch_id")
        self._holds = operator.emission is not None and operator.emission.holds
        # Held updates are decided in a later batch.
        when = batch >= arrival.batch_id if self._holds else batch == arrival.batch_id
        self._sent = self._with_key(evidence.sent(operator.name, walk._is_it, when))
        self._skipped = evidence.skipped(operator.name, walk._in_run, when)

    def results(self) -> list[OperatorInput]:
        """Adds the outcome of each update, and returns what was sent on."""
        keys = self._keys()
        if keys is None:
            keys = {*self._sent["key"], *self._exact_runs()["key"]}
            if not keys:
                self._add(*_by_counts(self._evidence, self._arrival.batch_id, self._operator, self._walk._gone()))
                return []
        elif not keys:
            return self._without_key()
        results: list[OperatorInput] = []
        for key in sorted(keys):
            results += self._of_key(key)
        return results

    @property
    def _counts(self) -> dict[str, int]:
        return self._evidence.counts(self._arrival.batch_id, self._operator.name)

    def _add(
        self, outcome: RecordOutcome, reason: str = "", key: str | None = None, batch_id: int | None = None
    ) -> None:
        batch_id = self._arrival.batch_id if batch_id is None else batch_id
        self._walk._add_result(self._evidence, self._operator, batch_id, outcome, reason, key)

    def _with_key(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Returns *rows* with the key by which the operator compares updates: of a repartition that is its `id`."""
        return rows.drop("key").rename({"id": "key"}) if self._operator.hop_table else rows

    def _keys(self) -> set[str] | None:
        """Returns the keys of the record's updates, or None if its content is unknown."""
        if self._run is None:
            return None
        rows = self._run.rows
        keys = {
            *chain.from_iterable(
                rows[name]["key"] for name in ("changes", "suppressed", "state_changes") if name in rows
            )
        }
        if self._operator.hop_table:
            keys |= {*rows[self._operator.name]["id"]}
        if self._is_session:
            # Facts name the session that included the record then. Sessions that it was merged into later had another
            # key, and updates of other records.
            named = {*self._sent["key"], *self._exact_runs()["key"]}
            of_named = {_group(key) for key in named}
            keys = named | self._sessions({key for key in keys if _group(key) not in of_named})
        return keys - {None}

    @property
    def _is_session(self) -> bool:
        return self._operator.windows is not None and self._operator.windows.shape is Shape.SESSION

    def _sessions(self, alone: Collection[str]) -> set[str]:
        """Returns the keys of the sessions that include the record.

        *alone* are the keys of the sessions that the record would make without any other.
        """
        groups = {_group(key) for key in alone}
        at_ms = self._arrival.records["_timestamp_ms"].item() if self._arrival.records is not None else 0
        states = self._evidence.states(self._operator.name, pl.col("batch_id") >= self._arrival.batch_id)
        sent = self._evidence.sent(self._operator.name, pl.col("batch_id") >= self._arrival.batch_id)
        columns = ["batch_id", "key", "window_start", "window_end"]
        both = pl.concat([states.select(columns), sent.select(columns)]).drop_nulls()
        including = both.filter((pl.col("window_start") <= at_ms) & (pl.col("window_end") > at_ms))
        last = [key for key in including.sort("batch_id", maintain_order=True)["key"] if _group(key) in groups]
        return {last[-1]} if last else {*alone}

    def _exact_runs(self) -> pl.DataFrame:
        """Returns the runs of suppressed updates without gaps, which surely include the record."""
        return self._skipped.filter(_EXACT)

    def _without_key(self) -> list[OperatorInput]:
        """Adds the outcome of a record that is no update here."""
        counts = self._run.counts if self._run else {}
        words = ("filtered", "late", "quarantined", "superseded", "suppressed")
        outcome = next((RecordOutcome(word) for word in words if counts.get(word)), RecordOutcome.UNKNOWN)
        reason = _condition(self._operator) if outcome is RecordOutcome.FILTERED else ""
        if outcome is RecordOutcome.UNKNOWN:
            reason = _without_fact(self._evidence, self._arrival.batch_id, self._operator)
        self._add(outcome, reason)
        return []

    def _of_key(self, key: str) -> list[OperatorInput]:
        """Adds the outcome of the record's update of *key*, and returns the records that were sent on for it."""
        sent = self._sent.filter(pl.col("key") == key)
        if sent.height:
            batch_id = sent["batch_id"][0]
            waited = f"it waited from batch {self._arrival.batch_id} on" if batch_id > self._arrival.batch_id else ""
            self._add(RecordOutcome.EMITTED, waited, key, batch_id)
            return [OperatorInput(batch_id, self._output(key, sent))]
        skipped = self._skipped.filter(pl.col("key") == key)
        if skipped.height:
            row = skipped.row(0, named=True)
            self._add(RecordOutcome.SUPPRESSED, self._repeats(row), key, row["batch_id"])
        elif self._holds:
            self._add(*self._waits(key), key)
        elif self._counts.get("superseded"):
            self._add(RecordOutcome.SUPERSEDED, self._overtaken(key), key)
        else:
            self._add(RecordOutcome.UNKNOWN, _without_fact(self._evidence, self._arrival.batch_id, self._operator), key)
        return []

    def _output(self, key: str, sent: pl.DataFrame) -> pl.DataFrame | None:
        """Returns the records of *key* for readers, from rows *sent*."""
        name = self._operator.name
        if self._operator.hop_table:
            return None  # the stream that reads the table of a repartition reads its rows
        schema = self._walk._steps.schemas[name]
        if self._run is not None and self._run.asserted.width and not isinstance(self._operator, Aggregate):
            rows = self._run.asserted.filter(pl.col("_key") == key)
            return rows.select(pl.col(c).cast(kind) for c, kind in schema.items())
        return sent_records(self._walk._tracer, self._operator, sent)

    def _repeats(self, run: Row) -> str:
        """Returns which emitted update the suppressed *run* repeats."""
        if run["old_timestamp"] is None:
            return "it deletes a key that has no value"
        key = pl.col("id" if self._operator.hop_table else "key") == run["key"]
        value_hash = run["value_hash"]
        earlier = self._evidence.sent(
            self._operator.name,
            key,
            # The instant alone says in which files it may be.
            pl.col("timestamp") == utc(run["old_timestamp"]),
            pl.col("batch_id") <= run["batch_id"],
            # Polars 1 writes `eq_missing` into a filter of Arrow that Arrow cannot read.
            pl.col("value_hash").is_null() if value_hash is None else pl.col("value_hash") == value_hash,
        )
        text = f"it repeats the value of {iso(run['old_timestamp'])}"
        if not earlier.height:
            return f"{text}; no fact names the record that had it"
        place = earlier.select("source_partition", "source_offset", "batch_id").row(-1)
        return f"{text}, emitted for {place[0]}/{place[1]} in batch {place[2]}"

    def _waits(self, key: str) -> tuple[RecordOutcome, str]:
        """Returns the outcome of an update of *key* that was held."""
        name, since = self._operator.name, pl.col("batch_id") >= self._arrival.batch_id
        of_key = (pl.col("id" if self._operator.hop_table else "key") == key, since)
        sent = self._evidence.sent(name, *of_key)
        states = self._evidence.states(name, pl.col("key") == key, since).drop_nulls("state")
        places = pl.concat([rows.select("batch_id", "source_partition", "source_offset") for rows in (states, sent)])
        others = places.filter(~self._walk._is_it).sort("batch_id", maintain_order=True)
        if others.height:
            batch_id, partition, offset = others.row(0)
            return RecordOutcome.SUPERSEDED, f"{partition}/{offset} overtook it in batch {batch_id}"
        if states.height:
            return RecordOutcome.HELD, "it waits for the end of its window or interval"
        return RecordOutcome.UNKNOWN, _without_fact(self._evidence, self._arrival.batch_id, self._operator)

    def _overtaken(self, key: str) -> str:
        """Returns which update of *key* in the same batch was newer."""
        batch = pl.col("batch_id") == self._arrival.batch_id
        sent = self._with_key(self._evidence.sent(self._operator.name, batch)).filter(pl.col("key") == key)
        if sent.height:
            partition, offset = sent.select("source_partition", "source_offset").row(-1)
            return f"{partition}/{offset} was newer, and is emitted"
        return "a newer update of its key counts"


def _of_rows(sink: Sink, visible: Visible) -> str:
    """Returns a clause about the rows that the table of *sink* has of a record."""
    if visible.rows:
        return f"written to {sink.table}"
    if visible.commit is NoVersion.NOT_COMMITTED:
        return f"{sink.table} does not have it yet"
    gone = "a newer one of its key replaced it, or it is deleted" if sink.key else "it was deleted"
    return f"{sink.table} has no row of it any more: {gone}"


def readers_of(topology: Topology, repartition: str) -> Iterator[tuple[SubTopology, HopSource]]:
    """Yields the streams that read what *repartition* writes, each with the source that does."""
    for sub in topology.sub_topologies:
        for source in sub.hops_read:
            if source.repartition == repartition:
                yield sub, source


def sent_records(tracer: Tracer, operator: Operator, sent: pl.DataFrame) -> pl.DataFrame:
    """Returns the records that *operator* handed on, from rows of `changes`."""
    schema = omit(tracer.steps.schemas[operator.name], META)
    key = {c: kind for c, kind in schema.items() if c in (step_of(operator).key(operator) or ())}
    values = omit(schema, key)
    meta = {
        "_key": pl.col("key"),
        "_timestamp_ms": pl.col("timestamp"),
        "_partition": pl.col("source_partition"),
        "_offset": pl.col("source_offset"),
        "_task": pl.lit(0),
        "_deleted": pl.col("value").is_null(),
        "_headers": pl.lit(None),
        "_newest_ms": pl.col("timestamp"),
        "_repeated": pl.lit(value=False),
        "_read": pl.lit(None),
    }
    rows = sent.with_columns(_of_value=parsed("value", values)) if values else sent
    columns = {c: pl.col("_of_value").struct.field(c) for c in values}
    return rows.select(
        **key_columns("key", key), **columns, **{c: meta[c].cast(kind) for c, kind in META_SCHEMA.items()}
    ).select(*schema, *META)


def _of_unknown_batch(evidence: StreamEvidence, source: str, partition: int, offset: int) -> tuple[RecordOutcome, str]:
    """Returns what became of the record at *offset*, and why, if the stream is past it and no known batch read it."""
    of_partition = (pl.col("source") == source, pl.col("partition") == partition)
    first = evidence.reads.filter(*of_partition)["from_offset"].min()
    assert first is None or isinstance(first, int)
    is_older = first is None or offset < first
    if is_older and not evidence.are_whole:
        oldest = "" if first is None else f"; the oldest are of offset {first}"
        return RecordOutcome.UNKNOWN, f"facts of that time are no longer kept{oldest}"
    if is_older and first is not None:
        return RecordOutcome.UNREAD, f"the stream began to read the partition at offset {first}"
    return RecordOutcome.UNKNOWN, "its batch has no facts yet; they follow with the next batch"


def _without_fact(evidence: StreamEvidence, batch_id: int, operator: Operator) -> str:
    """Returns why no fact says what became of a record that *operator* read in a batch."""
    are_kept = evidence.are_kept(batch_id, operator.name)
    return "no fact tells what became of it" if are_kept else "its facts are no longer kept"


def _by_counts(
    evidence: StreamEvidence, batch_id: int, operator: Operator, otherwise: str
) -> tuple[RecordOutcome, str]:
    """Returns the only outcome that records of a batch had at *operator*, according to its counts.

    Where the batch had several, the outcome is unknown, for the reason *otherwise*.
    """
    counts = evidence.counts(batch_id, operator.name)
    # What waits, or waited of something that began anew, is no outcome of a record that the batch read.
    words = [word for word in counts if word not in {"held_after", "dropped"}]
    if not words:
        return RecordOutcome.UNKNOWN, _without_fact(evidence, batch_id, operator)
    if len(words) == 1 and words[0] in {*RecordOutcome}:
        return RecordOutcome(words[0]), ""
    return RecordOutcome.UNKNOWN, f"{' or '.join(words)}: {otherwise}"


def _lateness(late: Row) -> str:
    behind = f"{for_people(late['lateness_ms'])} behind the watermark {iso(late['watermark'])}"
    return f"{behind}, which {late['blocked_by']} determined" if late["blocked_by"] else behind


def _condition(operator: Operator) -> str:
    if looked_up := operator.joined_table or operator.joined_delta:
        return f"no row of {looked_up} matches"
    where = getattr(operator, "where", None)
    return f"not: {where}" if where else "deletions are no records here"


def _group(key: str) -> str:
    """Returns the *key* of a session without its start."""
    fields = json.loads(key)
    return json.dumps({name: value for name, value in fields.items() if name != "window_start"})
