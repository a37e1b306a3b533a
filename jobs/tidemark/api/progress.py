"""Turns Spark's progress of a batch into rows of Tidemark's tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from tidemark.collecting import present
from tidemark.errors import InvalidArgument
from tidemark.model.kinds.operator import Level
from tidemark.model.kinds.sink import Sink
from tidemark.model.kinds.source import Source
from tidemark.model.settings.intervals import instant_ms
from tidemark.model.tables.catalog import BECAME, CAME_IN
from tidemark.semantics.idleness import Activity
from tidemark.semantics.segments import SegmentOwner

REST = "rest"
"""What a trigger took beyond its phases."""
PHASES = {
    "latestOffset": SegmentOwner.BROKER,
    "getOffset": SegmentOwner.BROKER,
    "walCommit": SegmentOwner.TARGET,
    "getBatch": SegmentOwner.SPARK,
    "queryPlanning": SegmentOwner.SPARK,
    REST: SegmentOwner.SPARK,
    "addBatch": SegmentOwner.OPERATOR,
    "commitOffsets": SegmentOwner.TARGET,
}
"""The phases of a batch in the order in which Spark goes through them (`MicroBatchExecution`), and who has their time.

Spark's JSON has them by name, without an order. REST is no phase of Spark; it stands before addBatch, as do phases that
only other versions of Spark have. addBatch reads, calculates and writes in one.
"""
EVENT_TIMES = ("watermark", "min", "max", "avg")
NO_WATERMARK = "1970-01-01T00:00:00.000Z"
"""What Spark reports until a query has seen a record."""
WRONG_TIME_UNIT = "wrong_time_unit"
EARLIEST_MS, LATEST_MS = instant_ms("1971-01-01"), instant_ms("2262-01-01")
"""Event times from the first to before the second are taken for such.

Seconds that were taken for milliseconds lie in the first weeks of 1970. Milliseconds taken for seconds, and
microseconds taken for milliseconds, lie beyond the year 30000.
"""
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
        "wrong_times": wrong_times(progress) or None,
        "states": [*map(_state, progress.get("stateOperators", ()))],
    }


class Look(NamedTuple):
    """A look for new records at `at_ms` (boot), and the end of each source and partition that it saw.

    The plan of `batch_id` used it; None: it found nothing new.
    """

    batch_id: int | None
    at_ms: int
    ends: Mapping[tuple[str, int], int]


class Told(NamedTuple):
    """What a listener knows of a batch that Spark's progress does not say.

    Attributes:
        batch_id: its recorded number.
        driver: the lease of its driver, or the first batch of its run.
        to_boot_ms: boot clock − wall clock of the driver's host, read after the batch.
        idle_from_ms: when the batch before it in this run ended, boot clock; None: there is none.
        excluded_ms: the look before that of the batch, boot clock; None: none is known.
    """

    batch_id: int
    driver: int
    to_boot_ms: int
    idle_from_ms: int | None = None
    excluded_ms: int | None = None


def clock_row(progress: Mapping[str, Any], told: Told) -> dict[str, Any]:
    """Returns the columns of `batches` that say by a clock that never steps what was done, and when.

    Spark's timestamps and lengths are those of the JVM's wall clock, which is that of the listener's host. Its offset
    from the boot clock was read after the batch, so that a step of the wall clock within the batch moves the row by as
    much. `looked_boot_ms` is null if the batch was planned by an earlier run.
    """
    began_ms = instant_ms(progress["timestamp"]) + told.to_boot_ms
    waited_ms = 0 if told.idle_from_ms is None else began_ms - told.idle_from_ms
    wait = {"owner": SegmentOwner.TRIGGER.value, "detail": "", "batch_id": told.batch_id, "ms": waited_ms}
    return {
        "epoch": told.driver,
        "started_boot_ms": began_ms,
        "looked_boot_ms": looked_ms(progress, told),
        "excluded_boot_ms": told.excluded_ms,
        "phases": [*([wait] if waited_ms > 0 else []), *_phases(progress, told.batch_id)],
        "phases_boot_ms": ended_ms(progress, told),
    }


def looked_ms(progress: Mapping[str, Any], told: Told) -> int | None:
    """Returns when the look of a batch had ended, boot clock; None: an earlier run planned the batch."""
    lengths = [
        progress["durationMs"][phase] for phase in ("latestOffset", "getOffset") if phase in progress["durationMs"]
    ]
    return instant_ms(progress["timestamp"]) + sum(lengths) + told.to_boot_ms if lengths else None


def ended_ms(progress: Mapping[str, Any], told: Told) -> int:
    """Returns when the trigger of a batch had ended, boot clock."""
    return instant_ms(progress["timestamp"]) + int(progress["durationMs"]["triggerExecution"]) + told.to_boot_ms


def _phases(progress: Mapping[str, Any], batch_id: int) -> list[dict[str, Any]]:
    """Returns the phases of a batch in order, in Spark's words, with who has the time of each."""
    lengths = {phase: ms for phase, ms in progress["durationMs"].items() if phase != "triggerExecution"}
    lengths[REST] = progress["durationMs"]["triggerExecution"] - sum(lengths.values())
    order = [*PHASES]
    in_order = sorted(lengths, key=lambda phase: order.index(phase if phase in PHASES else REST))
    return [
        {
            "owner": PHASES.get(phase, SegmentOwner.SPARK).value,
            "detail": phase,
            "batch_id": batch_id,
            "ms": lengths[phase],
        }
        for phase in in_order
        if lengths[phase] > 0
    ]


