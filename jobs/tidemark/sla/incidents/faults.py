"""Says which causes are one fault.

The causes of a driver follow one another: it is dead, starts, has restarted and catches up. All of them are one fault,
until a later outage begins.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TypeAlias

from tidemark.model.sla_events import AlertCause, Fault, SlaResult
from tidemark.semantics.sla import Verdict
from tidemark.sla.incidents.roots import ABSENT, AFTERMATH, DRIVER, OF_DRIVERS
from tidemark.why.causes.drivers import DRIVER_RESTARTED
from tidemark.why.evidence.findings import UNEXPLAINED

Common: TypeAlias = tuple[Fault | str, int]
"""What the incidents of an alert have in common: a fault, or the name of the only incident.

The second part is the instant at which the outage of the fault's driver began, epoch ms; 0: its first one, or none.
"""


class Faults:
    """The faults in *results*, which are in the order of their checks."""

    def __init__(self, results: Sequence[SlaResult]) -> None:
        self._outages = _outages(results)

    def common(self, cause: AlertCause | None, name: str, at_ms: int) -> Common:
        """Returns what incidents with *cause* have in common at *at_ms*; without one, the *name*.

        Of a driver's causes this is the newest outage that had begun then.
        """
        if cause is None:
            return name, 0
        if not _is_of_driver(cause):
            return cause.fault, 0
        return cause.fault._replace(owner=DRIVER), self._outage(cause, at_ms).start_ms

    def is_later_outage(self, cause: AlertCause, at_ms: int) -> bool:
        """Returns True if *cause*, which a check at *at_ms* found, began in the newest outage of its driver."""
        return self._outage(cause, at_ms).has(cause)

    def _outage(self, cause: AlertCause, at_ms: int) -> _Outage:
        """Returns the newest outage at *at_ms* of the driver in *cause*."""
        begun = (each for each in reversed(self._outages[cause.stream]) if each.start_ms <= at_ms)
        return next(begun, _Outage())


def says_nothing_new(cause: AlertCause) -> bool:
    """Returns True for a check without an explanation, and for what follows a fault that has ended."""
    return cause.owner in {UNEXPLAINED, *AFTERMATH}


def is_driver_cause(cause: AlertCause) -> bool:
    """Returns True if *cause* is one of a driver itself, and of no wait for it."""
    return cause.owner in OF_DRIVERS


@dataclass
class _Outage:
    """Time from a fault of a driver until it works again.

    Attributes:
        start_ms: the check that found it; 0: it is the driver's first one.
        after_ms: the last check that showed the outage before; what began earlier belongs to that one.
        last_ms: the last check that showed this one.
        slas: those that no driver worked for.
        is_over: True if a later check shows that the driver worked again.
    """

    start_ms: int = 0
    after_ms: int = 0
    last_ms: int = 0
    slas: set[str] = field(default_factory=set)
    is_over: bool = False

    def has(self, cause: AlertCause) -> bool:
        """Returns True if *cause* began in this outage."""
        return (cause.since_ms or 0) > self.after_ms


def _outages(results: Sequence[SlaResult]) -> dict[str | None, list[_Outage]]:
    """Returns the outages of each driver, by its stream.

    A later one begins with a check that shows a fault, or one more restart, since an instant after the last check that
    showed the outage before; and only if a check between them showed that the driver worked. It did if it had
    restarted, or if an SLA passes again that no driver had worked for. Otherwise a driver that fails again and again,
    before it works, would be one alert after the other. *results* are in the order of their checks.
    """
    outages: dict[str | None, list[_Outage]] = defaultdict(list)
    for at_ms, check in groupby(results, key=lambda each: each.checked_ms):
        found = [*check]
        shown: dict[str | None, dict[str, AlertCause]] = defaultdict(dict)
        for each in found:
            if each.cause is not None and each.cause.owner in OF_DRIVERS:
                shown[each.cause.stream][each.sla] = each.cause
        passed = {each.sla for each in found if each.verdict is Verdict.PASS}
        for stream in {*outages, *shown}:
            _follow(outages[stream], at_ms, shown[stream], passed)
    return outages


def _follow(outages: list[_Outage], at_ms: int, causes: Mapping[str, AlertCause], passed: Collection[str]) -> None:
    """Adds to the *outages* of a driver what a check shows.

    Args:
        outages: of the driver, oldest first.
        at_ms: the instant of the check, epoch ms.
        causes: of the driver, by the SLA that each has broken.
        passed: SLAs that pass.
    """
    faults = {sla: cause for sla, cause in causes.items() if cause.owner != DRIVER_RESTARTED}
    since_ms = max((each.since_ms or (at_ms if sla in faults else 0) for sla, each in causes.items()), default=0)
    if causes and not outages:
        outages.append(_Outage(last_ms=at_ms))
    elif outages and outages[-1].is_over and since_ms > outages[-1].last_ms:
        outages.append(_Outage(start_ms=at_ms, after_ms=outages[-1].last_ms, last_ms=at_ms))
    outage = outages[-1]
    if faults:
        outage.last_ms, outage.is_over = at_ms, False
        outage.slas |= {sla for sla, cause in faults.items() if cause.owner in ABSENT}
    elif any(map(outage.has, causes.values())) or outage.slas & {*passed}:
        outage.is_over = True


def _is_of_driver(cause: AlertCause) -> bool:
    return cause.owner in OF_DRIVERS or (cause.detail is None and cause.stream is not None)
