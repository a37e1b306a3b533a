"""Groups the records that a batch read, and the results that it made visible, by how their age came about.

There are rows for groups, and none for single records. The records of a row are of one input partition, have nearly the
same age and waited nearly as long, and were left unread by the same earlier batches. The account of time, which divides
the age of a result among owners such as the broker or an operator, treats a row as one record with the mean age. This
is exact unless the time passed from one owner to another between two arrivals of the row. The error of each owner's
part is then a quarter of the distance of these arrivals at most, which is 1 % of the wait and 10 ms (`cell_of`).
"""

from __future__ import annotations

import numpy as np
import polars as pl

from tidemark.kernels.columns.buckets import bucket_of
from tidemark.kernels.columns.schemas import fields_schema
from tidemark.kernels.records.fields import texts_of
from tidemark.model.tables import catalog

LEAST_MS = 1_000
"""This is added to a length before its cell is found, so that short lengths share cells: clocks differ by more than 1 %
of 100 ms."""
BUCKETS = 2
"""So many neighbouring buckets of latencies (`semantics.buckets`) make a cell."""
SOURCE_RECORDS = pl.Schema(
    {"partition": pl.Int32(), "offset": pl.Int64(), "event_ms": pl.Int64(), "arrived_ms": pl.Int64()}
)
"""Records that a batch read of a source, in the order of partition and offset.

`event_ms` is the record time, and `arrived_ms` the stamp of the broker, of a file or of a table's version, both epoch
ms. The stamp is null for a topic with CreateTime: nobody stamps arrivals there.
"""
HOP_RECORDS = pl.Schema({"writer_batch": pl.Int64(), "writer_row": pl.Int64(), "event_ms": pl.Int64()})
"""Records that a batch read from the table of an upstream stream (a hop).

Each has the upstream's batch that wrote it, and the `row` of RESULTS of that batch.
"""
WRITTEN_RECORDS = pl.Schema(
    {
        "partition": pl.Int32(),
        "offset": pl.Int64(),
        "event_ms": pl.Int64(),
        "writer_batch": pl.Int64(),
        "writer_row": pl.Int64(),
    }
)
"""Records that a batch read from a hop, or from a topic that a stream of this warehouse writes.

They have the columns of SOURCE_RECORDS without the arrival, the batch that wrote them, and their row in the `results`
of that batch. The offset in a hop is the number of that batch.
"""
PLANS = pl.Schema({"partition": pl.Int32(), "until_offset": pl.Int64(), "left_by": pl.Int64()})
"""Earlier batches that left records unread: the plan of the batch `left_by` saw the records before `until_offset`."""
OPEN_SPANS = pl.Schema({"partition": pl.Int32(), "from_offset": pl.Int64(), "until_offset": pl.Int64()})
"""Offsets, the end excluded, that belonged to open transactions when the stream looked at its topic."""
LOOKS = pl.Schema({"partition": pl.Int32(), "until_offset": pl.Int64(), "before_ms": pl.Int64()})
"""Looks at a topic with CreateTime while batches worked: they saw the records before `until_offset`, and were
`before_ms` before this batch's look, by the driver's boot clock."""
READS = fields_schema(catalog.READS)
FIRSTS = fields_schema(catalog.FIRSTS)
"""In order of arrival they are the first records of a partition at or beyond each instant for which a window that the
batch closed had waited: its end plus the bound of the source."""
RESULTS = fields_schema(catalog.RESULTS)
SLOW_KEYS = fields_schema(catalog.SLOW_KEYS)
MOST_KEYS = 3


def cell_of(length_ms: pl.Expr) -> pl.Expr:
    """Returns the cell of each signed length in ms, as Int16; those of one cell differ by 4 % and 40 ms at most."""
    magnitude = bucket_of(length_ms.abs() + LEAST_MS) // BUCKETS
    return pl.when(length_ms < 0).then(-magnitude).otherwise(magnitude)