class Reads(NamedTuple):
    """Offsets per partition that a batch read, records per source, and the only source that had some.

    `source` is None if several sources had records, or may have had.
    """

    parts: list[dict[str, Any]]
    records: dict[str, int]
    source: str | None


def reads_of(progress: Mapping[str, Any], operators: Mapping[str, str], read_before: Mapping[str, int]) -> Reads:
    """Returns what *operators* read, the source operators by place.

    The backlog is latest_offset − until_offset. Only Kafka counts records by partition. Every other source has one
    partition, whose offset is the number of records since the query's start; *read_before* has it before the batch. Of
    a place that the query reads twice the slower read counts.
    """
    reads, records = dict[tuple[str, int], dict[str, Any]](), dict[str, int]()
    for source in progress["sources"]:
        parts, n = [*partitions_of(source)], source["numInputRows"]
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
    read = {
        operators[place]
        for source in progress["sources"]
        for place in _places(source)
        if source["numInputRows"] and records.get(operators.get(place, ""), 1) and place in operators
    }
    return Reads([*reads.values()], records, next(iter(read)) if len(read) == 1 else None)


def record_rows(progress: Mapping[str, Any], reads: Reads, told: Told, looks: Sequence[Look]) -> list[dict[str, Any]]:
    """Returns rows of `partition_batches.reads`: the earliest and the latest record of a batch, one if they are equal.

    Spark reports the event times of a query, not whose they are. An event time out of range is left out. *looks* are
    those before the batch in this run.
    """
    looked, decided_ms = looked_ms(progress, told), instant_ms(progress["timestamp"])
    missed_ms, left_by = _seen_by(reads.parts, looks)
    rows: list[dict[str, Any]] = []
    for at_ms in _outermost(progress):
        # Where no look is known to have missed a record, it had not arrived before its time.
        before_ms = (
            None if looked is None else max(0, looked - (at_ms + told.to_boot_ms if missed_ms is None else missed_ms))
        )
        waited = {"left_by": left_by, "in_transaction": False, "excluded_before_ms": before_ms}
        rows.append({"n": 1, "age_ms": decided_ms - at_ms, **waited})
    return rows


def first_read(batch_id: int) -> int:
    """Returns `partition_batches.first_read` of a batch, of which two records are told at most."""
    return 2 * batch_id


def result_rows(progress: Mapping[str, Any], told: Told) -> list[dict[str, Any]]:
    """Returns rows of `operator_batches.results` that reflect `record_rows`, in their order.

    Spark does not report what a query gave, so each record counts as passed, but for one behind the watermark of a
    batch in which Spark dropped some.
    """
    decided_ms, dropped, behind_ms = instant_ms(progress["timestamp"]), _dropped(progress), watermark_ms(progress)
    return [
        {"row": row, "n": 1, "age_ms": decided_ms - at_ms}
        for row, at_ms in enumerate(_outermost(progress), first_read(told.batch_id))
        if not dropped or behind_ms is None or at_ms > behind_ms
    ]


