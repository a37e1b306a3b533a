"""What a batch takes in at each source: records for the readers, rows set aside, offsets, and how far time has come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import polars as pl

from tidemark.kernels.arrivals import Arrivals, hop_arrivals, kafka_arrivals
from tidemark.kernels.facts import records_per_window
from tidemark.semantics.event_time import Seen, advance, follow
from tidemark.semantics.progress import InputProgress, PartitionProgress
from tidemark.spec.operators import HopSource, Source
from tidemark.stream.batch import Batch
from tidemark.stream.broker import Broker
from tidemark.stream.steps import Run


@dataclass(frozen=True)
class Intake:
    """One source in one batch; `windows` are the starts of the streaming windows that it opened."""

    run: Run
    progress: InputProgress
    seen: Mapping[int, Seen]
    windows: frozenset[int] = frozenset()


class Reader:
    """Takes in a batch at *sources*; asks the *broker* about partitions that were silent."""

    def __init__(self, sources: Iterable[Source], broker: Broker, *, window_ms: int) -> None:
        self._broker, self._window_ms = broker, window_ms
        self._partitions = {source.topic: broker.partitions(source.topic) for source in sources}

    def take(
        self,
        source: Source | HopSource,
        raw: pl.DataFrame,
        was: InputProgress,
        batch: Batch,
        *,
        late_up_to_ms: int | None,
    ) -> Intake:
        """What *source* has among the rows *raw* that Spark read, after it had come as far as *was*.

        A record at or before *late_up_to_ms* is late and set aside (None: none is).
        """
        if isinstance(source, HopSource):
            return self._hop(source, raw, was, batch)
        return self._kafka(source, raw, was, batch, late_up_to_ms=late_up_to_ms)

    def _kafka(
        self, source: Source, raw: pl.DataFrame, was: InputProgress, batch: Batch, *, late_up_to_ms: int | None
    ) -> Intake:
        rows = kafka_arrivals(source, raw, late_up_to_ms=late_up_to_ms)
        seen = self._seen(source, rows, was)
        progress = advance(
            was, seen, bound_ms=source.bound_ms, idle_after_ms=source.idle_after_ms, now_ms=batch.decided_at_ms
        )
        run = _run(batch, rows.on_time, rows.measured, late=rows.late.height, quarantined=rows.bad.height)
        run.rows = {"late_records": _late_rows(source, rows.late, was), "quarantine": _bad_rows(source, rows.bad)}
        return Intake(run, progress, seen, frozenset(records_per_window(rows.on_time, window_ms=self._window_ms)))

    def _seen(self, source: Source, rows: Arrivals, was: InputProgress) -> dict[int, Seen]:
        read_to = {number: part.until_offset for number, part in was.partitions.items()}
        seen = rows.seen(read_to)
        silent = [number for number in range(self._partitions[source.topic]) if number not in seen]
        offsets = self._broker.offsets(source.topic, silent) if silent else {}
        for number, (earliest, latest) in offsets.items():
            at = read_to.get(number, earliest)
            seen[number] = Seen(from_offset=at, until_offset=at, latest_offset=latest)
        return dict(sorted(seen.items()))

    def _hop(self, source: HopSource, raw: pl.DataFrame, was: InputProgress, batch: Batch) -> Intake:
        rows = hop_arrivals(source, raw)
        read_to = was.partitions.get(0, PartitionProgress()).until_offset
        newest = rows.records["_timestamp_ms"].max()
        seen = Seen(
            from_offset=read_to,
            until_offset=read_to if rows.last_batch is None else rows.last_batch + 1,
            max_timestamp_ms=newest if isinstance(newest, int) else None,
        )
        progress = follow(was, seen, watermark_ms=rows.watermark_ms, now_ms=batch.decided_at_ms)
        return Intake(_run(batch, rows.records, rows.records), progress, {0: seen}, frozenset(rows.windows))


def _run(batch: Batch, records: pl.DataFrame, measured: pl.DataFrame, **aside: int) -> Run:
    counts = Counter(records_in=records.height + sum(aside.values()), passed=records.height, **aside)
    run = Run(records, measured.select("_timestamp_ms", "_task"), counts)
    return replace(run, started_at_ms=batch.started_at_ms, finished_at_ms=batch.read_at_ms)


def _late_rows(source: Source, late: pl.DataFrame, was: InputProgress) -> pl.DataFrame:
    watermark_ms = pl.lit(was.watermark_ms, pl.Int64)
    return late.select(
        "partition",
        "offset",
        "value",
        source=pl.lit(source.name),
        key=pl.col("key").cast(pl.String),
        timestamp="timestamp_ms",
        watermark=watermark_ms,
        lateness_ms=watermark_ms - pl.col("timestamp_ms"),
        held_by=pl.lit(was.held_by),
    )


def _bad_rows(source: Source, bad: pl.DataFrame) -> pl.DataFrame:
    return bad.select(
        "partition", "offset", "reason", "key", "value", source=pl.lit(source.name), topic=pl.lit(source.topic)
    )