def source_reads(
    records: pl.DataFrame,
    decided_at_ms: int,
    *,
    plans: pl.DataFrame | None = None,
    open_spans: pl.DataFrame | None = None,
    looks: pl.DataFrame | None = None,
) -> tuple[pl.DataFrame, pl.Series]:
    """Groups the records that a batch read of a source.

    Args:
        records: SOURCE_RECORDS.
        decided_at_ms: decision time of the batch, epoch ms.
        plans: PLANS; None if no earlier batch had left records unread.
        open_spans: OPEN_SPANS; None if no transaction was open.
        looks: LOOKS; None if the broker stamps arrivals.

    Returns:
        The groups in order, with `partition` and the fields of READS; and for each record the number of its group.
    """
    lengths = records.select(age_ms=decided_at_ms - pl.col("event_ms"), wait_ms=decided_at_ms - pl.col("arrived_ms"))
    # One number is the key of a row: to group by three columns takes four times as long.
    cells = _as_number(cell_of(pl.col("age_ms"))) * 2**16 + _as_number(cell_of(pl.col("wait_ms")).fill_null(0))
    rows, numbers = _counted(lengths.with_columns(cell=cells), _runs(records, plans, open_spans, looks))
    return _as_fields(rows, {"partition": pl.Int32(), **READS}), numbers


def written_reads(
    records: pl.DataFrame,
    decided_at_ms: int,
    *,
    plans: pl.DataFrame | None = None,
    open_spans: pl.DataFrame | None = None,
) -> tuple[pl.DataFrame, pl.Series]:
    """Groups WRITTEN_RECORDS by the row of their writer. Arguments and result are as in `source_reads`."""
    rows_of_writers = records["writer_row"].unique().sort()
    cells = rows_of_writers.search_sorted(records["writer_row"])
    lengths = records.select(age_ms=decided_at_ms - pl.col("event_ms"), wait_ms=pl.lit(None, pl.Int64()), cell=cells)
    rows, numbers = _counted(lengths, _runs(records, plans, open_spans, None))
    rows = rows.with_columns(writer_row=rows_of_writers.gather(rows["cell"]))
    return _as_fields(rows, {"partition": pl.Int32(), **READS}), numbers


def hop_reads(
    records: pl.DataFrame, decided_at_ms: int, *, plans: pl.DataFrame | None = None
) -> tuple[pl.DataFrame, pl.Series]:
    """Groups the records that a batch read from a hop by the row of their writer.

    Args:
        records: HOP_RECORDS.
        decided_at_ms: decision time of the batch, epoch ms.
        plans: PLANS; None if no earlier batch had left records unread.

    Returns:
        The groups with the fields of READS; and for each record the number of its group.
    """
    written = records.select(
        pl.lit(0, pl.Int32()).alias("partition"), "event_ms", "writer_batch", "writer_row", offset="writer_batch"
    )
    order = written["offset"].arg_sort()
    rows, numbers = written_reads(written[order], decided_at_ms, plans=plans)
    return rows.drop("partition"), numbers[order.arg_sort()]


def passing_records(records: pl.DataFrame, *, size_ms: int, after_ms: int) -> pl.DataFrame:
    """Returns those of *records* with which a partition may pass an instant `k × size_ms + after_ms`, k whole.

    `first_records` gives the same result for them as for all *records*, whichever of these instants are asked for.
    There is one more record than instants that the partition passes.

    Args:
        records: SOURCE_RECORDS.
        size_ms: length of a window.
        after_ms: how long after its end it waits.

    Returns:
        The records in their order with `reached_ms`, the newest record time before each in its partition; null for the
        first.
    """
    reached_ms = pl.col("event_ms").cum_max()
    passed = (reached_ms - after_ms).floordiv(size_ms)
    return records.with_columns(reached_ms=reached_ms.shift().over("partition")).filter(
        passed.ne_missing(passed.shift()).over("partition")
    )


