"""Folds checks of an SLA into incidents: opened, escalated, resolved.

An incident opens after the SLA was broken for a while and is resolved after it has held for a while. The state of an
SLA is a fold over its checks in the order of their instants; nothing else is remembered. A check that measured nothing
changes nothing: it is no sign that all is well. A missed check changes nothing either. What happens next, to an
incident as to an alert, is decided by one state machine, `next_changes`.

Instants are epoch ms, lengths ms.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from tidemark.errors import InvalidArgument
from tidemark.semantics.sla import Verdict


class Change(StrEnum):
    """An event in the life of an incident."""

    OPENED = "opened"
    ESCALATED = "escalated"
    """The verdict of its SLA became worse than it was when the incident opened; at most once."""
    ACKNOWLEDGED = "acknowledged"
    """A person took the incident over."""
    RESOLVED = "resolved"


class Decision(StrEnum):
    """A decision of a person about alerts."""

    ACKNOWLEDGE = "acknowledge"
    """The person takes an incident over."""
    SILENCE = "silence"
    """No channel gets alerts for a while."""
    SNOOZE = "snooze"
    """The same for an open incident; channels get it again afterwards."""
    UNSILENCE = "unsilence"
    """Ends a silence or a snooze."""


class DecisionSubject(StrEnum):
    """Kinds of subjects of decisions."""

    INCIDENT = "incident"
    SLA = "sla"
    TOPOLOGY = "topology"
    """All alerts of the topology, also about missed checks; or a repair of all of its streams."""
    SUB_TOPOLOGY = "sub_topology"
    """A repair of one stream."""


CHECKS = "checks_are_made"
"""Stands in place of an SLA's name for the promise that SLAs are checked at all."""
_RANKS = {Verdict.WARN: 1, Verdict.NEVER_LOADED: 2, Verdict.AHEAD_OF_CLOCK: 2, Verdict.ERROR: 2}
BROKEN = frozenset(_RANKS)
"""Verdicts of an SLA that is broken."""


def worst_first(verdict: Verdict) -> int:
    """Returns a sort key that is smaller for a worse *verdict*.

    >>> print(*sorted([Verdict.PASS, Verdict.ERROR, Verdict.WARN], key=worst_first))
    error warn pass
    """
    return -_RANKS.get(verdict, 0)


@dataclass(frozen=True, kw_only=True)
class Damping:
    """Delays of opening and of resolving an incident.

    An incident opens after its SLA was broken for `open_after_ms`, and is resolved after the SLA was kept for
    `resolve_after_ms`.

    Raises:
        InvalidArgument: one of the two is negative.
    """

    open_after_ms: int = 0
    resolve_after_ms: int = 0

    def __post_init__(self) -> None:
        if min(self.open_after_ms, self.resolve_after_ms) < 0:
            msg = f"lengths must be 0 ms or more, got {self.open_after_ms} and {self.resolve_after_ms}"
            raise InvalidArgument(msg)


@dataclass(frozen=True, kw_only=True)
class SlaState:
    """The state of an SLA after its checks.

    Attributes:
        opened_at_ms: when its incident opened; None while no incident is open.
        worst: the worst verdict of that incident.
        broken_since_ms: when it broke, according to the first of consecutive checks that found it broken.
        crossed_ms: when it crossed its limit, if that is known: then `broken_since_ms` is this instant. Otherwise
            None, and `broken_since_ms` is the check that first found it broken.
        held_since_ms: when the SLA was found kept for the first time since then; None if the newest check found it
            broken.
    """

    opened_at_ms: int | None = None
    worst: Verdict | None = None
    broken_since_ms: int | None = None
    crossed_ms: int | None = None
    held_since_ms: int | None = None


def next_changes(
    before: Collection[Change], *, has_ended: bool, is_worse: bool = False, is_acknowledged: bool = False
) -> Iterator[Change]:
    """Yields what happens now to an incident, or to an alert, in order. Nothing happens twice to the same one.

    Args:
        before: what has happened to it so far.
        has_ended: none of its SLAs is broken any more.
        is_worse: its verdict is worse than it was when it opened.
        is_acknowledged: a person has taken it over.
    """
    if Change.RESOLVED in before:
        return
    if Change.OPENED not in before:
        yield Change.OPENED
    if is_worse and Change.ESCALATED not in before:
        yield Change.ESCALATED
    if is_acknowledged and Change.ACKNOWLEDGED not in before:
        yield Change.ACKNOWLEDGED
    if has_ended:
        yield Change.RESOLVED


def interrupted(standing: SlaState) -> SlaState:
    """Returns the state of an SLA after a time without judgement."""
    if standing.opened_at_ms is None:
        return SlaState()
    # Neither a breach nor a recovery is assumed to have lasted through that time.
    return replace(standing, held_since_ms=None)


def follow(
    standing: SlaState, *, at_ms: int, verdict: Verdict, damping: Damping, crossed_ms: int | None = None
) -> tuple[SlaState, Change | None]:
    """Returns the state of an SLA after a check, and its event.

    Args:
        standing: the state before.
        at_ms: instant of the check, later than those of the checks before.
        verdict: verdict of the check.
        damping: delays of opening and resolving.
        crossed_ms: when a broken SLA crossed its limit, not after *at_ms*; None if that is not known.
    """
    if verdict is Verdict.UNKNOWN:
        return standing, None
    if verdict in BROKEN:
        return _broken(standing, at_ms, verdict, damping, crossed_ms)
    # A check that passes forgets a breach that has not opened an incident yet.
    if standing.opened_at_ms is None:
        return SlaState(), None
    since_ms = at_ms if standing.held_since_ms is None else standing.held_since_ms
    if at_ms - since_ms < damping.resolve_after_ms:
        return replace(standing, held_since_ms=since_ms), None
    (change,) = next_changes({Change.OPENED}, has_ended=True)
    return SlaState(), change


def _broken(
    standing: SlaState, at_ms: int, verdict: Verdict, damping: Damping, crossed_ms: int | None
) -> tuple[SlaState, Change | None]:
    now = replace(standing, held_since_ms=None)
    if now.broken_since_ms is None:
        now = replace(now, broken_since_ms=at_ms if crossed_ms is None else crossed_ms, crossed_ms=crossed_ms)
    since_ms = now.broken_since_ms
    assert since_ms is not None
    if now.opened_at_ms is None and at_ms - since_ms < damping.open_after_ms:
        return now, None
    before = set() if now.opened_at_ms is None else {Change.OPENED}
    is_worse = now.worst is not None and _RANKS[verdict] > _RANKS[now.worst]
    change = next(next_changes(before, has_ended=False, is_worse=is_worse), None)
    if change is None:
        return now, None
    opened_ms = at_ms if now.opened_at_ms is None else now.opened_at_ms
    return replace(now, opened_at_ms=opened_ms, worst=verdict), change
