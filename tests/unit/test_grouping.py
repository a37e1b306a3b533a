"""Incidents of one cause are one alert, worked out by hand.

Times are minutes after noon.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from support.alert_services import KEY, PagerDutyService
from support.topologies import aggregate, repartition, sink, source, table, topology_of
from tidemark.account.explanation import Answer, CausingOwner, Explanation, Leaf
from tidemark.model.sla_events import Alert, AlertCause, IncidentChange, SlaResult
from tidemark.model.slas.channel_spec import parse as channels
from tidemark.model.topology import Topology, parse
from tidemark.semantics.incidents import CHECKS, Change
from tidemark.semantics.sla import Verdict
from tidemark.sla.incidents.alert_message import message_of
from tidemark.sla.incidents.alert_text import alert_texts
from tidemark.sla.incidents.changes import GONE
from tidemark.sla.incidents.due import DueAlert
from tidemark.sla.incidents.explaining import causes_of
from tidemark.sla.incidents.grouping import ENDED, alert_changes, fault_everywhere
from tidemark.sla.incidents.impact import results_downstream
from tidemark.sla.incidents.receiver_calls import alertmanager_alert, pagerduty_event

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
DEAD = AlertCause(owner="absence", detail="play/reads", stream="play/reads")
QUIET = AlertCause(owner="topic", detail="events")
KEPT_SLOW = AlertCause(owner="operator", detail="kept", stream="play/keeps")
PASSES = None


class Story:
    """Checks of SLAs, their incidents, and the alerts so far."""

    def __init__(self, name: str = "play") -> None:
        self.topology = replace(parse_text(TEXT), name=name)
        self.incidents: list[IncidentChange] = []
        self.results: list[SlaResult] = []
        self.alerts: dict[tuple[str, str], Alert] = {}
        self.project: list[Topology] = []
        self.elsewhere: list[Story] = []

    def check(self, minute: int, **causes: AlertCause | Sequence[AlertCause] | None) -> list[tuple[str, str]]:
        """Makes a check and returns the new changes.

        Those with PASSES pass; the others are broken, one with an empty list for no cause that is known.
        """
        at_ms = NOON + minute * MINUTE
        for sla, cause in causes.items():
            found = (cause,) if isinstance(cause, AlertCause) else cause or ()
            first = next(iter(found), None)
            result = SlaResult(
                topology=self.topology.name,
                sla=sla,
                checked_ms=at_ms,
                run_id="r",
                verdict=Verdict.PASS if cause is PASSES else Verdict.ERROR,
                cause=first,
                other_causes=tuple(found[1:]),
                blocked_by=None if first is None else f"{first.owner} of {first.detail}",
                message=f"{sla} at minute {minute}",
                observed_ms=float(minute),
            )
            self.results.append(result)
        return self.follow(at_ms)

    def changes(self, at_ms: int) -> list[Alert]:
        return alert_changes(
            self.topology,
            self.incidents,
            self.results,
            [*self.alerts.values()],
            at_ms=at_ms,
            since_ms=max(NOON - MINUTE, at_ms - 24 * 60 * MINUTE),
            project=self.project,
            elsewhere=lambda: [alert for other in self.elsewhere for alert in other.alerts.values()],
        )

    def follow(self, at_ms: int) -> list[tuple[str, str]]:
        found = self.changes(at_ms)
        new = [(each.alert, each.change.value) for each in found if (each.alert, each.change) not in self.alerts]
        self.alerts |= {(each.alert, each.change): each for each in found}
        again = self.changes(at_ms)
        assert again == []  # a second computation, as after a restart, changes nothing
        return new

    def opens(self, minute: int, sla: str, **fields: Any) -> None:
        at_ms = NOON + minute * MINUTE
        usual = {
            "changed_ms": at_ms,
            "opened_ms": at_ms,
            "broken_since_ms": at_ms,
            "verdict": Verdict.ERROR,
            "severity": "critical",
            "subject": sla,
            "unit": "ms",
            "message": f"{sla} when it was opened",
            "observed": -1.0,
            "owner": "desk",
        }
        of = {"topology": self.topology.name, "incident": f"{sla}-1", "sla": sla, "run_id": "r"}
        self.incidents.append(IncidentChange(change=Change.OPENED, **of, **usual | fields))

    def happens(self, minute: int, sla: str, change: str, **fields: Any) -> None:
        opened = next(each for each in self.incidents if each.sla == sla)
        self.incidents.append(replace(opened, change=Change(change), changed_ms=NOON + minute * MINUTE, **fields))

    def resolves(self, minute: int, sla: str) -> None:
        self.happens(minute, sla, "resolved", verdict=Verdict.PASS)


def parse_text(text: str) -> Any:
    return parse(tomllib.loads(text), file="play.toml")


@pytest.fixture
def story() -> Story:
    return Story()


DRIVER = "absence-play.reads-20260101T120000"


def test_incidents_of_one_cause_are_one_alert_that_grows(story: Story) -> None:
    story.opens(0, "board")
    assert story.check(0, board=DEAD) == [(DRIVER, "opened")]
    story.opens(5, "totals")
    assert story.check(5, board=DEAD, totals=DEAD) == []
    page = story.alerts[DRIVER, "opened"]
    assert (page.incidents, page.slas) == (("board-1", "totals-1"), ("board", "totals"))
    assert page.tables == ("board", "totals")
    story.resolves(10, "board")
    assert story.check(10, totals=DEAD) == []
    story.resolves(15, "totals")
    assert story.check(15) == [(DRIVER, "resolved")]
    assert story.alerts[DRIVER, "resolved"].changed_ms == NOON + 15 * MINUTE
    assert story.alerts[DRIVER, "resolved"].verdict == "pass"


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
    assert page.topics == ("sums", "again")
    assert page.tables == ("board", "totals", "copies/copied", "last/board")
    texts = alert_texts(message_of(DueAlert(alert=page), link=""), notified_ms=NOON)
    assert "\nAffected topics: sums, again\n" in texts["text"]
    # An alert whose SLA crossed its limit at a known instant says since when it is broken.
    at_noon, before = "2026-01-01T12:00:00.000Z", "2026-01-01T11:59:00.000Z"
    later = replace(page, changed_ms=NOON + 5 * MINUTE)
    for row, found, since in (
        (DueAlert(alert=page), f"Found broken at: {at_noon}", f"Broken since: {before}, 1 min"),
        (DueAlert(alert=page, reminder=1), f"Found broken at: {at_noon}", f"Broken since: {before}"),
        (
            DueAlert(alert=replace(later, change=Change.ESCALATED)),
            f"Found broken at: {at_noon}, at least 5 min",
            f"Broken since: {before}, 6 min",
        ),
        (
            DueAlert(alert=replace(later, change=Change.RESOLVED)),
            f"Was found broken at: {at_noon}, at least 5 min",
            f"Was broken since: {before}, 6 min",
        ),
    ):
        crossed = {"broken_since_ms": page.opened_ms - MINUTE, "crossed_ms": page.opened_ms - MINUTE}
        for began, said in (({}, found), (crossed, since)):
            dated = message_of(replace(row, alert=replace(row.alert, **began)), link="")
            assert f"\n{said}\n" in alert_texts(dated, notified_ms=NOON)["text"]
    # Not so far upstream, the first stream is not affected.
    story.opens(1, "totals")
    story.check(1, board=DEAD, totals=KEPT_SLOW)
    page = story.alerts["operator-kept-20260101T120100", "opened"]
    assert (page.topics, page.tables[0]) == (("sums", "again"), "totals")


def test_two_faults_are_two_alerts_and_neither_hides_the_other(story: Story) -> None:
    story.opens(0, "board")
    story.opens(0, "totals")
    quiet = "topic-events-20260101T120000"
    slow = "operator-kept-20260101T120000"
    assert story.check(0, board=QUIET, totals=KEPT_SLOW) == [(quiet, "opened"), (slow, "opened")]
    story.resolves(5, "board")
    assert story.check(5, totals=KEPT_SLOW) == [(quiet, "resolved")]
    assert story.check(10, totals=KEPT_SLOW) == []
    story.resolves(15, "totals")
    assert story.check(15) == [(slow, "resolved")]


def test_a_fault_that_another_one_hid_is_a_new_alert_after_two_checks(story: Story) -> None:
    story.opens(0, "board")
    assert story.check(0, board=DEAD) == [(DRIVER, "opened")]
    assert story.check(10, board=QUIET) == []
    found = story.check(20, board=QUIET)
    assert found == [("topic-events-20260101T122000", "opened"), (DRIVER, "resolved")]
    told = [story.alerts[name, "opened"].blocked_by for name, _ in found]
    assert told == ["topic of events", "absence of play/reads"]
    # What was measured is of the check that found this fault, and not of the one that opened the incident.
    opened = story.alerts["topic-events-20260101T122000", "opened"]
    assert (opened.message, opened.observed) == ("board at minute 20", 20)
    assert story.alerts[DRIVER, "resolved"].message == (
        "no SLA is broken for this cause any more; one that is still broken has another cause, and an alert of its own"
    )


@pytest.mark.parametrize(
    ("explained", "moves"),
    [
        # How many results the first cause and the other one explain, in checks a minute apart.
        ([(10, 20), (10, 20)], [(2, "topic")]),
        ([(10, 19), (10, 19), (10, 19)], []),
        ([(10, 20), (10, 19), (10, 20)], []),
        ([(10, 20), (20, 10), (10, 20)], []),
        ([(10, 20), (10, 20), (20, 10), (20, 10)], [(2, "topic"), (4, "operator")]),
        ([(0, 1), (0, 1)], [(2, "topic")]),
        # A check that passes is between them.
        ([(10, 20), None, (10, 20), (10, 20)], [(4, "topic")]),
        # One that finds no cause says nothing about either.
        ([(10, 20), (0, 0), (10, 20)], [(3, "topic")]),
        ([(0, 0), (0, 0)], []),
    ],
)
def test_a_cause_stays_until_another_explains_twice_as_many_results_in_two_checks(
    story: Story, explained: Sequence[tuple[int, int] | None], moves: list[tuple[int, str]]
) -> None:
    story.opens(0, "board")
    story.check(0, board=KEPT_SLOW)
    moved = []
    for minute, results in enumerate(explained, start=1):
        causes = None
        if results is not None:
            both = (replace(cause, results=n) for cause, n in zip((KEPT_SLOW, QUIET), results, strict=True) if n)
            # That which explains most comes first.
            causes = sorted(both, key=lambda cause: -(cause.results or 0))
        opened = [name for name, change in story.check(minute, board=causes) if change == "opened"]
        moved += [(minute, name.partition("-")[0]) for name in opened]
    assert moved == moves


def test_a_silent_partition_far_upstream_is_one_alert(story: Story) -> None:
    silent = AlertCause(owner="partition", detail="events/2", amount_ms=60_000, results=3, broken=4)
    slas = ("board", "totals", "sent", "newest")
    for minute, sla in enumerate(slas):
        story.opens(minute, sla)
        story.check(minute, **dict.fromkeys(slas[: minute + 1], silent))
    assert [name for name, _ in story.alerts] == ["partition-events-2-20260101T120000"]
    (page,) = story.alerts.values()
    assert page.cause == silent
    assert page.slas == slas


def test_the_page_of_a_fault_ends_with_the_last_of_its_alerts_in_all_topologies(story: Story) -> None:
    silent = AlertCause(owner="partition", detail="events/2")
    later = Story("other")
    story.elsewhere, later.elsewhere = [later], [story]
    name = "partition-events-2-2026010"
    for minute, of in enumerate((story, later)):
        of.opens(minute, "board")
        assert of.check(minute, board=silent) == [(f"{name}1T120{minute}00", "opened")]
    assert len({alert.fault for of in (story, later) for alert in of.alerts.values()}) == 1
    story.resolves(5, "board")
    # Who has the page does not get the later alert, which is still open.
    assert story.check(5) == []
    # For a day at most, since nobody may check the other topology any more.
    kept = dict(story.alerts)
    assert story.check(5 + 24 * 60) == []
    assert story.check(6 + 24 * 60) == [(f"{name}1T120000", "resolved")]
    story.alerts = kept
    later.resolves(7, "board")
    assert later.check(7) == [(f"{name}1T120100", "resolved")]
    assert story.check(10) == [(f"{name}1T120000", "resolved")]
    assert story.alerts[f"{name}1T120000", "resolved"].changed_ms == NOON + 7 * MINUTE


@pytest.mark.parametrize(
    ("cause", "fault"),
    [
        (AlertCause(owner="partition", detail="events/2"), "partition default events 2"),
        (AlertCause(owner="producer", detail="events/2"), "partition default events 2"),
        (AlertCause(owner="next_record", detail="events/2"), "partition default events 2"),
        (AlertCause(owner="broker", detail="events"), "broker default events"),
        # What belongs to a stream, or is no place outside, is of one topology.
        (AlertCause(owner="bound", detail="events", stream="reads"), "bound events play/reads"),
        (AlertCause(owner="operator", detail="latest", stream="others/reads"), "operator latest others/reads"),
        (AlertCause(owner="clock", detail="events-host"), "clock events-host play/"),
    ],
)
def test_a_fault_has_one_name_in_all_topologies(story: Story, cause: AlertCause, fault: str) -> None:
    assert fault_everywhere(cause, story.topology) == fault
    # Another topology may call the source as it likes.
    renamed = parse_text(TEXT.replace("events", "readings").replace('topic = "readings"', 'topic = "events"'))
    if cause.stream is None and cause.owner != "clock":
        detail = (cause.detail or "").replace("events", "readings")
        assert fault_everywhere(replace(cause, detail=detail), replace(renamed, name="other")) == fault


def test_the_causes_of_an_alert_are_those_of_an_explanation_and_then_the_other_leaves() -> None:
    leaves = (
        Leaf(owner="producer", detail="events/0", amount_ms=9_000, share=0.5, touched=30, since_ms=NOON + 1),
        Leaf(owner="producer", detail="events/1", amount_ms=4_000, share=0.25, touched=12, since_ms=NOON),
        Leaf(owner="operator", detail="latest", stream="play/reads", amount_ms=700, share=0.25, touched=11),
    )
    causes = (
        CausingOwner(owner="topic", detail="events", explained=0.73),
        CausingOwner(owner="spark", detail="", explained=0.93),
    )
    told = Explanation(answer=Answer.EXPLAINED, causes=causes, leaves=leaves, explained=0.93, broken=41)
    assert causes_of(told) == (
        # Of 41 results 73 % are 30. Both of its producers are below the topic, the earlier of which began at noon.
        AlertCause(owner="topic", detail="events", amount_ms=13_000, share=0.75, results=30, broken=41, since_ms=NOON),
        AlertCause(owner="spark", results=38, broken=41),
        AlertCause(
            owner="producer", detail="events/0", amount_ms=9_000, share=0.5, results=30, broken=41, since_ms=NOON + 1
        ),
        AlertCause(
            owner="producer", detail="events/1", amount_ms=4_000, share=0.25, results=12, broken=41, since_ms=NOON
        ),
        AlertCause(
            owner="operator", detail="latest", stream="play/reads", amount_ms=700, share=0.25, results=11, broken=41
        ),
    )
    assert causes_of(Explanation(answer=Answer.AS_USUAL)) == ()


def test_a_fault_in_another_topology_affects_what_reads_its_topics(story: Story) -> None:
    reader = replace(parse(tomllib.loads(READER), file="copies.toml"), name="copies")
    # An operator of the same name is no place of the fault.
    assert results_downstream("kept", "play/keeps", reader, [story.topology]) == (
        ["play/totals", "copied"], ["sums", "again"],
    )  # fmt: skip
    assert results_downstream("copied", "gone/keeps", reader, [story.topology]) == ([], [])
    found = Story("play")
    found.topology = reader
    found.project = [story.topology]
    found.opens(0, "copied")
    found.check(0, copied=AlertCause(owner="operator", detail="kept", stream="play/keeps"))
    (page,) = found.alerts.values()
    assert (page.tables, page.fault) == (("play/totals", "copied"), "operator kept play/keeps")


def test_a_cause_that_is_no_place_affects_what_is_behind_the_broken_promises(story: Story) -> None:
    story.opens(0, "board")
    story.opens(0, "kept")
    phone = AlertCause(owner="key", detail="phone")
    story.check(0, board=phone, kept=phone)
    (page,) = story.alerts.values()
    # `totals` and `sums` are the sinks after the operator `kept`.
    assert (page.tables, page.topics) == (("board", "totals"), ("sums",))


def test_partitions_are_causes_of_their_own(story: Story) -> None:
    story.opens(0, "board")
    story.opens(0, "totals")
    poison = [replace(QUIET, owner="producer", detail=f"events/{part}") for part in (0, 1)]
    assert story.check(0, board=poison[0], totals=poison[1]) == [
        ("producer-events-0-20260101T120000", "opened"), ("producer-events-1-20260101T120000", "opened"),
    ]  # fmt: skip


def test_an_alert_escalates_once_to_its_worst_sla(story: Story) -> None:
    story.opens(0, "board", verdict=Verdict.WARN, severity="warning")
    assert story.check(0, board=DEAD) == [(DRIVER, "opened")]
    story.opens(5, "totals")
    assert story.check(5, board=DEAD, totals=DEAD) == [(DRIVER, "escalated")]
    assert story.alerts[DRIVER, "opened"].severity == "warning"
    assert story.alerts[DRIVER, "escalated"].severity == "critical"
    story.happens(6, "board", "escalated")
    assert story.check(6, board=DEAD, totals=DEAD) == []
    story.resolves(7, "board")
    story.resolves(7, "totals")
    assert story.check(7) == [(DRIVER, "resolved")]
    assert story.alerts[DRIVER, "resolved"].severity == "critical"


def test_one_acknowledgement_is_enough_for_an_alert(story: Story) -> None:
    story.opens(0, "board")
    story.opens(0, "totals")
    story.check(0, board=DEAD, totals=DEAD)
    for minute, sla in enumerate(("totals", "board"), start=1):
        story.happens(minute, sla, "acknowledged", decided_by="Ann", message="on it")
    assert story.check(5, board=DEAD, totals=DEAD) == [(DRIVER, "acknowledged")]
    page = story.alerts[DRIVER, "acknowledged"]
    assert (page.decided_by, page.message, page.changed_ms) == ("Ann", "on it", NOON + MINUTE)


def test_an_incident_that_moved_acknowledges_only_its_new_alert(story: Story) -> None:
    story.opens(0, "board")
    story.opens(0, "totals")
    story.check(0, board=DEAD, totals=DEAD)
    quiet = "topic-events-20260101T121000"
    assert story.check(9, board=QUIET, totals=DEAD) == []
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
    quiet = "topic-events-20260101T121000"
    # The message to finance ends: its SLA is broken for another cause.
    assert story.check(9, board=QUIET, totals=DEAD, more=DEAD) == []
    assert story.check(10, board=QUIET, totals=DEAD, more=DEAD) == [
        (quiet, "opened"), (f"{DRIVER}@finance", "resolved"),
    ]  # fmt: skip
    page = story.alerts[DRIVER, "opened"]
    assert (page.slas, page.owners) == (("more", "totals"), ("desk",))
    assert page.incidents == ("more-1", "totals-1")
    # An incident that was resolved was one of this alert.
    story.resolves(12, "more")
    assert story.check(12, board=QUIET, totals=DEAD) == []
    assert story.alerts[DRIVER, "opened"].slas == ("more", "totals")
    story.resolves(15, "totals")
    assert story.check(15, board=QUIET) == [(DRIVER, "resolved"), (f"{DRIVER}@desk", "resolved")]
    assert story.alerts[DRIVER, "resolved"].message == "totals when it was opened"  # that of its last SLA


def test_other_owners_get_one_message_about_their_impact(story: Story) -> None:
    story.opens(0, "board")
    assert story.check(0, board=DEAD) == [(DRIVER, "opened")]
    assert story.alerts[DRIVER, "opened"].owner == "desk"
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
    assert (page.owner, page.audience, page.severity) == ("platform", None, "critical")
    assert (message.slas, message.audience, message.severity) == (("totals",), "finance", "warning")
    story.resolves(5, "board")
    story.happens(5, "totals", "resolved", verdict=Verdict.PASS, owner="a new owner")
    assert [change for _, change in story.check(5)] == ["resolved"] * 3


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ({"verdict": Verdict.PASS}, "board is met again"),
        ({"verdict": Verdict.UNKNOWN, "message": GONE}, "board is not defined any more"),
        ({"verdict": Verdict.UNKNOWN, "message": ENDED}, "board is no longer broken for this cause"),
        # That checks are made is a promise, too.
        ({"verdict": Verdict.UNKNOWN, "sla": CHECKS, "slas": (CHECKS,)}, f"{CHECKS} is met again"),
    ],
)
def test_the_end_of_an_alert_says_how_it_ended(story: Story, end: dict[str, Any], said: str) -> None:
    story.opens(0, "board")
    story.check(0, board=DEAD)
    ended = replace(story.alerts[DRIVER, "opened"], change=Change.RESOLVED, **end)
    subject = alert_texts(message_of(DueAlert(alert=ended), link=""), notified_ms=NOON)["subject"]
    assert subject == f"[critical] play: absence at play/reads: {said}"


def test_an_alert_is_named_after_its_cause(story: Story) -> None:
    story.opens(0, "board")
    story.opens(0, "totals", owner="finance", severity="warning")
    story.check(0, board=DEAD, totals=DEAD)
    rows = [story.alerts[name, "opened"] for name in (DRIVER, f"{DRIVER}@finance")]
    alerts = [message_of(DueAlert(alert=row), link="", dags=["hourly", "weekly"]) for row in rows]
    page, message = (alert_texts(alert, notified_ms=NOON) for alert in alerts)
    assert page["subject"] == "[critical] play: absence at play/reads: 2 SLAs are broken (error)"
    assert (
        "\nBroken SLAs: board, totals\nAffected tables: board, totals\nAffected topics: sums\n"
        "Waiting DAGs: hourly, weekly\nAffected owners: desk, finance\n" in page["text"]
    )
    assert message["subject"] == "[info] play: absence at play/reads affects finance: totals is broken (error)"
    assert [alert.dedup_key for alert in alerts] == [f"tidemark/play/{DRIVER}", f"tidemark/play/{DRIVER}@finance"]


def test_an_alertmanager_ends_the_alert_of_a_lower_severity(story: Story) -> None:
    story.opens(0, "board", severity="warning")
    story.check(0, board=DEAD)
    story.opens(5, "totals")
    story.check(5, board=DEAD, totals=DEAD)
    alert = message_of(DueAlert(alert=story.alerts[DRIVER, "escalated"], opening_severity="warning"), link="")
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
    story.opens(0, "board", verdict=Verdict.WARN, severity="warning")
    story.check(0, board=DEAD)
    story.opens(5, "totals")
    story.check(5, board=DEAD, totals=DEAD)
    escalated = replace(story.alerts[DRIVER, "escalated"], alert="x")
    alert = message_of(DueAlert(alert=escalated), link="http://localhost/x")
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
    assert (opened.slas, grown.slas) == (("board",), ("board", "totals"))
    lists = {name: getattr(opened, name) for name in ("incidents", "slas", "tables", "topics", "owners")}
    assert replace(grown, **lists) == opened
    assert grown.severity == "warning"
