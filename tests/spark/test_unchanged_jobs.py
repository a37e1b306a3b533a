"""Jobs run unchanged in Spark, and their faults are named."""

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

from tidemark.api.application import ApplicationOptions, run_application
from tidemark.clock import wall_clock_ms
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import instant_ms, iso
from tidemark.recorded.queries import recorded_topology
from tidemark.why.walk import why

pytestmark = pytest.mark.long  # each runs jobs in Spark, 10 to 60 s; test_api.py has the short case
JOBS = Path(__file__).parent / "unchanged_jobs"
NOON = instant_ms("2026-03-01T12:00")
MINUTE = 60_000


@dataclass
class Shop:
    """The folder of the jobs of the topology `shop`."""

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


def causes(shop: Shop, operator: str | None = None) -> list[str]:
    topology = recorded_topology(shop.layout, "shop")
    assert topology is not None
    return [str(each.cause) for each in why(topology, shop.layout, at_ms=wall_clock_ms(), operator=operator)]


def test_a_chain_of_three_jobs_is_one_topology(shop: Shop) -> None:
    shop.feed("feed", (1, 0, 5), (2, 30_000, -1))
    shop.feed("feed", (3, 3 * MINUTE, 7))
    shop.feed("feed", (4, 5 * MINUTE, 9))
    statuses = [shop.run("land", "feed"), shop.run("clean", "land_table"), shop.run("total", "clean_table")]
    assert statuses == [0, 0, 0]

    topology = recorded_topology(shop.layout, "shop")
    assert topology is not None
    assert {name: [*read] for name, read in topology.upstreams.items()} == {
        "land:feed": [], "land": ["land:feed"], "clean:land_table": ["land"], "clean": ["clean:land_table"],
        "total:clean_table": ["clean"], "total": ["total:clean_table"],
    }  # fmt: skip
    assert shop.rows("clean_table", "id") == [(1,), (3,), (4,)]
    # The watermark is 10 s behind the record of 12:05; the last window is open.
    assert [amount for _, amount in shop.rows("total_table", "end", "amount")] == [5, 7]
    # When the record of 12:05 was read, the watermark was 12:02:50.
    ends = {end.minute for operator, end in shop.recorded("clean", "operator_windows", "operator", "window_end")}
    assert ends == {1, 2}
    assert [n for each, n in shop.recorded("land", "outcomes", "operator", "passed") if each == "land"] == [1, 1, 2]
    assert causes(shop)[0] == "driver_dead"  # it ended by itself, and Airflow would start it again


def test_a_job_with_foreach_batch_runs_unchanged(shop: Shop) -> None:
    shop.feed("feed", (1, 0, 5))
    shop.feed("feed", (2, 0, 6))
    assert shop.run("enrich", "feed") == 0
    assert shop.rows("enrich_table", "id", "batch") == [(1, 0), (2, 1)]
    # The query has no name, and gets one from its job.
    assert shop.recorded("enrich_1", "batches", "batch_id", "records_in") == [(0, 1), (1, 1)]


def test_a_join_of_two_streams_runs_unchanged(shop: Shop) -> None:
    shop.feed("orders", (1, 0, 5), (2, 0, 5))
    shop.feed("payments", (1, 30_000, 5), (2, 90_000, 5))
    assert shop.run("pair", "orders", "payments") == 0
    assert shop.rows("pair_table", "id") == [(1,)]
    outcomes = shop.recorded("pairs", "outcomes", "operator", "records_in")
    assert {("pairs", 4), ("pairs:orders", 2), ("pairs:payments", 2)} <= {*outcomes}


def test_a_removal_of_duplicates_runs_unchanged(shop: Shop) -> None:
    shop.feed("feed", (1, 10 * MINUTE, 5), (1, 10 * MINUTE, 5))
    shop.feed("feed", (2, 10 * MINUTE, 5))
    shop.feed("feed", (3, 0, 5))  # behind the watermark
    assert shop.run("first_seen", "feed") == 0
    assert shop.rows("first_seen_table", "id") == [(1,), (2,)]
    late = [n for operator, n in shop.recorded("firsts", "outcomes", "operator", "late") if operator == "firsts"]
    assert sum(late) == 1


def test_a_stateful_processor_runs_unchanged(shop: Shop) -> None:
    shop.feed("feed", (1, 0, 5), (1, 0, 5))
    shop.feed("feed", (1, 0, 5))
    assert shop.run("count_orders", "feed") == 0
    assert shop.rows("count_orders_table", "id", "n") == [(1, 2), (1, 3)]
    assert shop.recorded("counts", "batches", "batch_id", "records_in") == [(0, 2), (1, 1)]


def test_faults_of_a_job_are_named_and_recovered(shop: Shop) -> None:
    shop.feed("feed", (1, 0, 5))
    assert shop.run("fragile", "feed") == 0
    # Code of the job raises an exception.
    shop.feed("feed", (2, 0, 13))
    assert shop.run("fragile", "feed") == 1
    assert "13 is no amount" in reason(shop)
    (shop.home / "feed" / "1.json").write_text('{"id": 2, "amount": 12}')
    # A record of the feed is not JSON.
    shop.feed("feed", (3, 0, 5))
    (shop.home / "feed" / "2.json").write_text("{no json")
    assert shop.run("fragile", "feed") == 1
    assert "MALFORMED_RECORD" in reason(shop)
    (shop.home / "feed" / "2.json").write_text('{"id": 3, "amount": 5}')
    assert shop.run("fragile", "feed") == 0
    assert shop.rows("fragile_table", "id") == [(1,), (2,), (3,)]
    # A file that the stream needs has vanished, as a deleted topic does.
    shop.feed("feed", (4, 0, 5))
    (shop.home / "fragile_table").rename(shop.home / "away")
    (shop.home / "fragile_table").write_text("no table")
    assert shop.run("fragile", "feed") == 1
    assert "fragile_table" in reason(shop)
    (shop.home / "fragile_table").unlink()
    (shop.home / "away").rename(shop.home / "fragile_table")
    assert shop.run("fragile", "feed") == 0
    assert shop.rows("fragile_table", "id") == [(1,), (2,), (3,), (4,)]
    # The checkpoint is lost: the query begins again, with batches of new numbers.
    (shop.home / "fragile_checkpoint").rename(shop.home / "lost")
    assert shop.run("fragile", "feed") == 0
    assert "new_checkpoint" in causes(shop)
    ids = [n for (n,) in shop.recorded("fragile", "batches", "batch_id")]
    assert ids == [*range(len(ids))]


def reason(shop: Shop) -> str:
    """Returns the observation about the dead driver."""
    topology = recorded_topology(shop.layout, "shop")
    assert topology is not None
    finding = why(topology, shop.layout, at_ms=wall_clock_ms())[0]
    assert finding.cause == "driver_dead"
    return finding.seen
