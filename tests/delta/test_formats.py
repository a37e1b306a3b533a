"""Tables and warehouses of another format are refused."""

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
from tidemark.api.query import FactsWriter, Query
from tidemark.errors import UnreadableFile
from tidemark.model.project.layout import Layout
from tidemark.reports.batch_job import report_lock
from tidemark.storage.delta.format import VERSION, OtherFormat, Stamp, stamp_warehouse, warehouse_stamp
from tidemark.storage.delta.tables import Committer, append, create
from tidemark.storage.fence import Fence

SCHEMA = pa.schema([("batch_id", pa.int64()), ("n", pa.int64())])
ROW = pa.table({"batch_id": [0], "n": [7]}, schema=SCHEMA)
NEWER = {"tidemark.format": "4", "tidemark.version": "9.1.0"}


def newer_table(path: Path) -> Path:
    create(path, SCHEMA)
    DeltaTable(str(path)).alter.set_table_properties(NEWER, raise_if_not_exists=False)
    return path


def newer_warehouse(home: Path) -> Path:
    return stamped(home, '{"format": 4, "tidemark": "9.1.0"}')


def stamped(home: Path, text: str) -> Path:
    home.mkdir(exist_ok=True)
    (home / "tidemark.json").write_text(text)
    return home


def properties(path: Path) -> dict[str, str | None]:
    return {name: value for name, value in DeltaTable(str(path)).metadata().configuration.items() if "tidemark" in name}


def test_a_new_table_has_its_format_in_its_first_version(tmp_path: Path) -> None:
    create(tmp_path, SCHEMA)
    assert properties(tmp_path) == {"tidemark.format": "3", "tidemark.version": "0.1.0"}
    create(tmp_path, SCHEMA)
    assert DeltaTable(str(tmp_path)).version() == 0


def test_a_table_without_a_stamp_gets_it_after_its_columns(tmp_path: Path) -> None:
    DeltaTable.create(str(tmp_path), SCHEMA.remove(1))
    create(tmp_path, SCHEMA)
    table = DeltaTable(str(tmp_path))
    assert properties(tmp_path) == {"tidemark.format": "3", "tidemark.version": "0.1.0"}
    # Oldest last: the table was created, got the column, and then the stamp.
    assert [commit["operation"] for commit in table.history()] == ["SET TBLPROPERTIES", "ADD COLUMN", "CREATE TABLE"]
    assert [field.name for field in table.schema().fields] == ["batch_id", "n"]


def test_a_table_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = newer_table(tmp_path / "changes")
    said = (
        rf"{path}: version 9.1.0 of Tidemark has written format 4, but this is version {VERSION}, which writes format "
        r"3; nothing was changed; install version 9.1.0 \(docs/upgrades.md\)"
    )
    with pytest.raises(OtherFormat, match=said):
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
    assert json.loads((tmp_path / "warehouse" / "tidemark.json").read_text()) == {"format": 3, "tidemark": "0.1.0"}
    assert warehouse_stamp(tmp_path / "warehouse") == Stamp(3, "0.1.0")


def test_a_stamp_is_written_once(tmp_path: Path) -> None:
    (tmp_path / "tidemark.json").write_text('{"format": 3, "tidemark": "0.0.9"}')
    stamp_warehouse(tmp_path)
    assert warehouse_stamp(tmp_path) == Stamp(3, "0.0.9")


def test_a_driver_refuses_a_newer_warehouse(tmp_path: Path) -> None:
    play = Play(EVENTS, newer_warehouse(tmp_path / "warehouse"))
    with pytest.raises(OtherFormat, match=r"warehouse: version 9.1.0 of Tidemark has written format 4, but this is"):
        play.start()
    assert os.listdir(tmp_path / "warehouse") == ["tidemark.json"]


