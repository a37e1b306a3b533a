"""What wrote a record: the time from the record's timestamp until the record arrived."""

from __future__ import annotations

from tidemark.account.owners.registry import OF_RECORDS, Owner, register

PRODUCER = register(
    Owner(
        name="producer",
        parent="topic",
        detail="SOURCE/PARTITION",
        says="{detail} was written {amount} late",
        proof=(
            "the records' arrival: the broker's stamp, the file's time or the commit of a version; for a "
            "topic with CreateTime the looks around it"
        ),
        remedy=(
            "find out why what writes to the partition is late: records came long after their timestamp; "
            "`tidemark check --live` shows what the topics have"
        ),
        moves=OF_RECORDS,
    )
)
