"""Reads batches from the JSON of Spark's progress."""

from __future__ import annotations

from typing import Any

import pytest

from tidemark.api.progress import (
    BatchContext,
    QueryLook,
    Reads,
    address_written,
    addresses_read,
    batch_row,
    clock_row,
    load_of,
    named_addresses,
    offsets_of,
    operator_rows,
    partition_rows,
    reads_of,
    record_rows,
    result_rows,
    watermark_ms,
    window_rows,
)
from tidemark.model.settings.intervals import instant_ms

BEGAN = "2026-03-01T12:00:00.250Z"


def progress(*sources: dict[str, Any], **event_time: str) -> dict[str, Any]:
    return {
        "batchId": 3,
        "timestamp": BEGAN,
        "durationMs": {"addBatch": 400, "triggerExecution": 700},
        "numInputRows": 12,
        "eventTime": event_time,
        "sources": [{"description": "…", **source} for source in sources],
    }


def kafka(
    start: dict[str, Any] | None, end: dict[str, Any], latest: dict[str, Any] | None, n: int = 0
) -> dict[str, Any]:
    return {
        "startOffset": start,
        "endOffset": end,
        "latestOffset": latest,
        "numInputRows": n,
        "description": "KafkaV2[…]",
    }


ORDERS = {"topic:orders": "enrich:orders"}


def test_a_batch_finished_when_its_trigger_had_run():
    row = batch_row(progress())
    began_ms = instant_ms(BEGAN)
    assert (row["started_at"], row["finished_at"], row["duration_ms"]) == (began_ms, began_ms + 700, 700)
    assert row["records_in"] == 12


def test_phases_follow_each_other_in_the_order_in_which_spark_goes_through_them():
    # Spark's JSON has them by name. The wall clock is 1,000 ms ahead of the boot clock.
    lengths = {"addBatch": 400, "commitOffsets": 20, "getBatch": 0, "latestOffset": 100, "queryPlanning": 30}
    batch = progress() | {"durationMs": lengths | {"someday": 5, "triggerExecution": 700, "walCommit": 40}}
    began_ms = instant_ms(BEGAN) - 1_000
    row = clock_row(batch, BatchContext(8, driver=2, to_boot_ms=-1_000, idle_from_ms=began_ms - 300))
    assert [(each["owner"], each["detail"], each["ms"]) for each in row["phases"]] == [
        ("trigger", "", 300), ("broker", "latestOffset", 100), ("target", "walCommit", 40),
        ("spark", "queryPlanning", 30), ("spark", "someday", 5), ("spark", "rest", 105), ("operator", "addBatch", 400),
        ("target", "commitOffsets", 20),
    ]  # fmt: skip
    assert {each["batch_id"] for each in row["phases"]} == {8}
    instants = ("started_boot_ms", "looked_boot_ms", "phases_boot_ms")
    assert [row[name] - began_ms for name in instants] == [0, 100, 700]
    # A batch that runs again was planned by the run before, and nobody knows what that saw.
    again = clock_row(progress(), BatchContext(8, driver=2, to_boot_ms=-1_000))
    assert (again["looked_boot_ms"], again["phases"][0]["detail"]) == (None, "rest")


LOOKS = [QueryLook(0, 10_000, {("q:a", 0): 5, ("q:a", 1): 5}), QueryLook(1, 20_000, {("q:a", 0): 9, ("q:a", 1): 7})]
UNREAD = {
    "missed by all": ({0: (9, 12), 1: (7, 7)}, 20_000, None),
    "left by the second": ({0: (5, 8), 1: (5, 6)}, 10_000, 1),
    "some left by the second": ({0: (5, 8), 1: (5, 8)}, 10_000, None),
    "some seen by the first": ({0: (4, 8), 1: (5, 6)}, None, 1),
    "from an unknown offset": ({0: (None, 12)}, None, None),
    "of a new partition": ({2: (0, 3)}, None, None),
}
"""Offsets that were read by partition, the look that missed them all, and the batch that left them all behind."""


