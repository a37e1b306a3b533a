"""A window's wait for late records, beyond the bound."""

from __future__ import annotations

from tidemark.account.owners.registry import Owner, register

ALLOWED_LATENESS = register(
    Owner(
        name="allowed_lateness",
        detail="the operator",
        says="`allowed_lateness` of {detail} holds a result for {amount}",
        proof="when the operator was done with the record, and when the window could close",
        remedy='shorten `allowed_lateness`, or choose `strategy = "on_change"` to get results before',
    )
)
