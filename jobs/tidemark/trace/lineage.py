"""Finds the records that made a row of a table, and makes the row again from them alone.

How it works: a row names the record that caused it, and the walk goes upstream from there. The row of a `table` is made
of that record. A join adds the record of the version that it looked up. A row of an aggregate is made of all records
that its key (and window) still counts: those of an upstream's rows that were not retracted, or those that `changes`,
`suppressed` and `state_changes` name. Where these name only batches, the batches are read again and searched for the
key. If all records have left the group, the row is made of those that came and left last.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import polars as pl

from tidemark.errors import InvalidArgument
from tidemark.facts.record_facts import Row, StreamEvidence, at
from tidemark.facts.versions import CommittedVersion, NoVersion, version_fields, version_of
from tidemark.graph import reached
from tidemark.kernels import payload
from tidemark.kernels.aggregates.windows import WINDOW
from tidemark.kernels.columns.values import key_text
from tidemark.kernels.records.arrivals import hop_updates
from tidemark.model.kinds.aggregate import Aggregate
from tidemark.model.kinds.join import Join
from tidemark.model.kinds.operator import Operator
from tidemark.model.kinds.repartition import HopSource
from tidemark.model.kinds.sink import Sink
from tidemark.model.settings.emission import DecisionRate
from tidemark.selection import in_order_of, omit, within
from tidemark.trace.keys import TypedKey, is_nan, typed_key
from tidemark.trace.outcomes import RecordPosition
from tidemark.trace.record import Tracer, sent_records
from tidemark.trace.replay import replayed

RowKey = tuple[tuple[str, ...], str]
"""The key of a row: columns, and text as in `changes`."""
_PLACE = ("batch_id", "source_partition", "source_offset")


@dataclass(frozen=True, kw_only=True)
class RowTrace:
    """The records that made a row.

    Attributes:
        table: the table of the row, or the operator.
        key: the key of the row, as in `changes`.
        row: its columns.
        batch_id: the batch that wrote it.
        commit: the Delta version of the table that first had the row.
        places: the records that made it, by source, partition and offset.
        differences: the columns in which the row is different when it is made of these records alone.
        missing: how many of the records could not be read again.
        why_missing: the reasons, a clause for each source.
    """

    table: str
    key: str
    row: Row
    batch_id: int
    commit: CommittedVersion | NoVersion
    places: list[RecordPosition]
    differences: list[str] = field(default_factory=list)
    missing: int = 0
    why_missing: list[str] = field(default_factory=list)

    @property
    def is_verified(self) -> bool:
        """True if the records alone make the same row."""
        return bool(self.places) and not self.differences and not self.missing

    @property
    def document(self) -> dict[str, Any]:
        """Returns the trace for JSON."""
        return {
            **omit(vars(self), ["commit"]),
            **version_fields(self.commit),
            "places": [str(place) for place in self.places],
            "is_verified": self.is_verified,
        }


def trace_row(tracer: Tracer, table: str, text: str) -> RowTrace:
    """Returns the records that made the newest row of a key in *table*.

    Args:
        tracer: reads records and facts of the topology.
        table: the table of a sink, or an operator that emits on change.
        text: the key as a person types it, see `keys`.

    Raises:
        InvalidArgument: there is no such table, it has no key, or *text* names none of its keys, or several.
    """
    return _Lineage(tracer).of_row(table, text)


class _Lineage:
    """Walks upstream from rows."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer, self._topology, self._steps = tracer, tracer.topology, tracer.steps

    def of_row(self, table: str, text: str) -> RowTrace:
        """Returns the records that made the row of the key *text*, and whether they alone make the same row."""
        sink, operator = self._target(table)
        evidence = self._evidence(operator)
        columns = self._key_of(operator)
        schema = in_order_of(columns, self._steps.schemas[operator.name])
        windows = sink.bounds if sink else WINDOW
        typed = typed_key(text, schema, within(columns, windows))
        if sink:
            key = self._key_in_sink(sink, typed, evidence)
            row, batch_id = self._row_of_sink(sink, operator, typed.of_key(key), evidence)
        else:
            key = self._key_in_changes(operator, typed, evidence)
            row, batch_id = self._row_of_changes(operator, key, evidence)
        place = (row.pop("source_partition"), row.pop("source_offset"))
        places = sorted({*self._made_of(operator, batch_id, *place, (columns, key))})
        output, missing = replayed(self._tracer, places, operator.name)
        again = output.filter(key_text(columns, output.schema) == key).tail(1)
        # Alone, the deletion of a key that has no row sends nothing.
        is_deleted = row.pop("deleted", False) and (not again.height or again["_deleted"].item())
        differences = [] if is_deleted else _differences(row, again) if again.height else sorted(row)
        return RowTrace(
            table=table,
            key=key,
            row=row,
            batch_id=batch_id,
            commit=version_of(evidence, (sink and sink.table) or "changes", batch_id),
            places=places,
            differences=differences,
            missing=sum(missing.values()),
            why_missing=[
                f"{n} of {source}: {self._tracer.why_gone(self._tracer.source(source), n)}"
                for source, n in missing.items()
            ],
        )

    def _evidence(self, operator: Operator) -> StreamEvidence:
        return self._tracer.evidence[self._topology.sub_topology_of(operator.name).name]

    def _target(self, table: str) -> tuple[Sink | None, Operator]:
        """Returns the sink with the table *table*, and the operator before it; or None and the operator *table*."""
        operators = self._topology.operators
        sinks = [o for o in operators.values() if isinstance(o, Sink) and o.table]
        for sink in sinks:
            if table in {sink.table, sink.name}:
                return sink, operators[sink.inputs[0]]
        emitting = {o.name: o for o in operators.values() if o.emission and not o.hop_table}
        if table in emitting:
            return None, emitting[table]
        known = ", ".join([*filter(None, (sink.table for sink in sinks)), *emitting])
        msg = f"{self._topology.name} has no table {table!r} with a key; known: {known}"
        raise InvalidArgument(msg)

    def _key_of(self, operator: Operator) -> tuple[str, ...]:
        """Returns the columns that are the key of rows of *operator*."""
        judging = operator
        while not judging.emission:
            if judging.is_source:
                msg = f"rows of {operator.name} have no key; ask for their records with --record"
                raise InvalidArgument(msg)
            judging = self._topology.operators[judging.flows[0]]
        key: tuple[str, ...] = getattr(judging, "key", ())
        if isinstance(judging, Aggregate):
            key = self._aggregate_key(judging)
        missing = [column for column in key if column not in self._steps.schemas[operator.name]]
        if missing or not key:
            msg = (
                f"rows of {operator.name} do not have the key of {judging.name} ({', '.join(key) or 'the record key'})"
            )
            raise InvalidArgument(msg)
        return key

    def _aggregate_key(self, aggregate: Aggregate) -> tuple[str, ...]:
        schema = self._steps.schemas[aggregate.name]
        return tuple(c for c in payload(schema) if c not in aggregate.select)

    def _key_in_sink(self, sink: Sink, typed: TypedKey, evidence: StreamEvidence) -> str:
        """Returns the only key of the table of *sink* that *typed* names."""
        name, columns = sink.table or "", [*typed.schema]
        found = typed.texts(evidence.keys_of_table(name, columns, *typed.equal)) if typed.values else []
        if not found and typed.can_begin:
            found = typed.texts(evidence.keys_of_table(name, columns, typed.begins))
        known = [] if found else typed.texts(evidence.keys_of_table(name, columns))
        return typed.only(found, name, next(iter(known), None))

    def _key_in_changes(self, operator: Operator, typed: TypedKey, evidence: StreamEvidence) -> str:
        """Returns the only key that *operator* has sent on and *typed* names."""
        if (whole := typed.whole) is not None and evidence.sent(operator.name, pl.col("key") == whole).height:
            return whole
        keys = evidence.sent(operator.name)["key"].drop_nulls().unique(maintain_order=True)
        return typed.only(typed.equal_in(keys), operator.name, next(iter(keys), None))

    def _row_of_sink(
        self, sink: Sink, operator: Operator, typed: TypedKey, evidence: StreamEvidence
    ) -> tuple[dict[str, Any], int]:
        rows = evidence.rows_of_table(sink.table or "", *typed.equal)
        row = rows.sort("batch_id", maintain_order=True).row(-1, named=True)
        schema = self._steps.schemas[operator.name]
        columns = [c for c in payload(schema) if c in row and c not in sink.bounds]
        places = ("source_partition", "source_offset", *(["deleted"] if row.get("deleted") else []))
        return {c: row[c] for c in (*columns, *places)}, row["batch_id"]

    def _row_of_changes(self, operator: Operator, key: str, evidence: StreamEvidence) -> tuple[dict[str, Any], int]:
        row = evidence.sent(operator.name, pl.col("key") == key).row(-1, named=True)
        columns = json.loads(row["value"] or "{}")
        return {**columns, "source_partition": row["source_partition"], "source_offset": row["source_offset"]}, row[
            "batch_id"
        ]

    def _made_of(
        self, operator: Operator, batch_id: int, partition: int, offset: int, key: RowKey | None
    ) -> Iterator[RecordPosition]:
        """Yields the records that made a result of *operator*.

        Args:
            operator: the operator that sent the result on.
            batch_id: the batch in which it did.
            partition: input partition of the record that caused the result.
            offset: offset of that record.
            key: the key of the result. A record that moves a row to another group causes two results with different
                keys; None means both.
        """
        path = [operator]
        while not path[-1].is_source and not isinstance(path[-1], Aggregate):
            flows = path[-1].flows
            path.append(self._topology.operators[self._flow(flows, batch_id, partition, offset)])
        first, evidence = path[-1], self._evidence(operator)
        if isinstance(first, Aggregate):
            where = at(partition, offset)
            if key and key[0] and key[0] == self._aggregate_key(first):
                where &= pl.col("key") == key[1]
            yield from self._counted(first, batch_id, where)
        elif isinstance(first, HopSource):
            yield from self._over_hop(first, batch_id, partition, offset)
        else:
            yield RecordPosition(first.name, partition, offset)
        for join in (each for each in path if isinstance(each, Join) and each.table):
            yield from self._looked_up(join, [*reversed(path)], evidence, batch_id, partition, offset)

    def _flow(self, flows: tuple[str, ...], batch_id: int, partition: int, offset: int) -> str:
        """Returns the input, among *flows*, from which a record came that the batch *batch_id* read."""
        for flow in flows[1:]:
            evidence = self._evidence(self._topology.operators[flow])
            if any(evidence.batch_of(name, partition, offset) == batch_id for name in self._sources(flow)):
                return flow
        return flows[0]

    def _sources(self, name: str) -> list[str]:
        operators = self._topology.operators
        return [each for each in reached([name], self._topology.flows) if operators[each].is_source]

    def _over_hop(self, source: HopSource, batch_id: int, partition: int, offset: int) -> Iterator[RecordPosition]:
        """Yields the records that made the rows of a hop.

        The rows are those that the batch *batch_id* read of the hop, and that the record at *offset* of *partition* has
        caused.
        """
        upstream = self._topology.repartition(source.repartition)
        of_batch = pl.col("batch_id").is_between(*self._limits(source, batch_id))
        rows = self._evidence(upstream).sent(upstream.name, at(partition, offset), of_batch)
        before = self._topology.operators[upstream.inputs[0]]
        for number, id_ in rows.select("batch_id", "id").unique().iter_rows():
            yield from self._made_of(before, number, partition, offset, (upstream.id, id_))

    def _limits(self, source: HopSource, batch_id: int) -> tuple[int, int]:
        """Returns the first and the last batch of the upstream that the batch *batch_id* read."""
        reads = self._evidence(source).reads
        read = reads.filter(pl.col("source") == source.name, pl.col("batch_id") == batch_id)
        return (read["from_offset"].item(), read["until_offset"].item() - 1) if read.height else (0, -1)

    def _counted(self, aggregate: Aggregate, batch_id: int, where: pl.Expr) -> Iterator[RecordPosition]:
        """Yields the records that results of *aggregate* in a batch are made of."""
        evidence = self._evidence(aggregate)
        for result in evidence.sent(aggregate.name, where, pl.col("batch_id") == batch_id).iter_rows(named=True):
            source = self._topology.operators[self._sources(aggregate.name)[0]]
            if isinstance(source, HopSource):
                yield from self._counted_of_hop(aggregate, source, result)
            else:
                yield from self._counted_of_source(aggregate, source, evidence, result)

    def _group(self, aggregate: Aggregate, result: Row) -> str:
        """Returns the key of *result* without its window."""
        if not aggregate.windows:
            return str(result["key"])
        fields = json.loads(result["key"])
        values = {name: fields[name] for name in self._aggregate_key(aggregate) if name not in WINDOW}
        return str(next(iter(values.values()))) if len(values) == 1 else json.dumps(values, separators=(",", ":"))

    def _counted_of_hop(self, aggregate: Aggregate, source: HopSource, result: Row) -> Iterator[RecordPosition]:
        """Yields the records behind all rows of an upstream that *result* counts.

        If it counts none, because all have left the group, the records that came and left last are returned.
        """
        upstream = self._topology.repartition(source.repartition)
        last = self._limits(source, result["batch_id"])[1]
        rows = self._evidence(upstream).sent(
            upstream.name, pl.col("key") == self._group(aggregate, result), pl.col("batch_id") <= last
        )
        # The last row of an id says whether its value counts.
        newest = rows.unique("id", keep="last", maintain_order=True) if upstream.id else rows
        counted = _in_window(newest.filter(pl.col("value").is_not_null()), result)
        if not counted.height:
            # All records have left the group. Those of one id show how it became empty.
            leaving = _in_window(rows, result)["id"].drop_nulls().tail(1)
            counted = rows.filter(pl.col("id").is_in(leaving.implode()))
        before = self._topology.operators[upstream.inputs[0]]
        for number, partition, offset, id_ in counted.select(*_PLACE, "id").iter_rows():
            yield from self._made_of(before, number, partition, offset, (upstream.id, id_))

    def _counted_of_source(
        self, aggregate: Aggregate, source: Operator, evidence: StreamEvidence, result: Row
    ) -> Iterator[RecordPosition]:
        """Yields the records of a source that *result* counts."""
        until = (pl.col("key") == result["key"], pl.col("batch_id") <= result["batch_id"])
        sent, skipped = evidence.sent(aggregate.name, *until), evidence.skipped(aggregate.name, *until)
        batches = {*sent["batch_id"], *skipped["batch_id"], *evidence.states(aggregate.name, *until)["batch_id"]}
        before = self._topology.operators[aggregate.inputs[0]]
        names_each = aggregate.emission.decide is DecisionRate.RECORD and not aggregate.emission.holds
        for name in self._sources(aggregate.name):
            reads = evidence.reads.filter(pl.col("source") == name, pl.col("batch_id").is_in(sorted(batches)))
            for batch_id, number, first, end in reads.select(
                "batch_id", "partition", "from_offset", "until_offset"
            ).iter_rows():
                read = range(first, end)
                wanted = _named(sent, skipped, batch_id, number, read) if names_each else read
                for offset in self._of_group(aggregate, name, evidence, batch_id, number, wanted, result):
                    yield from self._made_of(before, batch_id, number, offset, None)

    def _of_group(
        self,
        aggregate: Aggregate,
        source: str,
        evidence: StreamEvidence,
        batch_id: int,
        partition: int,
        wanted: Collection[int],
        result: Row,
    ) -> list[int]:
        """Returns the offsets among *wanted* whose records *result* counts.

        They are offsets of *partition* of *source* that the batch *batch_id* read. The records are read again, and go
        through the operators before *aggregate*.
        """
        declared = self._tracer.source(source)
        if not wanted:
            return []
        reread = self._tracer.read_again(declared, partition, wanted, evidence.batch(batch_id)["decided_at"])
        if reread is None:
            return []
        records = {source: reread.passed}
        for operator in evidence.stream.sub.operators:
            flows = [flow for flow in operator.flows if flow in records]
            if operator.name == aggregate.name:
                rows = _in_window(records[flows[0]].rename({"_timestamp_ms": "timestamp"}), result)
                of_key = key_text(aggregate.key, rows.schema) == self._group(aggregate, result)
                of_result = rows.filter(of_key) if aggregate.key else rows
                return sorted({*of_result["_offset"]})
            if flows and not operator.hands_out and not isinstance(operator, Aggregate):
                run = self._tracer.run(operator, {flow: records[flow] for flow in flows}, evidence, batch_id)
                records[operator.name] = run.output
        return []

    def _looked_up(
        self, join: Join, path: list[Operator], evidence: StreamEvidence, batch_id: int, partition: int, offset: int
    ) -> Iterator[RecordPosition]:
        """Yields the record of the version that *join* added to the record at *offset* of *partition*.

        *batch_id* is the batch in which *join* read the record, and *path* has the operators through which the record
        came, from its source or aggregate on.
        """
        rows = self._rows_at(join, path, evidence, batch_id, partition, offset)
        if rows is None or not rows.height:
            return
        at_ms = rows["_timestamp_ms"].max()
        sent, skipped = self._tracer.versions(join, rows, evidence, batch_id)
        table = self._topology.operators[join.table or ""]
        before, key = self._topology.operators[table.inputs[0]], getattr(table, "key", ())
        valid = sent.filter(pl.col("timestamp") <= at_ms).sort("timestamp", maintain_order=True)
        times = skipped.explode("asserted_ms")
        again = times.filter(pl.col("asserted_ms") <= at_ms).sort("asserted_ms", maintain_order=True)
        if again.height and (not valid.height or again["asserted_ms"][-1] > valid["timestamp"][-1]):
            run = again.row(-1, named=True)
            equal = valid.filter(pl.col("value_hash").eq_missing(pl.lit(run["value_hash"])))
            if not equal.height:
                for each in range(run["first_offset"], run["last_offset"] + 1):
                    yield from self._made_of(before, run["batch_id"], run["source_partition"], each, (key, run["key"]))
                return
            valid = equal
        if valid.height:
            number, partition, offset, of_row = valid.select(*_PLACE, "key").row(-1)
            yield from self._made_of(before, number, partition, offset, (key, of_row))

    def _rows_at(
        self, join: Join, path: list[Operator], evidence: StreamEvidence, batch_id: int, partition: int, offset: int
    ) -> pl.DataFrame | None:
        """Returns the rows of a record as *join* read them; the arguments are those of `_looked_up`."""
        first = path[0]
        rows: pl.DataFrame | None
        if isinstance(first, Aggregate):
            sent = evidence.sent(first.name, at(partition, offset), pl.col("batch_id") == batch_id)
            rows = sent_records(self._tracer, first, sent)
        elif isinstance(first, HopSource):
            upstream = self._topology.repartition(first.repartition)
            of_batch = pl.col("batch_id").is_between(*self._limits(first, batch_id))
            handed = self._evidence(upstream).sent(upstream.name, at(partition, offset), of_batch)
            rows = self._steps.hop_records(first, hop_updates(handed))
        else:
            source, decided_at_ms = self._tracer.source(first.name), evidence.batch(batch_id)["decided_at"]
            reread = self._tracer.read_again(source, partition, [offset], decided_at_ms)
            rows = reread.passed if reread else None
        for operator, reader in pairwise(path):
            if rows is None or reader is join:
                return rows
            rows = self._tracer.run(reader, {operator.name: rows}, evidence, batch_id).output
        return rows


def _in_window(rows: pl.DataFrame, result: Row) -> pl.DataFrame:
    """Returns the *rows* in the window of *result*."""
    if result["window_start"] is None:
        return rows
    at_ms = pl.col("timestamp")
    return rows.filter((at_ms >= result["window_start"]) & (at_ms < result["window_end"]))


def _named(sent: pl.DataFrame, skipped: pl.DataFrame, batch_id: int, partition: int, read: range) -> list[int]:
    """Returns the offsets among those *read* that facts name."""
    of_batch = (pl.col("batch_id") == batch_id) & (pl.col("source_partition") == partition)
    offsets = {*sent.filter(of_batch)["source_offset"]}
    for first, last in skipped.filter(of_batch).select("first_offset", "last_offset").iter_rows():
        offsets |= {*range(first, last + 1)}
    return sorted(offsets & {*read})


def _differences(row: Row, again: pl.DataFrame) -> list[str]:
    """Returns the columns in which *row* and *again* differ."""
    made: Mapping[str, Any] = again.row(0, named=True)
    return [
        name
        for name, value in row.items()
        if made.get(name) != value and not (is_nan(value) and is_nan(made.get(name)))
    ]
