"""Which owner can move which measure.

An owner says what it moves (`account.owners.registry.Moved`), and a measure what it is made of. Nothing is blamed for a
measure that it cannot move: a quiet producer moves no work, and a field that changed its type moves no latency.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tidemark.account.owners import OWNERS
from tidemark.account.owners.registry import Moved
from tidemark.model.slas.sla_spec import QUANTILES, SHARES, WORK_QUANTILES, Measure

# Where no result is on its way, what did not come through explains why a table or a watermark stands still.
_OF_PROGRESS = frozenset({Moved.AGE, Moved.NUMBER})
MADE_OF: Mapping[Measure, frozenset[Moved]] = MappingProxyType(
    {
        **dict.fromkeys((*QUANTILES, Measure.BURN_RATE), frozenset({Moved.AGE})),
        **dict.fromkeys((Measure.STALENESS, Measure.WATERMARK_LAG, Measure.COMPLETE_BY), _OF_PROGRESS),
        **dict.fromkeys(WORK_QUANTILES, frozenset({Moved.WORK})),
        **dict.fromkeys(SHARES, frozenset({Moved.REFUSAL})),
        Measure.RECORDS: frozenset({Moved.NUMBER}),
        Measure.SCHEMA_CHANGES: frozenset({Moved.FIELDS}),
        Measure.COMPLETENESS: frozenset({Moved.ROWS}),
        Measure.CONTRACT: frozenset({Moved.ROWS}),
    }
)
"""What a measure is made of."""


def can_move(owner: str, measure: Measure) -> bool:
    """Returns whether *owner*, a name of `account.owners`, can move *measure*.

    >>> can_move("producer", Measure.RECORDS), can_move("producer", Measure.OPERATOR_LATENCY_P50)
    (True, False)
    """
    return not OWNERS[owner].moves.isdisjoint(MADE_OF[measure])
