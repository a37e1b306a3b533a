"""A driver that cannot reach its object store decides nothing twice.

The driver, without Spark, has a process of its own and reaches the store through a proxy that passes nothing for a
while. What it has sent arrives later, also if it has sent it again or has been replaced meanwhile.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from objectstore.test_engine import SUB, drive, play_all, play_batch, silence

from support.play import Play
from support.tcp_proxy import TcpProxy
from support.topologies import NEWEST_SENT
from tidemark.control.folder import Control
from tidemark.control.process import wait_until
from tidemark.model.project.layout import Layout

TESTS = Path(__file__).resolve().parents[1]
PATIENCE_S = 120
STEPS = ("begun", "decided", "committed changes")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return play_all(tmp_path_factory.mktemp("undisturbed")).tables()


@pytest.fixture
def network(store: str) -> Iterator[TcpProxy]:
    """A network to the store."""
    with TcpProxy(int(store.rpartition(":")[2])) as proxy:
        yield proxy


class FarWriter:
    """The driver beyond *network*, at a step of batch 1."""

    def __init__(self, process: subprocess.Popen[str], network: TcpProxy) -> None:
        self._process, self._network = process, network

    def cut_off(self) -> None:
        """Ends its network, and returns when requests wait there.

        Its client has given up the first of them, or the driver has ended.
        """
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        assert self._process.stdout.readline() == "reached\n"
        self._network.stall()
        before = self._network.connections
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        # The server ends each connection after its answer, so each try of a request has its own.
        wait_until(
            lambda: self._network.connections >= before + 2 or self._process.poll() is not None,
            "a request that is sent again",
            PATIENCE_S,
        )

    def end(self) -> tuple[int, str]:
        """Returns its exit status and its last words."""
        said, _ = self._process.communicate(timeout=PATIENCE_S)
        return self._process.returncode, said


@contextmanager
def far_writer(warehouse: Path, network: TcpProxy, step: str) -> Iterator[FarWriter]:
    env = {**os.environ, "PYTHONPATH": str(TESTS), "AWS_ENDPOINT_URL": f"http://{network.address}", "AWS_TIMEOUT": "2s"}
    command = [sys.executable, "-m", "objectstore.far_writer", str(warehouse), step]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield FarWriter(process, network)
        finally:
            process.kill()


def play_the_rest(newer: Play) -> None:
    """Plays batches 1 and 2 with the lease of the silent writer."""
    silence(Control(Layout(newer.home).control("play", SUB)))
    drive(newer)
    newer.resume({SUB: 1}, {("events", 0): 2})
    for number in (1, 2):
        play_batch(newer, number)


@pytest.mark.parametrize(
    "step",
    [
        pytest.param("begun", marks=pytest.mark.long),
        "decided",
        pytest.param("committed changes", marks=pytest.mark.long),
    ],
)
def test_a_batch_is_decided_once_when_its_requests_are_late(
    warehouse: Path, network: TcpProxy, undisturbed: dict[str, list[str]], step: str
) -> None:
    with far_writer(warehouse, network, step) as writer:
        writer.cut_off()
        network.forward()
        status, said = writer.end()
    # Reads are repeated. A put with a condition is not, because it may have been carried out: then the driver ends.
    assert status in {0, 1}, said
    newer = Play(NEWEST_SENT, warehouse)
    if status:
        play_the_rest(newer)
    assert newer.tables() == undisturbed


@pytest.mark.parametrize("step", [pytest.param(step, marks=pytest.mark.long) for step in STEPS])
def test_a_driver_that_was_replaced_while_cut_off_writes_nothing(
    warehouse: Path, network: TcpProxy, undisturbed: dict[str, list[str]], step: str
) -> None:
    with far_writer(warehouse, network, step) as writer:
        writer.cut_off()
        newer = Play(NEWEST_SENT, warehouse)
        play_the_rest(newer)
        network.forward()
        status, said = writer.end()
    # Its put was refused, or given up by its client and refused later.
    assert status == 3 or (status == 1 and "error sending request" in said), said
    assert newer.tables() == undisturbed
    assert Control(Layout(warehouse).control("play", SUB)).epoch() == 2
