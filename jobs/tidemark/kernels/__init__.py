"""Vectorised steps on Arrow and polars frames, without IO, session or clock.

A frame of records has its payload columns and, for each record:

| column | meaning |
|---|---|
| `_key` | text of the key |
| `_timestamp_ms` | record time, epoch ms UTC |
| `_partition`, `_offset` | input partition and offset of the record that caused it |
| `_task` | input partition of the sub-topology |
| `_deleted` | the record deletes its key; the payload beside the key is null |
| `_headers` | Kafka's headers |
| `_newest_ms` | time of the newest record that it reflects: `_timestamp_ms`, except for the result of a window |
| `_repeated` | all of its content was sent on before, or came in again on request |
| `_read` | number of the row of `reads` with the newest record that it reflects; null where that is not known |

The rows are in the order in which updates are decided. An *update* is the new value of a key: a kernel decides whether
it is sent on. An update *reflects* the records that went into it.
"""

from collections.abc import Iterable

META = (
    "_key",
    "_timestamp_ms",
    "_partition",
    "_offset",
    "_task",
    "_deleted",
    "_headers",
    "_newest_ms",
    "_repeated",
    "_read",
)


def payload(columns: Iterable[str]) -> list[str]:
    """Returns the *columns* that are a record's payload, without the meta columns, whose names begin with `_`."""
    return [column for column in columns if not column.startswith("_")]
