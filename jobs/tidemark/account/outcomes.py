"""What became of the records that an operator read, beyond what usually becomes of them: who owns these.

A share of each outcome is usual, which is that of the day before. Records beyond it have an owner: the producer of the
partition, a key, the operator, or the setting that holds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from tidemark.account.configured import holding_setting
from tidemark.account.counts import BATCH, Counts, Span
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
    """Records that did not come through, as a leaf whose share is not known yet.

    `excess` of them are beyond what is usual in the time that is judged.
    """

    leaf: Leaf
    excess: float


def large(losses: Iterable[Loss]) -> list[Loss]:
    """Returns those of *losses* that have LEAST_SHARE of the whole excess."""
    losses = [*losses]
    whole = sum(loss.excess for loss in losses)
    return [loss for loss in losses if loss.excess >= LEAST_SHARE * whole]


def as_one(losses: Iterable[Loss], **told: str) -> Iterator[Loss]:
    """Yields the sum of *losses*, if there are any, as one of several partitions."""
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
            **told,  # type: ignore[arg-type]
        )
        yield Loss(together, sum(loss.excess for loss in losses))


class OutcomesOf:
    """What became of what *operator* read in *span*, and in the day before it.

    Attributes:
        now: the sum of each column of the outcomes in the span.
    """

    def __init__(self, topology: Topology, counts: Counts, operator: Operator, span: Span) -> None:
        self._topology, self._counts, self._operator, self._span = topology, counts, operator, span
        self._before = Span(span.since_ms - DAY_MS, span.since_ms)
        self._rows = counts.outcomes.filter(pl.col("operator") == operator.name)
        self.now, self._usual = self._sums(span), self._sums(self._before)

    def _sums(self, span: Span) -> Mapping[str, int]:
        rows = self._rows.filter(span.holds())
        return {name: int(rows[name].sum()) for name in (*CAME_IN, *BECAME)}

    def usual_share(self, outcome: str) -> float | None:
        """Returns the share that *outcome* had in the day before; None: nothing was read."""
        n = self._usual["records_in"]
        return min(1, self._usual[outcome] / n) if n else None

    def losses(self) -> Iterator[Loss]:
        """Yields the records that it did not send on, by owner."""
        yield from self.late()
        yield from self.quarantined()
        yield from self._duplicates()
        yield from self._dropped()
        yield from self._held()

    def late(self) -> Iterator[Loss]:
        """Yields late records: those that were there before their source began, those of a key that has most of the
        others, and of the partitions of the rest.
        """
        if not self._beyond("late"):
            return
        now, before = (self._with_place(rows) for rows in self._refused(DeadLetterKind.LATE))
        for place, _ in _sizes(now.filter("was_there"), "place"):
            yield self._begun(place, now.filter("was_there", pl.col("place") == place))
        now = now.filter(~pl.col("was_there"))
        by_key = _sizes(now.drop_nulls("key"), "key", "place")
        if by_key and 2 * by_key[0][-1] > now.height:
            key, place, _ = by_key[0]
            is_its = (pl.col("key") == key) & (pl.col("place") == place)
            yield self._late(now.filter(is_its), before.filter(is_its), place, _text(key))
            is_other = ~is_its.fill_null(value=False)
            now, before = now.filter(is_other), before.filter(is_other)
        for place, _ in _sizes(now, "place"):
            is_its = pl.col("place") == place
            yield self._late(now.filter(is_its), before.filter(is_its), place, None)

    def _with_place(self, late: pl.DataFrame) -> pl.DataFrame:
        """Returns late records with `place`, SOURCE/PARTITION, and whether each was there when that source began.

        Several sources may have a partition of the same number. The record is of the one that its batch read it from.
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
            {"partition": partitions, "known": [self._place(partition) for partition in partitions]},
            schema_overrides={"partition": rows.schema["partition"]},
        )
        named = rows.join(read.select("letter", "source"), on="letter", how="left", maintain_order="left").join(
            of_partition, on="partition", how="left", maintain_order="left", nulls_equal=True
        )
        place = pl.coalesce(pl.concat_str("source", "partition", separator="/"), "known")
        return named.with_columns(place=place, was_there=pl.col("letter").is_in(begun["letter"].implode()))

    def _begun(self, place: str, now: pl.DataFrame) -> Loss:
        """Returns the loss of late records that had come before a change of the topology file began to read them."""
        source = place.rpartition("/")[0]
        leaf = Leaf(owner=TOPOLOGY_CHANGE, detail=source, became=Became.LATE, partition=place)
        return self._refusal(leaf, now, 0)

    def _late(self, now: pl.DataFrame, before: pl.DataFrame, place: str, key: str | None) -> Loss:
        leaf = Leaf(
            owner=PRODUCER if key is None else KEY,
            detail=place if key is None else key,
            became=Became.LATE,
            partition=place,
            key=key,
            largest_ms=self._oldest_ms(now, place.split("/")[0]),
        )
        return self._refusal(leaf, now, before.height)

    def _oldest_ms(self, late: pl.DataFrame, source: str) -> int | None:
        """Returns the age of the oldest record when it arrived.

        What is stored says how old it was at its batch's decision, and how long what the batch read there had waited.
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
        """Yields quarantined records, by partition and reason; of one about a field with its name."""
        if not self._beyond("quarantined"):
            return
        is_of_field = pl.lit(self._operator.is_watched) & (pl.col("reason") == "wrong_type")
        with_field = pl.concat_str("reason", "detail", separator=" ", ignore_nulls=True)
        why = pl.when(is_of_field).then(with_field).otherwise("reason")
        now, before = (rows.with_columns(why=why) for rows in self._refused(DeadLetterKind.QUARANTINED))
        usual = {(partition, reason): n for partition, reason, n in _sizes(before, "partition", "why")}
        for partition, reason, _ in _sizes(now, "partition", "why"):
            is_its = pl.col("partition").eq_missing(partition) & pl.col("why").eq_missing(reason)
            place = self._place(partition)
            leaf = Leaf(owner=PRODUCER, detail=place, became=Became.QUARANTINED, partition=place, reason=reason)
            yield self._refusal(leaf, now.filter(is_its), usual.get((partition, reason), 0))

    def _refusal(self, leaf: Leaf, now: pl.DataFrame, before: int) -> Loss:
        """Returns the loss of the records *now*, of which there were *before* in the day before."""
        n = self._usual["records_in"]
        usual = before / n * self.now["records_in"] if n else 0
        since_ms: int = now["finished_ms"].min()  # type: ignore[assignment]
        return _loss(leaf, now.height, usual, since_ms=since_ms)

    def _duplicates(self) -> Iterator[Loss]:
        """Yields records that had been read before, by the partition whose offsets were read and not used."""
        found, beyond = self.now["duplicate"], self._beyond("duplicate")
        if not beyond:
            return
        batches = self._rows.filter(self._span.holds(), pl.col("duplicate") > 0).select(BATCH)
        of_place = [*BATCH, "partition"]
        bad, _ = self._refused(DeadLetterKind.QUARANTINED)
        reads = self._counts.reads.filter(pl.col("source") == self._operator.name).join(batches, on=BATCH)
        unused = (
            reads.join(bad.group_by(of_place).agg(bad=pl.len()), on=of_place, how="left", nulls_equal=True)
            .group_by("partition")
            .agg(n=(pl.col("n") - pl.col("usable") - pl.col("bad").fill_null(0)).sum())
            .filter(pl.col("n") > 0)
            .sort("partition")
        )
        whole = unused["n"].sum()
        for partition, n in unused.rows():
            place, share = self._place(partition), n / whole
            leaf = Leaf(owner=PRODUCER, detail=place, became=Became.DUPLICATE, partition=place)
            yield _loss(leaf, share * found, share * (found - beyond))

    def _dropped(self) -> Iterator[Loss]:
        """Yields records that a condition filtered out, or that were judged unchanged or overtaken."""
        for became in (Became.FILTERED, Became.SUPPRESSED, Became.SUPERSEDED):
            beyond = self._beyond(became)
            # What others overtake while it is held belongs to what holds it.
            if beyond and not (became is Became.SUPERSEDED and self._holder):
                owner, detail = self._filter() if became is Became.FILTERED else (OPERATOR, self._operator.name)
                leaf = Leaf(owner=owner, detail=detail, became=became, stream=self._stream)
                yield _loss(leaf, self.now[became], self.now[became] - beyond)

    def _held(self) -> Iterator[Loss]:
        """Yields records that wait for a setting, and those that others overtook meanwhile."""
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
        """The setting that makes the operator hold records, as owner and detail; None: none does."""
        operator, name = self._operator, self._operator.name
        if operator.reads_outside:
            return MAX_DRIFT, self._counts.held_back_by(name) or name
        setting = holding_setting(operator)
        return None if setting is None else (setting, name)

    def _filter(self) -> tuple[str, str]:
        """Returns who filters: the operator, or the topic of a table that it joins, and that never had a row."""
        joined = self._operator.joined_table
        if joined is not None and not self._counts.has_ever_read(joined):
            for each in self._topology.path_into(joined):
                if each.reads_outside:
                    return TOPIC, each.name
        return OPERATOR, self._operator.name

    def _refused(self, kind: DeadLetterKind) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Returns the operator's dead letters of *kind* in the span, and in the day before."""
        is_its = (pl.col("operator") == self._operator.name) & (pl.col("kind") == kind.value)
        rows = self._counts.dead_letters.filter(is_its)
        return rows.filter(self._span.holds()), rows.filter(self._before.holds())

    @property
    def _stream(self) -> str:
        return f"{self._topology.name}/{self._topology.sub_topology_of(self._operator.name).name}"

    def _place(self, partition: int | None) -> str:
        """Returns SOURCE/PARTITION: of the operator, or of the source before it that has such a partition."""
        before = [each.name for each in self._topology.path_into(self._operator.name) if each.reads_outside]
        known = self._counts.reads.filter(pl.col("partition").eq_missing(partition))["source"].unique()
        source = next((name for name in before if name in known), before[0] if before else self._operator.name)
        return place_of(source, partition)


def place_of(source: str, partition: int | None) -> str:
    """Returns SOURCE/PARTITION; of a source without partitions its name."""
    return source if partition is None else f"{source}/{partition}"


def _loss(leaf: Leaf, found: float, usual: float, *, since_ms: int | None = None) -> Loss:
    told = replace(leaf, records=round(found), usual_records=round(usual), since_ms=since_ms)
    return Loss(told, max(0, found - usual))


def _sizes(rows: pl.DataFrame, *by: str) -> list[tuple[Any, ...]]:
    """Returns the groups of *rows* with their sizes, the largest first, and equal ones in their order."""
    return rows.group_by(by).agg(n=pl.len()).sort(-pl.col("n").cast(pl.Int64), *by).rows()


def _text(key: bytes) -> str:
    """Returns the text of a key; of one that is no text its bytes in hexadecimal digits."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key.hex()
