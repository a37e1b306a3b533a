"""Which owner can move which measure.

An owner says what it moves (`semantics.moved.Moved`), and a measure what it is made of. Nothing is blamed for a measure
that it cannot move: a quiet producer moves no work, and a field that changed its type moves no latency.
"""

from __future__ import annotations

from tidemark.account.owners.registry import OWNERS
from tidemark.model.measures.registry import Measure


def can_move(owner: str, measure: Measure) -> bool:
    """Returns whether *owner*, a name of `account.owners`, can move *measure*.

    >>> from tidemark.model.measures.registry import MEASURES
    >>> can_move("producer", MEASURES["records"]), can_move("producer", MEASURES["operator_latency_p50"])
    (True, False)
    """
    return not OWNERS[owner].moves.isdisjoint(measure.moves)
