"""Past days do not change the results of the last hour."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import rollup
from support import past_days
from tidemark.model.project.files import CHECKOUT
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import LATENCY_MINUTES, LATENCY_ROLLUP
from tidemark.model.topology import load
from tidemark.reports.outline import outline
from tidemark.storage.delta.tables import scan
from tidemark.why.walk import why

DAYS, MINUTES = 1, 1
FLIGHTS = CHECKOUT / "jobs" / "topologies" / "flights.toml"


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    found = {}
    for days in (0, DAYS):
        found[days] = tmp_path_factory.mktemp("days")
        play = past_days.write(found[days], days, minutes=MINUTES)
        rollup.run(Layout(found[days]), "flights", topology_outline=outline(play.topology, ()))
    return found


def last_hour(home: Path) -> pl.DataFrame:
    rows = scan(Layout(home).report_table("flights", LATENCY_ROLLUP.name)).collect()
    is_last = (pl.col("interval_start").dt.epoch("ms") >= past_days.MIDNIGHT_MS) & (pl.col("grain") == "minute")
    return rows.filter(is_last).select("scope", "operator", "task_id", "interval_start", "n").sort(pl.all())


def test_the_last_hour_has_the_same_rollup(homes: dict[int, Path]) -> None:
    assert last_hour(homes[0]).height > 0
    assert last_hour(homes[0]).equals(last_hour(homes[DAYS]))


def test_a_past_day_has_each_hour_once(homes: dict[int, Path]) -> None:
    # Each hour has one batch.
    rows = scan(Layout(homes[DAYS]).stream_table("flights", "status", LATENCY_MINUTES.name)).collect()
    assert sorted(rows["batch_id"].unique()) == [*range((24 * DAYS + 1) * MINUTES)]
    counted = scan(Layout(homes[DAYS]).report_table("flights", LATENCY_ROLLUP.name)).collect()
    hours = counted.filter(grain="hour", scope="operator", operator="flight_board")
    assert (hours.height, hours["interval_start"].n_unique()) == (24 * DAYS + 1, 24 * DAYS + 1)


def test_why_has_the_same_findings(homes: dict[int, Path]) -> None:
    topology = load(FLIGHTS)
    at_ms = past_days.MIDNIGHT_MS + MINUTES * past_days.MINUTE_MS
    found = [[(each.cause, each.operator) for each in why(topology, Layout(homes[n]), at_ms=at_ms)] for n in (0, DAYS)]
    assert found[0] == found[1] != []
