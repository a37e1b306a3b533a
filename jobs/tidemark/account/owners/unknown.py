"""Time for which a named fact is missing, and nothing else."""

from __future__ import annotations

from tidemark.account.owners.registry import Owner, register
from tidemark.semantics.moved import Moved

UNKNOWN = register(
    Owner(
        name="unknown",
        detail="the missing fact",
        says="{amount} is not known, because a fact is missing: {detail}",
        proof="nothing: a fact is missing",
        remedy="find out why facts are missing: `tidemark why {topology}`",
        moves=frozenset({Moved.AGE}),
    )
)
