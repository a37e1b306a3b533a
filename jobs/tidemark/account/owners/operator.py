"""An operator's own work."""

from __future__ import annotations

from tidemark.account.owners.registry import OF_TIME, Owner, register
from tidemark.semantics.moved import Moved
from tidemark.semantics.segments import SegmentOwner

OPERATOR = register(
    Owner(
        name=SegmentOwner.OPERATOR.value,
        parent="driver",
        detail="the operator; with shards OPERATOR shard N",
        says="the operator {detail} worked for {amount}",
        proof="the stream's segments, and with shards the tasks",
        remedy=(
            "`tidemark path {topology}` shows its work on each window, and what is usual once there is a history; "
            "`tidemark whatif {topology} --operator {operator} --scale 0.5` estimates what an operator that is twice "
            "as fast saves"
        ),
        moves=OF_TIME | {Moved.WORK, Moved.ROWS},
        works_on_records=True,
        phases={"addBatch": "reading, calculating and writing"},
    )
)
