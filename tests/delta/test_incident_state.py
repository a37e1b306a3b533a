"""Incidents have the state of the newest check.

Results of checks are written by hand. Instants are minutes after noon.
"""

from __future__ import annotations

import re
import shutil
import tomllib
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tidemark.cli.explain.incidents import incidents
from tidemark.facts.alerts import open_alerts
from tidemark.model import topology
from tidemark.model.project.files import CHECKOUT
from tidemark.model.project.layout import Layout
from tidemark.model.slas.channel_spec import parse as channels
from tidemark.model.slas.sla_spec import parse
from tidemark.model.tables.catalog import SLA_RESULTS
from tidemark.model.topology import Topology
from tidemark.query.sql import Warehouse
from tidemark.sla.incidents.tables import acknowledge, follow_up, open_missed_checks, pending_changes, record_delivery
from tidemark.sla.sla_findings import sla_findings
from tidemark.storage.delta.report_tables import replace_rows

NOON, MINUTE = 1_767_268_800_000, 60_000  # 2026-01-01T12:00Z
FLIGHTS = topology.load(Path(__file__).parents[2] / "jobs" / "topologies" / "flights.toml")
EVERY_2_MIN = replace(FLIGHTS, check_every_ms=2 * MINUTE)
NAMES = ("board", "changes", "delays", "in_time", "quick", "complete", "kept")
SLAS = {name: {"subject": "flight_board", "error_after": "1 s", "owner": "desk"} for name in NAMES}
SPECS = parse({"flights": SLAS}, FLIGHTS, file="slas.toml")


class Plant:
    """A plant whose SLAs are checked, with results that a test gives."""

    def __init__(self, home: Path, topology: Topology = EVERY_2_MIN) -> None:
        self.home, self.layout, self.topology = home, Layout(home), topology

    def check(
        self,
        minute: int,
        verdicts: Mapping[str, str] | str,
        *,
        took: int = 0,
        observed_ms: float | None = 5,
        **columns: Any,
    ) -> None:
        """Checks all SLAs at *minute*; the check ends *took* minutes later."""
        run_id, at_ms = f"run {minute}", NOON + minute * MINUTE
        found = dict.fromkeys(NAMES, verdicts) if isinstance(verdicts, str) else verdicts
        rows = [
            {
                "topology": self.topology.name, "sla": name, "verdict": verdict, "checked_at": at_ms, "run_id": run_id,
                "owner": "desk", "severity": "critical", "measure": "staleness", "observed_ms": observed_ms,
                "resolve_after_ms": 10 * MINUTE, **columns,
            }
            for name, verdict in found.items()
        ]  # fmt: skip
        path = self.layout.report_table(self.topology.name, SLA_RESULTS.name)
        replace_rows(rows, SLA_RESULTS, path, where=f"run_id = '{run_id}'")
        made_ms = NOON + (minute + took) * MINUTE
        follow_up(self.layout, self.topology, SPECS, at_ms=at_ms, run_id=run_id, made_ms=made_ms)

    def incidents(self, where: str = "true") -> list[dict[str, Any]]:
        return Warehouse(self.home).ask(f"FROM incident_history WHERE {where} ORDER BY opened_at, sla").objects


@pytest.fixture
def plant(tmp_path: Path) -> Plant:
    return Plant(tmp_path)


def listed(plant: Plant) -> str:
    """Returns the list of open incidents."""
    unused = ("history", "acknowledge", "silence", "snooze", "unsilence", "length", "until")
    asked = {"all": False, "decisions": False, "format": "table"} | dict.fromkeys(unused)
    return incidents(Namespace(**asked), plant.home, FLIGHTS)


def minute(at: Any) -> int | None:
    return None if at is None else round(at.timestamp() * 1_000 - NOON) // MINUTE


def test_a_healthy_plant_has_no_incident_after_half_an_hour(plant: Plant) -> None:
    """Drivers start until minute 6.

    Then checks come in time, but for two gaps.
    """
    plant.check(0, "error", took=6)
    open_missed_checks(plant.layout, EVERY_2_MIN, at_ms=NOON + 4 * MINUTE + 1)
    for now in (6, 8, 10, 12, 18, 20, 22, 28, 30, 32):
        plant.check(now, "pass")
        if now == 12:
            assert {row["sla"] for row in plant.incidents("state = 'open'")} == {*NAMES}
    assert plant.incidents("state <> 'resolved'") == []
    ends = {(row["sla"], minute(row["opened_at"]), minute(row["resolved_at"])) for row in plant.incidents()}
    # Each holds from minute 6 on, and the first check after minute 16 is that of minute 18.
    assert {end for end in ends if end[0] in NAMES} == {(name, 0, 18) for name in NAMES}
    assert sorted(end[1:] for end in ends if end[0] not in NAMES) == [(4, 10), (16, 22), (26, 32)]


