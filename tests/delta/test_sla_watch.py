"""Looks at SLAs: what they measure, and when they make a check.

The topology has one SLA of an age, `fresh` (an error from 60 s on), and one of an interval, `in_time` (an error from
1 s on). The newest change is 1 s old at NOW.
"""

from __future__ import annotations

import shutil
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from support.latency_facts import minute_row
from support.report_warehouse import TestWarehouse
from support.topologies import source, table, topology_of
from tidemark.control.shared_work import alone, is_worked_on
from tidemark.model import topology
from tidemark.model.project.layout import Layout
from tidemark.model.slas.channel_spec import Channel
from tidemark.model.slas.sla_spec import parse
from tidemark.model.tables.catalog import (
    BATCHES,
    CHANGES,
    COUNTED,
    EXPECTATION_RESULTS,
    INCIDENTS,
    LATENCY_MINUTES,
    OPERATOR_BATCHES,
    OPERATOR_WINDOWS,
    SLA_RESULTS,
)
from tidemark.sla.asked_check import SuitesFailed, checks_of, judge_what_waits
from tidemark.sla.incidents.tables import pending_changes, record_delivery
from tidemark.sla.unjudged import FoundRows, keep, unjudged, waiting_topologies
from tidemark.sla.watch import Found, Promised, SlaWatch, Why
from tidemark.storage.delta.tables import scan

NOW = 1_770_000_000_000
TOPOLOGY = topology.parse(
    {
        "name": "t",
        "check_every": "10 min",
        "operators": {
            "events": source(
                "id string", sub_topology="s", timestamp_range=["2000-01-01", "2100-01-01"], bound="3 s", max_ahead=None
            ),
            "latest": table(),
            "alarms": {"kind": "sink", "input": "latest", "topic": "alarms"},
        },
    },
    file="t.toml",
)
FRESH = {"subject": "changes", "measure": "staleness", "error_after": "60 s", "owner": "o"}
IN_TIME = {"subject": "alarms", "measure": "latency_p99", "error_after": "1 s", "owner": "o"}
SOUND = {"subject": "operator_batches", "measure": "contract", "owner": "o"}
CHANNEL = Channel(name="desk", notifier="", arguments={})


