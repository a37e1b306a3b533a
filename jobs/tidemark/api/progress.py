"""Turns Spark's progress of a batch into rows of Tidemark's tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, count
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from tidemark.model.kinds.operator import Level
from tidemark.model.kinds.sink import Sink
from tidemark.model.kinds.source import Source
from tidemark.model.settings.intervals import instant_ms
from tidemark.model.tables.catalog import BECAME, CAME_IN
from tidemark.semantics.idleness import Activity
from tidemark.semantics.segments import SegmentOwner

OWNERS = {
    "latestOffset": SegmentOwner.BROKER,
    "walCommit": SegmentOwner.TARGET,
    "commitOffsets": SegmentOwner.TARGET,
    "commitBatch": SegmentOwner.TARGET,
    "addBatch": SegmentOwner.OPERATOR,
}
"""Who has the time of a phase; Spark itself has that of the others. addBatch reads, calculates and writes in one."""
MOST_WINDOWS = 1_000
"""Most streaming windows of a batch that are recorded: the newest."""
_DESCRIPTION = re.compile(
    r"(?P<kind>[A-Za-z]+?)(?:V2|StreamSource|Source|Stream|StreamV2|Sink)?\[(?P<what>.*)\]?", re.DOTALL
)
_SUBSCRIBE = re.compile(r"Subscribe\[(?P<topics>[^\]]*)\]")
_KINDS = {"Delta": "delta", "File": "files"}


def places_read(sources: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    """Returns the places that each of the *sources* of a progress reads.

    Places are those of `recorded.queries`; a source of Kafka may read several topics.
    """
    return [_places(source) for source in sources]


def place_written(description: str) -> str:
    """Returns the place of a sink with Spark's *description*; empty: unknown."""
    place = _place(description)
    return place if place.startswith(("delta:", "files:")) else ""


def named_places(query: str, places: Iterable[str]) -> dict[str, str]:
    """Returns *places* by names for the source operators of *query*.

    >>> named_places("enrich", ["topic:orders", "delta:/lake/orders"])
    {'enrich:orders': 'topic:orders', 'enrich:orders_2': 'delta:/lake/orders'}
    """
    named: dict[str, str] = {}
    for place in dict.fromkeys(places):
        kind, _, where = place.partition(":")
        name = f"{query}:{re.sub(r'[^A-Za-z0-9_.-]', '_', PurePosixPath(where).name or kind)}"
        numbered = (f"{name}_{n}" for n in count(2))
        named[next(each for each in chain([name], numbered) if each not in named)] = place
    return named


