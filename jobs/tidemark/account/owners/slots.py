"""A batch waits for Spark's task slots, which another stream of its process holds."""

from __future__ import annotations

from tidemark.account.owners.registry import Owner, register
from tidemark.semantics.segments import SegmentOwner

SLOTS = register(
    Owner(
        name=SegmentOwner.SLOTS.value,
        detail="the stream that held them",
        says="Spark's task slots were held by {detail} for {amount}",
        proof="the stream's segments, with the stream that held the slots",
        remedy='give the drivers more cores, or the stream a driver of its own (`driver = "own"`)',
    )
)
