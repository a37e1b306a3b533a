"""Defines the tables of the warehouse.

Each column has a type and, in its comment, its unit and clock.

Types are Spark's DDL words, which `kernels.columns.schemas` turns into Arrow's. An instant is a TIMESTAMP in UTC named
`_at` (or `watermark`, `timestamp`: record time); a length of time is a BIGINT named `_ms`.

Each driver writes tables of its own, so that a table has one writing process; analysts see the union (`tidemark sql`,
`query.spark.register`).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import Any

from tidemark.selection import index_by_name, names_in
from tidemark.semantics.dead_letters import DeadLetterKind
from tidemark.semantics.segments import SegmentOwner


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
    by_comment = groupby(fields, key=lambda field: field.comment)
    return "; ".join(f"{', '.join(names_in(alike))}: {comment}" for comment, alike in by_comment)


_BATCH = _columns(
    ("topology", "string", "name of the topology"),
    ("sub_topology", "string", "the operators that run in one streaming query"),
    ("batch_id", "bigint", "micro-batch of that query, counted from 0; one that changed nothing has no rows"),
)
_DECIDED = (
    *_BATCH,
    *_columns(("decided_at", "timestamp", "decision time of the batch, the same on replay; null: not known")),
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
_BY_BOOT_CLOCK = (
    ("finished_boot_ms", "bigint", "boot clock when it had finished, ms"),
    ("finished_epoch", "bigint", "lease of the driver whose clock that is"),
)
_STATS = _columns(
    ("n", "bigint", "records measured, without results that a periodic operator repeated"),
    ("min_ms", "bigint", "smallest e2e latency, ms: finish clock − time of the newest record reflected, signed"),
    ("max_ms", "bigint", "largest e2e latency, ms"),
    ("sum_ms", "bigint", "sum of the e2e latencies, ms"),
    ("negative_n", "bigint", "records whose timestamp lay after the finish clock"),
)
_BUCKETS = "array<struct<bucket:int,n:bigint>>"
_BUCKETS_COMMENT = (
    "log-scaled histogram: signed index of each bucket with records, in order, and their number; relative error ≤ 1 %; "
    "histograms merge by the sum of n per bucket"
)
_QUANTILE_COMMENT = "ms, the ⌈q · n⌉-th record in the buckets, relative error ≤ 1 %, within min_ms and max_ms"

BATCHES = Table(
    "batches",
    "query and batch with changes",
    (
        *_BATCH,
        *_columns(
            (
                "decided_at",
                "timestamp",
                "decision time: when Spark planned the batch; the same on replay, never decreases",
            ),
            (
                "epoch",
                "bigint",
                "lease under which the batch was decided; of a query that a listener records without a job: the first "
                "batch of its run; grows with each driver",
            ),
            ("level", "string", "off | info | debug | trace"),
            ("started_at", "timestamp", "driver clock when the batch began"),
            (
                "started_boot_ms",
                "bigint",
                "started_at by the boot clock, which never steps: ms since the driver's host was started",
            ),
            ("looked_boot_ms", "bigint", "boot clock when Spark knew the records that it planned, ms"),
            ("excluded_boot_ms", "bigint", "boot clock of the look before, ms; null: none"),
            ("finished_at", "timestamp", "driver clock when its data was committed"),
            ("duration_ms", "bigint", "finished_at − started_at, ms"),
            ("records_in", "bigint", "records read by the sources"),
            (
                "watermark",
                "timestamp",
                "watermark of the sub-topology after the batch, record time; null: none yet, or in wrong_times",
            ),
            (
                "wrong_times",
                "array<struct<which:string,text:string,reason:string>>",
                "of a query that a listener records: event times of the batch before 1971 or from 2262 on, watermark | "
                "min | max | avg, in Spark's words, and the reason wrong_time_unit; null: none",
            ),
            ("queued_ms", "bigint", "ms the batch waited for Spark's task slots, which streams of its process share"),
            ("queued_behind", "string", "streams that ran batches during this wait: topology/sub-topology; null: none"),
            (
                "phases",
                "array<struct<owner:string,detail:string,batch_id:bigint,ms:bigint>>",
                f"what the driver did since the entry before in the journal, without a gap. owner: "
                f"{', '.join(SegmentOwner)}; batch_id: for which batch; of a query that a listener records: Spark's",
            ),
            ("phases_boot_ms", "bigint", "boot clock at the end of the last phase, ms"),
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
    *((column.name, column.type, "as those of the row") for column in _STATS),
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
_WAITED = _columns(
    ("wait_ms", "bigint", "sum of decided_at − arrival, ms; null: not stamped, or of a hop"),
    ("left_by", "bigint", "first batch whose plan left them behind; null: none"),
    ("in_transaction", "boolean", "whether they waited for a transaction to end"),
    ("seen_before_ms", "bigint", "without a stamp: ms from the first look that saw them to the batch's"),
    ("excluded_before_ms", "bigint", "the same of the last look that did not"),
    ("writer_batch", "bigint", "of a hop, or of a topic of this warehouse: batch that wrote them"),
    ("writer_row", "bigint", "row of its results"),
)
READS = (
    *_columns(
        ("n", "bigint", "records"),
        ("age_ms", "bigint", "sum of decided_at − record time, ms"),
        ("min_age_ms", "bigint", "smallest of these lengths, ms"),
    ),
    *_WAITED,
)
"""Fields of `partition_batches.reads`: records of a partition that waited alike."""
FIRSTS = (
    *_columns(
        ("age_ms", "bigint", "decided_at − record time, ms"),
        ("reached_age_ms", "bigint", "decided_at − newest record time of the partition before it, ms; null: none"),
    ),
    *_WAITED,
)
"""Fields of `partition_batches.firsts`, of one record each."""
SLOW_KEYS = _columns(
    ("key", "string", "text of the record's key"),
    ("n", "bigint", "records of the key that were older than the promise"),
    ("age_ms", "bigint", "sum of decided_at − record time of these, ms"),
    ("max_age_ms", "bigint", "largest of these lengths, ms"),
)
"""Fields of `partition_batches.slow_keys`."""
RESULTS = _columns(
    (
        "row",
        "bigint",
        "row of reads, of this or an earlier batch, with the newest record that they reflect: its number, counted on "
        "from partition_batches.first_read; null: not known",
    ),
    ("n", "bigint", "results"),
    ("age_ms", "bigint", "sum of decided_at − time of that record, ms"),
    ("wait_ms", "bigint", "sum of decided_at − its arrival, ms; null: as that row"),
)
"""Fields of `operator_batches.results`: what a batch made visible that came about alike."""
OVER_LIMITS = _columns(
    ("limit_ms", "bigint", "e2e latency, ms"),
    ("n", "bigint", "records with a longer one, and some whose latency is up to a tenth shorter than the limit"),
)
"""Fields of `operator_batches.over_limits`."""
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
            *_BY_BOOT_CLOCK,
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
            (
                "dropped",
                "bigint",
                "updates that waited when the topology file ended their source or operator, or let it begin anew; "
                "counted in the first batch behind the change",
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
            _BUCKETS,
            "of a source: n records by log-scaled bucket, relative error ≤ 1 %, of their lag behind the time that it "
            "had reached: watermark + bound + 1 ms − record time, ms, which is the bound with which they are on time; "
            "bucket 0: no bound needed",
        ),
        Column(
            "results",
            _list_of(RESULTS),
            "of a terminal operator or repartition: results, alike ones in one element (decision 149); null: none",
        ),
        Column(
            "over_limits",
            _list_of(OVER_LIMITS),
            "of a query of an observed job: the limits that SLAs declared when it started. "
            f"{_fields_of(OVER_LIMITS)} (decision 172); null: none",
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

LATENCY_MINUTES = Table(
    "latency_minutes",
    "minute of the finish clock, streaming window, operator and task: end-to-end latency (KIP-613) of its records, as "
    "statistics and as a histogram; a restart and late facts make several rows, whose numbers add up",
    (
        *_columns(
            ("topology", "string", "name of the topology"),
            ("sub_topology", "string", "the operators that run in one streaming query"),
            ("batch_id", "bigint", "newest of the micro-batches, one or several, whose records the row counts"),
            ("decided_at", "timestamp", "decision time of that batch; null: of a query of a job"),
        ),
        *_OPERATOR,
        *_TASK,
        *_columns(
            ("finished_at", "timestamp", "driver clock when the operator finished that batch, in the row's minute"),
            ("window_start", "timestamp", "record time, inclusive, of the window with the newest record reflected"),
            (
                "closed_windows",
                "boolean",
                "of a source: whether the batch closed streaming windows; then the row counts no other batch; null: "
                "another operator",
            ),
        ),
        *_STATS,
        *_columns(("buckets", _BUCKETS, _BUCKETS_COMMENT)),
    ),
    key=("batch_id", "operator", "task_id", "window_start"),
)
OPERATOR_WINDOWS = Table(
    "operator_windows",
    "operator and streaming window that its watermark passed (Apex's end-window time, EWT)",
    (
        *_DECIDED,
        *_OPERATOR,
        *_columns(
            ("window_start", "timestamp", "record time, inclusive"),
            ("window_end", "timestamp", "record time, exclusive"),
            ("ewt_at", "timestamp", "driver clock when the operator finished the batch that closed the window"),
            *_BY_BOOT_CLOCK,
            ("ewt_adjusted_at", "timestamp", "ewt_at + skew_ms: on the brokers' clock if the skew is known"),
            ("queued_ms", "bigint", "ms of it waiting for siblings, other streams of the process, or the journal"),
            (
                "records",
                "bigint",
                "records of the window that the operator finished, a source also late ones; null: too many windows "
                "open",
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
PARTITION_BATCHES = Table(
    "partition_batches",
    "batch, source and input partition that the batch looked at or whose time it moved: what was read, and how far its "
    "time is after the batch; partition null: the source, or all sources, combined, in batches that changed them",
    (
        *_DECIDED,
        *_columns(
            ("source", "string", "source operator; null: the whole sub-topology"),
            ("partition", "int", "input partition; null: combined"),
            (
                "topic_partition",
                "string",
                "of a source over several topics: topic/partition that the input partition is; null: other sources",
            ),
            (
                "from_offset",
                "bigint",
                "first offset that was read, inclusive (of a hop: batch of the upstream); null: not known, the batch "
                "did not look at the partition, or combined",
            ),
            ("until_offset", "bigint", "end of what was read, exclusive; equal to from_offset where nothing was read"),
            (
                "latest_offset",
                "bigint",
                "end of the partition: the broker's last stable offset; null: it was not asked",
            ),
            (
                "lost_from_offset",
                "bigint",
                "first offset that was lost unread and accepted by `tidemark accept-loss`, inclusive; null: none was",
            ),
            ("lost_until_offset", "bigint", "end of what was lost, exclusive"),
            ("watermark", "timestamp", "record time up to which the input is complete; null: none yet"),
            ("newest_timestamp", "timestamp", "largest record timestamp seen; null: none yet, or combined"),
            ("activity", "string", "active | idle | backlogged"),
            ("blocked_by", "string", "partition or source that blocks the combined watermark; null: none"),
            ("left_offset", "bigint", "end of what the plan saw and left behind; null: nothing"),
            ("first_read", "bigint", "number of the first of reads in the stream; null: none"),
        ),
        Column(
            "reads",
            _list_of(READS),
            "records that were read, alike ones in one element (decision 149); null: none",
        ),
        Column(
            "firsts",
            _list_of(FIRSTS),
            "first records at or beyond the end, plus the bound, of each closed window: as in reads; null: none",
        ),
        Column(
            "slow_keys",
            _list_of(SLOW_KEYS),
            "the three keys with most records older than the shortest latency that an SLA promises; null: none",
        ),
    ),
    key=("batch_id", "source", "partition"),
)
CHANGES = Table(
    "changes",
    "emitted update of a table or an aggregate; the newest row of a key is its state",
    (
        *_DECIDED,
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
            ("source_partition", "int", "input partition of the record that caused the row"),
            ("source_offset", "bigint", "offset in source_partition of the record that caused the row"),
        ),
    ),
    key=("batch_id", "operator", "seq"),
)
SUPPRESSED = Table(
    "suppressed",
    "batch, operator, key and run of equal values that were not emitted: the evidence of suppression",
    (
        *_DECIDED,
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
            ("asserted_ms", "array<bigint>", "of a joined table: their record times, epoch ms; null: another operator"),
        ),
    ),
)
DEAD_LETTERS = Table(
    "dead_letters",
    "record that did not go on: it was late, could not be used, or was refused by the topic or table of a sink",
    (
        *_DECIDED,
        *_columns(
            ("kind", "string", " | ".join(DeadLetterKind)),
            (
                "operator",
                "string",
                "operator that did not send it on. late: an aggregate with closed windows, or a strict join or source; "
                "quarantined: a source, one that got a null key, or a sink whose topic or schema rejects it; "
                "undeliverable: the sink",
            ),
            (
                "topic",
                "string",
                "quarantined: Kafka topic of the source; null: not from a topic, or rejected downstream of a source. "
                "undeliverable: Kafka topic that rejected it; null: a Delta table. late: null",
            ),
            (
                "partition",
                "int",
                "input partition of the record, or of the one that caused it: Kafka's number, unless its source reads "
                "several topics",
            ),
            ("offset", "bigint", "its offset there; of a table or files the number of the row"),
            (
                "key",
                "binary",
                "the record's key as bytes, so that one that is no text is kept; of a late record whose value is JSON "
                "the text of the key in UTF-8",
            ),
            ("timestamp", "timestamp", "record time; null: quarantined"),
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
                "of fails_drivers: the error; of accepted_loss: who gave the record up, and why. undeliverable: error "
                "of the broker, its client or the schema; of a table its name, the constraint and the values",
            ),
            ("watermark", "timestamp", "late: watermark that it was behind, record time"),
            ("lateness_ms", "bigint", "late: watermark − record time, ms"),
            ("blocked_by", "string", "late: partition, or input of an aggregate, that determined that watermark"),
            ("task", "int", "late at an aggregate or a join: the partition of the sub-topology with the record"),
            (
                "value",
                "binary",
                "the record's bytes, or its columns as a JSON object: downstream of a source, of a table, or if it "
                "does not fit the sink's schema. undeliverable: null if it deletes its key",
            ),
            (
                "headers",
                "array<struct<key:string,value:binary>>",
                "late at an aggregate or a join: its Kafka headers; null: none, or another record",
            ),
        ),
    ),
)
STATE, HELD_RECORD = "state", "held_record"
"""Kinds of rows of `state_changes`."""
STATE_CHANGES = Table(
    "state_changes",
    "batch and key with a changed state, of operators that keep more than they emit; or record of a partition too far "
    "ahead of the others (max_drift), which waits from this batch on",
    (
        *_DECIDED,
        *_columns(
            ("operator", "string", "name of the operator; of a held record its source"),
            ("kind", "string", f"{STATE} | {HELD_RECORD}"),
            ("key", "string", "as in changes; of a held record the record's key"),
            (
                "state",
                "string",
                "JSON object: key and accumulators, or the newest update's columns, or those of a held record; null: "
                "deleted",
            ),
            ("held", "boolean", "whether its newest update is held"),
            ("deleted", "boolean", "whether its newest update deletes the key"),
            ("timestamp", "timestamp", "record time of the newest update; of an aggregate the largest record time"),
            ("window_start", "timestamp", "record time, inclusive; null: no window"),
            ("window_end", "timestamp", "record time, exclusive"),
            ("partition", "int", "partition of the sub-topology whose record changed it"),
            ("source_partition", "int", "input partition of the record that caused the row"),
            ("source_offset", "bigint", "offset in source_partition of the record that caused the row"),
            (
                "headers",
                "array<struct<key:string,value:binary>>",
                "Kafka headers of the record that caused the row; null: none",
            ),
            ("newest_timestamp", "timestamp", "record time of the newest record that it reflects; null: deleted"),
            ("repeated", "boolean", "whether all its content was emitted before; null: deleted"),
        ),
    ),
    key=("batch_id", "operator", "key", "source_partition", "source_offset"),
)
COMPLETENESS = Table(
    "completeness",
    "table and interval that is complete after the batch, and batch in which it got results after that (reopened)",
    (
        *_DECIDED,
        *_columns(
            ("operator", "string", "operator with the key `complete`"),
            ("table", "string", "Delta table of the sink; of other operators their name"),
            ("interval_start", "timestamp", "record time, inclusive"),
            ("interval_end", "timestamp", "record time, exclusive"),
            ("watermark", "timestamp", "watermark of the sub-topology after that batch, record time"),
            (
                "records",
                "bigint",
                "records of the interval that the operator finished, since its last row; null: too many intervals open",
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
    "change of a field in sampled records of a topic, repeated at most hourly while the field is seen",
    (
        *_DECIDED,
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
TOPOLOGY_CHANGES = Table(
    "topology_changes",
    "change of the topology file with which an operator begins anew, or a source begins, ends or goes on in another "
    "way; its batch is the first with it",
    (
        *_DECIDED,
        *_columns(
            ("operator", "string", "operator that begins anew, or source that begins, ends or goes on in another way"),
            (
                "begins",
                "boolean",
                "true: it begins, or begins anew; false: a source that ends or goes on in another way",
            ),
            ("told", "string", "the change, for people"),
            (
                "read_by",
                "array<string>",
                "operators of the stream that read it, directly or not; of a source that ends, until then",
            ),
        ),
    ),
    key=("batch_id", "operator", "told"),
)
BROKERS = "brokers"
"""Reference clock in `heartbeats.clock_offsets`."""
HEARTBEATS = Table(
    "heartbeats",
    "driver and heartbeat, every 15 s and at start and end, also without batches",
    (
        *_columns(
            ("topology", "string", "name of the topology"),
            ("sub_topology", "string", "the operators that run in one streaming query"),
            ("beat_at", "timestamp", "driver clock"),
            ("state", "string", "starting | running | drained | rotated | finished | failed"),
            ("epoch", "bigint", "lease of the driver"),
            ("thread_id", "string", "Spark application"),
            ("batch_id", "bigint", "last finished batch; -1: none"),
            ("batch_started_at", "timestamp", "driver clock when the running batch began; null: no batch is running"),
            ("step_began_at", "timestamp", "driver clock when its current step began; null: unknown"),
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
                "array<struct<source:string,partition:int,topic_partition:string,stable_offset:bigint,"
                "found_at:timestamp>>",
                "transactions that stay open: input partition, its name as topic/number, last stable offset, and the "
                "driver's first look that found it there; null: none, or it reads no topic",
            ),
            (
                "pulse_from_boot_ms",
                "bigint",
                "boot clock since which this row tells of the pulse, ms",
            ),
            ("pulse_boot_ms", "bigint", "beat_at by the boot clock, ms"),
            (
                "gaps",
                "array<struct<began_ms:bigint,ended_ms:bigint,cpu_ms:bigint>>",
                "stretches of 1 s and more without a beat of the pulse, boot clock, and CPU time in them; null: none",
            ),
            (
                "segments",
                "array<struct<owner:string,detail:string,batch_id:bigint,began_ms:bigint,ended_ms:bigint>>",
                "phases that no row of batches has yet, boot clock; the last one still ran",
            ),
            ("adopted_by", "string", "task of Airflow that took over its supervision last; null: none did"),
            (
                "predecessor_killed_by",
                "string",
                "task that killed the stream's driver before this one, and why; null: none did",
            ),
            (
                "clock_offsets",
                "array<struct<host:string,estimated_at:timestamp,offset_ms:bigint,error_ms:bigint,samples:bigint,"
                "reference:string>>",
                "estimates since the last beat of the clocks of the driver's host and of hosts of tasks. estimated_at: "
                "driver clock; offset_ms: ms to add to the host's clock for the reference clock, negative where the "
                "host is ahead; error_ms: ms by which this may be wrong; samples: records that the broker stamped, or "
                f"reports of tasks; reference: {BROKERS}, or the driver's host for hosts of tasks",
            ),
        ),
    ),
    key=("beat_at", "epoch", "state"),
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
            ("old_timestamp", "timestamp", "record time of the value it replaced; null: it replaced none"),
            ("source_partition", "int", "input partition of the record that caused the row"),
            ("source_offset", "bigint", "offset in source_partition of the record that caused the row"),
            (
                "headers",
                "array<struct<key:string,value:binary>>",
                "Kafka headers of the record that caused the row; null: none",
            ),
            ("watermark", "timestamp", "watermark, record time; only on a row without an update"),
            ("idle", "boolean", "of a watermark row: whether all upstream is idle; null: an update"),
            ("newest", "timestamp", "record time of the newest record that it reflects; null: a watermark row"),
            ("repeated", "boolean", "whether all its content was emitted before; null: a watermark row"),
            (
                "result_row",
                "bigint",
                "row of its results in operator_batches; null: none",
            ),
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
    (
        "scope",
        "string",
        "operator | task | topology (its terminal operators) | path (its terminal operator); of a topology or a path "
        "sub_topology, operator and kind are null",
    ),
    ("topology", "string", "name of the topology"),
    ("sub_topology", "string", "the operators that run in one streaming query"),
    ("operator", "string", "name of the operator"),
    ("kind", "string", "kind of the operator, as in the topology file"),
    ("task_id", "string", "<sub_topology>_<input partition>; null in other scopes than task"),
    ("path", "string", "source → … → terminal operator; null in other scopes than path"),
    ("grain", "string", "minute | hour | day"),
    ("interval_start", "timestamp", "finish clock, inclusive"),
    ("interval_end", "timestamp", "finish clock, exclusive"),
)
LATENCY_ROLLUP = Table(
    "latency_rollup",
    "operator, task, topology or path, and interval of the finish clock; percentiles of any coarser interval come from "
    "the sum of its buckets",
    (
        *_ROLLED_UP,
        *_STATS,
        *_columns(
            ("avg_ms", "double", "sum_ms / n, ms"),
            ("p50_ms", "double", _QUANTILE_COMMENT),
            ("p90_ms", "double", _QUANTILE_COMMENT),
            ("p99_ms", "double", _QUANTILE_COMMENT),
            ("p999_ms", "double", _QUANTILE_COMMENT),
            ("sla_ms", "bigint", "the tightest latency SLA, ms: error_after, else warn_after; null: none"),
            ("over_sla_n", "bigint", "records in buckets above sla_ms; null: no SLA"),
            ("over_sla_share", "double", "over_sla_n / n, 0 to 1; null: no SLA"),
            ("buckets", _BUCKETS, _BUCKETS_COMMENT),
        ),
    ),
    "report",
    partitioned_by=("grain", "scope"),
    key=("scope", "sub_topology", "operator", "task_id", "path", "grain", "interval_start"),
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
            ("queued_ms", "bigint", "ms of latency_ms waiting, as in operator_windows"),
            ("before_source_ms", "bigint", "EWT of the path's source − window_end, ms: age before the first operator"),
            ("leaf", "string", "terminal operator at which the path ends"),
            ("path", "string", "A (0 ms) → C (100 ms) → E (20 ms) = 120 ms"),
            ("state", "string", "as in critical_path_steps: measured, or the state that makes it inexact"),
            ("waited_ms", "bigint", "ms of it between an upstream's EWT and the start of the next driver's batch"),
            ("over_sla", "boolean", "whether records or work broke an SLA of an operator; null: no SLA"),
            (
                "verdicts",
                "array<struct<sla:string,operator:string,quantile:double,limit_ms:bigint,value_ms:double,broken:boolean>>",
                "SLAs by which it was judged, broken ones first: quantile of the latency of the operator's records "
                "(null: its work on the window), limit and measured value; null: no SLA, or nothing measured",
            ),
            ("skew_error_ms", "bigint", "largest error of the clocks on it, ms; 0: one clock; null: one is unknown"),
            ("moving_average_ms", "bigint", "Apex's form: sum of the operators' averages over 10 windows, ms"),
            ("moving_average_path", "string", "the path with the highest such sum, in the form of path"),
            (
                "leaves",
                "array<struct<leaf:string,source:string,latency_ms:bigint,behind_ms:bigint,before_source_ms:bigint>>",
                "longest path to each terminal operator, the critical one first: where it begins, and its lengths as "
                "above; behind_ms: by how much it is shorter than the critical path; null: no path",
            ),
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
            ("queued_ms", "bigint", "ms of latency_ms waiting, as in operator_windows"),
            ("share", "double", "latency_ms / the path's, 0 to 1; null: not on the path"),
            ("slack_ms", "bigint", "ms by which it may grow without slowing the topology"),
            (
                "state",
                "string",
                "input | measured | no_window_yet | upstream_missing | estimated | stuck | clamped_negative",
            ),
            ("sub_topology", "string", "sub-topology whose driver runs it"),
            ("kind", "string", "kind of the operator, as in the topology file"),
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
WINDOW_PARTS = Table(
    "window_parts",
    "topology, closed streaming window and owner of a part of its age at the leaf of its critical path, by the account "
    "of time; parts of 0 ms have no row",
    (
        *_WINDOW,
        *_columns(
            ("owner", "string", "whose the time was, as `cause` of sla_results"),
            ("detail", "string", "which one, as the owner's detail says: an operator, a partition, a table"),
            ("stream", "string", "TOPOLOGY/SUB_TOPOLOGY in which it was spent; null: outside of streams"),
            ("ms", "bigint", "length of the part, ms: those of a window add up to its age"),
            ("error_ms", "bigint", "by how much that may be wrong, ms; null: a clock was not measured"),
            (
                "usual_ms",
                "bigint",
                "median of ms in the windows of the day before that kept their SLAs; null: fewer than 20",
            ),
            ("over_sla", "boolean", "as in critical_paths"),
        ),
    ),
    "report",
    key=("window_start", "owner", "detail", "stream"),
)
_OF_CAUSE = (
    ("cause_amount_ms", "bigint", "its ms beyond what is expected; null: not about time"),
    (
        "cause_records",
        "bigint",
        "records that it kept back, or, where nobody counted them, that usually come; null: not about records",
    ),
    ("cause_share", "double", "its share of the excess, 0 to 1; null: not known"),
    ("cause_results", "bigint", "broken results that it explains; null: not counted"),
    ("cause_broken", "bigint", "results that broke it; null: not counted"),
)
SLA_RESULTS = Table(
    "sla_results",
    "SLA and check",
    _columns(
        ("topology", "string", "name of the topology"),
        ("sla", "string", "name of the SLA"),
        ("subject", "string", "table or operator that the SLA is about"),
        ("measure", "string", "measure of the SLA, as in the file of SLAs"),
        ("severity", "string", "critical | warning | info: severity if it is broken"),
        ("owner", "string", "owner of the SLA"),
        ("runbook", "string", "runbook of the SLA; null: none"),
        ("checked_at", "timestamp", "instant of the check"),
        ("run_id", "string", "Airflow run that made the check"),
        ("verdict", "string", "pass | warn | error | ahead_of_clock | never_loaded | unknown"),
        ("observed_ms", "double", "measured value, ms; null: nothing measured, or not a length of time"),
        ("warn_after_ms", "double", "threshold, ms; null: none"),
        ("error_after_ms", "double", "threshold, ms; null: none"),
        (
            "crossed_at",
            "timestamp",
            "when an age crossed its lowest limit, a deadline passed, or what never came was due, by the clock of the "
            "check; of a quantile, a share or a number the second since which it was broken; null: not known, or none",
        ),
        ("over_ms", "bigint", "ms before checked_at over which it was measured; not of staleness and watermark_lag"),
        ("message", "string", "measured and allowed values as text"),
        (
            "culprit",
            "string",
            "what to look at: stalest group, place of broken rows, or detail of the cause; null: none",
        ),
        ("blocked_by", "string", "why, as a sentence; null: not known"),
        (
            "cause",
            "string",
            "owner of most of what broke it, such as absence; null: not known",
        ),
        ("cause_sub_topology", "string", "stream whose time it was, TOPOLOGY/STREAM; null: of none"),
        ("cause_operator", "string", "detail of the owner: operator, source, host, …; null: none"),
        ("cause_partition", "int", "partition of that source; null: none"),
        ("cause_since", "timestamp", "reference clock when that began; null: not known"),
        *_OF_CAUSE,
        (
            "other_causes",
            "array<struct<owner:string,detail:string,stream:string,amount_ms:bigint,records:bigint,share:double,"
            "results:bigint,broken:bigint,since_ms:bigint>>",
            "the next causes, as above (since_ms: epoch ms)",
        ),
        (
            "records",
            "bigint",
            "in over_ms records (records, latency_p…, burn_rate, shares) or changes of fields (schema_changes); rows "
            "that break the contract (contract); stale groups (staleness with `by`)",
        ),
        ("share", "double", "quarantined or late part of the records; null: another measure, or no records"),
        ("burn_rate", "double", "rate of use of the error budget in over_ms, 1: used up exactly; null: no burn_rate"),
        (
            "budget_left",
            "double",
            "unused share of the error budget of over_ms, or of window_ms of an objective; < 0: exceeded; null: no "
            "burn_rate, or too few records",
        ),
        ("objective", "string", "name of its objective; null: none"),
        ("target", "double", "share of records that must be within threshold_ms; null: no burn_rate"),
        ("threshold_ms", "bigint", "ms from which on a record is slow; null: no burn_rate"),
        ("window_ms", "bigint", "ms before checked_at of the objective's error budget; null: no objective"),
        ("window_records", "bigint", "records in window_ms"),
        ("window_slow", "bigint", "those that took longer than threshold_ms"),
        ("resolve_after_ms", "bigint", "ms for which the SLA must hold until its incident is resolved"),
        (
            "excluded_because",
            "string",
            "maintenance | calendar | past: reason why it opens no incident; null: it may open one",
        ),
        (
            "stale_groups",
            "array<struct<name:string,newest_ms:bigint>>",
            "stale groups, the stalest first, at most 20, with their newest record time (epoch ms); null: no `by`",
        ),
    ),
    "report",
    key=("run_id", "sla"),
)
INCIDENTS = Table(
    "incidents",
    "change of an incident: a broken SLA, until it has held for resolve_after",
    _columns(
        ("topology", "string", "name of the topology"),
        ("incident", "string", "SLA and opening instant; unique in its topology"),
        ("sla", "string", "name of the SLA"),
        ("change", "string", "opened | escalated | acknowledged | resolved; each at most once"),
        ("changed_at", "timestamp", "instant of the check that changed it, or clock of the acknowledgement"),
        ("opened_at", "timestamp", "instant of the check that opened the incident or alert"),
        (
            "broken_since",
            "timestamp",
            "crossed_at (else the instant of the check) of the first of the consecutive checks that found it broken, "
            "but not before the last check that found it kept or excused",
        ),
        (
            "crossed_at",
            "timestamp",
            "broken_since where it is the instant of the crossing of a limit; null: only that check is known",
        ),
        ("run_id", "string", "Airflow run of the check; null: an acknowledgement, or a deadline passed"),
        ("verdict", "string", "as in sla_results, of that check; when acknowledged the worst so far"),
        ("severity", "string", "as in sla_results"),
        ("subject", "string", "as in sla_results"),
        ("measure", "string", "as in sla_results"),
        ("owner", "string", "as in sla_results"),
        ("runbook", "string", "as in sla_results"),
        ("culprit", "string", "as in sla_results"),
        ("blocked_by", "string", "as in sla_results"),
        ("message", "string", "as in sla_results; when acknowledged the note"),
        ("observed", "double", "measured value in that check, in unit; null: nothing measured"),
        ("threshold", "double", "limit of the verdict, in unit; of a kept SLA that of an error, else of a warning"),
        ("unit", "string", "ms | records | changes | rows | burn rate | share"),
        ("budget_left", "double", "as in sla_results"),
        ("decided_by", "string", "name of the person who acknowledged it; null: no acknowledgement"),
    ),
    "report",
    key=("incident", "change"),
)
ALERTS = Table(
    "alerts",
    "change of an alert: all incidents of one cause, as channels get it",
    _columns(
        ("topology", "string", "name of the topology"),
        ("alert", "string", "cause, place and opening instant, or the only incident; unique in its topology"),
        ("change", "string", "as in incidents; each at most once"),
        ("changed_at", "timestamp", "instant of the check or clock of the acknowledgement that changed it"),
        ("opened_at", "timestamp", "instant of the check that opened the incident or alert"),
        ("broken_since", "timestamp", "instant of the first breach of its SLAs, as in incidents"),
        ("crossed_at", "timestamp", "instant of the crossing, as in incidents, of that breach"),
        ("run_id", "string", "Airflow run that wrote it; null: a deadline passed"),
        ("cause", "string", "as in sla_results; null: an incident without a cause"),
        ("cause_sub_topology", "string", "as in sla_results"),
        ("cause_operator", "string", "as in sla_results"),
        ("cause_partition", "int", "as in sla_results"),
        ("cause_since", "timestamp", "reference clock, as in sla_results"),
        *_OF_CAUSE,
        (
            "fault",
            "string",
            "cause in words alike in all topologies; null: none that another could have",
        ),
        ("incidents", "array<string>", "incidents that had this cause; grows while the alert is open"),
        ("slas", "array<string>", "names of their SLAs"),
        ("tables", "array<string>", "tables of sinks downstream of the cause; of other topologies as TOPOLOGY/TABLE"),
        ("topics", "array<string>", "topics of sinks downstream of the cause"),
        ("owners", "array<string>", "owners of their SLAs"),
        ("audience", "string", "owner to whom this is a message about the impact; null: it is the alert itself"),
        ("sla", "string", "as in incidents, of the worst one"),
        ("verdict", "string", "as in incidents, of the worst one"),
        ("subject", "string", "as in incidents, of the worst one"),
        ("measure", "string", "as in incidents, of the worst one"),
        ("runbook", "string", "as in incidents, of the worst one"),
        ("culprit", "string", "as in incidents, of the worst one"),
        ("blocked_by", "string", "as in incidents, of the worst one"),
        ("message", "string", "as in incidents, of the worst one"),
        ("unit", "string", "as in incidents, of the worst one"),
        ("observed", "double", "as in incidents, of the worst one"),
        ("threshold", "double", "as in incidents, of the worst one"),
        ("budget_left", "double", "as in incidents, of the worst one"),
        ("severity", "string", "the most severe of its SLAs, or of those of audience, as in sla_results"),
        ("owner", "string", "owner of all of its SLAs, or of the topology"),
        ("decided_by", "string", "name of the person who acknowledged one of its incidents"),
    ),
    "report",
    key=("alert", "change"),
)
DELIVERIES = Table(
    "deliveries",
    "change of an alert and channel that delivered it",
    _columns(
        ("alert", "string", "name of the alert"),
        ("topology", "string", "name of the topology"),
        ("change", "string", "as in alerts"),
        ("channel", "string", "name of the channel in expectations/channels.toml, or log"),
        ("delivered_at", "timestamp", "clock after the channel had accepted it"),
        ("run_id", "string", "Airflow run that delivered it"),
        ("reminder", "int", "number of the reminder, from 1; null: the change itself"),
    ),
    "report",
    key=("alert", "change", "channel", "reminder"),
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
DECISIONS = Table(
    "decisions",
    "decision of a person, about alerts, a repair of streams or a changed topology file",
    _columns(
        ("topology", "string", "name of the topology"),
        (
            "decision",
            "string",
            "acknowledge | silence | snooze | unsilence; of a repair its command: accept-loss | requeue | reset-time | "
            "doctor | reshard | begin | start-over; plan: of a changed topology file",
        ),
        ("subject_kind", "string", "incident | sla | topology | sub_topology (of a repair)"),
        ("subject", "string", "name of the incident, SLA, topology or sub-topology"),
        (
            "decided_at",
            "timestamp",
            "clock of the decision; of a repair the clock after the change, or without one of the answer, or of its "
            "deadline",
        ),
        ("decided_by", "string", "name of the person; null: there was no answer in time"),
        ("note", "string", "reason that the person gave; null: none"),
        ("ends_at", "timestamp", "end of the silence or snooze, exclusive; null: the decision has none"),
        ("effect", "string", "of a repair: what the command changes, as its dry run shows it; of a plan its lines"),
        (
            "outcome",
            "string",
            "applied | rejected | timed_out | changed | failed | shown: end of a repair, or shown of a plan; null: a "
            "decision about alerts",
        ),
        ("result", "string", "of a repair: what the command printed, or its error; null: it was not run"),
        (
            "asked_in",
            "string",
            "of a repair: DAG, run and try of the Airflow task that asked; null: the command was run by hand",
        ),
    ),
    "report",
    key=("decided_at", "decision", "subject_kind", "subject", "decided_by", "asked_in"),
)
EXPECTATION_RESULTS = Table(
    "expectation_results",
    "expectation and period in which checks found one verdict on it",
    _columns(
        ("topology", "string", "name of the topology"),
        ("suite", "string", "great-expectations suite"),
        ("expectation", "string", "its type"),
        ("column", "string", "column or columns that it checks; null: the frame"),
        ("severity", "string", "critical | warning | info: severity if it fails"),
        ("table", "string", "table whose contract it is; null: no contract"),
        ("sub_topology", "string", "sub-topology whose stream writes that table; null: a batch job"),
        ("success", "boolean", "whether the expectation was met"),
        ("first_checked_at", "timestamp", "instant of the first check of the period"),
        ("last_checked_at", "timestamp", "instant of the newest check"),
        ("judged_at", "timestamp", "instant of the check that found this"),
        ("checks", "bigint", "checks that found this verdict in the period"),
        ("run_id", "string", "Airflow run of the newest check; null: made again, it found another verdict"),
        ("observed", "string", "observed value, JSON; of a contract the number of rows that broke it"),
        ("unexpected_count", "bigint", "rows of the checked frame that broke it; null: not counted"),
        ("table_version", "bigint", "version of that table that was read"),
        ("batch_id", "bigint", "newest batch that was checked; null: none, or rows without batches"),
        ("rows", "bigint", "its rows that were checked"),
        ("culprit", "string", "operator or source of one of the rows that broke it"),
        ("example", "string", "key of that row, JSON, or the missing part of the schema"),
        ("previous_checked_at", "timestamp", "instant of the check before the newest; null: the first, or not known"),
    ),
    "report",
    key=("suite", "expectation", "column", "severity", "table", "sub_topology", "first_checked_at"),
)
REQUEUED = Table(
    "requeued",
    "record that `tidemark requeue` sent from dead_letters to its topic, or into a closed window",
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
            "as in dead_letters; late: a late record; reopened: a late record into a closed window",
        ),
        ("requeued_at", "timestamp", "clock of the command after the record was in the broker or the control folder"),
        ("late_batch", "bigint", "of reopened: batch_id of its row in dead_letters; null: another reason"),
    ),
    "report",
)
MAINTENANCE = Table(
    "maintenance",
    "maintenance and table: its size on disk before and after",
    _columns(
        ("topology", "string", "name of the topology"),
        ("sub_topology", "string", "sub-topology whose stream writes the table; null: batch jobs"),
        ("table", "string", "name of the table"),
        ("started_at", "timestamp", "clock when the maintenance began"),
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
    key=("sub_topology", "table", "started_at"),
)

TABLE_AGES = Table(
    "table_ages",
    "watched Delta table and commit that changed its data",
    _columns(
        ("topology", "string", "watch"),
        ("table", "string", "path of the watched table"),
        ("table_id", "string", "its id in its log; a table that was made anew has another"),
        ("version", "bigint", "version that the commit made"),
        ("committed_at", "timestamp", "instant of the commit, by the clock that `clock` names"),
        ("clock", "string", "in_commit | writer | file"),
        ("change", "string", "appended | replaced: rows were removed"),
        ("operation", "string", "as the writer calls it"),
        ("rows", "bigint", "rows of the files that it wrote; null: not known"),
        ("bytes", "bigint", "size of these files"),
        ("gap_ms", "bigint", "ms since the commit before that changed data; null: not known"),
        ("event_column", "string", "column of event times; null: none"),
        (
            "newest_low_at",
            "timestamp",
            "newest event time (record time) that readers see after it, at least; null: not known, or none",
        ),
        ("newest_high_at", "timestamp", "the same record time, at most"),
        (
            "latency_low_ms",
            "bigint",
            "ms, commit - newest event time that it appended, at least; null: not known, or none",
        ),
        ("latency_high_ms", "bigint", "ms, commit - oldest one, at most"),
        ("peak_low_ms", "bigint", "age just before the commit in ms, at least; null: not known, or no event time"),
        ("peak_high_ms", "bigint", "the same in ms, at most"),
        ("engine", "string", "program that wrote it; null: not known"),
        ("job", "string", "its job; null: not known"),
        ("query", "string", "streaming query; null: none"),
        ("airflow", "string", "DAG.TASK; null: not known"),
        ("run", "string", "run of that DAG or job; null: not known"),
        ("batch", "bigint", "batch of that query; null: none"),
        ("read_at", "timestamp", "clock of the run that recorded it"),
    ),
    "report",
    key=("table", "table_id", "version"),
)

TABLES = MappingProxyType(
    index_by_name(
        (
            BATCHES,
            OPERATOR_BATCHES,
            LATENCY_MINUTES,
            OPERATOR_WINDOWS,
            PARTITION_BATCHES,
            CHANGES,
            SUPPRESSED,
            DEAD_LETTERS,
            STATE_CHANGES,
            COMPLETENESS,
            SCHEMA_CHANGES,
            TOPOLOGY_CHANGES,
            HEARTBEATS,
            LATENCY_ROLLUP,
            CRITICAL_PATHS,
            CRITICAL_PATH_STEPS,
            WINDOW_PARTS,
            SLA_RESULTS,
            INCIDENTS,
            ALERTS,
            DELIVERIES,
            PUBLISHED_INTERVALS,
            DECISIONS,
            EXPECTATION_RESULTS,
            REQUEUED,
            MAINTENANCE,
            TABLE_AGES,
        )
    )
)
