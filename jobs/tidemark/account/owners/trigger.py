"""A stream's wait for its next batch, while nothing was due."""

from __future__ import annotations

from tidemark.account.owners.registry import Owner, register
from tidemark.semantics.segments import SegmentOwner

TRIGGER = register(
    Owner(
        name=SegmentOwner.TRIGGER.value,
        detail="nothing",
        says="the wait for the trigger of {stream} took {amount}",
        proof="the stream's segments",
        remedy="shorten `trigger`; `tidemark whatif --trigger` estimates what that saves",
    )
)
