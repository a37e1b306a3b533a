"""Counts what a batch read and made visible by how long it had waited, for the account of time.

Purpose: whoever explains why a result was late needs its records, and no table has a row for each. So records that
waited alike are one row (`kernels.records.read_ages`), and a result names the row of the record that it reflects.

How it works: rows are numbered over all batches of the stream. A record takes the number of its row along (`_read`),
through operators and the states that they keep. So the result of a window that is sent when it closes names the row of
its newest record, in the batch that read that.

In shards, the task that takes in a partition counts its rows, and each shard its results. A record takes its row along
to its shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import polars as pl

from tidemark.collecting import pick
from tidemark.kernels.records import read_ages
from tidemark.kernels.records.read_ages import READS, SOURCE_RECORDS
from tidemark.model.kinds.operator import Level
from tidemark.model.kinds.repartition import HopSource
from tidemark.model.kinds.source import Source
from tidemark.model.topology import SubTopology, Topology
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
READS_OF, FIRSTS_OF, SLOW_KEYS_OF, RESULTS_OF = "reads_of_", "firsts_of_", "slow_keys_of_", "results_of_"
"""Prefixes of the entry's tables of a source and of an operator, with the columns of `read_ages`."""


LooksBefore = Callable[[int, str], Sequence[tuple[int, int, int]]]
"""Returns the looks at a source before an instant (boot): partition, its end then, and how long before it was, ms."""


def no_looks(at_ms: int, source: str) -> Sequence[tuple[int, int, int]]:
    """Returns no looks, as in a task: the driver alone looks."""
    return ()


BESIDE = ("_arrived_ms", "_read_row", "_batch", "_seq", "_result")
"""Columns of records on their way to a shard, which no operator reads: of a source the arrival of each, and its row
among those of its partition; of a hop the writer's batch, the place in it, and the row of the result there."""


@dataclass(frozen=True)
class SourceReads:
    """What a batch read of a source.

    Attributes:
        records: its records in the order of partition and offset; in a shard those of the shard.
        rows: `partition` and READS of all that was read, in the order of partitions; that of a hop is 0.
        numbers: the row of each of the records, counted over all partitions.
        first: the number of the first of these rows among all of the stream.
    """

    records: pl.DataFrame
    rows: pl.DataFrame
    numbers: pl.Series
    first: int

    def of_stream(self, place: pl.Series) -> pl.Series:
        """Returns the number, among all of the stream, of the row of each record at *place*; null for null."""
        return self.numbers[place].cast(pl.Int64) + self.first

    def beside(self, records: pl.DataFrame) -> pl.DataFrame:
        """Returns *records*, which are among what was read, with columns BESIDE: by them a shard finds its rows.

        Those of a hop have them from the writer.
        """
        if "arrived_ms" not in self.records.columns:
            return records
        place = read_ages.places_of(self.records, _places(records))
        arrived_ms, read_row = self.records["arrived_ms"][place], _in_partition(self.rows)[self.numbers[place]]
        return records.with_columns(_arrived_ms=arrived_ms, _read_row=read_row)


