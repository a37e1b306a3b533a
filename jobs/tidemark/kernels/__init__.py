"""Ring 1: vectorised steps, Arrow or polars frames in and out; no IO, no session, no clock.

A frame of records has its payload columns and, for each record, `_key` (text), `_timestamp_ms` (record time, epoch ms
UTC), `_partition` and `_offset` (of the record that caused it), `_task` (input partition of the sub-topology),
`_deleted` (it says that its key is gone; the payload beside the key is null), `_headers` (Kafka's), `_newest_ms` (time
of the newest record that it reflects: `_timestamp_ms`, but for the result of a window, which has that of the end) and
`_repeated` (all that it says was sent on before, or came in again on request); its rows are in the order in which they
are to be judged.
"""

from collections.abc import Iterable

META = ("_key", "_timestamp_ms", "_partition", "_offset", "_task", "_deleted", "_headers", "_newest_ms", "_repeated")


def payload(columns: Iterable[str]) -> list[str]:
    """Those of *columns* that a record has of itself."""
    return [column for column in columns if not column.startswith("_")]
