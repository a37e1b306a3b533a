"""Sorts the rows of a source into those on time, held, late and unusable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

from tidemark.kernels.columns.buckets import bucket_of
from tidemark.kernels.columns.splitting import in_order, split
from tidemark.kernels.records.fields import texts_of
from tidemark.kernels.records.headers import with_unreadable_keys
from tidemark.kernels.records.marks import is_hop_update
from tidemark.kernels.updates.proofs import as_read
from tidemark.model.kinds.repartition import HopSource
from tidemark.model.kinds.source import Source
from tidemark.semantics.event_time import PartitionReading

IN_FUTURE = "timestamp_in_future"
"""Reason of quarantine: the record is too far ahead of the clock."""
KILLS_DRIVERS = "kills_drivers"
"""Reason of quarantine: every driver that read the record was killed. Only its partition and offset are known."""
FAILS_DRIVERS = "fails_drivers"
"""Reason of quarantine: every driver that read the record failed with the error in `detail`."""
ACCEPTED_LOSS = "accepted_loss"
"""Reason of quarantine: a person gave the record up; `detail` says who, and why."""
HELD_AS = "_held_as"
"""Column of a held record: the key by which it is stored; null for a record that this batch read.

Partition and offset are no key: in a topic that was recreated, another record may have the same offset.
"""


@dataclass(frozen=True)
class Arrivals:
    """The rows of one source, sorted.

    Attributes:
        on_time: records for the operators that read the source.
        held: records that wait for a later batch; with the column HELD_AS.
        alive: keep-alive records, which only move time.
        late: records behind the watermark.
        bad: unusable records, with a reason.
        repeated: records that were read before.
        told_idle: by partition, whether the newest mark of its writer declares it idle.
        released_early: how many records on time should have been held, but `max_held` others were held already.
    """

    on_time: pl.DataFrame
    held: pl.DataFrame
    alive: pl.DataFrame
    late: pl.DataFrame
    bad: pl.DataFrame
    repeated: pl.DataFrame
    told_idle: Mapping[int, bool] = field(default_factory=dict)
    released_early: int = 0

    @property
    def measured(self) -> pl.DataFrame:
        """Records that the source finished, for its latency."""
        # Late records count (KIP-613), records that are held do not yet.
        late = self.late.select(_timestamp_ms="timestamp_ms", _task="partition")
        return pl.concat([self.on_time.select("_timestamp_ms", "_task"), late])

    def seen(self, read_to: Mapping[int, int], counts_up_to_ms: int | None = None) -> dict[int, PartitionReading]:
        """Returns what was read of each partition with rows: offsets and the newest record.

        Args:
            read_to: by partition, the offset at which earlier batches ended.
            counts_up_to_ms: a later record moves time only to here; None without such a limit.
        """
        alive = self.alive.select(_timestamp_ms="timestamp_ms", _task="partition")
        newest = dict(
            pl.concat([self.measured, alive]).group_by("_task").agg(_counted(counts_up_to_ms).max()).iter_rows()
        )
        held_from = dict(self.held.group_by("_partition").agg(pl.col("_offset").min()).iter_rows())
        records = [rows.select(partition="_partition", offset="_offset") for rows in (self.on_time, self.held)]
        rest = [rows.select("partition", "offset") for rows in (self.alive, self.late, self.bad, self.repeated)]
        ends = (
            pl.concat([*records, *rest])
            .group_by("partition")
            .agg(first=pl.col("offset").min(), last=pl.col("offset").max())
        )
        readings: dict[int, PartitionReading] = {}
        for partition, first, last in ends.iter_rows():
            readings[partition] = PartitionReading(
                from_offset=read_to.get(partition, first),
                # Records that waited are from before `read_to`.
                until_offset=max(last + 1, read_to.get(partition, 0)),
                max_timestamp_ms=newest.get(partition),
                held_from=held_from.get(partition),
                told_idle=self.told_idle.get(partition),
            )
        return readings


def held_schema(schema: Mapping[str, pl.DataType]) -> dict[str, pl.DataType]:
    """Returns the columns of held records, whose source has *schema*."""
    return {HELD_AS: pl.String(), **schema}


def arrivals(
    source: Source,
    rows: pl.DataFrame,
    waiting: pl.DataFrame,
    newest_ms: Mapping[int, int],
    *,
    repeated: pl.DataFrame,
    late_up_to_ms: int | None,
    allowed_ms: int | None,
    counts_up_to_ms: int | None = None,
    max_held: int | None = None,
) -> Arrivals:
    """Sorts the *rows* of *source*, which are in offset order.

    Args:
        source: the source.
        rows: its rows, without repeated ones.
        waiting: records that earlier batches held, with their keys; they come first.
        newest_ms: by partition, the time of the newest record that was sent on.
        repeated: rows that were read before.
        late_up_to_ms: a record of this time or before is late; None if none is.
        allowed_ms: once the watermark of a partition is above this, its further records are held; None holds none.
        counts_up_to_ms: a record moves time up to this at most; None without such a limit.
        max_held: most records that are held, the others are sent on; None without such a limit.
    """
    usable, bad = split(rows, pl.col("reason").is_null())
    payload = pl.col(source.name).struct
    # A record with a key is an update of that key, even where all of its fields are null.
    others = [payload.field(c).is_null() for c in source.columns if c != source.timestamp]
    nothing = pl.all_horizontal(pl.col("key").is_null(), *others) if others else pl.lit(value=False)
    alive, records = split(usable, ~pl.col("deleted") & nothing)
    late, punctual = split(records, pl.col("timestamp_ms") <= pl.lit(late_up_to_ms, pl.Int64))
    key_texts = texts_of(punctual["key"])
    fresh = punctual.select(
        pl.lit(None, pl.String).alias(HELD_AS),
        payload.field(*source.columns),
        _key=key_texts,
        _timestamp_ms="timestamp_ms",
        _partition="partition",
        _offset="offset",
        _task="partition",
        _deleted="deleted",
        _headers=with_unreadable_keys(punctual["headers"], punctual["key"], key_texts),
        _newest_ms="timestamp_ms",
        _repeated=pl.lit(value=False),
        _read=pl.lit(None, pl.Int64),
    )
    candidates = in_order(pl.concat([waiting, fresh]), "_partition", "_offset")
    released, ahead, released_early = candidates, candidates.clear(), 0
    if allowed_ms is not None:
        newest = pl.col("_partition").replace_strict(dict(newest_ms), default=None, return_dtype=pl.Int64)
        # A record is judged by what its partition had reached before it, as if records came one by one.
        before = pl.max_horizontal(newest, _counted(counts_up_to_ms).cum_max().shift().over("_partition"))
        held = (before - source.bound_ms - 1 > allowed_ms).fill_null(value=False)
        judged = candidates.with_columns(_held=held, _before=before)
        candidates = _with_at_most_held(judged, max_held)
        released_early = judged.filter("_held").height - candidates.filter("_held").height
        ahead, released = split(candidates.drop("_before"), pl.col("_held"))
        ahead, released = ahead.drop("_held"), released.drop("_held")
    released = released.drop(HELD_AS)
    # A record that waited may be late by now. Its bytes are not kept, so it is written as JSON.
    behind, on_time = split(released, pl.col("_timestamp_ms") <= pl.lit(late_up_to_ms, pl.Int64))
    return Arrivals(
        on_time=on_time,
        held=ahead,
        alive=alive,
        late=pl.concat([_late(late), as_read(behind)]),
        bad=bad,
        repeated=repeated,
        released_early=released_early,
    )


def _with_at_most_held(rows: pl.DataFrame, most: int | None) -> pl.DataFrame:
    """Returns *rows* with at most *most* of them `_held`: those of partitions that are least far ahead are released
    first.

    *rows* are in order of partition and offset.
    """
    too_many = 0 if most is None else rows.filter("_held").height - most
    if too_many <= 0:
        return rows
    numbered = rows.with_row_index("_row")
    # `_before`, how far its partition had come, never falls, so each partition releases its records in the order of
    # offsets.
    first = numbered.filter("_held").sort("_before", "_row").head(too_many)["_row"]
    return numbered.with_columns(_held=pl.col("_held") & ~pl.col("_row").is_in(first.implode())).drop("_row")


def _counted(up_to_ms: int | None) -> pl.Expr:
    """Returns each record's time for the watermark, *up_to_ms* at most."""
    time, most = pl.col("_timestamp_ms"), pl.lit(up_to_ms, pl.Int64)
    return pl.when(time > most).then(most).otherwise(time)


