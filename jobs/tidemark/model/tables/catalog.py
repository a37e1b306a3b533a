"""Defines the tables of the warehouse.

Each column has a type and, in its comment, its unit and clock.

Types are Spark's DDL words, which `kernels.columns.schemas` turns into Arrow's. An instant is a TIMESTAMP in UTC named
`_at` (or `watermark`, `timestamp`: record time); a length of time is a BIGINT named `_ms`.

Each driver writes tables of its own, so that a table has one writing process; analysts see the union (`tidemark sql`,
`query.spark.register`).
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tidemark.collecting import index_by_name, names_in
from tidemark.semantics.blame import AgeCause, Compared


@dataclass(frozen=True)
class Column:
    """Column with its name, Spark DDL type and comment."""

    name: str
    type: str
    comment: str


@dataclass(frozen=True)
class Table:
    """Table with its columns in order, its writer and its partitions.

    *row* says what one row is. *key* has the columns that identify a row within a topology, and within a sub-topology
    if a stream writes the table. Without a key, rows may be equal.
    """

    name: str
    row: str
    columns: tuple[Column, ...]
    written_by: str = "stream"
    partitioned_by: tuple[str, ...] = ()
    key: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the column names in the order that writers select them."""
        return tuple(names_in(self.columns))

    @property
    def delta_types(self) -> dict[str, Any]:
        """Delta's type (JSON) of each column, by name."""
        return {column.name: _delta_type(column.type) for column in self.columns}


DDL_TYPES = MappingProxyType({"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"})
"""Names in DDL of Delta's types, where they differ."""
_DELTA_TYPES = {ddl: delta for delta, ddl in DDL_TYPES.items()}


def _delta_type(ddl: str) -> Any:
    if ddl.startswith("array<"):
        element = _delta_type(ddl.removeprefix("array<").removesuffix(">"))
        return {"type": "array", "elementType": element, "containsNull": True}
    if ddl.startswith("struct<"):
        words = (field.split(":") for field in ddl.removeprefix("struct<").removesuffix(">").split(","))
        fields = [{"name": name, "type": _delta_type(word), "nullable": True, "metadata": {}} for name, word in words]
        return {"type": "struct", "fields": fields}
    return _DELTA_TYPES.get(ddl, ddl)


def _columns(*triples: tuple[str, str, str]) -> tuple[Column, ...]:
    return tuple(Column(*triple) for triple in triples)


def _list_of(fields: tuple[Column, ...]) -> str:
    return f"array<struct<{','.join(f'{field.name}:{field.type}' for field in fields)}>>"


def _fields_of(fields: tuple[Column, ...]) -> str:
    """Returns the comments of *fields*, for the comment of their list."""
    return "; ".join(f"{field.name}: {field.comment}" for field in fields)


_BATCH = _columns(
    ("topology", "string", "name of the topology"),
    ("sub_topology", "string", "the operators that run in one streaming query"),
    ("batch_id", "bigint", "micro-batch of that query, counted from 0"),
)
_OPERATOR = _columns(
    ("operator", "string", "name of the operator"),
    ("kind", "string", "kind of the operator, as in the topology file"),
)
_TASK = _columns(
    ("thread_id", "string", "Spark application that ran the task"),
    ("task_id", "string", "<sub_topology>_<input partition>"),
)
_RECOVERED = (
    "recovered",
    "boolean",
    "whether the previous driver was killed during the batch; then instants are those of the recovery by the driver's "
    "clock, or of an earlier commit by the log's clock; null: unknown",
)
_STATS = _columns(
    ("n", "bigint", "records measured, without results that a periodic operator repeated"),
    ("min_ms", "bigint", "smallest e2e latency, ms: finish clock − time of the newest record reflected, signed"),
    ("max_ms", "bigint", "largest e2e latency, ms"),
    ("sum_ms", "bigint", "sum of the e2e latencies, ms"),
    ("negative_n", "bigint", "records whose timestamp lay after the finish clock"),
)

