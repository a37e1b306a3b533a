"""Changes of a `current` sink that waited to be merged into the files of its table."""

from __future__ import annotations

from tidemark.account.owners.registry import Owner, register
from tidemark.semantics.moved import Moved

REFRESH = register(
    Owner(
        name="refresh",
        detail="the sink",
        says="the merge into {detail} came {amount} later",
        proof="when the rows were written, and when the merge was due",
        remedy="shorten `refresh` of the sink, or read its view, which has the rows before the merge",
        moves=frozenset({Moved.AGE}),
    )
)
