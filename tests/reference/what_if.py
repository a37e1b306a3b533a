"""Computes EWTs with faster or slower operators, and their slack.

The model assumes that each operator runs alone; in `tidemark.semantics.what_if` operators share drivers.
"""

from __future__ import annotations

from collections.abc import Mapping

from reference.critical_path import critical_path, in_order, latest, leaves, path_to
from tidemark.errors import InvalidArgument
from tidemark.semantics.critical_path import Instants, PathStep, Upstreams


def what_if(upstreams: Upstreams, ewt_ms: Instants, factors: Mapping[str, float]) -> dict[str, int | None]:
    """Returns the EWTs if operators had worked faster or slower.

    *factors* has the share of its time that an operator takes: with `{"C": 0.7}` C takes 30 % less. Inputs keep their
    EWT, and a clamped latency does not change.

    Raises:
        InvalidArgument: a factor is negative or for an operator that is not there.
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


def slack_ms(upstreams: Upstreams, ewt_ms: Instants, steps: Mapping[str, PathStep]) -> dict[str, int | None]:
    """Returns by how much later each operator could have finished for free.

    Free means that the critical path is not longer. The slack is 0 on the critical path. Elsewhere it is the least,
    over the walks to the leaves, of what each step on the way would have waited for its slowest upstream anyway, plus
    what the leaf's own path lacks to the critical one. With one source that is the critical path's latency less that of
    the longest path through the operator. None where an EWT is missing on every way.
    """
    critical_ms = critical_path(upstreams, steps).latency_ms
    slack: dict[str, int | None] = {leaf: critical_ms - path_to(leaf, steps).latency_ms for leaf in leaves(upstreams)}
    for reader in reversed(in_order(upstreams)):
        slowest = latest(upstreams.get(reader, ()), ewt_ms)
        for name in upstreams.get(reader, ()):
            slack.setdefault(name, None)
            own_ms, later_ms, reader_ms = ewt_ms.get(name), slack[name], slack[reader]
            if slowest is not None and own_ms is not None and reader_ms is not None:
                through_ms = slowest[1] - own_ms + reader_ms
                slack[name] = through_ms if later_ms is None else min(later_ms, through_ms)
    return slack
