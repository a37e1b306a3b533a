"""Chooses the alerts that a channel gets now: changes, and reminders.

Rows are those of `alerts`, of `deliveries`, and of `decisions` about alerts. Instants are epoch ms. Decisions of people
can delay deliveries, and never change an alert.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from tidemark.collecting import in_order_of
from tidemark.model.channel_spec import Channel
from tidemark.model.settings.retention import DAY_MS
from tidemark.semantics.incidents import Change, Decision, DecisionSubject
from tidemark.sla.incidents.changes import in_time, open_incidents
from tidemark.sla.incidents.grouping import LISTS

Row = Mapping[str, Any]
RETRIED_MS = DAY_MS
"""Time for which changes of a resolved alert are retried, in ms."""
_BEGINNINGS = frozenset({Change.OPENED.value, Change.ESCALATED.value})


@dataclass(frozen=True)
class Silence:
    """A time, from *start_ms* to before *end_ms*, without alerts of a subject.

    *by* is the person who silenced it.
    """

    kind: DecisionSubject
    subject: str
    start_ms: int
    end_ms: int
    by: str
    is_snooze: bool

    def holds(self, at_ms: int) -> bool:
        """Returns True if the instant *at_ms* is in the silence."""
        return self.start_ms <= at_ms < self.end_ms


def silences(decisions: Sequence[Row]) -> list[Silence]:
    """Returns the silences and snoozes of *decisions*, oldest first.

    The last decision about a subject holds: it ends an earlier one.
    """
    by_subject: dict[tuple[str, str], list[Row]] = defaultdict(list)
    # Decisions of one millisecond come in the order of Decision.
    order = [*Decision]
    for row in sorted(decisions, key=lambda row: (row["decided_at"], order.index(row["decision"]))):
        if row["decision"] != Decision.ACKNOWLEDGE:
            by_subject[row["subject_kind"], row["subject"]].append(row)
    times = []
    for (kind, subject), rows in by_subject.items():
        for row, later in zip_longest(rows, rows[1:]):
            if row["ends_at"] is None:
                continue
            end_ms = row["ends_at"] if later is None else min(row["ends_at"], later["decided_at"])
            is_snooze = row["decision"] == Decision.SNOOZE
            times.append(
                Silence(DecisionSubject(kind), subject, row["decided_at"], end_ms, row["decided_by"], is_snooze)
            )
    return sorted(times, key=lambda silence: silence.start_ms)


def silenced_until(alert: Row, silenced: Sequence[Silence], at_ms: int) -> int | None:
    """Returns until when no channel gets *alert*, by what holds at *at_ms*.

    An alert is silenced by its topology, by one of its incidents, or by all of its SLAs. Epoch ms; None: it is not
    silenced.
    """
    ends_ms = {(silence.kind, silence.subject): silence.end_ms for silence in silenced if silence.holds(at_ms)}
    subjects = [(DecisionSubject.TOPOLOGY, alert["topology"])]
    subjects += [(DecisionSubject.INCIDENT, incident) for incident in alert["incidents"]]
    silent_ms = [ends_ms[subject] for subject in subjects if subject in ends_ms]
    # One SLA that is not silenced is a reason to alert.
    slas = [(DecisionSubject.SLA, sla) for sla in alert["slas"]]
    if slas and ends_ms.keys() >= {*slas}:
        silent_ms.append(min(ends_ms[sla] for sla in slas))
    return max(silent_ms, default=None)


def with_newest_lists(alerts: Sequence[Row]) -> list[dict[str, Any]]:
    """Returns *alerts*, each with its lists and first severity as `opening_severity`.

    Only the row of an opening grows, and it has the severity that receivers know.
    """
    openings = {row["alert"]: row for row in alerts if row["change"] == Change.OPENED}
    rows = []
    for row in alerts:
        opening = openings.get(row["alert"], row)
        rows.append({**row, **in_order_of(LISTS, opening), "opening_severity": opening["severity"]})
    return rows


def due_changes(
    channel: Channel, alerts: Sequence[Row], deliveries: Sequence[Row], decisions: Sequence[Row], *, now_ms: int
) -> list[dict[str, Any]]:
    """Returns what *channel* has to deliver, oldest change first.

    A reminder of an open alert is the last opening or escalation that the channel delivered, with its number as
    `reminder`. A channel that sends open alerts again gets that row with `is_repeat` in place of it.

    Args:
        channel: the channel.
        alerts: all changes of alerts.
        deliveries: of this channel, and of those that escalate to it.
        decisions: the decisions of people.
        now_ms: the present, epoch ms.
    """
    by_alert: dict[str, list[Row]] = defaultdict(list)
    for row in sorted(with_newest_lists(alerts), key=in_time):
        by_alert[row["alert"]].append(row)
    delivered: dict[str, list[Row]] = defaultdict(list)
    for delivery in deliveries:
        delivered[delivery["alert"]].append(delivery)
    silenced, still_open = silences(decisions), open_incidents(alerts)
    due: list[dict[str, Any]] = []
    for name, changes in by_alert.items():
        alert = _ChannelAlert(channel, changes, delivered[name], silenced, now_ms, is_open=name in still_open)
        due += alert.pending() or alert.reminders()
    return sorted(due, key=in_time)


class _ChannelAlert:
    """An alert, and what *channel* has to deliver of it at *now_ms*."""

    def __init__(
        self,
        channel: Channel,
        changes: Sequence[Row],
        deliveries: Sequence[Row],
        silenced: Sequence[Silence],
        now_ms: int,
        *,
        is_open: bool,
    ) -> None:
        self._channel, self._silenced, self._now_ms, self._is_open = channel, silenced, now_ms, is_open
        self._changes = {row["change"]: row for row in changes}
        self._newest = changes[-1]
        self._own = [row for row in deliveries if row["channel"] == channel.name]
        self._others = [row for row in deliveries if row["channel"] != channel.name]
        self._delivered = {row["change"] for row in self._own}
        self._is_silenced_now = self._is_silenced_at(now_ms)

    def pending(self) -> list[dict[str, Any]]:
        """Returns the changes that the channel has to deliver."""
        is_known = bool(self._delivered & _BEGINNINGS)
        if not is_known and (self._has_ended_in_silence() or not self._has_reached()):
            return []
        rows = self._merged()
        if self._is_silenced_now or Change.RESOLVED in self._delivered:
            # A receiver that has the alert must get its end, which wakes no person.
            rows = [row for row in rows if row["change"] == Change.RESOLVED and is_known]
        if not (self._is_open or self._channel.has_opened(self._delivered)):
            # A new channel would otherwise deliver the changes of years.
            rows = [row for row in rows if row["changed_at"] >= self._now_ms - RETRIED_MS]
        matching = [row for row in rows if self._channel.must_get(row, self._delivered)]
        return [row for row in matching if row["change"] not in self._delivered]

    def reminders(self) -> Iterator[dict[str, Any]]:
        """Yields a reminder if one is due, or a repeat."""
        beginnings = [row for row in self._merged() if row["change"] in self._delivered & _BEGINNINGS]
        if not beginnings or not self._is_open or self._is_silenced_now:
            return
        if self._channel.sends_again:
            # The receiver keeps the newest copy, which must still name the person.
            acknowledged = self._changes.get(Change.ACKNOWLEDGED, {})
            yield {**beginnings[-1], "decided_by": acknowledged.get("decided_by"), "is_repeat": True}
            return
        if self._is_impact():
            return
        last_ms = max(row["delivered_at"] for row in self._own)
        if self._is_repeat_due(last_ms) or self._has_snooze_ended(last_ms):
            sent = [row["reminder"] for row in self._own if row["reminder"] is not None]
            yield {**beginnings[-1], "reminder": max(sent, default=0) + 1}

    def _has_ended_in_silence(self) -> bool:
        end = self._changes.get(Change.RESOLVED)
        return end is not None and self._is_silenced_at(end["changed_at"])

    def _is_repeat_due(self, last_ms: int) -> bool:
        """Returns True if the last delivery, at *last_ms*, is too old."""
        every_ms = self._channel.renotify_after_ms
        is_acknowledged = Change.ACKNOWLEDGED in self._changes
        return every_ms is not None and not is_acknowledged and self._now_ms - last_ms >= every_ms

    def _has_snooze_ended(self, last_ms: int) -> bool:
        """Returns True if a snooze of the alert ended after *last_ms*."""
        ended = [each for each in self._silenced if each.is_snooze and last_ms < each.end_ms <= self._now_ms]
        return any(silenced_until(self._newest, [each], each.start_ms) is not None for each in ended)

    def _merged(self) -> list[dict[str, Any]]:
        """Returns the changes in order; an opening may include an escalation.

        It does if both were in a silence, or if the alert got worse before it was escalated to this channel.
        """
        rows = {change: dict(row) for change, row in self._changes.items()}
        opened, escalated = rows.get(Change.OPENED), rows.get(Change.ESCALATED)
        if opened is None or escalated is None or not self._channel.takes(Change.OPENED):
            return [*rows.values()]
        reached_ms = min((row["delivered_at"] for row in self._own if row["change"] == Change.OPENED), default=None)
        is_by_others = self._channel.escalated_by and (reached_ms is None or escalated["changed_at"] <= reached_ms)
        if is_by_others or (
            self._is_silenced_at(opened["changed_at"]) and self._is_silenced_at(escalated["changed_at"])
        ):
            del rows[Change.ESCALATED]
            rows[Change.OPENED] = {**escalated, "change": Change.OPENED.value, "changed_at": opened["changed_at"]}
        return [*rows.values()]

    def _has_reached(self) -> bool:
        """Returns True unless the alert is not yet escalated to the channel."""
        if not self._channel.escalated_by:
            return True
        if self._is_impact() or not self._is_open or Change.ACKNOWLEDGED in self._changes:
            return False
        beginnings = [row for row in self._others if row["change"] in _BEGINNINGS]
        return any(
            self._now_ms - row["delivered_at"] >= self._channel.escalated_by[row["channel"]]
            for row in beginnings
            if row["channel"] in self._channel.escalated_by
        )

    def _is_impact(self) -> bool:
        """Returns True for a message about the impact on one owner."""
        return any(row.get("audience") is not None for row in self._changes.values())

    def _is_silenced_at(self, at_ms: int) -> bool:
        return silenced_until(self._newest, self._silenced, at_ms) is not None
