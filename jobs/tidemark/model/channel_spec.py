"""Reads the channels for alerts, and refuses unusable ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from tidemark.collecting import outside
from tidemark.errors import InvalidSpec
from tidemark.model.settings.toml_keys import IDENTIFIER, Keys, read_toml
from tidemark.model.sla_spec import Severity
from tidemark.semantics.incidents import CHECKS, Change

LOG = "log"
"""The channel of every topology: the log of the task that delivers."""


class ChannelKind(StrEnum):
    """The kind of a channel."""

    MAIL = "mail"
    """E-mail over SMTP."""
    SLACK = "slack"
    """A webhook with Slack's interface."""
    NOTIFIER = "notifier"
    """Any notifier of Airflow."""


@dataclass(frozen=True, kw_only=True)
class Channel:
    """A destination of changes of incidents: an Airflow notifier.

    It has the notifier's class and its *arguments*. Their texts may have `{{ alert.subject }}`, `{{ alert.text }}` and
    so on (docs/alerts.md). It receives changes that match every filter that is set (None matches all), and always
    `checks_are_made`.
    """

    name: str
    notifier: str
    arguments: Mapping[str, Any]
    topologies: tuple[str, ...] | None = None
    owners: tuple[str, ...] | None = None
    severities: tuple[str, ...] | None = None
    changes: tuple[str, ...] | None = None

    def tells(self, change: Mapping[str, Any]) -> bool:
        """Returns True if a row of `incidents` matches its filters."""
        wanted = [("topology", self.topologies), ("change", self.changes)]
        if change["sla"] != CHECKS:  # missed checks concern every owner
            wanted += [("owner", self.owners), ("severity", self.severities)]
        return all(words is None or change[column] in words for column, words in wanted)


def load(path: Path) -> tuple[Channel, ...]:
    """Returns the channels in the file at *path*; none without a file.

    Raises:
        InvalidSpec: with file, key and remedy.
    """
    if not path.exists():
        return ()
    return parse(read_toml(path), file=path.name)


def mistakes(path: Path) -> list[InvalidSpec]:
    """Returns all mistakes of the file at *path*."""
    try:
        load(path)
    except InvalidSpec as error:
        return [error]
    return []


def parse(content: Mapping[str, Any], *, file: str) -> tuple[Channel, ...]:
    """Returns the channels in *content*, a parsed TOML file.

    Raises:
        InvalidSpec: with a line for each mistake, which names *file*.
    """
    channels, errors = [], []
    for name, table in content.items():
        try:
            channels.append(_channel(file, name, table))
        except InvalidSpec as error:
            errors.append(str(error))
    if errors:
        raise InvalidSpec("\n".join(errors))
    return tuple(channels)


def _channel(file: str, name: str, table: Any) -> Channel:
    keys = Keys(file, name, table if isinstance(table, dict) else {})
    if name == LOG or not IDENTIFIER.fullmatch(name):
        problem = "is the built-in channel" if name == LOG else "is not a valid channel name"
        raise InvalidSpec.at(file, name, problem, "use another name: lower-case letters, digits and _")
    notifier, arguments = _notifier(keys)
    channel = Channel(
        name=name,
        notifier=notifier,
        arguments=arguments,
        topologies=keys.names("topologies", '["flights"]', None),
        owners=keys.names("owners", '["orders team"]', None),
        severities=_words(keys, "severities", Severity),
        changes=_words(keys, "changes", Change),
    )
    keys.done()
    return channel


def _notifier(keys: Keys) -> tuple[str, dict[str, Any]]:
    match keys.choice("kind", ChannelKind, None):
        case ChannelKind.MAIL:
            return "airflow.providers.smtp.notifications.smtp.SmtpNotifier", {
                "to": list(keys.names("to", '["desk@example.org"]')),
                "from_email": keys.text("from", "tidemark@example.org", None),
                "smtp_conn_id": keys.text("connection", "smtp_default", "smtp_default"),
                "subject": "{{ alert.subject }}",
                "html_content": "{{ alert.html }}",
                "custom_headers": {"Message-ID": "{{ alert.message_id }}"},
            }
        case ChannelKind.SLACK:
            return "airflow.providers.slack.notifications.slack_webhook.SlackWebhookNotifier", {
                "slack_webhook_conn_id": keys.text("connection", "slack_default", "slack_default"),
                "text": "{{ alert.slack }}",
                "retry_handlers": [],  # Slack's own log the URL, which is the secret; tasks are tried again
            }
        case ChannelKind.NOTIFIER:
            arguments = keys.get("arguments", dict, '{ text = "{{ alert.text }}" }', {})
            return str(keys.text("class", "airflow.providers.smtp.notifications.smtp.SmtpNotifier")), dict(arguments)


def _words(keys: Keys, key: str, among: type[StrEnum]) -> tuple[str, ...] | None:
    words: tuple[str, ...] | None = keys.names(key, f'["{next(iter(among))}"]', None)
    if words and (unknown := outside(words, list(among))):
        keys.fail(key, f"has {unknown[0]!r}", f"use any of {', '.join(among)}")
    return words
