"""Reads the channels for alerts, and refuses unusable ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from tidemark.collecting import names_in, outside
from tidemark.errors import InvalidSpec
from tidemark.graph import inverted, reached
from tidemark.model.settings.lengths import for_people, length_in_toml
from tidemark.model.settings.toml_keys import Keys, read_tables, read_toml, suggestion_of
from tidemark.model.settings.value_types import IDENTIFIER
from tidemark.model.sla_events import Alert
from tidemark.model.slas.sla_spec import SlaSpec
from tidemark.model.topology import Topology
from tidemark.semantics.incidents import CHECKS, Change
from tidemark.semantics.sla import Severity

LOG = "log"
"""The channel of every topology: the log of the task that delivers."""
LOG_NOTIFIER = "tidemark.airflow.tasks.sla.LogNotifier"


class ChannelKind(StrEnum):
    """The kind of a channel."""

    MAIL = "mail"
    """E-mail over SMTP."""
    SLACK = "slack"
    """A webhook with Slack's interface."""
    PAGERDUTY = "pagerduty"
    """PagerDuty's Events API v2."""
    ALERTMANAGER = "alertmanager"
    """Version 2 of the API of Prometheus' Alertmanager."""
    WEBHOOK = "webhook"
    """Signed JSON: see docs/alert.schema.json."""
    NOTIFIER = "notifier"
    """Any notifier of Airflow."""


KEEPS_STATE = frozenset({ChannelKind.PAGERDUTY, ChannelKind.ALERTMANAGER, ChannelKind.WEBHOOK})
"""Kinds whose receivers keep an alert open until they get its end."""
VALID_FOR_MS = 3_600_000


@dataclass(frozen=True, kw_only=True)
class Channel:
    """A destination of changes of alerts: an Airflow notifier.

    It has the notifier's class and its *arguments*. Their texts may have `{{ alert.subject }}`, `{{ alert.text }}` and
    so on (docs/channels.md). It receives changes that match every filter that is set (None matches all), and always
    `checks_are_made`.

    A channel that *keeps_state* gets the end of each alert that it opened, however late. One that *sends_again* gets
    open alerts again at each delivery. It gets an alert that is not acknowledged again every *renotify_after_ms* (None:
    never). A channel that is *escalated_by* others, by name, gets only alerts that one of them got so many ms before,
    and that are not acknowledged.
    """

    name: str
    notifier: str
    arguments: Mapping[str, Any]
    topologies: tuple[str, ...] | None = None
    owners: tuple[str, ...] | None = None
    severities: tuple[str, ...] | None = None
    changes: tuple[str, ...] | None = None
    keeps_state: bool = False
    sends_again: bool = False
    renotify_after_ms: int | None = None
    escalated_by: Mapping[str, int] = field(default_factory=dict)

    def takes(self, change: Change) -> bool:
        """Returns True if its filter of changes has *change*."""
        return self.changes is None or change in self.changes

    def tells(self, alert: Alert) -> bool:
        """Returns True if a change of an *alert* matches its filters."""
        wanted = [(alert.topology, self.topologies), (alert.change, self.changes)]
        if alert.audience is not None:
            # Only a channel that names this owner, and does not get the alert itself.
            owners = self.owners or ()
            if alert.audience not in owners or alert.owner in owners:
                return False
            wanted.append((alert.severity, self.severities))
        elif alert.sla != CHECKS:  # missed checks concern every owner
            wanted += [(alert.owner or "", self.owners), (alert.severity, self.severities)]
        return all(words is None or word in words for word, words in wanted)

    def has_opened(self, delivered: Collection[Change]) -> bool:
        """Returns True if the receiver has an alert by the changes *delivered*.

        A receiver that keeps state opens it at a filter's first match, which may be its escalation.
        """
        return self.keeps_state and not {Change.OPENED, Change.ESCALATED}.isdisjoint(delivered)

    def must_get(self, alert: Alert, delivered: Collection[Change]) -> bool:
        """Returns True if a change of an *alert* matches its filters, or ends it.

        An alert may end with another severity than it was opened with. *delivered* are the changes of the alert that
        this channel has delivered.
        """
        return self.tells(alert) or (alert.change is Change.RESOLVED and self.has_opened(delivered))


def load(path: Path) -> tuple[Channel, ...]:
    """Returns the channels in the file at *path*; none without a file.

    Raises:
        InvalidSpec: with file, key and remedy.
    """
    if not path.exists():
        return ()
    return parse(read_toml(path), file=path.name)


