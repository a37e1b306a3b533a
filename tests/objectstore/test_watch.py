"""Tables in an object store are watched as those on a disk."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from objectstore.counting import GET, LIST, Requests

from tidemark.storage.location import remove_folder
from tidemark.watch.commits import History, Unreadable
from tidemark.watch.kept import KeptHistories
from tidemark.watch.reading import find_tables, watched
from tidemark.watch.rules import table_age
from tidemark.watch.statistics import TimeColumnRequest


def test_tables_are_found_and_read_in_a_store(warehouse: Path, server_log: Path) -> None:
    at = datetime.now(UTC) - timedelta(hours=2)
    rows = pa.table({"at": pa.array([at], pa.timestamp("us", "UTC")), "day": ["x"]})
    orders, by_day = warehouse / "silver" / "orders", warehouse / "silver" / "deep" / "by_day"
    for _ in range(3):
        write_deltalake(str(orders), rows, mode="append")
    write_deltalake(str(by_day), rows, partition_by=["day"])
    DeltaTable(str(by_day)).create_checkpoint()
    assert [*find_tables(warehouse)] == [by_day, orders]
    requests = Requests(server_log, warehouse)
    requests.since_last()
    found = watched([warehouse], TimeColumnRequest(), 0)
    counted = requests.since_last()
    # Each commit is a request. Each of five folders is looked at for a log; then three are listed, and two logs.
    assert counted == {GET: 4, LIST: 10}
    newest_ms = int(at.timestamp() * 1_000)
    for history in found:
        assert not isinstance(history, Unreadable)
        age = table_age(history, now_ms=newest_ms + 10, since_ms=0, limit_ms=None).age
        assert age == (9, 10)
    (by_day / "_delta_log" / f"{0:020d}.json").unlink()
    (of_checkpoint,) = watched([by_day], TimeColumnRequest(), 0)
    assert not isinstance(of_checkpoint, Unreadable)
    assert (of_checkpoint.commits, of_checkpoint.newest) == ((), (newest_ms, newest_ms + 1))


def test_an_unchanged_table_is_one_request(warehouse: Path, server_log: Path, tmp_path: Path) -> None:
    rows = pa.table({"at": pa.array([datetime.now(UTC)], pa.timestamp("us", "UTC"))})
    orders, kept, requests = warehouse / "silver" / "orders", KeptHistories(tmp_path), Requests(server_log, warehouse)

    def swept(place: Path) -> tuple[list[History | Unreadable], Counter[str]]:
        requests.since_last()
        return watched([place], TimeColumnRequest(), 0, kept), requests.since_last()

    for _ in range(3):
        write_deltalake(str(orders), rows, mode="append")
    first, _ = swept(orders)
    assert swept(orders) == (first, {LIST: 1})
    # A new commit is another one.
    write_deltalake(str(orders), rows, mode="append")
    later, counted = swept(orders)
    assert (counted, later) == ({LIST: 1, GET: 1}, watched([orders], TimeColumnRequest(), 0))
    assert swept(orders) == (later, {LIST: 1})
    # To find tables below a folder, it is looked at for a log, and listed.
    folder = warehouse / "silver"
    assert swept(folder) == (later, {LIST: 3})
    # Another table at the same place, a lost commit, and a table that is gone.
    remove_folder(orders)
    for _ in range(4):
        write_deltalake(str(orders), rows, mode="append")
    other, _ = swept(folder)
    assert other == watched([orders], TimeColumnRequest(), 0) != later
    log = orders / "_delta_log"
    commit = (log / f"{3:020d}.json").read_bytes()
    (log / f"{3:020d}.json").unlink()
    assert [history.version for history in swept(folder)[0] if isinstance(history, History)] == [2]
    (log / f"{4:020d}.json").write_bytes(commit)
    (damaged,), _ = swept(folder)
    assert isinstance(damaged, Unreadable)
    assert damaged.found == "it is missing, and no checkpoint has what it did"
    remove_folder(orders)
    write_deltalake(str(orders / "below"), rows)
    (below,), _ = swept(folder)
    assert isinstance(below, History)
    assert below.path == orders / "below"
    remove_folder(orders)
    (without,), _ = swept(folder)
    assert isinstance(without, Unreadable)
    assert without.found == "there is no Delta table at or below it"