@pytest.mark.parametrize("name", UNREAD)
def test_looks_tell_since_when_records_waited(name: str):
    read, missed_ms, left_by = UNREAD[name]
    parts = [{"source": "q:a", "partition": n, "from_offset": a, "until_offset": b} for n, (a, b) in read.items()]
    batch = progress(min=BEGAN) | {"durationMs": {"latestOffset": 50, "triggerExecution": 700}}
    context = BatchContext(2, driver=0, to_boot_ms=30_000 - instant_ms(BEGAN))
    (row,) = record_rows(batch, Reads(parts, {}, "q:a"), context, LOOKS)
    # The batch looked at 30,050. A record is not there before its time, that of the batch's begin.
    assert row["excluded_before_ms"] == 30_050 - (30_000 if missed_ms is None else missed_ms)
    assert row["left_by"] == left_by


def test_event_times_are_those_of_a_source_that_read_alone():
    returns = {"topic:returns": "enrich:returns"}
    one, none = (kafka({"orders": {"0": 5}}, {"orders": {"0": end}}, None, n=end - 5) for end in (9, 5))
    other = kafka({"returns": {"0": 1}}, {"returns": {"0": 4}}, None, n=3)
    assert reads_of(progress(one), ORDERS, {}).source == "enrich:orders"
    assert reads_of(progress(none, other), ORDERS | returns, {}).source == "enrich:returns"
    assert reads_of(progress(one, other), ORDERS | returns, {}).source is None
    both = kafka({"orders": {"0": 5}, "returns": {"0": 1}}, {"orders": {"0": 9}, "returns": {"0": 1}}, None, n=4)
    assert reads_of(progress(both), ORDERS | returns, {}).source == "enrich:orders"


def test_a_record_that_spark_may_have_dropped_has_no_result():
    times = {"min": "2026-03-01T11:50:00.000Z", "max": "2026-03-01T12:00:00.000Z"}
    late = progress(**times, watermark="2026-03-01T11:55:00.000Z")
    dropped = {"stateOperators": [{"numRowsDroppedByWatermark": 1}]}
    context = BatchContext(3, driver=0, to_boot_ms=0)
    results = [result_rows(each, context) for each in (late, late | dropped)]
    # The batch began 250 ms after noon.
    # Each of the batches 0 to 2 has rows of two records at most.
    assert [[(row["row"], row["age_ms"]) for row in rows] for rows in results] == [
        [(6, 600_250), (7, 250)], [(7, 250)],
    ]  # fmt: skip


WRONG = [
    "58059-11-05T06:26:40.000Z", "1970-01-21T12:16:06.400Z", "1969-12-31T23:59:50.000Z", "0301-01-01T00:00:00.000Z",
    "2262-01-01T00:00:00.000Z",
]  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_an_event_time_in_a_wrong_unit_is_kept_as_text(text: str):
    good = "2026-03-01T12:00:00.000Z"
    wrong = progress(watermark=text, min=good, avg=good, max=text)
    row = batch_row(wrong)
    assert row["watermark"] is None
    assert row["wrong_times"] == [
        {"which": which, "text": text, "reason": "wrong_time_unit"} for which in ("watermark", "max")
    ]
    assert window_rows(wrong, ["q:a"], "q", after_ms=0, window_ms=60_000, host="h") == []
    # The earliest record is known, and a latency of all is not.
    (of_query,) = operator_rows(wrong, {}, "q")
    assert (of_query.get("n"), of_query["finished_at"]) == (None, instant_ms(BEGAN) + 700)
    reads = Reads([], {}, None)
    assert [each["age_ms"] for each in record_rows(wrong, reads, BatchContext(3, driver=0, to_boot_ms=0), [])] == [250]


