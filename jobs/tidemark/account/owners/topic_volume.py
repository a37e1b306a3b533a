"""More records than usual: the time for which they, and the records behind them, waited."""

from __future__ import annotations

from tidemark.account.owners.registry import Owner, register
from tidemark.semantics.moved import Moved

TOPIC_VOLUME = register(
    Owner(
        name="topic_volume",
        parent="topic",
        detail="the source",
        says="a surge of records of {detail} took {amount}",
        says_without_history="records of {detail}, which came faster than in the median batch, took {amount}",
        proof="the offsets of each plan, and the usual number of records per ms",
        remedy="run the stream in shards (`shards`), give it more cores, or send fewer records",
        moves=frozenset({Moved.AGE, Moved.WORK}),
    )
)
