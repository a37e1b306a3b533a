"""The time without a driver, with the work that an ended driver had not decided."""

from __future__ import annotations

from tidemark.account.owners.registry import Owner, register

ABSENCE = register(
    Owner(
        name="absence",
        parent="driver",
        detail="the stream",
        says="nobody ran {detail} for {amount}",
        proof="the last sign of the driver before, and the first look of the next one",
        remedy=(
            "`tidemark logs {stream}` says why the driver before ended; an absence during a deployment ends by itself"
        ),
    )
)
