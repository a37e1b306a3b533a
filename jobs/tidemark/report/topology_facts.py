"""How the operators of a topology are doing, from its Delta tables alone, for people, programs and pages (ring 2).

The names of the fields are a promise: docs/reports.md has them. Lengths are ms, instants timestamps in UTC.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from tidemark.control import ALIVE, SILENT_AFTER_MS
from tidemark.report.path_facts import FINISHED_MS, Row, Tables
from tidemark.semantics.stram import LATENCY_SAMPLES
from tidemark.spec.intervals import iso
from tidemark.spec.operators import HopSource, Kind
from tidemark.spec.tables import HOP_UPDATE
from tidemark.spec.topology import Topology

RATED_OVER_S = 60
NEVER_STARTED, SILENT = "never_started", "silent"
"""What a driver is beside what it says itself: without a heartbeat, or without one for a minute."""

BEATS = """
    SELECT sub_topology, arg_max(state, "at") AS state, max("at") AS last_heartbeat_at,
           arg_max(batch_id, "at") AS last_batch_id
    FROM heartbeats WHERE topology = $1 AND "at" <= make_timestamptz($2 * 1000) GROUP BY ALL
"""
LATENCIES = """
    WITH reads AS (SELECT unnest($3::VARCHAR[]) AS operator, unnest($4::VARCHAR[]) AS upstream),
    told AS (
        SELECT *, arg_min(skew_ms, skew_error_ms) OVER (PARTITION BY window_end, host) AS offset_ms
        FROM operator_windows WHERE topology = $1 AND ewt_at <= make_timestamptz($2 * 1000)
    ), set_right AS (
        SELECT operator, window_end,
               epoch_ms(ewt_at) + if(bool_and(offset_ms IS NOT NULL) OVER (PARTITION BY window_end), offset_ms, 0)
               AS ewt_ms
        FROM told
    ), finished AS (
        SELECT operator, window_end, min(ewt_ms) AS ewt_ms FROM set_right GROUP BY ALL
    ), measured AS (
        SELECT own.operator, own.window_end, greatest(0, any_value(own.ewt_ms) - max(read.ewt_ms)) AS latency_ms
        FROM finished AS own JOIN reads USING (operator)
        JOIN finished AS read ON read.operator = reads.upstream AND read.window_end = own.window_end
        GROUP BY own.operator, own.window_end
        QUALIFY row_number() OVER (PARTITION BY own.operator ORDER BY own.window_end DESC) <= $5
    )
    SELECT operator, round(avg(latency_ms), 1) AS moving_average_ms FROM measured GROUP BY operator
"""
COUNTS = """
    WITH lately AS (SELECT make_timestamptz(($2 - 1000 * $3) * 1000) AS since_at)
    SELECT operator, sum(o.records_in) FILTER (finished_at > since_at) / $3 AS records_in_per_s,
           sum(emitted + passed + coalesce(repeated, 0)) FILTER (finished_at > since_at) / $3 AS records_out_per_s,
           arg_max(held_after, batch_id) AS held_records
    FROM outcomes AS o JOIN batches USING (topology, sub_topology, batch_id), lately
    WHERE topology = $1 AND finished_at <= make_timestamptz($2 * 1000)
    GROUP BY operator
"""
WATERMARKS = """
    SELECT sub_topology, source, arg_max(watermarks.watermark, batch_id) AS watermark
    FROM watermarks JOIN batches USING (topology, sub_topology, batch_id)
    WHERE topology = $1 AND partition IS NULL AND finished_at <= make_timestamptz($2 * 1000) GROUP BY ALL
