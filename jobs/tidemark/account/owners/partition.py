"""One partition of a source, of which other partitions are ahead."""

from __future__ import annotations

from tidemark.account.owners.registry import OF_RECORDS, Owner, register

PARTITION = register(
    Owner(
        name="partition",
        parent="topic",
        detail="SOURCE/PARTITION",
        says="records of {detail}",
        proof="the records that it let pass",
        remedy="check the producers that write to the partition",
        moves=OF_RECORDS,
        has_time=False,
    )
)
