"""A request ends, whatever the server does."""

from __future__ import annotations

import itertools
import json
import socket
import socketserver
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tidemark.bounded_http import DEEPEST, NoAnswer, ask, json_of

FOUND = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"
Sends = Callable[[], Iterator[bytes]]


@contextmanager
def server(sends: Sends) -> Iterator[str]:
    """Sends these bytes to each client, one part every 50 ms, until the client goes; yields its address."""
    over = threading.Event()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            try:
                self.request.recv(65_536)
                for part in sends():
                    self.request.sendall(part)
                    if over.wait(0.05):
                        return
            except OSError:
                pass  # the client has gone

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"127.0.0.1:{listening.server_address[1]}"
        finally:
            over.set()
            listening.shutdown()
            thread.join()


def dripping(beginning: bytes) -> Sends:
    return lambda: itertools.chain([beginning], itertools.repeat(b"x"))


def redirecting() -> Iterator[bytes]:
    """Redirects to itself after a while."""
    return itertools.chain(
        [b"HTTP/1.1 302 Found\r\n"],
        (f"X-{number}: x\r\n".encode() for number in range(6)),
        [b"Location: /again\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"],
    )


@pytest.mark.parametrize(
    ("sends", "scheme"),
    [
        (dripping(b""), "http"),
        (dripping(b"HTTP/1.1 200 OK\r\nX-Long: "), "http"),
        (dripping(FOUND), "http"),
        (dripping(b"HTTP/1.1 500 Down\r\nContent-Length: 1000000\r\n\r\n"), "http"),
        (dripping(b"\x16\x03\x03\x40\x00\x02"), "https"),  # the beginning of a handshake of 16 kB
        (redirecting, "http"),
    ],
    ids=["status line", "header", "body", "body of an error", "TLS", "redirects"],
)
def test_a_server_that_drips_is_left(sends: Sends, scheme: str) -> None:
    with server(sends) as address, pytest.raises(NoAnswer, match=r"^took longer than 0\.5 s$"):
        ask(urllib.request.Request(f"{scheme}://{address}/"), within_s=0.5)


def test_a_silent_server_and_an_absent_one_are_no_answer() -> None:
    with server(lambda: itertools.repeat(b"")) as address, pytest.raises(NoAnswer, match="timed out"):
        ask(urllib.request.Request(f"http://{address}/"), silent_for_s=0.2)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        absent = urllib.request.Request(f"http://127.0.0.1:{unused.getsockname()[1]}/")
        with pytest.raises(NoAnswer, match="refused"):
            ask(absent)


def test_of_a_long_answer_one_byte_more_is_read_than_is_wanted() -> None:
    with server(lambda: iter([FOUND + b"y" * 900])) as address:
        answer = ask(urllib.request.Request(f"http://{address}/"), most_bytes=100)
    assert (answer.status, answer.content, answer.headers) == (200, b"y" * 101, {"content-length": "1000000"})


def nested(levels: int, begin: str = "[", end: str = "]") -> bytes:
    return (begin * levels + end * levels).encode()


def test_json_is_read_to_a_limited_depth() -> None:
    assert json_of(nested(DEEPEST)) == json.loads(nested(DEEPEST))
    assert json_of(b'{"a": [1, {}], "b": null}') == {"a": [1, {}], "b": None}
    mixed = b'{"a":' * 150 + nested(51) + b"}" * 150
    for deep in (nested(DEEPEST + 1), nested(100_000), mixed):
        with pytest.raises(ValueError, match="nested more than 200 levels deep"):
            json_of(deep)
