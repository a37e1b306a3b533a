"""The process of a stream: its absence, its pauses, its work."""

from __future__ import annotations

from tidemark.account.owners.registry import OF_TIME, Owner, register
from tidemark.semantics.moved import Moved

DRIVER = register(
    Owner(
        name="driver",
        detail="the stream",
        says="the driver of {detail} took {amount}",
        proof="the stream's segments",
        remedy="`tidemark logs {stream}` shows what the driver did",
        moves=OF_TIME | {Moved.WORK, Moved.ROWS},
        has_time=False,
    )
)
