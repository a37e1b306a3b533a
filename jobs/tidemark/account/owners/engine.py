"""What Tidemark does for a batch around the operators and the writes."""

from __future__ import annotations

from tidemark.account.owners.registry import Owner, register
from tidemark.semantics.segments import SegmentOwner

ENGINE = register(
    Owner(
        name=SegmentOwner.ENGINE.value,
        parent="driver",
        detail="nothing",
        says="Tidemark's own work for {stream} took {amount} of a result's age",
        proof="the stream's segments",
        remedy="give the driver more cores; `tidemark logs {stream}` shows what it did",
    )
)
