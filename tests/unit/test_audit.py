"""The audit lists all jars, and names those that were not audited.

A local server answers in the form of OSV, which knows one module here.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

SCRIPT = Path(__file__).resolve().parents[2] / "docker" / "audit_jars.py"
VULNERABLE = "pkg:maven/org.example/old@1.0"
KAFKA = "pkg:maven/org.apache.kafka/kafka-clients@3.9.2"
NO_SERVER = "http://127.0.0.1:9"


class OsvOfOneModule(BaseHTTPRequestHandler):
    """Answers batches of queries: one module has a vulnerability."""

    def do_POST(self) -> None:
        assert self.path == "/v1/querybatch"
        queries = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
        purls = [query["package"]["purl"] for query in queries]
        known = {"vulns": [{"id": "GHSA-xxxx", "modified": "2026-01-01T00:00:00Z"}]}
        body = json.dumps({"results": [known if purl == VULNERABLE else {} for purl in purls]}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Prints nothing."""


@pytest.fixture
def osv() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), OsvOfOneModule) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def make_jar(path: Path, *modules: tuple[str, str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as jar:
        for group, name, version in modules:
            lines = f"#Generated\ngroupId={group}\nartifactId={name}\nversion={version}\n"
            jar.writestr(f"META-INF/maven/{group}/{name}/pom.properties", lines)


def audit(folder: Path, osv: str) -> tuple[int, list[str]]:
    command = [sys.executable, str(SCRIPT), str(folder / "bill.json"), str(folder / "jars")]
    env = {**os.environ, "TIDEMARK_OSV": osv}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert ended.stderr == ""
    return ended.returncode, ended.stdout.splitlines()


def components(folder: Path) -> dict[str, dict[str, Any]]:
    text = (folder / "bill.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    return {component["name"]: component for component in json.loads(text)["components"]}


def test_the_bill_has_each_jar_with_hash_and_coordinates(tmp_path: Path, osv: str) -> None:
    make_jar(tmp_path / "jars/spark/new-2.0-linux.jar", ("org.example", "new", "2.0"), ("org.example", "merged", "3"))
    make_jar(tmp_path / "jars/spark/kafka-clients-3.9.2.jar")
    (tmp_path / "jars" / "ivy.log").write_text("\tfound org.apache.kafka#kafka-clients;3.9.2 in public\n")
    assert audit(tmp_path, osv) == (0, ["2 jars were audited; 0 of their modules have known vulnerabilities"])
    bill = components(tmp_path)
    assert bill["kafka-clients"]["purl"] == KAFKA
    digest = hashlib.sha256((tmp_path / "jars/spark/kafka-clients-3.9.2.jar").read_bytes()).hexdigest()
    assert bill["kafka-clients"]["hashes"] == [{"alg": "SHA-256", "content": digest}]
    assert bill["new"]["properties"] == [{"name": "tidemark:file", "value": "spark/new-2.0-linux.jar"}]
    assert [merged["purl"] for merged in bill["new"]["components"]] == ["pkg:maven/org.example/merged@3"]


def test_a_vulnerability_of_a_merged_module_names_the_jar(tmp_path: Path, osv: str) -> None:
    make_jar(tmp_path / "jars/all-5.jar", ("org.example", "all", "5"), ("org.example", "old", "1.0"))
    assert audit(tmp_path, osv) == (
        1,
        [f"{VULNERABLE} (all-5.jar): GHSA-xxxx", "1 jars were audited; 1 of their modules have known vulnerabilities"],
    )


def test_a_jar_without_coordinates_is_not_audited(tmp_path: Path, osv: str) -> None:
    make_jar(tmp_path / "jars/unknown-1.0.jar")
    assert audit(tmp_path, osv) == (
        2,
        [
            "0 jars were audited; 0 of their modules have known vulnerabilities",
            "1 jars were not audited because their coordinates are unknown: unknown-1.0.jar",
        ],
    )


def test_without_an_answer_no_jar_is_audited(tmp_path: Path) -> None:
    make_jar(tmp_path / "jars/all-5.jar", ("org.example", "all", "5"))
    status, lines = audit(tmp_path, NO_SERVER)
    assert status == 2
    assert len(lines) == 1
    assert lines[0].startswith(f"1 jars were not audited because {NO_SERVER} did not answer: ")
    assert list(components(tmp_path)) == ["all"]
