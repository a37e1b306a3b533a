"""Collects the measurements that a check of SLAs needs, in DuckDB.

`facts` asks one query over many tables and returns facts, each about one subject. `accounts` returns how many updates
went into each operator and what became of them. The latencies of objectives are counted in `objectives`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from tidemark.control.folder import StreamState
from tidemark.facts.answers import Row, Tables
from tidemark.facts.heartbeat_facts import HeartbeatFacts
from tidemark.facts.measures.batches import BEFORE_LATER, DAY_MS, known_batches, tables_of_batches
from tidemark.facts.measures.fact_kinds import Fact, FactKind, facts_in
from tidemark.facts.measures.newest_times import oldest_ms
from tidemark.model.measures.registry import OUTCOMES, Count, Need
from tidemark.model.settings.intervals import Interval, is_text, iso
from tidemark.model.slas.sla_keys import WhileCatchingUp
from tidemark.model.slas.sla_spec import SlaSpec
from tidemark.model.tables.catalog import BECAME, BROKERS, CAME_IN
from tidemark.model.topology import Topology
from tidemark.semantics.catching_up import HANGS_AFTER_MS
from tidemark.semantics.idleness import Activity
from tidemark.semantics.liveness import ENDED_WELL, Liveness

SHAPE = {"what": "varchar", "subject": "varchar", "over_ms": "bigint", "bucket": "int", "n": "bigint"}
SHAPE |= {"at_ms": "bigint", "idle": "boolean"}
REACHED_WITHIN_MS = DAY_MS
"""For the newest record time of a sink, `operator_batches` is read this far back, ms.

If a sink wrote nothing for longer, only its table has that time.
"""
ACCOUNTS = f"""
    WITH {{known}},
    counted AS (
        SELECT sub_topology, t.operator, t.kind, f.finished_at, {" + ".join(CAME_IN)} AS n_in,
               {" + ".join(BECAME)} AS n_out, least({", ".join([*CAME_IN, *BECAME])}) AS lowest
        FROM ({{outcomes}}) AS t
        LEFT JOIN finished AS f USING (sub_topology, batch_id)
        {BEFORE_LATER}
    )
    SELECT sub_topology, operator, kind, count(*) AS batches, sum(n_in)::bigint AS updates_in,
           sum(n_out)::bigint AS updates_out, min(lowest) AS lowest,
           count_if(n_in IS DISTINCT FROM n_out) AS open_batches,
           min(epoch_ms(finished_at)) FILTER (WHERE n_in IS DISTINCT FROM n_out) AS open_since_ms
    FROM counted GROUP BY sub_topology, operator, kind
