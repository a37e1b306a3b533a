"""Turns Spark's progress of a batch into rows of Tidemark's tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from tidemark.model.kinds.operator import Level
from tidemark.model.kinds.sink import Sink
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
        "phases": [{"phase": phase, "ms": ms} for phase, ms in progress["durationMs"].items()],
        "states": [*map(_state, progress.get("stateOperators", ()))],
    }


def latency_row(progress: Mapping[str, Any], *, operator: str) -> dict[str, Any] | None:
    """Returns the row of `operator_latency` of *operator*, the query.

    None: the batch has no record with the event time of a watermark. The finish clock is the end of the trigger.
    `negative_n` is null if some records may come from the future, because Spark does not count them.
    """
    times = progress.get("eventTime", {})
    if not {"min", "max", "avg"} <= times.keys():
        return None
    batch = batch_row(progress)
    finished_at_ms, n = batch["finished_at"], progress["numInputRows"]
    oldest_ms, newest_ms, mean_ms = (finished_at_ms - instant_ms(times[which]) for which in ("min", "max", "avg"))
    return {
        "operator": operator,
        "kind": Sink.kind,
        "level": Level.INFO.value,
        "task_id": f"{operator}_0",
        "n": n,
        "min_ms": newest_ms,
        "max_ms": oldest_ms,
        "sum_ms": n * mean_ms,
        "negative_n": 0 if newest_ms >= 0 else None,
        "started_at": batch["started_at"],
        "finished_at": finished_at_ms,
        "queued_ms": 0,
    }


def offsets_of(newest: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Returns the end of the *newest* batch of each query, per `topic/partition`.

    Of two queries that read a partition it is that of the slower one.
    """
    ends: dict[str, int] = {}
    for part in _all_partitions(newest):
        name = f"{part['source']}/{part['partition']}"
        ends[name] = min(part["until_offset"], ends.get(name, part["until_offset"]))
    return ends


def load_of(newest: Iterable[Mapping[str, Any]]) -> dict[str, int | None]:
    """Returns columns of `heartbeats` about the *newest* batch of each query.

    They are sums over the queries, and `last_batch_ms` is the longest.
    """
    progresses = [*newest]
    behind = [
        part["latest_offset"] - part["until_offset"]
        for part in _all_partitions(progresses)
        if part["latest_offset"] is not None
    ]
    states = [*chain.from_iterable(progress.get("stateOperators", ()) for progress in progresses)]
    return {
        "records_behind": sum(behind) if behind else None,
        "records_waiting": sum(behind) if behind else None,
        "state_bytes": sum(state["memoryUsedBytes"] for state in states) if states else None,
        "last_batch_ms": max((progress["durationMs"]["triggerExecution"] for progress in progresses), default=None),
    }


def _all_partitions(newest: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for progress in newest:
        yield from chain.from_iterable(map(_partitions, progress["sources"]))


def _state(reported: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "operator": reported["operatorName"],
        "rows": reported["numRowsTotal"],
        "updated": reported["numRowsUpdated"],
        "late": reported["numRowsDroppedByWatermark"],
        "bytes": reported["memoryUsedBytes"],
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