BATCHES = Table(
    "batches",
    "query and batch with changes",
    (
        *_BATCH,
        *_columns(
            ("epoch", "bigint", "lease under which the batch was decided; grows with each driver"),
            ("level", "string", "off | info | debug | trace"),
            (
                "decided_at",
                "timestamp",
                "decision time: when Spark planned the batch; the same on replay, never decreases",
            ),
            ("started_at", "timestamp", "driver clock when the batch began"),
            ("finished_at", "timestamp", "driver clock when its data was committed"),
            ("duration_ms", "bigint", "finished_at − started_at, ms"),
            (
                "sources",
                "array<struct<source:string,partition:int,from_offset:bigint,until_offset:bigint,latest_offset:bigint>>",
                "offsets read: from (inclusive) until (exclusive), and the broker's latest, which is the last "
                "stable offset, if it was queried",
            ),
            ("records_in", "bigint", "records read by the sources"),
            (
                "accepted_loss",
                "array<struct<source:string,partition:int,from_offset:bigint,until_offset:bigint>>",
                "offsets (of a hop: batches) that were lost unread and accepted by `tidemark accept-loss`; null: none",
            ),
            ("watermark", "timestamp", "watermark of the sub-topology after the batch, record time; null: none yet"),
            ("queued_ms", "bigint", "ms the batch waited for Spark's task slots, which streams of its process share"),
            ("queued_behind", "string", "streams that ran batches during this wait: topology/sub-topology; null: none"),
            (
                "phases",
                "array<struct<phase:string,ms:bigint>>",
                "of a query that a listener records: ms of the phases of its batch, in Spark's words; null: others",
            ),
            (
                "states",
                "array<struct<operator:string,rows:bigint,updated:bigint,late:bigint,bytes:bigint>>",
                "of such a query: rows, updated and late rows, and memory of its stateful operators; null: others",
            ),
            (
                "read_traces",
                "array<string>",
                "traceparent headers (W3C) of its records, of sources with traces, at most 32 of a partition; null: "
                "none",
            ),
        ),
    ),
    key=("batch_id",),
)
TASKS = _columns(
    ("task_id", "string", "<sub_topology>_<input partition>; null: a shard"),
    ("partition", "int", "input partition; null: a shard"),
    ("shard", "int", "shard of the keys, from 0; null: an input partition"),
    *((column.name, column.type, "as that of the row") for column in _STATS),
    ("idempotent_update_skip_total", "bigint", "unchanged updates not emitted since the checkpoint began"),
    ("idempotent_update_skip_rate", "double", "per second, over the minute that ends with the batch; 0 in silence"),
    ("records", "bigint", "records that its Spark task read"),
    ("host", "string", "name of the host that this task ran on; null: the driver did the work"),
    ("started_at", "timestamp", "clock of host when the task began with the operator"),
    (
        "finished_at",
        "timestamp",
        "clock of host when it had its result; of the batch that closed a window, a shard's EWT",
    ),
    ("skew_ms", "bigint", "ms to add to both instants for the driver's clock; null: unknown for a host of the batch"),
    ("skew_error_ms", "bigint", "ms by which skew_ms may be wrong; 0: the driver's host"),
    ("hot_key", "string", "most frequent key of the shard's records, JSON of the partitioning columns; null: none"),
    ("hot_share", "double", "share of the shard's records with that key, 0 to 1"),
)
"""Fields of `operator_batches.tasks`."""
OPERATOR_BATCHES = Table(
    "operator_batches",
    "batch and operator: its updates by outcome (records_in + held_before = the sum of the outcomes), the end-to-end "
    "latency of its records (KIP-613), and the tasks of both",
    (
        *_BATCH,
        # Delta keeps statistics of the first 32 columns, and readers look for a time.
        *_columns(
            ("decided_at", "timestamp", "decision time of the batch; of measured and changed: clock when they began")
        ),
        *_OPERATOR,
        *_columns(
            ("started_at", "timestamp", "driver clock when the operator began; null: not measured"),
            (
                "finished_at",
                "timestamp",
                "driver clock when it had its result; of a terminal operator: when its rows were committed",
            ),
            ("queued_ms", "bigint", "ms it waited for siblings, other streams of its process, or the journal"),
            _RECOVERED,
            ("records_in", "bigint", "updates read"),
            ("held_before", "bigint", "updates that waited from earlier batches"),
            ("emitted", "bigint", "updates judged changed and emitted"),
            ("suppressed", "bigint", "updates judged unchanged and not emitted"),
            ("late", "bigint", "records that came after their window or history was closed, kept in late_records"),
            ("quarantined", "bigint", "invalid records, kept in quarantine"),
            ("duplicate", "bigint", "records that had been read before"),
            ("filtered", "bigint", "records that the operator's condition filtered out"),
            ("passed", "bigint", "records emitted by an operator that does not judge changes"),
            (
                "superseded",
                "bigint",
                "updates replaced by a newer one: while held, or in a table ordered by record time",
            ),
            ("held_after", "bigint", "updates that wait for a later batch"),
            ("fan_out", "bigint", "of a repartition: records sent to the next sub-topology for the emitted updates"),
            ("repeated", "bigint", "results that a periodic operator repeated; not an outcome of an update"),
            (
                "joined_beyond_history",
                "bigint",
                "of a join: records older than the history of its table",
            ),
            ("newest_ms", "bigint", "of a sink into a table: newest event time that it wrote or deleted, epoch ms"),
            ("released_early", "bigint", "of a source: records that max_drift would hold and max_held released"),
            ("reopened", "bigint", "of an aggregate: records read that had been late before (requeue --reopen)"),
            ("level", "string", "recording level from which on its latency is measured; n is null below it"),
            ("thread_id", "string", "Spark application that ran it; null: not known"),
        ),
        *_STATS,
        Column("tasks", _list_of(TASKS), f"its tasks, input partitions first; null: none. {_fields_of(TASKS)}"),
        Column(
            "disorder",
            "array<struct<bucket:int,n:bigint>>",
            "of a source: n records by log-scaled bucket, relative error ≤ 1 %, of their lag behind the time that it "
            "had reached: watermark + bound + 1 ms − record time, ms, which is the bound with which they are on time; "
            "bucket 0: no bound needed",
        ),
    ),
    key=("batch_id", "operator"),
)
CAME_IN = ("records_in", "held_before")
BECAME = OPERATOR_BATCHES.names[OPERATOR_BATCHES.names.index("emitted") : OPERATOR_BATCHES.names.index("fan_out")]
"""Columns of `operator_batches` that add up to those of CAME_IN.

That holds for each batch and operator, and is called the accounting.
"""
COUNTED = (*CAME_IN, *BECAME, "fan_out", "repeated", "joined_beyond_history", "released_early", "reopened")
"""Columns of `operator_batches` that count updates."""

