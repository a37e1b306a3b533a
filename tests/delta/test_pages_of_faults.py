"""Faults break several promises: each fault is one page, which ends by itself.

The faults are those of `support/fault_table.py`; `test_planted_faults.py` shows whose they are.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from _pytest.mark import ParameterSet

from support.fault_table import FAULTS, SHOP, Case
from support.healthy import AnyWorld, Healthy
from support.planted import Silent, Slow
from support.play import NOON, Play, Row, ms
from tidemark.model.project.files import CHECKOUT
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval
from tidemark.model.slas.sla_spec import load, parse
from tidemark.model.tables.catalog import ALERTS, INCIDENTS, Table
from tidemark.storage.delta.report_tables import open_report
from tidemark.stream.decide import decision

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # great-expectations imports a module that Python 3.11 deprecates
    import critical_path
    from tidemark.sla.check import run as run_check

EIGHT = [
    "board_in_time", "shelf_in_time", "totals_in_time", "totals_in_budget", "board_is_fresh", "totals_are_fresh",
    "time_goes_on", "enough_records",
]  # fmt: skip
"""Promises on both sides of a hop."""


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Healthy:
    return Healthy(tmp_path_factory.mktemp("healthy"))


def pages(world: AnyWorld, at_s: float, promises: Sequence[str] = EIGHT) -> list[tuple[str, str, str]]:
    """Returns owner, detail and change of each page, after a check of *promises* at that second."""
    world.run(at_s)
    slas = {name: {**SHOP.promises[name], "owner": "o", "resolve_after": "0 s"} for name in promises}
    specs = parse({world.topology.name: slas}, world.topology, file="slas.toml")
    run_check(world.layout, world.topology, specs, at_ms=ms(at_s), run_id=str(at_s))
    return sorted((row["cause"], place_of(row), row["change"]) for row in stored(world.layout, "play", ALERTS))


def place_of(row: Row) -> str:
    """Returns the detail of the cause in *row*."""
    return row["cause_operator"] + ("" if row["cause_partition"] is None else f"/{row['cause_partition']}")


def stored(layout: Layout, topology: str, table: Table) -> list[Row]:
    return open_report(table, layout.report_table(topology, table.name)).to_pyarrow_table().to_pylist()


def of_one_owner() -> Iterator[ParameterSet]:
    """Yields the faults that break some of the EIGHT, and belong to one owner."""
    for case in FAULTS:
        is_single = len(case.owners) == 1 and not case.name.startswith("pair")
        if case.stage is SHOP and case.promise in EIGHT and is_single:
            marks = [] if case.name in {"dead stream", "dead source"} else [pytest.mark.long]
            yield pytest.param(case, id=case.name, marks=marks)


@pytest.mark.parametrize("case", [*of_one_owner()])
def test_a_fault_is_one_page(healthy: Healthy, tmp_path: Path, case: Case) -> None:
    world = healthy.copy(SHOP, tmp_path / "warehouse").plant(*case.faults)
    (owned,) = case.owners
    assert pages(world, case.at_s) == [(owned.owner, owned.detail, "opened")]


def test_a_silent_partition_is_one_page_beside_a_promise_about_numbers(healthy: Healthy, tmp_path: Path) -> None:
    """The records that are missing are its producer's, and time waits for its next one."""
    world = healthy.copy(SHOP, tmp_path / "warehouse").plant(Silent(1, 245))
    (page,) = pages(world, 310)
    assert page == ("producer", "events/1", "opened")
    (alert,) = stored(world.layout, "play", ALERTS)
    assert alert["slas"] == ["enough_records", "time_goes_on"]
    assert alert["blocked_by"].startswith(
        "about 18 records of `events` partition 1 that usually come were not produced"
    )


def test_two_faults_are_two_pages_and_each_ends_by_itself(healthy: Healthy, tmp_path: Path) -> None:
    silent, slow = Silent(1, 245, until_s=335), Slow("operator", "newest", 4_000, 245)
    world = healthy.copy(SHOP, tmp_path / "warehouse").plant(silent, slow)
    opened = [("next_record", "events/1", "opened"), ("operator", "newest", "opened")]
    # How many records come is not asked: the operator that is slow keeps them, too.
    assert pages(world, 330, EIGHT[:-1]) == opened
    assert pages(world, 345, EIGHT[:-1]) == sorted([*opened, ("next_record", "events/1", "resolved")])


def test_an_incident_of_time_ahead_names_its_partition(healthy: Healthy, tmp_path: Path) -> None:
    (case,) = (case for case in FAULTS if case.name == "producer ahead of the clock")
    world = healthy.copy(SHOP, tmp_path / "warehouse").plant(*case.faults)
    pages(world, case.at_s)
    (incident,) = (row for row in stored(world.layout, "play", INCIDENTS) if row["sla"] == case.promise)
    # Its newest record is of 12:05:00, 50 minutes ahead, and arrived 200 ms later.
    said = "records of `events` partition 1 are 49 min 59 s ahead of the clock"
    assert (incident["verdict"], incident["culprit"], incident["blocked_by"]) == ("ahead_of_clock", "events/1", said)


def test_the_slow_operator_of_the_demo_is_one_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Topology, SLAs and the delay of 400 ms are the demo's."""
    text = (CHECKOUT / "jobs" / "topologies" / "flights.toml").read_text(encoding="utf-8")
    play, layout = Play(text, tmp_path), Layout(tmp_path)
    monkeypatch.setattr(
        decision, "time", SimpleNamespace(sleep=lambda s: setattr(play, "now_ms", play.now_ms + round(1_000 * s)))
    )
    # A busy operator of the stream before it explains nothing: an operator's work waits for no other.
    play.slow_ms = {"flight_status": 2_500, "carrier_state": 400}
    flight = {"flight": "UA1", "carrier": "UA", "origin": "JFK", "dest": "LAX", "status": "departed"}
    for second in range(10, 40, 5):
        rows = [
            play.row("flight_events", ms(second - 1), **flight, dep_delay_min=float(second)),
            play.row("weather", ms(second - 1), origin="JFK", temp_f=float(second)),
        ]
        play.batch(rows, at_ms=ms(second), sub="status")
        play.hop("carriers", at_ms=ms(second + 3))

    specs = load(CHECKOUT / "expectations" / "slas.toml", play.topology)
    critical_path.run(layout, play.topology, specs, Interval(NOON, ms(37)))
    run_check(layout, play.topology, specs, at_ms=ms(37), run_id="r")

    (page,) = stored(layout, "flights", ALERTS)
    assert (page["change"], page["cause"], page["cause_operator"]) == ("opened", "operator", "carrier_state")
    named = page["slas"], page["owners"], page["culprit"]
    assert named == (["carrier_state_is_quick"], ["data platform"], "carrier_state")
