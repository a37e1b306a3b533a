"""Estimates the ages of windows with another bound or trigger, or with an owner that takes as long as it usually does.

It uses the parts of their ages by the account of time: the changed part is shorter or longer, and all other parts take
as long as they did. Lengths are whole ms.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from tidemark.account.owners import OWNERS
from tidemark.account.owners.bound import BOUND
from tidemark.account.owners.operator import OPERATOR
from tidemark.account.owners.trigger import TRIGGER
from tidemark.errors import InvalidArgument
from tidemark.facts.answers import Row, Tables
from tidemark.model.settings.intervals import iso
from tidemark.model.topology import Topology
from tidemark.reports.what_if.estimates import WorkChange
from tidemark.reports.what_if.facts import spread

AGES = """
    SELECT window_start, window_end, sum(ms)::BIGINT AS age_ms,
           coalesce(sum(ms) FILTER (is_changed), 0)::BIGINT AS part_ms,
           sum(usual_ms) FILTER (is_changed)::BIGINT AS usual_ms
    FROM (
        SELECT *, owner = $4 AND ($5 IS NULL OR detail = $5) AS is_changed FROM window_parts
        WHERE topology = $1 AND coalesce(window_end >= make_timestamptz($2 * 1000), true)
              AND coalesce(window_end < make_timestamptz($3 * 1000), true)
    )
    GROUP BY ALL ORDER BY window_end, window_start
"""
SETTINGS = (BOUND, TRIGGER)
"""Owners whose length a setting of the topology is."""


@dataclass(frozen=True, kw_only=True)
class PartChange:
    """The bound of every source, or the trigger, is *length_ms*; another *owner* of time takes as long as usual.

    `detail` None: whatever the owner's detail is. `length_ms` None: as long as usual.
    """

    owner: str
    detail: str | None = None
    length_ms: int | None = None


def as_usual(cause: str) -> PartChange:
    """Returns that *cause*, OWNER or OWNER:DETAIL, takes as long as it usually does; InvalidArgument: no such owner."""
    owner, _, detail = cause.partition(":")
    if owner not in OWNERS:
        msg = f"there is no owner of time {owner!r}; known: {', '.join(OWNERS)}"
        raise InvalidArgument(msg)
    return PartChange(owner=owner, detail=detail or None)


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
        InvalidArgument: no report has the parts of the age of such a window, or what is usual of the one to be changed.
    """
    whose = change if isinstance(change, PartChange) else PartChange(owner=OPERATOR, detail=change.operator)
    rows = tables.ask(AGES, [topology.name, start_ms, end_ms, whose.owner, whose.detail]).objects
    if not rows:
        msg = (
            f"what-if compares closed streaming windows, but window_parts has none of {topology.name}; "
            f"run the DAG tidemark_{topology.name}_reports, or jobs/critical_path.py"
        )
        raise InvalidArgument(msg)
    if whose is change and whose.length_ms is None:
        _refuse_unknown(whose, topology, rows)
    then_ms = [row["age_ms"] - row["part_ms"] + _then_ms(change, row, topology) for row in rows]
    return {
        "topology": topology.name,
        **asdict(change),
        "from": None if start_ms is None else iso(start_ms),
        "to": None if end_ms is None else iso(end_ms),
        "compared": len(rows),
        "before": spread([row["age_ms"] for row in rows]),
        "after": spread(then_ms),
        "windows": [row | {"then_age_ms": then} for row, then in zip(rows, then_ms, strict=True)],
    }


def _refuse_unknown(whose: PartChange, topology: Topology, rows: list[Row]) -> None:
    named = whose.owner if whose.detail is None else f"{whose.owner}:{whose.detail}"
    touched = [row for row in rows if row["part_ms"]]
    if not touched:
        msg = f"{named} has no time in these windows; `tidemark path {topology.name}` lists whose their age was"
        raise InvalidArgument(msg)
    if all(row["usual_ms"] is None for row in touched):
        msg = f"what is usual of {named} is not known: reports have seen fewer than 20 windows that kept their SLAs"
        raise InvalidArgument(msg)


def _then_ms(change: PartChange | WorkChange, row: Row, topology: Topology) -> int:
    """Returns the ms that the changed part of a window would have taken; *row* is one of AGES."""
    part_ms: int = row["part_ms"]
    if isinstance(change, WorkChange):
        return part_ms - change.saved_ms(part_ms)
    if change.length_ms is None:
        usual_ms: int | None = row["usual_ms"]
        return part_ms if usual_ms is None else min(part_ms, usual_ms)
    return change.length_ms if change.owner == BOUND else round(part_ms * change.length_ms / topology.trigger_ms)