def batch_row(progress: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the row of `batches`: begin and duration.

    `records_in` counts as Spark does: a batch that is read twice, not being persisted, counts its records twice.
    """
    started_at_ms = instant_ms(progress["timestamp"])
    duration_ms = progress["durationMs"]["triggerExecution"]
    return {
        "decided_at": started_at_ms,
        "level": Level.INFO.value,
        "started_at": started_at_ms,
        "finished_at": started_at_ms + duration_ms,
        "duration_ms": duration_ms,
        "records_in": progress["numInputRows"],
        "watermark": watermark_ms(progress),
        "phases": phases_of(progress),
        "states": [*map(_state, progress.get("stateOperators", ()))],
    }


def phases_of(progress: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the phases of a batch, in Spark's words, with who has the time of each."""
    # triggerExecution is the sum of the others, and stands in `duration_ms`.
    return [
        {
            "owner": OWNERS.get(phase, SegmentOwner.SPARK).value,
            "detail": phase,
            "batch_id": progress["batchId"],
            "ms": ms,
        }
        for phase, ms in progress["durationMs"].items()
        if phase != "triggerExecution"
    ]


class Reads(NamedTuple):
    """Offsets per partition that a batch read, and records per source."""

    parts: list[dict[str, Any]]
    records: dict[str, int]


def reads_of(progress: Mapping[str, Any], operators: Mapping[str, str], read_before: Mapping[str, int]) -> Reads:
    """Returns what *operators* read, the source operators by place.

    The backlog is latest_offset − until_offset. Only Kafka counts records by partition. Every other source has one
    partition, whose offset is the number of records since the query's start; *read_before* has it before the batch. Of
    a place that the query reads twice the slower read counts.
    """
    reads, records = dict[tuple[str, int], dict[str, Any]](), dict[str, int]()
    for source in progress["sources"]:
        parts, n = [*_partitions(source)], source["numInputRows"]
        names = dict.fromkeys(operators[place] for place in _places(source) if place in operators)
        if len(names) == 1:
            (name,) = names
            records[name] = records.get(name, 0) + n
        if not parts:
            for name in names:
                before = read_before.get(name, 0)
                offsets = {"from_offset": before, "until_offset": before + records.get(name, 0), "latest_offset": None}
                reads[name, 0] = {"source": name, "partition": 0, **offsets}
        elif all(part["from_offset"] is None for part in parts) and n == sum(part["until_offset"] for part in parts):
            # Spark does not report the offsets at which a query starts.
            parts = [{**part, "from_offset": 0} for part in parts]
        for part in parts:
            name = operators.get(f"topic:{part['source']}", part["source"])
            place = name, part["partition"]
            if place not in reads or part["until_offset"] < reads[place]["until_offset"]:
                reads[place] = {**part, "source": name}
            if len(names) > 1 and part["from_offset"] is not None:
                records[name] = records.get(name, 0) + part["until_offset"] - part["from_offset"]
    return Reads([*reads.values()], records)


def operator_rows(progress: Mapping[str, Any], records: Mapping[str, int], query: str) -> list[dict[str, Any]]:
    """Returns the rows of `operator_batches`: those of the sources, and of *query* with its latency.

    *records* has the records by source. Spark does not report what a query gave, so every record that was not late has
    passed.
    """
    n = sum(records.values())
    late = min(n, sum(state["numRowsDroppedByWatermark"] for state in progress.get("stateOperators", ())))
    none = dict.fromkeys((*CAME_IN, *BECAME), 0)
    rows = [
        {**none, "operator": source, "kind": Source.kind, "records_in": read, "passed": read}
        for source, read in records.items()
    ]
    of_query = {"operator": query, "kind": Sink.kind, "records_in": n, "late": late, "passed": n - late}
    return [*rows, {**none, **of_query, **_latency(progress, operator=query)}]


def partition_rows(reads: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns a row of `partition_batches` for each partition of *reads*.

    Spark has a watermark for the whole query alone, so of a partition it is only known if unread records wait.
    """
    rows: list[dict[str, Any]] = []
    for part in reads:
        unread = (part["latest_offset"] or 0) > part["until_offset"]
        waits = unread and part["from_offset"] == part["until_offset"]
        rows.append({**part, "activity": Activity.BACKLOGGED if waits else Activity.ACTIVE})
    return rows


def window_rows(
    progress: Mapping[str, Any], sources: Iterable[str], query: str, *, after_ms: int | None, window_ms: int, host: str
) -> list[dict[str, Any]]:
    """Returns the rows of `operator_windows`: windows that the watermark passed.

    Sources have finished a window before the phase `addBatch` of that batch, the query at its end.

    Args:
        progress: of the batch whose watermark passed the windows.
        sources: the source operators.
        query: the operator that has the query's name.
        after_ms: the watermark of the batch before, or a record time before which no window is; None: neither is known.
        window_ms: the length of a window.
        host: name of the driver's host.
    """
    now_ms = watermark_ms(progress)
    if now_ms is None or after_ms is None:
        return []
    first, last = after_ms // window_ms + 1, now_ms // window_ms
    phases = progress["durationMs"]
    began_ms = instant_ms(progress["timestamp"])
    finished_ms = began_ms + phases["triggerExecution"]
    read_ms = finished_ms - phases.get("addBatch", 0) - phases.get("commitOffsets", 0)
    ends = {**dict.fromkeys(sources, (Source.kind, began_ms, read_ms)), query: (Sink.kind, read_ms, finished_ms)}
    rows: list[dict[str, Any]] = []
    for end_ms in range(max(first, last - MOST_WINDOWS + 1) * window_ms, last * window_ms + 1, window_ms):
        for operator, (kind, started_ms, ewt_ms) in ends.items():
            rows.append(
                {
                    "operator": operator,
                    "kind": kind,
                    "window_start": end_ms - window_ms,
                    "window_end": end_ms,
                    "ewt_at": ewt_ms,
                    "ewt_adjusted_at": ewt_ms,
                    "queued_ms": 0,
                    "host": host,
                    "batch_started_at": began_ms,
                    "started_at": started_ms,
                }
            )
    return rows


def _latency(progress: Mapping[str, Any], *, operator: str) -> dict[str, Any]:
    """Returns the latency and the clocks of *operator*, the query, which has one task.

    There are none if the batch has no record with the event time of a watermark. The finish clock is the end of the
    trigger. `negative_n` is null if some records may come from the future, because Spark does not count them.
    """
    times = progress.get("eventTime", {})
    if not {"min", "max", "avg"} <= times.keys():
        return {}
    started_at_ms = instant_ms(progress["timestamp"])
    finished_at_ms, n = started_at_ms + progress["durationMs"]["triggerExecution"], progress["numInputRows"]
    oldest_ms, newest_ms, mean_ms = (finished_at_ms - instant_ms(times[which]) for which in ("min", "max", "avg"))
    latency = {
        "n": n,
        "min_ms": newest_ms,
        "max_ms": oldest_ms,
        "sum_ms": n * mean_ms,
        "negative_n": 0 if newest_ms >= 0 else None,
    }
    return {
        "level": Level.INFO.value,
        **latency,
        "started_at": started_at_ms,
        "finished_at": finished_at_ms,
        "queued_ms": 0,
        "tasks": [{"task_id": f"{operator}_0", "partition": 0, **latency}],
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


def watermark_ms(progress: Mapping[str, Any]) -> int | None:
    """Returns the watermark behind which records were late, epoch ms.

    None: the query has no watermark, or has seen no record.
    """
    text = progress.get("eventTime", {}).get("watermark")
    at_ms = instant_ms(text) if text else 0
    return at_ms or None  # Spark reports 1970 until it has seen a record


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


def _places(source: Mapping[str, Any]) -> list[str]:
    """Returns the places of one source, by its offsets or description."""
    topics = [*dict.fromkeys(part["source"] for part in _partitions(source))]
    if not topics and (subscribed := _SUBSCRIBE.search(source["description"])):
        topics = [name.strip() for name in subscribed["topics"].split(",")]
    if topics or source["description"].startswith("Kafka"):
        return [f"topic:{topic}" for topic in topics]
    return [_place(source["description"])]


def _place(description: str) -> str:
    """Returns the place in Spark's *description* of a source or sink.

    >>> _place("DeltaSource[file:/lake/orders]"), _place("RateStreamV2[rowsPerSecond=5, numPartitions=default")
    ('delta:/lake/orders', 'rate:')
    """
    match = _DESCRIPTION.match(description)
    if match is None:
        return f"{description.partition('@')[0].rpartition('.')[2].lower()}:"
    if (kind := _KINDS.get(match["kind"])) is None:
        return f"{match['kind'].lower()}:"
    return f"{kind}:{match['what'].rstrip(']').removeprefix('file:').rstrip('/')}"


def _partitions(source: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the offsets of each partition of *source*, a topic's.

    Only Kafka counts records by partition: its offsets are {topic: {partition: offset}}. Other sources have none.
    """
    start, end, latest = (source.get(f"{which}Offset") for which in ("start", "end", "latest"))
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
