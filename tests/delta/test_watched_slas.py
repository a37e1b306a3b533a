"""SLAs of tables that other programs write: what breaks them is an alert, by the checker of all topologies.

The tables are written by delta-rs, whose commits are stamped by the clock of this machine. The clock of the checker
begins with the last commit.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from support.report_warehouse import CheckJob, TestWarehouse
from tidemark.cli.project.check import check
from tidemark.errors import InvalidSpec
from tidemark.facts.answers import answers_over
from tidemark.metrics.exporter import Exporter
from tidemark.metrics.rules import rules_file
from tidemark.model.project.files import Project
from tidemark.model.settings.intervals import iso, utc
from tidemark.model.slas.channel_spec import Channel
from tidemark.model.slas.sla_spec import SlaSpec, known_watch, usable_slas, watched_topology
from tidemark.model.tables.catalog import EXPECTATION_RESULTS, INCIDENTS, SLA_RESULTS
from tidemark.model.topology import Topology
from tidemark.reports.documents.status import page_document
from tidemark.reports.documents.why import why_document
from tidemark.reports.pages.topology_state import TopologyState
from tidemark.sla.incidents.alert_message import message_of
from tidemark.sla.incidents.alert_text import alert_texts
from tidemark.sla.incidents.due import DueAlert
from tidemark.sla.incidents.tables import pending_changes, record_delivery
from tidemark.sla.page import sla_page
from tidemark.sla.watch import Found, Promised, SlaWatch, Why

CHANNEL = Channel(name="desk", notifier="", arguments={})
NOTED = json.dumps({"dag_id": "load", "task_id": "orders", "run_id": "r1"})
MINUTE_MS = 60_000


def append(path: Path, *at_ms: int) -> int:
    """Appends a row for each instant; returns the stamp of the commit."""
    at = pa.array([utc(each) for each in at_ms], pa.timestamp("us", "UTC"))
    noted = CommitProperties(custom_metadata={"userMetadata": NOTED})
    write_deltalake(str(path), pa.table({"at": at}), mode="append", commit_properties=noted)
    return stamps(path)[-1]


def stamps(path: Path) -> list[int]:
    """When each commit says that it was made."""
    files = sorted((path / "_delta_log").glob("*.json"))
    infos = [json.loads(line) for file in files for line in file.read_text().splitlines() if "commitInfo" in line]
    return [info["commitInfo"]["timestamp"] for info in infos]


@dataclass
class Lake:
    """A folder of tables whose SLAs are looked at, by a clock that tests set."""

    warehouse: TestWarehouse
    folder: Path
    slas: dict[str, dict[str, Any]]
    places: list[Path] = field(default_factory=list)
    of_set: dict[str, Any] = field(default_factory=dict)
    start_ms: int = 0
    at_ms: int = 0
    topology: Topology = field(init=False)
    specs: tuple[SlaSpec, ...] = field(init=False)
    watch: SlaWatch = field(init=False)

    @property
    def orders(self) -> Path:
        return self.folder / "orders"

    def begin(self, start_ms: int) -> None:
        """Begins to look with the clock at *start_ms*."""
        self.start_ms = self.at_ms = start_ms
        self.restart()

    def restart(self) -> None:
        """Goes on with a new process."""
        silver = {"tables": [*map(str, self.places or [self.folder])], "owner": "orders team", **self.of_set}
        content = {"watch": {"silver": silver, **self.slas}}
        self.topology = watched_topology(content, file="slas.toml")
        slas = usable_slas(content, self.topology, file="slas.toml")
        slas.refuse()
        self.specs = slas.specs
        promised = Promised(topology=self.topology, specs=slas.specs, unusable=(), channels=[CHANNEL], project=None)
        self.watch = SlaWatch(
            self.warehouse.layout, lambda: promised, clock=lambda: self.at_ms, sleep_s=lambda _: pytest.fail("waits")
        )

    def look(self, after_s: float) -> Found:
        self.at_ms = self.start_ms + round(after_s * 1_000)
        return self.watch.look()

    def due(self) -> list[DueAlert]:
        """What Airflow has to deliver; it is recorded as delivered."""
        due = pending_changes(self.warehouse.layout, "watch", CHANNEL, now_ms=self.at_ms)
        for each in due:
            record_delivery(self.warehouse.layout, each, CHANNEL, at_ms=self.at_ms, run_id="delivered")
        return due

    def newest(self, sla: str) -> dict[str, Any]:
        """The newest result of *sla*."""
        rows = [row for row in self.warehouse.report(SLA_RESULTS, "watch") if row["sla"] == sla]
        return max(rows, key=lambda row: row["checked_at"])

    def verdict(self, sla: str = "kept") -> str:
        """Checks now, and returns the verdict."""
        self.watch.changed()
        self.watch.look()
        verdict: str = self.newest(sla)["verdict"]
        return verdict


@pytest.fixture
def lake(warehouse: TestWarehouse, tmp_path: Path) -> Lake:
    return Lake(warehouse, tmp_path / "silver", {"kept": {"subject": "silver.orders", "error_after": "5 min"}})


def test_a_table_that_stands_still_is_one_alert_that_ends_when_it_goes_on(lake: Lake) -> None:
    made_ms = append(lake.orders, 0)
    append(lake.orders, made_ms - 60_000)
    lake.slas["kept"] |= {"resolve_after": "0 s", "runbook": "ask the orders team"}
    # The newest row is 60 s old, or 59.999 s: its bound is cut to milliseconds.
    lake.begin(made_ms)
    assert lake.look(0) == Found(run_id=f"check__{made_ms}", at_ms=made_ms)
    measured_n = lake.watch.measured_n

    assert lake.look(239.999).run_id is None
    broken = lake.look(240.001)
    assert broken.why == {Why.VERDICT, Why.DELIVERY}
    assert lake.watch.measured_n == measured_n + 1  # a look opens no log, and the check opens it once

    result = lake.newest("kept")
    assert (result["topology"], result["subject"], result["verdict"]) == ("watch", "silver.orders", "error")
    assert result["observed_ms"] == 300_000
    assert result["crossed_at"].timestamp() * 1_000 == made_ms + 240_001
    assert result["message"] == "staleness of silver.orders is 5 min; error from 5 min on"
    (opened,) = lake.warehouse.report(INCIDENTS, "watch")
    assert (opened["change"], opened["owner"], opened["run_id"]) == ("opened", "orders team", broken.run_id)

    (finding,) = why_document(lake.warehouse.layout.warehouse, lake.topology, at_ms=lake.at_ms).findings
    assert (finding.cause, finding.operator) == ("incident_open", "silver.orders")
    assert finding.remedy.startswith(
        "`tidemark why silver.orders` explains it, and `tidemark incidents watch --history "
    )

    (due,) = lake.due()
    text = alert_texts(message_of(due, link="/page"), notified_ms=lake.at_ms)["text"]
    assert text.startswith("[critical] watch: kept is broken (error)\n")
    assert "its writer is Airflow load.orders, run r1, by delta-rs" in text
    assert "Runbook: ask the orders team" in text
    assert lake.look(300).run_id is None
    assert lake.due() == []

    append(lake.orders, made_ms + 250_000)
    assert lake.look(315).why == {Why.VERDICT, Why.DELIVERY}
    assert [each.change.value for each in lake.due()] == ["resolved"]


def test_what_moves_rows_is_no_sign_of_life(lake: Lake) -> None:
    append(lake.orders, 0)
    lake.slas = {"kept": {"subject": "silver.orders", "measure": "commit_age", "error_after": "5 min"}}
    last_ms = append(lake.orders, 1)
    DeltaTable(str(lake.orders)).optimize.compact()
    lake.begin(last_ms)
    lake.look(0)
    assert lake.look(299.999).run_id is None
    assert lake.look(300).why == {Why.VERDICT, Why.DELIVERY}
    assert lake.newest("kept")["observed_ms"] == 300_000


def test_too_few_rows_are_an_alert_once_the_older_ones_are_out_of_the_interval(lake: Lake) -> None:
    append(lake.orders, 1, 2, 3)
    last_ms = append(lake.orders, 4)
    of_volume = {"subject": "silver.orders", "measure": "volume", "warn_below": 3, "error_below": 1, "over": "1 h"}
    lake.slas = {"kept": of_volume, "many": {**of_volume, "warn_below": 9}}
    lake.begin(last_ms)
    lake.look(0)
    # Of a table that began less than an hour ago nobody knows whether they are too few.
    assert lake.newest("many")["verdict"] == "unknown"
    result = lake.newest("kept")
    assert (result["verdict"], result["records"]) == ("pass", 4)
    assert result["message"] == "4 rows of silver.orders in 1 h; warning below 3, error below 1"
    # Every commit is older than an hour then.
    found = lake.look(3_601)
    assert found.why == {Why.VERDICT, Why.DELIVERY}
    result = lake.newest("kept")
    assert (result["verdict"], result["records"]) == ("error", 0)
    # The three rows of the first commit left the interval first.
    crossed_ms = result["crossed_at"].timestamp() * 1_000
    assert stamps(lake.orders)[0] + 3_600_000 < crossed_ms <= last_ms + 3_601_000


def test_the_longest_gap_is_counted_up_to_now(lake: Lake) -> None:
    first_ms = append(lake.orders, 1)
    lake.slas = {"kept": {"subject": "silver.orders", "measure": "cadence", "warn_after": "1 min", "over": "1 h"}}
    lake.begin(first_ms)
    lake.look(0)
    assert lake.look(59.999).run_id is None
    assert lake.look(60).why == {Why.VERDICT, Why.DELIVERY}
    assert lake.newest("kept")["verdict"] == "warn"


@pytest.mark.parametrize(
    ("newest_min", "oldest_min", "verdict"),
    [
        (1, 2, "pass"),  # each row came within 10 min
        (11, 30, "error"),  # each row came too late
        (1, 30, "unknown"),  # the row of 30 min did, but bounds do not say that there is more than one row
    ],
)
def test_the_latency_of_an_append_lies_between_bounds(
    lake: Lake, newest_min: int, oldest_min: int, verdict: str
) -> None:
    made_ms = append(lake.folder / "other", 0)
    last_ms = append(lake.orders, made_ms - newest_min * MINUTE_MS, made_ms - oldest_min * MINUTE_MS)
    lake.slas = {"kept": {"subject": "silver.orders", "measure": "commit_latency", "error_after": "10 min"}}
    lake.begin(last_ms)
    assert lake.verdict() == verdict


def ages(made_ms: int, *minutes: int) -> list[int]:
    """Instants so many minutes before *made_ms*."""
    return [made_ms - each * MINUTE_MS for each in minutes]


def exact(lake: Lake, **slas: dict[str, Any]) -> None:
    """Has the rows of the tables read, for *slas* of `silver.orders` over an hour."""
    lake.of_set = {"exact": True}
    lake.slas = {name: {"subject": "silver.orders", **sla} for name, sla in slas.items()}


def test_rows_have_quantiles_where_bounds_leave_a_latency_open(lake: Lake) -> None:
    made_ms = append(lake.folder / "other", 0)
    # Two appends of 4 and 6 rows: the fifth of ten is 5 min late, the ninth 9 min, and the last one half an hour.
    append(lake.orders, *ages(made_ms, 1, 2, 3, 4))
    last_ms = append(lake.orders, *ages(made_ms, 5, 6, 7, 8, 9, 30))
    between = {"error_after": "10 min", "over": "1 h"}
    exact(
        lake,
        half={"measure": "latency_p50", **between},
        most={"measure": "latency_p90", **between},
        all={"measure": "latency_p99", **between},
        few={"measure": "latency_p99", "min_records": 11, **between},
        longest={"measure": "commit_latency", **between},
    )
    lake.begin(last_ms)
    lake.look(0)
    found = {name: lake.newest(name) for name in lake.slas}
    verdicts = {name: row["verdict"] for name, row in found.items()}
    assert verdicts == {"half": "pass", "most": "pass", "all": "error", "few": "unknown", "longest": "error"}
    observed_min = {name: row["observed_ms"] / MINUTE_MS for name, row in found.items()}
    assert observed_min == pytest.approx({"half": 5, "most": 9, "all": 30, "few": 30, "longest": 30}, rel=0.011)
    assert found["all"]["records"] == 10
    assert "its writer is Airflow load.orders" in found["all"]["blocked_by"]
    assert found["most"]["message"] == "latency p90 of silver.orders is 8 min 59 s; error from 10 min on"
    # Prometheus has no latencies of rows, so its rules ask for the verdicts of checks.
    rules = rules_file([(lake.topology, lake.specs)])
    assert ("tidemark_sla_level{" in rules, "tidemark_recent_latency_seconds{" in rules) == (True, False)

    # After an hour no append is in the interval, and nothing is known.
    lake.at_ms = last_ms + 3_700_000
    assert lake.verdict("all") == "unknown"


def test_slow_rows_use_up_the_budget_of_an_objective(lake: Lake) -> None:
    made_ms = append(lake.folder / "other", 0)
    last_ms = append(lake.orders, *ages(made_ms, 1, 1, 1, 1, 1, 1, 1, 1, 20, 30))
    promised = {"latency": "10 min", "target": 0.99, "window": "30 d", "min_records": 10}
    exact(
        lake,
        burning={"measure": "burn_rate", "threshold": "10 min", "target": 0.9, "error_at": 3, "over": "1 h"},
        promised={"objective": promised},
    )
    lake.begin(last_ms)
    lake.look(0)
    result = lake.newest("burning")
    # A fifth of the rows is slow, and a tenth may be.
    assert (result["verdict"], result["burn_rate"], result["records"]) == ("warn", pytest.approx(2), 10)
    assert result["message"].startswith(
        "20.00 % of the records of silver.orders took longer than 10 min in 1 h, 2 times"
    )
    objective = lake.newest("promised_1h")
    # A fifth is slow and a hundredth may be: 20 times as fast as the budget allows.
    assert (objective["verdict"], objective["burn_rate"]) == ("error", pytest.approx(20))
    assert (objective["window_records"], objective["window_slow"]) == (10, 2)


def test_rows_that_cannot_be_read_leave_a_quantile_unknown(lake: Lake) -> None:
    last_ms = append(lake.orders, 0)
    exact(
        lake,
        all={"measure": "latency_p99", "error_after": "1 h"},
        burning={"measure": "burn_rate", "threshold": "10 min", "target": 0.9, "error_at": 3},
    )
    (file,) = lake.orders.glob("*.parquet")
    file.rename(file.with_suffix(".gone"))
    lake.begin(last_ms)
    lake.look(0)
    unread = "(the event times of the rows of version 0 cannot be read)"
    found = {name: lake.newest(name) for name in lake.slas}
    assert {row["verdict"] for row in found.values()} == {"unknown"}
    assert [unread in row["message"] for row in found.values()] == [True, True]
    # It is tried again.
    file.with_suffix(".gone").rename(file)
    assert lake.verdict("all") == "error"


def test_a_table_that_is_gone_breaks_its_promise_and_one_that_is_damaged_is_unknown(lake: Lake) -> None:
    last_ms = append(lake.orders, 0)
    lake.slas["kept"] |= {"measure": "commit_age"}
    lake.begin(last_ms)
    lake.look(0)
    (lake.orders / "_delta_log" / f"{0:020d}.json").write_text("{")
    assert lake.verdict() == "unknown"
    result = lake.newest("kept")
    assert "restore the file, or the table, from a backup" in result["message"]
    shutil.rmtree(lake.orders)
    assert lake.look(30).why == {Why.VERDICT, Why.DELIVERY}
    result = lake.newest("kept")
    assert result["verdict"] == "never_loaded"
    assert "there is no Delta table silver.orders" in result["message"]


def test_a_table_that_nobody_can_read_for_as_long_as_its_limit_is_an_alert(lake: Lake) -> None:
    append(lake.orders, 0)
    last_ms = append(lake.orders, 1)
    commit = lake.orders / "_delta_log" / f"{1:020d}.json"
    content = commit.read_text()
    lake.slas["kept"] |= {"measure": "commit_age", "resolve_after": "0 s"}
    counted = {"subject": "silver.orders", "measure": "volume", "warn_below": 1, "over": "20 min"}
    lake.slas["enough"] = counted
    lake.begin(last_ms)
    lake.look(0)
    # Its limit of 5 min counts from when it was first seen to be damaged, and not from its last commit.
    commit.write_text("{")
    lake.at_ms += 60_000
    assert [lake.verdict(name) for name in lake.slas] == ["unknown", "unknown"]
    assert lake.look(359).run_id is None
    assert lake.look(360).why == {Why.VERDICT, Why.DELIVERY}
    result = lake.newest("kept")
    assert (result["verdict"], result["crossed_at"].timestamp() * 1_000) == ("error", last_ms + 360_000)
    assert "is not measured (it cannot be read for 5 min: " in result["message"]
    assert "restore the file, or the table, from a backup" in result["message"]
    assert lake.newest("enough")["verdict"] == "unknown"
    lake.look(1_260)
    assert lake.newest("enough")["verdict"] == "warn"
    assert [each.change.value for each in lake.due()] == ["opened", "opened"]
    # Read again, the table is judged by its own age.
    commit.write_text(content)
    lake.at_ms += 15_000
    lake.verdict()
    assert lake.newest("kept")["message"] == "commit age of silver.orders is 21 min 15 s; error from 5 min on"


def test_what_is_ahead_of_the_clock_breaks_a_promise_from_its_limit_on(lake: Lake) -> None:
    """The clock of the writer is ahead of the checker's: by less than what is promised that says nothing of the age."""
    append(lake.orders, 0)
    now_ms = stamps(lake.orders)[-1]
    made_ms = append(lake.orders, now_ms)
    lake.slas["written"] = lake.slas["kept"] | {"measure": "commit_age"}
    lake.begin(now_ms - 301_000)
    assert (lake.verdict("kept"), lake.newest("written")["verdict"]) == ("ahead_of_clock", "ahead_of_clock")
    lake.begin(made_ms - 299_000)
    assert (lake.verdict("kept"), lake.newest("written")["verdict"]) == ("pass", "pass")


