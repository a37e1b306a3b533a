"""The facts by which SLAs are judged, and their kinds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class FactKind(StrEnum):
    """The kinds of facts about a subject that no measure counts."""

    NEWEST = "newest"
    """For a table: at_ms, its newest record time."""
    NEWEST_MERGED = "newest_merged"
    """For a table with current rows: at_ms, the newest record time that its files show."""
    SOURCE = "source"
    """For a source: at_ms, its watermark; idle, true if it is idle."""
    SUB_TOPOLOGY = "sub_topology"
    """For a sub-topology: at_ms, its watermark."""
    LATENCY_MERGED = "latency_merged"
    """For a sink with current rows: n, the rows whose latency until the table's files is in `bucket`."""
    OBJECTIVE = "objective"
    """For an operator with an objective: n, the records whose end-to-end latency is in `bucket`.

    The interval begins with a whole minute.
    """
    OVER_LIMIT = "over_limit"
    """For an observed query of a job: n, its records; slow, those whose end-to-end latency was over limit_ms."""
    CLOCK = "clock"
    """For a host: n, by how much its clock may be wrong, ms."""
    BEGUN = "begun"
    """For a topology: at_ms, the start of its first driver, or else of its first check.

    That start may be later than the instant of the check.
    """
    CATCHING_UP = "catching_up"
    """For a sub-topology that catches up; without a value."""
    STARTING = "starting"
    """For a sub-topology whose driver is starting, or about to be started; without a value.

    The driver before did not fail, and no batch has finished since.
    """
    COMPLETE = "complete"
    """For an operator: at_ms, the end of a complete interval; n, when it was complete, epoch ms."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """A measurement about a subject; what its fields mean depends on the kind.

    Attributes:
        what: a FactKind, or the name of what a measure counts (`model.measures.registry.Count`).
        subject: the operator, table, host or stream that the fact is about.
        over_ms: the length of the interval before the check that was measured, None for a fact about one instant.
        bucket: the bucket of a latency or a length of work; 0 for other kinds.
        n: a number; 0 for kinds without one.
        at_ms: an instant, epoch ms.
        idle: True if a source is idle.
        limit_ms: the limit over which records are slow.
        slow: the number of records over limit_ms.
    """

    what: str
    subject: str
    over_ms: int | None = None
    bucket: int = 0
    n: int = 0
    at_ms: int | None = None
    idle: bool | None = None
    limit_ms: int | None = None
    slow: int = 0


def facts_in(rows: Iterable[Mapping[str, Any]]) -> list[Fact]:
    """Returns the facts in *rows*, whose columns are the fields of a fact; null where a kind has no such value."""
    found = []
    for row in rows:
        values = {name: value for name, value in row.items() if value is not None}
        found.append(Fact(**values))
    return found
