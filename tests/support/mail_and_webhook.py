"""Runs a mail server and a webhook on loopback that keep messages."""

from __future__ import annotations

import asyncio
import json
import threading
from email import message_from_bytes
from email.message import Message
from email.policy import default
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult

from tidemark.control.process import free_port


class Inbox:
    """A loopback mail server that restarts and accepts any password.

    It takes no mail until `opens` is set, and refuses one that has waited five seconds for that.
    """

    def __init__(self) -> None:
        self.mails: list[Message] = []
        self.opens = threading.Event()
        self.opens.set()
        self._port = free_port()
        self._server: Controller | None = None

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802 - aiosmtpd's name
        if not await asyncio.to_thread(self.opens.wait, 5):
            return "451 still closed"
        self.mails.append(message_from_bytes(envelope.content, policy=default))
        return "250 taken"

    def up(self) -> None:
        how = {"authenticator": lambda *login: AuthResult(success=True), "auth_require_tls": False}
        self._server = Controller(self, hostname="127.0.0.1", port=self._port, **how)
        self._server.start()

    def down(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None

    def connection(self, **login: str) -> str:
        """The Airflow connection to it, with *login* and password or without."""
        how = {"disable_ssl": True, "disable_tls": True, "retry_limit": 1, "timeout": 10}
        return json.dumps({"conn_type": "smtp", "host": "127.0.0.1", "port": self._port, "extra": how, **login})


class Receiver(HTTPServer):
    """A loopback webhook that answers *answers*, then 200.

    `taken` has the requests that it accepted, and `took` is set from the first of them on.
    """

    def __init__(self, answers: list[int]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers, self.taken = answers, []
        self.took = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        posted = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status = self.server.answers.pop(0) if self.server.answers else 200
        if status == 200:
            self.server.taken.append(posted["text"])
            self.server.took.set()
        self.send_response(status)
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""
