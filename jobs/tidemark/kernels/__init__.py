"""Vectorised steps on frames; no IO, session or clock.

Arrow or polars frames come in and go out. A frame of records has its payload columns and, for each record:

| column | meaning |
|---|---|
| `_key` | text of the key |
| `_timestamp_ms` | record time, epoch ms UTC |
| `_partition`, `_offset` | place of the record that caused it |
| `_task` | input partition of the sub-topology |
| `_deleted` | the record deletes its key; the payload beside the key is null |
| `_headers` | Kafka's headers |
| `_newest_ms` | time of the newest record that it reflects: `_timestamp_ms`, except for the result of a window |
| `_repeated` | all of its content was sent on before, or came in again on request |
| `_read` | number of the row of `reads` with the newest record that it reflects ; null: not known |

Its rows are in the order in which they are judged.
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
    """Returns the *columns* of a record's own payload."""
    return [column for column in columns if not column.startswith("_")]
