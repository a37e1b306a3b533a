"""Gathers what a control folder tells about the driver of its stream.

`tidemark.semantics.liveness` makes a word of it. Rows of the table `heartbeats` are added by `tidemark.facts`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tidemark.control.folder import Control, Heartbeat, StreamState, store_of
from tidemark.semantics.liveness import (
    REPORTED_ALIVE,
    DriverEvidence,
    EvidenceKind,
    Liveness,
    Sign,
    asks_for_lease,
    liveness,
)


def liveness_of(home: Path, at_ms: int) -> Liveness:
    """Returns the word for the stream with the control folder *home* at *at_ms*, from that folder alone.

    At *at_ms*, epoch ms, the newest heartbeat was there. Raises PermissionError for a user who may not read the folder.
    """
    control = Control(home)
    beat = control.heartbeat()
    evidence = DriverEvidence(store=store_of(home), control=None if beat is None else sign_of(beat))
    return liveness(completed(evidence, control, at_ms), at_ms)


def sign_of(beat: Heartbeat) -> Sign:
    """Returns *beat* as evidence."""
    works = beat.is_in_batch or beat.state is StreamState.STARTING
    return Sign(
        kind=EvidenceKind.CONTROL,
        reported=Liveness(beat.state),
        epoch=beat.epoch,
        at_ms=beat.at_ms,
        working_since_ms=beat.since_ms if works else None,
        waits=beat.reason is not None,
    )


def completed(evidence: DriverEvidence, control: Control, at_ms: int) -> DriverEvidence:
    """Returns *evidence* with the lease and a drain request of *control*, so far as they matter at *at_ms*.

    In an object store each of these looks is a request. Raises PermissionError for a user who may not read the folder.
    """
    newest = evidence.newest
    if newest is None or newest.reported not in REPORTED_ALIVE:
        return evidence
    is_held = control.is_held() if asks_for_lease(evidence, at_ms) else None
    is_drain_requested = is_held is not False and control.drain_requested()
    return replace(evidence, is_held=is_held, is_drain_requested=is_drain_requested)
