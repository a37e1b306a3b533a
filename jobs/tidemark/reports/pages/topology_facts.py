"""Queries the state of a topology's operators, for people, programs and pages.

The names of the fields are a promise: docs/reports.md lists them. Lengths are ms, instants are timestamps in UTC.
"""

from __future__ import annotations

from collections import defaultdict
from operator import itemgetter
from typing import Any

from tidemark.facts.answers import FINISHED, Row, Tables
from tidemark.model.settings.intervals import iso, utc
from tidemark.model.tables.catalog import HOP_UPDATE
from tidemark.semantics.critical_path import LATENCY_SAMPLES
from tidemark.why.evidence.snapshot import Scene

RATED_OVER_S = 60

LATENCIES = """
    WITH reads AS (SELECT unnest($3::VARCHAR[]) AS operator, unnest($4::VARCHAR[]) AS upstream),
    reported AS (
        SELECT *, arg_min(skew_ms, skew_error_ms) OVER (PARTITION BY window_end, host) AS offset_ms
        FROM operator_windows WHERE topology = $1 AND ewt_at <= make_timestamptz($2 * 1000)
    ), set_right AS (
        SELECT operator, window_end,
               epoch_ms(ewt_at) + if(bool_and(offset_ms IS NOT NULL) OVER (PARTITION BY window_end), offset_ms, 0)
               AS ewt_ms
        FROM reported
    ), finished AS (
        SELECT operator, window_end, min(ewt_ms) AS ewt_ms FROM set_right GROUP BY ALL
    ), measured AS (
        SELECT own.operator, own.window_end, greatest(0, any_value(own.ewt_ms) - max(read.ewt_ms)) AS latency_ms
        FROM finished AS own JOIN reads USING (operator)
        JOIN finished AS read ON read.operator = reads.upstream AND read.window_end = own.window_end
        GROUP BY own.operator, own.window_end
        QUALIFY row_number() OVER (PARTITION BY own.operator ORDER BY own.window_end DESC) <= $5
    )
    SELECT operator, (sum(latency_ms) // count(latency_ms))::BIGINT AS moving_average_ms FROM measured GROUP BY operator
"""
COUNTS = f"""
    WITH lately AS (SELECT make_timestamptz(($2 - 1000 * $3) * 1000) AS since_at)
    SELECT operator, sum(o.records_in) FILTER (batches.finished_at > since_at) / $3 AS records_in_per_s,
           sum(emitted + passed + coalesce(repeated, 0)) FILTER (batches.finished_at > since_at) / $3
           AS records_out_per_s,
           arg_max(held_after, batch_id) AS held_records
    FROM operator_batches AS o JOIN {FINISHED} USING (topology, sub_topology, batch_id), lately
    GROUP BY operator
"""
WATERMARKS = f"""
    SELECT sub_topology, source, arg_max(p.watermark, batch_id) AS watermark
    FROM partition_batches AS p JOIN {FINISHED} USING (topology, sub_topology, batch_id)
    WHERE partition IS NULL GROUP BY ALL
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
"""Selects the operators of drivers that had closed a window by $2 (epoch ms).

`ran` is true if the operator has a row of the newest batch that closed a window by then.
"""
READ_TO = f"""
    WITH newest AS (
        SELECT source, partition, max(until_offset) AS read_to,
               arg_max(latest_offset - until_offset, batch_id) FILTER (latest_offset IS NOT NULL) AS unread
        FROM partition_batches JOIN {FINISHED} USING (topology, sub_topology, batch_id)
        WHERE until_offset IS NOT NULL GROUP BY ALL
    )
    SELECT source, max(read_to) AS read_to, sum(unread)::BIGINT AS unread_records FROM newest GROUP BY ALL
