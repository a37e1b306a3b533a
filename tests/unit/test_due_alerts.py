"""Silences, reminders and escalation of alerts, worked out by hand.

Times are minutes after noon; a delivery at a minute records what it delivers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tidemark.model.sla_events import Alert, AlertDecided, Delivery
from tidemark.model.slas.channel_spec import Channel, parse
from tidemark.semantics.incidents import Change, Decision, DecisionSubject
from tidemark.semantics.sla import Verdict
from tidemark.sla.incidents.due import DueAlert, TopologyAlerts, due_changes

NOON, MINUTE = 1_767_268_800_000, 60_000  # 2026-01-01T12:00Z


class Desk:
    """Alerts, decisions about them, and the channels of a file."""

    def __init__(self, **channels: dict[str, Any]) -> None:
        self.channels = {channel.name: channel for channel in parse(channels, file="channels.toml")}
        self.alerts: list[Alert] = []
        self.deliveries: list[Delivery] = []
        self.decisions: list[AlertDecided] = []
        self.elsewhere: list[Desk] = []

    def changes(self, minute: int, change: str, alert: str = "dead-1", **fields: Any) -> None:
        at_ms = NOON + minute * MINUTE
        slas = ("board", "delays")
        usual = {
            "topology": "flights",
            "sla": "board",
            "opened_ms": at_ms,
            "severity": "critical",
            "verdict": Verdict.ERROR,
            "incidents": tuple(f"{sla}-1" for sla in slas),
            "slas": slas,
            "owners": ("desk",),
            "owner": "desk",
        }
        self.alerts.append(Alert(alert=alert, change=Change(change), changed_ms=at_ms, **usual | fields))

    def decides(self, minute: int, decision: str, kind: str, subject: str, until: int | None = None) -> None:
        made = AlertDecided(
            topology="flights",
            decision=Decision(decision),
            subject_kind=DecisionSubject(kind),
            subject=subject,
            decided_ms=NOON + minute * MINUTE,
            decided_by="Ann",
            ends_ms=None if until is None else NOON + until * MINUTE,
        )
        self.decisions.append(made)

    def due(self, minute: int, name: str = "desk") -> list[DueAlert]:
        channel = self.channels[name]
        return due_changes(
            channel,
            self._seen_by(channel),
            now_ms=NOON + minute * MINUTE,
            elsewhere=lambda: [other._seen_by(channel) for other in self.elsewhere],
        )

    def delivers(self, minute: int, name: str = "desk") -> list[str]:
        """Delivers to a channel; returns changes and numbers of reminders."""
        told = []
        for due in self.due(minute, name):
            made = Delivery(
                topology=due.alert.topology,
                alert=due.name,
                change=due.change,
                channel=name,
                delivered_ms=NOON + minute * MINUTE,
                reminder=due.reminder,
            )
            self.deliveries.append(made)
            told.append(due.change.value if due.reminder is None else f"{due.change} {due.reminder}")
        return told

    def _seen_by(self, channel: Channel) -> TopologyAlerts:
        seen = [each for each in self.deliveries if each.channel in {channel.name, *channel.escalated_by}]
        return TopologyAlerts(alerts=self.alerts, deliveries=seen, decisions=self.decisions)


def desk(**keys: Any) -> Desk:
    return Desk(desk={"kind": "webhook", **keys})


@pytest.mark.parametrize(
    ("kind", "subjects"),
    [("incident", ["delays-1"]), ("sla", ["board", "delays"]), ("topology", ["flights"])],
)
def test_a_silenced_alert_is_told_once_when_the_silence_ends(kind: str, subjects: list[str]) -> None:
    plays = desk()
    for subject in subjects:
        plays.decides(0, "silence", kind, subject, until=60)
    plays.changes(10, "opened")
    assert [plays.delivers(minute) for minute in (10, 59, 60, 61)] == [[], [], ["opened"], []]


def test_an_alert_with_an_sla_that_is_not_silenced_is_told() -> None:
    plays = desk()
    plays.decides(0, "silence", "sla", "board", until=60)
    plays.changes(10, "opened")
    plays.changes(11, "opened", "quiet-1", slas=("board",), incidents=("board-2",))
    assert plays.delivers(12) == ["opened"]
    assert plays.deliveries[0].alert == "dead-1"


def test_an_sla_that_joins_after_an_acknowledgement_counts() -> None:
    """Only the row of an opening grows."""
    plays = desk()
    plays.decides(0, "silence", "sla", "board", until=60)
    plays.changes(10, "opened", slas=("board",), incidents=("board-1",))
    plays.changes(11, "acknowledged", slas=("board",), incidents=("board-1",))
    assert plays.delivers(12) == []
    grown = {"slas": ("board", "delays"), "incidents": ("board-1", "delays-1")}
    plays.alerts[0] = replace(plays.alerts[0], **grown)
    assert plays.delivers(13) == ["opened", "acknowledged"]
    plays.decides(14, "silence", "incident", "delays-1", until=60)
    plays.changes(15, "escalated", slas=("board",), incidents=("board-1",))
    assert plays.delivers(16) == []


def test_an_open_alert_is_sent_again_without_another_delivery() -> None:
    plays = Desk(desk={"kind": "alertmanager", "changes": ["opened", "resolved"]})
    plays.changes(0, "opened")
    assert plays.delivers(0) == ["opened"]

    def again(minute: int) -> list[tuple[str, bool]]:
        return [(due.change.value, due.is_repeat) for due in plays.due(minute)]

    assert again(1) == [("opened", True)]
    plays.changes(2, "escalated")  # which its filter leaves out
    assert again(3) == [("opened", True)]
    plays.decides(4, "silence", "topology", "flights", until=10)
    assert (again(5), again(10)) == ([], [("opened", True)])
    plays.changes(11, "resolved")
    assert again(12) == [("resolved", False)]


def test_an_alert_that_is_sent_again_names_who_acknowledged_it() -> None:
    plays = Desk(desk={"kind": "alertmanager"})
    plays.changes(0, "opened")
    plays.changes(1, "acknowledged", decided_by="Ann")
    assert plays.delivers(2) == ["opened", "acknowledged"]
    (again,) = plays.due(3)
    assert (again.change, again.alert.decided_by) == ("opened", "Ann")


def test_what_opened_and_ended_in_a_silence_is_never_told() -> None:
    plays = desk()
    plays.decides(0, "silence", "topology", "flights", until=60)
    plays.changes(10, "opened")
    plays.changes(20, "escalated")
    plays.changes(30, "resolved")
    assert [plays.delivers(minute) for minute in (31, 60, 600)] == [[], [], []]


def test_an_end_is_told_in_a_silence_if_the_opening_was() -> None:
    plays = desk()
    plays.changes(0, "opened")
    assert plays.delivers(1) == ["opened"]
    plays.decides(2, "silence", "incident", "board-1", until=60)
    plays.changes(10, "escalated")
    assert plays.delivers(11) == []
    plays.changes(20, "resolved")
    assert [plays.delivers(minute) for minute in (21, 60)] == [["resolved"], []]


def test_an_escalation_in_a_silence_is_told_with_the_opening() -> None:
    plays = desk()
    plays.decides(0, "silence", "topology", "flights", until=60)
    plays.changes(10, "opened", verdict=Verdict.WARN)
    plays.changes(20, "escalated")
    (due,) = plays.due(60)
    assert (due.change, due.alert.verdict, due.changed_ms) == ("opened", "error", NOON + 10 * MINUTE)
    assert [plays.delivers(minute) for minute in (60, 61)] == [["opened"], []]
    plays.changes(70, "resolved")
    assert plays.delivers(71) == ["resolved"]


def test_the_last_decision_about_a_subject_holds() -> None:
    plays = desk()
    plays.decides(0, "silence", "topology", "flights", until=600)
    plays.decides(5, "silence", "topology", "flights", until=30)
    plays.changes(10, "opened")
    assert [plays.delivers(minute) for minute in (29, 30)] == [[], ["opened"]]
    plays.decides(40, "silence", "topology", "flights", until=600)
    plays.changes(50, "opened", "dead-2")
    plays.decides(60, "unsilence", "topology", "flights")
    assert [plays.delivers(minute) for minute in (59, 60)] == [[], ["opened"]]


def test_a_snoozed_alert_is_told_again_when_the_snooze_ends() -> None:
    plays = desk()
    plays.changes(0, "opened")
    assert plays.delivers(0) == ["opened"]
    plays.decides(5, "snooze", "incident", "board-1", until=35)
    assert [plays.delivers(minute) for minute in (10, 34, 35, 36)] == [[], [], ["opened 1"], []]
    plays.decides(40, "snooze", "incident", "board-1", until=60)
    plays.changes(50, "resolved")
    assert [plays.delivers(minute) for minute in (51, 60)] == [["resolved"], []]


def test_an_alert_is_told_again_until_it_is_acknowledged() -> None:
    plays = desk(renotify_after="30 min")
    plays.changes(0, "opened")
    told = {minute: plays.delivers(minute) for minute in (0, 10, 29, 30, 59, 60)}
    assert told == {0: ["opened"], 10: [], 29: [], 30: ["opened 1"], 59: [], 60: ["opened 2"]}
    plays.changes(70, "acknowledged")
    assert [plays.delivers(minute) for minute in (70, 100, 200)] == [["acknowledged"], [], []]


def test_a_silence_delays_reminders_and_an_end_stops_them() -> None:
    plays = desk(renotify_after="30 min")
    plays.changes(0, "opened")
    assert plays.delivers(0) == ["opened"]
    plays.decides(10, "silence", "sla", "board", until=100)
    plays.decides(10, "silence", "sla", "delays", until=100)
    assert [plays.delivers(minute) for minute in (30, 99, 100)] == [[], [], ["opened 1"]]
    plays.changes(110, "resolved")
    assert [plays.delivers(minute) for minute in (110, 200)] == [["resolved"], []]


def test_a_reminder_has_the_worst_that_was_told() -> None:
    plays = desk(renotify_after="30 min")
    plays.changes(0, "opened")
    plays.changes(5, "escalated")
    assert [plays.delivers(minute) for minute in (5, 34, 35)] == [["opened", "escalated"], [], ["escalated 1"]]


def test_a_message_about_the_impact_is_not_repeated_or_escalated() -> None:
    plays = Desk(
        desk={"kind": "webhook", "owners": ["night"], "renotify_after": "30 min", "escalate_after": "15 min"}
        | {"escalate_to": ["lead"]},
        lead={"kind": "webhook", "owners": ["night"]},
    )
    plays.changes(0, "opened", "dead-1@night", audience="night")
    assert [plays.delivers(minute) for minute in (0, 30, 60)] == [["opened"], [], []]
    assert plays.delivers(60, "lead") == []


def escalating() -> Desk:
    first = {"kind": "webhook", "escalate_after": "15 min", "escalate_to": ["lead"]}
    return Desk(desk=first, lead={"kind": "webhook"})


def test_an_unacknowledged_alert_is_escalated_once() -> None:
    plays = escalating()
    plays.changes(0, "opened")
    assert plays.delivers(10) == ["opened"]
    assert [plays.delivers(minute, "lead") for minute in (10, 24, 25, 60)] == [[], [], ["opened"], []]
    plays.changes(70, "acknowledged")
    plays.changes(80, "resolved")
    assert plays.delivers(81, "lead") == ["acknowledged", "resolved"]


@pytest.mark.parametrize("change", ["acknowledged", "resolved"])
def test_an_acknowledged_or_ended_alert_is_not_escalated(change: str) -> None:
    plays = escalating()
    plays.changes(0, "opened")
    plays.delivers(0)
    plays.changes(10, change)
    plays.delivers(10)
    assert [plays.delivers(minute, "lead") for minute in (10, 15, 90)] == [[], [], []]


def test_an_alert_that_nobody_was_told_is_not_escalated() -> None:
    plays = escalating()
    plays.decides(0, "silence", "topology", "flights", until=60)
    plays.changes(1, "opened")
    assert (plays.delivers(30), plays.delivers(30, "lead")) == ([], [])
    assert (plays.delivers(60), plays.delivers(74, "lead"), plays.delivers(75, "lead")) == (["opened"], [], ["opened"])


def test_a_worse_alert_is_escalated_as_one_message() -> None:
    plays = escalating()
    plays.changes(0, "opened", verdict=Verdict.WARN)
    plays.changes(5, "escalated")
    assert plays.delivers(5) == ["opened", "escalated"]
    assert [plays.delivers(minute, "lead") for minute in (19, 20, 21)] == [[], ["opened"], []]


def two_topologies(**other: Any) -> tuple[Desk, Desk]:
    """Alerts of one fault in two topologies, at noon and a minute later, and a channel for all topologies."""
    first, later = desk(), desk(**other)
    first.elsewhere, later.elsewhere = [later], [first]
    first.changes(0, "opened", fault="partition kafka orders 0")
    later.changes(1, "opened", "dead-2", topology="orders", fault="partition kafka orders 0")
    return first, later


def test_one_fault_of_two_topologies_is_one_page() -> None:
    first, later = two_topologies()
    assert (first.delivers(1), later.delivers(1)) == (["opened"], [])
    later.changes(5, "resolved", "dead-2", topology="orders", fault="partition kafka orders 0", opened_ms=NOON + MINUTE)
    first.changes(6, "resolved", fault="partition kafka orders 0", opened_ms=NOON)
    assert (first.delivers(6), later.delivers(6)) == (["resolved"], [])


def test_a_second_fault_is_another_page() -> None:
    first, later = two_topologies()
    later.changes(1, "opened", "dead-3", topology="orders", fault="partition kafka orders 1")
    assert (first.delivers(1), later.delivers(1)) == (["opened"], ["opened"])
    # It ended before the later one began, which is a fault of its own.
    first, later = two_topologies()
    first.changes(0, "resolved", fault="partition kafka orders 0", opened_ms=NOON)
    assert (first.delivers(1), later.delivers(1)) == (["opened", "resolved"], ["opened"])


def test_a_channel_that_does_not_get_the_page_gets_the_alert_of_its_topology() -> None:
    first, later = two_topologies(topologies=["orders"])
    assert (first.delivers(1), later.delivers(1)) == (["opened"], ["opened"])


def test_a_page_that_is_less_severe_or_silenced_hides_no_alert() -> None:
    first, later = two_topologies()
    first.alerts = [replace(alert, severity="warning") for alert in first.alerts]
    assert later.delivers(1) == ["opened"]
    first, later = two_topologies()
    first.decides(0, "silence", "topology", "flights", until=60)
    assert (first.delivers(1), later.delivers(1)) == ([], ["opened"])
    # A silence after the page was told is about this fault.
    first, later = two_topologies()
    assert first.delivers(0) == ["opened"]
    first.decides(1, "silence", "topology", "flights", until=60)
    assert later.delivers(1) == []
