"""Records that a plan left behind although nothing limited it and nothing had slowed the stream down."""

from __future__ import annotations

from tidemark.account.owners.registry import Owner, register

CAPACITY = register(
    Owner(
        name="capacity",
        parent="driver",
        detail="the stream",
        says="records waited {amount} because {detail} reads as many as it can",
        proof="the plans, and the usual lengths of the stream's segments",
        remedy="run the stream in shards (`shards`), or give it more cores",
    )
)
