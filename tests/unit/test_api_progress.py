"""Reads batches from the JSON of Spark's progress."""

from __future__ import annotations

from typing import Any

from tidemark.api.progress import batch_row, watermark_ms
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
