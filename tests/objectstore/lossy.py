"""A proxy for an object store that loses answers to puts."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


@contextmanager
def lossy(address: str, status: int | None) -> Iterator[str]:
    """Yields the address of a proxy for the store at *address*.

    The proxy loses the first answer to a put of each object. Instead it answers with *status*, or closes the connection
    (None).
    """
    lost: set[str] = set()

    class Proxy(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            store = http.client.HTTPConnection(address.removeprefix("http://"))
            store.request(self.command, self.path, body, dict(self.headers))
            with store.getresponse() as answer:
                content = answer.read()
            if self.command == "PUT" and self.path not in lost:
                lost.add(self.path)
                self.close_connection = True
                if status is not None:
                    self.send_response(status)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                return
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in {"content-length", "transfer-encoding", "connection", "date", "server"}:
                    self.send_header(name, value)
            length = answer.getheader("Content-Length", "0") if self.command == "HEAD" else str(len(content))
            self.send_header("Content-Length", length)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def __getattr__(self, name: str) -> Any:
            if name.startswith("do_"):
                return self._forward
            raise AttributeError(name)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
