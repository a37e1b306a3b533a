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
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Grain, Interval
from tidemark.model.tables.catalog import CRITICAL_PATHS, LATENCY_ROLLUP

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
        for second in (0, 60, 120):
            row = play.row("events", noon + second * 1_000, id="a", v=second)
            play.batch([row], at_ms=noon + second * 1_000 + 500)
    assert len(earlier) > 50
    return play, earlier


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
