"""The keys of a topology file beside those of its operators.

Those of clusters, registries and Spark's settings are in model/project.
"""

from __future__ import annotations

import re
from typing import TypedDict

from tidemark.model.kinds.operator import Level
from tidemark.model.project import spark_settings
from tidemark.model.project.connections import KAFKA, REGISTRY
from tidemark.model.project.layout import WATCH
from tidemark.model.settings import retention, value_types
from tidemark.model.settings.conditions import given, needs
from tidemark.model.settings.declared_tables import TableForm, Values, defaulted, inner_table, optional, required
from tidemark.model.settings.retention import Retention, retention_of
from tidemark.model.settings.value_types import ValueType, refuse

GROUP_PREFIX = "tidemark"
"""How the names of consumer groups begin by default."""
MAX_HELD = 50_000
"""Most records of a source that wait for slower partitions.

It is a quarter of a full batch, 10 to 50 MB of memory.
"""
_GROUP_PREFIX = re.compile(r"[a-zA-Z0-9._-]{1,100}")


def _group_prefix(value: object, *_: str) -> str | None:
    """Returns how the names of consumer groups begin; None if there are no groups."""
    if isinstance(value, bool):
        return GROUP_PREFIX if value else None
    if not isinstance(value, str) or not _GROUP_PREFIX.fullmatch(value):
        remedy = f'use letters, digits, ".", "_" and "-", or write true for the groups {GROUP_PREFIX}-TOPOLOGY-STREAM'
        refuse(f"is {value!r}", remedy)
    return value


OF_GROUPS: ValueType[str | None] = ValueType(
    "boolean or string",
    (bool, str),
    {"anyOf": [{"type": "boolean"}, {"type": "string", "pattern": f"^{_GROUP_PREFIX.pattern}$"}]},
    _group_prefix,
)
"""The type of `consumer_groups`."""
CALENDARS = "calendars"
"""The table of all calendars in the file of SLAs, in which each other table has the name of a topology."""
RESERVED = {CALENDARS: "is reserved for the calendars of SLAs", WATCH: "stands for watched tables"}


def _free_name(name: str, *_: str) -> str:
    if why := RESERVED.get(name):
        refuse(f"is {name!r}, which {why}", "use another name")
    return name


