"""Counts the records of hours, from the broker to the tables.

How it works: the records of the span are read again from the broker, and go through the operators together, without
state. Facts (the stored measurements and proofs of a stream) name partition and offset of a record, which gives the
outcome of each. So every stage is counted independently: the broker's offsets, the rows of facts, and the rows of the
tables. Hours are of record time, UTC.
A record that the broker has deleted since is no difference: it is counted where facts or tables have it, and named as
gone. Tables that keep only current rows, and topics, are not counted. If a source drops records that its writer
repeats, the repetitions are counted by batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from tidemark.errors import InvalidArgument
from tidemark.facts.record_facts import StreamEvidence, between
from tidemark.kernels.columns.values import key_text
from tidemark.kernels.records.arrivals import hop_updates
from tidemark.kernels.reports.operator_tasks import NEEDED, measured_tasks
from tidemark.model.kinds.aggregate import Aggregate
from tidemark.model.kinds.operator import Operator
from tidemark.model.kinds.sink import Sink
from tidemark.model.kinds.source import Source
from tidemark.model.settings.intervals import Grain, iso
from tidemark.model.settings.lengths import counted
from tidemark.model.tables.catalog import BECAME, CAME_IN, DEAD_LETTERS, OPERATOR_BATCHES
from tidemark.semantics.dead_letters import DeadLetterKind
from tidemark.semantics.progress import InputProgress
from tidemark.semantics.watermark import is_window_late
from tidemark.trace.outcomes import COUNTED
from tidemark.trace.record import Tracer, readers_of, sent_records

HOUR_MS = Grain.HOUR.length_ms
BROKER = "broker"
TABLE = "table"
Ends = Callable[[Source, Collection[int]], Mapping[int, tuple[int, int]]]
"""Returns, by partition, the first offset that the broker still has and the next that it will give;
empty if unknown.
"""
Reason = Callable[[Source, int, Collection[int]], str]
"""Returns why there is no record at some offsets of a partition."""
RECORD_ID = ["_partition", "_offset"]
"""The columns that identify a record of a source."""
OUTCOME_WORDS = tuple(outcome.value for outcome in COUNTED)


@dataclass(frozen=True, kw_only=True)
class StageCount:
    """The number of records of one hour and partition at a stage.

    Attributes:
        hour_ms: start of the hour, epoch ms; None for records without a usable time.
        partition: the input partition.
        stage: BROKER, the name of an operator, or TABLE and the name of a table.
        records: the number of records.
        outcomes: the same number by outcome; empty at the broker and at tables.
    """

    hour_ms: int | None
    partition: int
    stage: str
    records: int
    outcomes: Mapping[str, int] = field(default_factory=dict)

    @property
    def row(self) -> dict[str, Any]:
        """Returns the count as a row of a document."""
        hour = None if self.hour_ms is None else iso(self.hour_ms)
        return {"hour": hour, "partition": self.partition, "stage": self.stage, "records": self.records} | {
            word: self.outcomes.get(word, 0) for word in OUTCOME_WORDS
        }


_OPEN = "so far; the watermark has not passed the end, so more records may come"


@dataclass(frozen=True)
class Reconciliation:
    """Counts by hour, partition and stage, with differences and remarks.

    `is_over` is True once the watermark of the source has passed the span, so that no more records are expected.
    """

    is_over: bool
    counts: list[StageCount] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """True if no record is missing, and the watermark of the source has passed the span."""
        return self.is_over and not self.differences

    @property
    def conclusion(self) -> str:
        """Returns the answer in a line."""
        if self.differences:
            return counted(len(self.differences), "difference")
        if all(count.hour_ms is None for count in self.counts):
            neither = "no records: neither the broker nor the stream has one of this span"
            return neither if self.is_over else f"no records {_OPEN}"
        return "whole: every count agrees" if self.is_over else f"every count agrees {_OPEN}"

    @property
    def document(self) -> dict[str, Any]:
        """Returns the reconciliation for JSON."""
        return {
            "counts": [count.row for count in self.counts],
            "differences": self.differences,
            "remarks": self.remarks,
            "is_whole": self.is_whole,
        }


def unknown_reason(source: Source, partition: int, offsets: Collection[int]) -> str:
    """Says that the reason is not known, for callers that cannot ask a broker."""
    return "why is not known"


def reconcile(
    tracer: Tracer,
    ends: Ends,
    source: str,
    *,
    start_ms: int,
    end_ms: int,
    why_without_record: Reason = unknown_reason,
) -> Reconciliation:
    """Counts the records of *source* in a span of record time at each stage.

    Args:
        tracer: reads records and facts of the topology.
        ends: the offsets that the broker has.
        source: name of the source.
        start_ms: start of the span, inclusive, epoch ms.
        end_ms: end of the span, exclusive, epoch ms.
        why_without_record: why there is no record at an offset.

    Raises:
        InvalidArgument: there is no such source, or its records cannot be read again.
    """
    return _Count(tracer, ends, why_without_record, tracer.source(source), start_ms, end_ms).whole()


class _Count:
    """Counts the records of *source* in a span."""

    def __init__(
        self,
        tracer: Tracer,
        ends: Ends,
        why_without_record: Reason,
        source: Source,
        start_ms: int,
        end_ms: int,
    ) -> None:
        self._tracer, self._source, self._why_without_record = tracer, source, why_without_record
        self._start_ms, self._end_ms = start_ms, end_ms
        sub = tracer.topology.sub_topology_of(source.name)
        self._evidence = tracer.evidence[sub.name]
        watermark_ms = self._evidence.progress.get(source.name, InputProgress()).watermark_ms
        self._result = Reconciliation(is_over=is_window_late(end_ms, watermark_ms))
        self._reads = self._overlapping()
        self._ends = ends(source, sorted({*self._reads["partition"], *self._known_partitions()}))

    def whole(self) -> Reconciliation:
        """Returns the counts of all stages."""
        name = self._source.name
        if (reason := self._tracer.why_unread(self._source)) is not None:
            msg = f"{name}: its records cannot be counted again: {reason}"
            raise InvalidArgument(msg)
        if not self._ends:
            why = f"`tidemark why {self._tracer.topology.name}` says why"
            msg = f"{name} has read nothing yet, so there is nothing to count; {why}"
            raise InvalidArgument(msg)
        records = self._at_source()
        self._unread()
        if self._evidence.batches.height:
            self._through(self._evidence, {name: records}, self._batch_of(self._reads))
        self._outcomes_close()
        order = {stage: n for n, stage in enumerate(dict.fromkeys(count.stage for count in self._result.counts))}
        self._result.counts.sort(key=lambda c: (c.hour_ms is None, c.hour_ms or 0, c.partition, order[c.stage]))
        return self._result

    def _known_partitions(self) -> Collection[int]:
        progress = self._evidence.progress.get(self._source.name)
        return progress.partitions if progress else ()

    def _overlapping(self) -> pl.DataFrame:
        """Returns the reads that may have records of the span."""
        reads = self._evidence.reads.filter(
            pl.col("source") == self._source.name, pl.col("until_offset") > pl.col("from_offset")
        )
        of_source = self._evidence.rows(OPERATOR_BATCHES, pl.col("operator") == self._source.name, columns=NEEDED)
        # Record times of a batch lie between its finish clock less the largest and the smallest latency.
        times = measured_tasks(of_source).select(
            "batch_id",
            "partition",
            first_ms=pl.col("finished_at") - pl.col("max_ms"),
            last_ms=pl.col("finished_at") - pl.col("min_ms"),
        )
        timed = reads.join(times, on=["batch_id", "partition"], how="left")
        may_have = (pl.col("first_ms") < self._end_ms) & (pl.col("last_ms") >= self._start_ms)
        return timed.filter(may_have.fill_null(value=True)).sort("batch_id", "partition")

    def _at_source(self) -> pl.DataFrame:
        """Counts the records at the broker and at the source; returns those that the source passed on."""
        name = self._source.name
        frames, aside_frames = [], []
        without_record: dict[int, set[int]] = {}
        for batch_id, partition, first, until in self._reads.select(
            "batch_id", "partition", "from_offset", "until_offset"
        ).iter_rows():
            kept_from = self._ends.get(partition, (first, until))[0]
            if kept_from > first:
                gone = f"{first} to {min(kept_from, until) - 1}"
                self._result.remarks.append(
                    f"{name}, partition {partition}: the broker has deleted offsets {gone} of batch {batch_id}; "
                    "they are not counted again"
                )
            decided_at_ms = self._evidence.batch(batch_id)["decided_at"]
            offsets = range(max(first, kept_from), until)
            reread = self._tracer.read_again(self._source, partition, offsets, decided_at_ms)
            if reread is None:
                msg = f"{name}: no address of its broker is known; give --bootstrap HOST:PORT"
                raise InvalidArgument(msg)
            without_record.setdefault(partition, set()).update({*offsets} - {*reread.places["offset"]})
            frames.append(reread.passed)
            for word, set_aside in (("filtered", reread.filtered), ("quarantined", reread.quarantined)):
                # A record that is quarantined for its time belongs to no hour.
                has_time = ~pl.col("reason").fill_null("").str.starts_with("timestamp_")
                at_ms = pl.when(has_time).then("timestamp_ms")
                rows = set_aside.select(_partition="partition", _offset="offset", _timestamp_ms=at_ms)
                aside_frames.append(rows.with_columns(_word=pl.lit(word)))
        empty = pl.DataFrame(schema=dict(self._tracer.steps.schemas[name]))
        passed = pl.concat([empty, *frames])
        frames_of_outcomes = [
            _with_outcome(passed, pl.lit("passed")),
            *(rows.select(*RECORD_ID, "_timestamp_ms", "_word") for rows in aside_frames),
        ]
        outcomes = pl.concat(frames_of_outcomes)
        self._reread = outcomes.select(RECORD_ID)
        whole = self._with_facts(self._evidence, name, outcomes)
        self._add(BROKER, whole.with_columns(_word=pl.lit("passed")), outcomes=False)
        self._add(name, whole)
        self._against_outcomes(whole)
        self._without_record(without_record)
        in_time = whole.filter(pl.col("_word") == "passed").select(RECORD_ID)
        return self._in_span(passed.join(in_time, on=RECORD_ID, how="semi"))

    def _with_facts(self, evidence: StreamEvidence, operator: str, outcomes_of_records: pl.DataFrame) -> pl.DataFrame:
        """Returns *outcomes_of_records* in which late and quarantined records have these outcomes,
        according to facts.
        """
        # What a sink could not deliver went through its operator.
        is_aside = pl.col("kind").is_in([DeadLetterKind.LATE, DeadLetterKind.QUARANTINED])
        rows = evidence.rows(DEAD_LETTERS, pl.col("operator") == operator, is_aside)
        aside = rows.select(_partition="partition", _offset="offset", _aside="kind").unique(RECORD_ID)
        answer = outcomes_of_records.join(aside, on=RECORD_ID, how="left", maintain_order="left")
        return answer.with_columns(_word=pl.coalesce("_aside", "_word")).drop("_aside")

    def _against_outcomes(self, outcomes_of_records: pl.DataFrame) -> None:
        """Compares the number of records of each batch at the broker with what the source counted."""
        if self._result.remarks:
            return
        name = self._source.name
        batches = self._reads["batch_id"].unique()
        answer = (
            outcomes_of_records.join(_batches_of(outcomes_of_records, self._reads), on=RECORD_ID)
            .group_by("batch_id")
            .agg(there=pl.len())
        )
        of_source = (pl.col("operator") == name, pl.col("batch_id").is_in(batches.to_list()))
        in_outcomes = self._evidence.rows(OPERATOR_BATCHES, *of_source, columns=("batch_id", "records_in"))
        # A batch of which only some partitions are of the span is compared where all of it was read again.
        every = (
            self._evidence.reads.filter(pl.col("source") == name)
            .group_by("batch_id")
            .agg(parts=(pl.col("until_offset") > pl.col("from_offset")).sum())
        )
        again = self._reads.group_by("batch_id").agg(read=pl.len())
        whole = every.join(again, on="batch_id").filter(pl.col("parts") == pl.col("read")).select("batch_id")
        both = in_outcomes.join(whole, on="batch_id", how="semi").join(answer, on="batch_id", how="left")
        for batch_id, there, records in both.select("batch_id", pl.col("there").fill_null(0), "records_in").iter_rows():
            if there > records:
                self._differs(f"{name}, batch {batch_id}: the broker has {there} records, the source read {records}")
            elif there < records:
                self._result.remarks.append(
                    f"{name}, batch {batch_id}: the broker has {there} of the {records} records that were read"
                )

    def _without_record(self, without: Mapping[int, Collection[int]]) -> None:
        """Remarks on the offsets, by partition, that batches read and at which there is no record, with the reasons."""
        for partition, offsets in sorted(without.items()):
            if offsets:
                self._result.remarks.append(
                    f"{self._source.name}, partition {partition}: {len(offsets)} of the offsets {min(offsets)} to "
                    f"{max(offsets)} have no record: {self._why_without_record(self._source, partition, offsets)}"
                )

    def _unread(self) -> None:
        """Names records of the span that no batch has read yet."""
        progress = self._evidence.progress.get(self._source.name)
        for partition, (_, end) in sorted(self._ends.items()):
            known = progress.partitions.get(partition) if progress else None
            until = known.until_offset if known else 0
            if end <= until:
                continue
            reread = self._tracer.read_again(self._source, partition, range(until, end), self._end_ms)
            rows = self._in_span(reread.passed) if reread else None
            if rows is not None and rows.height:
                of = f"of offsets {until} to {end - 1}"
                records = counted(rows.height, f"record {of} is", f"records {of} are")
                self._differs(f"{self._source.name}, partition {partition}: {records} at the broker and not read yet")

    def _through(
        self,
        evidence: StreamEvidence,
        records: dict[str, pl.DataFrame],
        batch_of: Callable[[pl.DataFrame], pl.DataFrame],
    ) -> None:
        """Counts *records*, by source, at the operators of a stream.

        Args:
            evidence: the facts of the stream.
            records: what each source passed on.
            batch_of: returns partition, offset and batch of records.
        """
        sub = evidence.stream.sub
        last = evidence.batches["batch_id"].max()
        for operator in sub.operators:
            flows = {flow: records[flow] for flow in operator.flows if flow in records}
            if operator.name in records or not flows:
                continue
            read = pl.concat([*flows.values()], how="diagonal")
            if isinstance(operator, Sink):
                self._at_sink(evidence, operator, read)
                continue
            run = self._tracer.run(operator, flows, evidence, int(last))  # type: ignore[arg-type]
            if operator.emission:
                records[operator.name] = self._judged(evidence, operator, read, run.asserted, batch_of)
            else:
                kept = run.output.select(RECORD_ID).unique()
                is_kept = read.join(kept.with_columns(_kept=True), on=RECORD_ID, how="left", maintain_order="left")
                word = pl.when(is_kept["_kept"].is_not_null()).then(pl.lit("passed")).otherwise(pl.lit("filtered"))
                outcomes_of_records = self._with_facts(evidence, operator.name, _with_outcome(read, word))
                self._add(operator.name, outcomes_of_records)
                aside = outcomes_of_records.filter(pl.col("_word") != "passed")
                records[operator.name] = run.output.join(aside, on=RECORD_ID, how="anti")
            if operator.hop_table:
                self._over(evidence, operator)

    def _judged(
        self,
        evidence: StreamEvidence,
        operator: Operator,
        read: pl.DataFrame,
        asserted: pl.DataFrame,
        batch_of: Callable[[pl.DataFrame], pl.DataFrame],
    ) -> pl.DataFrame:
        """Counts the outcomes of updates at an operator that emits on change, and returns the records that it sent on.

        Args:
            evidence: the facts of the stream.
            operator: the operator.
            read: its input.
            asserted: its updates when it is run again over the input, without state.
            batch_of: returns partition, offset and batch of records.
        """
        sent = evidence.sent(operator.name, between(*self._span()))
        # The result of a record may have the time of another record, and be of another hour.
        first = batch_of(read)["batch_id"].min()
        results = evidence.sent(operator.name, pl.col("batch_id") >= first) if first is not None else sent
        places = results.select(
            _partition="source_partition", _offset="source_offset", _word=pl.lit("emitted")
        ).unique()
        outcomes_of_records = _with_outcome(read, pl.lit(None, pl.String))
        outcomes_of_records = self._with_facts(evidence, operator.name, outcomes_of_records).join(
            places.rename({"_word": "_sent"}), on=RECORD_ID, how="left", maintain_order="left"
        )
        skipped = self._skipped(evidence, operator, read, asserted, batch_of)
        outcomes_of_records = outcomes_of_records.join(skipped, on=RECORD_ID, how="left", maintain_order="left")
        if operator.emission and operator.emission.holds:
            outcomes_of_records = outcomes_of_records.join(
                _held(evidence, operator), on=RECORD_ID, how="left", maintain_order="left"
            )
        else:
            outcomes_of_records = outcomes_of_records.with_columns(_held=pl.lit(None, pl.String))
        outcomes_of_records = outcomes_of_records.with_columns(
            _word=pl.coalesce("_word", "_sent", "_skipped", "_held", pl.lit("superseded"))
        )
        self._add(operator.name, outcomes_of_records.select(*RECORD_ID, "_timestamp_ms", "_word"))
        self._superseded_are_counted(evidence, operator, outcomes_of_records, batch_of)
        if operator.hop_table:
            return read.clear()
        if isinstance(operator, Aggregate):
            return sent_records(self._tracer, operator, sent)
        schema = self._tracer.steps.schemas[operator.name]
        emitted = outcomes_of_records.filter(pl.col("_word") == "emitted")
        rows = asserted.join(emitted, on=RECORD_ID, how="semi")
        return rows.select(pl.col(c).cast(kind) for c, kind in schema.items())

    def _superseded_are_counted(
        self,
        evidence: StreamEvidence,
        operator: Operator,
        outcomes_of_records: pl.DataFrame,
        batch_of: Callable[[pl.DataFrame], pl.DataFrame],
    ) -> None:
        """Notes a difference for each batch with more updates that no fact names than it counts as superseded.

        No fact names a superseded update, because a newer update of its key had overtaken it.
        """
        if operator.emission is None or operator.emission.holds:
            return
        without = outcomes_of_records.filter(pl.col("_word") == "superseded")
        by_batch = without.join(batch_of(without), on=RECORD_ID).group_by("batch_id").len()
        of_operator = pl.col("operator") == operator.name
        in_outcomes = evidence.rows(OPERATOR_BATCHES, of_operator, columns=("batch_id", "superseded"))
        both = by_batch.join(in_outcomes, on="batch_id", how="left").filter(
            pl.col("len") > pl.col("superseded").fill_null(0)
        )
        for batch_id, n, superseded in both.sort("batch_id").iter_rows():
            self._differs(
                f"{operator.name}, batch {batch_id}: {counted(n, 'update is', 'updates are')} neither emitted nor "
                f"suppressed nor set aside, and operator_batches counts {superseded or 0} superseded ones"
            )

    def _skipped(
        self,
        evidence: StreamEvidence,
        operator: Operator,
        read: pl.DataFrame,
        asserted: pl.DataFrame,
        batch_of: Callable[[pl.DataFrame], pl.DataFrame],
    ) -> pl.DataFrame:
        """Returns partition and offset of the records whose updates were suppressed, with `_skipped`.

        The arguments are those of `_judged`.
        """
        columns = getattr(operator, "id", ()) or getattr(operator, "key", ())
        if isinstance(operator, Aggregate) or not columns:
            keyed = asserted.select(*RECORD_ID, "_key") if asserted.width else read.select(*RECORD_ID, "_key")
        else:
            keyed = read.select(*RECORD_ID, _key=key_text(columns, read.schema))
        runs = evidence.skipped(operator.name).select(
            "batch_id", "first_offset", "last_offset", _key="key", _partition="source_partition"
        )
        both = keyed.join(batch_of(keyed), on=RECORD_ID).join(runs, on=["batch_id", "_key", "_partition"])
        within = pl.col("_offset").is_between(pl.col("first_offset"), pl.col("last_offset"))
        return both.filter(within).select(*RECORD_ID, _skipped=pl.lit("suppressed")).unique()

    def _at_sink(self, evidence: StreamEvidence, sink: Sink, read: pl.DataFrame) -> None:
        """Counts what *sink* got, and the rows of its table."""
        self._add(sink.name, self._with_facts(evidence, sink.name, _with_outcome(read, pl.lit("passed"))))
        if sink.table is None or sink.key:
            self._result.remarks.append(
                f"{sink.name}: {f'{sink.table} keeps only current rows' if sink.table else 'a topic'}, so what it has "
                "is not counted"
            )
            return
        rows = evidence.rows_of_table(sink.table, between(*self._span())).with_columns(
            pl.col("timestamp").dt.epoch("ms")
        )
        there = rows.select(
            _partition="source_partition", _offset="source_offset", _timestamp_ms="timestamp", _word=pl.lit("passed")
        )
        # What is gone from the broker is in the table all the same.
        not_read = there.join(read, on=RECORD_ID, how="anti").join(self._reread, on=RECORD_ID, how="anti")
        there = there.join(_batches_of(not_read, self._reads), on=RECORD_ID, how="anti")
        self._add(f"{TABLE} {sink.table}", there, outcomes=False)
        expected_by_hour, rows_by_hour = _by_hour(_with_outcome(read, pl.lit(""))), _by_hour(there)
        for hour_ms, partition in sorted({*expected_by_hour, *rows_by_hour}):
            expected, n = expected_by_hour.get((hour_ms, partition), 0), rows_by_hour.get((hour_ms, partition), 0)
            if expected != n:
                more = f"{n - expected} more than" if n > expected else f"{expected - n} fewer than"
                self._differs(
                    f"{sink.table}, hour {iso(hour_ms)}, partition {partition}: {counted(n, 'row')}, {more} the "
                    f"{expected} that {sink.name} handed on"
                )

    def _over(self, evidence: StreamEvidence, repartition: Operator) -> None:
        """Counts what *repartition* handed on in the streams that read its table."""
        handed = evidence.sent(repartition.name, between(*self._span()))
        for sub, source in readers_of(self._tracer.topology, repartition.name):
            reader = self._tracer.evidence[sub.name]
            reads = reader.reads.filter(pl.col("source") == source.name).select(
                reading="batch_id", first="from_offset", until="until_offset"
            )
            until = reads["until"].max() or 0
            late = handed.filter(pl.col("batch_id") >= until)
            if late.height:
                rows = counted(late.height, "row of the hop is", "rows of the hop are")
                self._differs(f"{source.name}: {rows} not read yet by {sub.name}")
            read = handed.filter(pl.col("batch_id") < until)
            records = self._tracer.steps.hop_records(source, hop_updates(read))
            self._add(source.name, _with_outcome(records, pl.lit("passed")))
            by_batch = read.select("batch_id", _partition="source_partition", _offset="source_offset").join_where(
                reads, pl.col("batch_id") >= pl.col("first"), pl.col("batch_id") < pl.col("until")
            )
            batches = by_batch.select(*RECORD_ID, batch_id="reading").unique()
            if records.height:
                self._through(reader, {source.name: records}, lambda keyed, batches=batches: batches)  # type: ignore[misc]

    def _batch_of(self, reads: pl.DataFrame) -> Callable[[pl.DataFrame], pl.DataFrame]:
        return lambda rows: _batches_of(rows, reads)

    def _outcomes_close(self) -> None:
        """Names operators whose outcomes do not add up in a batch."""
        batches = self._reads["batch_id"].unique().to_list()
        columns = ("batch_id", "operator", *CAME_IN, *BECAME)
        rows = self._evidence.rows(OPERATOR_BATCHES, pl.col("batch_id").is_in(batches), columns=columns)
        open_ = rows.filter(
            pl.sum_horizontal(CAME_IN) != pl.sum_horizontal(pl.col(word).fill_null(0) for word in BECAME)
        )
        for batch_id, operator in open_.select("batch_id", "operator").iter_rows():
            self._differs(f"{operator}, batch {batch_id}: the outcomes do not add up to the updates that came in")

    def _span(self) -> tuple[int, int]:
        return self._start_ms, self._end_ms

    def _in_span(self, rows: pl.DataFrame) -> pl.DataFrame:
        return rows.filter(pl.col("_timestamp_ms").is_between(*self._span(), closed="left"))

    def _differs(self, text: str) -> None:
        self._result.differences.append(text)

    def _add(self, stage: str, outcomes_of_records: pl.DataFrame, *, outcomes: bool = True) -> None:
        """Adds the counts of *stage* by hour and partition."""
        at_ms = pl.col("_timestamp_ms")
        in_span = outcomes_of_records.filter(at_ms.is_null() | at_ms.is_between(*self._span(), closed="left"))
        hourly = in_span.group_by(at_ms // HOUR_MS * HOUR_MS, "_partition", "_word").len().sort("_partition", "_word")
        sums: dict[tuple[int | None, int], dict[str, int]] = {}
        for hour_ms, partition, word, n in hourly.iter_rows():
            sums.setdefault((hour_ms, partition), {})[word] = n
        for (hour_ms, partition), words in sums.items():
            self._result.counts.append(
                StageCount(
                    hour_ms=hour_ms,
                    partition=partition,
                    stage=stage,
                    records=sum(words.values()),
                    outcomes=words if outcomes else {},
                )
            )


def _with_outcome(rows: pl.DataFrame, word: pl.Expr) -> pl.DataFrame:
    """Returns partition, offset and time of *rows*, with their outcome *word* as `_word`."""
    return rows.select(*RECORD_ID, "_timestamp_ms", word.alias("_word"))


def _by_hour(outcomes_of_records: pl.DataFrame) -> dict[tuple[int, int], int]:
    """Counts the rows of *outcomes_of_records* by hour (epoch ms) and partition."""
    hourly = outcomes_of_records.group_by(pl.col("_timestamp_ms") // HOUR_MS * HOUR_MS, "_partition").len()
    return {(hour_ms, partition): n for hour_ms, partition, n in hourly.iter_rows()}


def _batches_of(rows: pl.DataFrame, reads: pl.DataFrame) -> pl.DataFrame:
    """Returns partition and offset of *rows* with the batch that read them, according to *reads*."""
    ranges = reads.select("batch_id", "until_offset", _partition="partition", _offset="from_offset").sort("_offset")
    record_ids = rows.select(RECORD_ID).unique().sort("_offset")
    answer = record_ids.join_asof(ranges, on="_offset", by="_partition", check_sortedness=False)
    return answer.filter(pl.col("_offset") < pl.col("until_offset")).select(*RECORD_ID, "batch_id")


def _held(evidence: StreamEvidence, operator: Operator) -> pl.DataFrame:
    """Returns partition and offset of the records whose updates still wait at *operator*, with `_held`."""
    newest = evidence.states(operator.name).unique("key", keep="last", maintain_order=True).filter("held")
    return newest.select(_partition="source_partition", _offset="source_offset", _held=pl.lit("held")).unique(RECORD_ID)
