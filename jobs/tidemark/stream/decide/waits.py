"""Counts what a batch read and made visible by how long it had waited, for the account of time.

Purpose: whoever explains why a result was late needs its records, and no table has a row for each. So records that
waited alike are one row (`kernels.records.read_ages`), and a result names the row of the record that it reflects.

What it does not know: the row of a record that an earlier batch read, such as the newest one of a window that is sent
when it closes; and anything of a stream in shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from tidemark.kernels.records import read_ages
from tidemark.model.kinds.repartition import HopSource
from tidemark.model.kinds.source import Source
from tidemark.model.topology import SubTopology
from tidemark.semantics.progress import InputProgress, StreamProgress
from tidemark.stream.journal.batch import MicroBatch
from tidemark.stream.journal.streaming_windows import ClosedWindow
from tidemark.stream.read.intake import Intake
from tidemark.stream.updates.step import Run

OF_HOP = {"source_partition": "_partition", "source_offset": "_offset", "newest": "_newest_ms"}
READS, FIRSTS, RESULTS = "reads_of_", "firsts_of_", "results_of_"
"""Prefixes of the entry's tables of a source and of an operator, with the columns of `read_ages`."""


LooksBefore = Callable[[int, str], Sequence[tuple[int, int, int]]]
"""Returns the looks at a source before an instant (boot): partition, its end then, and how long before it was, ms."""
Results = Mapping[str, tuple[pl.DataFrame, pl.Series]]
"""By operator, its RESULTS, and for each of its rows the number of its result."""


@dataclass(frozen=True)
class SourceReads:
    """What a batch read of a source: its records in the order of partition and offset, and the row of each."""

    records: pl.DataFrame
    rows: pl.DataFrame
    numbers: pl.Series


class BatchWaits:
    """Counts the batches of *sub*, one after the other.

    *looks* returns those at a source before an instant. `window_ms` is the length of the streaming windows; with
    *is_off* nothing is counted.
    """

    def __init__(self, sub: SubTopology, looks: LooksBefore, *, window_ms: int, is_off: bool) -> None:
        self._looks, self._window_ms, self._is_off = looks, window_ms, is_off
        self._places = {operator.name for operator in sub.handing_out} | sub.terminals()
        leading = [source for source in sub.sources if source.name not in sub.table_inputs()]
        self._sources = {source.name: source for source in leading}

    def read(self, intakes: Mapping[str, Intake], was: StreamProgress, batch: MicroBatch) -> dict[str, SourceReads]:
        """Returns what *batch* read after the progress *was*, by source."""
        reads: dict[str, SourceReads] = {}
        for name, source in () if self._is_off else self._sources.items():
            records = intakes[name].read
            plans = self._plans(was.inputs.get(name, InputProgress()))
            if isinstance(source, HopSource):
                rows, numbers = read_ages.hop_reads(records, batch.decided_at_ms, plans=plans)
                rows = rows.with_columns(partition=pl.lit(0, pl.Int32))
            else:
                looks = self._looks_at(name, records, batch)
                rows, numbers = read_ages.source_reads(records, batch.decided_at_ms, plans=plans, looks=looks)
            reads[name] = SourceReads(records, rows, numbers)
        return reads

    def firsts(
        self,
        reads: Mapping[str, SourceReads],
        was: StreamProgress,
        closed: Iterable[ClosedWindow],
        batch: MicroBatch,
    ) -> dict[str, pl.DataFrame]:
        """Returns, by source, the first records that let its partitions pass the windows that *batch* *closed*."""
        ends_ms = [window.start_ms + self._window_ms for window in closed]
        firsts: dict[str, pl.DataFrame] = {}
        for name, source in self._sources.items():
            if not ends_ms or name not in reads or not isinstance(source, Source):
                continue
            before = was.inputs.get(name, InputProgress())
            newest = [(n, part.max_timestamp_ms) for n, part in before.partitions.items()]
            found = read_ages.first_records(
                reads[name].records,
                pl.Series([end_ms + source.bound_ms for end_ms in ends_ms], dtype=pl.Int64),
                pl.DataFrame(newest, {"partition": pl.Int32, "newest_ms": pl.Int64}, orient="row").drop_nulls(),
                batch.decided_at_ms,
                plans=self._plans(before),
                looks=self._looks_at(name, reads[name].records, batch),
            )
            if found.height:
                firsts[name] = found
        return firsts

    def results(
        self, reads: Mapping[str, SourceReads], runs: Mapping[str, Run], batch: MicroBatch
    ) -> dict[str, tuple[pl.DataFrame, pl.Series]]:
        """Returns what *batch* made visible at each place of *runs*, with the number of the result of each row."""
        made: dict[str, tuple[pl.DataFrame, pl.Series]] = {}
        for name in sorted(self._places & runs.keys() if reads else ()):
            # The rows of a hop have the names of its columns.
            rows = runs[name].rows.get(name, runs[name].output).rename(OF_HOP, strict=False)
            if rows.height:
                made[name] = read_ages.results_by_row(self._reflected(rows, reads, batch), batch.decided_at_ms)
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

    def _reflected(self, rows: pl.DataFrame, reads: Mapping[str, SourceReads], batch: MicroBatch) -> pl.DataFrame:
        """Returns the newest record that each of *rows* reflects, with the row of what was read."""
        asked = rows.select(partition=pl.col("_partition").cast(pl.Int32), offset="_offset", event_ms="_newest_ms")
        found = asked.with_columns(
            arrived_ms=pl.lit(None, pl.Int64),
            read_batch=pl.lit(None, pl.Int64),
            source=pl.lit(None, pl.String),
            read_row=pl.lit(None, pl.Int32),
        )
        for name, read in reads.items():
            place = read_ages.places_of(read.records, asked)
            here = read.records[place].select("event_ms", *self._arrival(read.records))
            # Sources of a union may have records at the same place; they have other times.
            is_its = place.is_not_null() & ((here["event_ms"] == asked["event_ms"]) | (len(reads) == 1))
            found = found.with_columns(
                arrived_ms=pl.when(is_its).then(here["arrived_ms"]).otherwise("arrived_ms"),
                read_batch=pl.when(is_its).then(batch.batch_id).otherwise("read_batch"),
                source=pl.when(is_its).then(pl.lit(name)).otherwise("source"),
                read_row=pl.when(is_its).then(read.numbers[place]).otherwise("read_row"),
            )
        is_hop = pl.col("source").is_in([n for n, source in self._sources.items() if isinstance(source, HopSource)])
        return found.select(
            "event_ms",
            "arrived_ms",
            "read_batch",
            "source",
            pl.when(~is_hop).then("partition").cast(pl.Int32).alias("partition"),
            "read_row",
            held_by=pl.lit(None, pl.String),
            held_detail=pl.lit(None, pl.String),
            held_from_ms=pl.lit(None, pl.Int64),
            due_ms=pl.lit(None, pl.Int64),
        )

    @staticmethod
    def _arrival(records: pl.DataFrame) -> list[pl.Expr]:
        return [pl.col("arrived_ms") if "arrived_ms" in records.columns else pl.lit(None, pl.Int64).alias("arrived_ms")]
