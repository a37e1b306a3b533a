"""A source that came into the topology file later than its records came: nobody read them until then."""

from __future__ import annotations

from tidemark.account.owners.registry import OF_TIME, Owner, register
from tidemark.semantics.moved import Moved

TOPOLOGY_CHANGE = register(
    Owner(
        name="topology_change",
        detail="the source",
        says="a change of the topology file began to read {detail} {amount} after records of it had come",
        proof="the batch with which the source began (`topology_changes`), and the last sign of the driver before it",
        remedy=(
            'give a topic that begins `starting_offsets = "latest"`, and a table an instant, if what came before is '
            "not wanted; `tidemark plan {topology}` says how many records will be read"
        ),
        moves=OF_TIME | {Moved.REFUSAL},
    )
)
