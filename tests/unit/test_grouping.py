"""Incidents of one cause are one alert, worked out by hand.

Times are minutes after noon.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from typing import Any

import pytest

from support.alert_services import KEY, PagerDutyService
from support.topologies import aggregate, repartition, sink, source, table, topology_of
from tidemark.model.channel_spec import parse as channels
from tidemark.model.topology import Topology, parse
from tidemark.sla.incidents.alert_message import alert_of
from tidemark.sla.incidents.alert_text import alert_texts
from tidemark.sla.incidents.grouping import alert_changes
from tidemark.sla.incidents.receiver_calls import alertmanager_alert, pagerduty_event
from tidemark.sla.incidents.roots import root_of
from tidemark.sla.measures.status import RootCause
from tidemark.why.causes.drivers import BROKER_SILENT
from tidemark.why.evidence.findings import WhyFinding

NOON, MINUTE = 1_767_268_800_000, 60_000  # 2026-01-01T12:00Z
TEXT = topology_of(
    {"owner": "platform"},
    events=source("id string, amount double", sub_topology="reads"),
    newest=table(columns=["amount"]),
    board=sink("newest", table="board"),
    by_id=repartition("newest", id=["id"], key=["amount"], columns=["amount"]),
    kept=aggregate("by_id", sub_topology="keeps", aggregates={"n": "count(*)"}),
    totals=sink("kept", table="totals"),
    sent=sink("kept", topic="sums"),
)
READER = topology_of(
    sums=source("id string, n bigint", topic="sums"),
    copied=sink("sums", table="copied"),
    again=sink("sums", topic="again"),
)
"""Another topology of the project, which reads a topic of the first."""
DEAD = {"cause": "driver_dead", "cause_sub_topology": "reads", "cause_operator": None, "cause_partition": None}
QUIET = {"cause": "source_quiet", "cause_sub_topology": "reads", "cause_operator": "events", "cause_partition": None}
KEPT_SLOW = {"cause": "slow_operator", "cause_sub_topology": "keeps", "cause_operator": "kept", "cause_partition": None}
UNEXPLAINED = {"cause": "unexplained", "cause_sub_topology": None, "cause_operator": "board", "cause_partition": None}
PASSES = dict.fromkeys(DEAD)


class Story:
    """Checks of SLAs, their incidents, and the alerts so far."""

    def __init__(self) -> None:
        self.topology = parse_text(TEXT)
        self.incidents: list[dict[str, Any]] = []
        self.results: list[dict[str, Any]] = []
        self.alerts: dict[tuple[str, str], dict[str, Any]] = {}
        self.project: list[Topology] = []

    def check(self, minute: int, **causes: dict[str, Any]) -> list[tuple[str, str]]:
        """Makes a check and returns the new changes.

        These SLAs are broken; those without a cause pass.
        """
        at_ms = NOON + minute * MINUTE
        for sla, cause in causes.items():
            verdict = "pass" if cause is PASSES else "error"
            result = {"sla": sla, "checked_at": at_ms, "verdict": verdict, "excluded_because": None}
            seen = dict.fromkeys(("cause_since", "culprit", "blocked_by"))
            self.results.append({**result, **seen, **cause})
        return self.follow(at_ms)

    def changes(self, at_ms: int) -> list[dict[str, Any]]:
        return alert_changes(
            self.topology,
            self.incidents,
            self.results,
            [*self.alerts.values()],
            at_ms=at_ms,
            since_ms=NOON - MINUTE,
            project=self.project,
        )

    def follow(self, at_ms: int) -> list[tuple[str, str]]:
        rows = self.changes(at_ms)
        new = [(row["alert"], row["change"]) for row in rows if (row["alert"], row["change"]) not in self.alerts]
        self.alerts |= {(row["alert"], row["change"]): row for row in rows}
        again = self.changes(at_ms)
        assert again == []  # a second computation, as after a restart, changes nothing
        return new

    def opens(self, minute: int, sla: str, **columns: Any) -> None:
        at_ms = NOON + minute * MINUTE
        row = dict.fromkeys(
            ("measure", "observed", "threshold", "unit", "message", "culprit", "blocked_by", "budget_left")
        )
        row |= {"incident": f"{sla}-1", "topology": "play", "sla": sla, "change": "opened", "changed_at": at_ms}
        row |= {"opened_at": at_ms, "broken_since": at_ms, "run_id": "r", "verdict": "error", "severity": "critical"}
        self.incidents.append({**row, "subject": sla, "owner": "desk", "runbook": None, "decided_by": None, **columns})

    def happens(self, minute: int, sla: str, change: str, **columns: Any) -> None:
        opened = next(row for row in self.incidents if row["sla"] == sla)
        self.incidents.append({**opened, "change": change, "changed_at": NOON + minute * MINUTE, **columns})

    def resolves(self, minute: int, sla: str) -> None:
        self.happens(minute, sla, "resolved", verdict="pass")


def parse_text(text: str) -> Any:
    return parse(tomllib.loads(text), file="play.toml")


@pytest.fixture
def story() -> Story:
    return Story()


DRIVER = "driver_dead-reads-20260101T120000"


def test_incidents_of_one_cause_are_one_alert_that_grows(story: Story) -> None:
    story.opens(0, "board")
    assert story.check(0, board=DEAD) == [(DRIVER, "opened")]
    story.opens(5, "totals")
    assert story.check(5, board=DEAD, totals=DEAD) == []
    page = story.alerts[DRIVER, "opened"]
    assert (page["incidents"], page["slas"]) == (["board-1", "totals-1"], ["board", "totals"])
    assert page["tables"] == ["board", "totals"]
    story.resolves(10, "board")
    assert story.check(10, totals=DEAD) == []
    story.resolves(15, "totals")
    assert story.check(15) == [(DRIVER, "resolved")]
    assert story.alerts[DRIVER, "resolved"]["changed_at"] == NOON + 15 * MINUTE
    assert story.alerts[DRIVER, "resolved"]["verdict"] == "pass"


def test_an_alert_lists_topics_and_what_reads_them(story: Story) -> None:
    # It reads two of the topics.
    last = topology_of(
        both=source("id string, n bigint", topic=None, topics=["again", "sums"], idle_after="30 s"),
        board=sink("both", table="board"),
    )
    others = [parse(tomllib.loads(text), file=f"{name}.toml") for name, text in (("copies", READER), ("last", last))]
    story.project = [replace(each, name=name) for each, name in zip(others, ("copies", "last"), strict=True)]
    story.opens(0, "board")
    story.check(0, board=DEAD)
    page = story.alerts[DRIVER, "opened"]
    assert page["topics"] == ["sums", "again"]
    assert page["tables"] == ["board", "totals", "copies/copied", "last/board"]
    texts = alert_texts(alert_of(page, link=""), notified_ms=NOON)
    assert "\nAffected topics: sums, again\n" in texts["text"]
    # An alert whose SLA crossed its limit at a known instant says since when it is broken.
    at_noon, before = "2026-01-01T12:00:00.000Z", "2026-01-01T11:59:00.000Z"
    later = {"changed_at": NOON + 5 * MINUTE}
    for row, found, since in (
        ({}, f"Found broken at: {at_noon}", f"Broken since: {before}, 1 min"),
        ({"reminder": 1}, f"Found broken at: {at_noon}", f"Broken since: {before}"),
        (
            {"change": "escalated", **later},
            f"Found broken at: {at_noon}, at least 5 min",
            f"Broken since: {before}, 6 min",
        ),
        (
            {"change": "resolved", **later},
            f"Was found broken at: {at_noon}, at least 5 min",
            f"Was broken since: {before}, 6 min",
        ),
    ):
        for broken_ms, said in ((page["opened_at"], found), (page["opened_at"] - MINUTE, since)):
            dated = alert_of({**page, **row, "incident": DRIVER, "broken_since": broken_ms}, link="")
            assert f"\n{said}\n" in alert_texts(dated, notified_ms=NOON)["text"]
    # Not so far upstream, the first stream is not affected.
    story.opens(1, "totals")
    story.check(1, board=DEAD, totals=KEPT_SLOW)
    page = story.alerts["slow_operator-kept-20260101T120100", "opened"]
    assert (page["topics"], page["tables"][0]) == (["sums", "again"], "totals")


def test_two_faults_are_two_alerts_and_neither_hides_the_other(story: Story) -> None:
    story.opens(0, "board")
    story.opens(0, "totals")
    quiet = "source_quiet-events-20260101T120000"
    slow = "slow_operator-kept-20260101T120000"
    assert story.check(0, board=QUIET, totals=KEPT_SLOW) == [(quiet, "opened"), (slow, "opened")]
    story.resolves(5, "board")
    assert story.check(5, totals=KEPT_SLOW) == [(quiet, "resolved")]
    assert story.check(10, totals=KEPT_SLOW) == []
    story.resolves(15, "totals")
    assert story.check(15) == [(slow, "resolved")]


def test_a_fault_that_another_one_hid_is_a_new_alert(story: Story) -> None:
    story.opens(0, "board")
    assert story.check(0, board=DEAD) == [(DRIVER, "opened")]
    found = story.check(10, board=QUIET)
    assert found == [("source_quiet-events-20260101T121000", "opened"), (DRIVER, "resolved")]
    assert story.alerts[DRIVER, "resolved"]["message"] == (
        "no SLA is broken for this cause any more; one that is still broken has another cause, and an alert of its own"
    )


def test_what_follows_a_dead_driver_is_the_same_alert(story: Story) -> None:
    story.opens(0, "board")
    story.check(0, board=DEAD)
    for minute, cause in enumerate(("driver_starting", "driver_restarted"), start=1):
        assert story.check(minute, board={**DEAD, "cause": cause}) == []
    for cause in ("being_read", "catching_up"):
        assert story.check(3, board={**QUIET, "cause": cause}) == []
    assert story.check(4, board=UNEXPLAINED) == []
    story.resolves(5, "board")
    assert story.check(5) == [(DRIVER, "resolved")]


def of_driver(cause: str, *, since: int) -> dict[str, Any]:
    """A cause of the driver of `reads`, since a minute."""
    return {**DEAD, "cause": cause, "cause_since": NOON + since * MINUTE, "blocked_by": f"{cause} since {since}"}


def test_a_second_outage_of_a_driver_is_another_alert(story: Story) -> None:
    story.opens(0, "board", blocked_by="driver_dead since -1")
    assert story.check(0, board=of_driver("driver_dead", since=-1)) == [(DRIVER, "opened")]
    assert story.check(1, board=of_driver("driver_restarted", since=-1)) == []
    second = "driver_dead-reads-20260101T120300"
    assert story.check(3, board=of_driver("driver_dead", since=2)) == [(second, "opened"), (DRIVER, "resolved")]
    assert story.alerts[second, "opened"]["blocked_by"] == "driver_dead since 2"
    story.opens(4, "totals")
    assert story.check(4, board=of_driver("driver_dead", since=2), totals=of_driver("driver_dead", since=2)) == []
    assert story.alerts[second, "opened"]["incidents"] == ["board-1", "totals-1"]
    # Its restart ends neither SLA's breach at once.
    late = of_driver("driver_restarted", since=2)
    assert story.check(5, board=late, totals=late) == []
    for sla in ("board", "totals"):
        story.resolves(6, sla)
    assert story.check(6, board=PASSES, totals=PASSES) == [(second, "resolved")]


def test_an_outage_between_two_checks_that_pass_is_another_alert(story: Story) -> None:
    story.opens(0, "board")
    story.check(0, board=of_driver("driver_dead", since=-1))
    assert story.check(10, board=PASSES) == []
    assert story.check(20, board=of_driver("driver_starting", since=9)) == [
        ("driver_starting-reads-20260101T122000", "opened"), (DRIVER, "resolved"),
    ]  # fmt: skip


def test_a_restart_after_a_restart_is_another_alert(story: Story) -> None:
    story.opens(0, "board")
    first = "driver_restarted-reads-20260101T120000"
    assert story.check(0, board=of_driver("driver_restarted", since=-2)) == [(first, "opened")]
    assert story.check(1, board=of_driver("driver_restarted", since=-2)) == []
    assert story.check(5, board=of_driver("driver_restarted", since=3)) == [
        ("driver_restarted-reads-20260101T120500", "opened"), (first, "resolved"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "causes",
    [
        # It dies again and again, and never works between.
        [of_driver("driver_starting", since=1), of_driver("driver_dead", since=2), of_driver("driver_dead", since=3)],
        # A limit that grew for an hour made the SLA pass.
        [PASSES, of_driver("driver_dead", since=-1), of_driver("driver_dead", since=-1)],
        # Its restart is still what made records late.
        [of_driver("driver_restarted", since=-1), UNEXPLAINED, of_driver("driver_restarted", since=-1)],
    ],
)
def test_one_outage_is_one_alert(story: Story, causes: list[dict[str, Any]]) -> None:
    story.opens(0, "board")
    assert story.check(0, board=of_driver("driver_dead", since=-1)) == [(DRIVER, "opened")]
    assert [story.check(minute, board=cause) for minute, cause in enumerate(causes, start=1)] == [[], [], []]


def test_a_living_driver_whose_fault_comes_and_goes_is_one_alert(story: Story) -> None:
    story.opens(0, "board")
    assert story.check(0, board=of_driver("driver_restarted", since=-1), totals=PASSES) != []
    slow = "slow_batch-reads-20260101T120100"
    late = {"totals": of_driver("driver_restarted", since=-1)}
    assert (slow, "opened") in story.check(1, board=of_driver("slow_batch", since=1), **late)
    assert story.check(2, board=PASSES, **late) == []
    assert story.check(3, board=of_driver("slow_batch", since=3), **late) == []


def test_records_late_for_the_first_outage_stay_in_its_alert(story: Story) -> None:
    story.opens(0, "board")
    story.check(0, board=of_driver("driver_dead", since=-1))
    story.opens(1, "totals")
    late = {"totals": of_driver("driver_restarted", since=-1)}
    assert story.check(1, board=PASSES, **late) == []
    second = "driver_dead-reads-20260101T120300"
    assert story.check(3, board=of_driver("driver_dead", since=2), **late) == [(second, "opened")]
    assert [story.alerts[name, "opened"]["slas"] for name in (DRIVER, second)] == [["totals"], ["board"]]
    story.resolves(4, "totals")
    assert story.check(4, board=of_driver("driver_dead", since=2)) == [(DRIVER, "resolved")]
    story.resolves(5, "board")
    assert story.check(5, board=PASSES) == [(second, "resolved")]


def test_silent_brokers_are_a_cause_of_the_driver(story: Story) -> None:
    findings = [
        WhyFinding(
            cause=BROKER_SILENT, sub_topology="reads", operator=name, input=None, partition=None, since_ms=NOON,
            seen="", remedy="",
        )
        for name in ("events", "board")
    ]  # fmt: skip
    # Every operator of the driver waits, so their SLAs have one cause.
    assert {root_of(finding, story.topology) for finding in findings} == {
        RootCause("broker_silent", "reads", operator=None, partition=None)
    }
    story.opens(0, "board")
    assert story.check(0, board={**DEAD, "cause": "broker_silent"}) == [
        ("broker_silent-reads-20260101T120000", "opened")
    ]
    # The driver that begins again is no other alert.
    assert story.check(1, board={**DEAD, "cause": "driver_restarted"}) == []


def test_partitions_are_causes_of_their_own(story: Story) -> None:
    story.opens(0, "board")
    story.opens(0, "totals")
    poison = [{**QUIET, "cause": "poison_at_head", "cause_partition": part} for part in (0, 1)]
    assert story.check(0, board=poison[0], totals=poison[1]) == [
        ("poison_at_head-events-0-20260101T120000", "opened"), ("poison_at_head-events-1-20260101T120000", "opened"),
    ]  # fmt: skip


def test_an_alert_escalates_once_to_its_worst_sla(story: Story) -> None:
    story.opens(0, "board", verdict="warn", severity="warning")
    assert story.check(0, board=DEAD) == [(DRIVER, "opened")]
    story.opens(5, "totals")
    assert story.check(5, board=DEAD, totals=DEAD) == [(DRIVER, "escalated")]
    assert story.alerts[DRIVER, "opened"]["severity"] == "warning"
    assert story.alerts[DRIVER, "escalated"]["severity"] == "critical"
    story.happens(6, "board", "escalated")
    assert story.check(6, board=DEAD, totals=DEAD) == []
    story.resolves(7, "board")
    story.resolves(7, "totals")
    assert story.check(7) == [(DRIVER, "resolved")]
    assert story.alerts[DRIVER, "resolved"]["severity"] == "critical"


def test_one_acknowledgement_is_enough_for_an_alert(story: Story) -> None:
    story.opens(0, "board")
    story.opens(0, "totals")
    story.check(0, board=DEAD, totals=DEAD)
    for minute, sla in enumerate(("totals", "board"), start=1):
        story.happens(minute, sla, "acknowledged", decided_by="Ann", message="on it")
    assert story.check(5, board=DEAD, totals=DEAD) == [(DRIVER, "acknowledged")]
    page = story.alerts[DRIVER, "acknowledged"]
    assert (page["decided_by"], page["message"], page["changed_at"]) == ("Ann", "on it", NOON + MINUTE)


def test_an_incident_that_moved_acknowledges_only_its_new_alert(story: Story) -> None:
    story.opens(0, "board")
    story.opens(0, "totals")
    story.check(0, board=DEAD, totals=DEAD)
    quiet = "source_quiet-events-20260101T121000"
    assert story.check(10, board=QUIET, totals=DEAD) == [(quiet, "opened")]
    story.happens(11, "board", "acknowledged", decided_by="Ann", message="on it")
    assert story.check(15, board=QUIET, totals=DEAD) == [(quiet, "acknowledged")]
    story.resolves(20, "board")
    # It ended in the alert that it moved to.
    assert story.check(20, totals=DEAD) == [(quiet, "resolved")]


def test_an_incident_that_moved_leaves_the_lists_of_its_alert(story: Story) -> None:
    story.opens(0, "board", owner="finance")
    story.opens(0, "totals")
    story.opens(0, "more")
    story.check(0, board=DEAD, totals=DEAD, more=DEAD)
    quiet = "source_quiet-events-20260101T121000"
    # The message to finance ends: its SLA is broken for another cause.
    assert story.check(10, board=QUIET, totals=DEAD, more=DEAD) == [
        (quiet, "opened"), (f"{DRIVER}@finance", "resolved"),
    ]  # fmt: skip
    page = story.alerts[DRIVER, "opened"]
    assert (page["slas"], page["owners"]) == (["more", "totals"], ["desk"])
    assert page["incidents"] == ["more-1", "totals-1"]
    # An incident that was resolved was one of this alert.
    story.resolves(12, "more")
    assert story.check(12, board=QUIET, totals=DEAD) == []
    assert story.alerts[DRIVER, "opened"]["slas"] == ["more", "totals"]
    story.resolves(15, "totals")
    assert story.check(15, board=QUIET) == [(DRIVER, "resolved"), (f"{DRIVER}@desk", "resolved")]
    assert story.alerts[DRIVER, "resolved"]["message"] is None  # that of its last SLA


def test_other_owners_get_one_message_about_their_impact(story: Story) -> None:
    story.opens(0, "board")
    assert story.check(0, board=DEAD) == [(DRIVER, "opened")]
    assert story.alerts[DRIVER, "opened"]["owner"] == "desk"
    story.resolves(1, "board")
    story.check(1)
    story.incidents.clear()
    story.alerts.clear()
    story.results.clear()
    story.opens(0, "board")
    story.opens(0, "totals", owner="finance", severity="warning")
    assert story.check(0, board=DEAD, totals=DEAD) == [
        (DRIVER, "opened"), (f"{DRIVER}@desk", "opened"), (f"{DRIVER}@finance", "opened"),
    ]  # fmt: skip
    page, message = (story.alerts[name, "opened"] for name in (DRIVER, f"{DRIVER}@finance"))
    assert (page["owner"], page["audience"], page["severity"]) == ("platform", None, "critical")
    assert (message["slas"], message["audience"], message["severity"]) == (["totals"], "finance", "warning")
    story.resolves(5, "board")
    story.happens(5, "totals", "resolved", verdict="pass", owner="a new owner")
    assert [change for _, change in story.check(5)] == ["resolved"] * 3


def test_an_alert_is_named_after_its_cause(story: Story) -> None:
    story.opens(0, "board")
    story.opens(0, "totals", owner="finance", severity="warning")
    story.check(0, board=DEAD, totals=DEAD)
    rows = [story.alerts[name, "opened"] for name in (DRIVER, f"{DRIVER}@finance")]
    alerts = [alert_of(row, link="", dags=["hourly", "weekly"]) for row in rows]
    page, message = (alert_texts(alert, notified_ms=NOON) for alert in alerts)
    assert page["subject"] == "[critical] play: driver dead at reads: 2 SLAs are broken (error)"
    assert (
        "\nBroken SLAs: board, totals\nAffected tables: board, totals\nAffected topics: sums\n"
        "Waiting DAGs: hourly, weekly\nAffected owners: desk, finance\n" in page["text"]
    )
    assert message["subject"] == "[info] play: driver dead at reads affects finance: totals is broken (error)"
    assert [alert.dedup_key for alert in alerts] == [f"tidemark/play/{DRIVER}", f"tidemark/play/{DRIVER}@finance"]


def test_an_alertmanager_ends_the_alert_of_a_lower_severity(story: Story) -> None:
    story.opens(0, "board", severity="warning")
    story.check(0, board=DEAD)
    story.opens(5, "totals")
    story.check(5, board=DEAD, totals=DEAD)
    row = story.alerts[DRIVER, "escalated"] | {"opening_severity": "warning"}
    alert = alert_of(row, link="")
    texts = alert_texts(alert, notified_ms=NOON)
    new, old = alertmanager_alert(alert, texts, valid_until_ms=NOON + 60 * MINUTE).body
    assert (new["labels"]["severity"], new["endsAt"]) == ("critical", "2026-01-01T13:00:00.000Z")
    assert (old["labels"]["severity"], old["endsAt"]) == ("warning", "2026-01-01T12:05:00.000Z")
    assert {**new["labels"], "severity": "warning"} == old["labels"]


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ({}, ["alert"]),
        ({"owners": ["platform"]}, ["alert"]),
        ({"owners": ["finance"]}, ["message"]),
        ({"owners": ["finance"], "severities": ["warning"]}, ["message"]),
        ({"owners": ["finance"], "severities": ["critical"]}, []),
        ({"owners": ["platform", "finance"]}, ["alert"]),
        ({"owners": ["somebody else"]}, []),
    ],
)
def test_a_channel_gets_the_alert_or_the_message_on_impact(
    story: Story, filters: dict[str, Any], wanted: list[str]
) -> None:
    story.opens(0, "board")
    story.opens(0, "totals", owner="finance", severity="warning")
    story.check(0, board=DEAD, totals=DEAD)
    (channel,) = channels({"desk": {"kind": "slack", **filters}}, file="channels.toml")
    rows = {"alert": story.alerts[DRIVER, "opened"], "message": story.alerts[f"{DRIVER}@finance", "opened"]}
    assert [name for name, row in rows.items() if channel.tells(row)] == wanted


def test_an_incident_without_a_cause_is_an_alert_of_its_own(story: Story) -> None:
    story.opens(0, "board")
    story.opens(0, "totals")
    assert story.follow(NOON) == [("board-1", "opened"), ("totals-1", "opened")]


def test_an_incident_that_ended_between_checks_is_alerted(story: Story) -> None:
    story.opens(0, "board")
    story.resolves(5, "board")
    assert story.check(5, board=DEAD) == [(DRIVER, "opened"), (DRIVER, "resolved")]
    assert story.check(10) == []


def test_a_pager_opens_an_alert_by_its_escalation(story: Story) -> None:
    """A channel of critical alerts gets the escalation of a warning first."""
    story.opens(0, "board", verdict="warn", severity="warning")
    story.check(0, board=DEAD)
    story.opens(5, "totals")
    story.check(5, board=DEAD, totals=DEAD)
    escalated = {**story.alerts[DRIVER, "escalated"], "alert": "x"}
    alert = alert_of(escalated, link="http://localhost/x")
    service = PagerDutyService()
    event = pagerduty_event(alert, alert_texts(alert, notified_ms=NOON), routing_key=KEY)
    body = json.dumps(event.body).encode()
    assert service.accept(event.path, {"Content-Type": "application/json"}, body) == 202
    assert service.states == {alert.dedup_key: "open"}


def test_a_message_about_the_impact_keeps_its_severity(story: Story) -> None:
    story.opens(0, "board", severity="warning", owner="ann")
    story.opens(0, "other", owner="bob")
    story.check(0, board=DEAD, other=DEAD)
    name = f"{DRIVER}@ann"
    opened = story.alerts[name, "opened"]
    story.opens(5, "totals", owner="ann")
    story.check(5, board=DEAD, other=DEAD, totals=DEAD)
    grown = story.alerts[name, "opened"]
    assert (opened["slas"], grown["slas"]) == (["board"], ["board", "totals"])
    lists = ("incidents", "slas", "tables", "topics", "owners")
    assert {k: v for k, v in grown.items() if k not in lists} == {k: v for k, v in opened.items() if k not in lists}
    assert grown["severity"] == "warning"