def test_an_incident_tells_what_it_passes_since(plant: Plant) -> None:
    states = []
    verdicts = [
        (0, "error", 9_000),
        (1, "pass", 5),
        (2, "warn", 12_500),
        (3, "unknown", None),
        (4, "pass", 5),
        (6, "pass", 4),
    ]
    for now, verdict, observed_ms in verdicts:
        plant.check(now, {"board": verdict}, observed_ms=observed_ms)
        (row,) = plant.incidents()
        states.append((row["verdict"], minute(row["passes_since"]), minute(row["resolves_at"]), row["broke_again"]))
    assert states == [
        ("error", None, None, 0),
        ("pass", 1, 11, 0),
        ("warn", None, None, 1),
        ("unknown", None, None, 1),
        ("pass", 4, 14, 1),
        ("pass", 4, 14, 1),
    ]
    assert (row["worst_verdict"], row["worst_observed"], row["unit"]) == ("error", 12_500, "ms")
    (alert,) = open_alerts(Warehouse(plant.home), "flights")
    assert alert["states"] == {"board": "passes since 12:04, resolves at 12:14 if it holds"}
    text = listed(plant)
    assert "passes since 12:04, resolves at 12:14 if it holds" in text
    assert re.search(r"12,?500(\.0)? +ms", text)


def test_a_partition_that_two_topologies_read_is_one_page(plant: Plant) -> None:
    # A topology calls its source as it likes.
    text = (CHECKOUT / "jobs" / "topologies" / "flights.toml").read_text()
    for key in ("[operators.{}]", 'input = "{}"'):
        text = text.replace(key.format("flight_events"), key.format("readings"))
    renamed = topology.parse(tomllib.loads(text), file="copy.toml")
    copy = Plant(plant.home, replace(renamed, name="copy", check_every_ms=2 * MINUTE))
    (channel,) = channels({"desk": {"kind": "pagerduty"}}, file="channels.toml")
    told = []

    def deliver(minute: int) -> None:
        for of in (plant, copy):
            now_ms = NOON + minute * MINUTE
            for due in pending_changes(of.layout, of.topology.name, channel, now_ms=now_ms):
                if due.name.startswith("partition"):
                    told.append((minute, of.topology.name, due.change.value))
                record_delivery(of.layout, due, channel, at_ms=now_ms, run_id="r")

    silent = {"cause": "partition", "cause_partition": 2}
    plant.check(0, {"board": "error", "quick": "error"}, cause_operator="flight_events", **silent)
    copy.check(1, {"board": "error"}, cause_operator="readings", **silent)
    deliver(1)
    for minute in (2, 12):
        plant.check(minute, {"board": "pass", "quick": "pass"})
    deliver(12)
    for minute in (13, 23):
        copy.check(minute, {"board": "pass"})
    deliver(23)
    # A table of another topology that cannot be read keeps no alert.
    shutil.copytree(plant.layout.report_table("copy", "alerts"), plant.layout.report_table("spoilt", "alerts"))
    for entry in plant.layout.report_table("spoilt", "alerts").glob("_delta_log/*.json"):
        entry.write_text("{")
    plant.check(24, {"board": "pass", "quick": "pass"})
    deliver(24)
    assert told == [(1, "flights", "opened"), (24, "flights", "resolved")]


def test_an_alert_has_the_state_of_the_newest_incident_of_an_sla(plant: Plant) -> None:
    """The SLA board breaks for a second time while another one keeps the alert open."""
    cause = {"cause": "driver_dead", "cause_sub_topology": "status"}
    for now in range(0, 14, 2):
        plant.check(now, {"board": "pass" if now else "error", "quick": "error"}, **cause)
    assert [row["state"] for row in plant.incidents("sla = 'board'")] == ["resolved"]
    plant.check(14, {"board": "warn", "quick": "error"}, **cause)
    (alert,) = open_alerts(Warehouse(plant.home), "flights")
    assert len(alert["incidents"]) == 3
    assert alert["states"] == {"board": "warn", "quick": "error"}


def test_maintenance_ends_what_passes(plant: Plant) -> None:
    plant.check(0, {"board": "error"})
    plant.check(1, {"board": "pass"})
    plant.check(2, {"board": "pass"}, excluded_because="maintenance")
    plant.check(3, {"board": "pass"})
    (row,) = plant.incidents()
    assert (minute(row["passes_since"]), minute(row["resolves_at"])) == (3, 13)
    plant.check(13, {"board": "pass"})
    (row,) = plant.incidents("sla = 'board'")
    assert (row["state"], minute(row["resolved_at"]), row["resolves_at"]) == ("resolved", 13, None)