def with_future(source: Source, rows: pl.DataFrame, decided_at_ms: int) -> pl.DataFrame:
    """Marks *rows* too far ahead of *decided_at_ms* as `timestamp_in_future`."""
    if source.max_ahead_ms is None:
        return rows
    ahead = pl.col("timestamp_ms") > decided_at_ms + source.max_ahead_ms
    return rows.with_columns(
        reason=pl.when(pl.col("reason").is_null() & ahead).then(pl.lit(IN_FUTURE)).otherwise("reason")
    )


def _late(records: pl.DataFrame) -> pl.DataFrame:
    return records.select("partition", "offset", "timestamp_ms", "value", "key")


def rows_in_order(source: Source, raw: pl.DataFrame, *, numbered_from: int) -> pl.DataFrame:
    """Returns the rows of *source* in *raw* in offset order.

    Rows without offsets are numbered in the order of writing, from *numbered_from*.
    """
    rows, _ = split(raw, pl.col("source") == source.name)
    if source.topic is None:
        # Spark packs files by size; the rows of one piece of a file come together and in order.
        rows = rows.sort("written", maintain_order=True)
        return rows.with_columns(offset=numbered_from + pl.int_range(pl.len(), dtype=pl.Int64))
    return in_order(rows, "partition", "offset")