LATENCY_BUCKETS = Table(
    "latency_buckets",
    "operator, task and bucket in one or several batches, of which batch_id is the last: log-scaled histogram of e2e "
    "latency, relative error ≤ 1 %; a row is of one minute of the finish clock and one streaming window",
    (
        *_BATCH,
        *_OPERATOR,
        *_TASK,
        *_columns(
            ("finished_at", "timestamp", "driver clock when the operator finished that batch"),
            ("bucket", "int", "signed index of the log-scaled bucket"),
            ("n", "bigint", "records in it"),
        ),
    ),
    key=("batch_id", "operator", "task_id", "bucket"),
)
OPERATOR_WINDOWS = Table(
    "operator_windows",
    "operator and streaming window that its watermark passed (Apex's end-window time, EWT)",
    (
        *_BATCH,
        *_OPERATOR,
        *_columns(
            ("window_start", "timestamp", "record time, inclusive"),
            ("window_end", "timestamp", "record time, exclusive"),
            ("ewt_at", "timestamp", "driver clock when the operator finished the batch that closed the window"),
            ("ewt_adjusted_at", "timestamp", "ewt_at + skew_ms: on the brokers' clock if the skew is known"),
            ("queued_ms", "bigint", "ms of it waiting for siblings, other streams of the process, or the journal"),
            (
                "records",
                "bigint",
                "records of the window that the operator finished, at a source with late ones; null: too many open",
            ),
            ("host", "string", "name of the host whose clock the driver reads"),
            ("batch_started_at", "timestamp", "driver clock when that batch began, before it was read"),
            ("started_at", "timestamp", "driver clock when the operator began its part of that batch"),
            ("skew_ms", "bigint", "ms added to ewt_at for the host's clock skew; null: not known, nothing added"),
            ("skew_error_ms", "bigint", "ms by which the host's known skew may be wrong; null: not known"),
            _RECOVERED,
            (
                "upstreams",
                "string",
                "upstream operators in the topology of that time, separated by commas; null: unknown",
            ),
            (
                "read_by",
                "string",
                "operators that read it in the topology of that time, separated by commas; null: unknown",
            ),
        ),
    ),
    key=("batch_id", "operator", "window_start"),
)
WATERMARKS = Table(
    "watermarks",
    "batch, source and partition whose watermark or activity changed; partition null: the source combined",
    (
        *_BATCH,
        *_columns(
            ("source", "string", "source operator; null: the whole sub-topology"),
            ("partition", "int", "input partition; null: combined"),
            ("watermark", "timestamp", "record time up to which the input is complete; null: none yet"),
            ("max_timestamp", "timestamp", "largest record timestamp seen; null: none yet"),
            ("activity", "string", "active | idle | backlogged"),
            ("held_by", "string", "partition or source that blocks the combined watermark; null: none"),
            ("decided_at", "timestamp", "decision time of the batch"),
            (
                "topic_partition",
                "string",
                "of a source over several topics: topic/partition that the input partition is; null: other sources",
            ),
        ),
    ),
    key=("batch_id", "source", "partition"),
)
CHANGES = Table(
    "changes",
    "emitted update of a table or an aggregate; the newest row of a key is its state",
    (
        *_BATCH,
        *_columns(
            ("seq", "bigint", "order within the batch"),
            ("operator", "string", "name of the operator"),
            ("key", "string", "the key column's text; an object in JSON where the key has several columns"),
            ("value", "string", "the value columns as a JSON object; null: deleted"),
            ("timestamp", "timestamp", "record time of the update"),
            ("old_timestamp", "timestamp", "record time of the value it replaced; null: it replaced none"),
            ("window_start", "timestamp", "record time, inclusive, of its window; null: no window"),
            ("window_end", "timestamp", "record time, exclusive"),
            (
                "value_hash",
                "string",
                "identity of the value: SHA-256 of the canonical bytes of what is compared, hex; null: deleted",
            ),
            ("source_partition", "int", "input partition of the record that caused the update"),
            ("source_offset", "bigint", "its offset there"),
        ),
    ),
    key=("batch_id", "operator", "seq"),
)
SUPPRESSED = Table(
    "suppressed",
    "batch, operator, key and run of equal values that were not emitted: the evidence of suppression",
    (
        *_BATCH,
        *_columns(
            ("operator", "string", "name of the operator"),
            ("key", "string", "as in changes"),
            ("n", "bigint", "updates not emitted"),
            ("source_partition", "int", "input partition"),
            ("first_offset", "bigint", "offset of the first of them"),
            ("last_offset", "bigint", "offset of the last of them"),
            ("old_timestamp", "timestamp", "record time of the equal stored value; null: no value"),
            ("max_timestamp", "timestamp", "newest record time among them"),
            ("value_hash", "string", "identity of their common value, as in changes; null: deleted"),
            ("asserted_ms", "string", "of a joined table: their record times, epoch ms, as a JSON array"),
        ),
    ),
)
LATE_RECORDS = Table(
    "late_records",
    "record behind the watermark",
    (
        *_BATCH,
        *_columns(
            (
                "operator",
                "string",
                "operator that found it late: an aggregate with closed windows, or a strict join or source",
            ),
            ("partition", "int", "input partition"),
            ("offset", "bigint", "its offset there"),
            ("key", "string", "the record's key"),
            ("timestamp", "timestamp", "record time"),
            ("watermark", "timestamp", "watermark that it was behind, record time"),
            ("lateness_ms", "bigint", "watermark − record time, ms"),
            ("held_by", "string", "partition, or input of an aggregate, that determined that watermark"),
            ("value", "binary", "the record's bytes; of an aggregate or a join its columns as a JSON object"),
            ("task", "int", "of an aggregate or a join: the partition of the sub-topology with the record"),
            ("headers", "array<struct<key:string,value:binary>>", "its Kafka headers; null: none"),
        ),
    ),
)
QUARANTINE = Table(
    "quarantine",
    "invalid record",
    (
        *_BATCH,
        *_columns(
            (
                "source",
                "string",
                "operator that rejected it: a source, one with a null key, or a sink whose topic or schema rejects it",
            ),
            ("topic", "string", "Kafka topic; null: not from a topic, or rejected downstream of a source"),
            ("partition", "int", "input partition: Kafka's number, unless its source reads several topics"),
            ("offset", "bigint", "Kafka offset; of a table or files the number of the row"),
            (
                "reason",
                "string",
                "null_key | null_value | invalid_key | invalid_utf8 | malformed_json | malformed_csv | "
                "malformed_avro | malformed_protobuf | unreadable_file | added_to_file | no_schema_id | "
                "unknown_schema | incompatible_schema | wrong_type | beyond_limit | unreadable | not_a_number | "
                "missing_timestamp | invalid_timestamp | timestamp_out_of_range | timestamp_in_future | sql_error | "
                "too_large_for_topic | time_refused_by_topic | does_not_fit_schema | kills_drivers | fails_drivers | "
                "accepted_loss",
            ),
            (
                "detail",
                "string",
                "of sql_error: key of the failed SQL, and the error; of does_not_fit_schema: the misfit; "
                "of a record that cannot be read: the error, or the limit of the source that it exceeds; of a source "
                "with a registry: the id of the schema, and what is wrong with it; of wrong_type in JSON: the field; "
                "of files: the file, the row, the column and its value, or why the file is set aside; "
                "of fails_drivers: the error; of accepted_loss: who gave the record up, and why",
            ),
            ("key", "binary", "the record's key"),
            ("value", "binary", "the record's bytes; downstream of a source its columns as a JSON object"),
        ),
    ),
)
UNDELIVERABLE = Table(
    "undeliverable",
    "record that a sink's table refused, or that its topic rejected after the batch was decided, for example because a "
    "limit of the topic changed meanwhile",
    (
        *_BATCH,
        *_columns(
            ("operator", "string", "name of the sink"),
            ("topic", "string", "Kafka topic that rejected it; null: a Delta table"),
            ("key", "binary", "the record's key"),
            (
                "value",
                "binary",
                "the record's bytes, JSON if it does not fit the sink's schema; of a table its columns as JSON; null: "
                "it deletes its key",
            ),
            ("timestamp", "timestamp", "record time"),
            ("source_partition", "int", "input partition of the record that caused it"),
            ("source_offset", "bigint", "its offset there"),
            (
                "error",
                "string",
                "error of the broker, its client or the schema; of a table its name, the constraint and the values",
            ),
        ),
    ),
)
OPERATOR_STATE = Table(
    "operator_state",
    "batch and key with a changed state, of operators that keep more than they emit; the newest row is the state",
    (
        *_BATCH,
        *_columns(
            ("operator", "string", "name of the operator"),
            ("key", "string", "as in changes"),
            ("state", "string", "JSON object: key and accumulators, or the newest update's columns; null: deleted"),
            ("held", "boolean", "whether its newest update is held"),
            ("deleted", "boolean", "whether its newest update deletes the key"),
            ("timestamp", "timestamp", "record time of the newest update; of an aggregate the largest record time"),
            ("window_start", "timestamp", "record time, inclusive; null: no window"),
            ("window_end", "timestamp", "record time, exclusive"),
            ("partition", "int", "partition of the sub-topology whose record changed it"),
            ("source_partition", "int", "input partition of that record"),
            ("source_offset", "bigint", "its offset there"),
            ("headers", "array<struct<key:string,value:binary>>", "Kafka headers of that record; null: none"),
            ("newest", "timestamp", "record time of the newest record that it reflects; null: deleted"),
            ("repeated", "boolean", "whether all its content was emitted before; null: deleted"),
        ),
    ),
    key=("batch_id", "operator", "key"),
)
HELD_RECORDS = Table(
    "held_records",
    "record of a partition too far ahead of the others (max_drift), held until they came closer",
    (
        *_BATCH,
        *_columns(
            ("source", "string", "source operator"),
            ("partition", "int", "input partition"),
            ("offset", "bigint", "its offset there"),
            ("key", "string", "the record's key"),
            ("timestamp", "timestamp", "record time"),
            ("value", "string", "its columns as a JSON object; null: it deletes its key"),
            ("headers", "array<struct<key:string,value:binary>>", "its Kafka headers; null: none"),
        ),
    ),
    key=("batch_id", "source", "partition", "offset"),
)
COMPLETENESS = Table(
    "completeness",
    "table and interval that is complete, and batch in which it got results after that (reopened)",
    (
        *_BATCH,
        *_columns(
            ("operator", "string", "operator with the key `complete`"),
            ("table", "string", "Delta table of the sink; of other operators their name"),
            ("interval_start", "timestamp", "record time, inclusive"),
            ("interval_end", "timestamp", "record time, exclusive"),
            (
                "complete_at",
                "timestamp",
                "decision time of the batch after which the watermark had passed the interval",
            ),
            ("watermark", "timestamp", "watermark of the sub-topology after that batch, record time"),
            (
                "records",
                "bigint",
                "records of the interval that the operator finished, since its last row; null: too many open",
            ),
            (
                "emitted",
                "bigint",
                "results of the interval that it emitted or wrote, since its last row; null: as records",
            ),
            (
                "waited_for",
                "string",
                "source that held the interval back for longest, or operator that held results; null: it did not wait",
            ),
            ("waited_for_partition", "int", "input partition of this source; null: not one partition"),
            ("waited_ms", "bigint", "ms between decision times that the interval waited for it; 0: it did not wait"),
            ("by_idleness", "boolean", "whether an idle partition had not passed the interval"),
            ("reopened_at", "timestamp", "decision time of the batch with the later results; null: first completion"),
            ("cause", "string", "late_record | requeued | time_reset"),
            ("cause_partition", "int", "input partition of the first record behind these results; null: not reopened"),
            ("cause_offset", "bigint", "its offset there"),
        ),
    ),
    key=("batch_id", "operator", "interval_start"),
)
SCHEMA_CHANGES = Table(
    "schema_changes",
    "change of a field in sampled records of a topic, and again hourly at most while the field is seen",
    (
        *_BATCH,
        *_columns(
            ("source", "string", "source operator"),
            ("topic", "string", "its topic"),
            ("field", "string", "name of the field; of one inside an object or array the path, such as a.b or a[].b"),
            ("change", "string", "undeclared | new | vanished | retyped"),
            ("type", "string", "type of its values in JSON, or in the schema of the registry; null: no value yet"),
            ("was_type", "string", "type before the change; null: not retyped"),
            ("declared", "boolean", "whether the topology declares it, or the field that holds it"),
            ("found_at", "timestamp", "decision time of the batch that found the change"),
            ("first_seen_at", "timestamp", "decision time of the first batch that sampled the field"),
            ("last_seen_at", "timestamp", "decision time of the newest one"),
        ),
    ),
    key=("batch_id", "source", "field"),
)
HEARTBEATS = Table(
    "heartbeats",
    "driver and heartbeat, every 15 s and at start and end, also without batches",
    (
        *_columns(
            ("topology", "string", "name of the topology"),
            ("sub_topology", "string", "the operators that run in one streaming query"),
            ("at", "timestamp", "driver clock"),
            ("state", "string", "starting | running | drained | rotated | failed"),
            ("epoch", "bigint", "lease of the driver"),
            ("thread_id", "string", "Spark application"),
            ("batch_id", "bigint", "last finished batch; -1: none"),
            ("batch_started_at", "timestamp", "driver clock when the running batch began; null: no batch is running"),
            ("since", "timestamp", "driver clock when its current step began; null: unknown"),
            ("reason", "string", "reason of the failure; null: not failed"),
            ("host", "string", "host of the driver"),
            ("file_digest", "string", "identifies the content of the topology file that it runs"),
            ("launched_by", "string", "task of Airflow or command that started it; null: started by hand"),
            ("drained_by", "string", "task, command or person that asked it to end; null: not drained"),
            ("cpu_share", "double", "CPU seconds per second since the previous heartbeat, Python and JVM; 1: one core"),
            ("memory_bytes", "bigint", "resident memory of the driver: Python, JVM and their child processes"),
            ("memory_free_bytes", "bigint", "memory still available to it on its host or in its container"),
            ("records_waiting", "bigint", "unread or held records of topics; null: it reads no topic"),
            ("last_batch_ms", "bigint", "ms of the last batch, also of one without changes; null: none yet"),
            ("checkpoint_bytes", "bigint", "bytes of the checkpoint and the journal; null: in an object store"),
            ("state_bytes", "bigint", "memory of the states of operators; null: none yet"),
            ("records_behind", "bigint", "unread records of topics after the last batch; null: it reads no topic"),
            ("arrival_per_s", "double", "records per second that came in over the last ten batches; null: not behind"),
            ("working_per_s", "double", "records per second that were read over these batches; null: not behind"),
            ("eta_at", "timestamp", "driver clock at which none will be unread; null: not behind, or falling behind"),
            (
                "ambiguous_keys",
                "bigint",
                "keys with several rows in Delta tables that it joins; the smallest row is used; null: it joins none",
            ),
            (
                "open_transactions",
                "array<struct<source:string,partition:int,topic_partition:string,stable_offset:bigint,since:timestamp>>",
                "transactions that stay open: input partition, its name as topic/number, last stable offset, and the "
                "driver's first look that found it there; null: none, or it reads no topic",
            ),
            ("adopted_by", "string", "task of Airflow that took over its supervision last; null: none did"),
            (
                "predecessor_killed_by",
                "string",
                "task that killed the stream's driver before this one, and why; null: none did",
            ),
        ),
    ),
    key=("at", "epoch", "state"),
)
BROKERS = "brokers"
CLOCK_SKEW = Table(
    "clock_skew",
    "host whose clock a driver or its tasks read, and estimate of its offset, every 15 s",
    _columns(
        ("topology", "string", "name of the topology"),
        ("sub_topology", "string", "the operators that run in one streaming query"),
        ("host", "string", "name of the host whose clock is read"),
        ("at", "timestamp", "driver clock when it was estimated"),
        (
            "offset_ms",
            "bigint",
            "ms to add to the host's clock to get the reference clock; negative: the host is ahead",
        ),
        (
            "error_ms",
            "bigint",
            "ms by which offset_ms may be wrong: half of the shortest round trip, or of the time without work in "
            "tasks, plus rounding",
        ),
        ("samples", "bigint", "records that the broker stamped for this estimate; of a host of tasks, their reports"),
        ("reference", "string", "reference clock: brokers for a driver's host, the driver's host for hosts of tasks"),
    ),
    key=("at", "host"),
)
HOP = Table(
    "hop",
    "update or watermark that a repartition sends to the next sub-topology",
    (
        *_BATCH,
        *_columns(
            ("seq", "bigint", "order within the batch; a watermark comes after its updates"),
            ("partition", "int", "partition of the next sub-topology"),
            ("id", "string", "key before the repartition"),
            ("key", "string", "key after it"),
            ("old_value", "string", "JSON object to retract; null: nothing"),
            ("value", "string", "JSON object to add; null: nothing"),
            ("value_hash", "string", "identity of the value, as in changes"),
            ("timestamp", "timestamp", "record time of the update"),
            ("old_timestamp", "timestamp", "record time of the value it replaced"),
            ("source_partition", "int", "input partition of the record that caused it"),
            ("source_offset", "bigint", "its offset there"),
            ("headers", "array<struct<key:string,value:binary>>", "Kafka headers of that record; null: none"),
            ("watermark", "timestamp", "watermark, record time; only on a row without an update"),
            ("idle", "boolean", "of a watermark row: whether all upstream is idle; null: an update"),
            ("newest", "timestamp", "record time of the newest record that it reflects; null: a watermark row"),
            ("repeated", "boolean", "whether all its content was emitted before; null: a watermark row"),
            (
                "idle_watermark",
                "timestamp",
                "of a watermark row, if a table of the topology is `complete`: lowest watermark of an idle partition "
                "upstream, record time; 1970: one has no record; null: none is idle",
            ),
        ),
    ),
    key=("batch_id", "seq"),
)
HOP_MARK = ("watermark", "idle")
"""Columns of a hop of which a mark has at least one.

Before the first watermark a mark may have `idle` alone.
"""
HOP_UPDATE = " AND ".join(f"{column} IS NULL" for column in HOP_MARK)
"""SQL condition: a row of a hop is an update."""
_ROLLED_UP = _columns(
    ("scope", "string", "operator | task | topology (its terminal operators) | path (its terminal operator)"),
    ("topology", "string", "name of the topology"),
    ("sub_topology", "string", "the operators that run in one streaming query; null in scopes topology and path"),
    ("operator", "string", "name of the operator; null in scopes topology and path"),
    ("kind", "string", "kind of the operator, as in the topology file; null in scopes topology and path"),
    ("task_id", "string", "<sub_topology>_<input partition>; null in other scopes than task"),
    ("path", "string", "source → … → terminal operator; null in other scopes than path"),
    ("grain", "string", "minute | hour | day"),
    ("interval_start", "timestamp", "finish clock, inclusive"),
    ("interval_end", "timestamp", "finish clock, exclusive"),
)
LATENCY_ROLLUP = Table(
    "latency_rollup",
    "operator, task, topology or path, and interval of the finish clock",
    (
        *_ROLLED_UP,
        *_STATS,
        *_columns(
            ("avg_ms", "double", "sum_ms / n, ms"),
            ("p50_ms", "double", "ms, from buckets, relative error ≤ 1 %"),
            ("p90_ms", "double", "ms, from buckets, relative error ≤ 1 %"),
            ("p99_ms", "double", "ms, from buckets, relative error ≤ 1 %"),
            ("p999_ms", "double", "ms, from buckets, relative error ≤ 1 %"),
            ("sla_ms", "bigint", "the tightest latency SLA, ms: error_after, else warn_after; null: none"),
            ("over_sla_n", "bigint", "records in buckets above sla_ms; null: no SLA"),
            ("over_sla_share", "double", "over_sla_n / n, 0 to 1; null: no SLA"),
        ),
    ),
    "report",
    partitioned_by=("grain",),
    key=("scope", "sub_topology", "operator", "task_id", "path", "grain", "interval_start"),
)
LATENCY_BUCKET_ROLLUP = Table(
    "latency_bucket_rollup",
    "row of latency_rollup and bucket: percentiles of any coarser grain come from their sum",
    (
        *_ROLLED_UP,
        *_columns(
            ("bucket", "int", "signed index of the log-scaled bucket"),
            ("n", "bigint", "records in it"),
        ),
    ),
    "report",
    partitioned_by=("grain", "scope"),
    key=("scope", "sub_topology", "operator", "task_id", "path", "grain", "interval_start", "bucket"),
)
_WINDOW = _columns(
    ("topology", "string", "name of the topology"),
    ("window_start", "timestamp", "record time, inclusive"),
    ("window_end", "timestamp", "record time, exclusive"),
)
CRITICAL_PATHS = Table(
    "critical_paths",
    "topology and closed streaming window",
    (
        *_WINDOW,
        *_columns(
            ("latency_ms", "bigint", "sum of the operator latencies along the path, ms"),
            ("queued_ms", "bigint", "ms of it waiting for siblings, other streams of the process, or the journal"),
            ("before_source_ms", "bigint", "EWT of the path's source − window_end, ms: age before the first operator"),
            ("leaf", "string", "terminal operator at which the path ends"),
            ("path", "string", "A (0 ms) → C (100 ms) → E (20 ms) = 120 ms"),
            ("state", "string", "measured, or the state that makes it inexact"),
            ("waited_ms", "bigint", "ms of it between an upstream's EWT and the start of the next driver's batch"),
            ("over_sla", "boolean", "whether records or work broke an SLA of an operator; null: no SLA"),
            (
                "verdicts",
                "array<struct<sla:string,operator:string,quantile:double,limit_ms:bigint,value_ms:double,broken:boolean>>",
                "SLAs by which it was judged, broken ones first: the quantile of the latency of the operator's records "
                "(null: its work on the window), the limit, and the measured ms; null: no SLA, or nothing measured",
            ),
            ("skew_error_ms", "bigint", "largest error of the clocks on it, ms; 0: one clock; null: one is unknown"),
            ("moving_average_ms", "bigint", "Apex's form: sum of the operators' averages over 10 windows, ms"),
            ("moving_average_path", "string", "the path with the highest such sum, in the form of path"),
        ),
    ),
    "report",
    key=("window_start",),
)
CRITICAL_PATH_STEPS = Table(
    "critical_path_steps",
    "topology, closed streaming window and operator",
    (
        *_WINDOW,
        *_columns(
            ("operator", "string", "name of the operator"),
            ("step", "int", "place on the path from its source, from 0; null: not on the path"),
            ("slowest_upstream", "string", "upstream that finished last; null: an input"),
            ("latency_ms", "bigint", "EWT − latest upstream EWT, ms = waited_ms + queued_ms + worked_ms"),
            ("queued_ms", "bigint", "ms of it waiting for siblings, other streams of the process, or the journal"),
            ("share", "double", "latency_ms / the path's, 0 to 1; null: not on the path"),
            ("slack_ms", "bigint", "ms by which it may grow without slowing the topology"),
            (
                "state",
                "string",
                "input | measured | no_window_yet | upstream_missing | estimated | stuck | clamped_negative",
            ),
            ("sub_topology", "string", "sub-topology whose driver runs it"),
            ("kind", "string", "as in operator_windows"),
            ("waited_ms", "bigint", "ms of it before the driver's batch began: trigger, or a batch before it"),
            ("worked_ms", "bigint", "ms of it that the operator worked: latency_ms − waited_ms − queued_ms"),
            ("promised_ms", "bigint", "its operator_latency_p50 SLA, ms of work; null: none"),
            (
                "task",
                "string",
                "shard 3 | partition 3: the last to finish; on the path that of the next shard; null: none was later",
            ),
            ("task_latency_ms", "bigint", "ms from the EWT of the task before on the path to its own; null: off it"),
            ("behind_tasks_ms", "bigint", "ms from the median finish of the operator's other tasks to its own"),
            (
                "tasks_error_ms",
                "bigint",
                "largest error of the clocks of the operator's tasks, ms; null: unknown",
            ),
            ("hot_key", "string", "as in operator_batches.tasks, of that task"),
            ("hot_share", "double", "as in operator_batches.tasks, of that task"),
        ),
    ),
    "report",
    key=("window_start", "operator"),
)
CRITICAL_PATH_LEAVES = Table(
    "critical_path_leaves",
    "topology, closed streaming window and leaf: the longest path that ends there",
    (
        *_WINDOW,
        *_columns(
            ("leaf", "string", "terminal operator"),
            ("source", "string", "operator at which the path begins"),
            ("latency_ms", "bigint", "sum of the operator latencies along it, ms"),
            ("before_source_ms", "bigint", "EWT of its source − window_end, ms"),
            ("behind_ms", "bigint", "ms by which it is shorter than the critical path"),
        ),
    ),
    "report",
    key=("window_start", "leaf"),
)
WINDOW_PARTS = Table(
    "window_parts",
    "topology, streaming window, operator at which its path ends, and part of its age there",
    (
        *_WINDOW,
        *_columns(
            ("subject", "string", "operator at which the path ends: one with an SLA, or the critical leaf"),
            ("operator", "string", "cause of the part: an operator, or a word of kind"),
            (
                "kind",
                "string",
                f"as in operator_windows; or {' | '.join(AgeCause)}",
            ),
            (
                "input",
                "string",
                "source and partition that the window waited for, of silence with the setting; the driver that "
                "restarted, from when to when, and how many records waited; streams that it was queued behind; null: "
                "another kind, or not known",
            ),
            ("ms", "bigint", "length of the part, ms: those of a subject add up to age_ms"),
            ("age_ms", "bigint", "ms from the window's end until the subject had finished it"),
            ("finished_at", "timestamp", "driver clock when that was, adjusted as ewt_adjusted_at"),
            (
                "over_sla",
                "boolean",
                "whether records of the window, or the subject's work, broke its SLA; null: no SLA",
            ),
            ("broken_slas", "array<string>", "names of the subject's SLAs that the window broke; null: no SLA"),
            (
                "usual_ms",
                "double",
                "median of ms in the last 200 windows within the SLA, 24 h at most; null: fewer than 20",
            ),
            ("usual_share", "double", "median of ms / age_ms in these windows, 0 to 1"),
            (
                "compared",
                "string",
                f"of a window over its SLA: {' | '.join(Compared)}: the operator's work on the window with "
                "the limit of its SLA, or all of the part with its usual or configured length",
            ),
            ("judged_ms", "double", "of a window over its SLA: the length that was compared, ms"),
            ("expected_ms", "double", "of a window over its SLA: the length with which it was compared, ms"),
            (
                "excess_ms",
                "double",
                "ms by which judged_ms is beyond expected_ms; 0: a part that cannot have made the window break its SLA",
            ),
            ("no_history", "boolean", "whether the configured length was used in place of usual_ms"),
        ),
    ),
    "report",
    key=("window_start", "subject", "operator", "kind"),
)
SLA_RESULTS = Table(
    "sla_results",
    "SLA and check",
    _columns(
        ("sla", "string", "name of the SLA"),
        ("topology", "string", "name of the topology"),
        ("subject", "string", "table or operator that the SLA is about"),
        ("measure", "string", "measure of the SLA, as in the file of SLAs"),
        ("checked_at", "timestamp", "instant of the check"),
        ("run_id", "string", "Airflow run that made the check"),
        ("verdict", "string", "pass | warn | error | ahead_of_clock | never_loaded | unknown"),
        ("observed_ms", "double", "measured value, ms; null: nothing measured, or not a length of time"),
        ("warn_after_ms", "double", "threshold, ms; null: none"),
        ("error_after_ms", "double", "threshold, ms; null: none"),
        (
            "crossed_at",
            "timestamp",
            "instant at which an age crossed its lowest limit, an interval missed its deadline, or what never came was "
            "due, by the clock of the check; null: nothing of that, or not known",
        ),
        (
            "culprit",
            "string",
            "cause of a broken SLA: of a latency the part that grew most in windows over the SLA (an operator or a "
            "cause, as in window_parts), else the place that blocks progress; null: none known, or not broken",
        ),
        ("owner", "string", "owner of the SLA"),
        (
            "over_ms",
            "bigint",
            "ms before checked_at over which it was measured; not used for staleness and watermark_lag",
        ),
        ("severity", "string", "critical | warning | info: severity if it is broken"),
        ("runbook", "string", "runbook of the SLA; null: none"),
        ("said", "string", "measured and allowed values as text"),
        ("held_by", "string", "first finding of `tidemark why` for a broken SLA; null: none, or not broken"),
        ("cause", "string", "cause that it may share with other broken SLAs; null: not broken"),
        ("cause_sub_topology", "string", "sub-topology of the cause; null: none is known"),
        ("cause_operator", "string", "operator or source of the cause; null: the driver of the sub-topology"),
        ("cause_partition", "int", "partition of that source; null: the cause has none"),
        ("cause_since", "timestamp", "clock of the driver when the cause began; null: not known"),
        (
            "records",
            "bigint",
            "number of records in over_ms (records, burn_rate, shares), of changes of fields in over_ms "
            "(schema_changes), of rows that break the contract (contract), or of stale groups (staleness with `by`)",
        ),
        ("share", "double", "of the measures of a share: quarantined or late part of the records; null: no records"),
        (
            "burn_rate",
            "double",
            "of the measure burn_rate: rate of use of the error budget in over_ms; 1: used up exactly",
        ),
        (
            "budget_left",
            "double",
            "of the measure burn_rate: unused share of the error budget of over_ms, or of an objective of window_ms; "
            "< 0: exceeded; null: too few records",
        ),
        ("objective", "string", "of an SLA of an objective: its name in the file of SLAs; null: no objective"),
        ("target", "double", "of the measure burn_rate: share of records that must be within threshold_ms"),
        ("threshold_ms", "bigint", "of the measure burn_rate: a record that takes longer is slow, ms"),
        ("window_ms", "bigint", "of an objective: ms before checked_at of its error budget"),
        ("window_records", "bigint", "of an objective: records in window_ms"),
        ("window_slow", "bigint", "of an objective: those of window_records that took longer than threshold_ms"),
        ("resolve_after_ms", "bigint", "ms for which the SLA must hold until its incident is resolved"),
        ("quiet", "string", "maintenance | calendar | past: reason why it opens no incident; null: it may open one"),
        (
            "stale_groups",
            "array<struct<name:string,newest_ms:bigint>>",
            "of staleness with `by`: the stale groups, at most 20, the stalest first, with their newest record time "
            "(epoch ms); null: no `by`",
        ),
    ),
    "report",
    key=("run_id", "sla"),
)
INCIDENTS = Table(
    "incidents",
    "change of an incident: a broken SLA, until it has held for resolve_after",
    _columns(
        ("incident", "string", "SLA and opening instant; unique in its topology"),
        ("topology", "string", "name of the topology"),
        ("sla", "string", "name of the SLA"),
        ("change", "string", "opened | escalated | acknowledged | resolved; each at most once"),
        ("at", "timestamp", "instant of the check that changed it, or clock of the acknowledgement"),
        ("opened_at", "timestamp", "instant of the check that opened it"),
        (
            "broken_since",
            "timestamp",
            "crossed_at of the first consecutive check that found the SLA broken, but not before the last check that "
            "found it kept or excused; if null the instant of the check",
        ),
        ("run_id", "string", "Airflow run of the check; null: an acknowledgement, or a deadline passed"),
        ("verdict", "string", "status in that check; when acknowledged: the worst so far"),
        ("severity", "string", "as in sla_results"),
        ("subject", "string", "as in sla_results"),
        ("measure", "string", "as in sla_results"),
        ("observed", "double", "measured value in that check, in unit; null: nothing measured"),
        ("threshold", "double", "limit of the verdict, in unit; of a kept SLA that of an error, or else of a warning"),
        ("unit", "string", "ms | records | changes | rows | burn rate | share"),
        ("said", "string", "as in sla_results; when acknowledged: the note"),
        ("culprit", "string", "as in sla_results"),
        ("held_by", "string", "as in sla_results"),
        ("budget_left", "double", "as in sla_results"),
        ("owner", "string", "as in sla_results"),
        ("runbook", "string", "as in sla_results"),
        ("by", "string", "name of the person who acknowledged it; null: no acknowledgement"),
    ),
    "report",
    key=("incident", "change"),
)
ALERTS = Table(
    "sla_alerts",
    "change of an alert: all incidents of one cause, as channels get it",
    _columns(
        ("alert", "string", "cause, place and opening instant, or the only incident; unique in its topology"),
        ("topology", "string", "name of the topology"),
        ("change", "string", "as in incidents; each at most once"),
        ("at", "timestamp", "instant of the check or clock of the acknowledgement that changed it"),
        ("opened_at", "timestamp", "instant of the check that opened it"),
        ("broken_since", "timestamp", "instant of the first breach of its SLAs, as in incidents"),
        ("run_id", "string", "Airflow run that wrote it; null: a deadline passed"),
        ("cause", "string", "as in sla_results; null: an incident without a cause"),
        ("cause_sub_topology", "string", "as in sla_results"),
        ("cause_operator", "string", "as in sla_results"),
        ("cause_partition", "int", "as in sla_results"),
        ("incidents", "array<string>", "incidents that had this cause; grows while the alert is open"),
        ("slas", "array<string>", "names of their SLAs"),
        ("tables", "array<string>", "tables of sinks downstream of the cause; of other topologies as TOPOLOGY/TABLE"),
        ("topics", "array<string>", "topics of sinks downstream of the cause"),
        ("owners", "array<string>", "owners of their SLAs"),
        ("audience", "string", "owner to whom this is a message about the impact; null: it is the alert itself"),
        ("sla", "string", "of the worst incident"),
        ("verdict", "string", "of the worst incident"),
        ("severity", "string", "the most severe of its SLAs, or of those of audience"),
        ("subject", "string", "of the worst incident"),
        ("measure", "string", "of the worst incident"),
        ("observed", "double", "as in incidents"),
        ("threshold", "double", "as in incidents"),
        ("unit", "string", "as in incidents"),
        ("said", "string", "as in incidents"),
        ("culprit", "string", "as in incidents"),
        ("held_by", "string", "as in incidents"),
        ("budget_left", "double", "as in incidents"),
        ("owner", "string", "owner of all of its SLAs, or of the topology"),
        ("runbook", "string", "as in incidents"),
        ("by", "string", "name of the person who acknowledged one of its incidents"),
    ),
    "report",
    key=("alert", "change"),
)
DELIVERIES = Table(
    "deliveries",
    "change of an alert and channel that delivered it",
    _columns(
        ("incident", "string", "name of the alert"),
        ("topology", "string", "name of the topology"),
        ("change", "string", "as in sla_alerts"),
        ("channel", "string", "name of the channel in expectations/channels.toml, or log"),
        ("delivered_at", "timestamp", "clock after the channel had accepted it"),
        ("run_id", "string", "Airflow run that delivered it"),
        ("reminder", "int", "number of the reminder, from 1; null: the change itself"),
    ),
    "report",
    key=("incident", "change", "channel", "reminder"),
)
PUBLISHED_INTERVALS = Table(
    "published_intervals",
    "complete interval of a table that was published to Airflow, and count of its reopenings then",
    _columns(
        ("topology", "string", "name of the topology"),
        ("sub_topology", "string", "the operators that run in one streaming query"),
        ("table", "string", "as in completeness"),
        ("interval_start", "timestamp", "record time, inclusive; the partition key of the event"),
        ("reopenings", "bigint", "how often the interval had been reopened; 0: first completion"),
        ("published_at", "timestamp", "clock just before the end of the task that published it"),
        ("run_id", "string", "Airflow run that published it; if its task fails, the row is removed"),
    ),
    "report",
    key=("sub_topology", "table", "interval_start", "reopenings"),
)
ALERT_DECISIONS = Table(
    "alert_decisions",
    "decision of a person about alerts",
    _columns(
        ("topology", "string", "name of the topology"),
        ("decision", "string", "acknowledge | silence | snooze | unsilence"),
        ("subject_kind", "string", "incident | sla | topology"),
        ("subject", "string", "name of the incident, SLA or topology"),
        ("decided_at", "timestamp", "clock of the decision"),
        ("until", "timestamp", "end of the silence or snooze, exclusive; null: the decision has none"),
        ("by", "string", "name of the person"),
        ("note", "string", "reason that the person gave; null: none"),
    ),
    "report",
    key=("decided_at", "decision", "subject", "by"),
)
REPAIR_DECISIONS = Table(
    "repair_decisions",
    "decision of a person about a command that repairs streams",
    _columns(
        ("topology", "string", "name of the topology"),
        ("sub_topology", "string", "the operators that run in one streaming query; null: all of the topology"),
        ("command", "string", "accept-loss | requeue | reset-time | doctor | reshard"),
        ("effect", "string", "what the command changes, as its dry run shows it"),
        ("decided_at", "timestamp", "clock after the change; without one the clock of the answer, or of its deadline"),
        ("outcome", "string", "applied | rejected | timed_out | changed | failed"),
        ("by", "string", "name of the person; null: there was no answer in time"),
        ("note", "string", "reason that the person gave; null: none"),
        ("result", "string", "what the command printed, or its error; null: it was not run"),
        ("asked_in", "string", "DAG, run and try of the Airflow task that asked; null: the command was run by hand"),
    ),
    "report",
    key=("decided_at", "command", "sub_topology", "asked_in"),
)
DQ_RESULTS = Table(
    "dq_results",
    "expectation and check",
    _columns(
        ("suite", "string", "great-expectations suite"),
        ("expectation", "string", "its type"),
        ("column", "string", "column or columns that it checks; null: the frame"),
        ("severity", "string", "critical | warning | info: severity if it fails"),
        ("topology", "string", "name of the topology"),
        ("checked_at", "timestamp", "instant of the check"),
        ("run_id", "string", "Airflow run that made the check"),
        ("success", "boolean", "whether the expectation was met"),
        ("observed", "string", "observed value, JSON; of a contract the number of rows that broke it"),
        ("unexpected_count", "bigint", "rows of the checked frame that broke it; null: not counted"),
        ("table", "string", "of a contract: the table whose rows are checked; null: no contract"),
        ("sub_topology", "string", "of a contract: sub-topology whose stream writes the table; null: a batch job"),
        ("table_version", "bigint", "of a contract: the version of the table that was read"),
        ("batch_id", "bigint", "of a contract: the newest batch that was checked; null: none, or rows without batches"),
        ("rows", "bigint", "of a contract: number of rows that were checked"),
        ("culprit", "string", "of a broken contract: operator or source of one of these rows"),
        ("example", "string", "of a broken contract: the key of that row, JSON, or the missing part of the schema"),
    ),
    "report",
    key=("run_id", "suite", "expectation", "column", "severity", "table", "sub_topology"),
)
REQUEUED = Table(
    "requeued",
    "record that `tidemark requeue` sent from quarantine or late_records to its topic, or into a closed window",
    _columns(
        ("topology", "string", "name of the topology"),
        ("sub_topology", "string", "the operators that run in one streaming query"),
        ("source", "string", "source operator; of reopened the aggregate that reads it again"),
        ("topic", "string", "Kafka topic to which it was sent again; null: it is reopened"),
        ("partition", "int", "input partition of the original record"),
        ("offset", "bigint", "Kafka offset of the original record, not of the one sent again"),
        (
            "reason",
            "string",
            "as in quarantine; late: from late_records; reopened: from late_records into a closed window",
        ),
        ("requeued_at", "timestamp", "clock of the command after the record was in the broker or the control folder"),
        ("late_batch", "bigint", "of reopened: batch_id of its row in late_records; null: another reason"),
    ),
    "report",
)
TABLE_FILES = Table(
    "table_files",
    "maintenance and table: its size on disk before and after",
    _columns(
        ("topology", "string", "name of the topology"),
        ("sub_topology", "string", "sub-topology whose stream writes the table; null: batch jobs"),
        ("table", "string", "name of the table"),
        ("at", "timestamp", "clock when the maintenance began"),
        ("files", "bigint", "data files of the table after it"),
        ("bytes", "bigint", "their size"),
        ("rows", "bigint", "rows in them"),
        ("log_files", "bigint", "files of its log, which each commit lists"),
        (
            "unused_files",
            "bigint",
            "data files in its folder that its newest version does not name",
        ),
        ("files_before", "bigint", "data files before it"),
        ("bytes_before", "bigint", "their size"),
        ("rows_before", "bigint", "rows in them"),
    ),
    "report",
    key=("sub_topology", "table", "at"),
)

TABLES = MappingProxyType(
    index_by_name(
        (
            BATCHES,
            OPERATOR_BATCHES,
            LATENCY_BUCKETS,
            OPERATOR_WINDOWS,
            WATERMARKS,
            CHANGES,
            SUPPRESSED,
            LATE_RECORDS,
            QUARANTINE,
            UNDELIVERABLE,
            OPERATOR_STATE,
            HELD_RECORDS,
            COMPLETENESS,
            SCHEMA_CHANGES,
            HEARTBEATS,
            CLOCK_SKEW,
            LATENCY_ROLLUP,
            LATENCY_BUCKET_ROLLUP,
            CRITICAL_PATHS,
            CRITICAL_PATH_STEPS,
            CRITICAL_PATH_LEAVES,
            WINDOW_PARTS,
            SLA_RESULTS,
            INCIDENTS,
            ALERTS,
            DELIVERIES,
            PUBLISHED_INTERVALS,
            ALERT_DECISIONS,
            REPAIR_DECISIONS,
            DQ_RESULTS,
            REQUEUED,
            TABLE_FILES,
        )
    )
)
