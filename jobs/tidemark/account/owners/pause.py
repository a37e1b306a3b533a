"""The whole process stood still."""

from __future__ import annotations

from tidemark.account.owners.registry import OF_TIME, Owner, register
from tidemark.semantics.moved import Moved

PAUSE = register(
    Owner(
        name="pause",
        parent="driver",
        detail="the stream",
        says="the process of {detail} stood still for {amount}",
        proof="the heartbeats, with the gaps of the pulse and the CPU time in them",
        remedy="find out whether the driver's host was suspended, paused or short of memory",
        moves=OF_TIME | {Moved.WORK},
    )
)