"""
NEWEST_PATH = f"""
    WITH paths AS (
        SELECT topology, window_end, leaf, latency_ms, before_source_ms + latency_ms AS age_ms, state,
               if(state IN ('stuck', 'estimated'), epoch_ms(window_end) + before_source_ms, {FINISHED_MS}) AS known_ms
        FROM critical_paths WHERE topology = $1 AND latency_ms IS NOT NULL
    )
    SELECT p.window_end, p.leaf, p.age_ms, p.latency_ms, $2 - p.known_ms AS finished_ago_ms, p.state,
           list(operator ORDER BY step) AS critical_path
    FROM paths AS p JOIN critical_path_steps AS s USING (topology, window_end)
    WHERE p.known_ms <= $2 AND step IS NOT NULL
    GROUP BY ALL ORDER BY window_end DESC LIMIT 1
"""
RAN = """
    WITH ran AS (
        SELECT sub_topology, batch_id, operator, kind, ewt_at <= make_timestamptz($2 * 1000) AS is_known
        FROM operator_windows WHERE topology = $1
    ), newest AS (
        SELECT sub_topology, max(batch_id) FILTER (is_known) AS batch_id, bool_or(NOT is_known) AS has_more
        FROM ran GROUP BY ALL
    )
    SELECT r.sub_topology, operator, any_value(kind) AS kind, bool_or(r.batch_id = n.batch_id) AS ran,
           bool_or(is_known) AS was_known, any_value(has_more) AS has_more
    FROM ran AS r JOIN newest AS n USING (sub_topology) WHERE n.batch_id IS NOT NULL GROUP BY ALL
"""
"""Of drivers that had closed a window by then: every operator of theirs, and whether it was among those that did."""
READ_TO = """
    WITH parts AS (
        SELECT batch_id, unnest(sources, recursive := true)
        FROM batches WHERE topology = $1 AND finished_at <= make_timestamptz($2 * 1000)
    ), newest AS (
        SELECT source, partition, max(until_offset) AS read_to,
               arg_max(latest_offset - until_offset, batch_id) FILTER (latest_offset IS NOT NULL) AS unread
        FROM parts GROUP BY ALL
    )
    SELECT source, max(read_to) AS read_to, sum(unread)::BIGINT AS unread_records FROM newest GROUP BY ALL