def test_of_several_columns_of_times_none_is_judged(lake: Lake) -> None:
    at = pa.array([utc(0)], pa.timestamp("us", "UTC"))
    write_deltalake(str(lake.orders), pa.table({"made": at, "seen": at}))
    lake.begin(stamps(lake.orders)[0])
    assert lake.verdict() == "unknown"
    assert "name one as `column` of made, seen" in lake.newest("kept")["message"]


def test_a_table_that_two_places_have_is_unknown(lake: Lake) -> None:
    last_ms = append(lake.orders, 0)
    append(lake.folder / "silver" / "orders", 0)
    lake.places = [lake.folder, lake.folder / "silver"]
    lake.begin(last_ms)
    assert lake.verdict() == "unknown"
    assert "2 tables are silver.orders" in lake.newest("kept")["message"]


def test_a_place_may_be_the_table_itself_and_a_table_may_lie_deeper(lake: Lake) -> None:
    last_ms = append(lake.orders, 0)
    append(lake.folder / "eu" / "orders.v2", 0)
    lake.places = [lake.orders, lake.folder]
    lake.slas = {
        name: {"subject": f"silver.{table}", "measure": "commit_age", "error_after": "1 h"}
        for name, table in (("itself", "orders"), ("deeper", "eu/orders.v2"))
    }
    lake.begin(last_ms)
    lake.look(0)
    assert [lake.newest(name)["verdict"] for name in lake.slas] == ["pass", "pass"]


