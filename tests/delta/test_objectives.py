"""Burn rates and budgets of objectives, calculated by hand.

A check reads rollups for what they have counted, and facts for the rest.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest

import rollup
from support.latency_facts import listed, statistics
from support.report_warehouse import CheckJob, TestWarehouse
from tidemark.facts import latency_facts
from tidemark.facts.measures.objectives import LaterFacts, objectives_sql
from tidemark.model import topology
from tidemark.model.project.files import Project
from tidemark.model.slas.sla_spec import parse
from tidemark.model.tables.catalog import (
    BATCHES,
    INCIDENTS,
    LATENCY_MINUTES,
    LATENCY_ROLLUP,
    SLA_RESULTS,
)
from tidemark.query import sql
from tidemark.storage.delta import datasets

NOW = 1_770_000_000_000  # 2026-02-02T02:40:00Z
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
TOPOLOGY = """
name = "t"
[operators.events]
kind = "source"
sub_topology = "s"
topic = "e"
fields = "id string, at bigint"
timestamp = "at"
bound = "0 s"
"""
OBJECTIVE = 'subject = "events"\nowner = "o"\nobjective = { latency = "1 s", target = 0.99, min_records = 100 }\n'


@pytest.fixture
def project(own_project: Project) -> Project:
    (own_project.topologies / "t.toml").write_text(TOPOLOGY)
    own_project.slas.write_text(f"[t.quick]\n{OBJECTIVE}")
    return own_project


Check = Callable[..., dict[str, dict[str, Any]]]


class Records:
    """Writes batches of records of 100 ms or, if slow, 9 s."""

    def __init__(self, warehouse: TestWarehouse) -> None:
        self.warehouse, self.batches = warehouse, 0

    def add(self, age_ms: int, n: int, slow: int = 0) -> None:
        """Writes *n* records that were finished *age_ms* before NOW."""
        of = {"batch_id": self.batches, "operator": "events", "kind": "source", "finished_at": NOW - age_ms}
        of["task_id"] = "s_0"
        latencies = [100] * (n - slow) + [9_000] * slow
        self.warehouse.write(LATENCY_MINUTES, [{**of, **statistics(latencies), "buckets": listed(latencies)}])
        times = {"decided_at": NOW - age_ms - 200, "finished_at": NOW - age_ms}
        self.warehouse.write(BATCHES, [{"batch_id": self.batches, **times}])
        self.batches += 1

    def roll_up(self) -> None:
        rollup.run(self.warehouse.layout, "t")


@pytest.fixture
def records(warehouse: TestWarehouse) -> Records:
    return Records(warehouse)


@pytest.fixture
def check(warehouse: TestWarehouse, project: Project, check_job: CheckJob) -> Check:
    """Makes the job `check_sla` at NOW, and returns its results by name."""

    def of_run(run_id: str = "r") -> dict[str, dict[str, Any]]:
        check_job(warehouse.layout.warehouse, project.topologies / "t.toml", "2026-02-02T02:40Z", run_id)
        return {row["sla"]: row for row in warehouse.report(SLA_RESULTS) if row["run_id"] == run_id}

    return of_run


def test_40_of_10_000_slow_records_leave_60_percent(warehouse: TestWarehouse, records: Records, check: Check) -> None:
    """The budget of 10,000 records is 100, and 40 are spent."""
    records.add(28 * DAY + 1, 5_000, slow=5_000)  # before the window
    records.add(28 * DAY, 2_000, slow=10)
    records.add(20 * DAY, 7_000, slow=20)
    records.roll_up()
    records.add(3 * MINUTE, 1_000, slow=10)

    found = check()

    assert {*found} == {"quick_1h", "quick_6h", "quick_3d"}
    for row in found.values():
        state = (row["objective"], row["window_ms"], row["window_records"], row["window_slow"], row["budget_left"])
        assert state == ("quick", 28 * DAY, 10_000, 40, pytest.approx(0.6))
        assert (row["records"], row["burn_rate"]) == (1_000, pytest.approx(1.0))  # of the last batch: 10 of 1,000
    assert {name: row["verdict"] for name, row in found.items()} == {
        "quick_1h": "pass", "quick_6h": "pass", "quick_3d": "error",
    }  # fmt: skip
    (budget,) = sql.Warehouse(warehouse.layout.warehouse).ask("FROM error_budgets").objects
    columns = ("records", "slow_records", "allowed_records", "budget_left", "burn_rate_1h", "burn_rate_3d")
    assert [budget[name] for name in columns] == [10_000, 40, *map(pytest.approx, (100, 0.6, 1, 1))]

    shutil.rmtree(warehouse.layout.report_table("t", LATENCY_ROLLUP.name))
    assert {row["window_slow"] for row in check("no rollup").values()} == {40}


@pytest.mark.parametrize(
    ("in_5_min", "in_1_h", "verdicts"),
    [
        # 15 % in 5 min, and 29 of 200 in the hour: 15 and 14.5 times the budget of 1 %.
        (15, 14, {"quick_1h": "error", "quick_6h": "error", "quick_3d": "error"}),
        # 28 of 200 is 14 times the budget: below 14.4, and above 6.
        (15, 13, {"quick_1h": "pass", "quick_6h": "error", "quick_3d": "error"}),
        # It has ended for the shortest window, while the half hour still burns.
        (0, 40, {"quick_1h": "pass", "quick_6h": "error", "quick_3d": "error"}),
    ],
)
def test_long_and_short_windows_must_burn(
    warehouse: TestWarehouse,
    records: Records,
    check: Check,
    in_5_min: int,
    in_1_h: int,
    verdicts: dict[str, str],
) -> None:
    records.add(20 * MINUTE, 100, slow=in_1_h)
    records.roll_up()
    records.add(4 * MINUTE, 100, slow=in_5_min)
    found = check()
    assert {name: row["verdict"] for name, row in found.items()} == verdicts
    severities = {"quick_1h": "critical", "quick_6h": "critical", "quick_3d": "warning"}
    opened = {row["sla"]: row["severity"] for row in warehouse.report(INCIDENTS)}
    assert opened == {name: severities[name] for name, verdict in verdicts.items() if verdict == "error"}


def test_too_few_records_page_nobody(warehouse: TestWarehouse, records: Records, check: Check) -> None:
    records.add(2 * MINUTE, 99, slow=99)
    found = check()
    assert {(row["verdict"], row["budget_left"], row["window_records"]) for row in found.values()} == {
        ("unknown", None, 99)
    }
    assert warehouse.report(INCIDENTS) == []


def test_counted_facts_are_not_read_again(
    warehouse: TestWarehouse, records: Records, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (datasets, sql):  # of many files; to look into a few takes no longer than to read what logs say
        monkeypatch.setattr(module, "MOST_FILES", 0)
    records.add(2 * DAY, 1_000, slow=7)
    (counted,) = warehouse.layout.stream_table("t", "s", LATENCY_MINUTES.name).glob("*.parquet")
    records.add(DAY + HOUR, 1_000)
    records.add(DAY, 1_000)
    records.roll_up()
    records.add(MINUTE, 1_000)
    counted.write_bytes(b"nobody reads this")
    assert {row["window_slow"] for row in check().values()} == {7}


def test_records_of_a_rollup_that_died_count_once(
    warehouse: TestWarehouse, records: Records, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rollup that dies has written rows without a mark."""
    records.add(2 * HOUR, 1_000, slow=5)
    records.roll_up()
    records.add(30 * MINUTE, 1_000, slow=2)
    with monkeypatch.context() as died:
        died.setattr(latency_facts.LatencyFacts, "marks", lambda *of: {})
        records.roll_up()
    found = check()
    assert {(row["window_records"], row["window_slow"]) for row in found.values()} == {(2_000, 7)}