@pytest.mark.parametrize(("measure", "worst"), [("records", 3), ("contract", 7), ("burn_rate", 2.5)])
def test_the_worst_value_is_that_of_the_measure(plant: Plant, measure: str, worst: float) -> None:
    for now, records in enumerate((7, 3, 5)):
        rate = records / 2 if records < 7 else 1.0
        rates = {"burn_rate": rate} if measure == "burn_rate" else {}
        plant.check(now, {"board": "error"}, measure=measure, observed_ms=None, records=records, **rates)
    assert [row["worst_observed"] for row in plant.incidents()] == [worst]


def findings(plant: Plant, at: int, operator: str | None = None) -> list[str]:
    tables = Warehouse(plant.home)
    return [each.line for each in sla_findings(tables, EVERY_2_MIN, at_ms=NOON + at * MINUTE, operator=operator)]


def test_why_says_where_only_the_check_that_found_an_sla_broken_is_known(plant: Plant) -> None:
    plant.check(0, {"board": "error"}, observed_ms=312_000, subject="flight_board")
    (line,) = findings(plant, 1)
    assert line.startswith("incident_open: flight_board since 2026-01-01T12:00:00.000Z: SLA board is broken; ")
    assert "; a check found it broken then, and since when is not known; " in line
    # When a check was due is known.
    open_missed_checks(plant.layout, EVERY_2_MIN, at_ms=NOON + 7 * MINUTE)
    (missed,) = (line for line in findings(plant, 7) if "checks_are_made" in line)
    assert "since 2026-01-01T12:04:00.000Z: SLA checks_are_made" in missed
    assert "a check found it" not in missed


def test_why_says_that_an_incident_resolves_if_it_holds(plant: Plant) -> None:
    of_board = {"subject": "flight_board"}
    plant.check(0, {"board": "error"}, observed_ms=312_000, crossed_at=NOON - 311_000, **of_board)
    acknowledge(plant.layout, "flights", "board-20260101T120000", by="Ann", note="", at_ms=NOON + MINUTE)
    history = "`tidemark incidents flights --history board-20260101T120000` shows its changes, and who was told"
    # At noon it was 312 s old; its limit is 1 s.
    since = "incident_open: flight_board since 2026-01-01T11:54:49.000Z: SLA board"
    assert findings(plant, 1) == [f"{since} is broken; the worst was 5 min 12 s; Ann acknowledged it; {history}"]
    for minute in (2, 4):
        plant.check(minute, {"board": "pass"}, **of_board)
    passes = "passes since 12:02, resolves at 12:12 if it holds; the worst was 5 min 12 s; Ann acknowledged it"
    assert findings(plant, 5) == [f"{since} {passes}; no action is needed if it holds; {history}"]
    # The check of minute 2 has found the same as the newest one.
    assert findings(plant, 3) == findings(plant, 5)
    assert findings(plant, -1) == findings(plant, 5, "carrier_delays") == []
    for minute in (8, 12):
        plant.check(minute, {"board": "pass"}, **of_board)
    assert findings(plant, 13) == []


def test_an_sla_of_the_whole_topology_is_a_finding_about_its_subject(plant: Plant) -> None:
    plant.check(16, {"kept": "error"}, subject="outcomes", observed_ms=7)
    (line,) = findings(plant, 16)
    assert line.startswith(
        "incident_open: outcomes since 2026-01-01T12:16:00.000Z: SLA kept is broken; the worst was 7 ms"
    )
    assert findings(plant, 16, "flight_board") == []


def test_why_and_the_list_of_incidents_tell_the_cause_that_the_newest_check_found(plant: Plant) -> None:
    """The opening check blamed the broker. A later one knew more facts; the newest one could not measure."""
    found = {"subject": "flight_board", "measure": "latency_p99"}
    plant.check(16, {"board": "error"}, culprit="weather", blocked_by="the broker took 21 s", **found)
    plant.check(18, {"board": "warn"}, culprit="flight_events", blocked_by="a surge took 33 s", **found)
    (line,) = findings(plant, 18)
    assert "SLA board has a warning: a surge took 33 s; " in line
    assert "broker" not in line
    plant.check(20, {"board": "unknown"}, **found)
    (row,) = plant.incidents()
    assert (row["culprit"], row["blocked_by"], row["worst_verdict"]) == ("flight_events", "a surge took 33 s", "error")
    assert "a surge took 33 s" in listed(plant)
    plant.check(22, {"board": "error"}, **found)  # nobody knows why any more
    (row,) = plant.incidents()
    assert (row["culprit"], row["blocked_by"]) == (None, None)


def test_why_says_why_an_sla_is_broken_as_its_check_does(plant: Plant) -> None:
    said = "rows of `newest` are not as they are declared"
    plant.check(16, {"kept": "error"}, subject="outcomes", blocked_by=said)
    (line,) = findings(plant, 16)
    assert f": SLA kept is broken: {said}; " in line
    plant.check(18, {"kept": "pass"}, subject="outcomes")
    (line,) = findings(plant, 18)
    assert said not in line
