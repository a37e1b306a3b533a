"""Says which owner can be blamed for which measure.

An owner declares what it moves (`semantics.moved.Moved`), and a measure declares what it is moved by. An owner is never
blamed for a measure that it cannot move: a quiet producer makes no operator work longer, and a field with a new type
makes no record late.
"""

from __future__ import annotations

from tidemark.account.owners.registry import OWNERS
from tidemark.model.measures.registry import Measure


def can_move(owner: str, measure: Measure) -> bool:
    """Returns whether *owner*, one of `account.owners`, can be blamed for a change of *measure*.

    >>> from tidemark.model.measures.registry import MEASURES
    >>> can_move("producer", MEASURES["records"]), can_move("producer", MEASURES["operator_latency_p50"])
    (True, False)
    """
    return not OWNERS[owner].moves.isdisjoint(measure.moves)
