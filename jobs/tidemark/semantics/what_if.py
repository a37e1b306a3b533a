"""Computes what would have made a streaming window less late.

It is the EWTs of hypothetical runs: EWTs of one window in epoch milliseconds. `upstreams` are those of `critical_path`.
`reports.paths.solver` has the slack of operators.
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
    """Returns the EWTs of a closed window after saved work.

    Args:
        upstreams: the topology.
        ewt_ms: the window's EWTs.
        drivers: the driver of each operator.
        saved_ms: by operator, the saved work; negative for more work.
        begins: by driver, how much sooner its batch begins, given when the last of its upstreams in other drivers
            finished and by how much sooner that does: see `Timetable.sooner_ms`. A driver without such an upstream
            begins when it did.

    Raises:
        InvalidArgument: there is a cycle, of operators or of drivers.
    """
    operators: dict[str, list[str]] = defaultdict(list)
    for name in in_order(upstreams):
        operators[drivers[name]].append(name)
    then_ms: dict[str, int] = {}
    for driver in in_order(drivers_read(upstreams, drivers)):
        # Only a result of another driver can delay the beginning of a batch.
        read = [each for name in operators[driver] for each in upstreams.get(name, ()) if drivers[each] != driver]
        last, then = latest(read, ewt_ms), latest(read, then_ms)
        by_ms = begins[driver](last[1], last[1] - then[1]) if last and then else 0
        # The sort is stable: operators that finished at the same instant stay in the order of the topology.
        for name in sorted(operators[driver], key=ewt_ms.__getitem__):
            # A driver runs its operators one after another: time that one saves is saved for all that finished later.
            by_ms += saved_ms.get(name, 0)
            then_ms[name] = ewt_ms[name] - by_ms
    return then_ms


def look_then_ms(look_ms: int, before_ms: int, free_ms: int, arrived_ms: int, trigger_ms: int) -> int:
    """Returns when a stream would have looked for the first time at what arrived at *arrived_ms*.

    It looks each trigger, and not while it works: after its look at *before_ms* until *free_ms*. It has looked at
    *look_ms*, and later than that it does not.

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
    """Returns the other drivers whose results each driver reads.

    *drivers* has the driver of each operator.
    """
    return _drivers_read(tuple((name, tuple(of)) for name, of in upstreams.items()), tuple(drivers.items()))


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
