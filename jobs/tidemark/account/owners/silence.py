"""A window's wait for a partition to have been silent for long enough, until a setting let time advance without it."""

from __future__ import annotations

from tidemark.account.owners.registry import Owner, register
from tidemark.semantics.moved import Moved

SILENCE = register(
    Owner(
        name="silence",
        detail="SOURCE/PARTITION SETTING",
        says="a setting waited {amount} for {detail}",
        proof="the setting, and the instant at which the silence had lasted for it",
        remedy=(
            "shorten the setting that the part names (`idle_after`; with `idle_advances` time advances while"
            " every partition is silent), or send keep-alive records"
        ),
        moves=frozenset({Moved.AGE}),
    )
)
