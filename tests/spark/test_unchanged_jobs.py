"""Jobs of a team's own run unchanged, and are streams for every command."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import critical_path
from tidemark.api.application import ApplicationOptions, run_application
from tidemark.clock import wall_clock_ms
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval, instant_ms, iso
from tidemark.recorded.queries import recorded_topology
from tidemark.why.walk import why

JOBS = Path(__file__).parent / "unchanged_jobs"
NOON = instant_ms("2026-03-01T12:00")
MINUTE = 60_000


@dataclass
class Shop:
    """A folder in which jobs of the topology `shop` run, one after the other."""

    home: Path
    files: dict[str, int] = field(default_factory=dict)

    @property
    def layout(self) -> Layout:
        return Layout(self.home / "warehouse")

    def feed(self, name: str, *orders: tuple[int, int, int]) -> None:
        """Writes a file of *orders*: id, ms after noon, amount."""
        folder, n = self.home / name, self.files.get(name, 0)
        folder.mkdir(exist_ok=True)
        lines = [{"id": key, "at": iso(NOON + at_ms), "amount": amount} for key, at_ms, amount in orders]
        (folder / f"{n}.json").write_text("\n".join(map(json.dumps, lines)))
        os.utime(folder / f"{n}.json", (1_000 + n, 1_000 + n))  # Spark reads the oldest first
        self.files[name] = n + 1

    def run(self, job: str, *inputs: str) -> int:
        """Runs *job* with these inputs, its output and its checkpoint."""
        names = {"topology": "shop", "sub_topology": job, "launch_id": job, "launched_by": "a test"}
        places = [*inputs, f"{job}_table", f"{job}_checkpoint"]
        arguments = {"application": JOBS / f"{job}.py", "argument": [str(self.home / place) for place in places]}
        lease = {"warehouse": self.layout.warehouse, "take_over": False, "silent_after": 60.0}
        return run_application(ApplicationOptions(**names, **arguments, **lease))

    def rows(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        """These columns of the table of a job, sorted."""
        return _rows(self.home / table, *columns)

    def recorded(self, query: str, table: str, *columns: str) -> list[tuple[Any, ...]]:
        """These columns of a table of *query* in the warehouse, sorted."""
        return _rows(self.layout.stream_table("shop", query, table), *columns)


def _rows(path: Path, *columns: str) -> list[tuple[Any, ...]]:
    rows = DeltaTable(path).to_pyarrow_table().select(columns).to_pylist()
    return sorted((tuple(row.values()) for row in rows), key=str)


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    return Shop(tmp_path)


def test_jobs_that_are_chained_by_tables_have_a_critical_path(shop: Shop) -> None:
    shop.feed("feed", (1, 0, 5), (2, 30_000, -1))
    shop.feed("feed", (3, 3 * MINUTE, 7))
    shop.feed("feed", (4, 5 * MINUTE, 9))
    assert [shop.run("land", "feed"), shop.run("clean", "land_table")] == [0, 0]

    topology = recorded_topology(shop.layout, "shop")
    assert topology is not None
    assert {name: [*read] for name, read in topology.upstreams.items()} == {
        "land:feed": [], "land": ["land:feed"], "clean:land_table": ["land"], "clean": ["clean:land_table"]
    }  # fmt: skip
    assert shop.rows("clean_table", "id") == [(1,), (3,), (4,)]
    # The watermark went to 12:02:50, and passed the windows that ended at 12:01 and 12:02.
    ends = sorted({end.minute for _, end in shop.recorded("clean", "operator_windows", "operator", "window_end")})
    assert ends == [1, 2]
    assert shop.recorded("land", "outcomes", "operator", "records_in", "passed")[:2] == [("land", 1, 1), ("land", 2, 2)]

    critical_path.run(shop.layout, topology, [], Interval(NOON, NOON + 10 * MINUTE))
