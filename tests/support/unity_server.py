"""A server with the requests of Unity Catalog that Tidemark sends.

It checks names, columns, places and definitions as the source of the open server 0.6 does (`ValidationUtils`,
`ColumnUtils.validateTypeJson`, `TableRepository`). It has no users, no grants and no credentials of storage.
"""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

PREFIX = "/api/2.1/unity-catalog"
COLUMN_KEYS = {
    "name", "type_text", "type_json", "type_name", "type_precision", "type_scale", "position", "comment", "nullable",
}  # fmt: skip
NAME = re.compile(r"[a-zA-Z0-9_@-]{1,255}")
PAGE = 3
"""Tables of a page, so that clients have to ask again."""


class UnityServer:
    """Listens on loopback while it is a context.

    It has the catalog `unity`. `asked` has method and name of each request for a change, and `bodies` the content of
    those that create something. With a `token` it refuses requests without it. It refuses to create what is in
    `refused`, and redirects each creation while `redirects` is set.
    """

    def __init__(self, token: str | None = None) -> None:
        self.token, self.asked, self.bodies = token, list[str](), list[dict[str, Any]]()
        self.refused, self.redirects = set[str](), False
        self.schemas: dict[str, dict[str, Any]] = {}
        self.tables: dict[str, dict[str, Any]] = {}
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer()

            def do_POST(self) -> None:
                self._answer()

            def do_DELETE(self) -> None:
                self._answer()

            def _answer(self) -> None:
                content = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
                status, answer = server._answer(self.command, self.path, content, self.headers.get("Authorization"))
                body = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                if status == 302:
                    self.send_header("Location", f"{server.url}{PREFIX}/catalogs/unity")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> UnityServer:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, method: str, path: str, content: dict[str, Any], login: str | None) -> tuple[int, Any]:
        if not path.startswith(PREFIX):
            return 404, "Status: 404"
        if self.token is not None and login != f"Bearer {self.token}":
            return 401, {"error_code": "UNAUTHENTICATED", "message": "invalid token"}
        parts = urlsplit(path.removeprefix(PREFIX))
        _, kind, *rest = unquote(parts.path).split("/")
        if method != "GET":
            self.asked.append(f"{method} {kind} {content.get('name', ''.join(rest))}")
        kept = {"catalogs": {"unity": {"name": "unity"}}, "schemas": self.schemas, "tables": self.tables}[kind]
        match method, rest:
            case "GET", [name]:
                return (200, kept[name]) if name in kept else (404, {"error_code": "NOT_FOUND", "message": name})
            case "GET", []:
                return 200, self._page(parse_qs(parts.query))
            case "DELETE", [name] if name.count(".") != 2:
                return 400, {"error_code": "INVALID_ARGUMENT", "message": f"Invalid table name: {name}"}
            case "DELETE", [name]:
                return (200, "200 OK") if kept.pop(name, None) else (404, {"error_code": "NOT_FOUND", "message": name})
        return (302, "") if self.redirects else self._create(kind, kept, content)

    def _page(self, asked: dict[str, list[str]]) -> dict[str, Any]:
        prefix = f"{asked['catalog_name'][0]}.{asked['schema_name'][0]}."
        names = sorted(name for name in self.tables if name.startswith(prefix))
        since = names.index(asked["page_token"][0]) if "page_token" in asked else 0
        tables = [{**self.tables[name], "columns": []} for name in names[since : since + PAGE]]
        following = names[since + PAGE : since + PAGE + 1]
        return {"tables": tables, "next_page_token": following[0] if following else ""}

    def _create(self, kind: str, kept: dict[str, Any], content: dict[str, Any]) -> tuple[int, Any]:
        self.bodies.append({"kind": kind, **content})
        if kind == "schemas":
            name = f"{content['catalog_name']}.{content['name']}"
        else:
            name = f"{content['catalog_name']}.{content['schema_name']}.{content['name']}"
            fault = _fault(content) or ("refused" if content["name"] in self.refused else "")
            if fault or f"{content['catalog_name']}.{content['schema_name']}" not in self.schemas:
                return 400, {"error_code": "INVALID_ARGUMENT", "message": fault or "no such schema"}
        if not NAME.fullmatch(content["name"]):
            return 400, {"error_code": "INVALID_ARGUMENT", "message": "Name cannot contain a period"}
        if name in kept:
            return 409, {"error_code": "ALREADY_EXISTS", "message": name}
        kept[name] = content
        return 200, content


def _fault(table: dict[str, Any]) -> str:
    """Returns what is wrong with a table or a view; "": nothing."""
    if any(not isinstance(value, str) for value in (table.get("properties") or {}).values()):
        return "properties are texts"
    for position, column in enumerate(table["columns"]):
        if column.keys() - COLUMN_KEYS or column["position"] != position or not column["type_text"]:
            return f"column {column}"
        field = json.loads(column.get("type_json") or "{}")
        same = {key: column[key] for key in ("name", "nullable")}
        if field != {**same, "type": field.get("type"), "metadata": {}} or not field["type"]:
            return f"Invalid type_json for column {column['name']}"
    if table["table_type"] == "EXTERNAL":
        has_place = table["data_source_format"] == "DELTA" and table["storage_location"].startswith(
            ("file:///", "s3://")
        )
        return "" if has_place and "view_definition" not in table else "an external table has a place"
    return "" if table["table_type"] == "VIEW" and table["view_definition"] else "a view has a definition"
