"""Sends alerts to pagers, alert managers and webhooks over HTTP.

Keys and passwords come from Airflow's connections. They are in no message of an error and in no log.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from email.message import Message
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request

from airflow.sdk import BaseHook, BaseNotifier, Connection, Context
from airflow.sdk.log import mask_secret

from tidemark.bounded_http import NoAnswer, ask
from tidemark.clock import wall_clock_ms
from tidemark.errors import InvalidArgument, TidemarkError
from tidemark.safe_text import hide, inert, without_secrets

if TYPE_CHECKING:
    from tidemark.sla.incidents.alert_message import AlertMessage

TIMEOUT_S = 20.0
MOST_TRIES = 4
MOST_WAIT_S = 30.0
BUSY = frozenset({429, 503})
"""Statuses after which a receiver may accept the same request."""
MOST_CHARACTERS = 300
"""An error has so many characters of an answer."""


class ReceiverRefused(TidemarkError):
    """Raised when a receiver does not accept the content of an alert."""


class ReceiverDown(TidemarkError, OSError):
    """Raised when a receiver cannot be reached, or fails."""


class ReceiverNotifier(BaseNotifier):
    """Sends an alert to the receiver of Airflow's *connection*."""

    def __init__(self, *, connection: str) -> None:
        super().__init__()
        self.connection = connection

    def notify(self, context: Context) -> None:
        """Sends the alert of *context*."""
        message = context["alert"]  # type: ignore[typeddict-item]
        self.send_to(_connection(self.connection), message["value"], message)

    @abstractmethod
    def send_to(self, connection: Connection, alert: AlertMessage, texts: Mapping[str, str]) -> None:
        """Sends *alert*, which has the *texts*, to the receiver."""


class PagerDutyNotifier(ReceiverNotifier):
    """Sends an event to PagerDuty's Events API v2.

    The password of *connection* is the integration key. Its host is that of the API, such as
    `https://events.eu.pagerduty.com`, by default that of the United States.
    """

    def send_to(self, connection: Connection, alert: AlertMessage, texts: Mapping[str, str]) -> None:
        """Sends *alert* in the form of its interface."""
        from tidemark.sla.incidents.receiver_calls import pagerduty_event

        call = pagerduty_event(alert, texts, routing_key=_password(connection))
        send(_base(connection, "https://events.pagerduty.com") + call.path, _as_json(call.body))


class AlertmanagerNotifier(ReceiverNotifier):
    """Sends an alert to version 2 of Alertmanager's API.

    Login and password of *connection*, if it has them, are used with HTTP's basic authentication.
    """

    def __init__(self, *, connection: str, valid_for_ms: int) -> None:
        super().__init__(connection=connection)
        self.valid_for_ms = valid_for_ms

    def send_to(self, connection: Connection, alert: AlertMessage, texts: Mapping[str, str]) -> None:
        """Sends *alert* in the form of its interface."""
        from base64 import b64encode

        from tidemark.sla.incidents.receiver_calls import alertmanager_alert

        call = alertmanager_alert(alert, texts, valid_until_ms=wall_clock_ms() + self.valid_for_ms)
        headers = {}
        if connection.login:
            login = b64encode(f"{connection.login}:{_password(connection)}".encode()).decode()
            headers = {"Authorization": f"Basic {login}"}
        send(_base(connection, "http://127.0.0.1:9093") + call.path, _as_json(call.body), headers)