def test_hours_that_are_not_judged_do_not_age_a_table(lake: Lake) -> None:
    last_ms = append(lake.orders, 0)
    begin, end = (utc(last_ms + hours * 3_600_000) for hours in (-1, 1))
    closed = f"{begin:%Y-%m-%dT%H:%M}Z/{end:%Y-%m-%dT%H:%M}Z"
    lake.slas["kept"] |= {"measure": "commit_age", "maintenance_windows": [closed]}
    many = {"measure": "volume", "error_below": 9, "over": "30 min", "maintenance_windows": [closed]}
    lake.slas["many"] = {"subject": "silver.orders", **many}
    lake.begin(last_ms)
    # The window ends with a whole minute, at most an hour after the commit.
    lake.look(3_600)
    result = lake.newest("kept")
    assert result["verdict"] == "pass"
    assert f"counted from {end:%Y-%m-%dT%H:%M}" in result["message"]
    assert lake.newest("many")["verdict"] == "unknown"
    assert lake.look(3_901).why == {Why.VERDICT, Why.DELIVERY}


def project_of(lake: Lake, project: Project) -> None:
    """Writes the SLAs of *lake* into the files of *project*: an error from 1 h on."""
    text = f'[watch.silver]\ntables = ["{lake.folder}"]\nowner = "orders team"\n'
    text += '[watch.kept]\nsubject = "silver.orders"\nmeasure = "commit_age"\nerror_after = "1 h"\n'
    project.slas.write_text(text)


