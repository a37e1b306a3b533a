"""Asks a server of Unity Catalog over its HTTP interface.

Source: the OpenAPI of Unity Catalog 0.6 and 0.7 (`api/all.yaml`), of which the requests for catalogs, schemas and
tables are used. Databricks has the same interface.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from email.message import Message
from http.client import HTTPException
from typing import IO, Any
from urllib.parse import SplitResult, quote, urlencode, urlsplit

from tidemark.errors import InvalidArgument
from tidemark.escaping import one_line

PREFIX = "/api/2.1/unity-catalog"
TIMEOUT_S = 30.0
LONGEST_ANSWER = 500
"""Most characters of an answer that an error shows."""
LOOPBACK = {"localhost", "127.0.0.1", "::1"}
LOGIN_REFUSED, FORBIDDEN, MISSING = 401, 403, 404
Json = dict[str, Any]


class UnityClient:
    """Asks the server at *url*, with a *token* if there is one.

    Each method raises InvalidArgument if the server does not answer, or refuses a request.
    """

    def __init__(self, url: str, token: str | None, *, timeout_s: float = TIMEOUT_S) -> None:
        parts = _address(url)
        if parts is None:
            msg = f"the address of Unity Catalog must begin with https:// or http://, got {url!r}"
            raise InvalidArgument(msg)
        if token and parts.scheme == "http" and parts.hostname not in LOOPBACK:
            msg = f"{url}: a token is sent over https only; give an address with https://"
            raise InvalidArgument(msg)
        if token and not (token.isascii() and token.isprintable()):
            msg = "the token must be one line of printable ASCII characters; correct TIDEMARK_UNITY_TOKEN or its file"
            raise InvalidArgument(msg)
        # A proxy that the environment names would read a token that is sent to this machine.
        proxies = [urllib.request.ProxyHandler({})] if parts.hostname in LOOPBACK else []
        self._opener = urllib.request.build_opener(_NoRedirects, *proxies)
        self.url, self._token, self._timeout_s = url.rstrip("/"), token, timeout_s

    def catalog(self, name: str) -> Json | None:
        """Returns the catalog *name*; None: it does not exist."""
        return self._ask("GET", f"/catalogs/{quote(name, safe='')}")

    def schema(self, catalog: str, name: str) -> Json | None:
        """Returns the schema *name* of *catalog*; None: it does not exist."""
        return self._ask("GET", f"/schemas/{quote(f'{catalog}.{name}', safe='')}")

    def create_schema(self, content: Json) -> None:
        """Creates a schema."""
        self._ask("POST", "/schemas", content)

    def tables(self, catalog: str, schema: str) -> Iterator[Json]:
        """Yields the tables and views of a schema."""
        asked = {"catalog_name": catalog, "schema_name": schema, "omit_columns": "true", "max_results": "50"}
        while True:
            answer = self._ask("GET", f"/tables?{urlencode(asked)}") or {}
            yield from answer.get("tables") or ()
            if not (page := answer.get("next_page_token")):
                return
            asked["page_token"] = page

    def create_table(self, content: Json) -> None:
        """Creates a table or a view."""
        self._ask("POST", "/tables", content)

    def drop_table(self, full_name: str) -> None:
        """Drops a table or a view; files of an external one stay."""
        self._ask("DELETE", f"/tables/{quote(full_name, safe='')}")

    def _ask(self, method: str, path: str, content: Json | None = None) -> Json | None:
        """Returns the answer; None: the server has no such thing."""
        body = None if content is None else json.dumps(content).encode()
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}{PREFIX}{path}", body, headers, method=method)
        if self._token:
            request.add_header("Authorization", f"Bearer {self._token}")
        try:
            with self._opener.open(request, timeout=self._timeout_s) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                text = error.read()
            if error.code == MISSING and method == "GET":
                if "error_code" in self._parsed(text):
                    return None
                raise self._another_server() from None
            msg = self._refusal(error, f"{method} {path}", text.decode(errors="replace"))
            raise InvalidArgument(msg) from None
        except (OSError, HTTPException) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            msg = f"{self.url} does not answer: {reason}; start Unity Catalog there, or give another address"
            raise InvalidArgument(msg) from None
        # Answers to changes are not read: that to a removal is no JSON.
        return self._parsed(text) if method == "GET" else {}

    def _refusal(self, error: urllib.error.HTTPError, asked: str, text: str) -> str:
        code, location = error.code, error.headers.get("Location")
        if code // 100 == 3 and location:
            there = one_line(location)[:LONGEST_ANSWER]
            return f"{self.url} redirects {asked} to {there}; give the address that it has now"
        if code == LOGIN_REFUSED:
            given = "is not valid there" if self._token else "is missing"
            return f"{self.url} refuses the login (401): the token {given}; set TIDEMARK_UNITY_TOKEN, or --token-file"
        if code == FORBIDDEN:
            return f"{self.url} does not permit {asked} (403); grant its user the right"
        message = str((_object(text) or {}).get("message") or text)
        return f"{self.url} refuses {asked} ({code}): {one_line(message)[:LONGEST_ANSWER]}"

    def _parsed(self, text: bytes) -> Json:
        parsed = _object(text)
        if parsed is None:
            raise self._another_server()
        return parsed

    def _another_server(self) -> InvalidArgument:
        msg = f"{self.url} is not a server of Unity Catalog: its answers have another form; correct the address"
        return InvalidArgument(msg)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Treats a redirect as an error: a creation would become a GET."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        """Returns None: the answer is an HTTPError."""


def _address(url: str) -> SplitResult | None:
    """Returns the parts of a server's address; None: it is invalid."""
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0 and url.isascii()
    except ValueError:
        return None
    return parts if is_valid else None


def _object(text: bytes | str) -> Json | None:
    """Returns the object in an answer; None: it is another text."""
    try:
        parsed = json.loads(text)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None