def disorder(timestamps_ms: pl.Series, reached_ms: int | None) -> pl.DataFrame:
    """Counts *timestamps_ms* per bucket of their distance behind *reached_ms*."""
    # A record ahead of all before it is not behind, so it counts in bucket 0.
    behind = pl.lit(reached_ms, pl.Int64) - pl.col("timestamp_ms")
    in_time = pl.DataFrame({"timestamp_ms": timestamps_ms}).select(bucket=bucket_of(behind.fill_null(0).clip(0)))
    return in_time.group_by("bucket").agg(n=pl.len()).sort("bucket")


@dataclass(frozen=True)
class HopArrivals:
    """The rows that a batch read from the table of an upstream stream (a hop), and the upstream's time.

    Attributes:
        rows: the updates.
        order: for each of the rows, the upstream's `_batch`, its number `_seq` in that batch, and the row of its
            `_result`.
        watermark_ms: the upstream's watermark.
        idle: whether the upstream is idle; None if it sent no mark.
        idle_watermark_ms: the lowest watermark of the upstream's idle partitions, by its newest mark; None if no
            partition is idle.
        windows: starts of the windows that the upstream closed.
        last_batch: the upstream's last batch that was read.
    """

    rows: pl.DataFrame
    order: pl.DataFrame
    watermark_ms: int | None
    idle: bool | None
    idle_watermark_ms: int | None
    windows: tuple[int, ...]
    last_batch: int | None


def hop_arrivals(source: HopSource, raw: pl.DataFrame) -> HopArrivals:
    """Returns the rows of *source* in *raw*, in the upstream's order."""
    rows = raw.filter(pl.col("source") == source.name)
    rows = rows.select("partition", "offset", "timestamp_ms", "headers", pl.col(source.name).struct.unnest())
    rows = rows.sort("offset", "seq")
    is_update = is_hop_update(watermark="watermark_ms")
    marks = rows.filter(~is_update)
    fresh = rows.filter(is_update)
    starts = marks["value"].str.json_decode(pl.List(pl.Int64)).explode().drop_nulls()
    return HopArrivals(
        hop_updates(fresh, timestamp="timestamp_ms", newest="newest_ms"),
        fresh.select(_batch="offset", _seq="seq", _result="result_row"),
        marks["watermark_ms"].max(),  # type: ignore[arg-type]
        marks["idle"][-1] if marks.height else None,
        marks["idle_watermark_ms"][-1] if marks.height else None,
        tuple(starts),
        rows["offset"].max(),  # type: ignore[arg-type]
    )


def hop_updates(rows: pl.DataFrame, *, timestamp: str = "timestamp", newest: str = "newest") -> pl.DataFrame:
    """Returns the *rows* that an upstream wrote with the meta columns of records, as `steps.hop_records` reads them.

    *timestamp* and *newest* are the names of the columns with their record time and the newest record's.
    """
    return rows.select(
        "value",
        "old_value",
        _key="key",
        _timestamp_ms=timestamp,
        _partition="source_partition",
        _offset="source_offset",
        _task="partition",
        _deleted=pl.col("value").is_null(),
        _headers="headers",
        _newest_ms=newest,
        _repeated="repeated",
        _read=pl.lit(None, pl.Int64),
    )
