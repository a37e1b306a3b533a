"""Sends HTTP requests that end, to servers that are not trusted.

A socket's time-out begins anew with each byte, so a server that sends a byte every half second would hold its client
for ever. Here a request ends after a total time, whatever the server does, and of its answer only so many bytes are
read. JSON of an answer is parsed to a limited depth, since deeper values overflow the stacks of what reads them.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from tidemark.errors import TidemarkError

SILENT_FOR_S = 10.0
"""Longest time without any byte."""
WITHIN_S = 30.0
"""Longest time from the first connection to the last byte."""
MOST_BYTES = 16 * 1024 * 1024
DEEPEST = 200
"""Most levels of objects and arrays in the JSON of an answer."""


class NoAnswer(TidemarkError):
    """Raised when a server cannot be reached, breaks off, or takes too long; its text begins with the reason."""


@dataclass(frozen=True)
class HttpAnswer:
    """What a server answered.

    Attributes:
        status: HTTP's.
        headers: by name, in lower case.
        content: the first bytes of the body, at most one more than was asked for.
    """

    status: int
    headers: Mapping[str, str]
    content: bytes


def ask(
    request: urllib.request.Request,
    *handlers: urllib.request.BaseHandler,
    trusted: ssl.SSLContext | None = None,
    silent_for_s: float = SILENT_FOR_S,
    within_s: float = WITHIN_S,
    most_bytes: int = MOST_BYTES,
) -> HttpAnswer:
    """Returns the answer to *request*, whatever its status.

    Args:
        request: the request.
        handlers: further handlers of urllib, for redirects or proxies.
        trusted: certificates for https; None: those of the system.
        silent_for_s: the longest time without any byte.
        within_s: the longest time in all.
        most_bytes: one more byte than these is read, which shows that an answer is too long.

    Raises:
        NoAnswer: there is no whole answer.
    """
    exchange = _Exchange()
    opener = urllib.request.build_opener(_Http(exchange), _Https(exchange, trusted), *handlers)
    timer = threading.Timer(within_s, exchange.cut)
    timer.daemon = True
    timer.start()
    try:
        answer = _read(opener, request, silent_for_s, most_bytes)
    except (OSError, http.client.HTTPException) as error:
        answer, reason = None, getattr(error, "reason", None) or error
    finally:
        timer.cancel()
        exchange.close()
    if exchange.is_cut:
        msg = f"took longer than {within_s:g} s"
        raise NoAnswer(msg)
    if answer is None:
        msg = str(reason) or type(reason).__name__
        raise NoAnswer(msg) from None
    return answer


def json_of(content: bytes) -> Any:
    """Returns the JSON value of *content*.

    Raises:
        ValueError: it is no JSON, or is nested more than DEEPEST levels deep.
    """
    value: Any = None
    try:
        value = json.loads(content)
        is_too_deep = _is_deeper(value, DEEPEST)
    except RecursionError:
        is_too_deep = True
    if is_too_deep:
        msg = f"it is nested more than {DEEPEST} levels deep"
        raise ValueError(msg)
    return value


def _is_deeper(value: Any, levels: int) -> bool:
    here: list[Any] = [value]
    for _ in range(levels):
        here = [inner for each in here if isinstance(each, dict | list) for inner in _values(each)]
    return any(isinstance(each, dict | list) for each in here)


def _values(container: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return container.values() if isinstance(container, dict) else container


def _read(
    opener: urllib.request.OpenerDirector, request: urllib.request.Request, silent_for_s: float, most_bytes: int
) -> HttpAnswer:
    try:
        opened = opener.open(request, timeout=silent_for_s)
    except urllib.error.HTTPError as error:
        # The error is the answer itself, and holds the connection until it is closed.
        opened = error
    with opened:
        headers = {name.lower(): value for name, value in opened.headers.items()}
        return HttpAnswer(opened.status, headers, opened.read(most_bytes + 1))


class _Exchange:
    """The connections of one request, of which redirects make several."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self.is_cut = False

    def connect(self, *arguments: Any) -> socket.socket:
        """Connects as `socket.create_connection` does."""
        connected = socket.create_connection(*arguments)
        with self._lock:
            # A copy: TLS takes the descriptor out of the socket that it wraps.
            self._sockets.append(connected.dup())
        if self.is_cut:
            self.cut()
        return connected

    def cut(self) -> None:
        """Ends all connections, so that a reader gets the end of the answer."""
        self.is_cut = True
        with self._lock:
            for connected in self._sockets:
                with suppress(OSError):
                    connected.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with self._lock:
            for connected in self._sockets:
                connected.close()


class _Http(urllib.request.HTTPHandler):
    def __init__(self, exchange: _Exchange) -> None:
        super().__init__()
        self._exchange = exchange

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(_connection, http.client.HTTPConnection, self._exchange), req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, exchange: _Exchange, trusted: ssl.SSLContext | None) -> None:
        super().__init__(context=trusted)
        self._exchange, self._trusted = exchange, trusted

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(
            partial(_connection, http.client.HTTPSConnection, self._exchange), req, context=self._trusted
        )


def _connection(
    kind: Callable[..., http.client.HTTPConnection], exchange: _Exchange, host: str, **arguments: Any
) -> http.client.HTTPConnection:
    """Returns a connection to *host* that is one of *exchange* from its first byte, before TLS and proxies."""
    connection = kind(host, **arguments)
    # http.client keeps the function in an attribute so that it can be replaced.
    connection._create_connection = exchange.connect  # type: ignore[attr-defined]
    return connection
