"""A local server in place of Kubernetes' API.

It accepts and keeps every object that is created or applied, and starts nothing.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

EXECUTORS = "/executors"
"""The path whose answer waits until an executor's pod was created."""
CREATED_WITHIN_S = 120


@dataclass
class AcceptedObjects:
    """Objects that were created or applied, and the API's address."""

    address: str = ""
    objects: list[dict[str, Any]] = field(default_factory=list)
    has_executor: threading.Event = field(default_factory=threading.Event)

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """Returns the objects of *kind*."""
        return [each for each in self.objects if each["kind"] == kind]

    def pods(self, role: str) -> list[dict[str, Any]]:
        """Returns the pods whose label of Spark is *role*."""
        return [pod for pod in self.of_kind("Pod") if pod["metadata"]["labels"]["spark-role"] == role]


@contextmanager
def serving() -> Iterator[AcceptedObjects]:
    """Runs the server; yields what it accepts."""
    accepted = AcceptedObjects()

    class ApiOfKubernetes(BaseHTTPRequestHandler):
        """Accepts objects."""

        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self.path == EXECUTORS:
                self.answer(200 if accepted.has_executor.wait(CREATED_WITHIN_S) else 504, {})
            elif "?" in self.path:
                self.answer(200, {"apiVersion": "v1", "kind": "List", "metadata": {}, "items": []})
            else:
                self.answer(404, {"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 404})

        def do_POST(self) -> None:
            made = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            accepted.objects.append(made)
            if made["kind"] == "Pod" and made["metadata"]["labels"]["spark-role"] == "executor":
                accepted.has_executor.set()
            self.answer(201, {**made, "metadata": {**made["metadata"], "uid": f"uid-{len(accepted.objects)}"}})

        def do_PATCH(self) -> None:
            self.do_POST()

        def do_DELETE(self) -> None:
            self.answer(200, {"apiVersion": "v1", "kind": "Status", "status": "Success"})

        def answer(self, status: int, content: dict[str, Any]) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Prints nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), ApiOfKubernetes) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        accepted.address = f"http://127.0.0.1:{server.server_port}"
        yield accepted
        server.shutdown()
