from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable

import critical_path
import rollup
from support.play import NOON, Play
from support.topologies import NEWEST_SENT
from tidemark.facts.liveness import drivers_of
from tidemark.facts.measures import sla_facts
from tidemark.facts.measures.groups import groups_seen
from tidemark.facts.measures.objectives import objective_facts
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Grain, Interval
from tidemark.model.slas.sla_spec import parse
from tidemark.model.tables.catalog import BATCHES, CRITICAL_PATHS, LATENCY_ROLLUP, PARTITION_BATCHES
from tidemark.query.sql import Warehouse
from tidemark.why.walk import why

DAY = Grain.DAY.length_ms
TODAY = NOON + 20 * DAY


def rolled_up(play: Play) -> pl.DataFrame:
    rollup.run(Layout(play.home), "play")
    rows = report(play, LATENCY_ROLLUP.name)
    return rows.filter(pl.col("interval_start").dt.epoch("ms") >= TODAY - DAY)


def with_paths(play: Play) -> pl.DataFrame:
    hour = Interval(TODAY, TODAY + Grain.HOUR.length_ms)
    critical_path.run(Layout(play.home), play.topology, (), hour)
    return report(play, CRITICAL_PATHS.name)


def measured_for_slas(play: Play) -> pl.DataFrame:
    at_ms, tables = TODAY + 121_000, Warehouse(play.home)
    measures = {
        "staleness": "board", "watermark_lag": "events", "records": "events", "completeness": "outcomes",
    }  # fmt: skip
    limits = {"error_after": "1 h", "owner": "o"}
    promised = {
        name: {"subject": subject, "measure": name, **limits}
        | ({"error_below": 1, "over": "10 min"} if name == "records" else {})
        for name, subject in measures.items()
    }
    promised["records"].pop("error_after")
    promised["silent"] = {"subject": "events", "by": ["partition"], "error_after": "1 min", "owner": "o"}
    promised["quick"] = {"subject": "events", "objective": {"latency": "1 s", "target": 0.99}, "owner": "o"}
    specs = parse({play.topology.name: promised}, play.topology, file="slas.toml")
    rows: list[object] = [*groups_seen(tables, play.topology, specs, at_ms=at_ms).values()]
    counted = {play.sub: play._batches[play.sub] - 1}
    rows += (of_objective := objective_facts(tables, play.topology, specs, counted, at_ms=at_ms))
    assert of_objective
    rows += sla_facts.facts(
        tables, play.topology, specs, drivers_of(Layout(play.home), play.topology, at_ms=at_ms), at_ms=at_ms
    )
    rows += sla_facts.newest_of_sinks(tables, play.topology, {"board"}, at_ms=at_ms)
    rows += sla_facts.accounts(tables, play.topology, at_ms=at_ms, since_ms=TODAY)
    assert sla_facts.later(tables, play.topology.name, at_ms=TODAY + 1_000) != {}
    return pl.DataFrame({"fact": sorted(map(str, rows))})


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> tuple[Play, set[Path]]:
    """A stream with batches on three days; the files before the last."""
    play = Play(NEWEST_SENT, tmp_path_factory.mktemp("days"))
    earlier: set[Path] = set()
    for day in range(3):
        noon = NOON + day * 10 * DAY
        if day:
            rolled_up(play)
        earlier = {*play.home.glob("streams/**/*.parquet")}
        for second in (0, 20, 40, 60, 90, 120):
            row = play.row("events", noon + second * 1_000, id="a", v=second)
            play.batch([row], at_ms=noon + second * 1_000 + 500)
    assert len(earlier) > 50
    return play, earlier


def test_measurements_for_slas_read_no_batch_of_earlier_days(days: tuple[Play, set[Path]], tmp_path: Path) -> None:
    play, earlier = days
    expected = measured_for_slas(play)
    rest = play.copy(shutil.copytree(play.home, tmp_path / "rest"))
    for file in earlier:
        if file.parent.name == BATCHES.name:
            spoil_rows(rest.home / file.relative_to(play.home))
    assert expected.height > 5
    assert measured_for_slas(rest).equals(expected)


def test_why_reads_no_fact_of_earlier_days(days: tuple[Play, set[Path]], tmp_path: Path) -> None:
    """Only the names of partitions are looked for in all rows, as one may have been silent for longer."""
    play, earlier = days
    at_ms = TODAY + 36 * Grain.HOUR.length_ms
    expected = why(play.topology, Layout(play.home), at_ms=at_ms)
    rest = play.copy(shutil.copytree(play.home, tmp_path / "rest"))
    for file in earlier:
        if file.parent.name != PARTITION_BATCHES.name:
            spoil_rows(rest.home / file.relative_to(play.home))
    assert why(play.topology, Layout(rest.home), at_ms=at_ms) == expected != []


def test_before_the_first_batch_nothing_is_known(days: tuple[Play, set[Path]]) -> None:
    play, _ = days
    tables, at_ms = Warehouse(play.home), NOON - 60_000
    lag = {"subject": "events", "measure": "watermark_lag", "error_after": "1 h", "owner": "o"}
    specs = parse({play.topology.name: {"lag": lag}}, play.topology, file="slas.toml")
    found = sla_facts.facts(
        tables, play.topology, specs, drivers_of(Layout(play.home), play.topology, at_ms=at_ms), at_ms=at_ms
    )
    assert {fact.what for fact in found} <= {"begun"}
    assert sla_facts.accounts(tables, play.topology, at_ms=at_ms, since_ms=at_ms) == []


def test_a_topology_began_with_its_own_first_batch(tmp_path: Path) -> None:
    Play(NEWEST_SENT.replace('"play"', '"older"', 1), tmp_path).batch(at_ms=NOON)
    play = Play(NEWEST_SENT, tmp_path)
    play.batch(at_ms=NOON + DAY)
    old = {"subject": "board", "measure": "staleness", "error_after": "1 h", "owner": "o"}
    specs = parse({"play": {"old": old}}, play.topology, file="slas.toml")
    found = sla_facts.facts(Warehouse(tmp_path), play.topology, specs, {}, at_ms=NOON + DAY + 1_000)
    assert [fact.at_ms for fact in found if fact.what == "begun"] == [NOON + DAY]


@pytest.mark.parametrize(
    ("work", "batches_read"),
    [(rolled_up, 0), (with_paths, 1)],  # paths need to know when a stream began
)
def test_work_of_a_day_reads_no_row_of_earlier_days(
    days: tuple[Play, set[Path]], tmp_path: Path, work: Callable[[Play], pl.DataFrame], batches_read: int
) -> None:
    play, earlier = days
    batches = sorted(play.home.glob("streams/**/batches/*.parquet"), key=lambda file: file.stat().st_mtime_ns)
    read_whole = batches[:batches_read]
    whole, rest = (play.copy(shutil.copytree(play.home, tmp_path / name)) for name in ("whole", "rest"))
    for file in earlier:
        if file not in read_whole:
            spoil_rows(rest.home / file.relative_to(play.home))
    expected = work(whole)
    assert expected.height > 0
    assert work(rest).equals(expected)


def spoil_rows(file: Path) -> None:
    """Leaves the statistics of *file*, and makes each of its rows unreadable."""
    content = file.read_bytes()
    footer = 8 + int.from_bytes(content[-8:-4], "little")
    file.write_bytes(content[:4] + b"\xff" * (len(content) - 4 - footer) + content[-footer:])


def report(play: Play, table: str) -> pl.DataFrame:
    """The rows of a report."""
    path = Layout(play.home).report_table("play", table)
    return pl.DataFrame(DeltaTable(str(path)).to_pyarrow_table()).sort(pl.all())