"""


def topology_facts(tables: Tables, topology: Topology, *, at_ms: int) -> Row:
    """How *topology* was doing at *at_ms*, epoch ms of the drivers' clocks: its `sub_topologies` and `operators`.

    Rates are those of the minute before it; moving averages those of the last ten windows that were finished by then.
    What nobody has measured is null.
    """
    facts = _Facts(tables, topology, at_ms)
    return {
        "topology": topology.name,
        "at": iso(at_ms),
        "level": topology.level.value,
        "window_ms": topology.window_ms,
        **facts.newest_path(),
        "sub_topologies": [facts.driver(sub.name) for sub in topology.sub_topologies],
        "operators": facts.operators(),
    }


class _Facts:
    """The answers to the queries above, each asked once."""

    def __init__(self, tables: Tables, topology: Topology, at_ms: int) -> None:
        self._tables, self._topology, self._at_ms = tables, topology, at_ms
        edges = [(name, read) for name, names in topology.upstreams.items() for read in names]
        own, read = zip(*edges, strict=True) if edges else ((), ())
        self._beats = self._by("sub_topology", BEATS)
        self._latencies = self._by("operator", LATENCIES, list(own), list(read), LATENCY_SAMPLES)
        self._counts = self._by("operator", COUNTS, RATED_OVER_S)
        self._read_to = self._by("source", READ_TO)
        self._watermarks = {(row["sub_topology"], row["source"]): row["watermark"] for row in self._ask(WATERMARKS)}

    def newest_path(self) -> Row:
        """The newest critical path that the reports have found."""
        found = self._ask(NEWEST_PATH)
        if found:
            return found[0]
        return dict.fromkeys(("window_end", "leaf", "age_ms", "latency_ms", "finished_ago_ms", "state")) | {
            "critical_path": []
        }

    def operators(self) -> list[Row]:
        """What each operator does that was there: one that was added later is left out, one that has gone since is in.

        Of that one only the table of windows knows.
        """
        ran = {(row["sub_topology"], row["operator"]): row for row in self._ask(RAN)}
        here = [(sub.name, o.name) for sub in self._topology.sub_topologies for o in sub.operators]
        added = {place for place, row in ran.items() if not row["was_known"]}
        gone = [
            place
            for place, row in sorted(ran.items())
            if row["ran"] and row["has_more"] and place[1] not in self._topology.operators
        ]
        told = [self.operator(name, sub) for sub, name in here if (sub, name) not in added]
        return told + [self._gone(name, sub, ran[sub, name]["kind"]) for sub, name in gone]

    def _gone(self, name: str, sub_topology: str, kind: str) -> Row:
        driver, counts = self.driver(sub_topology), self._counts[name]
        return {
            "operator": name,
            "kind": kind,
            "sub_topology": sub_topology,
            "upstreams": [],
            "moving_average_ms": None,
            "records_in_per_s": counts.get("records_in_per_s") or 0.0,
            "records_out_per_s": counts.get("records_out_per_s") or 0.0,
            "watermark": driver["watermark"],
            "unread_records": None,
            "held_records": counts.get("held_records"),
            "state": driver["state"],
            "last_heartbeat_at": driver["last_heartbeat_at"],
        }

    def driver(self, sub_topology: str) -> Row:
        """Who runs *sub_topology*, whether it still does, and how far time has come there."""
        beat = self._beats[sub_topology]
        state, beat_at = beat.get("state", NEVER_STARTED), beat.get("last_heartbeat_at")
        if beat_at and state in ALIVE and self._at_ms - round(beat_at.timestamp() * 1000) > SILENT_AFTER_MS:
            state = SILENT
        return {
            "sub_topology": sub_topology,
            "state": state,
            "last_heartbeat_at": beat_at,
            "last_batch_id": beat.get("last_batch_id"),
            "watermark": self._watermarks.get((sub_topology, None)),
        }

    def operator(self, name: str, sub_topology: str) -> Row:
        """What *name* does, and what waits in front of it."""
        operator, driver, counts = self._topology.operators[name], self.driver(sub_topology), self._counts[name]
        is_source = operator.kind is Kind.SOURCE
        reads = self._topology.upstreams[name]
        return {
            "operator": name,
            "kind": operator.kind.value,
            "sub_topology": sub_topology,
            "upstreams": list(reads),
            "moving_average_ms": self._latencies[name].get("moving_average_ms") if reads else 0.0,
            "records_in_per_s": counts.get("records_in_per_s") or 0.0,
            "records_out_per_s": counts.get("records_out_per_s") or 0.0,
            "watermark": self._watermarks.get((sub_topology, name if is_source else None)),
            "unread_records": self._unread(operator) if is_source else None,
            "held_records": counts.get("held_records"),
            "state": driver["state"],
            "last_heartbeat_at": driver["last_heartbeat_at"],
        }

    def _unread(self, operator: Any) -> int | None:
        """Records that *operator*, a source, could have read and has not; of a topic, when it last asked the broker."""
        told = self._read_to[operator.name]
        if not isinstance(operator, HopSource):
            return told.get("unread_records")
        hop = f"hop_{operator.repartition}"
        text = (
            f'SELECT count(*) AS n FROM (FROM "{hop}" WHERE {HOP_UPDATE}) '
            "JOIN batches USING (topology, sub_topology, batch_id) WHERE topology = $1 AND batch_id >= $2 "
            "AND finished_at <= make_timestamptz($3 * 1000)"
        )
        rows = (
            self._tables.ask(text, [self._topology.name, told.get("read_to", 0), self._at_ms])
            if hop in self._tables.tables
            else None
        )
        return rows.objects[0]["n"] if rows else None

    def _by(self, key: str, text: str, *more: Any) -> dict[str, Row]:
        return defaultdict(dict, {row[key]: row for row in self._ask(text, *more)})

    def _ask(self, text: str, *more: Any) -> list[Row]:
        return self._tables.ask(text, [self._topology.name, self._at_ms, *more]).objects
