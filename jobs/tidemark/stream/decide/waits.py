"""Counts what a batch read and made visible by how long it had waited, for the account of time.

Purpose: whoever explains why a result was late needs its records, and no table has a row for each. So records that
waited alike are one row (`kernels.records.read_ages`), and a result names the row of the record that it reflects.

What it does not know: the row of a record that an earlier batch read, such as the newest one of a window that is sent
when it closes.

In shards, the task that takes in a partition counts its rows, and each shard its results. A record takes its row along
to its shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

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

OF_HOP = {"source_partition": "_partition", "source_offset": "_offset", "newest": "_newest_ms"}
READS_OF, FIRSTS_OF, RESULTS_OF = "reads_of_", "firsts_of_", "results_of_"
"""Prefixes of the entry's tables of a source and of an operator, with the columns of `read_ages`."""


LooksBefore = Callable[[int, str], Sequence[tuple[int, int, int]]]
"""Returns the looks at a source before an instant (boot): partition, its end then, and how long before it was, ms."""
Results = Mapping[str, tuple[pl.DataFrame, pl.Series]]
"""By operator, its RESULTS, and for each of its rows the `row` of its result."""


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
    """

    records: pl.DataFrame
    rows: pl.DataFrame
    numbers: pl.Series

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

    *looks* returns those at a source before an instant.
    """

    def __init__(self, topology: Topology, sub: SubTopology, looks: LooksBefore = no_looks) -> None:
        self._looks, self._window_ms = looks, topology.window_ms
        self._places = {operator.name for operator in sub.handing_out} | sub.terminals()
        is_off, tables = topology.level is Level.OFF, sub.table_inputs()
        leading = [] if is_off else [source for source in sub.sources if source.name not in tables]
        self._sources = {source.name: source for source in leading}

    def read(
        self, records: Mapping[str, pl.DataFrame], was: StreamProgress, batch: MicroBatch
    ) -> dict[str, SourceReads]:
        """Returns what *batch* read after the progress *was*, from the *records* of sources as in `Intake.read`."""
        reads: dict[str, SourceReads] = {}
        for name, source in pick(self._sources, records).items():
            plans = self._plans(was.inputs.get(name, InputProgress()))
            if isinstance(source, HopSource):
                rows, numbers = read_ages.hop_reads(records[name], batch.decided_at_ms, plans=plans)
                rows = rows.select(pl.lit(0, pl.Int32).alias("partition"), pl.all())
            else:
                looks = self._looks_at(name, records[name], batch)
                rows, numbers = read_ages.source_reads(records[name], batch.decided_at_ms, plans=plans, looks=looks)
            reads[name] = SourceReads(records[name], rows, numbers)
        return reads

    def together(self, parts: Sequence[Mapping[str, pl.DataFrame]]) -> dict[str, pl.DataFrame]:
        """Returns the rows of each source, whose partitions were read apart; *parts* are in the order of partitions."""
        rows: dict[str, pl.DataFrame] = {}
        for name, source in self._sources.items():
            none = pl.DataFrame(schema={"partition": pl.Int32(), **READS})
            rows[name] = pl.concat([none, *(part[name] for part in parts if name in part)])
            if isinstance(source, HopSource):
                rows[name] = read_ages.summed(rows[name], "writer_batch", "writer_row")
        return rows

    def dealt(self, rows: Mapping[str, pl.DataFrame], records: Mapping[str, pl.DataFrame]) -> dict[str, SourceReads]:
        """Returns what a shard has got: *records* with the columns BESIDE of the *rows* that were read, by source."""
        reads: dict[str, SourceReads] = {}
        for name, rows_of_source in rows.items():
            own, is_hop = records[name], isinstance(self._sources[name], HopSource)
            if own.is_empty():
                # A frame without records has no columns BESIDE either.
                reads[name] = SourceReads(SOURCE_RECORDS.to_frame(), rows_of_source, pl.Series(dtype=pl.UInt32))
                continue
            known = rows_of_source.with_columns(read_row=_in_partition(rows_of_source)).with_row_index("row")
            if is_hop:
                ours = records_of_hop(own, own.select("_batch", "_result"))
                by = ["writer_batch", "writer_row"]
            else:
                of_source = {"event_ms": "_newest_ms", "arrived_ms": "_arrived_ms", "read_row": "_read_row"}
                ours, by = _places(own).hstack(own.select(**of_source)), ["partition", "read_row"]
            numbers = ours.join(known, on=by, how="left", maintain_order="left")["row"]
            reads[name] = SourceReads(ours, rows_of_source, numbers)
        return reads

    def passing(self, records: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
        """Returns those of *records* that may be among the `firsts` of the batch, by source.

        That is exact unless the length of streaming windows was changed while some were open.
        """
        return {
            name: read_ages.passing_records(records[name], size_ms=self._window_ms, after_ms=source.bound_ms)
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
    ) -> dict[str, tuple[pl.DataFrame, pl.Series]]:
        """Returns what *batch* made visible at each place of *runs*, with the number of the result of each row.

        *reads* are of all sources. The number follows from what a result reflects, so it is the same in every shard.
        """
        made: dict[str, tuple[pl.DataFrame, pl.Series]] = {}
        reflected = self._reflected(reads, batch)
        for name in sorted(self._places & runs.keys() if reads else ()):
            # The rows of a hop have the names of its columns.
            rows = runs[name].rows.get(name, runs[name].output).rename(OF_HOP, strict=False)
            if rows.height:
                numbered = _numbered(rows, reads)
                made[name] = read_ages.results_by_row(numbered, reflected, batch.decided_at_ms), numbered["row"]
        return made

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

    def _reflected(self, reads: Mapping[str, SourceReads], batch: MicroBatch) -> pl.DataFrame:
        """Returns how results name each row of *reads*, and at last one that they do not know."""
        rows = [pl.DataFrame(schema=_REFLECTED)]
        for name, read in reads.items():
            is_hop = isinstance(self._sources[name], HopSource)
            named = read.rows.select(
                read_batch=pl.lit(batch.batch_id, pl.Int64),
                source=pl.lit(name),
                partition=pl.lit(None, pl.Int32) if is_hop else pl.col("partition"),
                read_row=_in_partition(read.rows),
            )
            rows.append(named)
        not_known = pl.DataFrame([dict.fromkeys(_REFLECTED)], schema=_REFLECTED)
        return pl.concat([*rows, not_known])


_REFLECTED = {"read_batch": pl.Int64(), "source": pl.String(), "partition": pl.Int32(), "read_row": pl.Int32()}


def _numbered(rows: pl.DataFrame, reads: Mapping[str, SourceReads]) -> pl.DataFrame:
    """Returns, of the newest record that each of *rows* reflects, its `row`, `event_ms` and `arrived_ms`."""
    found = (
        _places(rows)
        .hstack(rows.select(event_ms="_newest_ms"))
        .with_columns(
            row=pl.lit(sum(read.rows.height for read in reads.values()), pl.Int32), arrived_ms=pl.lit(None, pl.Int64)
        )
    )
    before = 0
    for read in reads.values():
        place = read_ages.places_of(read.records, found)
        number = read.numbers[place]
        # Sources of a union may have records at the same place; they have other times.
        is_its = number.is_not_null() & ((read.records["event_ms"][place] == found["event_ms"]) | (len(reads) == 1))
        columns = [pl.when(is_its).then((number + before).cast(pl.Int32)).otherwise("row").alias("row")]
        if "arrived_ms" in read.records.columns:
            arrived_ms = read.records["arrived_ms"][place]
            columns.append(pl.when(is_its).then(arrived_ms).otherwise("arrived_ms").alias("arrived_ms"))
        found = found.with_columns(columns)
        before += read.rows.height
    return found


def _in_partition(rows: pl.DataFrame) -> pl.Series:
    """Returns the number of each of *rows* among those of its partition."""
    return rows.select(pl.int_range(pl.len(), dtype=pl.Int32()).over("partition")).to_series()


def _places(records: pl.DataFrame) -> pl.DataFrame:
    return records.select(partition=pl.col("_partition").cast(pl.Int32), offset="_offset")