def channels_of(path: Path, topology: str) -> list[Channel]:
    """Returns the channels for incidents of *topology* by the file at *path*, the log first.

    A file that cannot be used has none: SLAs are checked nevertheless, and a DAG file shows the mistake.
    """
    try:
        configured = load(path)
    except InvalidSpec:
        configured = ()
    matching = [channel for channel in configured if channel.topologies is None or topology in channel.topologies]
    return [Channel(name=LOG, notifier=LOG_NOTIFIER, arguments={"text": "{{ alert.text }}"}), *matching]


def mistakes(path: Path) -> list[InvalidSpec]:
    """Returns all mistakes of the file at *path*."""
    try:
        load(path)
    except InvalidSpec as error:
        return [error]
    return []


def warnings(channels: Iterable[Channel], promised: Sequence[tuple[Topology, Sequence[SlaSpec]]]) -> Iterator[str]:
    """Yields a line for each filter or time without effect.

    Args:
        channels: those of the file.
        promised: all topologies with their SLAs.
    """
    names = names_in(topology for topology, _ in promised)
    for channel in channels:
        chosen = [pair for pair in promised if channel.topologies is None or pair[0].name in channel.topologies]
        specs = [spec for _, of_topology in chosen for spec in of_topology]
        owners = [*(topology.owner for topology, _ in chosen), *(spec.owner for spec in specs)]
        severities = [spec.severity.value for spec in specs]
        yield from _unmatched(f"{channel.name}.topologies", channel.topologies, names)
        # Without a topology no other filter matches anything.
        if chosen:
            yield from _unmatched(f"{channel.name}.owners", channel.owners, owners)
            yield from _without_slas(channel, severities)
        yield from _shorter_than_checks(channel, [topology for topology, _ in chosen])


def _unmatched(key: str, words: Collection[str] | None, values: Collection[str]) -> Iterator[str]:
    for word in outside(words or (), values):
        remedy = suggestion_of(word, {*values}, key.rpartition(".")[2])
        yield f"{key}: warning: has {word!r}, which no alert has; {remedy}"


def _without_slas(channel: Channel, severities: Collection[str]) -> Iterator[str]:
    """Yields a line if no SLA has one of the channel's severities."""
    # A list may name severities that only later SLAs have.
    if channel.severities and {*severities}.isdisjoint(channel.severities):
        problem = f"at present no SLA has severity {' or '.join(channel.severities)}"
        present = ", ".join(dict.fromkeys(severities)) or "none"
        yield f"{channel.name}.severities: warning: {problem}; SLAs have {present}"


def _shorter_than_checks(channel: Channel, topologies: Iterable[Topology]) -> Iterator[str]:
    """Yields a line for each time shorter than that between checks."""
    lengths_ms: dict[str, int | None] = {
        **{f"{name}.escalate_after": after_ms for name, after_ms in channel.escalated_by.items()},
        f"{channel.name}.renotify_after": channel.renotify_after_ms,
        f"{channel.name}.valid_for": channel.arguments.get("valid_for_ms"),
    }
    for topology in topologies:
        every_ms = topology.check_every_ms
        for key, length_ms in lengths_ms.items():
            if length_ms is not None and length_ms < every_ms:
                problem = f"is {for_people(length_ms)}, but only checks send alerts"
                every = f"{topology.name} has one every {for_people(every_ms)}"
                remedy = f'write "{length_in_toml(every_ms)}" or more, or a shorter check_every'
                yield f"{key}: warning: {problem}, and {every}; {remedy}"


def parse(content: Mapping[str, Any], *, file: str) -> tuple[Channel, ...]:
    """Returns the channels in *content*, a parsed TOML file.

    Raises:
        InvalidSpec: with a line for each mistake, which names *file*.
    """
    escalated_by: dict[str, dict[str, int]] = defaultdict(dict)

    def read(name: str, keys: Keys) -> Channel:
        for other, after_ms in _escalations(keys, content):
            escalated_by[other][name] = after_ms
        return _channel(keys)

    channels = read_tables(file, "", content, read)
    _refuse_circles(escalated_by, content, file)
    return tuple(replace(channel, escalated_by=dict(escalated_by[name])) for name, channel in channels.items())


