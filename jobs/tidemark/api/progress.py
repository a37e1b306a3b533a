"""What Spark reports of a batch, the JSON object of its progress, as rows of `batches` and `watermarks`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tidemark.spec.intervals import instant_ms
from tidemark.spec.operators import Level


def batch_row(progress: Mapping[str, Any]) -> dict[str, Any]:
    """The row of `batches`: when the trigger began, how long it took, and how far each partition was read.

    `records_in` counts as Spark does: a batch that is read twice, not being persisted, counts its records twice.
    """
    started_at_ms = instant_ms(progress["timestamp"])
    duration_ms = progress["durationMs"]["triggerExecution"]
    return {
        "level": Level.INFO.value,
        "started_at": started_at_ms,
        "finished_at": started_at_ms + duration_ms,
        "duration_ms": duration_ms,
        "sources": [part for source in progress["sources"] for part in _partitions(source)],
        "records_in": progress["numInputRows"],
        "watermark": watermark_ms(progress),
    }


def watermark_ms(progress: Mapping[str, Any]) -> int | None:
    """The watermark, epoch ms, behind which the batch took records for late; None: there is none, or none yet."""
    text = progress.get("eventTime", {}).get("watermark")
    at_ms = instant_ms(text) if text else 0
    return at_ms or None  # Spark says 1970 until it has seen a record


def _partitions(source: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Per partition of *source* its offsets as `batches` has them; the backlog is latest_offset − until_offset.

    Only Kafka counts records by partition: its offsets are {topic: {partition: offset}}. Of others nothing is said.
    """
    start, end, latest = (source[f"{which}Offset"] for which in ("start", "end", "latest"))
    if not isinstance(end, Mapping) or not all(isinstance(parts, Mapping) for parts in end.values()):
        return
    for topic, parts in end.items():
        for number, until in parts.items():
            yield {
                "source": topic,
                "partition": int(number),
                "from_offset": _at(start, topic, number),
                "until_offset": until,
                "latest_offset": _at(latest, topic, number),
            }


def _at(offsets: Mapping[str, Any] | None, topic: str, partition: str) -> int | None:
    """The offset of one partition; None where Spark has not said it."""
    offset: int | None = (offsets or {}).get(topic, {}).get(partition)
    return offset
