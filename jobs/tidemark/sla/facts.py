"""What SLAs are judged by, in SQL for DuckDB: rows of one shape, in which many tables say something of their subjects.

`facts` asks for all that a check needs in one query. Besides, the accounting.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from tidemark.report.path_facts import FINISHED_MS, Row, Tables
from tidemark.semantics.buckets import bucket_sql
from tidemark.semantics.critical_path import State
from tidemark.semantics.idleness import Activity
from tidemark.sla.status import What
from tidemark.spec.intervals import Interval
from tidemark.spec.operators import Sink
from tidemark.spec.sla_spec import QUANTILES, Measure, SlaSpec
from tidemark.spec.tables import BECAME, CAME_IN
from tidemark.spec.topology import Topology

SHAPE = {"what": "varchar", "subject": "varchar", "over_ms": "bigint", "bucket": "int", "n": "bigint"}
SHAPE |= {"at_ms": "bigint", "idle": "boolean"}
LIVES_MS, WITHOUT_BEATS_MS = 300_000, 86_400_000
"""So long after the last beat of its driver, or batch of one that never beats, a source is as idle as it was."""
KNOWN = """
    finished AS (SELECT sub_topology, batch_id, finished_at FROM batches WHERE topology = $1),
    later AS (
        SELECT sub_topology, min(batch_id) AS batch_id FROM finished WHERE finished_at > make_timestamptz($2 * 1000)
        GROUP BY sub_topology
    )
"""
"""What is known at an instant, $2: the batches of a sub-topology before the first that was finished later."""
BEFORE_LATER = "LEFT JOIN later AS l USING (sub_topology) WHERE (l.batch_id IS NULL OR t.batch_id < l.batch_id)"
LIVING = f"""
    SELECT sub_topology, coalesce(beat_ms, batch_ms + {WITHOUT_BEATS_MS - LIVES_MS}) >= $2 - {LIVES_MS} AS lives
    FROM (
        SELECT sub_topology, max(epoch_ms(finished_at)) AS batch_ms FROM finished
        WHERE epoch_ms(finished_at) <= $2 GROUP BY sub_topology
    ) LEFT JOIN (
        SELECT sub_topology, max(epoch_ms("at")) AS beat_ms FROM heartbeats
        WHERE topology = $1 AND epoch_ms("at") <= $2 GROUP BY sub_topology
    ) USING (sub_topology)
"""
"""By sub-topology with a batch: whether its driver lives at $2."""
JUDGED_BY_CLOCKS = frozenset({Measure.STALENESS, Measure.WATERMARK_LAG, Measure.COMPLETENESS})
"""What lies ahead of the clock where a producer's clock is wrong."""
MEASURED = ", ".join(f"'{state}'" for state in (State.INPUT, State.MEASURED, State.CLAMPED_NEGATIVE))
ACCOUNTS = f"""
    WITH {KNOWN},
    counted AS (
        SELECT sub_topology, t.operator, t.kind, f.finished_at, {" + ".join(CAME_IN)} AS n_in,
               {" + ".join(BECAME)} AS n_out, least({", ".join([*CAME_IN, *BECAME])}) AS lowest
        FROM outcomes AS t
        LEFT JOIN finished AS f USING (sub_topology, batch_id)
        {BEFORE_LATER} AND t.topology = $1
    )
    SELECT sub_topology, operator, kind, count(*) AS batches, sum(n_in)::bigint AS updates_in,
           sum(n_out)::bigint AS updates_out, min(lowest) AS lowest,
           count_if(n_in IS DISTINCT FROM n_out) AS open_batches,
           min(epoch_ms(finished_at)) FILTER (WHERE n_in IS DISTINCT FROM n_out) AS open_since_ms
    FROM counted GROUP BY sub_topology, operator, kind
"""
COUNTED = ("batches", "updates_in", "updates_out", "lowest", "open_batches", "open_since_ms")
ACCOUNT = ("sub_topology", "operator", "kind", *COUNTED)
"""The columns of what that says."""


def later(tables: Tables, topology: str, *, at_ms: int) -> dict[str, int]:
    """By sub-topology the first batch that was finished after *at_ms*, where there is one."""
    found = tables.ask(f"WITH {KNOWN} SELECT * FROM later", [topology, at_ms]).objects
    return {row["sub_topology"]: row["batch_id"] for row in found}


def accounts(tables: Tables, topology: str, *, at_ms: int) -> list[Row]:
    """Per sub-topology and operator: batches, updates in and out, the lowest count, and the batches that do not close.

    `open_since_ms` is when the first of these was finished, epoch ms; null when all close, or it is not finished yet.
    """
    return tables.ask(ACCOUNTS, [topology, at_ms]).objects


def facts(tables: Tables, topology: str, specs: Iterable[SlaSpec], *, at_ms: int) -> list[Row]:
    """One row per what, subject, `over_ms` and bucket that *specs* are judged by; what none measures is not read.

    Of watermarks `at_ms`, epoch ms, and whether the source is idle: its newest batch found it so, and its driver lives;
    of the rest `n`.
    """
    parts = list(_parts(list(specs), at_ms))
    if not parts:
        return []
    return tables.ask(f"WITH {KNOWN} {' UNION ALL '.join(parts)}", [topology, at_ms]).objects


