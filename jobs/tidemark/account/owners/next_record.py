"""A window's wait for the next record of a partition: none that had arrived was new enough to close it."""

from __future__ import annotations

from tidemark.account.owners.registry import Owner, register
from tidemark.semantics.moved import Moved

NEXT_RECORD = register(
    Owner(
        name="next_record",
        parent="partition",
        detail="SOURCE/PARTITION",
        says="no newer record of {detail} came for {amount}",
        proof="the timestamp of the first record that passed the window's end and the bound",
        remedy=(
            "send keep-alive records to the partition, or give the source an `idle_after` that is shorter "
            "than its usual pause"
        ),
        moves=frozenset({Moved.AGE}),
    )
)