def first_records(
    records: pl.DataFrame,
    instants_ms: pl.Series,
    newest_ms: pl.DataFrame,
    decided_at_ms: int,
    *,
    plans: pl.DataFrame | None = None,
    open_spans: pl.DataFrame | None = None,
    looks: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """Returns the records with which partitions passed the instants that closed windows had waited for.

    Args:
        records: SOURCE_RECORDS or WRITTEN_RECORDS, or those that `passing_records` returns of them.
        instants_ms: the instants that the windows which the batch closed had waited for, record time, epoch ms.
        newest_ms: the newest record time, `newest_ms`, of each `partition` before the batch; a partition without a
            record has no row.
        decided_at_ms: decision time of the batch, epoch ms.
        plans: as for `source_reads`.
        open_spans: as for `source_reads`.
        looks: as for `source_reads`.

    Returns:
        A row for each such record, in the order of partition and arrival: `partition` and the fields of FIRSTS.
    """
    asked, never_ms = np.unique(instants_ms.to_numpy()), np.iinfo(np.int64).min
    before = dict(newest_ms.select("partition", "newest_ms").iter_rows())
    event_ms = records["event_ms"].to_numpy()
    given_ms = records["reached_ms"].fill_null(never_ms).to_numpy() if "reached_ms" in records.columns else None
    found, reached_ms = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for partition, start, length in _partitions(records):
        reached = np.maximum.accumulate(np.append(before.get(partition, never_ms), event_ms[start : start + length]))
        passing = np.unique(np.searchsorted(reached[1:], asked[asked > reached[0]]))
        passing = passing[passing < length]
        found.append(start + passing)
        before_ms = reached[passing] if given_ms is None else np.maximum(reached[passing], given_ms[start + passing])
        reached_ms.append(before_ms)
    reached_at = pl.Series(np.concatenate(reached_ms)).replace(never_ms, None)
    rows = records[np.concatenate(found)].with_columns(
        age_ms=decided_at_ms - pl.col("event_ms"), reached_age_ms=decided_at_ms - reached_at
    )
    if "arrived_ms" in rows.columns:
        rows = rows.with_columns(wait_ms=decided_at_ms - pl.col("arrived_ms"))
    rows = _with_looks(_with_spans(_with_plans(rows, plans), open_spans), looks)
    return _as_fields(rows, {"partition": pl.Int32(), **FIRSTS})


def places_of(records: pl.DataFrame, asked: pl.DataFrame) -> pl.Series:
    """Returns, for each `partition` and `offset` of *asked*, the index of that record among *records*.

    A result finds in this way the row and the arrival of the record that it reflects. The index is null for a record
    that this batch did not read. *records* are in the order of partition and offset.
    """
    if records.is_empty():
        return pl.repeat(None, asked.height, dtype=pl.UInt32(), eager=True)
    known, wanted = _record_numbers(records), _record_numbers(asked)
    at = np.searchsorted(known, wanted).clip(max=records.height - 1)
    return pl.Series(at, dtype=pl.UInt32()).set(pl.Series(known[at] != wanted), None)


def results_by_row(results: pl.DataFrame, decided_at_ms: int) -> pl.DataFrame:
    """Returns the RESULTS of an operator: its results in a batch, added up by `row` of READS, in the order of `row`.

    Args:
        results: a row for each result, with `row`, and with `event_ms` and `arrived_ms` of the newest record that it
            reflects, as in SOURCE_RECORDS; `arrived_ms` is null if not known.
        decided_at_ms: decision time of the batch, epoch ms.
    """
    lengths = results.select(
        "row",
        n=pl.lit(1, pl.Int64()),
        age_ms=decided_at_ms - pl.col("event_ms"),
        wait_ms=decided_at_ms - pl.col("arrived_ms"),
    )
    return _as_fields(summed(lengths, "row"), RESULTS)


def summed(rows: pl.DataFrame, *by: str) -> pl.DataFrame:
    """Adds up the *rows*, READS or RESULTS, that have equal values of *by*; the sums are in the order of *by*."""
    sums = [pl.sum("n"), pl.sum("age_ms"), _sum("wait_ms")]
    sums += [pl.min("min_age_ms")] if "min_age_ms" in rows.columns else []
    in_common = pl.exclude(*by, "n", "age_ms", "min_age_ms", "wait_ms").first()
    return rows.group_by(by).agg(*sums, in_common).sort(by).select(rows.columns)


def slow_keys(records: pl.DataFrame, limit_ms: int, decided_at_ms: int) -> pl.DataFrame:
    """Returns the MOST_KEYS keys of each partition that have the most old records: `partition` and SLOW_KEYS.

    Among keys with equally many old records the first by its bytes counts.

    Args:
        records: SOURCE_RECORDS with `key`, bytes. A key that is null, or no text, is left out.
        limit_ms: records that are older than this at the decision are old.
        decided_at_ms: decision time of the batch, epoch ms.
    """
    old = records.filter(pl.col("event_ms") < decided_at_ms - limit_ms, pl.col("key").is_not_null())
    age_ms = decided_at_ms - pl.col("event_ms")
    by_key = old.group_by("partition", "key").agg(n=pl.len(), age_ms=age_ms.sum(), max_age_ms=age_ms.max())
    # To sort all keys takes longer than to count their records.
    often = by_key.filter(pl.col("n") >= pl.col("n").top_k(MOST_KEYS).min().over("partition"))
    first = pl.all().top_k_by(["n", "key"], MOST_KEYS, reverse=[False, True])
    most = often.group_by("partition").agg(first).explode(*SLOW_KEYS)
    in_order = most.sort("partition", "n", "key", descending=[False, True, False])
    named = in_order.with_columns(key=texts_of(in_order["key"])).drop_nulls("key")
    return _as_fields(named, {"partition": pl.Int32(), **SLOW_KEYS})


def _as_fields(rows: pl.DataFrame, schema: dict[str, pl.DataType] | pl.Schema) -> pl.DataFrame:
    missing = [pl.lit(None, kind).alias(name) for name, kind in schema.items() if name not in rows.columns]
    return rows.with_columns(missing).select(pl.col(name).cast(kind) for name, kind in schema.items())


def _counted(lengths: pl.DataFrame, runs: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series]:
    """Returns a row for each run and `cell` of *lengths*, and for each record the number of its row."""
    run = pl.Series(np.repeat(np.arange(runs.height), runs["length"].to_numpy()))
    keyed = lengths.with_columns(key=pl.lit(run) * 2**32 + pl.col("cell"))
    rows = (
        keyed.group_by("key")
        .agg(n=pl.len(), age_ms=pl.sum("age_ms"), min_age_ms=pl.min("age_ms"), wait_ms=_sum("wait_ms"))
        .sort("key")
        .with_columns(run=pl.col("key") // 2**32, cell=pl.col("key") % 2**32)
        .join(runs.with_row_index("run").cast({"run": pl.Int64()}), on="run", maintain_order="left")
        .with_row_index("row")
    )
    return rows, _numbers(keyed, rows)


def _numbers(keyed: pl.DataFrame, rows: pl.DataFrame) -> pl.Series:
    """Returns the `row` of each `key`."""
    return keyed.select("key").join(rows.select("key", "row"), on="key", how="left", maintain_order="left")["row"]


def _as_number(cell: pl.Expr) -> pl.Expr:
    return cell.cast(pl.Int64()) + 2**15


def _sum(name: str) -> pl.Expr:
    """Returns the sum of a column; null if it has nulls."""
    return pl.when(pl.col(name).has_nulls()).then(None).otherwise(pl.sum(name)).alias(name)


def _partitions(records: pl.DataFrame) -> list[tuple[int, int, int]]:
    """Returns each partition of *records* with the index of its first record and its number of records."""
    lengths, partitions = records["partition"].rle().struct.unnest().get_columns()
    return list(zip(partitions, lengths.cum_sum() - lengths, lengths, strict=True))


def _record_numbers(rows: pl.DataFrame) -> np.ndarray:
    """Returns partition and offset of each of *rows* as one number, in their order. Offsets are below 2⁴⁸."""
    return rows.select(pl.col("partition").cast(pl.Int64()) * 2**48 + pl.col("offset")).to_series().to_numpy()


def _runs(
    records: pl.DataFrame, plans: pl.DataFrame | None, open_spans: pl.DataFrame | None, looks: pl.DataFrame | None
) -> pl.DataFrame:
    """Divides *records* into runs that one batch wrote and that the same plans, spans and looks cover.

    Each run is a row with its first record and its `length`.
    """
    edges = [
        frame.select("partition", edge="until_offset") for frame in (plans, open_spans, looks) if frame is not None
    ]
    if open_spans is not None:
        edges.append(open_spans.select("partition", edge="from_offset"))
    by_partition = pl.concat(edges).partition_by("partition", as_dict=True) if edges else {}
    offsets, starts = records["offset"].to_numpy(), [np.empty(0, np.int64)]
    for partition, start, length in _partitions(records):
        starts.append(np.array([start]))
        if (partition,) in by_partition:
            ends = np.searchsorted(offsets[start : start + length], by_partition[partition,]["edge"].to_numpy())
            starts.append(start + ends[ends < length])
    if "writer_batch" in records.columns:
        lengths = records["writer_batch"].rle().struct.field("len")
        starts.append((lengths.cum_sum() - lengths).to_numpy())
    first = np.unique(np.concatenate(starts))
    known = [name for name in ("partition", "offset", "writer_batch") if name in records.columns]
    runs = records.select(known)[first].with_columns(length=pl.Series(np.diff(np.append(first, records.height))))
    return _with_looks(_with_spans(_with_plans(runs, plans), open_spans), looks)


def _with_plans(rows: pl.DataFrame, plans: pl.DataFrame | None) -> pl.DataFrame:
    """Returns *rows*, which have `partition` and `offset`, with `left_by`, the first batch that left the
    record unread.
    """
    if plans is None:
        return rows.with_columns(left_by=pl.lit(None, pl.Int64()))
    return _joined(rows, plans.sort("left_by", descending=True), ends_after=True)


def _with_spans(rows: pl.DataFrame, open_spans: pl.DataFrame | None) -> pl.DataFrame:
    if open_spans is None:
        return rows.with_columns(in_transaction=pl.lit(value=False))
    is_open = (pl.col("from_offset") <= pl.col("offset")).fill_null(value=False)
    found = _joined(rows, open_spans.sort("from_offset", descending=True), ends_after=True)
    return found.with_columns(in_transaction=is_open).drop("from_offset")


def _with_looks(rows: pl.DataFrame, looks: pl.DataFrame | None) -> pl.DataFrame:
    if looks is None:
        return rows
    oldest_last = looks.sort("before_ms")
    seen = _joined(rows, oldest_last.rename({"before_ms": "seen_before_ms"}), ends_after=True)
    newest_last = looks.sort("before_ms", descending=True)
    return _joined(seen, newest_last.rename({"before_ms": "excluded_before_ms"}), ends_after=False)


def _joined(rows: pl.DataFrame, sights: pl.DataFrame, *, ends_after: bool) -> pl.DataFrame:
    """Returns *rows* with the nearest of *sights* (plans, spans or looks, each of the offsets before `until_offset`).

    With *ends_after* that is the first sight that reached beyond the row's offset, and otherwise the last one that did
    not. Of several with the same `until_offset` the last in the order of *sights* counts.
    """
    one_each = sights.unique(["partition", "until_offset"], keep="last", maintain_order=True)
    # Those that saw an offset end after it, the others at or before it.
    return rows.join_asof(
        one_each.sort("until_offset"),
        left_on="offset",
        right_on="until_offset",
        by="partition",
        strategy="forward" if ends_after else "backward",
        allow_exact_matches=not ends_after,
        check_sortedness=False,
    ).drop("until_offset")
