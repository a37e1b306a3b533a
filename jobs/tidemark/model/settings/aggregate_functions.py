"""The aggregate functions by name, with facts that need no data.

This list is the only one: `kernels/aggregates/functions.py` has the calculations that it names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

_CALL = re.compile(r"(\w+)\(\s*(\w+|\*)\s*\)")


@dataclass(frozen=True, kw_only=True)
class FunctionFacts:
    """Facts of an aggregate function for the checks of a topology file.

    Attributes:
        calculation: the name of its class, or of a function that chooses one, in `kernels/aggregates/functions.py`.
        counts_rows: it accepts `*`.
        retracts: it can retract a value that it added.
        changes_often: nearly every record changes its result.
        is_a_value: its result is one of the values that it read.
    """

    calculation: str
    counts_rows: bool = False
    retracts: bool = False
    changes_often: bool = False
    is_a_value: bool = False


AGGREGATE_FUNCTIONS: Mapping[str, FunctionFacts] = MappingProxyType(
    {
        "count": FunctionFacts(calculation="Count", counts_rows=True, retracts=True, changes_often=True),
        "sum": FunctionFacts(calculation="exact_sum", retracts=True, changes_often=True),
        "avg": FunctionFacts(calculation="average", retracts=True, changes_often=True),
        "min": FunctionFacts(calculation="Minimum", is_a_value=True),
        "max": FunctionFacts(calculation="Maximum", is_a_value=True),
        "first": FunctionFacts(calculation="First", is_a_value=True),
        "last": FunctionFacts(calculation="Last", is_a_value=True),
        "approx_distinct": FunctionFacts(calculation="ApproxDistinct"),
    }
)


def parsed_call(text: str) -> tuple[str, str] | None:
    """Returns function and column of a call such as `sum(amount)`.

    None if there is no such function.

    >>> parsed_call("count(*)"), parsed_call("sum(*)"), parsed_call("median(amount)")
    (('count', '*'), None, None)
    """
    match = _CALL.fullmatch(text)
    facts = AGGREGATE_FUNCTIONS.get(match[1]) if match else None
    if match is None or facts is None or (match[2] == "*" and not facts.counts_rows):
        return None
    return match[1], match[2]
