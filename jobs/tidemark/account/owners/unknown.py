"""Time for which a named fact is missing, and nothing else."""

from __future__ import annotations

from tidemark.account.owners.registry import Owner, register
from tidemark.semantics.moved import Moved

UNKNOWN = register(
    Owner(
        name="unknown",
        detail="the missing fact",
        details={
            "arrival": "when a record came",
            "backlog": "how many records waited before a batch",
            "hop": "when a record was sent on",
            "look": "when a record was found",
            "passing": "when the watermark passed",
            "plan": "which batch was to read a record",
            "segment": "what a driver did",
            "usual": "how much a batch usually reads",
        },
        says="{amount} is not known, because a fact is missing: {detail}",
        proof="nothing: a fact is missing",
        remedy=(
            "the facts of a batch are written when it has finished: ask again then; `tidemark logs {stream}` shows "
            "what its driver does"
        ),
        moves=frozenset({Moved.AGE}),
    )
)
