"""Tables and warehouses of a newer version are refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import maintain
from support.command_line import tidemark
from support.play import NOON, Play
from support.topologies import EVENTS
from tidemark.errors import UnreadableFile
from tidemark.model.project.layout import Layout
from tidemark.storage.delta.format import VERSION, NewerFormat, Stamp, stamp_warehouse, warehouse_stamp
from tidemark.storage.delta.tables import Committer, append, create
from tidemark.storage.fence import Fence

SCHEMA = pa.schema([("batch_id", pa.int64()), ("n", pa.int64())])
ROW = pa.table({"batch_id": [0], "n": [7]}, schema=SCHEMA)
NEWER = {"tidemark.format": "2", "tidemark.version": "9.1.0"}


def newer_table(path: Path) -> Path:
    create(path, SCHEMA)
    DeltaTable(str(path)).alter.set_table_properties(NEWER, raise_if_not_exists=False)
    return path


def newer_warehouse(home: Path) -> Path:
    home.mkdir(exist_ok=True)
    (home / "tidemark.json").write_text('{"format": 2, "tidemark": "9.1.0"}')
    return home


def properties(path: Path) -> dict[str, str | None]:
    return {name: value for name, value in DeltaTable(str(path)).metadata().configuration.items() if "tidemark" in name}


def test_a_new_table_has_its_format_in_its_first_version(tmp_path: Path) -> None:
    create(tmp_path, SCHEMA)
    assert properties(tmp_path) == {"tidemark.format": "1", "tidemark.version": "0.1.0"}
    create(tmp_path, SCHEMA)
    assert DeltaTable(str(tmp_path)).version() == 0


def test_an_older_table_is_stamped_after_its_columns(tmp_path: Path) -> None:
    DeltaTable.create(str(tmp_path), SCHEMA.remove(1))
    create(tmp_path, SCHEMA)
    table = DeltaTable(str(tmp_path))
    assert properties(tmp_path) == {"tidemark.format": "1", "tidemark.version": "0.1.0"}
    # Oldest last: the table was created, got the column, and then the stamp.
    assert [commit["operation"] for commit in table.history()] == ["SET TBLPROPERTIES", "ADD COLUMN", "CREATE TABLE"]
    assert [field.name for field in table.schema().fields] == ["batch_id", "n"]


def test_a_table_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = newer_table(tmp_path / "changes")
    said = (
        rf"{path}: this is Tidemark {VERSION}, which writes formats up to 1, but version 9.1.0 has written format 2; "
        r"nothing was changed; install version 9.1.0 or a newer one \(docs/upgrades.md\)"
    )
    with pytest.raises(NewerFormat, match=said):
        create(path, SCHEMA.append(pa.field("more", pa.int64())))
    assert DeltaTable(str(path)).version() == 1


def test_each_commit_names_its_version(tmp_path: Path) -> None:
    create(tmp_path, SCHEMA)
    Committer("shop/devices", Fence()).commit(tmp_path, ROW, 0)
    append(tmp_path, ROW)
    assert [commit.get("tidemark") for commit in DeltaTable(str(tmp_path)).history()] == ["0.1.0", "0.1.0", None]


def test_the_first_driver_stamps_the_warehouse(tmp_path: Path) -> None:
    play = Play(EVENTS, tmp_path / "warehouse")
    play.start()
    assert json.loads((tmp_path / "warehouse" / "tidemark.json").read_text()) == {"format": 1, "tidemark": "0.1.0"}
    assert warehouse_stamp(tmp_path / "warehouse") == Stamp(1, "0.1.0")


def test_a_stamp_is_written_once(tmp_path: Path) -> None:
    (tmp_path / "tidemark.json").write_text('{"format": 1, "tidemark": "0.0.9"}')
    stamp_warehouse(tmp_path)
    assert warehouse_stamp(tmp_path) == Stamp(1, "0.0.9")


def test_a_driver_refuses_a_newer_warehouse(tmp_path: Path) -> None:
    play = Play(EVENTS, newer_warehouse(tmp_path / "warehouse"))
    with pytest.raises(NewerFormat, match=r"warehouse: this is Tidemark .* but version 9.1.0 has written format 2"):
        play.start()
    assert os.listdir(tmp_path / "warehouse") == ["tidemark.json"]


def test_maintenance_leaves_a_newer_warehouse(tmp_path: Path) -> None:
    play = Play(EVENTS, tmp_path / "warehouse")
    play.batch([play.row("events", NOON, id="a", v=1)], at_ms=NOON)
    newer_warehouse(play.home)
    with pytest.raises(NewerFormat):
        maintain.run(Layout(play.home), play.topology, now_ms=NOON)


def test_a_damaged_stamp_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "tidemark.json").write_text("{}")
    with pytest.raises(UnreadableFile, match=r"tidemark.json: a stamp has the keys format and tidemark, got KeyError"):
        warehouse_stamp(tmp_path)


def test_doctor_refuses_a_newer_warehouse(tmp_path: Path) -> None:
    done = tidemark(tmp_path, "--warehouse", str(newer_warehouse(tmp_path)), "doctor", "flights")
    assert done.returncode == 1
    assert "but version 9.1.0 has written format 2" in done.stderr
