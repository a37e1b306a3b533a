"""`tidemark upgrade` of an earlier warehouse that was copied into a store."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from support.command_line import tidemark
from support.golden_warehouse import BATCHES, GOLDEN, OFFSETS, TOPOLOGY, record
from support.older_warehouse import stopped
from support.play import Play, ms
from tidemark.query.sql import Warehouse
from tidemark.storage.delta.format import VERSION


def stored(disk: Path, warehouse: Path) -> None:
    """Copies the files of the warehouse *disk* into the store."""
    for file in disk.rglob("*"):
        if file.is_file():
            (warehouse / str(file.relative_to(disk))).write_bytes(file.read_bytes())


def upgrade(home: Path, warehouse: Path, *words: str) -> list[str]:
    """Returns the lines of a command that succeeds."""
    done = tidemark(home, "--warehouse", str(warehouse), "upgrade", *words)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.long
def test_a_golden_warehouse_is_upgraded_in_a_store_and_continues(warehouse: Path, tmp_path: Path) -> None:
    with tarfile.open(GOLDEN / "0.1.0.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    disk, topology = tmp_path / "warehouse", str(tmp_path / TOPOLOGY)
    stored(disk, warehouse)
    steps = upgrade(tmp_path, warehouse, "--dry-run", topology)
    assert [line.partition(":")[0] for line in steps] == [
        f"streams/golden/{sub}/{table}" for sub in ("events", "by_id") for table in ("watermarks", "heartbeats")
    ]
    assert steps == upgrade(tmp_path, disk, "--dry-run", topology)
    assert upgrade(tmp_path, warehouse, topology) == steps
    assert upgrade(tmp_path, warehouse, topology) == [f"{warehouse}: everything has format 1"]
    play = Play((tmp_path / TOPOLOGY).read_text(), warehouse)
    play.resume(BATCHES, OFFSETS)
    play.batch([record(play, "c", 2, 22), record(play, "a", 8, 35)], at_ms=ms(50))
    play.hop("by_id", at_ms=ms(60))
    play.settle()
    tables = Warehouse(warehouse)
    # b is of the earlier version alone; the window from 20 to 30 has c 1 of it and c 2 of this one.
    assert sorted(tables.ask("select id, v from board").rows) == [("a", 8), ("b", 9), ("c", 2)]
    windows = tables.ask("select id, n, total from minutes where batch_id >= 4").rows
    assert sorted(windows) == [("a", 1, 8), ("c", 2, 3)]
    assert sorted(tables.ask("select id, total from ever_board where batch_id >= 4").rows) == [("a", 8), ("c", 2)]


@pytest.mark.long
def test_states_that_are_only_in_tables_are_upgraded_in_a_store(warehouse: Path, tmp_path: Path) -> None:
    on_disk = stopped(tmp_path)
    topology = str(tmp_path / "shop.toml")
    stored(on_disk.home, warehouse)
    steps = upgrade(tmp_path, warehouse, topology)
    assert steps[0] == "warehouse: no stamp -> format 1: stamp; writes a small file"
    # As on a disk (tests/delta/test_upgrade_command.py).
    assert sum(line.startswith("streams/shop/") for line in steps) == 55 == len(steps) - 4
    assert upgrade(tmp_path, warehouse, topology) == [f"{warehouse}: everything has format 1"]
    assert f'"tidemark": "{VERSION}"' in (warehouse / "tidemark.json").read_text()
