"""What wrote a record: the time from the record's timestamp until the record arrived."""

from __future__ import annotations

from tidemark.account.owners.registry import AHEAD, NOT_COUNTED, OF_RECORDS, Owner, register

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
        remedies={
            AHEAD: (
                "set the clock of what writes to the partition, or correct the timestamps of its records; "
                "`tidemark check --live` shows what the topics have"
            ),
            "quarantined": (
                "correct what writes to the partition; `tidemark requeue {topology} --dry-run` shows which quarantined "
                "records can be sent again after that"
            ),
            "not produced": (
                "find out whether what writes to the partition runs; `tidemark check --live` shows what the topics have"
            ),
            "duplicate": "find out why what writes to the partition sends records more than once",
            NOT_COUNTED: ("correct what writes to the partition; `tidemark check --live` shows what the topics have"),
        },
        moves=OF_RECORDS,
    )
)
