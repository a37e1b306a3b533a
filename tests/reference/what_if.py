"""Computes the EWTs of a window with faster or slower operators.

The model assumes that each operator runs alone; in `tidemark.semantics.what_if` operators share drivers.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidemark.errors import InvalidArgument
from tidemark.semantics.critical_path import Instants, Upstreams, in_order, latest


def what_if(upstreams: Upstreams, ewt_ms: Instants, factors: Mapping[str, float]) -> dict[str, int | None]:
    """Returns the EWTs if operators had worked faster or slower.

    *factors* has the share of its time that an operator takes: with `{"C": 0.7}` C takes 30 % less. Inputs keep their
    EWT, and a clamped latency does not change.

    Raises:
        InvalidArgument: a factor is negative or for an operator that is not there, or there is a cycle.
    """
    order = in_order(upstreams)
    for operator, factor in factors.items():
        if operator not in order or factor < 0:
            msg = f"a factor is 0 or more for one of {', '.join(sorted(order))}; got {operator}: {factor}"
            raise InvalidArgument(msg)
    then_ms: dict[str, int | None] = {}
    for operator in order:
        names = upstreams.get(operator, ())
        was_ms, was, then = ewt_ms.get(operator), latest(names, ewt_ms), latest(names, then_ms)
        if was_ms is None or was is None or then is None:
            then_ms[operator] = was_ms
        else:
            own_ms = was_ms - was[1]
            then_ms[operator] = then[1] + (round(own_ms * factors.get(operator, 1)) if own_ms > 0 else own_ms)
    return then_ms
