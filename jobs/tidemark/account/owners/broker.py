"""Looking for records and reading them."""

from __future__ import annotations

from tidemark.account.owners.registry import Owner, register
from tidemark.semantics.segments import SegmentOwner

BROKER = register(
    Owner(
        name=SegmentOwner.BROKER.value,
        detail="the source",
        says="looking for records of {detail} and reading them took {amount}",
        proof="the stream's segments",
        remedy="look at the load and the network of the brokers, or of the store that the source reads",
        works_on_records=True,
        phases={
            "latestOffset": "asking the sources for their newest records",
            "getOffset": "asking the sources for their newest records",
        },
    )
)
