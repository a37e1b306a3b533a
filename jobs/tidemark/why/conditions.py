"""What condition the stream of a sub-topology is in, in one word for pages, commands and programs."""

from __future__ import annotations

from contextlib import suppress
from enum import StrEnum

from tidemark.control import ALIVE, Control, StreamState
from tidemark.why.facts import BEATS_WITHIN_MS, Beat, StreamFacts

HANGS_AFTER_MS = 300_000
"""A batch that has been running for longer counts as hanging."""


class Condition(StrEnum):
    """The condition of a stream, the worst first."""

    FAILED = "failed"
    """Its driver failed, was killed, or sends no heartbeat."""
    HANGING = "hanging"
    """Its driver lives, but sends no heartbeat, or has been working on one batch for minutes."""
    NEVER_STARTED = "never_started"
    STARTING = "starting"
    DRAINED = "drained"
    """Its driver ended because it was asked to."""
    RUNNING = "running"


def condition(facts: StreamFacts) -> Condition:
    """The condition of the stream of *facts*, at their instant."""
    beat = facts.beat
    if beat is None:
        return Condition.NEVER_STARTED
    if beat.state not in ALIVE:
        ended = {StreamState.FAILED: Condition.FAILED, StreamState.ROTATED: Condition.STARTING}
        return ended.get(beat.state, Condition.DRAINED)
    if beat.is_gone:
        return Condition.FAILED
    if facts.at_ms - beat.at_ms > BEATS_WITHIN_MS:
        return Condition.HANGING if _is_held(facts) else Condition.FAILED
    if _works_for_ms(beat) > HANGS_AFTER_MS:
        return Condition.HANGING
    return Condition.STARTING if beat.state is StreamState.STARTING else Condition.RUNNING


def _works_for_ms(beat: Beat) -> int:
    """For how long the batch of *beat* has been running; 0: none runs."""
    return 0 if beat.batch_started_at_ms is None else beat.at_ms - beat.batch_started_at_ms


def _is_held(facts: StreamFacts) -> bool:
    """Whether a driver has the lease; not known to a user who may not read the control folder."""
    with suppress(PermissionError):
        return Control(facts.control).is_held()
    return False
