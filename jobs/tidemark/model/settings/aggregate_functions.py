"""The aggregate functions by name, with facts that need no data.

This list is the only one: `kernels/aggregates/functions.py` has the calculations that it names. A module of another
package adds one by `AGGREGATE_FUNCTIONS.register`, as an entry point of the group `tidemark.aggregate_functions`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tidemark.extensions import OpenList

_OWN = "tidemark.kernels.aggregates.functions"
_CALL = re.compile(r"(\w+)\(\s*(\w+|\*)\s*\)")


@dataclass(frozen=True, kw_only=True)
class FunctionFacts:
    """Facts of an aggregate function for the checks of a topology file.

    Attributes:
        calculation: the `module:name` of its class, an `AggregateFunction`, or of a function that chooses a class. The
            module is imported when a stream runs.
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


AGGREGATE_FUNCTIONS: OpenList[FunctionFacts] = OpenList("aggregate function", group="tidemark.aggregate_functions")
"""The functions by name."""
_BUILT_IN = {
    "count": FunctionFacts(calculation=f"{_OWN}:CountFunction", counts_rows=True, retracts=True, changes_often=True),
    "sum": FunctionFacts(calculation=f"{_OWN}:exact_sum", retracts=True, changes_often=True),
    "avg": FunctionFacts(calculation=f"{_OWN}:average", retracts=True, changes_often=True),
    "min": FunctionFacts(calculation=f"{_OWN}:Minimum", is_a_value=True),
    "max": FunctionFacts(calculation=f"{_OWN}:Maximum", is_a_value=True),
    "first": FunctionFacts(calculation=f"{_OWN}:First", is_a_value=True),
    "last": FunctionFacts(calculation=f"{_OWN}:Last", is_a_value=True),
    "approx_distinct": FunctionFacts(calculation=f"{_OWN}:ApproxDistinct"),
}
for _name, _facts in _BUILT_IN.items():
    AGGREGATE_FUNCTIONS.register(_name, _facts)


def parsed_call(text: str) -> tuple[str, str] | None:
    """Returns the function and the column of a call such as `sum(amount)`; None if there is no such function.

    >>> parsed_call("count(*)"), parsed_call("sum(*)"), parsed_call("median(amount)")
    (('count', '*'), None, None)
    """
    match = _CALL.fullmatch(text)
    facts = AGGREGATE_FUNCTIONS.get(match[1]) if match else None
    if match is None or facts is None or (match[2] == "*" and not facts.counts_rows):
        return None
    return match[1], match[2]
