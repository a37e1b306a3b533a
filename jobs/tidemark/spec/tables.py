"""The tables of the warehouse: every column with its type and, in its comment, its unit and clock.

Types are Spark's DDL words, which `kernels.schemas` turns into Arrow's. An instant is a TIMESTAMP in UTC named `_at`
(or `watermark`, `timestamp`: record time); a length of time is a BIGINT named `_ms`.

Each driver writes tables of its own, so that a table has one writing process; analysts see the union (`tidemark sql`,
`spark.register`).
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Column:
    """One column: its name, Spark DDL type, and comment."""

    name: str
    type: str
    comment: str


@dataclass(frozen=True)
class Table:
    """A table: name, who writes it, columns in order, what one row is, and the columns that tell its files apart.

    *key* has those that tell its rows apart, of one topology, and of one sub-topology where a stream writes it. Without
    one several may be equal.
    """

    name: str
    row: str
    columns: tuple[Column, ...]
    written_by: str = "stream"
    partitioned_by: tuple[str, ...] = ()
    key: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in order: selecting them is the last step of whatever writes the table."""
        return tuple(column.name for column in self.columns)


def _columns(*triples: tuple[str, str, str]) -> tuple[Column, ...]:
    return tuple(Column(*triple) for triple in triples)


_BATCH = _columns(
    ("topology", "string", "name of the topology"),
    ("sub_topology", "string", "the operators that run in one streaming query"),
    ("batch_id", "bigint", "micro-batch of that query, counted from 0"),
)
_OPERATOR = _columns(
    ("operator", "string", "name of the operator"),
    ("kind", "string", "source | map | table | aggregate | repartition | join | sink"),
)
_TASK = _columns(
    ("thread_id", "string", "Spark application that ran the task"),
    ("task_id", "string", "<sub_topology>_<input partition>"),
)
_RECOVERED = (
    "recovered",
    "boolean",
    "whether the driver before was killed with the batch: its rows were seen from the recovery on, by its clock or, if "
    "they were committed before, by that of the log; null: not known",
)
_STATS = _columns(
    ("n", "bigint", "records measured; what a periodic operator sent on again is none"),
    ("min_ms", "bigint", "smallest e2e latency, ms: finish clock − time of the newest record reflected, signed"),
    ("max_ms", "bigint", "largest e2e latency, ms"),
    ("sum_ms", "bigint", "sum of the e2e latencies, ms"),
    ("negative_n", "bigint", "records whose timestamp lay after the finish clock"),
)

