"""When checks that find an SLA broken are one incident: opened once, escalated, resolved once it has held for a while.

Who stands where is a fold over the checks in the order of their instants; nothing else is remembered. A check that
measured nothing changes nothing: it is no sign that all is well. Instants are epoch ms, lengths ms.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from tidemark.errors import InvalidArgument
from tidemark.semantics.sla import Verdict


class Change(StrEnum):
    """What happens to an incident."""

    OPENED = "opened"
    ESCALATED = "escalated"
    """It became worse than it had been; once, however often it comes and goes."""
    ACKNOWLEDGED = "acknowledged"
    """Somebody said that he looks after it."""
    RESOLVED = "resolved"


CHECKS = "checks_are_made"
"""In place of an SLA's name: somebody looks at the SLAs at all."""
_RANKS = {Verdict.WARN: 1, Verdict.NEVER_LOADED: 2, Verdict.AHEAD_OF_CLOCK: 2, Verdict.ERROR: 2}
BROKEN = frozenset(_RANKS)
"""The verdicts of an SLA that does not hold."""


@dataclass(frozen=True, kw_only=True)
class Damping:
    """How long an SLA has to be broken until an incident opens, and to hold until it is resolved.

    Raises:
        InvalidArgument: one is negative.
    """

    open_after_ms: int = 0
    resolve_after_ms: int = 0

    def __post_init__(self) -> None:
        if min(self.open_after_ms, self.resolve_after_ms) < 0:
            msg = f"lengths are 0 ms or more, got {self.open_after_ms} and {self.resolve_after_ms}"
            raise InvalidArgument(msg)


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What earlier checks have left: the open incident, None where there is none, and since when checks agree.

    `worst` is the worst verdict of the incident; of a row of checks that agree one of the last two is the first.
    """

    opened_at_ms: int | None = None
    worst: Verdict | None = None
    broken_since_ms: int | None = None
    held_since_ms: int | None = None


def interrupted(standing: Standing) -> Standing:
    """Where an SLA stands after a time in which nobody judged it: nothing is known to have lasted through that."""
    if standing.opened_at_ms is None:
        return Standing()
    return replace(standing, held_since_ms=None)


def follow(standing: Standing, *, at_ms: int, verdict: Verdict, damping: Damping) -> tuple[Standing, Change | None]:
    """Where an SLA stands after a check for *at_ms*, later than those before, and what that changes."""
    if verdict is Verdict.UNKNOWN:
        return standing, None
    if verdict in BROKEN:
        return _broken(standing, at_ms, verdict, damping)
    if standing.opened_at_ms is None:
        return Standing(), None
    since_ms = at_ms if standing.held_since_ms is None else standing.held_since_ms
    if at_ms - since_ms >= damping.resolve_after_ms:
        return Standing(), Change.RESOLVED
    return replace(standing, held_since_ms=since_ms), None


def _broken(standing: Standing, at_ms: int, verdict: Verdict, damping: Damping) -> tuple[Standing, Change | None]:
    since_ms = at_ms if standing.broken_since_ms is None else standing.broken_since_ms
    now = replace(standing, broken_since_ms=since_ms, held_since_ms=None)
    if now.opened_at_ms is None:
        if at_ms - since_ms < damping.open_after_ms:
            return now, None
        return replace(now, opened_at_ms=at_ms, worst=verdict), Change.OPENED
    if now.worst is None or _RANKS[verdict] > _RANKS[now.worst]:
        return replace(now, worst=verdict), Change.ESCALATED
    return now, None
