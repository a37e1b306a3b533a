"""Windows that the same operators have finished."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tidemark.kernels.reports.arrays import Floats, Mask, Places, alike
from tidemark.model.kinds.source import Source
from tidemark.reports.paths.windows.operator_places import OperatorPlace
from tidemark.semantics.critical_path import Upstreams, in_order

NO_WAIT = float("-inf")
"""The arrival at an operator that was idle and did not wait."""


class OperatorFinish(NamedTuple):
    """Describes how an operator finished windows, a number for each.

    It has the instant, the beginning of the batch, and the clock. `clock` is a number of a host and its skew. A driver
    without a row about a window is on the clock of its row before. NaN: it is not known.
    """

    ewt_ms: Floats
    began_ms: Floats
    queued_ms: Floats
    skew_error_ms: Floats
    clock: Floats
    skew_ms: Floats
    batch_id: Floats

    def take(self, windows: Mask) -> OperatorFinish:
        """Returns those of the chosen *windows*."""
        return OperatorFinish(*(values[windows] for values in self))


@dataclass(frozen=True)
class WindowGroup:
    """Windows that the same operators at the same places have finished.

    Attributes:
        numbers: of the windows, in their order.
        end_ms: their ends.
        places: of all operators.
        upstreams: the operators that each operator waited for. Where flows of several hops come together in a driver it
            is the flow that arrived last.
        finishes: of the operators that have finished the windows.
    """

    numbers: Places
    end_ms: Floats
    places: Mapping[str, OperatorPlace]
    upstreams: Upstreams
    finishes: Mapping[str, OperatorFinish]

    @property
    def ewt_ms(self) -> dict[str, Floats]:
        """The EWTs of each operator that has finished them, epoch ms."""
        return {name: finish.ewt_ms for name, finish in self.finishes.items()}

    @property
    def ends(self) -> list[str]:
        """The terminal operators, which no other reads."""
        # Tables of joins downstream of a hop have a reader, and no window waits for them.
        return [name for name, place in sorted(self.places.items()) if not place.read_by]

    def take(self, windows: Mask) -> WindowGroup:
        """Returns the chosen *windows*."""
        finishes = {name: finish.take(windows) for name, finish in self.finishes.items()}
        return WindowGroup(self.numbers[windows], self.end_ms[windows], self.places, self.upstreams, finishes)

    def by_last_flows(self) -> Iterator[WindowGroup]:
        """Divides the windows by the flows that arrived last."""
        arrival_ms = self._arrival_ms()
        was_last: dict[tuple[str, str], Mask] = {}
        for name, place in self.places.items():
            # Where the arrival of one is not known, each may have been the last.
            if len(place.waits_for) > 1 and arrival_ms.keys() >= {*place.waits_for}:
                last_ms = np.max([arrival_ms[each] for each in place.waits_for], axis=0)
                for each in place.waits_for:
                    was_last[name, each] = (arrival_ms[each] == last_ms) | (last_ms == NO_WAIT)
        for chosen in alike(list(was_last.values()), self.numbers.size):
            first = int(chosen.argmax())
            upstreams: dict[str, tuple[str, ...]] = {}
            for name, place in sorted(self.places.items()):
                waits_for = [
                    each for each in place.waits_for if (name, each) not in was_last or was_last[name, each][first]
                ]
                upstreams[name] = tuple(waits_for)
            group = self.take(chosen)
            yield WindowGroup(group.numbers, group.end_ms, group.places, upstreams, group.finishes)

    def _arrival_ms(self) -> dict[str, Floats]:
        """Returns when the windows arrived over hops, by operator of the driver.

        It is NO_WAIT for an operator that did not wait for it because it was idle. Operators that read from outside,
        directly or among others, are left out, because no row of their driver has that arrival.
        """
        arrival_ms: dict[str, Floats] = {}
        none = np.full(self.numbers.size, NO_WAIT)
        for name in in_order({name: place.waits_for for name, place in self.places.items()}):
            place = self.places.get(name)
            if place is None or name not in self.finishes or not place.waits_for:
                continue
            if place.kind == Source.kind:
                # A source with upstreams is the reading end of hops.
                sent_ms = [self.finishes[up].ewt_ms for up in place.waits_for if up in self.finishes]
                own_ms = self.finishes[name].ewt_ms
                arrival_ms[name] = np.max([none, *(np.where(ewt <= own_ms, ewt, NO_WAIT) for ewt in sent_ms)], axis=0)
            elif arrival_ms.keys() >= {*place.waits_for}:
                arrival_ms[name] = np.max([arrival_ms[up] for up in place.waits_for], axis=0)
        return arrival_ms
