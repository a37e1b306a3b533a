"""Records of a partition that was ahead, and waited for the slowest one."""

from __future__ import annotations

from tidemark.account.owners.registry import Owner, register

MAX_DRIFT = register(
    Owner(
        name="max_drift",
        detail="the slow partition, SOURCE/PARTITION",
        says="records waited {amount} for the slower partition {detail}, because of `max_drift`",
        proof="how far its records had come, and the record or the silence that let the others go on",
        remedy="look why that partition is slow, give its source an `idle_after`, or allow a longer `max_drift`",
    )
)
