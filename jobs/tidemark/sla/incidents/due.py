"""Chooses the alerts that a channel gets now: changes, and reminders.

Decisions of people can delay deliveries, and never change an alert. Of the alerts that one fault has in several
topologies, a channel gets the first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from tidemark.model.settings.retention import DAY_MS
from tidemark.model.sla_events import Alert, AlertDecided, Delivery, in_time, still_open
from tidemark.model.slas.channel_spec import Channel
from tidemark.selection import present
from tidemark.semantics.incidents import Change, Decision, DecisionSubject
from tidemark.sla.incidents.grouping import LISTS, precedes, severity_rank

RETRIED_MS = DAY_MS
"""Time for which changes of a resolved alert are retried, in ms."""
_BEGINNINGS = frozenset({Change.OPENED, Change.ESCALATED})


@dataclass(frozen=True, kw_only=True)
class DueAlert:
    """What a channel has to deliver.

    Attributes:
        alert: the change, with the lists of its opening, which grow.
        opening_severity: the severity that receivers know; None if that is the severity of the change.
        reminder: number of the reminder, from 1; None for the change itself.
        is_repeat: True if the same change is only sent again.
    """

    alert: Alert
    opening_severity: str | None = None
    reminder: int | None = None
    is_repeat: bool = False

    @property
    def name(self) -> str:
        """The name of the alert."""
        return self.alert.alert

    @property
    def change(self) -> Change:
        """What happened."""
        return self.alert.change

    @property
    def changed_ms(self) -> int:
        """When it happened, epoch ms."""
        return self.alert.changed_ms


@dataclass(frozen=True, kw_only=True)
class TopologyAlerts:
    """The alerts of a topology.

    Attributes:
        alerts: all changes.
        deliveries: what the channel in question has delivered, and the channels that escalate to it.
        decisions: decisions of people about them.
    """

    alerts: Sequence[Alert]
    deliveries: Sequence[Delivery] = ()
    decisions: Sequence[AlertDecided] = ()


@dataclass(frozen=True)
class Silence:
    """A time, from *start_ms* to before *end_ms*, in which channels get no alerts of a subject; *by* is the person."""

    kind: DecisionSubject
    subject: str
    start_ms: int
    end_ms: int
    by: str
    is_snooze: bool

    def holds(self, at_ms: int) -> bool:
        """Returns True if the instant *at_ms* is in the silence."""
        return self.start_ms <= at_ms < self.end_ms


def silences(decisions: Sequence[AlertDecided]) -> list[Silence]:
    """Returns the silences and snoozes of *decisions*, oldest first.

    The last decision about a subject holds: it ends an earlier one.
    """
    by_subject: dict[tuple[DecisionSubject, str], list[AlertDecided]] = defaultdict(list)
    # Decisions of one millisecond come in the order of Decision.
    order = [*Decision]
    for each in sorted(decisions, key=lambda each: (each.decided_ms, order.index(each.decision))):
        if each.decision is not Decision.ACKNOWLEDGE:
            by_subject[each.subject_kind, each.subject].append(each)
    times = []
    for (kind, subject), made in by_subject.items():
        for each, later in zip_longest(made, made[1:]):
            if each.ends_ms is None:
                continue
            end_ms = each.ends_ms if later is None else min(each.ends_ms, later.decided_ms)
            is_snooze = each.decision is Decision.SNOOZE
            times.append(Silence(kind, subject, each.decided_ms, end_ms, each.decided_by or "", is_snooze))
    return sorted(times, key=lambda silence: silence.start_ms)


def silenced_until(alert: Alert, silenced: Sequence[Silence], at_ms: int) -> int | None:
    """Returns until when *alert* is kept from channels by the silences of *at_ms*, epoch ms; None if it is not.

    An alert is silenced if its topology is, or one of its incidents, or all of its SLAs.
    """
    ends_ms = {(silence.kind, silence.subject): silence.end_ms for silence in silenced if silence.holds(at_ms)}
    subjects = [(DecisionSubject.TOPOLOGY, alert.topology)]
    subjects += [(DecisionSubject.INCIDENT, incident) for incident in alert.incidents]
    silent_ms = [ends_ms[subject] for subject in subjects if subject in ends_ms]
    # One SLA that is not silenced is a reason to alert.
    slas = [(DecisionSubject.SLA, sla) for sla in alert.slas]
    if slas and ends_ms.keys() >= {*slas}:
        silent_ms.append(min(ends_ms[sla] for sla in slas))
    return max(silent_ms, default=None)


def with_newest_lists(alerts: Sequence[Alert]) -> list[DueAlert]:
    """Returns the changes *alerts*, each with the lists and the severity of the opening of its alert.

    Only the row of an opening grows, and it has the severity that receivers know.
    """
    openings = {each.alert: each for each in alerts if each.change is Change.OPENED}
    due = []
    for each in alerts:
        opening = openings.get(each.alert, each)
        lists = {name: getattr(opening, name) for name in LISTS}
        due.append(DueAlert(alert=replace(each, **lists), opening_severity=opening.severity))
    return due


def due_changes(
    channel: Channel,
    own: TopologyAlerts,
    *,
    now_ms: int,
    elsewhere: Callable[[], Sequence[TopologyAlerts]] = lambda: (),
) -> list[DueAlert]:
    """Returns what *channel* has to deliver of a topology, oldest change first.

    A reminder of an open alert is the last opening or escalation that the channel delivered, with its number. A channel
    that sends open alerts again gets that one as a repeat.

    Args:
        channel: the channel.
        own: what is known of the topology.
        now_ms: the present, epoch ms.
        elsewhere: returns what is known of other topologies. An alert is left out if the channel gets that of its fault
            that opened first, and is as severe, from there.
    """
    by_alert: dict[str, list[DueAlert]] = defaultdict(list)
    for each in in_time(with_newest_lists(own.alerts)):
        by_alert[each.name].append(each)
    delivered: dict[str, list[Delivery]] = defaultdict(list)
    for delivery in own.deliveries:
        delivered[delivery.alert].append(delivery)
    silenced, unresolved = silences(own.decisions), still_open(own.alerts)
    due: list[DueAlert] = []
    for name, changes in by_alert.items():
        alert = _ChannelAlert(channel, changes, delivered[name], silenced, now_ms, is_open=name in unresolved)
        pending = alert.pending()
        if not pending:
            due += alert.reminders()
        elif alert.is_known or not _is_told_elsewhere(channel, [each.alert for each in changes], elsewhere, now_ms):
            due += pending
    return in_time(due)


def _is_told_elsewhere(
    channel: Channel, changes: Sequence[Alert], elsewhere: Callable[[], Sequence[TopologyAlerts]], now_ms: int
) -> bool:
    """Returns True if *channel* gets an alert of another topology about the same fault as these *changes*."""
    alert, rank = changes[0], min(severity_rank(each.severity) for each in changes)
    if alert.fault is None or alert.audience is not None:
        return False
    for other in elsewhere():
        delivered = {(each.alert, each.change) for each in other.deliveries if each.channel == channel.name}
        ends_ms = {each.alert: each.changed_ms for each in other.alerts if each.change is Change.RESOLVED}
        silenced = silences(other.decisions)
        for page in other.alerts:
            is_beginning = page.change in _BEGINNINGS and page.audience is None and precedes(page, alert)
            if not is_beginning or ends_ms.get(page.alert, now_ms) < (alert.opened_ms or 0):
                continue
            # Somebody must hear of it: a page that a silence keeps from the channel tells nobody.
            is_told = (page.alert, page.change) in delivered or silenced_until(page, silenced, now_ms) is None
            if is_told and channel.tells(page) and severity_rank(page.severity) <= rank:
                return True
    return False


class _ChannelAlert:
    """An alert, and what *channel* has to deliver of it at *now_ms*."""

    def __init__(
        self,
        channel: Channel,
        changes: Sequence[DueAlert],
        deliveries: Sequence[Delivery],
        silenced: Sequence[Silence],
        now_ms: int,
        *,
        is_open: bool,
    ) -> None:
        self._channel, self._silenced, self._now_ms, self._is_open = channel, silenced, now_ms, is_open
        self._changes = {each.change: each for each in changes}
        self._newest = changes[-1].alert
        self._own = [each for each in deliveries if each.channel == channel.name]
        self._others = [each for each in deliveries if each.channel != channel.name]
        self._delivered = {each.change for each in self._own}
        self._is_silenced_now = self._is_silenced_at(now_ms)

    @property
    def is_known(self) -> bool:
        """True if the channel has delivered that the alert began."""
        return bool(self._delivered & _BEGINNINGS)

    def pending(self) -> list[DueAlert]:
        """Returns the changes that the channel has to deliver."""
        if not self.is_known and (self._has_ended_in_silence() or not self._has_reached()):
            return []
        due = self._merged()
        if self._is_silenced_now or Change.RESOLVED in self._delivered:
            # A receiver that has the alert must get its end, which wakes no person.
            due = [each for each in due if each.change is Change.RESOLVED and self.is_known]
        if not (self._is_open or self._channel.has_opened(self._delivered)):
            # A new channel would otherwise deliver the changes of years.
            due = [each for each in due if each.changed_ms >= self._now_ms - RETRIED_MS]
        matching = [each for each in due if self._channel.must_get(each.alert, self._delivered)]
        return [each for each in matching if each.change not in self._delivered]

    def reminders(self) -> Iterator[DueAlert]:
        """Yields a reminder if one is due, or a repeat."""
        beginnings = [each for each in self._merged() if each.change in self._delivered & _BEGINNINGS]
        if not beginnings or not self._is_open or self._is_silenced_now:
            return
        if self._channel.sends_again:
            # The receiver keeps the newest copy, which must still name the person.
            acknowledged = self._changes.get(Change.ACKNOWLEDGED)
            named = replace(beginnings[-1].alert, decided_by=acknowledged.alert.decided_by if acknowledged else None)
            yield replace(beginnings[-1], alert=named, is_repeat=True)
            return
        if self._is_impact():
            return
        last_ms = max(each.delivered_ms for each in self._own)
        if self._is_repeat_due(last_ms) or self._has_snooze_ended(last_ms):
            sent = present(each.reminder for each in self._own)
            yield replace(beginnings[-1], reminder=max(sent, default=0) + 1)

    def _has_ended_in_silence(self) -> bool:
        end = self._changes.get(Change.RESOLVED)
        return end is not None and self._is_silenced_at(end.changed_ms)

    def _is_repeat_due(self, last_ms: int) -> bool:
        """Returns True if the last delivery, at *last_ms*, is too old."""
        every_ms = self._channel.renotify_after_ms
        is_acknowledged = Change.ACKNOWLEDGED in self._changes
        return every_ms is not None and not is_acknowledged and self._now_ms - last_ms >= every_ms

    def _has_snooze_ended(self, last_ms: int) -> bool:
        """Returns True if a snooze of the alert ended after *last_ms*."""
        ended = [each for each in self._silenced if each.is_snooze and last_ms < each.end_ms <= self._now_ms]
        return any(silenced_until(self._newest, [each], each.start_ms) is not None for each in ended)

    def _merged(self) -> list[DueAlert]:
        """Returns the changes in order, where an opening may already include the escalation after it.

        That is so if both came in a silence, or if the alert got worse before it was escalated to this channel.
        """
        changes = dict(self._changes)
        opened, escalated = changes.get(Change.OPENED), changes.get(Change.ESCALATED)
        if opened is None or escalated is None or not self._channel.takes(Change.OPENED):
            return [*changes.values()]
        reached_ms = min((each.delivered_ms for each in self._own if each.change is Change.OPENED), default=None)
        is_by_others = self._channel.escalated_by and (reached_ms is None or escalated.changed_ms <= reached_ms)
        if is_by_others or (self._is_silenced_at(opened.changed_ms) and self._is_silenced_at(escalated.changed_ms)):
            del changes[Change.ESCALATED]
            worse = replace(escalated.alert, change=Change.OPENED, changed_ms=opened.changed_ms)
            changes[Change.OPENED] = replace(escalated, alert=worse)
        return [*changes.values()]

    def _has_reached(self) -> bool:
        """Returns True unless the alert is not yet escalated to the channel."""
        if not self._channel.escalated_by:
            return True
        if self._is_impact() or not self._is_open or Change.ACKNOWLEDGED in self._changes:
            return False
        beginnings = [each for each in self._others if each.change in _BEGINNINGS]
        return any(
            self._now_ms - each.delivered_ms >= self._channel.escalated_by[each.channel]
            for each in beginnings
            if each.channel in self._channel.escalated_by
        )

    def _is_impact(self) -> bool:
        """Returns True for a message about the impact on one owner."""
        return any(each.alert.audience is not None for each in self._changes.values())

    def _is_silenced_at(self, at_ms: int) -> bool:
        return silenced_until(self._newest, self._silenced, at_ms) is not None
