"""Computes what would have made a streaming window less late.

The functions return the end-window times (EWTs) that operators would have had in a hypothetical run with less work: the
instants, epoch ms, at which they would have finished the window. `upstreams` maps an operator to the operators that it
reads, as in `critical_path`. `reports.paths.solver` computes the slack of operators.
In names, `then` marks the hypothetical run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType

from tidemark.graph import in_order
from tidemark.semantics.critical_path import Upstreams, latest


def sooner_ewts_ms(
    upstreams: Upstreams,
    ewt_ms: Mapping[str, int],
    drivers: Mapping[str, str],
    saved_ms: Mapping[str, int],
    begins: Mapping[str, Callable[[int, int], int]],
) -> dict[str, int]:
    """Returns when each operator would have finished a window if operators had worked less.

    Args:
        upstreams: the operators that each operator reads.
        ewt_ms: when each operator finished the window.
        drivers: the driver of each operator.
        saved_ms: by operator, the work that it would have saved; negative for more work.
        begins: by driver, a function of two values: when the last upstream in another driver finished the window, and
            by how much sooner it would have. The function returns by how much sooner the driver's batch begins (see
            `Timetable.sooner_ms`). A driver without such an upstream begins when it did.

    Raises:
        InvalidArgument: there is a cycle, of operators or of drivers.
    """
    operators: dict[str, list[str]] = defaultdict(list)
    for name in in_order(upstreams):
        operators[drivers[name]].append(name)
    then_ms: dict[str, int] = {}
    for driver in in_order(drivers_read(upstreams, drivers)):
        # Only a result of another driver can delay the beginning of a batch.
        upstream = {name for operator in operators[driver] for name in upstreams.get(operator, ())}
        read = [name for name in upstream if drivers[name] != driver]
        last, then = latest(read, ewt_ms), latest(read, then_ms)
        by_ms = begins[driver](last[1], last[1] - then[1]) if last and then else 0
        # The sort is stable: operators that finished at the same instant stay in the order of the topology.
        for name in sorted(operators[driver], key=ewt_ms.__getitem__):
            # A driver runs its operators one after another: time that one saves is saved for all that finished later.
            by_ms += saved_ms.get(name, 0)
            then_ms[name] = ewt_ms[name] - by_ms
    return then_ms


def look_then_ms(look_ms: int, before_ms: int, free_ms: int, arrived_ms: int, trigger_ms: int) -> int:
    """Returns when a stream would first have looked at records that had arrived at *arrived_ms*.

    A stream looks at its sources at each trigger, but not while it works on a batch.

    Args:
        look_ms: when it really looked; it would not have looked later than that.
        before_ms: when it had looked the last time before.
        free_ms: when it had finished the batch of that look.
        arrived_ms: when the records would have arrived.
        trigger_ms: the time between two triggers.

    A stream looked at 10.0 s, stood still from 10.4 s to 22.4 s, and looked then. It would have looked each second:

    >>> look_then_ms(22_400, 10_000, 10_400, 10_300, 1_000), look_then_ms(22_400, 10_000, 10_400, 15_200, 1_000)
    (11000, 16000)

    What comes 2.5 s sooner to a stream that does not stand still is in the look before, or in one before that:

    >>> look_then_ms(22_000, 21_000, 21_300, 19_100, 1_000)
    20000
    """
    if arrived_ms <= before_ms:
        return before_ms - (before_ms - arrived_ms) // trigger_ms * trigger_ms
    first_ms = max(free_ms, before_ms + trigger_ms)
    later = max(0, -((first_ms - arrived_ms) // trigger_ms))
    return min(look_ms, first_ms + later * trigger_ms)


def drivers_read(upstreams: Upstreams, drivers: Mapping[str, str]) -> Mapping[str, tuple[str, ...]]:
    """Returns, for each driver, the other drivers whose results it reads; *drivers* has the driver of each operator."""
    edges = tuple((name, tuple(read)) for name, read in upstreams.items())
    return _drivers_read(edges, tuple(drivers.items()))


# Operators seldom change drivers, and reports ask once per window.
@lru_cache(maxsize=256)
def _drivers_read(
    edges: tuple[tuple[str, tuple[str, ...]], ...], driver_of: tuple[tuple[str, str], ...]
) -> Mapping[str, tuple[str, ...]]:
    drivers = dict(driver_of)
    read: dict[str, set[str]] = {driver: set() for driver in drivers.values()}
    for reader, names in edges:
        read[drivers[reader]] |= {drivers[name] for name in names} - {drivers[reader]}
    return MappingProxyType({driver: tuple(sorted(others)) for driver, others in read.items()})
