"""Finds groups of rows, by key or partition, that were not seen for too long.

A group is also seen in updates that changed nothing. Instants are record times, epoch ms.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidemark.facts.answers import Tables
from tidemark.facts.measures.batches import BEFORE_LATER, known_batches
from tidemark.model.kinds.operator import PARTITION
from tidemark.model.settings.intervals import is_text
from tidemark.model.slas.sla_spec import SlaSpec
from tidemark.model.topology import Topology
from tidemark.semantics.sla import Sla

MOST_NAMED = 20
"""A result names at most this many groups."""
SEEN = """
    WITH {known},
    newest AS (
        SELECT sub_topology, max(t.batch_id) AS newest FROM finished AS t {before_later} GROUP BY sub_topology
    ),
    seen AS ({seen}),
    groups AS (SELECT {name} AS name, epoch_ms(max(newest_at)) AS newest_ms FROM seen GROUP BY ALL)
    SELECT count(*) AS n, count(*) FILTER (newest_ms <= $4) AS n_stale, min(newest_ms) AS oldest_ms,
           list({{'name': name, 'newest_ms': newest_ms}} ORDER BY newest_ms, name)
           FILTER (newest_ms <= $4)[:{most}] AS oldest
    FROM groups
"""
"""Counts all groups, and the stale ones: those that were not seen after $4. If $4 is null, no group is stale."""
KEYS_SEEN = """
    SELECT key, greatest(changed_at, repeated_at) AS newest_at
    FROM (
        SELECT key, max(timestamp) AS changed_at, arg_max(value IS NULL, batch_id * 4294967296 + seq) AS is_deleted
        FROM changes JOIN newest USING (sub_topology)
        WHERE topology = $1 AND batch_id <= newest AND {of_operator} AND timestamp >= make_timestamptz($3 * 1000)
        GROUP BY key
    )
    FULL JOIN (
        SELECT key, max(max_timestamp) AS repeated_at FROM suppressed JOIN newest USING (sub_topology)
        WHERE topology = $1 AND batch_id <= newest AND {of_operator} AND value_hash IS NOT NULL
              AND max_timestamp >= make_timestamptz($3 * 1000) GROUP BY key
    ) USING (key)
    WHERE NOT coalesce(is_deleted, false)
"""
PARTITIONS_SEEN = """
    SELECT partition, max(newest_timestamp) AS newest_at FROM partition_batches JOIN newest USING (sub_topology)
    WHERE topology = $1 AND batch_id <= newest AND {of_source} AND partition IS NOT NULL
          AND newest_timestamp >= make_timestamptz($3 * 1000)
    GROUP BY partition
"""


@dataclass(frozen=True, kw_only=True)
class GroupsSeen:
    """The groups by which an SLA is judged.

    Attributes:
        n: the number of groups.
        n_stale: how many were not seen for so long that the SLA is broken.
        oldest: the stalest groups, at most MOST_NAMED, as name and newest record time.
        oldest_ms: the newest record time of the stalest group; None without a group.
    """

    n: int
    n_stale: int
    oldest: tuple[tuple[str, int], ...]
    oldest_ms: int | None


def groups_seen(tables: Tables, topology: Topology, specs: Iterable[SlaSpec], *, at_ms: int) -> dict[str, GroupsSeen]:
    """Returns, by the name of each SLA with `by`, the groups by which it is judged."""
    groups: dict[str, GroupsSeen] = {}
    by_groups = [spec for spec in specs if spec.by and isinstance(spec.limits, Sla)]
    if not by_groups:
        return groups
    batches = known_batches(tables, topology.name, at_ms=at_ms, since_ms=at_ms).sql
    for spec in by_groups:
        assert isinstance(spec.limits, Sla)
        name = _name(spec, topology)
        text = SEEN.format(known=batches, before_later=BEFORE_LATER, seen=_seen(spec), name=name, most=MOST_NAMED)
        stale_ms = at_ms - round(spec.limits.least_ms)
        # After a time in which the SLA was not judged, no group is stale until it could have been seen again.
        is_new = spec.judged_since_ms(at_ms, after_ms=stale_ms) is not None
        parameters = [topology.name, at_ms, spec.remembered_since_ms(at_ms), None if is_new else stale_ms]
        (row,) = tables.ask(text, parameters).objects
        oldest = tuple((str(group["name"]), group["newest_ms"]) for group in row["oldest"] or ())
        groups[spec.name] = GroupsSeen(n=row["n"], n_stale=row["n_stale"], oldest=oldest, oldest_ms=row["oldest_ms"])
    return groups


def _seen(spec: SlaSpec) -> str:
    """Returns a SELECT of the keys or partitions that *spec* is about, with their newest record time."""
    if spec.by == (PARTITION,):
        return PARTITIONS_SEEN.format(of_source=is_text("source", spec.subject))
    return KEYS_SEEN.format(of_operator=is_text("operator", spec.subject))


def _name(spec: SlaSpec, topology: Topology) -> str:
    """Returns the SQL expression for the name of a group, as people read it."""
    columns = topology.operators[spec.subject].groups
    if len(columns) == 1:
        return PARTITION if columns == (PARTITION,) else "key"
    # The text of a key with several columns is a JSON object.
    values = [f"concat('{column}=', json_extract_string(key, '$.\"{column}\"'))" for column in spec.by]
    return f"concat_ws(', ', {', '.join(values)})"
