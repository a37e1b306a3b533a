"""A small schema registry with Confluent's HTTP interface.

It has the requests that Tidemark sends, and no other: there is no registry of a vendor in this test environment.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote


@dataclass
class SchemaRegistry:
    """A registry on 127.0.0.1, of which the versions outlive an outage.

    Attributes:
        login: `user:password` that requests must have; None: none.
        asked: the paths of all requests, in order.
        failing: a status with which every request is answered; None: none.
        forbidden: ids of schemas that its login may not read.
        tls: a PEM file with key and certificate; None: without TLS.
    """

    login: str | None = None
    asked: list[str] = field(default_factory=list)
    failing: int | None = None
    forbidden: set[int] = field(default_factory=set)
    tls: Path | None = None
    port: int = 0

    def __post_init__(self) -> None:
        self._schemas: dict[int, dict[str, Any]] = {}
        self._subjects: dict[str, list[int]] = {}
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._server is not None

    def register(
        self, subject: str, schema: str, kind: str = "AVRO", references: Sequence[dict[str, Any]] = (), *, id_: int = 0
    ) -> int:
        """Adds a version to *subject*; returns the id of its schema."""
        number = id_ or len(self._schemas) + 1
        # Registries leave out the kind of Avro, and empty references.
        content: dict[str, Any] = {"schema": schema}
        content |= {} if kind == "AVRO" else {"schemaType": kind}
        content |= {"references": [*references]} if references else {}
        self._schemas[number] = content
        self._subjects.setdefault(subject, []).append(number)
        return number

    def __enter__(self) -> SchemaRegistry:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begins to answer, at the same port as before an outage."""
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.asked.append(self.path)
                status, content = registry._answer(self.path, self.headers.get("Authorization"))
                body = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        if self.tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.tls)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Ends all answers: an outage."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def _answer(self, path: str, authorization: str | None) -> tuple[int, dict[str, Any]]:
        if self.failing is not None:
            return self.failing, {"error_code": 50001, "message": "Error in the backend data store"}
        if self.login is not None:
            wanted = "Basic " + base64.b64encode(self.login.encode()).decode()
            if authorization != wanted:
                return 401, {"error_code": 401, "message": "Unauthorized"}
        match path.split("/")[1:]:
            case ["schemas", "ids", number] if int(number) in self.forbidden:
                return 403, {"error_code": 40301, "message": "User is denied operation Read on this server."}
            case ["schemas", "ids", number] if int(number) in self._schemas:
                return 200, self._schemas[int(number)]
            case ["schemas", "ids", _]:
                return 404, {"error_code": 40403, "message": "Schema not found"}
            case ["subjects", subject, "versions", version] if unquote(subject) in self._subjects:
                ids = self._subjects[unquote(subject)]
                index = len(ids) if version == "latest" else int(version)
                of_version = {"subject": unquote(subject), "version": index, "id": ids[index - 1]}
                return 200, {**self._schemas[ids[index - 1]], **of_version}
            case ["subjects", _, "versions", _]:
                return 404, {"error_code": 40401, "message": "Subject not found"}
        return 404, {}
