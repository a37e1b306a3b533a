"""Counts the records that a batch read, and the results that it made visible, by how long they had waited.

Purpose: whoever explains why a result was late needs its records, and no table has a row for each record. So records of
a batch that waited about equally long share one row of counts (`kernels.records.read_ages`), and a result names the row
of its newest record.

How it works: these rows are numbered over all batches of the stream. Each record carries the number of its row along in
the column `_read`, through operators and the states that they keep. So when the result of a window is sent, it names
the row of its newest record, in the batch that read this record.

In shards, the task that takes in a partition counts its rows, and each shard counts its results. Records carry the
number of their row to their shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import polars as pl

from tidemark.kernels.records import read_ages
from tidemark.kernels.records.read_ages import READS, SOURCE_RECORDS
from tidemark.model.kinds.operator import Level
from tidemark.model.kinds.repartition import HopSource
from tidemark.model.kinds.source import Source
from tidemark.model.topology import SubTopology, Topology
from tidemark.selection import pick
from tidemark.semantics.progress import InputProgress, StreamProgress
from tidemark.stream.journal.batch import MicroBatch
from tidemark.stream.journal.streaming_windows import ClosedWindow
from tidemark.stream.read.intake import records_of_hop
from tidemark.stream.updates.step import Run

OF_HOP = {
    "source_partition": "_partition",
    "source_offset": "_offset",
    "newest": "_newest_ms",
    "result_row": "_read",
    "repeated": "_repeated",
}
"""For the results of a hop: our name of each column by the name that the hop has for it."""
READS_OF, FIRSTS_OF, SLOW_KEYS_OF, RESULTS_OF = "reads_of_", "firsts_of_", "slow_keys_of_", "results_of_"
"""Prefixes of tables in a journal entry, each followed by a source or an operator; `read_ages` has their columns."""


LooksBefore = Callable[[int, str], Sequence[tuple[int, int, int]]]
"""Returns when the driver had asked for the end offsets of a source before an instant of the boot clock.

Each look is a partition, its end offset then, and how long before the instant it was, ms.
"""


def no_looks(at_ms: int, source: str) -> Sequence[tuple[int, int, int]]:
    """Returns no looks: tasks do not ask brokers, the driver does."""
    return ()


BESIDE = ("_arrived_ms", "_read_row", "_batch", "_seq", "_result")
"""Columns that records have on their way to a shard, and that no operator reads.