def test_a_person_asks_for_a_check_and_all_commands_and_pages_know_watched_tables(
    lake: Lake, own_project: Project, check_job: CheckJob
) -> None:
    last_ms = append(lake.orders, 0)
    project_of(lake, own_project)
    place = lake.warehouse.layout.warehouse
    check_job(place, "watch", iso(last_ms), "asked")

    (result,) = lake.warehouse.report(SLA_RESULTS, "watch")
    assert (result["verdict"], result["run_id"]) == ("pass", "asked")
    judged = lake.warehouse.report(EXPECTATION_RESULTS, "watch")
    assert "sla_status" in {row["suite"] for row in judged}
    assert [row for row in judged if not row["success"]] == []
    watch = known_watch(own_project.slas)
    assert watch is not None
    tables = answers_over(place, "watch")
    model = page_document(tables, TopologyState(tables.stored, lake.warehouse.layout, watch, at_ms=last_ms + 1))
    page = sla_page(place, "watch", model, stored=tables.stored)
    assert "Commit age of silver.orders is" in page
    samples = Exporter(lake.warehouse.layout, lambda: [watch], clock=lambda: last_ms + 1).samples()
    assert [sample.value for sample in samples if sample.metric == "tidemark_sla_level"] == [0]


def test_check_tells_what_each_sla_finds_now(lake: Lake, own_project: Project, tmp_path: Path) -> None:
    append(lake.orders, 0)
    project_of(lake, own_project)
    (line,) = [line for line in check([], tmp_path / "warehouse", own_project) if line.startswith("watch.")]
    assert line.startswith("watch.kept: pass: commit age of silver.orders is ")
    # A store is asked with --live alone.
    text = own_project.slas.read_text()
    own_project.slas.write_text(text.replace(f'"{lake.folder}"', '"s3://lake/silver"'))
    (line,) = [line for line in check([], tmp_path / "warehouse", own_project) if line.startswith("watch.")]
    assert line == "watch.kept: silver.orders is in an object store: --live reads it"
    own_project.slas.write_text(text.replace(f'"{lake.folder}"', '"ftp://lake/silver"'))
    with pytest.raises(
        InvalidSpec, match=r"slas\.toml: watch\.silver\.tables: has 'ftp://lake/silver'; a location is a path"
    ):
        check([], tmp_path / "warehouse", own_project)
