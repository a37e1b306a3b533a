"""The clock of a host that is ahead (or, below 0, behind): time that passed on the clock alone."""

from __future__ import annotations

from tidemark.account.owners.registry import Owner, register
from tidemark.semantics.moved import Moved

CLOCK = register(
    Owner(
        name="clock",
        detail="the host",
        says="the clock of {detail} is {amount} ahead",
        proof=(
            "the measured offset of the host's clock; without it nothing is booked here, and the error of "
            "the other parts is not known"
        ),
        remedy="set the host's clock by NTP",
        moves=frozenset({Moved.AGE}),
    )
)
