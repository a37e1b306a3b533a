"""Estimates the ages of windows with another bound or trigger, or with an owner that takes as long as it usually does.

Each age is a sum of parts, by the account of time. The changed part gets shorter or longer, and all other parts stay as
they were. If the owner works in a driver, later looks of that driver move, too: `runs.py` works that out. Lengths are
whole ms.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import polars as pl

from tidemark.account.owners.bound import BOUND
from tidemark.account.owners.driver import DRIVER
from tidemark.account.owners.operator import OPERATOR
from tidemark.account.owners.registry import OWNERS
from tidemark.account.owners.trigger import TRIGGER
from tidemark.account.warehouse import AccountTables
from tidemark.errors import InvalidArgument
from tidemark.facts.answers import Row, Tables
from tidemark.model.settings.intervals import iso
from tidemark.model.topology import Topology
from tidemark.reports.paths.window_ages import ledger_over
from tidemark.reports.what_if.estimates import WorkChange
from tidemark.reports.what_if.facts import spread
from tidemark.reports.what_if.runs import Runs, Stay

PARTS = """
    SELECT *, owner = $4 AND ($5 IS NULL OR detail = $5) AS is_changed FROM window_parts
    WHERE topology = $1 AND coalesce(window_end >= make_timestamptz($2 * 1000), true)
          AND coalesce(window_end < make_timestamptz($3 * 1000), true)
"""
AGES = f"""
    SELECT window_start, window_end, sum(ms)::BIGINT AS age_ms,
           coalesce(sum(ms) FILTER (is_changed), 0)::BIGINT AS part_ms,
           sum(usual_ms) FILTER (is_changed)::BIGINT AS usual_ms
    FROM ({PARTS}) GROUP BY ALL ORDER BY window_end, window_start
"""
STAYS = f"""
    SELECT window_start, window_end, stream, sum(ms)::BIGINT AS ms,
           coalesce(sum(ms) FILTER (is_changed), 0)::BIGINT AS changed_ms
    FROM ({PARTS}) WHERE stream IS NOT NULL GROUP BY ALL
"""
SETTINGS = (BOUND, TRIGGER)
"""Owners whose time is as long as a setting of the topology says."""


@dataclass(frozen=True, kw_only=True)
class PartChange:
    """A change of the time of one owner.

    Attributes:
        owner: the owner whose time changes.
        detail: which operator, partition or stream; None for all of them.
        length_ms: the new bound of every source, or the new trigger; None if the owner takes as long as usual.
    """

    owner: str
    detail: str | None = None
    length_ms: int | None = None


def as_usual(cause: str) -> PartChange:
    """Returns the change after which *cause*, OWNER or OWNER:DETAIL, takes as long as it usually does.

    Raises:
        InvalidArgument: there is no such owner.
    """
    owner, _, detail = cause.partition(":")
    if owner not in OWNERS:
        msg = f"there is no owner of time {owner!r}; known: {', '.join(OWNERS)}"
        raise InvalidArgument(msg)
    return PartChange(owner=owner, detail=detail or None)


def what_if_part(
    tables: Tables,
    of: AccountTables,
    change: PartChange | WorkChange,
    *,
    start_ms: int | None = None,
    end_ms: int | None = None,
) -> Row:
    """Compares the ages of closed windows of a topology with and without a change.

    Args:
        tables: the tables of the warehouse.
        of: the tables of the topology, for the account of time.
        change: the change. The operator of a WorkChange must be a source that reads from outside.
        start_ms: windows end then or later, record time, epoch ms; None sets no limit.
        end_ms: windows end before that; None sets no limit.

    Raises:
        InvalidArgument: no report has the parts of such windows, or says what is usual of the owner.
    """
    whose = change if isinstance(change, PartChange) else PartChange(owner=OPERATOR, detail=change.operator)
    topology, asked = of.topology, [of.topology.name, start_ms, end_ms, whose.owner, whose.detail]
    rows = tables.ask(AGES, asked).objects
    if not rows:
        msg = (
            f"what-if compares closed streaming windows, but window_parts has none of {topology.name}; "
            f"run the DAG tidemark_{topology.name}_reports, or jobs/critical_path.py"
        )
        raise InvalidArgument(msg)
    if whose is change and whose.length_ms is None:
        _refuse_unknown(whose, topology, rows)
    if whose is change and whose.length_ms is None and OWNERS[whose.owner].parent == DRIVER:
        then_ms = _then_ages_ms(of, whose, rows, tables.ask(STAYS, asked).objects)
    else:
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
    """Raises InvalidArgument if the owner has no time in the windows of *rows*, or if its usual time is not known."""
    named = whose.owner if whose.detail is None else f"{whose.owner}:{whose.detail}"
    touched = [row for row in rows if row["part_ms"]]
    if not touched:
        msg = f"{named} has no time in these windows; `tidemark path {topology.name}` lists whose their age was"
        raise InvalidArgument(msg)
    if all(row["usual_ms"] is None for row in touched):
        msg = f"what is usual of {named} is not known: reports have seen fewer than 20 windows that kept their SLAs"
        raise InvalidArgument(msg)


def _then_ms(change: PartChange | WorkChange, row: Row, topology: Topology) -> int:
    """Returns how long the changed part of a window would have taken, ms; *row* is one of AGES."""
    part_ms: int = row["part_ms"]
    if isinstance(change, WorkChange):
        return part_ms - change.saved_ms(part_ms)
    if change.length_ms is None:
        usual_ms: int | None = row["usual_ms"]
        return part_ms if usual_ms is None else min(part_ms, usual_ms)
    return change.length_ms if change.owner == BOUND else round(part_ms * change.length_ms / topology.trigger_ms)


def _then_ages_ms(of: AccountTables, whose: PartChange, rows: list[Row], stays: list[Row]) -> list[int]:
    """Returns the ages that the windows of *rows* would have had if an owner in a driver had taken as long as usual.

    *rows* are those of AGES, and *stays* those of STAYS.
    """
    is_changed = pl.col("owner") == whose.owner
    if whose.detail is not None:
        is_changed &= pl.col("detail") == whose.detail
    visible_ms = [round(row["window_end"].timestamp() * 1_000) + row["age_ms"] for row in rows]
    ends = pl.Series([row["window_end"] for row in rows])
    runs = Runs(of.topology, ledger_over(of, ends, at_ms=max(visible_ms)), is_changed)
    of_window: dict[tuple[object, object], list[Stay]] = {}
    for row in stays:
        stay = Stay(stream=row["stream"], ms=row["ms"], changed_ms=row["changed_ms"])
        of_window.setdefault((row["window_start"], row["window_end"]), []).append(stay)
    ages_ms: list[int] = []
    for row, at_ms in zip(rows, visible_ms, strict=True):
        part_ms, usual_ms = row["part_ms"], row["usual_ms"]
        excess_ms = 0 if usual_ms is None else max(0, part_ms - usual_ms)
        window = of_window.get((row["window_start"], row["window_end"]), [])
        sooner_ms = runs.sooner_ms(window, at_ms, excess_ms / part_ms) if excess_ms else 0
        ages_ms.append(row["age_ms"] - sooner_ms)
    return ages_ms
