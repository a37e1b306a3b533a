"""The condition of a stream in one word.

Pages, commands and programs show it.
"""

from __future__ import annotations

from enum import StrEnum

from tidemark.control.folder import ALIVE, StreamState
from tidemark.facts.heartbeat_facts import BEATS_WITHIN_MS, Beat
from tidemark.facts.stream_facts import StreamFacts
from tidemark.semantics.catching_up import HANGS_AFTER_MS


class Condition(StrEnum):
    """The condition of a stream, the worst first."""

    FAILED = "failed"
    """Its driver failed, was killed, or sends no heartbeat."""
    HANGING = "hanging"
    """Its driver lives without heartbeats, or works on one batch for minutes."""
    NEVER_STARTED = "never_started"
    STARTING = "starting"
    DRAINED = "drained"
    """Its driver ended on request."""
    CATCHING_UP = "catching_up"
    """It reads faster than records come in, and unread ones wait."""
    RUNNING = "running"


def condition(facts: StreamFacts) -> Condition:
    """Returns the condition of the stream of *facts*, at their instant."""
    beat = facts.driver.beat
    if beat is None:
        return Condition.NEVER_STARTED
    if beat.state not in ALIVE:
        ended = {StreamState.FAILED: Condition.FAILED, StreamState.ROTATED: Condition.STARTING}
        return ended.get(beat.state, Condition.DRAINED)
    if beat.is_gone:
        return Condition.FAILED
    if facts.at_ms - beat.at_ms > BEATS_WITHIN_MS:
        return Condition.HANGING if facts.driver.is_held else Condition.FAILED
    if _works_for_ms(beat) > HANGS_AFTER_MS:
        return Condition.HANGING
    if beat.state is StreamState.STARTING:
        return Condition.STARTING
    # The estimate of a driver that waits for something outside is from before.
    is_catching_up = beat.eta_at_ms is not None and beat.reason is None
    return Condition.CATCHING_UP if is_catching_up else Condition.RUNNING


def _works_for_ms(beat: Beat) -> int:
    """Returns for how long the batch of *beat* runs; 0: none."""
    return 0 if beat.batch_started_at_ms is None else beat.at_ms - beat.batch_started_at_ms
