"""Turns Spark's progress of a batch into rows of Tidemark's tables.

`progress` is the JSON of Spark's `StreamingQueryProgress` throughout. Spark's timestamps are those of the JVM's wall
clock; a length in ms with `boot` in its name, or said to be of the boot clock, counts from the start of the host.
An address of something that a query reads or writes is its kind and name, such as `topic:orders` or
`delta:/lake/orders` (see `recorded.queries`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from tidemark.api.observed import Observed
from tidemark.errors import InvalidArgument
from tidemark.model.kinds.operator import Level
from tidemark.model.kinds.sink import Sink
from tidemark.model.kinds.source import Source
from tidemark.model.settings.intervals import instant_ms
from tidemark.model.tables.catalog import BECAME, CAME_IN
from tidemark.selection import present
from tidemark.semantics.idleness import Activity
from tidemark.semantics.segments import SegmentOwner

REST = "rest"
"""In place of a phase: the time that a trigger took beyond all phases."""
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
only other versions of Spark have. In the phase addBatch Spark reads, calculates and writes.
"""
_STATISTICS = ("min", "max", "avg")
EVENT_TIMES = ("watermark", *_STATISTICS)
NO_WATERMARK = "1970-01-01T00:00:00.000Z"
"""What Spark reports until a query has seen a record."""
WRONG_TIME_UNIT = "wrong_time_unit"
EARLIEST_MS, LATEST_MS = instant_ms("1971-01-01"), instant_ms("2262-01-01")
"""Event times from the first instant to before the second are credible.

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


def addresses_read(sources: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    """Returns the addresses that each of the *sources* of a progress reads; one of Kafka may read several topics."""
    return [_addresses(source) for source in sources]


def address_written(description: str) -> str:
    """Returns the address of the sink that Spark gives this *description*; empty if it is unknown."""
    address = _address(description)
    return address if address.startswith(("delta:", "files:")) else ""


def named_addresses(query: str, addresses: Iterable[str]) -> dict[str, str]:
    """Returns *addresses* by a name for the source operator that reads each of them in *query*.

    >>> named_addresses("enrich", ["topic:orders", "delta:/lake/orders"])
    {'enrich:orders': 'topic:orders', 'enrich:orders_2': 'delta:/lake/orders'}
    """
    named: dict[str, str] = {}
    for address in dict.fromkeys(addresses):
        kind, _, path = address.partition(":")
        name = f"{query}:{re.sub(r'[^A-Za-z0-9_.-]', '_', PurePosixPath(path).name or kind)}"
        numbered = (f"{name}_{n}" for n in count(2))
        free_name = next(candidate for candidate in chain([name], numbered) if candidate not in named)
        named[free_name] = address
    return named


def batch_row(progress: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the row of `batches` without its columns by the boot clock (see `clock_row`).

    `records_in` counts as Spark does: if a batch is read twice because it is not persisted, its records count twice.
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


class QueryLook(NamedTuple):
    """A look of a query for new records.

    Attributes:
        batch_id: the batch that was planned from it; None if it found nothing new.
        at_ms: when it had ended, boot clock.
        ends: the latest offset that it saw, by source and partition.
    """

    batch_id: int | None
    at_ms: int
    ends: Mapping[tuple[str, int], int]


class BatchContext(NamedTuple):
    """What a listener knows of a batch that Spark's progress does not say.

    Attributes:
        batch_id: its number in Tidemark's tables.
        driver: the number of its driver's lease, or the first batch of its run.
        to_boot_ms: boot clock − wall clock of the driver's host, read after the batch.
        idle_from_ms: when the batch before it in this run ended, boot clock; None for the first batch of a run.
        excluded_ms: when the query had looked for records before it looked for those of this batch, boot clock; None if
            not known.
    """

    batch_id: int
    driver: int
    to_boot_ms: int
    idle_from_ms: int | None = None
    excluded_ms: int | None = None


def clock_row(progress: Mapping[str, Any], context: BatchContext) -> dict[str, Any]:
    """Returns the columns of `batches` that say what was done and when by the boot clock, which is never set.

    Spark takes timestamps and lengths from the wall clock of the JVM, which runs on the listener's host. The offset of
    this clock from the boot clock was read after the batch. So if the wall clock was set during the batch, the row is
    wrong by as much. `looked_boot_ms` is null if the batch was planned by an earlier run.
    """
    began_ms = instant_ms(progress["timestamp"]) + context.to_boot_ms
    waited_ms = 0 if context.idle_from_ms is None else began_ms - context.idle_from_ms
    wait = {"owner": SegmentOwner.TRIGGER.value, "detail": "", "batch_id": context.batch_id, "ms": waited_ms}
    return {
        "epoch": context.driver,
        "started_boot_ms": began_ms,
        "looked_boot_ms": looked_ms(progress, context),
        "excluded_boot_ms": context.excluded_ms,
        "phases": [*([wait] if waited_ms > 0 else []), *_phases(progress, context.batch_id)],
        "phases_boot_ms": ended_ms(progress, context),
    }


def looked_ms(progress: Mapping[str, Any], context: BatchContext) -> int | None:
    """Returns when the query had looked for the records of a batch, boot clock.

    None for a batch that an earlier run of the query planned: this one did not look.
    """
    lengths = [
        progress["durationMs"][phase] for phase in ("latestOffset", "getOffset") if phase in progress["durationMs"]
    ]
    return instant_ms(progress["timestamp"]) + sum(lengths) + context.to_boot_ms if lengths else None


def ended_ms(progress: Mapping[str, Any], context: BatchContext) -> int:
    """Returns when the trigger of a batch had ended, boot clock."""
    return instant_ms(progress["timestamp"]) + int(progress["durationMs"]["triggerExecution"]) + context.to_boot_ms


def _phases(progress: Mapping[str, Any], batch_id: int) -> list[dict[str, Any]]:
    """Returns the phases of a batch in order, by Spark's names, with the owner of the time of each."""
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
    """What a batch read.

    Attributes:
        partitions: a row for each partition: `source`, `partition`, `from_offset`, `until_offset`, `latest_offset`.
        records: the number of records by source.
        source: the source that had records; None if several had, or may have had, or none.
    """

    partitions: list[dict[str, Any]]
    records: dict[str, int]
    source: str | None


