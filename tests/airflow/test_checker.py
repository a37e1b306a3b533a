"""The process that looks at SLAs, as a triggerer hosts it."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from support.report_warehouse import TestWarehouse
from tidemark.clock import wall_clock_ms
from tidemark.model.project.files import VARIABLE
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import BATCHES, CHANGES
from tidemark.sla.checker_lines import Asked, Settings
from tidemark_airflow.operators.checks import CheckerHost

TOPOLOGY = """
name = "t"
[operators.events]
kind = "source"
topic = "events"
fields = "id string, at bigint"
timestamp = "at"
bound = "3 s"
"""
SLA = '[t.fresh]\nsubject = "changes"\nerror_after = "10 s"\nowner = "o"\n'


@pytest.fixture
def alive() -> Iterator[tuple[str, threading.Event]]:
    """The address of a dead man's switch, and whether it was asked."""
    asked = threading.Event()

    class Switch(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.set()
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    with HTTPServer(("127.0.0.1", 0), Switch) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", asked
        server.shutdown()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for part in ("topologies", "expectations"):
        (tmp_path / part).mkdir()
    (tmp_path / "topologies" / "t.toml").write_text(TOPOLOGY)
    (tmp_path / "expectations" / "slas.toml").write_text(SLA)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return tmp_path


@pytest.fixture
def warehouse(project: Path) -> TestWarehouse:
    """A warehouse whose newest change is a minute old."""
    found = TestWarehouse(Layout(project / "warehouse"))
    minute_ago_ms = wall_clock_ms() - 60_000
    change = {"batch_id": 0, "operator": "events", "seq": 0, "timestamp": minute_ago_ms}
    found.write(CHANGES, [change], sub_topology="events")
    found.write(BATCHES, [{"batch_id": 0, "finished_at": minute_ago_ms}], sub_topology="events")
    return found


def test_the_checker_asks_again_after_it_was_killed_and_says_that_it_lives(
    warehouse: TestWarehouse, alive: tuple[str, threading.Event]
) -> None:
    url, was_asked = alive
    settings = Settings(warehouse=str(warehouse.layout.warehouse), every_s=0.5, alive_url=url)

    async def watched() -> tuple[Asked, Asked, int]:
        host = CheckerHost(settings)
        questions = host.watch("t")
        first = await questions.get()
        assert await asyncio.to_thread(was_asked.wait, 60)
        assert host.pid is not None
        os.kill(host.pid, signal.SIGKILL)
        again = await questions.get()
        last = host.pid
        assert last is not None
        host.leave("t")
        await host.ended()
        return first, again, last

    first, again, last = asyncio.run(asyncio.wait_for(watched(), 120))

    assert (first.topology, set(first.why)) == ("t", {"a verdict changed", "a channel has something to deliver"})
    assert (first.run_id, again.why) == (f"check__{first.at_ms}", ("a channel has something to deliver",))
    assert not Path(f"/proc/{last}").exists()


def test_the_same_checker_asks_about_a_watched_table_that_stands_still(project: Path) -> None:
    write_deltalake(str(project / "lake" / "orders"), pa.table({"id": [1]}))
    sets = f'[watch.silver]\ntables = ["{project / "lake"}"]\nowner = "o"\n'
    sla = '[watch.fresh]\nsubject = "silver.orders"\nmeasure = "commit_age"\nerror_after = "10 ms"\n'
    (project / "expectations" / "slas.toml").write_text(sets + sla)

    async def watched() -> Asked:
        host = CheckerHost(Settings(warehouse=str(project / "warehouse"), every_s=0.5, alive_url=""))
        asked = await host.watch("watch").get()
        host.leave("watch")
        await host.ended()
        return asked

    asked = asyncio.run(asyncio.wait_for(watched(), 120))
    assert (asked.topology, set(asked.why)) == ("watch", {"a verdict changed", "a channel has something to deliver"})


def test_the_checker_says_nothing_outside_while_slas_cannot_be_judged(
    project: Path, warehouse: TestWarehouse, alive: tuple[str, threading.Event]
) -> None:
    url, was_asked = alive
    (project / "expectations" / "slas.toml").write_text("this is no TOML")
    settings = Settings(warehouse=str(warehouse.layout.warehouse), every_s=0.5, alive_url=url)

    async def watched() -> list[str]:
        host = CheckerHost(settings)
        host.watch("t")
        failed = await host.looked.get()
        host.leave("t")
        await host.ended()
        return failed

    assert asyncio.run(asyncio.wait_for(watched(), 120)) == ["t"]
    assert not was_asked.is_set()
