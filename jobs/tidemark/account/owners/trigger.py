"""The time until a stream looks for records again: its trigger or, after a silence, its pace of looking at hops."""

from __future__ import annotations

from tidemark.account.owners.registry import Owner, register
from tidemark.semantics.segments import SegmentOwner
from tidemark.semantics.timetable import LOOKS_AT_HOPS_EVERY_MS

TRIGGER = register(
    Owner(
        name=SegmentOwner.TRIGGER.value,
        detail="nothing",
        says="{stream} waited {amount} until it looked again",
        proof="the stream's segments",
        remedy=(
            "shorten `trigger` (`tidemark whatif {topology} --trigger '500 ms'` estimates what that saves); a stream "
            f"that reads hops of other drivers alone looks every {LOOKS_AT_HOPS_EVERY_MS // 1_000} s after a silence: "
            'take away `driver = "own"`, and its writer wakes it'
        ),
    )
)
