"""Ring 1: vectorised steps, Arrow or polars frames in and out; no IO, no session, no clock.

A frame of records has its payload columns and, for each record, `_key` (text), `_timestamp_ms` (record time, epoch ms
UTC), `_partition` and `_offset` (of the Kafka record that caused it) and `_task` (input partition of the sub-topology);
its rows are in the order in which they are to be judged.
"""

META = ("_key", "_timestamp_ms", "_partition", "_offset", "_task")