For a source they are the arrival of the record, and the number of its row among the rows of its partition. For a hop
they are the writer's batch, the number of the update in it, and the row of the result there.
"""


@dataclass(frozen=True)
class SourceReads:
    """What a batch read of a source.

    Attributes:
        records: the records in the order of partition and offset; in a shard only those of the shard.
        rows: the rows of counts, with `partition` (0 for a hop) and READS, in the order of partitions.
        numbers: for each of `records`, the index of its row in `rows`.
        first: the number of the first of `rows` among all rows of the stream.
    """

    records: pl.DataFrame
    rows: pl.DataFrame
    numbers: pl.Series
    first: int

    def row_numbers(self, index: pl.Series) -> pl.Series:
        """Returns, for each *index* of a record, the number of its row among all rows of the stream; null for null."""
        return self.numbers[index].cast(pl.Int64) + self.first

    def beside(self, records: pl.DataFrame) -> pl.DataFrame:
        """Returns *records*, which are among those read, with the columns BESIDE, by which a shard finds their rows.

        Records of a hop have these columns already, from the writer.
        """
        if "arrived_ms" not in self.records.columns:
            return records
        index = read_ages.places_of(self.records, _offsets(records))
        arrived_ms, read_row = self.records["arrived_ms"][index], _in_partition(self.rows)[self.numbers[index]]
        return records.with_columns(_arrived_ms=arrived_ms, _read_row=read_row)


class BatchWaits:
    """Counts what batches of *sub* read and made visible. If the topology's level is `off`, nothing is counted.

    *looks* returns when the driver had looked at a source. *promise_ms* is the shortest latency that an SLA of the
    topology promises, or None if no SLA promises one.
    """

    def __init__(
        self, topology: Topology, sub: SubTopology, looks: LooksBefore = no_looks, *, promise_ms: int | None = None
    ) -> None:
        self._looks, self._window_ms, self._promise_ms = looks, topology.window_ms, promise_ms
        # The operators at which results become visible.
        self._outlets = {operator.name for operator in sub.handing_out} | sub.terminals()
        is_off, tables = topology.level is Level.OFF, sub.table_inputs()
        leading = [] if is_off else [source for source in sub.sources if source.name not in tables]
        self._sources = {source.name: source for source in leading}

    def read(
        self, records: Mapping[str, pl.DataFrame], was: StreamProgress, batch: MicroBatch
    ) -> dict[str, SourceReads]:
        """Counts the *records* that *batch* read after the progress *was*: by source, and as `Intake.read` has them."""
        counted: dict[str, tuple[pl.DataFrame, pl.Series]] = {}
        for name, source in pick(self._sources, records).items():
            plans = self._plans(was.inputs.get(name, InputProgress()))
            if isinstance(source, HopSource):
                rows, numbers = read_ages.hop_reads(records[name], batch.decided_at_ms, plans=plans)
                counted[name] = rows.select(pl.lit(0, pl.Int32).alias("partition"), pl.all()), numbers
            else:
                looks = self._looks_at(name, records[name], batch)
                counted[name] = read_ages.source_reads(records[name], batch.decided_at_ms, plans=plans, looks=looks)
        firsts = self._first_numbers({name: rows for name, (rows, _) in counted.items()}, was)
        return {name: SourceReads(records[name], *counted[name], first) for name, first in firsts.items()}

    def together(self, parts: Sequence[Mapping[str, pl.DataFrame]]) -> dict[str, pl.DataFrame]:
        """Returns the rows of counts of each source, which tasks have made in *parts*, in the order of partitions."""
        rows: dict[str, pl.DataFrame] = {}
        for name, source in self._sources.items():
            none = pl.DataFrame(schema={"partition": pl.Int32(), **READS})
            rows[name] = pl.concat([none, *(part[name] for part in parts if name in part)])
            if isinstance(source, HopSource):
                rows[name] = read_ages.summed(rows[name], "writer_batch", "writer_row")
        return rows

    def numbered(self, rows: Mapping[str, pl.DataFrame], was: StreamProgress) -> dict[str, pl.DataFrame]:
        """Returns the *rows* of counts of a batch with `number`, their number among all rows of the stream.

        *was* is the progress before the batch: it knows how many rows there were.
        """
        return {
            name: rows[name].with_row_index("number", first).cast({"number": pl.Int64})
            for name, first in self._first_numbers(rows, was).items()
        }

    def with_row_numbers(
        self, records: Mapping[str, pl.DataFrame], reads: Mapping[str, SourceReads]
    ) -> dict[str, pl.DataFrame]:
        """Returns *records* as operators read them: with the number of their row in `_read`, without columns BESIDE.

        Records that have waited since an earlier batch have their number already. Records of a hop have the columns
        BESIDE from the stream that wrote them.
        """
        numbered: dict[str, pl.DataFrame] = {}
        for name, source_records in records.items():
            rows = source_records
            if name in reads and source_records.height:
                read = reads[name]
                if isinstance(self._sources[name], HopSource):
                    written = source_records.select(writer_batch="_batch", writer_row="_result")
                    number = _indexes_by_writer(written, read.rows).cast(pl.Int64) + read.first
                else:
                    number = read.row_numbers(read_ages.places_of(read.records, _offsets(source_records)))
                rows = source_records.with_columns(_read=pl.coalesce("_read", number))
            numbered[name] = rows.drop(BESIDE, strict=False)
        return numbered

    def dealt(
        self, rows: Mapping[str, pl.DataFrame], records: Mapping[str, pl.DataFrame], was: StreamProgress
    ) -> dict[str, SourceReads]:
        """Returns the reads of a shard, by source.

        Args:
            rows: by source, the rows of counts of all partitions.
            records: by source, the records that were dealt to the shard, with the columns BESIDE.
            was: the progress before the batch.
        """
        reads: dict[str, SourceReads] = {}
        for name, first in self._first_numbers(rows, was).items():
            dealt_records, counted, is_hop = records[name], rows[name], isinstance(self._sources[name], HopSource)
            if dealt_records.is_empty():
                # A frame without records has no columns BESIDE either.
                none = pl.Series(dtype=pl.UInt32)
                reads[name] = SourceReads(SOURCE_RECORDS.to_frame(), counted, none, first)
                continue
            if is_hop:
                read = records_of_hop(dealt_records, dealt_records.select("_batch", "_result"))
                numbers = _indexes_by_writer(read, counted)
            else:
                columns = {"event_ms": "_newest_ms", "arrived_ms": "_arrived_ms", "read_row": "_read_row"}
                read = _offsets(dealt_records).hstack(dealt_records.select(**columns))
                known = counted.with_columns(read_row=_in_partition(counted)).with_row_index("row")
                numbers = read.join(known, on=["partition", "read_row"], how="left", maintain_order="left")["row"]
            reads[name] = SourceReads(read, counted, numbers, first)
        return reads

    def slow_keys(self, records: Mapping[str, pl.DataFrame], batch: MicroBatch) -> dict[str, pl.DataFrame]:
        """Returns, by source, the keys with most *records* that are older than an SLA promises."""
        if self._promise_ms is None:
            return {}
        return {
            name: read_ages.slow_keys(records[name], self._promise_ms, batch.decided_at_ms)
            for name, source in pick(self._sources, records).items()
            if isinstance(source, Source)
        }

    def passing(self, records: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
        """Returns, by source, those of *records* that may be the first to let their partition pass a window.

        That is exact unless the length of streaming windows was changed while some were open.
        """
        return {
            name: read_ages.passing_records(
                records[name].drop("key", strict=False), size_ms=self._window_ms, after_ms=source.bound_ms
            )
            for name, source in pick(self._sources, records).items()
            if isinstance(source, Source)
        }

    def firsts(
        self,
        passing: Mapping[str, pl.DataFrame],
        was: StreamProgress,
        closed: Iterable[ClosedWindow],
        batch: MicroBatch,
    ) -> dict[str, pl.DataFrame]:
        """Returns, by source, the records that closed windows: the first of each partition beyond a window's end.

        Args:
            passing: by source, the records that the batch read, or only those that `passing` returns.
            was: the progress before the batch.
            closed: the windows that the batch closes.
            batch: the batch.
        """
        ends_ms = [window.start_ms + self._window_ms for window in closed]
        firsts: dict[str, pl.DataFrame] = {}
        for name, source in pick(self._sources, passing).items():
            if not ends_ms or not isinstance(source, Source):
                continue
            before = was.inputs.get(name, InputProgress())
            newest = [(n, part.max_timestamp_ms) for n, part in before.partitions.items()]
            found = read_ages.first_records(
                passing[name],
                pl.Series([end_ms + source.bound_ms for end_ms in ends_ms], dtype=pl.Int64),
                pl.DataFrame(newest, {"partition": pl.Int32, "newest_ms": pl.Int64}, orient="row").drop_nulls(),
                batch.decided_at_ms,
                plans=self._plans(before),
                looks=self._looks_at(name, passing[name], batch),
            )
            if found.height:
                firsts[name] = found
        return firsts

    def results(
        self, reads: Mapping[str, SourceReads], runs: Mapping[str, Run], batch: MicroBatch
    ) -> dict[str, pl.DataFrame]:
        """Counts the results that *batch* makes visible, by operator, with the columns RESULTS.

        *reads* are by source, *runs* by operator. Repeated results were visible before, and are not counted.
        """
        counted: dict[str, pl.DataFrame] = {}
        for name in sorted(self._outlets & runs.keys() if reads else ()):
            # The rows of a hop have the names of its columns.
            rows = runs[name].rows.get(name, runs[name].output).rename(OF_HOP, strict=False)
            rows = rows.filter(~pl.col("_repeated"))
            if rows.height:
                found = rows.select(row="_read", event_ms="_newest_ms", arrived_ms=_arrivals(rows, reads))
                counted[name] = read_ages.results_by_row(found, batch.decided_at_ms)
        return counted

    def _first_numbers(self, rows: Mapping[str, pl.DataFrame], was: StreamProgress) -> dict[str, int]:
        """Returns, for the first of the *rows* of each source, its number among all rows of the stream."""
        names = [*pick(self._sources, rows)]
        return dict(zip(names, accumulate((rows[name].height for name in names), initial=was.reads), strict=False))

    def _looks_at(self, source: str, records: pl.DataFrame, batch: MicroBatch) -> pl.DataFrame | None:
        """Returns the LOOKS at *source* before *batch*; None without any, or if the broker has stamped *records*."""
        if records["arrived_ms"].null_count() < records.height:
            return None
        looks = self._looks(batch.looked_boot_ms, source)
        return pl.DataFrame(looks, schema=read_ages.LOOKS, orient="row") if looks else None

    def _plans(self, was: InputProgress) -> pl.DataFrame | None:
        """Returns the plans that left records behind that are still unread in *was*; None if there are none."""
        left = [(n, *plan) for n, part in sorted(was.partitions.items()) for plan in part.left_behind]
        return pl.DataFrame(left, schema=read_ages.PLANS, orient="row") if left else None


def _arrivals(rows: pl.DataFrame, reads: Mapping[str, SourceReads]) -> pl.Series:
    """Returns when the newest record of each of *rows* arrived; null if unknown, or if an earlier batch read it."""
    arrived_ms = pl.repeat(None, rows.height, dtype=pl.Int64, eager=True)
    for read in reads.values():
        if "arrived_ms" in read.records.columns:
            index = read_ages.places_of(read.records, _offsets(rows))
            # Sources of a union may have records with the same partition and offset; their rows tell them apart.
            is_same_row = (read.row_numbers(index) == rows["_read"]).fill_null(value=False)
            arrived_ms = read.records["arrived_ms"][index].zip_with(is_same_row, arrived_ms)
    return arrived_ms


def _indexes_by_writer(records: pl.DataFrame, rows: pl.DataFrame) -> pl.Series:
    """Returns, for each of the *records* of a hop, the index of its row in *rows*."""
    key = ["writer_batch", "writer_row"]
    indexed = rows.select(key).with_row_index("row")
    return records.select(key).join(indexed, on=key, how="left", maintain_order="left", nulls_equal=True)["row"]


def _in_partition(rows: pl.DataFrame) -> pl.Series:
    """Returns the index of each of *rows* among the rows of its partition."""
    return rows.select(pl.int_range(pl.len(), dtype=pl.Int32()).over("partition")).to_series()


def _offsets(records: pl.DataFrame) -> pl.DataFrame:
    return records.select(partition=pl.col("_partition").cast(pl.Int32), offset="_offset")
