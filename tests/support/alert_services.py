"""Runs services on loopback that check alerts.

Each keeps the state of every alert by its key, as the real one does, and answers a request that breaks the documented
interface with the documented status.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jsonschema

from tidemark.control.process import free_port

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "alert.schema.json").read_text(encoding="utf-8"))
KEY = "key-that-is-secret"
DROPPED = 0
"""In place of a status: the service accepts, and does not answer."""


class AlertService:
    """A service that restarts, and first gives *answers*.

    `states` has `open`, `acknowledged` or `closed` for each key, and `opened` the keys in the order of their opening.
    """

    kind = ""
    connection_type = "http"

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.states: dict[str, str] = {}
        self.opened: list[str] = []
        self.bodies: list[Any] = []
        self.refusals: list[str] = []
        self._port = free_port()
        self._server: ThreadingHTTPServer | None = None

    def up(self) -> None:
        """Starts it on its port."""
        service = self

        class _Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                service.answer(self)

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), _Handler)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def down(self) -> None:
        """Stops it; its state stays."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    @property
    def connection(self) -> str:
        """Airflow's connection to it."""
        host = f"http://127.0.0.1:{self._port}"
        return json.dumps({"conn_type": self.connection_type, "host": host, "password": KEY})

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Answers one request."""
        body = request.rfile.read(int(request.headers["Content-Length"]))
        status = self.answers.pop(0) if self.answers else None
        if status in {None, DROPPED}:
            try:
                accepted = self.accept(request.path, request.headers, body)
                self.bodies.append(json.loads(body))
            except AssertionError as error:
                accepted = self.refused
                self.refusals.append(str(error) or "broken interface")
            if status == DROPPED:
                request.close_connection = True
                return
            status = accepted
        request.send_response(status)
        if status == 429:
            request.send_header("Retry-After", "0")
        text = f'{{"status": {status}, "key": "{KEY}"}}'.encode()
        request.send_header("Content-Length", str(len(text)))
        request.end_headers()
        request.wfile.write(text)

    refused = 400

    def accept(self, path: str, headers: Any, body: bytes) -> int:
        """Checks and stores one request; returns its status."""
        raise NotImplementedError

    def open(self, key: str) -> None:
        """Opens the alert of *key*."""
        if self.states.get(key) in {None, "closed"}:
            self.opened.append(key)
            self.states[key] = "open"


class PagerDutyService(AlertService):
    """Answers as PagerDuty's Events API v2 does."""

    kind = "pagerduty"
    connection_type = "pagerduty_events"

    def accept(self, path: str, headers: Any, body: bytes) -> int:
        """Checks an event."""
        event = json.loads(body)
        assert (path, headers["Content-Type"]) == ("/v2/enqueue", "application/json")
        assert event["routing_key"] == KEY
        key = event["dedup_key"]
        assert 0 < len(key) <= 255
        payload = event["payload"]
        assert 0 < len(payload["summary"]) <= 1024
        assert payload["source"]
        assert payload["severity"] in {"critical", "error", "warning", "info"}
        datetime.fromisoformat(payload["timestamp"])
        assert all(link["href"].startswith("http") for link in event["links"])
        match event["event_action"]:
            case "trigger":
                self.open(key)
            case "acknowledge":
                self.states[key] = "acknowledged"
            case "resolve":
                self.states[key] = "closed"
            case action:
                raise AssertionError(action)
        return 202


class AlertmanagerService(AlertService):
    """Answers as version 2 of Alertmanager's API does.

    An alert is known by all of its labels; `ends` has when each ends.
    """

    kind = "alertmanager"

    def __init__(self) -> None:
        super().__init__()
        self.ends: dict[str, datetime] = {}
        self.now = datetime.fromtimestamp(0, UTC)

    def accept(self, path: str, headers: Any, body: bytes) -> int:
        """Checks alerts."""
        assert (path, headers["Content-Type"]) == ("/api/v2/alerts", "application/json")
        for alert in json.loads(body):
            labels = alert["labels"]
            assert labels["alertname"]
            assert all(re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name) for name in (*labels, *alert["annotations"]))
            assert all(isinstance(value, str) and value for value in labels.values())
            starts, ends = (datetime.fromisoformat(alert[name]) for name in ("startsAt", "endsAt"))
            assert starts <= ends
            key = json.dumps(labels, sort_keys=True)
            self.ends[key] = ends
            if ends > self.now:
                self.open(key)
            elif key in self.states:  # one that was never open is not stored
                self.states[key] = "closed"
        return 200


class WebhookService(AlertService):
    """Answers as a service does that checks signature and schema."""

    kind = "webhook"

    def accept(self, path: str, headers: Any, body: bytes) -> int:
        """Checks signed JSON."""
        signed = f"{headers['Tidemark-Timestamp']}.".encode() + body
        assert headers["Tidemark-Signature"] == "sha256=" + hmac.new(KEY.encode(), signed, hashlib.sha256).hexdigest()
        alert = json.loads(body)
        try:
            jsonschema.validate(alert, SCHEMA)
        except jsonschema.ValidationError as error:
            raise AssertionError(error.message) from None
        key = alert["dedup_key"]
        assert headers["Idempotency-Key"] == f"{key}/{alert['change']}"
        if alert["change"] in {"opened", "escalated"}:
            self.open(key)
        else:
            self.states[key] = {"acknowledged": "acknowledged", "resolved": "closed"}[alert["change"]]
        return 204


SERVICES = (PagerDutyService, AlertmanagerService, WebhookService)
