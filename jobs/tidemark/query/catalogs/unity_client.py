"""Asks a server of Unity Catalog over its HTTP interface.

Source: the OpenAPI of Unity Catalog 0.7 (`api/all.yaml`), of which the requests for catalogs, schemas and tables are
used. Databricks has the same interface.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from http.client import HTTPException
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from tidemark.errors import InvalidArgument
from tidemark.escaping import one_line

PREFIX = "/api/2.1/unity-catalog"
TIMEOUT_S = 30.0
MOST_LETTERS = 500
"""Most characters of an answer that an error shows."""
LOGIN_REFUSED, FORBIDDEN, MISSING = 401, 403, 404
Json = dict[str, Any]


class UnityClient:
    """Asks the server at *url*, with a *token* if there is one.

    Each method raises InvalidArgument if the server does not answer, or refuses a request.
    """

    def __init__(self, url: str, token: str | None, *, timeout_s: float = TIMEOUT_S) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            msg = f"the address of Unity Catalog must begin with https:// or http://, got {url!r}"
            raise InvalidArgument(msg)
        if token and parts.scheme == "http" and parts.hostname not in {"localhost", "127.0.0.1", "::1"}:
            msg = f"{url}: a token is sent over https only; give an address with https://"
            raise InvalidArgument(msg)
        self.url, self._token, self._timeout_s = url.rstrip("/"), token, timeout_s

    def catalog(self, name: str) -> Json | None:
        """Returns the catalog *name*; None: there is none."""
        return self._ask("GET", f"/catalogs/{quote(name, safe='')}")

    def schema(self, catalog: str, name: str) -> Json | None:
        """Returns the schema *name* of *catalog*; None: there is none."""
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
            # Not sent again to another host to which an answer redirects.
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                if error.code == MISSING and method == "GET":
                    return None
                msg = self._refusal(error.code, f"{method} {path}", error.read().decode(errors="replace"))
            raise InvalidArgument(msg) from None
        except (OSError, HTTPException) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            msg = f"{self.url} does not answer: {reason}; start Unity Catalog there, or give another address"
            raise InvalidArgument(msg) from None
        # Answers to changes are not read: that to a removal is no JSON.
        return self._parsed(text) if method == "GET" else {}

    def _refusal(self, code: int, asked: str, text: str) -> str:
        if code == LOGIN_REFUSED:
            given = "is not valid there" if self._token else "is missing"
            return f"{self.url} refuses the login (401): the token {given}; set TIDEMARK_UNITY_TOKEN, or --token-file"
        if code == FORBIDDEN:
            return f"{self.url} does not permit {asked} (403); grant its user the right"
        return f"{self.url} refuses {asked} ({code}): {one_line(_message_of(text))[:MOST_LETTERS]}"

    def _parsed(self, text: bytes) -> Json:
        try:
            parsed = json.loads(text)
        except ValueError:
            parsed = None
        if not isinstance(parsed, dict):
            msg = f"{self.url} is not a server of Unity Catalog: its answer is not an object of JSON"
            raise InvalidArgument(msg)
        return parsed


def _message_of(text: str) -> str:
    """Returns the message in an answer, or the whole of it."""
    try:
        parsed = json.loads(text)
    except ValueError:
        return text
    return str(parsed.get("message") or text) if isinstance(parsed, Mapping) else text