class BatchWaits:
    """Counts the batches of *sub*, one after the other; with the level `off` nothing is counted.

    *looks* returns those at a source before an instant. *promise_ms* is the shortest latency that an SLA of the
    topology promises; None: no SLA is known to promise one.
    """

    def __init__(
        self, topology: Topology, sub: SubTopology, looks: LooksBefore = no_looks, *, promise_ms: int | None = None
    ) -> None:
        self._looks, self._window_ms, self._promise_ms = looks, topology.window_ms, promise_ms
        self._places = {operator.name for operator in sub.handing_out} | sub.terminals()
        is_off, tables = topology.level is Level.OFF, sub.table_inputs()
        leading = [] if is_off else [source for source in sub.sources if source.name not in tables]
        self._sources = {source.name: source for source in leading}

    def read(
        self, records: Mapping[str, pl.DataFrame], was: StreamProgress, batch: MicroBatch
    ) -> dict[str, SourceReads]:
        """Returns what *batch* read after the progress *was*, from the *records* of sources as in `Intake.read`."""
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
        """Returns the rows of each source, whose partitions were read apart; *parts* are in the order of partitions."""
        rows: dict[str, pl.DataFrame] = {}
        for name, source in self._sources.items():
            none = pl.DataFrame(schema={"partition": pl.Int32(), **READS})
            rows[name] = pl.concat([none, *(part[name] for part in parts if name in part)])
            if isinstance(source, HopSource):
                rows[name] = read_ages.summed(rows[name], "writer_batch", "writer_row")
        return rows

    def numbered(self, rows: Mapping[str, pl.DataFrame], was: StreamProgress) -> dict[str, pl.DataFrame]:
        """Returns the *rows* that a batch read after the progress *was* with `number`, among all of the stream."""
        return {
            name: rows[name].with_row_index("number", first).cast({"number": pl.Int64})
            for name, first in self._first_numbers(rows, was).items()
        }

    def with_row_numbers(
        self, records: Mapping[str, pl.DataFrame], reads: Mapping[str, SourceReads]
    ) -> dict[str, pl.DataFrame]:
        """Returns *records* for operators, with the number of the row of each as `_read`, and without columns BESIDE.

        *records* are among what was read, but for some that waited, which have a number already. Those of a hop have
        the columns BESIDE of the writer.
        """
        given: dict[str, pl.DataFrame] = {}
        for name, of_source in records.items():
            rows = of_source
            if name in reads and of_source.height:
                read = reads[name]
                if isinstance(self._sources[name], HopSource):
                    written = of_source.select(writer_batch="_batch", writer_row="_result")
                    number = _of_writers(written, read.rows).cast(pl.Int64) + read.first
                else:
                    number = read.of_stream(read_ages.places_of(read.records, _places(of_source)))
                rows = of_source.with_columns(_read=pl.coalesce("_read", number))
            given[name] = rows.drop(BESIDE, strict=False)
        return given

    def dealt(
        self, rows: Mapping[str, pl.DataFrame], records: Mapping[str, pl.DataFrame], was: StreamProgress
    ) -> dict[str, SourceReads]:
        """Returns what a shard has got: *records* with the columns BESIDE of the *rows* that were read, by source."""
        reads: dict[str, SourceReads] = {}
        for name, first in self._first_numbers(rows, was).items():
            own, rows_of_source, is_hop = records[name], rows[name], isinstance(self._sources[name], HopSource)
            if own.is_empty():
                # A frame without records has no columns BESIDE either.
                none = pl.Series(dtype=pl.UInt32)
                reads[name] = SourceReads(SOURCE_RECORDS.to_frame(), rows_of_source, none, first)
                continue
            if is_hop:
                ours = records_of_hop(own, own.select("_batch", "_result"))
                numbers = _of_writers(ours, rows_of_source)
            else:
                of_source = {"event_ms": "_newest_ms", "arrived_ms": "_arrived_ms", "read_row": "_read_row"}
                ours = _places(own).hstack(own.select(**of_source))
                known = rows_of_source.with_columns(read_row=_in_partition(rows_of_source)).with_row_index("row")
                numbers = ours.join(known, on=["partition", "read_row"], how="left", maintain_order="left")["row"]
            reads[name] = SourceReads(ours, rows_of_source, numbers, first)
        return reads

    def slow_keys(self, records: Mapping[str, pl.DataFrame], batch: MicroBatch) -> dict[str, pl.DataFrame]:
        """Returns the keys with most of the *records* older than the promise, by source."""
        if self._promise_ms is None:
            return {}
        return {
            name: read_ages.slow_keys(records[name], self._promise_ms, batch.decided_at_ms)
            for name, source in pick(self._sources, records).items()
            if isinstance(source, Source)
        }

    def passing(self, records: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
        """Returns those of *records* that may be among the `firsts` of the batch, by source.

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
        """Returns, by source, the first records that let its partitions pass the windows that *batch* *closed*.

        *passing* has records that the batch read after the progress *was*: all, or those that may be first.
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
        """Returns the RESULTS of *batch* at each place of *runs*; *reads* are of all sources.

        What was visible before, and is repeated, is none.
        """
        made: dict[str, pl.DataFrame] = {}
        for name in sorted(self._places & runs.keys() if reads else ()):
            # The rows of a hop have the names of its columns.
            rows = runs[name].rows.get(name, runs[name].output).rename(OF_HOP, strict=False)
            rows = rows.filter(~pl.col("_repeated"))
            if rows.height:
                found = rows.select(row="_read", event_ms="_newest_ms", arrived_ms=_arrivals(rows, reads))
                made[name] = read_ages.results_by_row(found, batch.decided_at_ms)
        return made

    def _first_numbers(self, rows: Mapping[str, pl.DataFrame], was: StreamProgress) -> dict[str, int]:
        """Returns the number, among all of the stream, of the first of the *rows* of each source."""
        names = [*pick(self._sources, rows)]
        return dict(zip(names, accumulate((rows[name].height for name in names), initial=was.reads), strict=False))

    def _looks_at(self, source: str, records: pl.DataFrame, batch: MicroBatch) -> pl.DataFrame | None:
        """Returns the LOOKS at *source* before *batch*; None: there were none, or the broker has stamped *records*."""
        if records["arrived_ms"].null_count() < records.height:
            return None
        looks = self._looks(batch.looked_boot_ms, source)
        return pl.DataFrame(looks, schema=read_ages.LOOKS, orient="row") if looks else None

    def _plans(self, was: InputProgress) -> pl.DataFrame | None:
        """Returns the plans that left records behind which *was* has not read; None: none did."""
        left = [(n, *plan) for n, part in sorted(was.partitions.items()) for plan in part.left_behind]
        return pl.DataFrame(left, schema=read_ages.PLANS, orient="row") if left else None


def _arrivals(rows: pl.DataFrame, reads: Mapping[str, SourceReads]) -> pl.Series:
    """Returns when the newest record that each of *rows* reflects arrived; null: not known, or an earlier batch."""
    arrived_ms = pl.repeat(None, rows.height, dtype=pl.Int64, eager=True)
    for read in reads.values():
        if "arrived_ms" in read.records.columns:
            place = read_ages.places_of(read.records, _places(rows))
            # Sources of a union may have records at the same place; they are in other rows.
            is_its = (read.of_stream(place) == rows["_read"]).fill_null(value=False)
            arrived_ms = read.records["arrived_ms"][place].zip_with(is_its, arrived_ms)
    return arrived_ms


def _of_writers(records: pl.DataFrame, rows: pl.DataFrame) -> pl.Series:
    """Returns the number, among *rows* of a hop, of each of *records* by the row of its writer."""
    by = ["writer_batch", "writer_row"]
    numbered = rows.select(by).with_row_index("row")
    return records.select(by).join(numbered, on=by, how="left", maintain_order="left", nulls_equal=True)["row"]


def _in_partition(rows: pl.DataFrame) -> pl.Series:
    """Returns the number of each of *rows* among those of its partition."""
    return rows.select(pl.int_range(pl.len(), dtype=pl.Int32()).over("partition")).to_series()


def _places(records: pl.DataFrame) -> pl.DataFrame:
    return records.select(partition=pl.col("_partition").cast(pl.Int32), offset="_offset")
