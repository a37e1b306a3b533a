"""Follows docs/first-topology.md as a new user on this machine.

Its files and commands are run as they stand there.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from support.topologies import orders_in_files
from tidemark.control.process import wait_until, without_airflow
from tidemark.local import airflow
from tidemark.model.project.connections import read_clusters
from tidemark.model.project.layout import Layout
from tidemark.model.settings.toml_files import read_toml
from tidemark.model.tables.catalog import CRITICAL_PATHS, INCIDENTS, Table
from tidemark.storage.delta.tables import scan

GUIDE = (Path(__file__).parents[2] / "docs" / "first-topology.md").read_text(encoding="utf-8")
COMMAND_S = 600
CHECKED_S = 600
"""An SLA is checked each minute, and resolves after another one."""
PAUSED = "tidemark_readings_daily"
FILE = re.compile(r"`([\w/-]+\.(?:toml|py))`")


class Shell:
    """A bash for all steps: folder and background jobs remain."""

    def __init__(self, folder: Path) -> None:
        env = without_airflow(os.environ)
        env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
        self._bash = subprocess.Popen(
            ["bash"], cwd=folder, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def run(self, command: str) -> str:
        """Returns the output of *command*; fails on errors and after COMMAND_S."""
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        self._bash.stdin.write(f"{command}\necho __STATUS__ $?\n")
        self._bash.stdin.flush()
        late = threading.Timer(COMMAND_S, self._bash.kill)
        late.start()
        said = []
        for line in self._bash.stdout:
            if line.startswith("__STATUS__"):
                late.cancel()
                assert line.split()[1] == "0", f"{command}: {''.join(said)}"
                return "".join(said)
            said.append(line)
        pytest.fail(f"{command} took longer than {COMMAND_S} s: {''.join(said)}")

    def end(self) -> None:
        """Leave nothing running."""
        self._bash.stdin.write("kill $!; tidemark down\nexit\n")  # type: ignore[union-attr]
        self._bash.stdin.close()  # type: ignore[union-attr]
        self._bash.stdout.read()  # type: ignore[union-attr]
        self._bash.wait(COMMAND_S)
        self._bash.stdout.close()  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    shell = Shell(tmp_path_factory.mktemp("guide"))
    yield shell
    shell.end()


def steps() -> dict[str, list[tuple[str, str, str]]]:
    """Returns each step's blocks by title: language, text, and file.

    The file is the one that the words before it name last.
    """
    found: dict[str, list[tuple[str, str, str]]] = {}
    for section in GUIDE.split("\n## ")[1:]:
        title, _, body = section.partition("\n")
        blocks = list(re.finditer(r"```(\w+)\n(.*?)```", body, re.DOTALL))
        starts = [0, *(block.end() for block in blocks)]
        named = [FILE.findall(body[start : block.start()]) for start, block in zip(starts, blocks, strict=False)]
        found[title] = [(block[1], block[2], (names or [""])[-1]) for block, names in zip(blocks, named, strict=True)]
    return found


def go_through(shell: Shell, title: str, folder: Path) -> list[str]:
    """Writes a step's files, runs its commands, and returns their output.

    Commands run a line at a time.
    """
    said = []
    for language, text, file in steps()[title]:
        if language == "sh":
            said += [shell.run(line) for line in text.splitlines()]
        elif file != "connections.toml":  # for those who have a broker
            (folder / file).write_text(text)
    return said


def running(shell: Shell) -> dict[str, tuple[str, str]]:
    """Returns each topology's running stream and its driver's start."""
    return {
        topology["topology"]: (f"{topology['topology']}/{stream['sub_topology']}", stream["since"])
        for topology in json.loads(shell.run("tidemark status --format json"))["topologies"]
        for stream in topology["streams"]
        if stream["state"] == "running"
    }


def reported(folder: Path, table: Table) -> pl.DataFrame:
    """Returns the rows of a table of reports.

    It is read here, since each command of a loop would cost a second of CPU.
    """
    path = Layout(folder / ".tidemark" / "warehouse").report_table("readings", table.name)
    return scan(path).collect() if path.exists() else pl.DataFrame()


def newest_change(folder: Path) -> str:
    """Returns the last change of the board's incident; empty without one."""
    changes = [row for row in reported(folder, INCIDENTS).to_dicts() if row["sla"] == "board_is_fresh"]
    return max(changes, key=lambda row: row["changed_at"])["change"] if changes else ""


