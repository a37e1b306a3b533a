"""Gathers the evidence in a control folder for whether the driver of its stream lives.

`tidemark.semantics.liveness` judges it. `tidemark.facts` adds evidence from the table `heartbeats`.
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
    """Returns the state of the stream with the control folder *home* at *at_ms* (epoch ms), from that folder alone.

    The newest heartbeat must be of that time. Raises PermissionError for a user who may not read the folder.
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
    """Returns *evidence* with the lease and a drain request in *control*, if they matter at *at_ms*.

    What does not matter is not looked up, because in an object store each look costs a request. Raises PermissionError
    for a user who may not read the folder.
    """
    newest = evidence.newest
    if newest is None or newest.reported not in REPORTED_ALIVE:
        return evidence
    is_held = control.is_held() if asks_for_lease(evidence, at_ms) else None
    is_drain_requested = is_held is not False and control.drain_requested()
    return replace(evidence, is_held=is_held, is_drain_requested=is_drain_requested)
