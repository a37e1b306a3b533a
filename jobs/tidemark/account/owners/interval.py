"""A result's wait for the interval of a `periodic` operator."""

from __future__ import annotations

from tidemark.account.owners.registry import Owner, register

INTERVAL = register(
    Owner(
        name="interval",
        detail="the operator",
        says="`interval` of {detail} holds a result for {amount}",
        proof="when the operator was done with the record, and when its interval was due",
        remedy='shorten `interval` of the operator, or choose `strategy = "on_change"`',
    )
)