BATCHES = Table(
    "batches",
    "query and batch that changed anything",
    (
        *_BATCH,
        *_columns(
            ("epoch", "bigint", "lease under which the batch was decided; grows with each driver"),
            ("level", "string", "info | debug | trace"),
            (
                "decided_at",
                "timestamp",
                "decision time: when Spark planned the batch, the same on replay; never goes back",
            ),
            ("started_at", "timestamp", "driver clock when the batch began"),
            ("finished_at", "timestamp", "driver clock when its data was committed"),
            ("duration_ms", "bigint", "finished_at − started_at, ms"),
            (
                "sources",
                "array<struct<source:string,partition:int,from_offset:bigint,until_offset:bigint,latest_offset:bigint>>",
                "offsets read: from (inclusive) until (exclusive), and the broker's latest where it was asked",
            ),
            ("records_in", "bigint", "records read by the sources"),
            (
                "accepted_loss",
                "array<struct<source:string,partition:int,from_offset:bigint,until_offset:bigint>>",
                "offsets that the broker had lost and `tidemark accept-loss` gave up, skipped here; null: none",
            ),
            ("watermark", "timestamp", "of the sub-topology after the batch, record time; null: none yet"),
        ),
    ),
    key=("batch_id",),
)
OUTCOMES = Table(
    "outcomes",
    "batch and operator: what became of its updates; in + held_before = the sum of the rest",
    (
        *_BATCH,
        *_OPERATOR,
        *_columns(
            ("records_in", "bigint", "updates that came in"),
            ("held_before", "bigint", "updates that waited from earlier batches"),
            ("emitted", "bigint", "updates judged changed and sent on"),
            ("suppressed", "bigint", "updates judged unchanged and not sent on"),
            ("late", "bigint", "records that an operator that closes something took no more, kept in late_records"),
            ("quarantined", "bigint", "records that could not be read, kept in quarantine"),
            ("duplicate", "bigint", "records that had been read before"),
            ("filtered", "bigint", "records that the operator's condition left out"),
            ("passed", "bigint", "records sent on by an operator that judges no change"),
            (
                "superseded",
                "bigint",
                "updates overtaken by a newer one: while held, or of a table that goes by record time",
            ),
            ("held_after", "bigint", "updates that wait for a later batch"),
            ("fan_out", "bigint", "of a repartition: records handed to the next sub-topology for what it emitted"),
            ("repeated", "bigint", "results that a periodic operator sent on again, not an outcome of any update"),
            (
                "joined_beyond_history",
                "bigint",
                "of a join: records older than the history of its table",
            ),
            ("newest_ms", "bigint", "of a sink into a table: newest event time that it wrote or deleted, epoch ms"),
            ("released_early", "bigint", "of a source: records that max_drift would hold and max_held let go on"),
            ("reopened", "bigint", "of an aggregate: those that came in which had been late before: requeue --reopen"),
        ),
    ),
    key=("batch_id", "operator"),
)
CAME_IN = ("records_in", "held_before")
BECAME = OUTCOMES.names[OUTCOMES.names.index("emitted") : OUTCOMES.names.index("fan_out")]
"""The accounting: per batch and operator the columns CAME_IN of `outcomes` add up to the columns BECAME."""

