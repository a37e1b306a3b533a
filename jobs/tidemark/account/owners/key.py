"""One key of a partition, such as a phone that sends what it kept."""

from __future__ import annotations

from tidemark.account.owners.registry import OF_TIME, Owner, register
from tidemark.semantics.moved import Moved

KEY = register(
    Owner(
        name="key",
        parent="partition",
        detail="the key",
        says="records of the key {detail}",
        proof="the three keys with most records beyond the promise",
        remedy="look for what sends so many records of the key, or so old ones",
        moves=OF_TIME | {Moved.WORK, Moved.REFUSAL},
        has_time=False,
    )
)
