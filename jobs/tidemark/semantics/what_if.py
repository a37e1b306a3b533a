"""What would have made a streaming window less late: the slack of every operator, and what-if.

Arguments are those of `critical_path`: EWTs of one window in epoch milliseconds, and who reads whom.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tidemark.errors import InvalidArgument
from tidemark.semantics.critical_path import Instants, Step, Upstreams, critical_path, in_order, latest, leaves, path_to


def slack_ms(upstreams: Upstreams, ewt_ms: Instants, steps: Mapping[str, Step]) -> dict[str, int | None]:
    """By how much later each operator could have finished the window without making the critical path longer.

    0 on the critical path. Elsewhere the least, over the walks to the leaves, of what each step on the way would
    have waited for its slowest upstream anyway, and what the leaf's own path lacks to the critical one. With one
    source that is the critical path's latency less that of the longest path through the operator. None where an EWT
    is missing on every way.
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


def what_if(upstreams: Upstreams, ewt_ms: Instants, factors: Mapping[str, float]) -> dict[str, int | None]:
    """The EWTs that the window would have had if the operators in *factors* had taken that much of their time.

    `{"C": 0.7}` asks what happens when C takes 30 % less. Inputs keep their EWT; a clamped latency is kept as it is.

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


def sooner(
    upstreams: Upstreams,
    ewt_ms: Mapping[str, int],
    drivers: Mapping[str, str],
    saved_ms: Mapping[str, int],
    begins: Mapping[str, Callable[[int, int], int]],
) -> dict[str, int]:
    """The EWTs that a closed window would have had if operators had worked *saved_ms* less; negative for more.

    Unlike in `what_if`, operators share *drivers* (by operator), which run them one after another: what one saves, all
    save that its driver finished later. *begins* says per driver by how much sooner its batch begins, given when the
    last of its upstreams in other drivers finished and by how much sooner that does: see `Timetable.sooner_ms`. A
    driver without such an upstream begins when it did.

    Raises:
        InvalidArgument: there is a cycle, of operators or of drivers.
    """
    place = {name: number for number, name in enumerate(in_order(upstreams))}
    read: dict[str, list[str]] = {driver: [] for driver in drivers.values()}
    for reader, names in upstreams.items():
        read[drivers[reader]] += [name for name in names if drivers[name] != drivers[reader]]
    then_ms: dict[str, int] = {}
    for driver in in_order({driver: tuple({drivers[name] for name in names}) for driver, names in read.items()}):
        last, then = latest(read[driver], ewt_ms), latest(read[driver], then_ms)
        by_ms = begins[driver](last[1], last[1] - then[1]) if last and then else 0
        own = (name for name, runs_in in drivers.items() if runs_in == driver)
        for name in sorted(own, key=lambda name: (ewt_ms[name], place[name])):
            by_ms += saved_ms.get(name, 0)
            then_ms[name] = ewt_ms[name] - by_ms
    return then_ms