def test_all_windows_of_all_objectives_are_one_scan() -> None:
    of_topology = topology.parse(
        {
            "name": "t",
            "operators": {
                "events": {
                    "kind": "source", "sub_topology": "s", "topic": "e", "fields": "id string, at bigint",
                    "timestamp": "at", "bound": "0 s",
                }
            },
        },
        file="t.toml",
    )  # fmt: skip
    table = {"subject": "events", "owner": "o"}
    slas = {f"o{n}": {**table, "objective": {"latency": f"{n} s", "target": 0.99}} for n in (1, 2, 3, 4)}
    specs = parse({"t": slas}, of_topology, file="slas.toml")
    text = objectives_sql(of_topology, specs, {"s": LaterFacts(NOW - HOUR, 7)}, at_ms=NOW)
    assert len(specs) == 12
    assert (text.count("FROM latency_minutes"), text.count("FROM latency_rollup")) == (1, 1)
    # 1 h, 6 h, 3 d, their twelfths, and 28 d; 6 h / 12 is half an hour, and 3 d / 12 is 6 h.
    listed = text.partition("VALUES ")[2].partition(" AS windows")[0]
    assert [int(pair.split(",")[0]) for pair in listed.strip("()").split("), (")] == [
        5 * MINUTE, 30 * MINUTE, HOUR, 6 * HOUR, 3 * DAY, 28 * DAY,
    ]  # fmt: skip