def test_the_backlog_is_the_latest_offset_less_the_end():
    ends = {"orders": {"0": 5, "1": 2}}, {"orders": {"0": 9, "1": 2}}, {"orders": {"0": 20, "1": 7}}
    reads = reads_of(progress(kafka(*ends, n=4)), ORDERS, {})
    columns = ("source", "partition", "from_offset", "until_offset", "latest_offset")
    assert [tuple(part[column] for column in columns) for part in reads.partitions] == [
        ("enrich:orders", 0, 5, 9, 20),
        ("enrich:orders", 1, 2, 2, 7),
    ]
    assert reads.records == {"enrich:orders": 4}
    # Unread records wait in partition 1, and nothing was read of it.
    assert [row["activity"] for row in partition_rows(reads.partitions)] == ["active", "backlogged"]


def test_a_partition_that_a_query_reads_twice_has_one_row():
    fast = kafka({"orders": {"0": 5}}, {"orders": {"0": 9}}, {"orders": {"0": 20}}, n=4)
    slow = kafka({"orders": {"0": 5}}, {"orders": {"0": 7}}, {"orders": {"0": 20}}, n=2)
    for sources in ((fast, slow), (slow, fast)):
        (part,) = reads_of(progress(*sources), ORDERS, {}).partitions
        assert (part["from_offset"], part["until_offset"], part["latest_offset"]) == (5, 7, 20)
    # The records of a folder are numbered on by what both reads of it counted.
    folder = {"description": "FileStreamSource[file:/in/orders]"}
    files = [{**kafka(None, {"logOffset": 0}, None, n=n), **folder} for n in (4, 3)]
    reads = reads_of(progress(*files), {"files:/in/orders": "enrich:orders"}, {"enrich:orders": 10})
    assert [(part["from_offset"], part["until_offset"]) for part in reads.partitions] == [(10, 17)]
    assert reads.records == {"enrich:orders": 7}


def test_a_topic_that_was_read_from_its_beginning_begins_at_0():
    first = progress(kafka(None, {"orders": {"0": 9, "1": 3}}, None, n=12))
    assert [part["from_offset"] for part in reads_of(first, ORDERS, {}).partitions] == [0, 0]
    later = progress(kafka(None, {"orders": {"0": 9, "1": 3}}, None, n=2))
    assert [part["from_offset"] for part in reads_of(later, ORDERS, {}).partitions] == [None, None]


def test_a_source_without_partitions_counts_its_records():
    files = {**kafka(None, {"logOffset": 0}, None, n=4), "description": "FileStreamSource[file:/in/orders]"}
    (part,) = reads_of(progress(files), {"files:/in/orders": "enrich:orders"}, {"enrich:orders": 10}).partitions
    assert (part["source"], part["partition"], part["from_offset"], part["until_offset"]) == (
        "enrich:orders",
        0,
        10,
        14,
    )


def test_places_follow_from_what_spark_says_of_sources_and_sinks():
    described = [
        "KafkaV2[Subscribe[orders, returns]]", "DeltaSource[file:/lake/orders/]", "FileStreamSource[s3a://b/in]",
        "RateStreamV2[rowsPerSecond=5, numPartitions=default", "org.apache.spark.sql.X$Table@5e1",
    ]  # fmt: skip
    places = addresses_read({"description": each} for each in described)
    assert places == [
        ["topic:orders", "topic:returns"],
        ["delta:/lake/orders"],
        ["files:s3a://b/in"],
        ["rate:"],
        ["x$table:"],
    ]
    assert address_written("DeltaSink[/lake/orders]") == "delta:/lake/orders"
    assert address_written("ForeachBatchSink") == ""
    named = named_addresses("q", ["topic:orders", "delta:/lake/orders", "rate:"])
    assert named == {"q:orders": "topic:orders", "q:orders_2": "delta:/lake/orders", "q:rate": "rate:"}


def test_each_place_of_a_query_has_a_name():
    numbered = named_addresses("q", ["topic:orders_2", "topic:orders", "delta:/l/orders"])
    assert numbered == {"q:orders_2": "topic:orders_2", "q:orders": "topic:orders", "q:orders_3": "delta:/l/orders"}