@dataclass
class Watched:
    """A warehouse whose SLAs are looked at, by a clock that tests set."""

    warehouse: TestWarehouse
    slas: dict[str, dict[str, Any]]
    at_ms: int = NOW
    watch: SlaWatch = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Goes on with a new process."""
        specs = parse({"t": self.slas}, TOPOLOGY, file="slas.toml")
        promised = Promised(topology=TOPOLOGY, specs=specs, unusable=(), channels=[CHANNEL], project=None)
        self.watch = SlaWatch(
            self.warehouse.layout, lambda: promised, clock=lambda: self.at_ms, sleep_s=lambda _: pytest.fail("waits")
        )

    def look(self, after_s: float, **options: Any) -> Found:
        self.at_ms = NOW + round(after_s * 1_000)
        return self.watch.look(**options)

    def goes_on(self, batch_id: int, finished_ms: int, *, latency_ms: int = 100) -> None:
        """Writes a batch of ten records, the newest change of which is 1 s old when it is finished."""
        write = self.warehouse.write
        write(CHANGES, [{"batch_id": batch_id, "operator": "latest", "seq": 0, "timestamp": finished_ms - 1_000}])
        write(LATENCY_MINUTES, [minute_row(finished_ms, [latency_ms] * 10, batch_id=batch_id, operator="alarms")])
        counts = dict.fromkeys(COUNTED, 0) | {"records_in": 1, "emitted": 1}
        write(OPERATOR_BATCHES, [{"batch_id": batch_id, "operator": "latest", "kind": "table", **counts}])
        write(BATCHES, [{"batch_id": batch_id, "finished_at": finished_ms}])

    def loses_a_record(self, batch_id: int, finished_ms: int) -> None:
        """Writes a batch of which one record came in, and none came out."""
        counts = dict.fromkeys(COUNTED, 0) | {"records_in": 1}
        row = {"batch_id": batch_id, "operator": "latest", "kind": "table", **counts}
        self.warehouse.write(OPERATOR_BATCHES, [row])
        self.warehouse.write(BATCHES, [{"batch_id": batch_id, "finished_at": finished_ms}])

    def finishes(self, end_ms: int, *, work_ms: int) -> None:
        """Writes that all operators finished the window that ends at *end_ms*, `latest` with *work_ms* of work."""
        ewts = {"events": end_ms, "latest": end_ms + work_ms, "alarms": end_ms + work_ms}
        window = {"batch_id": 0, "window_start": end_ms - 5_000, "window_end": end_ms, "records": 1}
        began = {"batch_started_at": end_ms - 10, "queued_ms": 0}
        rows = [
            {**window, **began, "operator": name, "ewt_at": ewt_ms, "ewt_adjusted_at": ewt_ms}
            for name, ewt_ms in ewts.items()
        ]
        self.warehouse.write(OPERATOR_WINDOWS, rows)

    def deliver(self) -> list[str]:
        """Does what Airflow does for the channel; returns the changes."""
        layout, due = self.warehouse.layout, []
        for each in pending_changes(layout, "t", CHANNEL, now_ms=self.at_ms):
            record_delivery(layout, each, CHANNEL, at_ms=self.at_ms, run_id="delivered")
            due.append(each.change.value)
        return due

    def checks(self) -> list[tuple[float, str, str]]:
        """Seconds after NOW, SLA and verdict of all stored results."""
        return sorted(
            ((row["checked_at"].timestamp() * 1_000 - NOW) / 1_000, row["sla"], row["verdict"])
            for row in self.warehouse.report(SLA_RESULTS)
        )


@pytest.fixture
def watched(warehouse: TestWarehouse) -> Watched:
    found = Watched(warehouse, {"fresh": {**FRESH}})
    found.goes_on(0, NOW)
    return found


def test_an_age_breaks_its_limit_without_news_and_without_a_measurement(watched: Watched) -> None:
    assert watched.look(0) == Found(run_id=f"check__{NOW}", at_ms=NOW)
    measured_n = watched.watch.measured_n

    # The newest change is 59.999 s old, and then 60 s.
    assert watched.look(58.999).run_id is None
    assert watched.watch.measured_n == measured_n
    broken = watched.look(59)

    assert broken == Found(
        run_id=f"check__{NOW + 59_000}", at_ms=NOW + 59_000, why=frozenset({Why.VERDICT, Why.DELIVERY})
    )
    assert watched.checks() == [(0, "fresh", "pass"), (59, "fresh", "error")]
    (opened,) = watched.warehouse.report(INCIDENTS)
    assert (opened["change"], opened["run_id"]) == ("opened", broken.run_id)
    assert opened["broken_since"].timestamp() * 1_000 == NOW + 59_000


def test_a_look_knows_when_the_clock_alone_will_change_a_verdict_or_open_an_incident(watched: Watched) -> None:
    watched.slas["stale"] = {**FRESH, "error_after": "20 s", "open_after": "5 s"}
    watched.restart()
    # The newest change is 1 s old at NOW, so `stale` breaks its limit 19 s later, and opens an incident 5 s after that.
    at_s = {0: None, 10: 19, 19: 24, 24: None, 45: 59}
    found = {after_s: watched.look(after_s, ahead_ms=15_000).again_ms for after_s in at_s}
    assert found == {after_s: None if due_s is None else NOW + due_s * 1_000 for after_s, due_s in at_s.items()}
    assert watched.checks()[-1] == (24, "stale", "error")


def test_what_is_told_once_is_not_asked_for_again(watched: Watched) -> None:
    watched.look(0)
    assert watched.look(60).why == {Why.VERDICT, Why.DELIVERY}
    assert watched.deliver() == ["opened"]
    assert [watched.look(after_s) for after_s in (75, 90, 600)] == [
        Found(run_id=None, at_ms=NOW + 75_000),
        Found(run_id=None, at_ms=NOW + 90_000),
        Found(run_id=None, at_ms=NOW + 600_000),
    ]
    # A regular check, 10 min after the one before.
    assert watched.look(660) == Found(run_id=f"check__{NOW + 660_000}", at_ms=NOW + 660_000)


def test_what_nobody_delivered_is_asked_for_by_the_next_process_and_by_each_check(watched: Watched) -> None:
    watched.look(0)
    watched.look(60)
    watched.restart()
    assert watched.look(61).why == {Why.DELIVERY}
    assert watched.look(76).why == set()
    assert watched.look(661).why == {Why.DELIVERY}
    assert watched.deliver() == ["opened"]
    assert watched.look(1_261).why == set()


def test_late_records_break_a_quantile_when_their_batch_is_written(watched: Watched) -> None:
    watched.slas["in_time"] = IN_TIME
    watched.restart()
    watched.look(0)
    measured_n = watched.watch.measured_n
    assert watched.look(15).run_id is None
    assert watched.watch.measured_n == measured_n
    watched.goes_on(1, NOW + 20_000, latency_ms=5_000)

    assert watched.look(30).why == {Why.VERDICT, Why.DELIVERY}
    assert watched.checks()[-1] == (30, "in_time", "error")


def test_a_quantile_is_measured_again_without_news_as_records_leave_its_interval(watched: Watched) -> None:
    watched.slas = {"in_time": {**IN_TIME, "over": "1 min", "resolve_after": "0 s"}}
    watched.restart()
    watched.goes_on(1, NOW + 1, latency_ms=5_000)
    assert watched.look(1).why == {Why.VERDICT, Why.DELIVERY}
    assert watched.deliver() == ["opened"]
    assert watched.look(45).run_id is None
    # 62 s after the late records there are none in the interval, and the facts are older than 30 s.
    assert watched.look(75).why == {Why.VERDICT}
    assert watched.checks()[-1] == (75, "in_time", "unknown")


def test_an_operators_work_breaks_its_limit_though_no_report_has_stored_its_path(watched: Watched) -> None:
    """`latest` worked 400 ms on a window that ended 5 s after NOW, and 20 ms on the one before."""
    watched.slas = {"work": {**FRESH, "subject": "latest", "measure": "operator_latency_p50", "error_after": "300 ms"}}
    watched.slas["work"]["over"] = "1 min"
    watched.restart()
    watched.finishes(NOW, work_ms=20)
    watched.look(1)
    assert watched.checks() == [(1, "work", "pass")]
    watched.finishes(NOW + 5_000, work_ms=400)
    # The median of two is the smaller one.
    assert watched.look(15).run_id is None
    watched.finishes(NOW + 10_000, work_ms=400)

    assert watched.look(16).why == {Why.VERDICT, Why.DELIVERY}
    assert watched.checks()[-1] == (16, "work", "error")


def test_an_incident_is_resolved_when_it_is_due_though_nothing_changes_then(watched: Watched) -> None:
    watched.slas["fresh"] |= {"resolve_after": "2 min", "error_after": "5 min"}
    watched.restart()
    watched.look(0)
    watched.look(299)
    assert watched.deliver() == ["opened"]
    watched.goes_on(1, NOW + 310_000)
    assert watched.look(315).why == {Why.VERDICT}
    assert watched.look(430).run_id is None
    assert watched.look(435).why == {Why.DELIVERY}
    assert watched.deliver() == ["resolved"]


def test_an_incident_opens_when_its_delay_is_over(watched: Watched) -> None:
    watched.slas["fresh"] |= {"open_after": "1 min"}
    watched.restart()
    watched.look(0)
    # It breaks at 59 s.
    assert watched.look(65).why == {Why.VERDICT}
    assert watched.look(118).run_id is None
    assert watched.look(120).why == {Why.DELIVERY}
    (opened,) = watched.warehouse.report(INCIDENTS)
    assert opened["broken_since"].timestamp() * 1_000 == NOW + 59_000


def test_a_look_finds_a_broken_contract_before_a_suite_has_run(watched: Watched) -> None:
    watched.slas = {"sound": SOUND}
    watched.restart()
    assert watched.look(1).why == set()
    watched.loses_a_record(1, NOW + 14_000)

    # Rows are counted again 30 s after the count before.
    assert watched.look(16).run_id is None
    assert watched.look(31).why == {Why.VERDICT, Why.CONTRACT, Why.DELIVERY}

    assert watched.checks() == [(1, "sound", "pass"), (31, "sound", "error")]
    assert watched.deliver() == ["opened"]
    assert [watched.look(after_s).run_id for after_s in (46, 61, 76)] == [None, None, None]


def test_rows_that_no_sla_is_about_are_not_counted_by_looks(watched: Watched) -> None:
    watched.look(0)
    watched.loses_a_record(1, NOW + 14_000)
    assert [watched.look(after_s).run_id for after_s in (15, 30, 45)] == [None, None, None]


def test_another_process_goes_on_where_all_held_and_checks_at_once_what_files_promise_now(watched: Watched) -> None:
    watched.look(0)
    watched.restart()
    assert watched.look(15).run_id is None
    watched.watch.changed()
    assert watched.look(30).run_id == f"check__{NOW + 30_000}"
    assert watched.look(45).run_id is None


def test_a_regular_check_waits_for_its_turn(watched: Watched) -> None:
    watched.slas["fresh"] |= {"error_after": "1 h"}
    watched.restart()
    watched.look(0)
    assert watched.look(600, is_turn=False).run_id is None
    assert watched.look(899, is_turn=False).run_id is None
    assert watched.look(900, is_turn=False).run_id is not None


def test_suites_judge_each_stored_check_once(watched: Watched) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # great-expectations imports a module that Python 3.11 deprecates
        from tidemark.sla.check import judge_stored

    watched.look(0)
    watched.look(60)
    layout = watched.warehouse.layout
    assert [rows.at_ms - NOW for _, rows in unjudged(layout, "t")] == [0, 60_000]

    assert judge_stored(layout, TOPOLOGY, at_ms=NOW + 70_000, run_id="suites") == 2
    assert judge_stored(layout, TOPOLOGY, at_ms=NOW + 70_000, run_id="suites") == 0

    periods = [
        (row["success"], row["checks"], row["run_id"])
        for row in watched.warehouse.report(EXPECTATION_RESULTS)
        if (row["suite"], row["column"], row["severity"]) == ("sla_status", "verdict", "critical")
    ]
    assert periods == [(False, 1, f"check__{NOW + 60_000}"), (True, 1, f"check__{NOW}")]
    assert {row["run_id"] for row in watched.warehouse.report(EXPECTATION_RESULTS) if row["suite"] == "contract"} == {
        "suites"
    }


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the folder of a project with the topologies `a`, `b` and `c`, which have a stored check each."""
    (tmp_path / "topologies").mkdir()
    for name in "abc":
        (tmp_path / "topologies" / f"{name}.toml").write_text(topology_of({"name": name}, events=source()))
    monkeypatch.setenv("TIDEMARK_PROJECT", str(tmp_path))
    layout = Layout(tmp_path / "warehouse")
    row = {"sla": "fresh", "verdict": "pass", "observed_ms": 1, "warn_after_ms": None, "error_after_ms": 9}
    for name in ("a", "b", "c", "gone"):
        slas = [{**row, "excused": False, "measured": True}]
        keep(layout, name, FoundRows(at_ms=NOW, run_id="check", promised=1, slas=slas, accounts=[]))
    return tmp_path


