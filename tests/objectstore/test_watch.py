"""Tables in an object store are watched as those on a disk."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from objectstore.counting import GET, LIST, Requests

from tidemark.watch.commits import Unreadable
from tidemark.watch.reading import find_tables, watched
from tidemark.watch.rules import table_age
from tidemark.watch.statistics import Asked


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
    found = watched([warehouse], Asked(), 0)
    counted = requests.since_last()
    # Each commit is a request. Each of five folders is looked at for a log; then three are listed, and two logs.
    assert counted == {GET: 4, LIST: 10}
    newest_ms = int(at.timestamp() * 1_000)
    for history in found:
        assert not isinstance(history, Unreadable)
        age = table_age(history, now_ms=newest_ms + 10, since_ms=0, limit_ms=None).age
        assert age == (9, 10)
    (by_day / "_delta_log" / f"{0:020d}.json").unlink()
    (of_checkpoint,) = watched([by_day], Asked(), 0)
    assert not isinstance(of_checkpoint, Unreadable)
    assert (of_checkpoint.commits, len(of_checkpoint.base)) == ((), 1)