def reads_of(progress: Mapping[str, Any], operators: Mapping[str, str], read_before: Mapping[str, int]) -> Reads:
    """Returns what each source operator of a query read in a batch.

    The backlog is latest_offset − until_offset. Only Kafka counts records by partition. Every other source has one
    partition, whose offset is the number of records since the query's start. If the query reads a partition twice, the
    slower one of the two counts.

    Args:
        progress: Spark's progress of the batch.
        operators: the names of the source operators by the address that they read.
        read_before: by operator, the number of records before this batch.
    """
    reads, records = dict[tuple[str, int], dict[str, Any]](), dict[str, int]()
    for source in progress["sources"]:
        partitions, n = [*partitions_of(source)], source["numInputRows"]
        names = dict.fromkeys(operators[address] for address in _addresses(source) if address in operators)
        if len(names) == 1:
            (name,) = names
            records[name] = records.get(name, 0) + n
        if not partitions:
            for name in names:
                before = read_before.get(name, 0)
                offsets = {"from_offset": before, "until_offset": before + records.get(name, 0), "latest_offset": None}
                reads[name, 0] = {"source": name, "partition": 0, **offsets}
        elif all(one["from_offset"] is None for one in partitions) and n == sum(
            one["until_offset"] for one in partitions
        ):
            # Spark does not report the offsets at which a query starts.
            partitions = [{**one, "from_offset": 0} for one in partitions]
        for one in partitions:
            name = operators.get(f"topic:{one['source']}", one["source"])
            partition = name, one["partition"]
            if partition not in reads or one["until_offset"] < reads[partition]["until_offset"]:
                reads[partition] = {**one, "source": name}
            if len(names) > 1 and one["from_offset"] is not None:
                records[name] = records.get(name, 0) + one["until_offset"] - one["from_offset"]
    read = {
        operators[address]
        for source in progress["sources"]
        for address in _addresses(source)
        if source["numInputRows"] and records.get(operators.get(address, ""), 1) and address in operators
    }
    return Reads([*reads.values()], records, next(iter(read)) if len(read) == 1 else None)


