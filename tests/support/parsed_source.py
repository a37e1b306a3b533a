"""Builds sources whose records tests of parsing write by hand."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tidemark.model.kinds.source import Source

NOON_S = 1_400_000_000
NOON = NOON_S * 1_000
MICROSECOND = timedelta(microseconds=1)
RANGE = (946_684_800_000, 4_102_444_800_000)  # 2000 to 2100
FIELDS = {"id": "string", "n": "int", "at": "bigint"}
AVRO = {
    "type": "record",
    "name": "event",
    "fields": [
        {"name": "id", "type": ["null", "string"]},
        {"name": "n", "type": ["null", "int"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "zone", "type": ["null", "string"]},
    ],
}


def source(topic: str = "t", **changes: Any) -> Source:
    """Returns a source of FIELDS, with *changes* of its settings."""
    common = {"name": topic, "topic": topic, "timestamp_range_ms": RANGE, "bound_ms": 0}
    return Source(**{**common, "fields": FIELDS, "timestamp": "at", **changes})