"""
COUNTED = ("batches", "updates_in", "updates_out", "lowest", "open_batches", "open_since_ms")
ACCOUNT = ("sub_topology", "operator", "kind", *COUNTED)
"""The columns of ACCOUNTS."""


def later(tables: Tables, topology: str, *, at_ms: int) -> dict[str, int]:
    """Returns, by sub-topology, the first batch finished after *at_ms* (epoch ms); those without one are left out."""
    after = f"finished_at > make_timestamptz({at_ms * 1000})"
    first = "SELECT sub_topology, min(batch_id) AS batch_id FROM batches WHERE topology = $1"
    rows = tables.ask(f"{first} AND {after} GROUP BY sub_topology", [topology]).objects
    return {row["sub_topology"]: row["batch_id"] for row in rows}


def accounts(tables: Tables, topology: Topology, *, at_ms: int, since_ms: int) -> list[Row]:
    """Returns for each operator how many updates came in and went out, with the columns ACCOUNT.

    The batches between *since_ms* and *at_ms* (epoch ms) count, as `known_batches` has them. `lowest` is the lowest of
    all counts. `open_batches` is the number of batches whose updates in and out differ, and `open_since_ms` when the
    first of these finished, epoch ms (null: there is none, or it has not finished).
    """
    batches = known_batches(tables, topology.name, at_ms=at_ms, since_ms=since_ms)
    query = ACCOUNTS.format(known=batches.sql, outcomes=batches.outcomes(topology))
    return tables.ask(query, [topology.name, at_ms]).objects


def facts(
    tables: Tables, topology: Topology, specs: Iterable[SlaSpec], drivers: Mapping[str, HeartbeatFacts], *, at_ms: int
) -> list[Fact]:
    """Returns the measurements by which SLAs are judged, one for each `what`, subject, `over_ms` and bucket.

    What no SLA needs is not read. A source counts as idle if its newest batch found it idle and its driver works.

    Args:
        tables: the tables of the warehouse.
        topology: the topology that promises the SLAs.
        specs: the SLAs.
        drivers: the facts about the driver of each stream, by the name of the sub-topology.
        at_ms: the instant of the check, epoch ms.
    """
    specs = list(specs)
    counts_outcomes = [spec for spec in specs if any(count.rows == OUTCOMES for count in spec.measure.counts)]
    since_ms = at_ms - max([DAY_MS, *(spec.over_ms for spec in counts_outcomes)])
    batches = known_batches(tables, topology.name, at_ms=at_ms, since_ms=since_ms)
    is_start_needed = any(Need.START in spec.measure.needs for spec in specs)
    begun_ms = oldest_ms(tables_of_batches(tables, topology.name)) if is_start_needed else None
    working = (
        [name for name, driver in drivers.items() if driver.works] if any(map(_asks_for_idle_sources, specs)) else []
    )
    joined = f"JOIN finished AS f USING (sub_topology, batch_id) {BEFORE_LATER}"
    finished = f"SELECT t.*, f.finished_at AS batch_finished_at FROM ({batches.outcomes(topology)}) AS t {joined}"
    selects = list(measurements(specs, at_ms, begun_ms=begun_ms, working=working))
    # A UNION needs at least one SELECT.
    with_tables = f"{batches.sql}, {OUTCOMES} AS ({finished})" if counts_outcomes else batches.sql
    measured = f"WITH {with_tables} {' UNION ALL '.join(selects)}" if selects else None
    rows = [] if measured is None else tables.ask(measured, [topology.name, at_ms]).objects
    return [*facts_in(rows), *_catching_up(specs, drivers)]


def newest_of_sinks(tables: Tables, topology: Topology, names: Collection[str], *, at_ms: int) -> list[Fact]:
    """Returns the newest record time of each sink that writes one of the tables *names*.

    Records count that had reached the table at *at_ms*, epoch ms.
    """
    tables_of = {o.name: o.result_table for o in topology.operators.values() if o.result_table}
    sinks = {name: table for name, table in tables_of.items() if table in names}
    if not sinks:
        return []
    # In a table with current rows, newer rows have replaced those of the instant. `operator_batches` remembers them.
    batches = known_batches(tables, topology.name, at_ms=at_ms, since_ms=at_ms - REACHED_WITHIN_MS)
    newest = f"SELECT operator, max(newest_ms) AS newest_ms FROM ({batches.outcomes(topology)}) AS t {BEFORE_LATER}"
    rows = tables.ask(f"WITH {batches.sql} {newest} GROUP BY operator", [topology.name, at_ms]).objects
    return [newest_fact(sinks[row["operator"]], row["newest_ms"]) for row in rows if row["operator"] in sinks]


def newest_fact(table: str, newest_ms: int | None) -> Fact:
    """Returns the fact that *newest_ms* (epoch ms) is the newest record time in *table*."""
    return Fact(what=FactKind.NEWEST, subject=table, at_ms=newest_ms)


def measurements(
    specs: list[SlaSpec], at_ms: int, *, begun_ms: int | None = None, working: Collection[str] = ()
) -> Iterator[str]:
    """Yields a SELECT for each measurement that *specs* need.

    Args:
        specs: the SLAs.
        at_ms: the instant of the check, epoch ms.
        begun_ms: when the oldest batch of all finished, epoch ms; None if that is not known or not needed.
        working: the streams whose drivers work, so that their sources can count as idle.
    """
    needs = {need for spec in specs for need in spec.measure.needs}
    if any(map(_asks_for_idle_sources, specs)):
        yield from _watermarks(working)
    if Need.CLOCKS in needs:
        yield _clocks(at_ms)
    if Need.START in needs:
        yield _first_start_select(begun_ms)
    yield from _starting(specs, at_ms)
    if Need.COMPLETIONS in needs:
        yield _completions(specs, at_ms)
    # An objective is counted by `objectives`. SLAs that count the same over the same time have one query.
    counted = {
        (count, over_ms)
        for spec in specs
        if not spec.compliance
        for count in spec.measure.counts
        for over_ms in spec.counted_ms(at_ms)
    }
    for count, over_ms in sorted(counted, key=lambda counted_over: (counted_over[0].what, counted_over[1])):
        yield _counted(count, Interval(at_ms - over_ms, at_ms))


def _asks_for_idle_sources(spec: SlaSpec) -> bool:
    # The watermark of a source tells whether it is idle.
    return spec.ignore_when_idle or Need.WATERMARKS in spec.measure.needs


def _watermarks(working: Iterable[str]) -> Iterator[str]:
    """Yields a SELECT of the watermarks of sources, with `idle`, and one of the watermarks of sub-topologies.

    A source counts as idle only if its stream is among those *working*: otherwise nobody looks for its records.
    """
    # Rows without partition are about a whole source, and those without source about a sub-topology.
    of_all = f"{BEFORE_LATER} AND t.topology = $1 AND t.partition IS NULL"
    combined = f"FROM partition_batches AS t {of_all}"
    works = " OR ".join(is_text("sub_topology", name) for name in working) or "false"
    idle = f"arg_max(t.activity = '{Activity.IDLE}', t.batch_id) AND bool_or({works})"
    at_ms = "max(epoch_ms(t.watermark))"
    of_source = _row(FactKind.SOURCE, "t.source", at_ms=at_ms, idle=idle)
    yield f"{of_source} {combined} AND t.source IS NOT NULL GROUP BY t.source"
    of_sub = _row(FactKind.SUB_TOPOLOGY, "sub_topology", at_ms=at_ms)
    yield f"{of_sub} {combined} AND t.source IS NULL GROUP BY sub_topology"


def _clocks(at_ms: int) -> str:
    """Returns a SELECT of how far the clock of each host may differ from the clock of the brokers, ms.

    This is the largest difference that drivers have measured in the day before *at_ms* (epoch ms).
    """
    wrong_ms = _row(FactKind.CLOCK, "host", n="max(abs(offset_ms) + error_ms)")
    # Intervals exclude their end.
    day = Interval(at_ms - DAY_MS, at_ms + 1)
    # A measured offset is written with the next heartbeat.
    beats = f"""
        SELECT unnest(clock_offsets, recursive := true) FROM heartbeats
        WHERE topology = $1 AND beat_at >= '{iso(day.start_ms)}'
    """
    # Offsets of hosts of tasks are left out: they are against the driver's clock, which may be wrong itself.
    lately = f"{day.holds('estimated_at')} AND reference = '{BROKERS}'"
    return f"{wrong_ms} FROM ({beats}) WHERE {lately} GROUP BY host"


def _catching_up(specs: Iterable[SlaSpec], drivers: Mapping[str, HeartbeatFacts]) -> Iterator[Fact]:
    """Yields a fact for each stream that catches up, if one of *specs* treats that time specially."""
    if all(spec.while_catching_up is WhileCatchingUp.COUNT for spec in specs):
        return
    for name, driver in drivers.items():
        if driver.liveness is Liveness.CATCHING_UP:
            yield Fact(what=FactKind.CATCHING_UP, subject=name)


def _starting(specs: Iterable[SlaSpec], at_ms: int) -> Iterator[str]:
    """Yields a SELECT of the sub-topologies that are starting, if one of *specs* ignores idle sources.

    That is so if some driver of the topology started in the last HANGS_AFTER_MS after one that ended well. A
    sub-topology is starting then if its own driver started after one that ended well and has finished no batch yet, or
    if its own driver has ended well and was not replaced yet.
    """
    if not any(spec.ignore_when_idle for spec in specs):
        return
    day = Interval(at_ms - DAY_MS, at_ms + 1).holds("beat_at")
    ended = ", ".join(f"'{word}'" for word in sorted(ENDED_WELL))
    drivers = f"""
        SELECT sub_topology, epoch, min(epoch_ms(beat_at)) AS began_ms, arg_max(state, beat_at) AS state
        FROM heartbeats WHERE topology = $1 AND {day} GROUP BY sub_topology, epoch
    """
    newest = f"""
        SELECT *, lag(state) OVER of_stream AS before FROM ({drivers})
        WINDOW of_stream AS (PARTITION BY sub_topology ORDER BY epoch)
        QUALIFY lead(epoch) OVER of_stream IS NULL
    """
    worked = (
        f"sub_topology IN (SELECT sub_topology FROM finished WHERE epoch_ms(finished_at) BETWEEN began_ms AND {at_ms})"
    )
    begins = f"(state <> '{StreamState.FAILED}' AND coalesce(before IN ({ended}), true))"
    of_topology = f"SELECT *, max(began_ms) FILTER (WHERE {begins}) OVER () AS start_ms FROM ({newest})"
    rests = f"(state IN ({ended}) OR {begins} AND NOT {worked})"
    starting = _row(FactKind.STARTING, "sub_topology")
    yield f"{starting} FROM ({of_topology}) WHERE start_ms >= {at_ms - HANGS_AFTER_MS} AND {rests}"


def _completions(specs: Iterable[SlaSpec], at_ms: int) -> str:
    """Returns a SELECT of complete intervals by operator, as known at *at_ms* (epoch ms).

    These are the newest interval, and those completed within the longest `over` of the SLAs that need them. If a late
    record comes before the first interval of a table, earlier intervals are added after the ones that follow them: such
    intervals have no deadline, and are left out.
    """
    lengths_ms = [spec.over_ms for spec in specs if Need.COMPLETIONS in spec.measure.needs]
    since_ms = at_ms - max(lengths_ms)
    ended = _row(FactKind.COMPLETE, "operator", at_ms="epoch_ms(interval_end)", n="epoch_ms(decided_at)")
    newest = "interval_end = max(interval_end) OVER (PARTITION BY operator)"
    after = "PARTITION BY operator ORDER BY interval_end ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING"
    in_order = f"coalesce(decided_at <= min(decided_at) OVER ({after}), true)"
    first = f"topology = $1 AND reopened_at IS NULL AND epoch_ms(decided_at) <= {at_ms}"
    lately = f"epoch_ms(decided_at) > {since_ms} AND {in_order}"
    return f"{ended} FROM completeness WHERE {first} QUALIFY {newest} OR ({lately})"


def _first_start_select(begun_ms: int | None) -> str:
    """Returns a SELECT of when the first driver of the topology started, as far back as rows are kept.

    If no driver ever started, it is the first stored check, or else this check at $2. *begun_ms* is as in
    `measurements`.
    """
    started = "SELECT min(coalesce(step_began_at, beat_at)) AS begun_at FROM heartbeats WHERE topology = $1"
    oldest = "" if begun_ms is None else f" UNION ALL SELECT make_timestamptz({begun_ms * 1000})"
    finished = f"SELECT min(finished_at) FROM finished{oldest}"
    of_topology = "topology = $1 AND checked_at <= make_timestamptz($2 * 1000)"
    checked = f"SELECT epoch_ms(min(checked_at)) FROM sla_results WHERE {of_topology}"
    at_ms = _row(FactKind.BEGUN, "$1", at_ms=f"coalesce(epoch_ms(min(begun_at)), ({checked}), $2)")
    return f"{at_ms} FROM ({started} UNION ALL {finished})"


def _counted(count: Count, over: Interval) -> str:
    """Returns a SELECT of what a measure counts in the interval *over*, by subject and bucket."""
    ends = {"start": f"'{iso(over.start_ms)}'", "end": f"'{iso(over.end_ms)}'"}
    rows = count.rows.format(**ends, start_ms=over.start_ms, end_ms=over.end_ms)
    within = "" if count.at is None else f" WHERE {over.holds(count.at)}"
    grouped, values = count.subject, {"n": count.n}
    if count.bucket is not None:
        grouped, values = f"{count.subject}, {count.bucket}", {"bucket": count.bucket, "n": count.n}
    return f"{_row(count.what, count.subject, over, **values)} FROM {rows}{within} GROUP BY {grouped}"


def _row(what: str, subject: str, over: Interval | None = None, **values: str) -> str:
    """Returns the beginning of a SELECT with the columns SHAPE; those without a value are null."""
    expressions = {"what": f"'{what}'", "subject": subject, **values}
    expressions |= {"over_ms": str(over.length_ms)} if over else {}
    columns = (f"CAST({expressions.get(name, 'NULL')} AS {kind}) AS {name}" for name, kind in SHAPE.items())
    return "SELECT " + ", ".join(columns)
