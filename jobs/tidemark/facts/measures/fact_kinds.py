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
    """For a table with current rows.

    at_ms is the newest record time that its files show.
    """
    SOURCE = "source"
    """For a source: at_ms, its watermark; idle, true if it is idle."""
    SUB_TOPOLOGY = "sub_topology"
    """For a sub-topology: at_ms, its watermark."""
    LATENCY_MERGED = "latency_merged"
    """For a sink with current rows and a bucket.

    n is the number of rows with that end-to-end latency to the files of its table.
    """
    OBJECTIVE = "objective"
    """For an operator with an objective and a bucket: n records with that end-to-end latency.

    Its interval begins with a whole minute.
    """
    CLOCK = "clock"
    """For a host: n, the possible error of its clock in ms."""
    BEGUN = "begun"
    """For a topology: at_ms, the start of its first driver; without one its first check.

    It may be later than the check's instant.
    """
    CATCHING_UP = "catching_up"
    """For a sub-topology that catches up; it has no value."""
    STARTING = "starting"
    """For a sub-topology whose driver has begun, or will.

    It has no value. The driver did not fail before, and has finished no batch since the last start of a driver.
    """
    COMPLETE = "complete"
    """For an operator: at_ms, end of a complete interval; n, since when."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """A measurement about a subject; what its fields mean depends on the kind.

    Attributes:
        what: a FactKind, or the name of what a measure counts (`model.measures.registry.Count`).
        subject: what it is about.
        over_ms: the length of the interval before the check that it covers; None: it covers none.
        bucket: of latencies or work; 0 for other kinds.
        n: a number; 0 for kinds without one.
        at_ms: an instant, epoch ms.
        idle: True if a source is idle.
    """

    what: str
    subject: str
    over_ms: int | None = None
    bucket: int = 0
    n: int = 0
    at_ms: int | None = None
    idle: bool | None = None


def facts_in(rows: Iterable[Mapping[str, Any]]) -> list[Fact]:
    """Returns the facts in *rows*, whose columns are the fields of a fact; null where a kind has no such value."""
    found = []
    for row in rows:
        values = {name: value for name, value in row.items() if value is not None}
        found.append(Fact(**values))
    return found
