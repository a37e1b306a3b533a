"""What the tasks of a large batch told, put together: numbers are summed, files stay apart."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce

from tidemark.files import File, Files, Rows
from tidemark.semantics.event_time import Seen, follow
from tidemark.semantics.progress import InputProgress
from tidemark.spec.operators import HopSource, Source
from tidemark.stream.batch import Batch
from tidemark.stream.decision import K, Tally, added
from tidemark.stream.spread_tasks import Arrived, Written


@dataclass(frozen=True)
class Input:
    """One source in the batch, all its partitions together."""

    progress: InputProgress
    seen: Mapping[int, Seen]


def together(written: Iterable[Written]) -> dict[str, Rows]:
    """By name the files of all tasks, in their order."""
    found: dict[str, list[File]] = {}
    for files in written:
        for name, file in files.items():
            found.setdefault(name, []).append(file)
    return {name: Files(tuple(files)) for name, files in found.items()}


def of_source(source: Source | HopSource, arrived: Iterable[Arrived]) -> list[Arrived]:
    """What *arrived* of *source*, in the order of partitions."""
    return sorted((part for part in arrived if part.source == source.name), key=lambda part: part.partition)


def followed(before: InputProgress, parts: Collection[Arrived], batch: Batch) -> Input:
    """The reading end of a hop, over all its partitions."""
    at = before.partitions[0].until_offset if 0 in before.partitions else 0
    seen = [part.seen for part in parts if part.seen]
    newest_ms = [part.max_timestamp_ms for part in seen if part.max_timestamp_ms is not None]
    whole = Seen(
        from_offset=at,
        until_offset=max([at, *(part.until_offset for part in seen)]),
        max_timestamp_ms=max(newest_ms, default=None),
    )
    watermark_ms = max((part.watermark_ms for part in parts if part.watermark_ms is not None), default=None)
    idle = next((part.idle for part in parts if part.idle is not None), None)  # one partition alone has marks
    progress = follow(before, whole, watermark_ms=watermark_ms, idle=idle, now_ms=batch.decided_at_ms)
    return Input(progress, {0: whole})


def arrival(batch: Batch, parts: Iterable[Arrived]) -> Tally:
    """The numbers of a source, over all its partitions."""
    return Tally(
        counts=_sum(part.counts for part in parts),
        windows=_sum(part.per_window for part in parts),
        skipped={},
        started_at_ms=batch.started_at_ms,
        finished_at_ms=batch.read_at_ms,
        queued_ms=0,
    )


def summed(parts: list[Tally], began_ms: int, ended_ms: int) -> Tally:
    """The numbers of an operator, over all shares.

    Its clocks are those of executors, from the first that began to the last that ended, as far as the driver's clock
    before and after all of them allows: no host's skew makes an operator finish before it was asked.
    """
    return Tally(
        counts=_sum(part.counts for part in parts),
        windows=_sum(part.windows for part in parts),
        skipped=_sum(part.skipped for part in parts),
        started_at_ms=min(max(min(part.started_at_ms for part in parts), began_ms), ended_ms),
        finished_at_ms=min(max(*(part.finished_at_ms for part in parts), began_ms), ended_ms),
        queued_ms=max(part.queued_ms for part in parts),
    )


def _sum(parts: Iterable[Mapping[K, int]]) -> dict[K, int]:
    none: dict[K, int] = {}
    return reduce(added, parts, none)
