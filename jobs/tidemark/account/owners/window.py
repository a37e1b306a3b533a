"""A record's wait in an aggregate until its window ended."""

from __future__ import annotations

from tidemark.account.owners.registry import Owner, register

WINDOW = register(
    Owner(
        name="window",
        detail="the operator",
        says="the window of {detail} holds a result for {amount}",
        proof="the end of the window, and of the operator that held the record",
        remedy='choose a shorter window, or `strategy = "on_change"` to get results before the window ends',
    )
)
