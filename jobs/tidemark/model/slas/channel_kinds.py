"""The kinds of channels for alerts: the keys of each, and the notifier of Airflow that sends.

A kind is one declaration here, and a section with an example in docs/channels.md. Another package adds one in a module
that is an entry point of the group `tidemark.channels`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from tidemark.extensions import OpenList
from tidemark.model.settings import value_types
from tidemark.model.settings.declared_tables import Key, Values, defaulted, optional, required

Notifier: TypeAlias = tuple[str, Mapping[str, Any]]
"""The class of a notifier, and its arguments.

Their texts may have `{{ alert.subject }}`, `{{ alert.text }}` and so on (docs/channels.md).
"""


@dataclass(frozen=True, kw_only=True)
class ChannelKind:
    """A kind of channel.

    Attributes:
        name: the word of the key `kind`.
        keys: those that channels of other kinds do not have, or with another default.
        notifier: returns what sends, by the values of a table.
        keeps_state: its receiver keeps an alert open until it gets the end.
        sends_again: each check sends open alerts again.
    """

    name: str
    keys: tuple[Key[Any], ...]
    notifier: Callable[[Values], Notifier]
    keeps_state: bool = False
    sends_again: bool = False


KINDS: OpenList[ChannelKind] = OpenList("kind of channel", group="tidemark.channels")
"""The kinds by their words."""


def register(kind: ChannelKind) -> ChannelKind:
    """Adds *kind* to the list, and returns it; ValueError if another has its name."""
    return KINDS.register(kind.name, kind)


def _connection(default: str, content: str) -> Key[str]:
    meaning = f"the connection of Airflow: {content}"
    return defaulted("connection", value_types.text(), example=f'"{default}"', default=default, meaning=meaning)


TO = required("to", value_types.texts(), example='["desk@example.org"]', meaning="the recipients")
FROM = optional(
    "from", value_types.text(), example='"tidemark@example.org"', without="that of the connection", meaning="the sender"
)
SMTP = _connection("smtp_default", "the mail server")


def _mail(values: Values) -> Notifier:
    return "tidemark_airflow.notifiers.mail.MailNotifier", {
        "to": list(values[TO]),
        "from_email": values[FROM],
        "smtp_conn_id": values[SMTP],
        "subject": "{{ alert.subject }}",
        "html_content": "{{ alert.html }}",
        "text": "{{ alert.text }}",
        "custom_headers": {"Message-ID": "{{ alert.message_id }}"},
    }


register(ChannelKind(name="mail", keys=(TO, FROM, SMTP), notifier=_mail))

SLACK_WEBHOOK = _connection("slack_default", "its password is the URL of the webhook")


def _slack(values: Values) -> Notifier:
    return "airflow.providers.slack.notifications.slack_webhook.SlackWebhookNotifier", {
        "slack_webhook_conn_id": values[SLACK_WEBHOOK],
        "text": "{{ alert.slack }}",
        "retry_handlers": [],  # Slack's own log the URL, which is the secret; tasks are tried again
    }


register(ChannelKind(name="slack", keys=(SLACK_WEBHOOK,), notifier=_slack))

# The default name of the connection of Airflow's provider.
PAGERDUTY_EVENTS = _connection("pagerduty_events_default", "its password is the integration key of a service")


def _pagerduty(values: Values) -> Notifier:
    return "tidemark_airflow.notifiers.receivers.PagerDutyNotifier", {"connection": values[PAGERDUTY_EVENTS]}


register(ChannelKind(name="pagerduty", keys=(PAGERDUTY_EVENTS,), notifier=_pagerduty, keeps_state=True))

ALERTMANAGER_HOST = _connection("alertmanager_default", "its host is the URL; login and password are optional")
VALID_FOR = defaulted(
    "valid_for",
    value_types.length(),
    example='"1 h"',
    default="1 h",
    meaning="an open alert ends after this time if it is not sent again; it must be longer than `check_every`",
)


def _alertmanager(values: Values) -> Notifier:
    arguments = {"connection": values[ALERTMANAGER_HOST], "valid_for_ms": values[VALID_FOR]}
    return "tidemark_airflow.notifiers.receivers.AlertmanagerNotifier", arguments


register(
    ChannelKind(
        name="alertmanager",
        keys=(ALERTMANAGER_HOST, VALID_FOR),
        notifier=_alertmanager,
        keeps_state=True,
        sends_again=True,
    )
)

WEBHOOK_HOST = _connection("webhook_default", "its host is the URL, and its password the key of the signature")


def _webhook(values: Values) -> Notifier:
    return "tidemark_airflow.notifiers.receivers.WebhookNotifier", {"connection": values[WEBHOOK_HOST]}


register(ChannelKind(name="webhook", keys=(WEBHOOK_HOST,), notifier=_webhook, keeps_state=True))

CLASS = required(
    "class",
    value_types.text(),
    example='"airflow.providers.smtp.notifications.smtp.SmtpNotifier"',
    meaning="the class of the notifier",
)
ARGUMENTS = optional(
    "arguments", value_types.plain(dict), example='{ text = "{{ alert.text }}" }', meaning="its arguments"
)


def _notifier(values: Values) -> Notifier:
    return values[CLASS], dict(values[ARGUMENTS] or {})


register(ChannelKind(name="notifier", keys=(CLASS, ARGUMENTS), notifier=_notifier))