def reached(tables: Tables, topology: Topology, names: Collection[str], *, at_ms: int) -> list[Row]:
    """Per sink into one of the tables *names*: the newest record time that had reached that table at *at_ms*.

    Rows of a sink with current rows cannot say it of the past: newer ones have replaced them. `outcomes` can.
    """
    of_tables = (o for o in topology.operators.values() if isinstance(o, Sink))
    sinks = {o.name: o.table for o in of_tables if o.table and o.table in names}
    newest = f"SELECT operator, max(newest_ms) AS newest_ms FROM outcomes AS t {BEFORE_LATER}"
    by_sink = f"WITH {KNOWN} {newest} AND t.topology = $1 GROUP BY operator"
    found = tables.ask(by_sink, [topology.name, at_ms]).objects if sinks else []
    return [told(sinks[row["operator"]], row["newest_ms"]) for row in found if row["operator"] in sinks]


def told(table: str, newest_ms: int | None) -> dict[str, Any]:
    """The fact that *newest_ms* is the newest record time in a *table*."""
    return {**dict.fromkeys(SHAPE), "what": What.NEWEST.value, "subject": table, "at_ms": newest_ms}


def _parts(specs: list[SlaSpec], at_ms: int) -> Iterator[str]:
    def overs(*measures: Measure) -> Iterator[Interval]:
        lengths = {length for spec in specs if spec.measure in measures for length in spec.lengths_ms}
        return (Interval(at_ms - over_ms, at_ms) for over_ms in sorted(lengths))

    of_watermarks = {Measure.WATERMARK_LAG, Measure.COMPLETENESS}
    if any(spec.ignore_when_idle or spec.measure in of_watermarks for spec in specs):
        yield from _watermarks()
    if any(spec.measure in JUDGED_BY_CLOCKS for spec in specs):
        yield _clocks(at_ms)
        yield _begun()
    for over in overs(Measure.RECORDS):
        yield _records(over)
    for over in overs(*QUANTILES, Measure.BURN_RATE):
        yield _latencies(over)
    for over in overs(Measure.OPERATOR_LATENCY_P50):
        yield _added(over)


def _watermarks() -> Iterator[str]:
    """The watermarks of sources, with whether they were idle, and of sub-topologies."""
    of_all = f"{BEFORE_LATER} AND t.topology = $1 AND t.partition IS NULL"
    combined = f"FROM watermarks AS t LEFT JOIN ({LIVING}) AS living USING (sub_topology) {of_all}"
    idle = f"arg_max(t.activity = '{Activity.IDLE}', t.batch_id) AND coalesce(any_value(living.lives), false)"
    at_ms = "max(epoch_ms(t.watermark))"
    of_source = _row(What.SOURCE, "t.source", at_ms=at_ms, idle=idle)
    yield f"{of_source} {combined} AND t.source IS NOT NULL GROUP BY t.source"
    of_sub = _row(What.SUB_TOPOLOGY, "sub_topology", at_ms=at_ms)
    yield f"{of_sub} {combined} AND t.source IS NULL GROUP BY sub_topology"


def _clocks(at_ms: int) -> str:
    """By host how wrong its clock may be against the brokers', as its drivers said in the day before *at_ms*."""
    wrong_ms = _row(What.CLOCK, "host", n="max(abs(offset_ms) + error_ms)")
    day = Interval(at_ms - WITHOUT_BEATS_MS, at_ms + 1)
    lately = day.holds('"at"')
    return f"{wrong_ms} FROM clock_skew WHERE topology = $1 AND {lately} GROUP BY host"


def _begun() -> str:
    """When the first driver of the topology started, as far as its heartbeats and batches are kept."""
    started = 'SELECT min(coalesce(since, "at")) AS begun_at FROM heartbeats WHERE topology = $1'
    finished = "SELECT min(finished_at) FROM finished"
    at_ms = _row(What.BEGUN, "$1", at_ms="epoch_ms(min(begun_at))")
    return f"{at_ms} FROM ({started} UNION ALL {finished}) HAVING min(begun_at) IS NOT NULL"


def _records(over: Interval) -> str:
    """Records that came in by operator, in the batches that were finished in the interval *over*."""
    came_in = _row(What.RECORDS, "t.operator", over, n="sum(t.records_in)")
    finished = f"JOIN finished AS f USING (sub_topology, batch_id) {BEFORE_LATER} AND {over.holds('f.finished_at')}"
    return f"{came_in} FROM outcomes AS t {finished} AND t.topology = $1 GROUP BY t.operator"


def _latencies(over: Interval) -> str:
    """Records by operator and bucket of their end-to-end latency, of those that finished in the interval *over*."""
    counted = _row(What.LATENCY, "operator", over, bucket="bucket", n="sum(n)")
    finished = f"topology = $1 AND {over.holds('finished_at')}"
    return f"{counted} FROM latency_buckets WHERE {finished} GROUP BY operator, bucket"


def _added(over: Interval) -> str:
    """Windows by operator and bucket of what it worked on them, of those whose path was finished in *over*."""
    bucket = bucket_sql("worked_ms")
    added = _row(What.ADDED, "operator", over, bucket=bucket, n="count(*)")
    finished = f"{FINISHED_MS} >= {over.start_ms} AND {FINISHED_MS} < {over.end_ms}"
    windows = f"SELECT window_start, window_end FROM critical_paths WHERE topology = $1 AND {finished}"
    of_windows = f"FROM critical_path_steps WHERE topology = $1 AND (window_start, window_end) IN ({windows})"
    return f"{added} {of_windows} AND state IN ({MEASURED}) AND worked_ms IS NOT NULL GROUP BY operator, {bucket}"


def _row(what: What, subject: str, over: Interval | None = None, **values: str) -> str:
    """SELECT in the common shape, null where no value is given."""
    given = {"what": f"'{what}'", "subject": subject, **values}
    given |= {"over_ms": str(over.length_ms)} if over else {}
    return "SELECT " + ", ".join(f"CAST({given.get(name, 'NULL')} AS {kind}) AS {name}" for name, kind in SHAPE.items())
