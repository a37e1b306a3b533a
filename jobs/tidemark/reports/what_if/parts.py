"""Estimates the ages of windows with another bound or trigger, or with a source that works less.

It uses the parts of their ages: the changed part is shorter or longer, and all other parts take as long as they did.
The work of a source is such a part, and in no path: the latency of a path begins when its source has finished.
Lengths are whole ms.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from tidemark.errors import InvalidArgument
from tidemark.facts.answers import Row, Tables
from tidemark.model.settings.intervals import iso
from tidemark.model.topology import Topology
from tidemark.reports.what_if.estimates import WorkChange
from tidemark.reports.what_if.facts import spread
from tidemark.semantics.blame import AgeCause, AgePart

AGES = """
    SELECT parts.window_start, parts.window_end, any_value(parts.age_ms) AS age_ms,
           coalesce(sum(parts.ms) FILTER (parts.operator = $4 AND parts.kind = $5), 0)::BIGINT AS part_ms
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


def what_if_part(
    tables: Tables,
    topology: Topology,
    change: PartChange | WorkChange,
    *,
    start_ms: int | None = None,
    end_ms: int | None = None,
) -> Row:
    """Compares the closed windows of *topology* with and without *change*.

    They end in [*start_ms*, *end_ms*), epoch ms; None: no limit. The operator of a WorkChange reads from outside.

    Raises:
        InvalidArgument: no report has the parts of the age of such a window.
    """
    if isinstance(change, PartChange):
        part = AgePart.of(change.cause)
        changed = {"setting": change.cause.value, "length_ms": change.length_ms}
    else:
        part = AgePart(change.operator, topology.operators[change.operator].kind)
        changed = asdict(change)
    rows = tables.ask(AGES, [topology.name, start_ms, end_ms, part.name, part.kind]).objects
    if not rows:
        msg = (
            f"what-if compares closed streaming windows, but window_parts has none of {topology.name}; "
            f"run the DAG tidemark_{topology.name}_reports, or jobs/critical_path.py"
        )
        raise InvalidArgument(msg)
    then_ms: list[int] = []
    for row in rows:
        rest_ms = row["age_ms"] - row["part_ms"]
        then_ms.append(rest_ms + _then_ms(change, row["part_ms"], topology))
    return {
        "topology": topology.name,
        **changed,
        "from": None if start_ms is None else iso(start_ms),
        "to": None if end_ms is None else iso(end_ms),
        "compared": len(rows),
        "before": spread([row["age_ms"] for row in rows]),
        "after": spread(then_ms),
        "windows": [row | {"then_age_ms": then} for row, then in zip(rows, then_ms, strict=True)],
    }


def _then_ms(change: PartChange | WorkChange, part_ms: int, topology: Topology) -> int:
    """Returns the ms that the changed part would have taken, which took *part_ms*."""
    match change:
        case WorkChange():
            return part_ms - change.saved_ms(part_ms)
        case PartChange(cause=AgeCause.BOUND):
            return change.length_ms
        case PartChange():
            return round(part_ms * change.length_ms / topology.trigger_ms)
