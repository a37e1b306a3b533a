"""Writing to a table, to a topic or to the journal."""

from __future__ import annotations

from tidemark.account.owners.registry import Owner, register

TARGET = register(
    Owner(
        name="target",
        parent="driver",
        detail="the table or topic",
        proof="the stream's segments",
        remedy="look at the store or the brokers behind it: a write waits for them",
        works_on_records=True,
    )
)