def _escalations(keys: Keys, content: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yields the channels to which it escalates, and after how many ms."""
    after_ms = keys.duration("escalate_after", "15 min", None)
    others = keys.names("escalate_to", '["lead"]', ())
    if (after_ms is None) != (not others):
        missing, example = ("escalate_to", '["lead"]') if others == () else ("escalate_after", '"15 min"')
        keys.fail(
            missing, "is missing", f"write {missing} = {example}, or leave out both escalate_after and escalate_to"
        )
    channels = [name for name in content if name != keys.at]
    if unknown := outside(others, channels):
        remedy = f"use other channels of this file: {', '.join(channels) or 'there are none'}"
        keys.fail("escalate_to", f"has {unknown[0]!r}", remedy)
    yield from ((other, after_ms) for other in others)


def _refuse_circles(escalated_by: Mapping[str, Mapping[str, int]], names: Collection[str], file: str) -> None:
    """Refuses channels that get alerts only from each other, so from none."""
    alerted = reached(outside(names, escalated_by), inverted(escalated_by))
    if silent := outside(names, alerted):
        problem = f"makes a circle, so that no alert comes to {', '.join(silent)}"
        remedy = "leave out escalate_after and escalate_to of the last channel"
        raise InvalidSpec.at(file, f"{silent[0]}.escalate_to", problem, remedy)


def _channel(keys: Keys) -> Channel:
    name = keys.at
    if name == LOG or not IDENTIFIER.fullmatch(name):
        problem = "is the built-in channel" if name == LOG else "is not a valid channel name"
        raise InvalidSpec.at(keys.file, name, problem, "use another name: lower-case letters, digits and _")
    kind = keys.choice("kind", ChannelKind, None)
    notifier, arguments = _notifier(kind, keys)
    channel = Channel(
        name=name,
        notifier=notifier,
        arguments=arguments,
        topologies=keys.names("topologies", '["flights"]', None),
        owners=keys.names("owners", '["orders team"]', None),
        severities=_words(keys, "severities", Severity),
        changes=_words(keys, "changes", Change),
        keeps_state=kind in KEEPS_STATE,
        sends_again=kind is ChannelKind.ALERTMANAGER,
        renotify_after_ms=keys.duration("renotify_after", "30 min", None),
    )
    if channel.sends_again and channel.renotify_after_ms is not None:
        problem = f"is set, but each check sends open alerts to an {kind} again"
        keys.fail("renotify_after", problem, "leave it out; repeat_interval of its route decides when it tells again")
    if channel.keeps_state and channel.changes is not None and Change.RESOLVED not in channel.changes:
        problem = f"leaves out 'resolved', so that alerts of kind {kind} would stay open for ever"
        keys.fail("changes", problem, 'write changes = ["opened", "resolved"], or leave it out')
    return channel


def _notifier(kind: ChannelKind, keys: Keys) -> tuple[str, dict[str, Any]]:
    match kind:
        case ChannelKind.MAIL:
            return "tidemark.airflow.tasks.mail.MailNotifier", {
                "to": list(keys.names("to", '["desk@example.org"]')),
                "from_email": keys.text("from", "tidemark@example.org", None),
                "smtp_conn_id": keys.text("connection", "smtp_default", "smtp_default"),
                "subject": "{{ alert.subject }}",
                "html_content": "{{ alert.html }}",
                "text": "{{ alert.text }}",
                "custom_headers": {"Message-ID": "{{ alert.message_id }}"},
            }
        case ChannelKind.SLACK:
            return "airflow.providers.slack.notifications.slack_webhook.SlackWebhookNotifier", {
                "slack_webhook_conn_id": keys.text("connection", "slack_default", "slack_default"),
                "text": "{{ alert.slack }}",
                "retry_handlers": [],  # Slack's own log the URL, which is the secret; tasks are tried again
            }
        case ChannelKind.PAGERDUTY:
            # The default name of the connection of Airflow's provider.
            return _receiver("PagerDutyNotifier", keys, "pagerduty_events_default")
        case ChannelKind.ALERTMANAGER:
            notifier, arguments = _receiver("AlertmanagerNotifier", keys, "alertmanager_default")
            return notifier, {**arguments, "valid_for_ms": keys.duration("valid_for", "1 h", VALID_FOR_MS)}
        case ChannelKind.WEBHOOK:
            return _receiver("WebhookNotifier", keys, "webhook_default")
        case ChannelKind.NOTIFIER:
            arguments = keys.get("arguments", dict, '{ text = "{{ alert.text }}" }', {})
            return str(keys.text("class", "airflow.providers.smtp.notifications.smtp.SmtpNotifier")), dict(arguments)


def _receiver(name: str, keys: Keys, connection: str) -> tuple[str, dict[str, Any]]:
    return f"tidemark.airflow.tasks.receivers.{name}", {"connection": keys.text("connection", connection, connection)}


def _words(keys: Keys, key: str, among: type[StrEnum]) -> tuple[str, ...] | None:
    words: tuple[str, ...] | None = keys.names(key, f'["{next(iter(among))}"]', None)
    if words and (unknown := outside(words, list(among))):
        keys.fail(key, f"has {unknown[0]!r}", f"use any of {', '.join(among)}")
    return words
