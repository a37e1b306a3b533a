"""Finds the owners of records that an operator read and did not send on.

The share of each outcome in the day before is usual. Records beyond that share are blamed on an owner: the producer of
the partition, a key, the operator, or the setting that holds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from tidemark.account.configured import holding_setting
from tidemark.account.counts import BATCH, Counts, TimeSpan
from tidemark.account.explanation import LEAST_SHARE, Became, Leaf
from tidemark.account.owners.key import KEY
from tidemark.account.owners.max_drift import MAX_DRIFT
from tidemark.account.owners.operator import OPERATOR
from tidemark.account.owners.producer import PRODUCER
from tidemark.account.owners.topic import TOPIC
from tidemark.account.owners.topology_change import TOPOLOGY_CHANGE
from tidemark.account.usual_numbers import is_usual
from tidemark.model.kinds.operator import Operator
from tidemark.model.settings.retention import DAY_MS
from tidemark.model.tables.catalog import BECAME, CAME_IN
from tidemark.model.topology import Topology
from tidemark.semantics.dead_letters import DeadLetterKind


@dataclass(frozen=True)
class Loss:
    """Records that did not come through. `leaf` names their owner, without its share, which is not known yet.

    `excess` is how many of the records are beyond what is usual.
    """

    leaf: Leaf
    excess: float


def large(losses: Iterable[Loss]) -> list[Loss]:
    """Returns those of *losses* that have at least LEAST_SHARE of the whole excess."""
    losses = [*losses]
    whole = sum(loss.excess for loss in losses)
    return [loss for loss in losses if loss.excess >= LEAST_SHARE * whole]


def as_one(losses: Iterable[Loss], **fields: str) -> Iterator[Loss]:
    """Yields one loss that adds up *losses* of several partitions; none without losses.

    It has the leaf of the first loss, with *fields* replaced.
    """
    losses = [*losses]
    if losses:
        leaves = [loss.leaf for loss in losses]
        together = replace(
            leaves[0],
            records=sum(leaf.records or 0 for leaf in leaves),
            usual_records=sum(leaf.usual_records or 0 for leaf in leaves),
            since_ms=min((leaf.since_ms for leaf in leaves if leaf.since_ms is not None), default=None),
            partition=None,
            key=None,
            reason=None,
            **fields,  # type: ignore[arg-type]
        )
        yield Loss(together, sum(loss.excess for loss in losses))


class OutcomesOf:
    """The outcomes of the records that *operator* read in *span*, compared with those of the day before.

    Attributes:
        now: how many records came and what became of them in the span, by column of `operator_batches`.
    """

    def __init__(self, topology: Topology, counts: Counts, operator: Operator, span: TimeSpan) -> None:
        self._topology, self._counts, self._operator, self._span = topology, counts, operator, span
        self._before = TimeSpan(span.since_ms - DAY_MS, span.since_ms)
        self._rows = counts.outcomes.filter(pl.col("operator") == operator.name)
        self.now, self._usual = self._sums(span), self._sums(self._before)

    def _sums(self, span: TimeSpan) -> Mapping[str, int]:
        rows = self._rows.filter(span.holds())
        return {name: int(rows[name].sum()) for name in (*CAME_IN, *BECAME)}

    def usual_share(self, outcome: str) -> float | None:
        """Returns the share of records with *outcome* in the day before, 0 to 1; None if nothing was read then."""
        n = self._usual["records_in"]
        return min(1, self._usual[outcome] / n) if n else None

    def losses(self) -> Iterator[Loss]:
        """Yields the records that the operator did not send on, by owner."""
        yield from self.late()
        yield from self.quarantined()
        yield from self._duplicates()
        yield from self._dropped()
        yield from self._held()

    def late(self) -> Iterator[Loss]:
        """Yields late records by owner.

        Records that were there before the stream began to read their source belong to the change of the topology file.
        If one key has most of the others, its records belong to the key. The rest belong to the producers.
        """
        if not self._beyond("late"):
            return
        now, before = (self._with_origin(rows) for rows in self._dead_letters(DeadLetterKind.LATE))
        for origin, _ in _sizes(now.filter("was_there"), "origin"):
            yield self._late_since_change(origin, now.filter("was_there", pl.col("origin") == origin))
        now = now.filter(~pl.col("was_there"))
        by_key = _sizes(now.drop_nulls("key"), "key", "origin")
        if by_key and 2 * by_key[0][-1] > now.height:
            key, origin, _ = by_key[0]
            of_key = (pl.col("key") == key) & (pl.col("origin") == origin)
            yield self._late(now.filter(of_key), before.filter(of_key), origin, _text(key))
            is_other = ~of_key.fill_null(value=False)
            now, before = now.filter(is_other), before.filter(is_other)
        for origin, _ in _sizes(now, "origin"):
            of_partition = pl.col("origin") == origin
            yield self._late(now.filter(of_partition), before.filter(of_partition), origin, None)

    def _with_origin(self, late: pl.DataFrame) -> pl.DataFrame:
        """Returns late records with their `origin`, SOURCE/PARTITION, and `was_there`.

        `was_there` is True if the record was there already when the stream began to read the source. Several sources
        may have a partition of the same number; the origin is the one from which the batch read that offset.
        """
        before = [each.name for each in self._topology.path_into(self._operator.name) if each.reads_outside]
        reads = self._counts.reads.filter(pl.col("source").is_in(before))
        rows = late.with_row_index("letter")
        is_of = pl.col("offset").is_between("from_offset", "until_offset", closed="left")
        read = rows.join(reads.drop("finished_ms"), on=[*BATCH, "partition"]).filter(is_of).unique("letter")
        is_after = (pl.col("batch_id") >= pl.col("begun_batch")) & (pl.col("offset") < pl.col("begun_offset"))
        begun = read.join(self._counts.begun, on=["sub_topology", "source", "partition"]).filter(is_after)
        partitions = rows["partition"].unique().to_list()
        of_partition = pl.DataFrame(
            {"partition": partitions, "known": [self._partition(partition) for partition in partitions]},
            schema_overrides={"partition": rows.schema["partition"]},
        )
        named = rows.join(read.select("letter", "source"), on="letter", how="left", maintain_order="left").join(
            of_partition, on="partition", how="left", maintain_order="left", nulls_equal=True
        )
        origin = pl.coalesce(pl.concat_str("source", "partition", separator="/"), "known")
        return named.with_columns(origin=origin, was_there=pl.col("letter").is_in(begun["letter"].implode()))

    def _late_since_change(self, partition: str, now: pl.DataFrame) -> Loss:
        """Returns the loss of late records that had come before a change of the topology file began to read them."""
        source = partition.rpartition("/")[0]
        leaf = Leaf(owner=TOPOLOGY_CHANGE, detail=source, became=Became.LATE, partition=partition)
        return self._refusal(leaf, now, 0)

    def _late(self, now: pl.DataFrame, before: pl.DataFrame, partition: str, key: str | None) -> Loss:
        """Returns the loss of the late records *now*, beside the late records of the day *before*.

        All records are of one *partition*, SOURCE/PARTITION. If *key* is given, they are of this key and it is the
        owner of the loss; otherwise the producer is the owner.
        """
        leaf = Leaf(
            owner=PRODUCER if key is None else KEY,
            detail=partition if key is None else key,
            became=Became.LATE,
            partition=partition,
            key=key,
            largest_ms=self._oldest_ms(now, partition.split("/")[0]),
        )
        return self._refusal(leaf, now, before.height)

    def _oldest_ms(self, late: pl.DataFrame, source: str) -> int | None:
        """Returns the age of the oldest of *late* when it arrived, ms; None if no age is known.

        Rows tell how old it was when its batch was decided. From that, the mean time is taken off for which the records
        of that batch and partition had waited.
        """
        age_ms = pl.col("decided_ms") - pl.col("timestamp").dt.epoch("ms")
        oldest = late.with_columns(age_ms=age_ms).drop_nulls("age_ms").sort("age_ms").tail(1)
        if oldest.is_empty():
            return None
        reads = self._counts.reads.filter(pl.col("source") == source)
        read = reads.join(oldest.select(*BATCH, "partition"), on=[*BATCH, "partition"], nulls_equal=True)
        usable = int(read["usable"].sum())
        waited_ms = int(read["wait_ms"].sum()) / usable if usable else 0
        return round(int(oldest["age_ms"][0]) - waited_ms)

    def quarantined(self) -> Iterator[Loss]:
        """Yields quarantined records by partition and reason; a reason about a field names the field."""
        if not self._beyond("quarantined"):
            return
        is_of_field = pl.lit(self._operator.is_watched) & (pl.col("reason") == "wrong_type")
        with_field = pl.concat_str("reason", "detail", separator=" ", ignore_nulls=True)
        why = pl.when(is_of_field).then(with_field).otherwise("reason")
        now, before = (rows.with_columns(why=why) for rows in self._dead_letters(DeadLetterKind.QUARANTINED))
        usual = {(partition, reason): n for partition, reason, n in _sizes(before, "partition", "why")}
        for partition, reason, _ in _sizes(now, "partition", "why"):
            has_reason = pl.col("partition").eq_missing(partition) & pl.col("why").eq_missing(reason)
            origin = self._partition(partition)
            leaf = Leaf(owner=PRODUCER, detail=origin, became=Became.QUARANTINED, partition=origin, reason=reason)
            yield self._refusal(leaf, now.filter(has_reason), usual.get((partition, reason), 0))

    def _refusal(self, leaf: Leaf, now: pl.DataFrame, before: int) -> Loss:
        """Returns the loss of the dead letters *now*; such dead letters were *before* in number in the day before."""
        n = self._usual["records_in"]
        usual = before / n * self.now["records_in"] if n else 0
        since_ms: int = now["finished_ms"].min()  # type: ignore[assignment]
        return _loss(leaf, now.height, usual, since_ms=since_ms)

    def _duplicates(self) -> Iterator[Loss]:
        """Yields records that had been read before, by partition: offsets were read there that gave no usable
        record.
        """
        found, beyond = self.now["duplicate"], self._beyond("duplicate")
        if not beyond:
            return
        batches = self._rows.filter(self._span.holds(), pl.col("duplicate") > 0).select(BATCH)
        of_partition = [*BATCH, "partition"]
        bad, _ = self._dead_letters(DeadLetterKind.QUARANTINED)
        reads = self._counts.reads.filter(pl.col("source") == self._operator.name).join(batches, on=BATCH)
        unused = (
            reads.join(bad.group_by(of_partition).agg(bad=pl.len()), on=of_partition, how="left", nulls_equal=True)
            .group_by("partition")
            .agg(n=(pl.col("n") - pl.col("usable") - pl.col("bad").fill_null(0)).sum())
            .filter(pl.col("n") > 0)
            .sort("partition")
        )
        whole = unused["n"].sum()
        for partition, n in unused.rows():
            origin, share = self._partition(partition), n / whole
            leaf = Leaf(owner=PRODUCER, detail=origin, became=Became.DUPLICATE, partition=origin)
            yield _loss(leaf, share * found, share * (found - beyond))

    def _dropped(self) -> Iterator[Loss]:
        """Yields records that a condition filtered out, that changed nothing, or that newer ones overtook while
        held.
        """
        for became in (Became.FILTERED, Became.SUPPRESSED, Became.SUPERSEDED):
            beyond = self._beyond(became)
            # If a setting holds records, those that are overtaken meanwhile are counted in `_held`.
            if beyond and not (became is Became.SUPERSEDED and self._holder):
                owner, detail = self._filter() if became is Became.FILTERED else (OPERATOR, self._operator.name)
                leaf = Leaf(owner=owner, detail=detail, became=became, stream=self._stream)
                yield _loss(leaf, self.now[became], self.now[became] - beyond)

    def _held(self) -> Iterator[Loss]:
        """Yields records that a setting holds, with those that newer ones overtook meanwhile."""
        if self._holder is None:
            return
        now, before = (self._rows.filter(span.holds())["held_after"] for span in (self._span, self._before))
        waiting = int(now.tail(1).sum())
        usual = float(before.median() or 0)  # type: ignore[arg-type]
        beyond = max(0, waiting - usual) + self._beyond("superseded")
        if waiting and beyond:
            owner, detail = self._holder
            found = waiting + self.now["superseded"]
            leaf = Leaf(owner=owner, detail=detail, became=Became.HELD, stream=self._stream)
            yield _loss(leaf, found, found - beyond)

    def _beyond(self, outcome: str) -> float:
        """Returns how many records have *outcome* beyond its usual share; 0 where the share is as usual."""
        n, found, usual = self.now["records_in"], self.now[outcome], self.usual_share(outcome) or 0
        return 0 if not n or is_usual(found / n, usual, n) else found - usual * n

    @property
    def _holder(self) -> tuple[str, str] | None:
        """The setting that makes the operator hold records, as owner and detail; None if it holds none."""
        operator, name = self._operator, self._operator.name
        if operator.reads_outside:
            return MAX_DRIFT, self._counts.held_back_by(name) or name
        setting = holding_setting(operator)
        return None if setting is None else (setting, name)

    def _filter(self) -> tuple[str, str]:
        """Returns whose fault it is that records were filtered out, as owner and detail.

        The owner is the operator, or, if it joins a table that never had a row, the topic of this table.
        """
        joined = self._operator.joined_table
        if joined is not None and not self._counts.has_ever_read(joined):
            for upstream in self._topology.path_into(joined):
                if upstream.reads_outside:
                    return TOPIC, upstream.name
        return OPERATOR, self._operator.name

    def _dead_letters(self, kind: DeadLetterKind) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Returns the operator's dead letters of *kind* in the span, and in the day before."""
        of_kind = (pl.col("operator") == self._operator.name) & (pl.col("kind") == kind.value)
        rows = self._counts.dead_letters.filter(of_kind)
        return rows.filter(self._span.holds()), rows.filter(self._before.holds())

    @property
    def _stream(self) -> str:
        return f"{self._topology.name}/{self._topology.sub_topology_of(self._operator.name).name}"

    def _partition(self, partition: int | None) -> str:
        """Returns SOURCE/PARTITION of the first source on the way to the operator that has a partition of that
        number.
        """
        before = [each.name for each in self._topology.path_into(self._operator.name) if each.reads_outside]
        known = self._counts.reads.filter(pl.col("partition").eq_missing(partition))["source"].unique()
        source = next((name for name in before if name in known), before[0] if before else self._operator.name)
        return partition_name(source, partition)


def partition_name(source: str, partition: int | None) -> str:
    """Returns SOURCE/PARTITION, or the name of a source without partitions."""
    return source if partition is None else f"{source}/{partition}"


def _loss(leaf: Leaf, found: float, usual: float, *, since_ms: int | None = None) -> Loss:
    counted = replace(leaf, records=round(found), usual_records=round(usual), since_ms=since_ms)
    return Loss(counted, max(0, found - usual))


def _sizes(rows: pl.DataFrame, *by: str) -> list[tuple[Any, ...]]:
    """Returns the groups of *rows* by the columns *by*, with the size of each at its end, the largest first."""
    return rows.group_by(by).agg(n=pl.len()).sort(-pl.col("n").cast(pl.Int64), *by).rows()


def _text(key: bytes) -> str:
    """Returns a key as text; if its bytes are no text, in hexadecimal digits."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key.hex()
