"""Spark's own work: planning, starting tasks, its commits."""

from __future__ import annotations

from tidemark.account.owners.registry import Owner, register
from tidemark.semantics.segments import SegmentOwner

SPARK = register(
    Owner(
        name=SegmentOwner.SPARK.value,
        parent="driver",
        detail="what it did: planning, tasks, commit",
        says="Spark's own work for {stream}, {detail}, took {amount} of a result's age",
        proof="the stream's segments",
        remedy="give the driver more cores, or fewer streams; `tidemark logs {stream}` has Spark's messages",
        phases={
            "getBatch": "planning what to read",
            "queryPlanning": "planning",
            "rest": "what Spark does between its phases",
        },
    )
)
