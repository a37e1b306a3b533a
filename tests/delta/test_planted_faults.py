"""Planted faults: what was planted broke the promise, and the product names whose fault it is.

`support/fault_table.py` is the table. Each play is played once, and its promises are judged together.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from _pytest.mark import ParameterSet

import critical_path
import tidemark.account
from support.excess import excess, is_tiled, results
from support.fault_table import CONTROLS, FAULTS, Case, Owned, Stage
from support.job_world import JobWorld
from support.play import NOON, Row, ms
from support.world import World
from tidemark.model.settings.intervals import Interval
from tidemark.model.sla_spec import QUANTILES, WORK_QUANTILES, Measure, SlaSpec, parse
from tidemark.model.tables.catalog import SLA_RESULTS
from tidemark.semantics.sla import BurnRate
from tidemark.storage.delta.report_tables import open_report

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # great-expectations imports a module that Python 3.11 deprecates
    from tidemark.sla.check import run as run_check

FOLLOWED = frozenset({*QUANTILES, Measure.BURN_RATE, Measure.STALENESS})
"""Measures of single records, which `excess` can follow."""
AnyWorld = World | JobWorld
Play = tuple[Stage, tuple[Any, ...], float]
"""A stage, what is planted, and the second of the check."""


def cases_by_play(cases: Sequence[Case]) -> dict[Play, list[Case]]:
    """Returns the rows that one play answers."""
    plays: dict[Play, list[Case]] = defaultdict(list)
    for case in cases:
        plays[case.stage, case.faults, case.at_s].append(case)
    return plays


PLAYS = cases_by_play([*FAULTS, *CONTROLS])


class Plays:
    """Plays each stage and each fault once, in the folder *home*."""

    def __init__(self, home: Path) -> None:
        self._home, self._n = home, 0
        self.healthy, self.played = cache(self._healthy), cache(self._played)

    def _folder(self) -> Path:
        self._n += 1
        return self._home / str(self._n)

    def _healthy(self, stage: Stage) -> AnyWorld:
        world = stage.make(stage.toml, self._folder(), traffic=stage.traffic, costs=stage.costs, starts_s=stage.starts_s)
        world.run(stage.since_s)
        return world

    def _played(self, play: Play) -> tuple[AnyWorld, dict[str, Row]]:
        """Returns the world after *play*, and the result of the check of each promise that its rows name."""
        stage, faults, at_s = play
        world = self.healthy(stage).copy(self._folder()).plant(*faults)
        world.run(at_s)
        for fault in faults:
            fault.end(world, at_s)
        specs = specs_of(stage, world, *dict.fromkeys(case.promise for case in PLAYS[play]))
        if any(spec.measure in WORK_QUANTILES for spec in specs):
            critical_path.run(world.layout, world.topology, specs, Interval(NOON, ms(at_s)))
        run_check(world.layout, world.topology, specs, at_ms=ms(at_s), run_id="r")
        path = world.layout.report_table(world.topology.name, SLA_RESULTS.name)
        return world, {row["sla"]: row for row in open_report(SLA_RESULTS, path).to_pyarrow_table().to_pylist()}


def specs_of(stage: Stage, world: AnyWorld, *promises: str) -> Sequence[SlaSpec]:
    slas = {name: {**stage.promises[name], "owner": "o"} for name in promises}
    return parse({world.topology.name: slas}, world.topology, file="slas.toml")


@pytest.fixture(scope="module")
def plays(tmp_path_factory: pytest.TempPathFactory) -> Plays:
    return Plays(tmp_path_factory.mktemp("plays"))


def agrees(found_ms: float, wanted_ms: float, error_ms: float = 0) -> bool:
    """Returns whether an amount is within the larger of 10 %, the clocks' error and 100 ms of what was planted."""
    return abs(found_ms - wanted_ms) <= max(abs(wanted_ms) / 10, error_ms, 100)


@pytest.mark.parametrize("play", [pytest.param(play, id=cases[0].name) for play, cases in PLAYS.items()])
def test_what_is_planted_breaks_the_promise(plays: Plays, play: Play) -> None:
    """The amounts of the table are what the world spent, whoever reads the account."""
    world, results_by_promise = plays.played(play)
    assert all(is_tiled(driver) for driver in world.drivers.values())
    for case in PLAYS[play]:
        assert results_by_promise[case.promise]["verdict"] == case.verdict, case.name
        assert amounts_that_differ(world, case) == [], case.name


def amounts_that_differ(world: AnyWorld, case: Case) -> list[str]:
    """Returns how the amounts of *case* differ from what happened in *world*."""
    (spec,) = specs_of(case.stage, world, case.promise)
    has_amounts = any(owned.amount_ms is not None for owned in case.owners)
    if isinstance(world, World) and case.is_followed and spec.measure in FOLLOWED and has_amounts:
        return owners_followed(world, case, spec)
    return owners_planted(world, case)


def owners_planted(world: AnyWorld, case: Case) -> list[str]:
    """Returns how the owners of *case* differ from what its faults planted."""
    wrong = []
    for owned in case.owners:
        amounts = [n for fault in case.faults if covers(fault.whose, owned) for n in world.planted[fault]]
        if owned.amount_ms is not None and amounts and not agrees(owned.amount_ms, median(amounts)):
            wrong.append(f"{owned}: planted {median(amounts)} ms")
        if owned.records is not None and amounts and len(amounts) != owned.records:
            wrong.append(f"{owned}: planted {len(amounts)} records")
    return wrong


def covers(whose: tuple[str, str], owned: Owned) -> bool:
    """Returns whether a fault of *whose* is one of *owned*: that of a disk is of all targets, one of a topic of all partitions."""
    owner, detail = whose
    return owner == owned.owner and (detail in {"", owned.detail} or detail == f"{owned.detail.split('/')[0]}/None")


def owners_followed(world: World, case: Case, spec: SlaSpec) -> list[str]:
    """Returns how the owners of *case* differ from those whose time the excess was."""
    limit_ms = spec.limits.objective.threshold_ms if isinstance(spec.limits, BurnRate) else spec.limits.error_after_ms
    found = excess(results(world, spec.subject), limit_ms, ms(case.stage.since_s))
    whole_ms = sum(each.median_ms for each in found.values())
    # Of the records of a round the first is two ms younger than the last: that is nobody's excess.
    told = {whose for whose, each in found.items() if each.largest_ms > 110 and each.median_ms >= whole_ms / 10}
    wanted = {(owned.owner, owned.detail): owned.amount_ms or 0 for owned in case.owners}
    wrong = [f"{whose}: {found[whose]}, not in the table" for whose in sorted(told - wanted.keys())]
    for whose, amount_ms in wanted.items():
        each = found.get(whose)
        if each is None or not (agrees(each.largest_ms, amount_ms) or agrees(each.median_ms, amount_ms)):
            wrong.append(f"{whose}: {each}, in the table {amount_ms} ms")
    return wrong
