"""The wait for records that are out of order."""

from __future__ import annotations

from tidemark.account.owners.registry import Owner, register
from tidemark.semantics.moved import Moved

BOUND = register(
    Owner(
        name="bound",
        detail="the source",
        says="the bound of {detail} takes {amount}",
        proof="the bound of the source",
        remedy="shorten `bound`: `tidemark bound {topology}` prints the cost of each bound",
        moves=frozenset({Moved.AGE}),
    )
)