def record_rows(
    progress: Mapping[str, Any], reads: Reads, context: BatchContext, looks: Sequence[QueryLook]
) -> list[dict[str, Any]]:
    """Returns the rows of `partition_batches.reads` of a batch: its earliest and its latest record.

    There is one row if both have the same event time, and none for an event time that is not credible. Spark reports
    the event times of a query, but not which of its sources the records are from.

    Args:
        progress: Spark's progress of the batch.
        reads: what the batch read.
        context: what the listener knows of the batch.
        looks: the looks for records before the batch in this run, oldest first.
    """
    looked, decided_ms = looked_ms(progress, context), instant_ms(progress["timestamp"])
    missed_ms, left_by = _seen_by(reads.partitions, looks)
    rows: list[dict[str, Any]] = []
    for at_ms in _earliest_and_latest(progress):
        # Where no look is known to have missed a record, it had not arrived before its time.
        before_ms = (
            None
            if looked is None
            else max(0, looked - (at_ms + context.to_boot_ms if missed_ms is None else missed_ms))
        )
        waited = {"left_by": left_by, "in_transaction": False, "excluded_before_ms": before_ms}
        rows.append({"n": 1, "age_ms": decided_ms - at_ms, **waited})
    return rows


def first_read(batch_id: int) -> int:
    """Returns `partition_batches.first_read` of a batch: each batch has numbers for its two records of
    `record_rows`.
    """
    return 2 * batch_id


def result_rows(progress: Mapping[str, Any], context: BatchContext) -> list[dict[str, Any]]:
    """Returns the rows of `operator_batches.results`, one for each record of `record_rows` that came through.

    Spark does not report the results of a query, so each record counts as passed. The exception is a record behind the
    watermark in a batch in which Spark dropped some.
    """
    decided_ms, dropped, behind_ms = instant_ms(progress["timestamp"]), _dropped(progress), watermark_ms(progress)
    return [
        {"row": row, "n": 1, "age_ms": decided_ms - at_ms}
        for row, at_ms in enumerate(_earliest_and_latest(progress), first_read(context.batch_id))
        if not dropped or behind_ms is None or at_ms > behind_ms
    ]


def _earliest_and_latest(progress: Mapping[str, Any]) -> list[int]:
    """Returns the earliest and the latest event time of a batch, or one if they are equal."""
    return [*dict.fromkeys(present(event_ms(progress, which) for which in ("min", "max")))]


def _seen_by(partitions: Iterable[Mapping[str, Any]], looks: Sequence[QueryLook]) -> tuple[int | None, int | None]:
    """Returns between which looks the records of a batch arrived.

    The first value is when the last look ended that saw none of them, boot clock. The second is the first batch whose
    look saw all of them. Each is None if no look is known to have done so.
    """
    read = [one for one in partitions if one["from_offset"] != one["until_offset"]]
    ranges = [((one["source"], one["partition"]), one["from_offset"], one["until_offset"]) for one in read]
    missed = [
        look.at_ms
        for look in looks
        if all(
            start is not None and partition in look.ends and look.ends[partition] <= start
            for partition, start, _ in ranges
        )
    ]
    saw = (
        look.batch_id
        for look in looks
        if look.batch_id is not None
        and ranges
        and all(look.ends.get(partition, -1) >= end for partition, _, end in ranges)
    )
    return max(missed, default=None), next(saw, None)