def test_a_topic_has_an_alert_and_a_critical_path(shell: Shell) -> None:
    go_through(shell, "1. A project", Path())
    folder = Path(shell.run("pwd").strip())
    assert folder.name == "sensors"
    go_through(shell, "2. A topic", folder)
    checked, tested = go_through(shell, "3. The topology", folder)
    assert re.search(r"readings/\w+: readings, newest, board", checked)
    assert "a late reading does not replace a newer one" in tested

    (started,) = go_through(shell, "4. Start", folder)
    assert re.search(r"readings/\w+ +running +[\d,]+ .* http://127\.0\.0\.1:\d+/", started), started
    (topology,) = json.loads(shell.run("tidemark status --format json"))["topologies"]
    (stream,) = topology["streams"]
    assert stream["first_latency_ms"] >= 0
    assert stream["records_in"] > 0

    latencies, newest, now, why = go_through(shell, "5. How late, and why?", folder)
    assert re.search(r"^ *board +\d+", latencies, re.MULTILINE), latencies
    assert len(re.findall(r'^[abcd] +\{"temp_c":\d', newest, re.MULTILINE)) == 5
    assert re.search(r"^ *board ", now, re.MULTILINE), now
    assert re.search("nothing_wrong|slow_operator", why), why  # a busy machine may be slow
    wait_until(lambda: newest_change(folder) in {"", "resolved"}, "a board in time", CHECKED_S)

    stop, *after, restart = [line for _, text, _ in steps()["6. An alert"] for line in text.splitlines()]
    shell.run(stop)
    wait_until(lambda: newest_change(folder) in {"opened", "reopened"}, "the incident", CHECKED_S)
    incidents, why = (shell.run(line) for line in after)
    assert "board_is_fresh" in incidents
    assert "source_quiet" in why
    shell.run(restart)
    wait_until(lambda: not reported(folder, CRITICAL_PATHS).is_empty(), "the report", CHECKED_S)
    (path,) = go_through(shell, "7. Why was a window late?", folder)
    assert "bound" in path


@pytest.mark.long  # minutes; tests/delta/test_check_sla.py has incidents that are resolved
def test_the_alert_is_resolved(shell: Shell) -> None:
    folder = Path(shell.run("pwd").strip())
    wait_until(lambda: newest_change(folder) == "resolved", "the end of the incident", CHECKED_S)
    assert "board_is_fresh" not in shell.run("tidemark incidents readings")


@pytest.mark.long  # minutes; tests/airflow/test_stream.py and test_shared_drivers.py stop and start stand-ins
def test_streams_are_restarted_stopped_and_started_again(shell: Shell) -> None:
    folder = Path(shell.run("pwd").strip())
    name, since = running(shell)["readings"]
    assert len(shell.run(f"tidemark logs {name} -n 3").splitlines()) == 3
    shell.run(f"tidemark restart {name}")
    assert running(shell)["readings"][1] > since
    airflow.api(folder / ".tidemark" / "airflow").pause(PAUSED)
    go_through(shell, "8. Stop", folder)
    assert re.search(rf"{name} +drained", shell.run("tidemark status"))

    (folder / "topologies" / "orders.toml").write_text(orders_in_files("orders", "incoming/orders"))
    incoming = folder / ".tidemark" / "warehouse" / "incoming" / "orders"
    incoming.mkdir(parents=True)
    (incoming / "1.json").write_text(json.dumps({"id": "a", "at": int(time.time() * 1_000)}))
    started = shell.run("tidemark up orders")
    assert re.search(r"orders/\w+ +running +1 ", started), started
    assert "starting Kafka" not in started  # nothing that it reads is there
    again = shell.run("tidemark up")  # what ran at the last `tidemark down`
    assert f"{PAUSED} stays paused because a person paused it; `tidemark up readings --unpause`" in again
    assert set(running(shell)) == {"readings", "orders"}
    shell.run("tidemark down")
    assert running(shell) == {}


def test_the_connection_that_the_guide_shows_is_valid(tmp_path: Path) -> None:
    file = tmp_path / "connections.toml"
    file.write_text(steps()["2. A topic"][0][1])
    assert read_clusters(file.name, read_toml(file)["kafka"])["default"].bootstrap == "broker.example.org:9092"