OF_NAME = value_types.name()
NAME = required(
    "name",
    OF_NAME.then(_free_name, {**OF_NAME.form, "not": {"enum": [*RESERVED]}}),
    example='"clicks"',
    meaning="names its folder of tables, its checkpoint and its DAGs",
)
CHECK_EVERY = defaulted(
    "check_every",
    value_types.length(),
    example='"5 min"',
    default="10 min",
    meaning=(
        "how often a check of its SLAs is stored if nothing changes; they are judged every 15 s "
        "([alerts.md](alerts.md))"
    ),
)
CONSUMER_GROUPS = defaulted(
    "consumer_groups",
    OF_GROUPS,
    example="true",
    default=False,
    meaning=(
        "shows Kafka's own tools how far its streams have come: their offsets are written into consumer groups, "
        '`tidemark-TOPOLOGY-STREAM` for each stream; a text such as `"acme"` stands in place of `tidemark`. [See '
        "below](#consumer-groups)"
    ),
)
DRIVER = optional(
    "driver",
    value_types.name(),
    example='"small"',
    meaning=(
        "the process that runs its streams. Without it: one process for all streams of this topology. A name: one "
        'process for all topologies with that name, for small ones; they must agree on `spark`. `"own"`: a '
        "process for each stream; [see below](#drivers)"
    ),
)
OWNER = defaulted(
    "owner",
    value_types.text(),
    example='"airside"',
    default="tidemark",
    meaning="owner of its DAGs in Airflow",
)
LEVEL = defaulted(
    "level",
    value_types.choice(Level),
    example='"info"',
    default=Level.INFO.value,
    meaning=(
        "which measurements are written. `off`: no latencies and no completion times of windows, so there are no "
        "critical paths. `info`: latencies of sources and terminal operators. `debug`: also emission metrics. "
        "`trace`: also latencies of stateful operators. You may change it at any time: no state depends on it"
    ),
)
WINDOW = defaulted(
    "window",
    value_types.length(),
    example='"10 s"',
    default="10 s",
    meaning=(
        "length of the streaming windows, in record time. Operators are compared by the instants at which they "
        "finished each of these. Aggregates have their own windows"
    ),
)
TRIGGER = defaulted(
    "trigger",
    value_types.length(),
    example='"1 s"',
    default="1 s",
    meaning=(
        "the average time between two batches, at least; one may begin early. A batch starts if there are "
        "records, or if something else is due. In the 10 s after records of a topic the driver sees the next ones "
        "within 50 ms, or within a fifth of the silence since; later it looks this often. A stream that reads "
        "only streams of the same process is woken by these instead. A drain waits for no trigger"
    ),
)
MAX_DRIFT = optional(
    "max_drift",
    value_types.length(),
    example='"1 min"',
    meaning=(
        "records of a partition wait while its watermark is further than this ahead of the slowest partition "
        "(alignment)"
    ),
)
HELD = defaulted(
    "max_held",
    value_types.count(),
    example="10_000",
    default=MAX_HELD,
    meaning=(
        "with `max_drift`: how many records of a source may wait, in the driver's memory. If more would wait, the "
        "records that are least far ahead are processed early; `operator_batches` counts them as "
        "`released_early`. The default is a quarter of a full batch, 10 to 50 MB"
    ),
    needs=[needs(given(MAX_DRIFT))],
)
MAX_OUTSTANDING_WINDOWS = defaulted(
    "max_outstanding_windows",
    value_types.count(),
    example="1_000",
    default=1000,
    meaning=(
        "how many outstanding streaming windows (which the watermark has not passed yet) are measured, the newest "
        "ones (Apex: THROUGHPUT_CALCULATION_MAX_SAMPLES). Records of older outstanding windows are not counted. "
        "Windows of aggregates are never dropped"
    ),
)
FACTS_EVERY = defaulted(
    "facts_every",
    value_types.length(zero=True),
    example='"10 s"',
    default="30 s",
    meaning=(
        "how often facts (measurements and proofs) move from the journal to their tables; also 12 s after a batch "
        'that no other followed, at a drain and at a start; in an object store at most once a minute. `"0 s"`: '
        "with each batch. [What readers see](reliability.md#facts)"
    ),
)
FLUSH_KEYS = defaulted(
    "flush_keys",
    value_types.count(),
    example="50_000",
    default=50000,
    meaning=(
        "after this many changed keys a driver writes their states to a file of the control folder. A start maps "
        "these files and reads only the journal since then, so its duration depends neither on the size of the "
        "state nor on the history"
    ),
)
FLUSH_BATCHES = defaulted(
    "flush_batches",
    value_types.count(),
    example="50",
    default=50,
    meaning="a driver also writes changed states after this many batches, for streams in which few keys change",
)
SHARDS = optional(
    "shards",
    value_types.counts(),
    example="4",
    without="`1`",
    meaning=(
        "Spark's tasks run the operators, each over the keys of one shard, and records do not pass through the "
        "driver; `{ status = 4 }` is for one sub-topology. `1` is the driver itself; [see below](#shards)"
    ),
)
RETENTION = inner_table(
    "retention",
    retention.FORM,
    example='{ facts = "30 d" }',
    without="per kind of row",
    meaning="how long rows are kept; [maintenance.md](maintenance.md) has the defaults",
)
SPARK = inner_table(
    "spark",
    spark_settings.FORM,
    example='{ memory = "2g" }',
    meaning="cluster and resources of this topology's jobs: [see below](#spark)",
)
OPERATORS = required(
    "operators",
    value_types.plain(dict),
    example='{ clicks = { kind = "source", topic = "clicks", fields = "id string", bound = "3 s" } }',
    meaning="a table per operator: `[operators.NAME]`",
)
FORM = TableForm(
    keys=(
        NAME,
        CHECK_EVERY,
        CONSUMER_GROUPS,
        DRIVER,
        OWNER,
        LEVEL,
        WINDOW,
        TRIGGER,
        MAX_DRIFT,
        HELD,
        MAX_OUTSTANDING_WINDOWS,
        FACTS_EVERY,
        FLUSH_KEYS,
        FLUSH_BATCHES,
        SHARDS,
        RETENTION,
        KAFKA,
        REGISTRY,
        SPARK,
        OPERATORS,
    )
)
"""A topology file."""


class TopologySettings(TypedDict):
    """Fields of `Topology`, by name."""

    name: str
    level: Level
    window_ms: int
    trigger_ms: int
    max_drift_ms: int | None
    shards: dict[str, int]
    retention: Retention
    owner: str
    max_outstanding_windows: int
    max_held: int
    flush_batches: int
    flush_keys: int
    facts_every_ms: int
    check_every_ms: int
    consumer_groups: str | None
    driver: str | None


def settings_of(values: Values) -> TopologySettings:
    """Returns the settings in *values*, those of a file, without its operators, Spark settings and connections."""
    return {
        "name": values[NAME],
        "level": values[LEVEL],
        "window_ms": values[WINDOW],
        "trigger_ms": values[TRIGGER],
        "max_drift_ms": values[MAX_DRIFT],
        "shards": values.get(SHARDS, {}),
        "retention": retention_of(values[RETENTION]),
        "owner": values[OWNER],
        "max_outstanding_windows": values[MAX_OUTSTANDING_WINDOWS],
        "max_held": values[HELD],
        "flush_batches": values[FLUSH_BATCHES],
        "flush_keys": values[FLUSH_KEYS],
        "facts_every_ms": values[FACTS_EVERY],
        "check_every_ms": values[CHECK_EVERY],
        "consumer_groups": values[CONSUMER_GROUPS],
        "driver": values[DRIVER],
    }