def test_maintenance_leaves_a_newer_warehouse(tmp_path: Path) -> None:
    play = Play(EVENTS, tmp_path / "warehouse")
    play.batch([play.row("events", NOON, id="a", v=1)], at_ms=NOON)
    newer_warehouse(play.home)
    with pytest.raises(OtherFormat):
        maintain.run(Layout(play.home), play.topology, now_ms=NOON)


def test_a_damaged_stamp_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "tidemark.json").write_text("{}")
    with pytest.raises(UnreadableFile, match=r"tidemark.json: a stamp has the keys format and tidemark, got KeyError"):
        warehouse_stamp(tmp_path)


def test_doctor_refuses_a_newer_warehouse(tmp_path: Path) -> None:
    done = tidemark(tmp_path, "--warehouse", str(newer_warehouse(tmp_path)), "doctor", "flights")
    assert done.returncode == 1
    assert "version 9.1.0 of Tidemark has written format 4" in done.stderr


def upgrade(warehouse: Path) -> tuple[int, str, str]:
    done = tidemark(warehouse, "--warehouse", str(warehouse), "upgrade")
    return done.returncode, done.stdout, done.stderr


def test_the_present_format_has_nothing_to_upgrade(tmp_path: Path) -> None:
    home = stamped(tmp_path, '{"format": 3, "tidemark": "0.0.9"}')
    assert upgrade(home) == (0, f"{home} has format 3, which Tidemark 0.1.0 writes: there is nothing to upgrade\n", "")


def test_a_warehouse_of_a_teams_own_job_alone_has_nothing_to_upgrade(tmp_path: Path) -> None:
    writer = FactsWriter(Query(Layout(tmp_path), "jobs", "orders"), "measured", lambda: NOON)
    assert writer.newest("batches") == -1
    assert upgrade(tmp_path)[0] == 0
    with pytest.raises(OtherFormat):
        FactsWriter(Query(Layout(newer_warehouse(tmp_path)), "jobs", "more"), "measured", lambda: NOON).newest(
            "batches"
        )
    assert not (tmp_path / "streams" / "jobs" / "more").exists()


def test_another_format_is_refused_in_a_sentence(tmp_path: Path) -> None:
    home = newer_warehouse(tmp_path)
    said = (
        "version 9.1.0 of Tidemark has written format 4, but this is version 0.1.0, which writes format 3; "
        "nothing was changed; install version 9.1.0 (docs/upgrades.md)"
    )
    assert upgrade(home) == (1, "", f"tidemark upgrade: {home}: {said}\n")


def test_an_older_warehouse_is_refused_in_a_sentence(tmp_path: Path) -> None:
    """Readers do not know its tables either."""
    home = stamped(tmp_path, '{"format": 1, "tidemark": "0.1.0"}')
    said = (
        f"{home} has format 1, but Tidemark 0.1.0 reads and writes format 3 alone; nothing was changed; choose an "
        "empty folder with --home or --warehouse, and let the streams start anew there (docs/upgrades.md)"
    )
    assert upgrade(home) == (1, "", f"tidemark upgrade: {said}\n")
    for command in (("sql", "SELECT 1"), ("status",), ("incidents", "flights"), ("tables",)):
        done = tidemark(home, "--warehouse", str(home), *command)
        assert (done.returncode, done.stderr.splitlines()[-1]) == (1, f"tidemark {command[0]}: {said}")
    with pytest.raises(OtherFormat, match="has format 1"), report_lock(Layout(home), "flights"):
        pass
    with pytest.raises(OtherFormat, match="has format 1"):
        Play(EVENTS, home).start()
    assert os.listdir(home) == ["tidemark.json"]


def test_a_warehouse_without_a_stamp_is_told_of_it(tmp_path: Path) -> None:
    said = (
        "is missing, but Tidemark 0.1.0 expects it with format 3; the first driver or job that writes to this "
        "warehouse makes it (docs/upgrades.md)"
    )
    assert upgrade(tmp_path) == (1, "", f"tidemark upgrade: {tmp_path}/tidemark.json {said}\n")