class WebhookNotifier(ReceiverNotifier):
    """Sends an alert as signed JSON to the URL in *connection*'s host.

    The header `Tidemark-Signature` has `sha256=` and the HMAC-SHA256 of `TIMESTAMP.BODY` in hexadecimal digits. Its key
    is the connection's password. TIMESTAMP is the header `Tidemark-Timestamp`: epoch seconds.
    """

    def send_to(self, connection: Connection, alert: AlertMessage, texts: Mapping[str, str]) -> None:
        """Sends *alert* in the form of its interface."""
        from tidemark.sla.incidents.receiver_calls import payload_of

        timestamp = str(wall_clock_ms() // 1_000)
        body = _as_json(payload_of(alert))
        signed = hmac.new(_password(connection).encode(), timestamp.encode() + b"." + body, hashlib.sha256)
        headers = {
            "Tidemark-Timestamp": timestamp,
            "Tidemark-Signature": f"sha256={signed.hexdigest()}",
            "Idempotency-Key": f"{alert.dedup_key}/{alert.change}" + (f"/{alert.reminder}" if alert.reminder else ""),
        }
        send(_base(connection, ""), body, headers)


def send(url: str, body: bytes, headers: Mapping[str, str] | None = None) -> None:
    """Sends *body*, which is JSON, as a POST; a busy receiver is tried again.

    Args:
        url: where it is sent.
        body: the content.
        headers: further headers.

    Raises:
        ReceiverRefused: the answer is a status of 400 to 499.
        ReceiverDown: there is no answer, or another status.
    """
    host = urlsplit(url).netloc.rpartition("@")[2]
    all_headers = {"Content-Type": "application/json", "User-Agent": "tidemark", **(headers or {})}
    for left in reversed(range(MOST_TRIES)):
        # The URL of a webhook may be a secret: errors have its host only.
        request = Request(url, body, all_headers)
        try:
            answer = ask(request, _RefuseRedirects(), silent_for_s=TIMEOUT_S, most_bytes=MOST_CHARACTERS)
        except NoAnswer as error:
            msg = f"{host} does not answer: {without_secrets(inert(str(error)))}"
            raise ReceiverDown(msg) from None
        status, wait, text = answer.status, answer.headers.get("retry-after"), answer.content[:MOST_CHARACTERS]
        if 200 <= status < 300:
            return
        if status in BUSY and left:
            time.sleep(_wait_s(wait))
            continue
        answer_text = without_secrets(inert(text.decode("utf-8", "replace")))
        problem = f"{host} answered {status}: {answer_text}"
        if 400 <= status < 500 and status not in BUSY:
            raise ReceiverRefused(problem)
        raise ReceiverDown(problem)


def _wait_s(header: str | None) -> float:
    """Returns the seconds of a header `Retry-After`, or 1 if it has none."""
    try:
        return min(max(0.0, float(header or 1)), MOST_WAIT_S)
    except ValueError:
        return 1.0


class _RefuseRedirects(HTTPRedirectHandler):
    """Treats a redirect as an error, because it would lose the body."""

    def redirect_request(self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str) -> None:
        """Returns None: the answer is an HTTPError."""


def _as_json(body: Any) -> bytes:
    return json.dumps(body, sort_keys=True).encode()


def _connection(name: str) -> Connection:
    connection = BaseHook.get_connection(name)
    for secret in _secrets(connection):
        mask_secret(secret)
        hide(secret)
    return connection


def _secrets(connection: Connection) -> Iterable[str]:
    if connection.password:
        yield connection.password
    if connection.host and len(path := urlsplit(connection.host).path) > 1:
        yield path


def _password(connection: Connection) -> str:
    if not connection.password:
        msg = f"connection {connection.conn_id} has no password; set it to the receiver's key"
        raise InvalidArgument(msg)
    return str(connection.password)


def _base(connection: Connection, default: str) -> str:
    """Returns the URL in *connection*'s host, without a slash at its end."""
    host = connection.host or default
    url = host if "://" in host else f"{connection.schema or 'https'}://{host}"
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        msg = f"connection {connection.conn_id} has no usable host; write one such as https://hooks.example.org/alerts"
        raise InvalidArgument(msg)
    if connection.port and parts.port is None:
        url = parts._replace(netloc=f"{parts.netloc}:{connection.port}").geturl()
    return url.rstrip("/")
