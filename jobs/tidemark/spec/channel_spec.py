"""Reads the channels on which people are told of incidents, and refuses one that cannot be used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from tidemark.errors import InvalidSpec
from tidemark.semantics.incidents import CHECKS, Change
from tidemark.spec.sla_spec import Severity
from tidemark.spec.toml_keys import IDENTIFIER, Keys, read_toml

LOG = "log"
"""The channel that every topology has: the log of the task that delivers."""


class Kind(StrEnum):
    """What a channel is."""

    MAIL = "mail"
    """E-mail over SMTP."""
    SLACK = "slack"
    """A webhook that takes what Slack's do."""
    NOTIFIER = "notifier"
    """Any notifier of Airflow."""


@dataclass(frozen=True, kw_only=True)
class Channel:
    """Where changes of incidents are told, by an Airflow notifier: its class and what that is made with.

    Text among the *arguments* may have `{{ alert.subject }}`, `{{ alert.text }}` and so on (docs/alerts.md). It is told
    what has one of the topologies, owners, severities and changes, None: any; and that nobody checks, whoever owns it.
    """

    name: str
    notifier: str
    arguments: Mapping[str, Any]
    topologies: tuple[str, ...] | None = None
    owners: tuple[str, ...] | None = None
    severities: tuple[str, ...] | None = None
    changes: tuple[str, ...] | None = None

    def tells(self, change: Mapping[str, Any]) -> bool:
        """Whether a row of `incidents` is for it."""
        wanted = [("topology", self.topologies), ("change", self.changes)]
        if change["sla"] != CHECKS:  # which everybody depends on
            wanted += [("owner", self.owners), ("severity", self.severities)]
        return all(words is None or change[column] in words for column, words in wanted)


def load(path: Path) -> tuple[Channel, ...]:
    """The channels in the file at *path*, none without one; raises InvalidSpec with file, key and remedy."""
    if not path.exists():
        return ()
    return parse(read_toml(path), file=path.name)


def mistakes(path: Path) -> list[InvalidSpec]:
    """All that is wrong with the file at *path*."""
    try:
        load(path)
    except InvalidSpec as error:
        return [error]
    return []


def parse(content: Mapping[str, Any], *, file: str) -> tuple[Channel, ...]:
    """The channels in *content*, a parsed TOML file named *file* in errors; InvalidSpec has a line for each mistake."""
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
        problem = "is the channel that is always there" if name == LOG else "is no name for a channel"
        raise InvalidSpec.at(file, name, problem, "use another one: lower-case letters, digits and _")
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
    match keys.choice("kind", Kind, None):
        case Kind.MAIL:
            return "airflow.providers.smtp.notifications.smtp.SmtpNotifier", {
                "to": list(keys.names("to", '["desk@example.org"]')),
                "from_email": keys.text("from", "tidemark@example.org", None),
                "smtp_conn_id": keys.text("connection", "smtp_default", "smtp_default"),
                "subject": "{{ alert.subject }}",
                "html_content": "{{ alert.html }}",
                "custom_headers": {"Message-ID": "{{ alert.message_id }}"},
            }
        case Kind.SLACK:
            return "airflow.providers.slack.notifications.slack_webhook.SlackWebhookNotifier", {
                "slack_webhook_conn_id": keys.text("connection", "slack_default", "slack_default"),
                "text": "{{ alert.slack }}",
                "retry_handlers": [],  # Slack's own log the URL, which is the secret; tasks are tried again
            }
        case Kind.NOTIFIER:
            arguments = keys.get("arguments", dict, '{ text = "{{ alert.text }}" }', {})
            return str(keys.text("class", "airflow.providers.smtp.notifications.smtp.SmtpNotifier")), dict(arguments)


def _words(keys: Keys, key: str, among: type[StrEnum]) -> tuple[str, ...] | None:
    words: tuple[str, ...] | None = keys.names(key, f'["{next(iter(among))}"]', None)
    if words and (unknown := [word for word in words if word not in list(among)]):
        keys.fail(key, f"has {unknown[0]!r}", f"use some of {', '.join(among)}")
    return words