"""


def topology_facts(tables: Tables, at: Scene) -> Row:
    """Returns the state of a topology at the instant of the scene *at*, which was read from the same *tables*.

    `sub_topologies` and `operators` are lists of rows. Rates are those of the minute before the instant, moving
    averages those of the last ten windows that were finished by then. Values that were not measured are null.
    """
    facts, topology = _Facts(tables, at), at.topology
    return {
        "topology": topology.name,
        "at": iso(at.at_ms),
        "level": topology.level.value,
        "window_ms": topology.window_ms,
        "sub_topologies": [facts.driver(sub.name) for sub in topology.sub_topologies],
        "operators": facts.operators(),
    }


class _Facts:
    """Asks each of the queries above once, and makes rows of their answers."""

    def __init__(self, tables: Tables, at: Scene) -> None:
        topology = at.topology
        self._scene, self._tables, self._topology, self._at_ms = at, tables, topology, at.at_ms
        edges: list[tuple[str, str]] = []
        for name, names in topology.upstreams.items():
            edges += [(name, read) for read in names]
        # SQL takes the edges as two lists of equal length.
        own, read = zip(*edges, strict=True) if edges else ((), ())
        self._latencies = self._by("operator", LATENCIES, list(own), list(read), LATENCY_SAMPLES)
        self._counts = self._by("operator", COUNTS, RATED_OVER_S)
        self._read_to = self._by("source", READ_TO)
        self._watermarks = {(row["sub_topology"], row["source"]): row["watermark"] for row in self._ask(WATERMARKS)}

    def operators(self) -> list[Row]:
        """Returns a row for each operator that existed at the instant.

        Operators that were added later are left out. Operators that were removed since are included.
        """
        added = set()
        removed = []
        # Only the table of windows has operators that were removed.
        for row in sorted(self._ask(RAN), key=itemgetter("sub_topology", "operator")):
            sub, name = row["sub_topology"], row["operator"]
            if not row["was_known"]:
                added.add((sub, name))
            # The operator ran at the instant, its driver went on since, and the file does not have it any more.
            if row["ran"] and row["has_more"] and name not in self._topology.operators:
                removed.append(self._gone(name, sub, row["kind"]))
        rows = []
        for part in self._topology.sub_topologies:
            rows += [self.operator(o.name, part.name) for o in part.operators if (part.name, o.name) not in added]
        return rows + removed

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
        """Returns the state and the watermark of the driver of *sub_topology*."""
        stream = self._scene.facts[sub_topology]
        beat, batch_id = stream.driver.beat, stream.tables.newest
        return {
            "sub_topology": sub_topology,
            "state": stream.driver.liveness.value,
            "last_heartbeat_at": utc(beat.at_ms) if beat else None,
            "last_batch_id": None if batch_id < 0 else batch_id,
            "watermark": self._watermarks.get((sub_topology, None)),
            "records_behind": stream.records_behind,
            "arrival_per_s": beat.arrival_per_s if beat else None,
            "working_per_s": beat.working_per_s if beat else None,
            "eta_at": utc(beat.eta_at_ms) if beat and beat.eta_at_ms is not None else None,
        }

    def operator(self, name: str, sub_topology: str) -> Row:
        """Returns the state of the operator *name*, and its unread records."""
        operator, driver, counts = self._topology.operators[name], self.driver(sub_topology), self._counts[name]
        is_source = operator.is_source
        reads = self._topology.upstreams[name]
        return {
            "operator": name,
            "kind": operator.kind,
            "sub_topology": sub_topology,
            "upstreams": list(reads),
            "moving_average_ms": self._latencies[name].get("moving_average_ms") if reads else 0,
            "records_in_per_s": counts.get("records_in_per_s") or 0.0,
            "records_out_per_s": counts.get("records_out_per_s") or 0.0,
            "watermark": self._watermarks.get((sub_topology, name if is_source else None)),
            "unread_records": self._unread(operator) if is_source else None,
            "held_records": counts.get("held_records"),
            "state": driver["state"],
            "last_heartbeat_at": driver["last_heartbeat_at"],
        }

    def _unread(self, operator: Any) -> int | None:
        """Returns the number of records that *operator*, a source, has not read."""
        progress = self._read_to[operator.name]
        if not operator.hop_of:
            # The number is that of the last time when the source asked the broker.
            return progress.get("unread_records")
        # The offsets of a hop are batches of its writer.
        hop = f"hop_{operator.hop_of}"
        text = (
            f'SELECT count(*) AS n FROM (FROM "{hop}" WHERE {HOP_UPDATE}) '
            f"JOIN {FINISHED} USING (topology, sub_topology, batch_id) WHERE batch_id >= $3"
        )
        return self._ask(text, progress.get("read_to", 0))[0]["n"] if hop in self._tables.tables else None

    def _by(self, key: str, text: str, *more: Any) -> dict[str, Row]:
        """Returns the answers to the query *text* by their column *key*; any other key has an empty row."""
        return defaultdict(dict, {row[key]: row for row in self._ask(text, *more)})

    def _ask(self, text: str, *more: Any) -> list[Row]:
        return self._tables.ask(text, [self._topology.name, self._at_ms, *more]).objects
