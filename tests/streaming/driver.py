"""A `jobs/stream.py` for a topology that a test writes by hand, as a user starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl

from tidemark.control import Control
from tidemark.delta import scan
from tidemark.embedded.process import wait_until
from tidemark.spec.layout import Layout
from tidemark.spec.topology import load

PROJECT = Path(__file__).resolve().parents[2]
PATIENCE_S = 90


class Driver:
    """Runs the only sub-topology of the topology *toml*; warehouse, file and log lie in *home*."""

    def __init__(self, home: Path, toml: str, address: str) -> None:
        file = home / "topology.toml"
        file.write_text(toml)
        topology = load(file)
        (sub,) = topology.sub_topologies
        layout = Layout(home / "warehouse")
        self.control = Control(layout.control(topology.name, sub.name))
        self._tables = layout.stream_table(topology.name, sub.name, "_").parent
        self._log = home / "driver.log"
        self.control.forget_drain()
        command = [sys.executable, str(PROJECT / "jobs" / "stream.py"), "--warehouse", str(layout.warehouse)]
        command += ["--topology", str(file), "--sub-topology", sub.name, "--bootstrap", address]
        with self._log.open("a") as log:
            self._process = subprocess.Popen(command, cwd=home, stdout=log, stderr=log, start_new_session=True)

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave nothing of it, nor of the JVM that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(PATIENCE_S)

    def rows(self, table: str) -> list[dict[str, Any]]:
        """The rows of *table* in the order of batches; none while there is no table."""
        path = self._tables / table
        if not (path / "_delta_log").is_dir():
            return []
        frame: pl.DataFrame = scan(path).collect()
        return frame.sort("batch_id", maintain_order=True).to_dicts()

    def wait_for(self, table: str, number: int) -> list[dict[str, Any]]:
        """The rows of *table* once there are *number* of them; fails as soon as the driver has ended before."""
        self._wait(lambda: len(self.rows(table)) >= number, f"{number} rows of {table}")
        return self.rows(table)

    def reason_to_fail(self) -> str:
        """What it says of its failure, once it has failed."""
        assert self._process.wait(PATIENCE_S) == 1
        heartbeat = self.control.heartbeat()
        assert heartbeat is not None
        return heartbeat.reason or ""

    def drain(self) -> None:
        """Have it end by itself."""
        self.control.request_drain(by="test", now_ms=time.time_ns() // 1_000_000)
        assert self._process.wait(PATIENCE_S) == 0, self._log.read_text()[-3_000:]

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        def holds() -> bool:
            assert self._process.poll() is None, f"{what}: the driver ended\n{self._log.read_text()[-5_000:]}"
            return condition()

        wait_until(holds, what, PATIENCE_S)
