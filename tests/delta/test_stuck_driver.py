"""A driver that was stuck for 63 minutes is 63 minutes on the path, while it is stuck and after it went on.

The stream `sums` takes its reader's batch at 13:50:15 and works on it until 14:53:15. It closes the window that ended
at 13:45:10, which `reads` finished at 13:50:10, when the next records came. No report was made before.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import critical_path
from support.fault_table import HOURS, slow
from support.play import ms
from support.world import World
from tidemark.cli.explain import path as path_command
from tidemark.cli.explain import topology as topology_command
from tidemark.facts.answers import answers_over
from tidemark.facts.interval_facts import PageFacts, page_facts
from tidemark.facts.report_rows import report_rows
from tidemark.model.settings.intervals import Interval, utc
from tidemark.model.slas.sla_spec import parse
from tidemark.model.tables.catalog import CRITICAL_PATH_STEPS
from tidemark.reports.documents.path import path_document
from tidemark.reports.documents.topology import topology_document

STUCK_MS = 63 * 60_000
LAST_HOUR = Interval(ms(7_200), ms(10_800))
WINDOW_END = utc(ms(6_310))
SLAS = parse(
    {"play": {"sums_work": {"subject": "sums", "measure": "operator_latency_p50", "error_after": "1 h", "owner": "o"}}},
    HOURS.make(HOURS.toml, Path("unused")).topology,
    file="slas.toml",
)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], World]:
    """Plays the fault until a second, and makes the report of the last hour then."""
    home = tmp_path_factory.mktemp("hours")
    healthy = HOURS.make(HOURS.toml, home / "healthy", traffic=HOURS.traffic, starts_s=HOURS.starts_s)
    healthy.run(HOURS.since_s)

    def play(until_s: int) -> World:
        world = healthy.copy(home / str(until_s)).plant(slow("sums", STUCK_MS, HOURS.since_s, times=1))
        world.run(until_s)
        critical_path.run(world.layout, world.topology, SLAS, LAST_HOUR)
        return world

    return play


@pytest.fixture(scope="module")
def stuck(played: Callable[[int], World]) -> World:
    return played(10_380)


@pytest.fixture(scope="module")
def went_on(played: Callable[[int], World]) -> World:
    return played(10_820)


def latency_ms(world: World, operator: str) -> int | None:
    """Returns the latency that the report has of an operator in the window."""
    is_step = (WINDOW_END, operator)
    rows = report_rows(world.layout, "play", CRITICAL_PATH_STEPS).rows_by_key(["window_end", "operator"], named=True)
    (step,) = rows[is_step]
    return step["latency_ms"]


def page(world: World) -> PageFacts:
    return page_facts(answers_over(world.layout.warehouse, "play"), world.topology, LAST_HOUR)


def shown(world: World, at_s: int) -> dict[str, Any]:
    """Returns the window that `tidemark path` shows."""
    (window,) = path_document(world.layout.warehouse, world.topology, now_ms=ms(at_s))["windows"]
    return window


def test_a_report_has_how_long_the_driver_has_been_stuck(stuck: World) -> None:
    """`reads` finished the window at 13:50:10.25, and the newest fact is the heartbeat of 14:53:00."""
    assert latency_ms(stuck, "by_id_source") == 10_380_000 - 6_610_250
    assert latency_ms(stuck, "sums") is None


def test_a_report_has_how_long_the_operator_worked(went_on: World) -> None:
    assert latency_ms(went_on, "sums") == STUCK_MS + HOURS.costs.work


def test_the_page_of_the_last_hour_shows_windows_that_were_open_in_it(stuck: World, went_on: World) -> None:
    """The window ended 14 minutes before the hour, and no other waited as long."""
    while_stuck, after = page(stuck), page(went_on)
    assert while_stuck.slowest[0]["end_ms"] == after.slowest[0]["end_ms"] == ms(6_310)
    assert while_stuck.slowest[0]["state"] == "stuck"
    assert while_stuck.slowest[0]["latency_ms"] == pytest.approx(STUCK_MS, abs=60_000)
    assert [row["worst_ms"] for row in after.judged] == [STUCK_MS + HOURS.costs.work]
    # Each five minutes from 13:45:10 to 14:55:10 a window ended; that of 13:40:10 was finished before the hour.
    assert after.summary["windows"] == 15


def test_path_shows_the_oldest_window_that_is_not_finished(stuck: World, went_on: World) -> None:
    window = shown(stuck, 10_380)
    assert (window["window_end"], window["state"]) == (WINDOW_END, "stuck")
    assert window["age_ms"] == 10_380_000 - 6_310_000
    assert window["before_source_ms"] + window["latency_ms"] == window["age_ms"]
    assert "by_id_source (3,769,750 ms, stuck)" in path_command.as_text("play", window)
    assert shown(went_on, 10_820)["window_end"] == utc(ms(10_510))


def test_topology_shows_how_long_the_driver_has_been_stuck(stuck: World, went_on: World) -> None:
    def told(world: World, at_s: int) -> str:
        return topology_command.as_text(
            topology_document(world.layout.warehouse, world.topology, at_ms=ms(at_s))
        ).splitlines()[1]

    assert "by_id_source (3,769,750 ms, stuck)" in told(stuck, 10_380)
    # The instant decides, and not what the tables have come to say since.
    assert "by_id_source (3,769,750 ms, stuck)" in told(went_on, 10_380)
    assert "stuck" not in told(went_on, 10_820)
