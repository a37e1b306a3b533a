"""Records that a plan left behind because of the most that a batch may read, though nothing had slowed the stream."""

from __future__ import annotations

from tidemark.account.owners.registry import Owner, register

MAX_RECORDS = register(
    Owner(
        name="max_records",
        detail="the source",
        says="records waited {amount} because of `max_records` of {detail}",
        proof="the plans, with what cut them",
        remedy="raise `max_records` of the source",
    )
)