def _outermost(progress: Mapping[str, Any]) -> list[int]:
    """Returns the earliest and the latest event time of a batch; one, if they are equal."""
    return [*dict.fromkeys(present(event_ms(progress, which) for which in ("min", "max")))]


def _seen_by(parts: Iterable[Mapping[str, Any]], looks: Sequence[Look]) -> tuple[int | None, int | None]:
    """Returns the last of *looks* that saw nothing of what was read, boot, and the first batch that saw it all.

    None: no look is known to.
    """
    read = [part for part in parts if part["from_offset"] != part["until_offset"]]
    places = [((part["source"], part["partition"]), part["from_offset"], part["until_offset"]) for part in read]
    missed = [
        look.at_ms
        for look in looks
        if all(start is not None and place in look.ends and look.ends[place] <= start for place, start, _ in places)
    ]
    saw = (
        look.batch_id
        for look in looks
        if look.batch_id is not None and places and all(look.ends.get(place, -1) >= end for place, _, end in places)
    )
    return max(missed, default=None), next(saw, None)


def operator_rows(progress: Mapping[str, Any], records: Mapping[str, int], query: str) -> list[dict[str, Any]]:
    """Returns the rows of `operator_batches`: those of the sources, and of *query* with its latency.

    *records* has the records by source. Spark does not report what a query gave, so every record that was not late has
    passed.
    """
    n = sum(records.values())
    late = min(n, _dropped(progress))
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
        left = {"left_offset": part["latest_offset"] if unread else None}
        rows.append({**part, **left, "activity": Activity.BACKLOGGED if waits else Activity.ACTIVE})
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
    """Returns the clocks of *operator*, the query, which has one task, and its latency.

    There are no clocks if the batch has no record with the event time of a watermark, or all its event times are out of
    range; and there is no latency if one of them is. The finish clock is the end of the trigger. `negative_n` is null
    if some records may come from the future, because Spark does not count them.
    """
    times = present(event_ms(progress, which) for which in ("min", "max", "avg"))
    if not times:
        return {}
    started_at_ms = instant_ms(progress["timestamp"])
    finished_at_ms, n = started_at_ms + progress["durationMs"]["triggerExecution"], progress["numInputRows"]
    clocks = {"started_at": started_at_ms, "finished_at": finished_at_ms, "queued_ms": 0}
    if len(times) < 3:
        return clocks
    oldest_ms, newest_ms, mean_ms = (finished_at_ms - at_ms for at_ms in times)
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
        **clocks,
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

    None: the query has no watermark, has seen no record, or its watermark is out of range.
    """
    return event_ms(progress, "watermark")


def event_ms(progress: Mapping[str, Any], which: str) -> int | None:
    """Returns one of EVENT_TIMES, epoch ms; None: there is none, or it is out of range."""
    text = progress.get("eventTime", {}).get(which)
    if text is None or (which, text) == ("watermark", NO_WATERMARK):
        return None
    try:
        at_ms = instant_ms(text)
    except InvalidArgument:
        return None
    return at_ms if EARLIEST_MS <= at_ms < LATEST_MS else None


def wrong_times(progress: Mapping[str, Any]) -> list[dict[str, str]]:
    """Returns the event times that are out of range, as Spark wrote them, with the reason."""
    texts = {which: progress.get("eventTime", {}).get(which) for which in EVENT_TIMES}
    return [
        {"which": which, "text": text, "reason": WRONG_TIME_UNIT}
        for which, text in texts.items()
        if text is not None and (which, text) != ("watermark", NO_WATERMARK) and event_ms(progress, which) is None
    ]


def _dropped(progress: Mapping[str, Any]) -> int:
    return sum(state["numRowsDroppedByWatermark"] for state in progress.get("stateOperators", ()))


def _all_partitions(newest: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for progress in newest:
        yield from chain.from_iterable(map(partitions_of, progress["sources"]))


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
    topics = [*dict.fromkeys(part["source"] for part in partitions_of(source))]
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


def partitions_of(source: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
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