def operator_rows(
    progress: Mapping[str, Any], records: Mapping[str, int], query: str, observed: Observed | None = None
) -> list[dict[str, Any]]:
    """Returns the rows of `operator_batches`: one for each source, and one for *query* with its latency.

    *records* has the number of records by source. Spark does not report the results of a query, so every record that
    was not late counts as passed. The latency is that of the records that were *observed*; None: that of the event
    times of the query's input, which Spark reports if there is a watermark.
    """
    n = sum(records.values())
    late = min(n, _dropped(progress))
    none = dict.fromkeys((*CAME_IN, *BECAME), 0)
    rows = [
        {**none, "operator": source, "kind": Source.kind, "records_in": read, "passed": read}
        for source, read in records.items()
    ]
    of_query = {"operator": query, "kind": Sink.kind, "records_in": n, "late": late, "passed": n - late}
    return [*rows, {**none, **of_query, **_latency(progress, observed, operator=query)}]


def partition_rows(reads: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns a row of `partition_batches` for each partition of *reads*.

    Spark has only one watermark for the whole query. So all that is known of a partition is whether it has unread
    records.
    """
    rows: list[dict[str, Any]] = []
    for read in reads:
        unread = (read["latest_offset"] or 0) > read["until_offset"]
        waits = unread and read["from_offset"] == read["until_offset"]
        left = {"left_offset": read["latest_offset"] if unread else None}
        rows.append({**read, **left, "activity": Activity.BACKLOGGED if waits else Activity.ACTIVE})
    return rows


def window_rows(
    progress: Mapping[str, Any], sources: Iterable[str], query: str, *, after_ms: int | None, window_ms: int, host: str
) -> list[dict[str, Any]]:
    """Returns the rows of `operator_windows` for the streaming windows that the watermark passed in a batch.

    Sources have finished a window before the phase `addBatch` of that batch, the query at its end.

    Args:
        progress: Spark's progress of the batch.
        sources: the source operators.
        query: the operator that has the query's name.
        after_ms: the watermark of the batch before, or the record time at which the first window begins; without either
            (None) there are no rows.
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


def _latency(progress: Mapping[str, Any], observed: Observed | None, *, operator: str) -> dict[str, Any]:
    """Returns the columns of `operator_batches` about the clocks and the latency of *operator*, which is the query.

    The query counts as one task, and its finish clock is the end of the trigger. Without event times there are no such
    columns; if they are not credible there are clocks, but no latency.
    """
    started_at_ms = instant_ms(progress["timestamp"])
    finished_at_ms = started_at_ms + progress["durationMs"]["triggerExecution"]
    clocks = {"started_at": started_at_ms, "finished_at": finished_at_ms, "queued_ms": 0}
    if observed is not None:
        latency, over_limits = observed.latency(finished_at_ms), observed.over_limits(finished_at_ms)
    elif present(event_ms(progress, which) for which in _STATISTICS):
        latency, over_limits = _latency_of_input(progress, finished_at_ms), []
    else:
        return {}
    if latency is None:
        return clocks
    tasks = [{"task_id": f"{operator}_0", "partition": 0, **latency}]
    return {"level": Level.INFO.value, **latency, **clocks, "tasks": tasks, "over_limits": over_limits or None}


def _latency_of_input(progress: Mapping[str, Any], finished_at_ms: int) -> dict[str, Any] | None:
    """Returns the statistics of the event times that the query read; None if one of them is not credible.

    `negative_n` is null if some records may come from the future, because Spark does not count them.
    """
    times = present(event_ms(progress, which) for which in _STATISTICS)
    if len(times) < len(_STATISTICS):
        return None
    oldest_ms, newest_ms, mean_ms = (finished_at_ms - at_ms for at_ms in times)
    n = progress["numInputRows"]
    return {
        "n": n,
        "min_ms": newest_ms,
        "max_ms": oldest_ms,
        "sum_ms": n * mean_ms,
        "negative_n": 0 if newest_ms >= 0 else None,
    }


def offsets_of(newest: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Returns, by `topic/partition`, the offset up to which was read, given the *newest* progress of each query.

    If two queries read a partition, the slower one counts.
    """
    ends: dict[str, int] = {}
    for partition in _all_partitions(newest):
        name = f"{partition['source']}/{partition['partition']}"
        ends[name] = min(partition["until_offset"], ends.get(name, partition["until_offset"]))
    return ends


def load_of(newest: Iterable[Mapping[str, Any]]) -> dict[str, int | None]:
    """Returns columns of `heartbeats` for a job, given the *newest* progress of each of its queries.

    The columns are sums over the queries, except for `last_batch_ms`, which is the longest batch.
    """
    progresses = [*newest]
    behind = [
        partition["latest_offset"] - partition["until_offset"]
        for partition in _all_partitions(progresses)
        if partition["latest_offset"] is not None
    ]
    states = [*chain.from_iterable(progress.get("stateOperators", ()) for progress in progresses)]
    return {
        "records_behind": sum(behind) if behind else None,
        "records_waiting": sum(behind) if behind else None,
        "state_bytes": sum(state["memoryUsedBytes"] for state in states) if states else None,
        "last_batch_ms": max((progress["durationMs"]["triggerExecution"] for progress in progresses), default=None),
    }


def watermark_ms(progress: Mapping[str, Any]) -> int | None:
    """Returns the watermark behind which records of the batch were late, epoch ms.

    None if the query has no watermark, has seen no record, or its watermark is not credible.
    """
    return event_ms(progress, "watermark")


def event_ms(progress: Mapping[str, Any], which: str) -> int | None:
    """Returns one of EVENT_TIMES, epoch ms, or None if Spark reports none, or one that is not credible."""
    text = progress.get("eventTime", {}).get(which)
    if text is None or (which, text) == ("watermark", NO_WATERMARK):
        return None
    try:
        at_ms = instant_ms(text)
    except InvalidArgument:
        return None
    return at_ms if EARLIEST_MS <= at_ms < LATEST_MS else None


def wrong_times(progress: Mapping[str, Any]) -> list[dict[str, str]]:
    """Returns the event times that are not credible, as Spark wrote them, with the reason."""
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


def _addresses(source: Mapping[str, Any]) -> list[str]:
    """Returns the addresses that one source reads, according to its offsets or its description."""
    topics = [*dict.fromkeys(partition["source"] for partition in partitions_of(source))]
    if not topics and (subscribed := _SUBSCRIBE.search(source["description"])):
        topics = [name.strip() for name in subscribed["topics"].split(",")]
    if topics or source["description"].startswith("Kafka"):
        return [f"topic:{topic}" for topic in topics]
    return [_address(source["description"])]


def _address(description: str) -> str:
    """Returns the address in Spark's *description* of a source or sink.

    >>> _address("DeltaSource[file:/lake/orders]"), _address("RateStreamV2[rowsPerSecond=5, numPartitions=default")
    ('delta:/lake/orders', 'rate:')
    """
    match = _DESCRIPTION.match(description)
    if match is None:
        return f"{description.partition('@')[0].rpartition('.')[2].lower()}:"
    if (kind := _KINDS.get(match["kind"])) is None:
        return f"{match['kind'].lower()}:"
    return f"{kind}:{match['what'].rstrip(']').removeprefix('file:').rstrip('/')}"


def partitions_of(source: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the offsets of each partition that *source* reads of topics.

    Only Kafka counts records by partition: its offsets are {topic: {partition: offset}}. Other sources yield nothing.
    """
    start, end, latest = (source.get(f"{which}Offset") for which in ("start", "end", "latest"))
    if not isinstance(end, Mapping) or not all(isinstance(by_partition, Mapping) for by_partition in end.values()):
        return
    for topic, by_partition in end.items():
        for number, until in by_partition.items():
            yield {
                "source": topic,
                "partition": int(number),
                "from_offset": _offset_of(start, topic, number),
                "until_offset": until,
                "latest_offset": _offset_of(latest, topic, number),
            }


def _offset_of(offsets: Mapping[str, Any] | None, topic: str, partition: str) -> int | None:
    """Returns the offset of a partition, or None if Spark did not report it."""
    offset: int | None = (offsets or {}).get(topic, {}).get(partition)
    return offset
