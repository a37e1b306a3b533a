"""Writing to a table, to a topic or to the journal."""

from __future__ import annotations

from tidemark.account.owners.registry import OF_TIME, Owner, register
from tidemark.semantics.moved import Moved
from tidemark.semantics.segments import SegmentOwner

TARGET = register(
    Owner(
        name=SegmentOwner.TARGET.value,
        parent="driver",
        detail="the table or topic",
        says="writing to {detail} took {amount}",
        proof="the stream's segments",
        remedy="look at the store or the brokers behind it: a write waits for them",
        moves=OF_TIME | {Moved.ROWS},
        works_on_records=True,
        phases={"walCommit": "writing the checkpoint", "commitOffsets": "writing the checkpoint"},
    )
)