def test_one_process_judges_for_all_topologies(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    layout = Layout(project / "warehouse")
    (torn,) = (layout.report_control("b") / "unjudged").glob("*.json")
    torn.write_text("{")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # great-expectations imports a module that Python 3.11 deprecates
        with pytest.raises(SuitesFailed, match="b: ") as failed:
            judge_what_waits(layout, run_id="suites")
    assert "a: " not in str(failed.value)
    # Nobody knows what a topology promised whose file is gone.
    assert waiting_topologies(layout) == ["b", "gone"]
    assert "the checks of gone are not judged: there is no topology 'gone'" in caplog.text
    for name in "ac":
        rows = scan(layout.report_table(name, EXPECTATION_RESULTS.name)).collect()
        verdict = rows.filter(suite="sla_status", column="verdict", severity="critical")
        assert verdict.select("success", "checks", "run_id").rows() == [(True, 1, "check")]


def test_checks_are_left_to_the_process_that_judges(project: Path) -> None:
    layout = Layout(project / "warehouse")
    folder = checks_of(layout.warehouse)
    assert not is_worked_on(folder)
    folder.mkdir(mode=0o700)
    with alone(folder):
        assert is_worked_on(folder)
        judge_what_waits(layout, run_id="suites")
    assert waiting_topologies(layout) == ["a", "b", "c", "gone"]
    shutil.rmtree(folder)
