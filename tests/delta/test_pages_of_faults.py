"""Faults break several promises: each fault is one page, which ends by itself.

The faults are those of `support/fault_table.py`; whom they are blamed on is shown by `test_planted_faults.py`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import critical_path
from support.fault_table import FAULTS, SHOP
from support.healthy import AnyWorld, Healthy
from support.planted import Silent, Slow, WrongClock
from support.play import NOON, Play, Row, ms
from support.world import Fault
from tidemark.model.project.files import CHECKOUT
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval
from tidemark.model.sla_spec import load, parse
from tidemark.model.tables.catalog import ALERTS, INCIDENTS, Table
from tidemark.storage.delta.report_tables import open_report
from tidemark.stream.decide import decision

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # great-expectations imports a module that Python 3.11 deprecates
    from tidemark.sla.check import run as run_check

OF_TIME = [
    "board_in_time", "shelf_in_time", "totals_in_time", "totals_in_budget", "board_is_fresh", "totals_are_fresh",
    "time_goes_on", "enough_records",
]  # fmt: skip
"""Promises on both sides of a hop."""


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Healthy:
    return Healthy(tmp_path_factory.mktemp("healthy"))


@pytest.fixture
def shop(healthy: Healthy, tmp_path: Path) -> Callable[..., AnyWorld]:
    return lambda *faults: healthy.copy(SHOP, tmp_path / "warehouse").plant(*faults)


def checked(world: AnyWorld, at_s: float) -> list[tuple[str, str | None, str]]:
    """Returns owner, detail and change of each page after a check at that second."""
    world.run(at_s)
    slas = {name: {**SHOP.promises[name], "owner": "o", "resolve_after": "0 s"} for name in OF_TIME}
    specs = parse({world.topology.name: slas}, world.topology, file="slas.toml")
    run_check(world.layout, world.topology, specs, at_ms=ms(at_s), run_id=str(at_s))
    pages = stored(world.layout, world.topology.name, ALERTS)
    return sorted((page["cause"], page["cause_operator"], page["change"]) for page in pages if page["audience"] is None)


def stored(layout: Layout, topology: str, table: Table) -> list[Row]:
    """Returns all rows of a report."""
    return open_report(table, layout.report_table(topology, table.name)).to_pyarrow_table().to_pylist()
