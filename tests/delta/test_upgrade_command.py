"""`tidemark upgrade`: what an older version wrote gets this version's format.

The warehouse is that of `test_upgrade.py`.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from support.command_line import tidemark
from support.crashes import Crash
from support.older_warehouse import START, STOPPED, reading, stopped
from support.play import Play
from support.topologies import EVENTS
from tidemark.cli.repair.upgrade import UpgradeStep, carry_out, plan, refuse_unready
from tidemark.errors import InvalidArgument
from tidemark.model.project.layout import Layout
from tidemark.model.topology import Topology
from tidemark.storage.delta.format import NewerFormat, Stamp, table_stamp, warehouse_stamp

KILLED = """
import os, signal, sys
from pathlib import Path
from tidemark.cli.repair import upgrade
from tidemark.model.project.layout import Layout
from tidemark.model.topology import load
home, lines = Path(sys.argv[1]), int(sys.argv[2])
parts = list(upgrade.plan(Layout(home / "warehouse"), [load(home / "shop.toml")]))
for number, line in enumerate(upgrade.carry_out(parts), 1):
    print(line, flush=True)
    if number == lines:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def planned(play: Play, topology: Topology | None = None) -> list[str]:
    parts = plan(Layout(play.home), [topology or play.topology])
    return [step.line for part in parts for step in part.steps]


def upgrade(play: Play) -> list[str]:
    return list(carry_out(list(plan(Layout(play.home), [play.topology]))))


def formats(home: Path) -> set[int]:
    tables = [log.parent for log in home.glob("streams/*/*/*/_delta_log")]
    return {table_stamp(DeltaTable(str(path))).format for path in tables}


@pytest.fixture(scope="module")
def plan_lines(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Returns the lines of a dry run, which changes nothing."""
    home = tmp_path_factory.mktemp("planned")
    shop = stopped(home)
    before = sorted(str(path) for path in home.rglob("*"))
    done = tidemark(home, "--warehouse", str(shop.home), "upgrade", str(home / "shop.toml"), "--dry-run")
    assert done.returncode == 0, done.stderr
    assert sorted(str(path) for path in home.rglob("*")) == before
    return done.stdout.splitlines()


def test_the_plan_has_each_table_and_state_with_its_cost(plan_lines: list[str]) -> None:
    lines = plan_lines
    assert lines[0] == "warehouse: no stamp -> format 1: stamp; writes a small file"
    # The archive has 57 tables, of which two are of others; then there are three states and the warehouse.
    assert sum(line.startswith("streams/shop/") for line in lines) == 55 == len(lines) - 4
    assert "streams/shop/devices/devices_board: no stamp -> format 1: stamp; reads no rows" in lines
    (batches,) = [line for line in lines if line.startswith("streams/shop/devices/batches:")]
    assert batches.startswith("streams/shop/devices/batches: no stamp -> format 1: add the columns ")
    assert "queued_ms" in batches
    states = [line for line in lines if "state files" in line]
    assert [line.partition(" bytes")[0].rpartition(" reads ")[0] for line in states] == [
        f"control/shop/{sub}: tables -> state files: load the state after batch {batch} and write it for 1 shard;"
        for sub, batch in (("devices", 9), ("sites", 18), ("regions", 11))
    ]


def number_of_state(lines: list[str]) -> int:
    """The number of the first step that writes a state."""
    return next(number for number, line in enumerate(lines, 1) if "state files" in line)


@pytest.fixture(scope="module")
def upgraded(tmp_path_factory: pytest.TempPathFactory, plan_lines: list[str]) -> Play:
    """Upgrades the warehouse by two commands.

    The first one ends after a state.
    """
    shop = stopped(tmp_path_factory.mktemp("shop"))
    until = number_of_state(plan_lines)
    assert list(islice(carry_out(list(plan(Layout(shop.home), [shop.topology]))), until)) == plan_lines[:until]
    assert upgrade(shop) == plan_lines[until:]
    return shop


def test_an_upgrade_that_was_stopped_leaves_nothing_to_do(upgraded: Play) -> None:
    assert (formats(upgraded.home), warehouse_stamp(upgraded.home)) == ({1}, Stamp(1, "0.1.0"))
    home = upgraded.home.parent
    done = tidemark(home, "--warehouse", str(upgraded.home), "upgrade", str(home / "shop.toml"))
    assert done == (0, f"{upgraded.home}: everything has format 1\n", "")


@pytest.mark.long  # a killed process takes five seconds of a processor
def test_an_upgrade_that_was_killed_is_continued(tmp_path: Path, plan_lines: list[str]) -> None:
    """It is killed three times.

    After the warehouse's stamp, after a state, and before the last step.
    """
    shop, done = stopped(tmp_path), 0
    for until in (1, number_of_state(plan_lines), len(plan_lines) - 1):
        command = [sys.executable, "-c", KILLED, str(tmp_path), str(until - done)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.returncode == -signal.SIGKILL, ran.stderr
        assert ran.stdout.splitlines() == plan_lines[done:until]
        done = until
    assert upgrade(shop) == plan_lines[-1:]
    assert planned(shop) == []


def test_a_stream_continues_from_an_upgraded_state(upgraded: Play, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "tidemark.stream")
    records = [reading(upgraded, "b", 21.5, "south", 130), reading(upgraded, "a", 22.5, "south", 390)]
    upgraded.batch(records, at_ms=STOPPED)
    assert "starting with 1 shards" in caplog.text
    assert "tables of an older version" not in caplog.text
    rows = [row for row in upgraded.rows("minutes") if row["batch_id"] >= 14]
    windows = [(row["device"], (row["window_start"] - START) // 1_000, row["n"], row["mean_c"]) for row in rows]
    # As without the command (test_upgrade.py).
    assert sorted(windows) == [("b", 60, 1, 21.5), ("b", 120, 1, 21.5)]


def test_a_step_that_fails_is_repeated(tmp_path: Path) -> None:
    shop = stopped(tmp_path)

    def next_state() -> UpgradeStep:
        parts = plan(Layout(shop.home), [shop.topology])
        return next(step for part in parts for step in part.steps if "state files" in step.line)

    def gone() -> None:
        raise Crash

    state = next_state()
    with pytest.raises(Crash):
        state.run(gone)
    assert next_state().line == state.line
    state.run(lambda: None)
    assert next_state().line != state.line


def test_a_running_stream_is_not_upgraded(tmp_path: Path) -> None:
    shop = stopped(tmp_path)
    with driver_of(shop), pytest.raises(InvalidArgument, match="shop/devices: its driver is running; drain it first"):
        refuse_unready(Layout(shop.home), [shop.topology])


@contextmanager
def driver_of(play: Play):
    with play.control.held():
        yield


def test_reports_are_upgraded_too(tmp_path: Path) -> None:
    path = tmp_path / "reports" / "play" / "requeued"
    DeltaTable.create(str(path), pa.schema([("topology", pa.string())]))
    play = Play(EVENTS, tmp_path)
    (line,) = [line for line in planned(play) if line.startswith("reports")]
    assert line.startswith("reports/play/requeued: no stamp -> format 1: add the columns ")
    upgrade(play)
    assert planned(play) == []


def test_a_newer_table_stops_the_plan(tmp_path: Path) -> None:
    shop = stopped(tmp_path)
    path = shop.table("changes")
    DeltaTable(str(path)).alter.set_table_properties({"tidemark.format": "2"}, raise_if_not_exists=False)
    with pytest.raises(NewerFormat, match=f"{path}: .* an unknown version has written format 2"):
        planned(shop)
