"""Ring 1: vectorised steps, Arrow or polars frames in and out; no IO, no session, no clock.

A frame of records has its payload columns and, for each record, `_key` (text), `_timestamp_ms` (record time, epoch ms
UTC), `_partition` and `_offset` (of the record that caused it), `_task` (input partition of the sub-topology),
`_deleted` (it says that its key is gone; the payload beside the key is null) and `_headers` (Kafka's); its rows are in
the order in which they are to be judged.
"""

from collections.abc import Iterable

META = ("_key", "_timestamp_ms", "_partition", "_offset", "_task", "_deleted", "_headers")


def payload(columns: Iterable[str]) -> list[str]:
    """Those of *columns* that a record has of itself."""
    return [column for column in columns if not column.startswith("_")]
