"""What a topic does to its readers: its producers, its partitions, and how many records come."""

from __future__ import annotations

from tidemark.account.owners.registry import OF_RECORDS, Owner, register

TOPIC = register(
    Owner(
        name="topic",
        detail="the source",
        says="records of {detail}",
        proof="the offsets of its plans",
        remedy="look at its partitions: `tidemark check --live` shows what the topics have",
        moves=OF_RECORDS,
        has_time=False,
    )
)
