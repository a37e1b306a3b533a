"""Turns Spark's progress of a batch into rows of `batches` and `watermarks`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from tidemark.model.kinds.operator import Level
from tidemark.model.settings.intervals import instant_ms


def batch_row(progress: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the row of `batches`: begin, duration, and offsets per partition.

    `records_in` counts as Spark does: a batch that is read twice, not being persisted, counts its records twice.
    """
    started_at_ms = instant_ms(progress["timestamp"])
    duration_ms = progress["durationMs"]["triggerExecution"]
    return {
        "level": Level.INFO.value,
        "started_at": started_at_ms,
        "finished_at": started_at_ms + duration_ms,
        "duration_ms": duration_ms,
        "sources": list(chain.from_iterable(map(_partitions, progress["sources"]))),
        "records_in": progress["numInputRows"],
        "watermark": watermark_ms(progress),
    }


def watermark_ms(progress: Mapping[str, Any]) -> int | None:
    """Returns the watermark behind which records were late, epoch ms.

    None: there is none, or none yet.
    """
    text = progress.get("eventTime", {}).get("watermark")
    at_ms = instant_ms(text) if text else 0
    return at_ms or None  # Spark reports 1970 until it has seen a record


def _partitions(source: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the offsets of each partition of *source*, as in `batches`.

    The backlog is latest_offset − until_offset. Only Kafka counts records by partition: its offsets are {topic:
    {partition: offset}}. Other sources have none.
    """
    start, end, latest = (source[f"{which}Offset"] for which in ("start", "end", "latest"))
    if not isinstance(end, Mapping) or not all(isinstance(parts, Mapping) for parts in end.values()):
        return
    for topic, parts in end.items():
        for number, until in parts.items():
            yield {
                "source": topic,
                "partition": int(number),
                "from_offset": _offset_of(start, topic, number),
                "until_offset": until,
                "latest_offset": _offset_of(latest, topic, number),
            }


def _offset_of(offsets: Mapping[str, Any] | None, topic: str, partition: str) -> int | None:
    """Returns the offset of a partition, if Spark reported it."""
    offset: int | None = (offsets or {}).get(topic, {}).get(partition)
    return offset
