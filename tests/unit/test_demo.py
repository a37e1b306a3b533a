"""When the demo takes its streams to be at rest."""

from __future__ import annotations

import time
from itertools import count
from pathlib import Path

import pytest

from tidemark.cli import demo
from tidemark.cli.demo import Demo, DemoSettings
from tidemark.embedded.conductor import Conductor
from tidemark.embedded.process import wait_until
from tidemark.spec.layout import Layout

FLIGHTS = DemoSettings(first="2013-06-27", until="2013-06-28", speed=1, seed=1, slow=(), keep=False)


def test_streams_are_at_rest_when_nothing_but_their_heartbeats_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "QUIET_S", 0.3)
    conductor = Conductor.of(tmp_path, print)
    layout = Layout(conductor.home.warehouse)

    def commit(sub: str, table: str, number: int) -> None:
        log = layout.stream_table("flights", sub, table) / "_delta_log"
        log.mkdir(parents=True, exist_ok=True)
        (log / f"{number:020}.json").touch()

    for sub in ("status", "carriers"):
        commit(sub, "batches", 0)
        commit(sub, "batches", 1)
    quiet, beats, began_s = Demo(conductor, FLIGHTS)._quiet(), count(), time.monotonic()
    assert not quiet()

    def is_quiet_after_a_beat() -> bool:
        commit("status", "heartbeats", next(beats))
        return quiet()

    wait_until(is_quiet_after_a_beat, "rest", 10)
    assert time.monotonic() - began_s >= 0.3
    commit("carriers", "changes", 0)
    assert not quiet()
