"""Estimates the ages of windows with another bound or trigger.

It uses the parts of their ages: a window waits that much shorter or longer for the changed part, and all other parts
take as long as they did.
Lengths are whole ms.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.errors import InvalidArgument
from tidemark.facts.answers import Row, Tables
from tidemark.model.settings.intervals import iso
from tidemark.model.topology import Topology
from tidemark.reports.what_if.facts import spread
from tidemark.semantics.blame import AgeCause

AGES = """
    SELECT parts.window_start, parts.window_end, any_value(parts.age_ms) AS age_ms,
           coalesce(sum(parts.ms) FILTER (parts.kind = $4), 0)::BIGINT AS part_ms
    FROM window_parts AS parts
    JOIN critical_paths AS paths
        ON paths.topology = parts.topology AND paths.leaf = parts.subject
        AND paths.window_start = parts.window_start AND paths.window_end = parts.window_end
    WHERE parts.topology = $1 AND coalesce(parts.window_end >= make_timestamptz($2 * 1000), true)
          AND coalesce(parts.window_end < make_timestamptz($3 * 1000), true)
    GROUP BY ALL ORDER BY parts.window_end, parts.window_start
"""


@dataclass(frozen=True, kw_only=True)
class PartChange:
    """A bound of every source, or a trigger, of *length_ms*."""

    cause: AgeCause
    length_ms: int

    def then_ms(self, part_ms: int, topology: Topology) -> int:
        """Returns the ms that a part of *part_ms* would have taken."""
        if self.cause is AgeCause.BOUND:
            return self.length_ms
        return round(part_ms * self.length_ms / topology.trigger_ms)


def what_if_setting(
    tables: Tables, topology: Topology, setting: PartChange, *, start_ms: int | None = None, end_ms: int | None = None
) -> Row:
    """Compares the closed windows of *topology* with and without *setting*.

    They end in [*start_ms*, *end_ms*), epoch ms; None: no limit.

    Raises:
        InvalidArgument: no report has the parts of the age of such a window.
    """
    rows = tables.ask(AGES, [topology.name, start_ms, end_ms, setting.cause.value]).objects
    if not rows:
        msg = (
            f"what-if compares closed streaming windows, but window_parts has none of {topology.name}; "
            f"run the DAG tidemark_{topology.name}_reports, or jobs/critical_path.py"
        )
        raise InvalidArgument(msg)
    then_ms = [row["age_ms"] - row["part_ms"] + setting.then_ms(row["part_ms"], topology) for row in rows]
    return {
        "topology": topology.name,
        "setting": setting.cause.value,
        "length_ms": setting.length_ms,
        "from": None if start_ms is None else iso(start_ms),
        "to": None if end_ms is None else iso(end_ms),
        "compared": len(rows),
        "before": spread([row["age_ms"] for row in rows]),
        "after": spread(then_ms),
        "windows": [row | {"then_age_ms": then} for row, then in zip(rows, then_ms, strict=True)],
    }