def test_a_watermark_passes_the_windows_up_to_it():
    noon_ms, minute_ms = instant_ms("2026-03-01T12:00"), 60_000
    of_window = {"after_ms": noon_ms + 1, "window_ms": minute_ms, "host": "h"}
    rows = window_rows(progress(watermark="2026-03-01T12:02:30.000Z"), ["q:orders"], "q", **of_window)
    began_ms = instant_ms(BEGAN)
    # The source had read when `addBatch`, 400 ms of the 700, began.
    ends = [((row["window_end"] - noon_ms) // minute_ms, row["operator"], row["ewt_at"] - began_ms) for row in rows]
    assert ends == [(1, "q:orders", 300), (1, "q", 700), (2, "q:orders", 300), (2, "q", 700)]
    assert window_rows(progress(), ["q:orders"], "q", **of_window) == []


def test_a_source_of_several_topics_without_offsets_has_read_nothing():
    unread = {**kafka(None, {}, None), "endOffset": None, "description": "KafkaV2[Subscribe[orders, returns]]"}
    reads = reads_of(progress(unread), {**ORDERS, "topic:returns": "enrich:returns"}, {"enrich:orders": 10})
    offsets = [(part["source"], part["from_offset"], part["until_offset"]) for part in reads.partitions]
    assert offsets == [("enrich:orders", 10, 10), ("enrich:returns", 0, 0)]
    assert not any(reads.records.values())


def test_until_a_record_was_seen_there_is_no_watermark():
    assert watermark_ms(progress()) is None
    assert watermark_ms(progress(watermark="1970-01-01T00:00:00.000Z")) is None
    assert watermark_ms(progress(watermark="2026-03-01T12:00:00.000Z")) == instant_ms("2026-03-01T12:00")


def test_a_batch_has_the_latency_of_its_oldest_and_newest_record():
    at = {"min": "2026-03-01T12:00:00.000Z", "avg": "2026-03-01T12:00:00.350Z", "max": "2026-03-01T12:00:00.900Z"}
    (row,) = operator_rows(progress(**at), {}, "orders")
    # It finished at 12:00:00.950, with 12 records: 12 × (950 − 350).
    assert (row["n"], row["min_ms"], row["max_ms"], row["sum_ms"], row["negative_n"]) == (12, 50, 950, 7_200, 0)
    assert [(task["task_id"], task["n"], task["sum_ms"]) for task in row["tasks"]] == [("orders_0", 12, 7_200)]
    (ahead,) = operator_rows(progress(**at | {"max": "2026-03-01T12:00:01.950Z"}), {}, "orders")
    assert (ahead["min_ms"], ahead["negative_n"]) == (-1_000, None)
    (unmeasured,) = operator_rows(progress(watermark="2026-03-01T12:00:00.000Z"), {"orders:feed": 0}, "orders")[1:]
    assert (unmeasured["operator"], unmeasured.get("n"), unmeasured.get("tasks")) == ("orders", None, None)


def test_a_job_is_as_far_behind_as_its_queries_together():
    fast = progress(kafka(None, {"orders": {"0": 9, "1": 2}}, {"orders": {"0": 20, "1": 2}}))
    state = {"operatorName": "dedupe", "numRowsTotal": 4, "numRowsUpdated": 1, "numRowsDroppedByWatermark": 0}
    slow = progress(kafka(None, {"orders": {"0": 4}}, {"orders": {"0": 20}})) | {
        "stateOperators": [state | {"memoryUsedBytes": 500}, state | {"memoryUsedBytes": 70}]
    }
    assert offsets_of([fast, slow]) == {"orders/0": 4, "orders/1": 2}
    assert load_of([fast, slow]) == {
        "records_behind": 11 + 16, "records_waiting": 27, "state_bytes": 570, "last_batch_ms": 700
    }  # fmt: skip
    assert load_of([progress()])["records_behind"] is None
    assert [(each["rows"], each["bytes"]) for each in batch_row(slow)["states"]] == [(4, 500), (4, 70)]
