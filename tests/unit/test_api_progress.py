"""Reads batches from the JSON of Spark's progress."""

from __future__ import annotations

from typing import Any

from tidemark.api.progress import batch_row, latency_row, load_of, offsets_of, watermark_ms
from tidemark.model.settings.intervals import instant_ms

BEGAN = "2026-03-01T12:00:00.250Z"


def progress(*sources: dict[str, Any], **event_time: str) -> dict[str, Any]:
    return {
        "timestamp": BEGAN,
        "durationMs": {"addBatch": 400, "triggerExecution": 700},
        "numInputRows": 12,
        "eventTime": event_time,
        "sources": [{"description": "…", **source} for source in sources],
    }


def kafka(start: dict[str, Any] | None, end: dict[str, Any], latest: dict[str, Any] | None) -> dict[str, Any]:
    return {"startOffset": start, "endOffset": end, "latestOffset": latest}


def test_a_batch_finished_when_its_trigger_had_run():
    row = batch_row(progress())
    began_ms = instant_ms(BEGAN)
    assert (row["started_at"], row["finished_at"], row["duration_ms"]) == (began_ms, began_ms + 700, 700)
    assert row["records_in"] == 12


def test_the_backlog_is_the_latest_offset_less_the_end():
    row = batch_row(
        progress(kafka({"orders": {"0": 5, "1": 2}}, {"orders": {"0": 9, "1": 2}}, {"orders": {"0": 20, "1": 2}}))
    )
    columns = ("source", "partition", "from_offset", "until_offset", "latest_offset")
    assert [tuple(part[column] for column in columns) for part in row["sources"]] == [
        ("orders", 0, 5, 9, 20),
        ("orders", 1, 2, 2, 2),
    ]


def test_an_offset_that_spark_has_not_said_is_null():
    (part,) = batch_row(progress(kafka(None, {"orders": {"0": 9}}, None)))["sources"]
    assert (part["from_offset"], part["until_offset"], part["latest_offset"]) == (None, 9, None)


def test_a_source_without_partitions_has_no_offsets():
    files, rate = kafka(None, {"logOffset": 0}, None), {"startOffset": 0, "endOffset": 1, "latestOffset": 1}
    assert batch_row(progress(files, rate))["sources"] == []


def test_until_a_record_was_seen_there_is_no_watermark():
    assert watermark_ms(progress()) is None
    assert watermark_ms(progress(watermark="1970-01-01T00:00:00.000Z")) is None
    assert watermark_ms(progress(watermark="2026-03-01T12:00:00.000Z")) == instant_ms("2026-03-01T12:00")


def test_a_batch_has_the_latency_of_its_oldest_and_newest_record():
    at = {"min": "2026-03-01T12:00:00.000Z", "avg": "2026-03-01T12:00:00.350Z", "max": "2026-03-01T12:00:00.900Z"}
    row = latency_row(progress(**at), operator="orders")
    # It finished at 12:00:00.950, with 12 records: 12 × (950 − 350).
    assert (row["n"], row["min_ms"], row["max_ms"], row["sum_ms"], row["negative_n"]) == (12, 50, 950, 7_200, 0)
    ahead = latency_row(progress(**at | {"max": "2026-03-01T12:00:01.950Z"}), operator="orders")
    assert (ahead["min_ms"], ahead["negative_n"]) == (-1_000, None)
    assert latency_row(progress(watermark="2026-03-01T12:00:00.000Z"), operator="orders") is None


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