OPERATOR_LATENCY = Table(
    "operator_latency",
    "batch, operator and task: end-to-end latency (KIP-613)",
    (
        *_BATCH,
        *_OPERATOR,
        *_columns(("level", "string", "recording level at which the row is written")),
        *_TASK,
        *_STATS,
        *_columns(
            ("started_at", "timestamp", "driver clock when the operator began"),
            (
                "finished_at",
                "timestamp",
                "driver clock when its result was there; what nobody in the query reads: when its rows were committed",
            ),
            ("queued_ms", "bigint", "ms it waited for siblings of its driver, or the journal; no operator's fault"),
            _RECOVERED,
        ),
    ),
    key=("batch_id", "operator", "task_id"),
)
LATENCY_BUCKETS = Table(
    "latency_buckets",
    "batch, operator, task and bucket: log-scaled histogram of e2e latency, relative error ≤ 1 %",
    (
        *_BATCH,
        *_OPERATOR,
        *_TASK,
        *_columns(
            ("finished_at", "timestamp", "driver clock when the operator finished"),
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
            ("ewt_adjusted_at", "timestamp", "ewt_at + skew_ms: on the brokers' clock as far as that is known"),
            ("queued_ms", "bigint", "ms of that batch in which the operator waited for siblings, or the journal"),
            (
                "records",
                "bigint",
                "records of the window that the operator finished; at a source late ones too; null: too many were open",
            ),
            ("host", "string", "name of the host whose clock the driver reads"),
            ("batch_started_at", "timestamp", "driver clock when that batch began, before it was read"),
            ("started_at", "timestamp", "driver clock when the operator began its part of that batch"),
            ("skew_ms", "bigint", "ms added to ewt_at for the host's clock skew; null: not known, nothing added"),
            ("skew_error_ms", "bigint", "ms by which the host's known skew may be wrong; null: not known"),
            _RECOVERED,
            ("upstreams", "string", "operators it waits for as the topology was then, with commas; null: not told"),
            ("read_by", "string", "operators that read it as the topology was then, with commas; null: not told"),
        ),
    ),
    key=("batch_id", "operator", "window_start"),
)
OPERATOR_TASKS = Table(
    "operator_tasks",
    "batch in shards, operator and task that worked on it: a shard, or an input partition of a source",
    (
        *_BATCH,
        *_OPERATOR,
        *_columns(
            ("shard", "int", "shard of the keys, from 0; null: an input partition"),
            ("partition", "int", "input partition of the source; null: a shard"),
            ("host", "string", "name of the host that the task ran on"),
            ("started_at", "timestamp", "that host's clock when the task began with the operator"),
            (
                "finished_at",
                "timestamp",
                "that host's clock when it had its result; of the batch that closed a window, the task's EWT",
            ),
            ("records", "bigint", "records that came in"),
            ("hot_key", "string", "key of most of the shard's records, JSON of the columns it is dealt by; null: none"),
            ("hot_share", "double", "part of the shard's records that have that key, 0 to 1"),
        ),
    ),
    key=("batch_id", "operator", "shard", "partition"),
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
            ("held_by", "string", "partition or source that holds the combined watermark back; null: none"),
            ("decided_at", "timestamp", "decision time of the batch"),
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
            ("old_timestamp", "timestamp", "record time of the value it replaced; null: there was none"),
            ("window_start", "timestamp", "record time, inclusive, of the window that it is about; null: of none"),
            ("window_end", "timestamp", "record time, exclusive"),
            ("value_hash", "string", "identity of the value: SHA-256 of its canonical bytes, hex; null: deleted"),
            ("source_partition", "int", "input partition of the record that caused the update"),
            ("source_offset", "bigint", "its offset there"),
        ),
    ),
    key=("batch_id", "operator", "seq"),
)
SUPPRESSED = Table(
    "suppressed",
    "batch, operator, key and run of equal values that were not sent on: the proof of each skip",
    (
        *_BATCH,
        *_columns(
            ("operator", "string", "name of the operator"),
            ("key", "string", "as in changes"),
            ("n", "bigint", "updates not sent on"),
            ("source_partition", "int", "input partition"),
            ("first_offset", "bigint", "offset of the first of them"),
            ("last_offset", "bigint", "offset of the last of them"),
            ("old_timestamp", "timestamp", "record time of the stored value they equal; null: no value"),
            ("max_timestamp", "timestamp", "newest record time among them"),
            ("value_hash", "string", "identity of the value that they all have, as in changes; null: deleted"),
            ("asserted_ms", "string", "of a table that is joined: their record times, epoch ms, as a JSON array"),
        ),
    ),
)
EMISSION_METRICS = Table(
    "emission_metrics",
    "batch, operator that can suppress, and task (KIP-557), at level debug and above",
    (
        *_BATCH,
        *_columns(("operator", "string", "name of the operator")),
        *_TASK,
        *_columns(
            ("idempotent_update_skip_total", "bigint", "unchanged updates not sent on since the checkpoint began"),
            (
                "idempotent_update_skip_rate",
                "double",
                "per second, over the minute that ends with the batch; 0 in silence",
            ),
            ("decided_at", "timestamp", "decision time of the batch"),
        ),
    ),
    key=("batch_id", "operator", "task_id"),
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
                "who found it late: an aggregate whose windows had closed, a join or a source that is strict",
            ),
            ("partition", "int", "input partition"),
            ("offset", "bigint", "its offset there"),
            ("key", "string", "the record's key"),
            ("timestamp", "timestamp", "record time"),
            ("watermark", "timestamp", "record time: the watermark that it was behind"),
            ("lateness_ms", "bigint", "watermark − record time, ms"),
            ("held_by", "string", "partition, or input of an aggregate, that set that watermark"),
            ("value", "binary", "the record's bytes; at an aggregate or a join its columns as a JSON object"),
            ("task", "int", "at an aggregate or a join the partition of the sub-topology that had it"),
            ("headers", "array<struct<key:string,value:binary>>", "its Kafka headers there; null: none"),
        ),
    ),
)
QUARANTINE = Table(
    "quarantine",
    "record that could not be used",
    (
        *_BATCH,
        *_columns(
            (
                "source",
                "string",
                "who could not use it: a source, an operator whose key was null, or a sink whose topic or schema "
                "refuses it",
            ),
            ("topic", "string", "Kafka topic; null: it came from none, or was read further down"),
            ("partition", "int", "Kafka partition"),
            ("offset", "bigint", "Kafka offset"),
            (
                "reason",
                "string",
                "null_key | null_value | invalid_key | invalid_utf8 | malformed_json | malformed_avro | wrong_type | "
                "not_a_number | missing_timestamp | timestamp_out_of_range | timestamp_in_future | sql_error | "
                "too_large_for_topic | time_refused_by_topic | does_not_fit_schema | kills_drivers",
            ),
            (
                "detail",
                "string",
                "of sql_error: the key of the SQL that failed, and why; of does_not_fit_schema: what does not fit",
            ),
            ("key", "binary", "the record's key"),
            ("value", "binary", "the record's bytes; further down its columns as a JSON object"),
        ),
    ),
)
UNDELIVERABLE = Table(
    "undeliverable",
    "record refused after its batch was decided, as when a limit of its topic or the sink's schema changed meanwhile",
    (
        *_BATCH,
        *_columns(
            ("operator", "string", "name of the sink"),
            ("topic", "string", "Kafka topic that did not take it"),
            ("key", "binary", "the record's key"),
            (
                "value",
                "binary",
                "the record's bytes, JSON where it does not fit the sink's schema; null: it deletes its key",
            ),
            ("timestamp", "timestamp", "record time"),
            ("source_partition", "int", "input partition of the record that caused it"),
            ("source_offset", "bigint", "its offset there"),
            ("error", "string", "what the broker, its client or the schema said"),
        ),
    ),
)
OPERATOR_STATE = Table(
    "operator_state",
    "batch and key whose state moved, of operators that keep more than they sent on; a key's newest row is its state",
    (
        *_BATCH,
        *_columns(
            ("operator", "string", "name of the operator"),
            ("key", "string", "as in changes"),
            ("state", "string", "JSON object: key and accumulators, or the newest update's columns; null: gone"),
            ("held", "boolean", "whether its newest update waits to be sent on"),
            ("deleted", "boolean", "whether its newest update deletes the key"),
            ("timestamp", "timestamp", "record time of the newest update; of an aggregate the largest taken in"),
            ("window_start", "timestamp", "record time, inclusive; null: no window"),
            ("window_end", "timestamp", "record time, exclusive"),
            ("partition", "int", "partition of the sub-topology whose record moved it"),
            ("source_partition", "int", "input partition of that record"),
            ("source_offset", "bigint", "its offset there"),
            ("headers", "array<struct<key:string,value:binary>>", "Kafka headers of that record; null: none"),
            ("newest", "timestamp", "record time of the newest record that it reflects; null: timestamp"),
            ("repeated", "boolean", "whether all that it says was sent on before; null: unless it is held"),
        ),
    ),
    key=("batch_id", "operator", "key"),
)
HELD_RECORDS = Table(
    "held_records",
    "record read from a partition that was too far ahead of the others (max_drift); sent on when they came closer",
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
DISORDER_BUCKETS = Table(
    "disorder_buckets",
    "batch, source and bucket: records by how far they came behind the time that their source had reached",
    (
        *_BATCH,
        *_columns(
            ("source", "string", "source operator"),
            ("decided_at", "timestamp", "decision time of the batch"),
            (
                "bucket",
                "int",
                "log-scaled bucket, relative error ≤ 1 %, of watermark + bound + 1 ms − record time, ms: the bound "
                "with which the record is in time; 0: none is needed",
            ),
            ("n", "bigint", "records in it"),
        ),
    ),
    key=("batch_id", "source", "bucket"),
)
HEARTBEATS = Table(
    "heartbeats",
    "driver and beat, every 15 s and at start and end: who lives, whatever the stream has to say",
    (
        *_columns(
            ("topology", "string", "name of the topology"),
            ("sub_topology", "string", "the operators that run in one streaming query"),
            ("at", "timestamp", "driver clock"),
            ("state", "string", "starting | running | drained | rotated | failed"),
            ("epoch", "bigint", "lease of the driver"),
            ("thread_id", "string", "Spark application"),
            ("batch_id", "bigint", "last finished batch; -1: none"),
            ("batch_started_at", "timestamp", "driver clock when the batch that runs now began; null: none runs"),
            ("since", "timestamp", "driver clock since when it does what it does; null: not known"),
            ("reason", "string", "why it failed; null: it did not"),
            ("cpu_share", "double", "CPU seconds per second since the beat before, Python and JVM; 1: one core"),
            ("memory_bytes", "bigint", "resident memory of the driver: Python, JVM, and what they started"),
            ("memory_free_bytes", "bigint", "what it may take besides, of its host or of its container"),
            ("records_waiting", "bigint", "records of topics left unread or held; null: it reads none"),
            ("last_batch_ms", "bigint", "ms that the last batch took, a silent one too; null: none yet"),
            ("checkpoint_bytes", "bigint", "files of the checkpoint and the journal; null: in an object store"),
            ("state_bytes", "bigint", "memory of what the operators keep; null: none yet"),
        ),
    ),
    key=("at", "epoch", "state"),
)
CLOCK_SKEW = Table(
    "clock_skew",
    "driver and estimate of how far its host's clock is from the brokers' clock, every 15 s",
    _columns(
        ("topology", "string", "name of the topology"),
        ("sub_topology", "string", "the operators that run in one streaming query"),
        ("host", "string", "name of the host whose clock the driver reads"),
        ("at", "timestamp", "driver clock when it was estimated"),
        ("offset_ms", "bigint", "ms to add to the host's clock for the brokers' clock; negative: the host is ahead"),
        ("error_ms", "bigint", "ms by which offset_ms may be wrong: half of the shortest round trip, and rounding"),
        ("samples", "bigint", "records that the broker stamped for this estimate"),
    ),
    key=("at", "host"),
)
HOP = Table(
    "hop",
    "update or watermark that a repartition hands to the next sub-topology",
    (
        *_BATCH,
        *_columns(
            ("seq", "bigint", "order within the batch; a watermark comes after its updates"),
            ("partition", "int", "partition of the next sub-topology"),
            ("id", "string", "key before the repartition"),
            ("key", "string", "key after it"),
            ("old_value", "string", "JSON object to take back; null: nothing"),
            ("value", "string", "JSON object to add; null: nothing"),
            ("value_hash", "string", "identity of the value, as in changes"),
            ("timestamp", "timestamp", "record time of the update"),
            ("old_timestamp", "timestamp", "record time of the value it replaced"),
            ("source_partition", "int", "input partition of the record that caused it"),
            ("source_offset", "bigint", "its offset there"),
            ("headers", "array<struct<key:string,value:binary>>", "Kafka headers of that record; null: none"),
            ("watermark", "timestamp", "record time; set on a watermark row, which has no update"),
            (
                "idle",
                "boolean",
                "of a watermark row: whether all is idle upstream; null: an update, or a row of an older version",
            ),
            ("newest", "timestamp", "record time of the newest record that it reflects; null: timestamp"),
            ("repeated", "boolean", "whether all that it says was sent on before; null: no"),
        ),
    ),
    key=("batch_id", "seq"),
)
HOP_MARK = ("watermark", "idle")
"""The columns of a hop of which a mark of time has one at least: before there is a watermark it may say idle alone."""
HOP_UPDATE = " AND ".join(f"{column} IS NULL" for column in HOP_MARK)
"""SQL: a row of a hop is an update, and no mark of time."""
_ROLLED_UP = _columns(
    ("scope", "string", "operator | task | topology (its terminal operators) | path (its terminal operator)"),
    ("topology", "string", "name of the topology"),
    ("sub_topology", "string", "the operators that run in one streaming query; null in scopes topology and path"),
    ("operator", "string", "name of the operator; null in scopes topology and path"),
    ("kind", "string", "source | map | table | aggregate | repartition | join | sink; null in these scopes"),
    ("task_id", "string", "<sub_topology>_<input partition>; null but in scope task"),
    ("path", "string", "source → … → terminal operator; null but in scope path"),
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
            ("over_sla_n", "bigint", "records in buckets that stand for more than sla_ms; null: no SLA"),
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
            ("queued_ms", "bigint", "ms of it spent waiting for siblings of the same driver, or for its journal"),
            ("before_source_ms", "bigint", "EWT of the path's source − window_end, ms: age before the first operator"),
            ("leaf", "string", "terminal operator at which the path ends"),
            ("path", "string", "A (0 ms) → C (100 ms) → E (20 ms) = 120 ms"),
            ("state", "string", "measured, or the named state that kept it from being exact"),
            ("waited_ms", "bigint", "ms of it between an upstream's EWT and the beginning of the next driver's batch"),
            ("sla_ms", "bigint", "ms that the leaf promises of its records' latency; null: nothing"),
            ("over_sla", "boolean", "whether records or work broke a promise of any operator; null: there is none"),
            ("skew_error_ms", "bigint", "largest error of the clocks on it, ms; 0: one clock; null: one is not known"),
            ("moving_average_ms", "bigint", "Apex's form: sum of the operators' averages over 10 windows, ms"),
            ("moving_average_path", "string", "the path for which that sum is highest, written as path is"),
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
            ("queued_ms", "bigint", "ms of it spent waiting for siblings of the same driver, or for its journal"),
            ("share", "double", "latency_ms / the path's, 0 to 1; null: not on the path"),
            ("slack_ms", "bigint", "ms by which it may grow before the topology gets slower"),
            (
                "state",
                "string",
                "input | measured | no_window_yet | upstream_missing | estimated | stuck | clamped_negative",
            ),
            ("sub_topology", "string", "whose driver runs it"),
            ("kind", "string", "as in operator_windows"),
            ("waited_ms", "bigint", "ms of it before the driver's batch began: trigger, or a batch before it"),
            ("worked_ms", "bigint", "ms of it that the operator worked: latency_ms less waited_ms and queued_ms"),
            ("promised_ms", "bigint", "ms of work that its operator_latency_p50 SLA promises; null: nothing"),
            ("slowest_task", "string", "shard 3 | partition 3: the task that finished last; null: not in shards"),
            ("behind_tasks_ms", "bigint", "ms that it finished after the median of the operator's other tasks"),
            ("hot_key", "string", "as in operator_tasks, of that task"),
            ("hot_share", "double", "as in operator_tasks, of that task"),
        ),
    ),
    "report",
    key=("window_start", "operator"),
)
CRITICAL_PATH_LEAVES = Table(
    "critical_path_leaves",
    "topology, closed streaming window and leaf: the walk that ends there",
    (
        *_WINDOW,
        *_columns(
            ("leaf", "string", "terminal operator"),
            ("source", "string", "operator at which the walk begins"),
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
            ("subject", "string", "operator at which the path ends: one with a promise, or the critical leaf"),
            ("operator", "string", "who the part belongs to: an operator, or a word as kind has it"),
            (
                "kind",
                "string",
                "as in operator_windows; or bound | blocking_partition | backlog | driver_restarted | late_producer | "
                "trigger | waiting | queued",
            ),
            (
                "input",
                "string",
                "source and partition that the window waited for, or the driver that restarted, from when to when, and "
                "how many records waited; null: another kind, or not known",
            ),
            ("ms", "bigint", "length of the part, ms: those of a subject add up to age_ms"),
            ("age_ms", "bigint", "ms from the window's end until the subject had finished it"),
            ("finished_at", "timestamp", "driver clock when that was, adjusted as ewt_adjusted_at"),
            (
                "over_sla",
                "boolean",
                "whether records of the window, or the subject's work, broke its promise; null: none",
            ),
            (
                "usual_ms",
                "double",
                "median, in ms, of the last 200 windows that kept it, 24 h at most; null: fewer than 20",
            ),
            ("usual_share", "double", "median of ms / age_ms in these, 0 to 1"),
            ("excess_ms", "double", "of a window over its SLA: ms beyond the usual or configured length, 0 or more"),
            ("no_history", "boolean", "whether the configured length took the place of usual_ms"),
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
        ("subject", "string", "table or operator that is judged"),
        (
            "measure",
            "string",
            "staleness | latency_p50 | latency_p90 | latency_p99 | operator_latency_p50 | completeness | watermark_lag "
            "| records | burn_rate | contract",
        ),
        ("checked_at", "timestamp", "the instant for which it was judged"),
        ("run_id", "string", "Airflow run that asked"),
        ("verdict", "string", "pass | warn | error | ahead_of_clock | never_loaded | unknown"),
        ("observed_ms", "double", "what was measured, ms; null: nothing was, or no length of time"),
        ("warn_after_ms", "double", "threshold, ms; null: none"),
        ("error_after_ms", "double", "threshold, ms; null: none"),
        (
            "culprit",
            "string",
            "who is to blame: of a latency the part that grew most of windows that broke the promise (an operator or a "
            "cause, as in window_parts), else where it is held up; null: nobody, or it holds",
        ),
        ("owner", "string", "who answers for it"),
        ("over_ms", "bigint", "ms before checked_at over which it was judged, but for staleness and watermark_lag"),
        ("severity", "string", "critical | warning | info: how bad it is when it is broken"),
        ("runbook", "string", "what to do; null: nobody said"),
        ("said", "string", "what was measured and what is allowed, in words"),
        ("held_by", "string", "what `tidemark why` says first of a broken one; null: nothing, or it holds"),
        ("records", "bigint", "how many came in over_ms (records), or rows that break the contract (contract)"),
        ("burn_rate", "double", "of the measure burn_rate: how fast over_ms used the error budget; 1: exactly up"),
        ("budget_left", "double", "of the measure burn_rate: unspent part of the budget of over_ms; < 0: overspent"),
        ("quiet", "string", "maintenance | past: why no incident follows from it; null: one may"),
    ),
    "report",
    key=("run_id", "sla"),
)
INCIDENTS = Table(
    "incidents",
    "change of an incident: an SLA that was found broken, until it held again for a while",
    _columns(
        ("incident", "string", "SLA and when it was opened; unique in its topology"),
        ("topology", "string", "name of the topology"),
        ("sla", "string", "name of the SLA"),
        ("change", "string", "opened | escalated | acknowledged | resolved; each once, the last two at most"),
        ("at", "timestamp", "the instant for which the check judged that changed it, or clock of who acknowledged it"),
        ("opened_at", "timestamp", "the instant for which the check judged that opened it"),
        ("broken_since", "timestamp", "the instant for which the first check of the row judged that found it broken"),
        ("run_id", "string", "Airflow run of the check; null: somebody acknowledged it, or a deadline passed"),
        ("verdict", "string", "of that check; when acknowledged: the worst one so far"),
        ("severity", "string", "as in sla_results"),
        ("subject", "string", "as in sla_results"),
        ("measure", "string", "as in sla_results"),
        ("said", "string", "as in sla_results; when acknowledged: the note"),
        ("culprit", "string", "as in sla_results"),
        ("held_by", "string", "as in sla_results"),
        ("budget_left", "double", "as in sla_results"),
        ("owner", "string", "as in sla_results"),
        ("runbook", "string", "as in sla_results"),
        ("by", "string", "who acknowledged it; null: no acknowledgement"),
    ),
    "report",
    key=("incident", "change"),
)
DELIVERIES = Table(
    "deliveries",
    "change of an incident and channel on which it was told",
    _columns(
        ("incident", "string", "as in incidents"),
        ("topology", "string", "name of the topology"),
        ("change", "string", "as in incidents"),
        ("channel", "string", "name of the channel in expectations/channels.toml, or log"),
        ("delivered_at", "timestamp", "clock after the channel had taken it"),
        ("run_id", "string", "Airflow run that told it"),
    ),
    "report",
    key=("incident", "change", "channel"),
)
DQ_RESULTS = Table(
    "dq_results",
    "expectation and check",
    _columns(
        ("suite", "string", "great-expectations suite"),
        ("expectation", "string", "its type"),
        ("column", "string", "column it judges, or columns; null: the frame"),
        ("severity", "string", "critical | warning | info: how bad it is when it does not hold"),
        ("topology", "string", "name of the topology"),
        ("checked_at", "timestamp", "the instant for which it was judged"),
        ("run_id", "string", "Airflow run that asked"),
        ("success", "boolean", "whether it held"),
        ("observed", "string", "what was seen, JSON; of a contract how many rows broke it"),
        ("unexpected_count", "bigint", "rows of the judged frame that broke it; null: not counted"),
        ("table", "string", "of a contract: the table whose rows are judged; null: no contract"),
        ("sub_topology", "string", "of a contract: whose stream writes it; null: a batch job does"),
        ("table_version", "bigint", "of a contract: the version of that table that was read"),
        ("batch_id", "bigint", "of a contract: the newest batch that was judged; null: none, or rows of no batch"),
        ("rows", "bigint", "of a contract: how many rows were judged"),
        ("culprit", "string", "of a broken contract: operator, or source, of one of the rows that broke it"),
        ("example", "string", "of a broken contract: the key of that row, JSON, or what the schema lacks"),
    ),
    "report",
    key=("run_id", "suite", "expectation", "column", "severity", "table", "sub_topology"),
)
REQUEUED = Table(
    "requeued",
    "record that `tidemark requeue` took from quarantine or late_records: sent to its topic, or to a closed window",
    _columns(
        ("topology", "string", "name of the topology"),
        ("sub_topology", "string", "the operators that run in one streaming query"),
        ("source", "string", "source operator; of reopened the aggregate that takes it in again"),
        ("topic", "string", "Kafka topic that has it again; null: none, it is reopened"),
        ("partition", "int", "Kafka partition"),
        ("offset", "bigint", "Kafka offset of the record that was set aside, not of the one sent again"),
        (
            "reason",
            "string",
            "as in quarantine; late: from late_records; reopened: from there into a window that was closed",
        ),
        ("requeued_at", "timestamp", "clock of the command after the broker had it, or the driver's control folder"),
        ("late_batch", "bigint", "of reopened: batch_id of its row in late_records; null in rows of older versions"),
    ),
    "report",
)
TABLE_FILES = Table(
    "table_files",
    "maintenance and table: what it takes on the disk, and took before",
    _columns(
        ("topology", "string", "name of the topology"),
        ("sub_topology", "string", "whose stream writes the table; null: the batch jobs do"),
        ("table", "string", "name of the table"),
        ("at", "timestamp", "clock when the maintenance began"),
        ("files", "bigint", "data files that the table names, after it"),
        ("bytes", "bigint", "their size"),
        ("rows", "bigint", "rows in them"),
        ("log_files", "bigint", "files of its log; each commit lists them"),
        (
            "unused_files",
            "bigint",
            "data files in its folder that it does not name: older versions, or never committed",
        ),
        ("files_before", "bigint", "data files before it"),
        ("bytes_before", "bigint", "their size"),
        ("rows_before", "bigint", "rows in them"),
    ),
    "report",
    key=("sub_topology", "table", "at"),
)

TABLES = MappingProxyType(
    {
        table.name: table
        for table in (
            BATCHES,
            OUTCOMES,
            OPERATOR_LATENCY,
            LATENCY_BUCKETS,
            OPERATOR_WINDOWS,
            OPERATOR_TASKS,
            WATERMARKS,
            CHANGES,
            SUPPRESSED,
            EMISSION_METRICS,
            LATE_RECORDS,
            QUARANTINE,
            UNDELIVERABLE,
            OPERATOR_STATE,
            HELD_RECORDS,
            DISORDER_BUCKETS,
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
            DELIVERIES,
            DQ_RESULTS,
            REQUEUED,
            TABLE_FILES,
        )
    }
)
