"""A warehouse with results that were worked out by hand is read, continued and maintained.

`support/golden_warehouse.py` writes it, and describes its records. In *stopped* a driver was killed in the middle of a
batch; if there is an archive of the present format, that warehouse comes from it.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

import maintain
from support.command_line import tidemark
from support.golden_warehouse import (
    ARCHIVE,
    BATCHES,
    BATCHES_DECIDED,
    OFFSETS,
    OFFSETS_DECIDED,
    TOPOLOGY,
    interrupt,
    last_records,
    record,
    records,
    write,
)
from support.play import NOON, Play, ms
from support.traced import KeptRecords
from tidemark.model.project.layout import Layout
from tidemark.query.sql import Warehouse
from tidemark.trace.outcomes import RecordPosition


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of a warehouse that no test changes."""
    home = tmp_path_factory.mktemp("golden")
    write(home)
    return home


@pytest.fixture
def play(golden: Path, tmp_path: Path) -> Play:
    """Returns what goes on with a copy of the warehouse, as a new driver does."""
    home = shutil.copytree(golden, tmp_path / "golden")
    play = Play((home / TOPOLOGY).read_text(), home / "warehouse")
    play.resume(BATCHES, OFFSETS)
    return play


@pytest.fixture(scope="module")
def stopped(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of a warehouse whose driver was killed in a batch; no test changes it."""
    home = tmp_path_factory.mktemp("stopped")
    if ARCHIVE.exists():
        with tarfile.open(ARCHIVE) as archive:
            archive.extractall(home, filter="data")
        return home
    shutil.copytree(golden, home, dirs_exist_ok=True)
    interrupt(home)
    return home


def seconds(at: Any) -> int:
    return round(at.timestamp() - NOON / 1_000)


def windows(rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted((id_, seconds(start), n, total) for id_, start, n, total in rows)


def test_tables_have_the_results(golden: Path) -> None:
    warehouse = Warehouse(golden / "warehouse")
    assert sorted(warehouse.ask("select id, v from board").rows) == [("a", 6), ("b", 9), ("c", 1)]
    assert windows(warehouse.ask("select id, window_start, n, total from minutes").rows) == [
        ("a", 0, 1, 5), ("a", 0, 2, 10), ("a", 10, 1, 6), ("b", 0, 1, 7), ("c", 20, 1, 1),
    ]  # fmt: skip
    # The watermark is 20 s less the bound of 3 s and 1 ms, and the record is of second 4.
    assert [*warehouse.ask("select key, lateness_ms from late_records").rows] == [("b", 12_999)]
    assert [*warehouse.ask("select reason from quarantine").rows] == [("malformed_json",)]
    assert [*warehouse.ask("select id, v from all_log order by timestamp").rows] == [
        ("a", 5), ("b", 7), ("a", 5), ("b", 9), ("a", 6), ("c", 1),
    ]  # fmt: skip
    # Only records above 5 are rated. The rate of b was not read yet when b 7 came.
    assert sorted(warehouse.ask("select v, id, rate from rated_log").rows) == [
        (6, "a", 10),
        (7, "b", None),
        (9, "b", 20),
    ]
    # The second a 5 changes nothing but the event time, so the table does not send it on.
    counts = "select operator, sum(emitted), sum(suppressed) from operator_batches"
    judging = f"{counts} where operator in ('newest', 'by_id') group by operator"
    assert sorted(warehouse.ask(judging).rows) == [("by_id", 5, 0), ("newest", 5, 1)]


def test_views_and_reports_have_the_results(golden: Path) -> None:
    warehouse = Warehouse(golden / "warehouse")
    states = warehouse.ask("select key, value from latest_state where operator = 'ever'").rows
    assert sorted((key, json.loads(value)["total"]) for key, value in states) == [("a", 6), ("b", 9), ("c", 1)]
    # The window from 0 to 10 is complete with the third batch, at 32 s, and in the other stream at 42 s.
    path = "select leaf, latency_ms, before_source_ms from critical_paths where window_start = '2014-05-13 12:00:00Z'"
    assert [*warehouse.ask(path).rows] == [("ever_board", 10_000, 22_000)]
    rollup = "select n from latency_rollup where operator = 'board' and grain = 'hour' and scope = 'operator'"
    assert [*warehouse.ask(rollup).rows] == [(5,)]


def test_commands_read_the_warehouse(golden: Path) -> None:
    at = ("--warehouse", str(golden / "warehouse"))
    asked = tidemark(golden, *at, "sql", "--format", "csv", "select id, v from board order by id")
    assert asked == (0, "id,v\na,6\nb,9\nc,1\n", "")
    why = tidemark(golden, *at, "why", str(golden / TOPOLOGY), "--at", "2014-05-13T12:01:00Z", "--format", "json")
    causes = [(cause["cause"], cause["operator"]) for cause in json.loads(why.stdout)]
    # The newest record, b 9, is none of the small ones.
    sinks = ("board", "out", "minutes", "rated_log", "ever_board")
    # One record could not be read and one came after its window; each is told once, for all tables behind its operator.
    remarks = [("set_aside", "events"), ("set_aside", "counts")]
    assert causes == [("all_filtered", "small"), *(("nothing_wrong", sink) for sink in sinks), *remarks]


def test_a_driver_continues_the_warehouse(play: Play) -> None:
    # The window from 20 to 30 has c 1 from before.
    play.batch([record(play, "c", 2, 22), record(play, "a", 8, 35)], at_ms=ms(50))
    play.hop("by_id", at_ms=ms(60))
    play.settle()
    warehouse = Warehouse(play.home)
    new = warehouse.ask("select id, window_start, n, total from minutes where batch_id >= 4").rows
    assert windows(new) == [("a", 30, 1, 8), ("c", 20, 2, 3)]
    assert sorted(warehouse.ask("select id, v from board").rows) == [("a", 8), ("b", 9), ("c", 2)]
    ever = warehouse.ask("select id, total from ever_board where batch_id >= 4").rows
    assert sorted(ever) == [("a", 8), ("c", 2)]


def test_the_tables_of_a_killed_driver_have_what_it_committed(stopped: Path) -> None:
    """Facts of the batch before wait in its journal."""
    warehouse = Warehouse(stopped / "warehouse")
    newest = (
        "select batch_id, key, value from changes where operator = 'newest' and batch_id >= 4 order by batch_id, key"
    )
    assert [(batch, key, json.loads(value)["v"]) for batch, key, value in warehouse.ask(newest).rows] == [
        (4, "a", 8), (4, "c", 2), (5, "b", 11),
    ]  # fmt: skip
    assert sorted(warehouse.ask("select id, v from board").rows) == [("a", 8), ("b", 9), ("c", 2)]
    facts = "select records_in, emitted from operator_batches where operator = 'newest' and batch_id >= 4"
    assert [*warehouse.ask(facts).rows] == [(2, 2)]
    path = Layout(stopped / "warehouse").stream_table("golden", "events", "operator_batches")
    assert DeltaTable(str(path)).to_pyarrow_dataset().count_rows(filter=pc.field("batch_id") >= 4) == 0


def test_a_record_of_a_killed_driver_is_traced(stopped: Path) -> None:
    play = Play((stopped / TOPOLOGY).read_text(), stopped / "warehouse")
    kept = KeptRecords(play)
    for rows in records(play):
        kept.keep(*rows)
    # The second record: b 7 at 2.
    found = kept.tracer().trace(RecordPosition("events", 0, 1))
    results = {result.operator: result.outcome.value for result in found.results}
    assert {name: results[name] for name in ("newest", "counts", "small", "large", "rated")} == {
        "newest": "emitted", "counts": "emitted", "small": "filtered", "large": "passed", "rated": "passed",
    }  # fmt: skip


def test_the_wait_for_the_killed_driver_is_explained(stopped: Path) -> None:
    at = ("--warehouse", str(stopped / "warehouse"))
    why = tidemark(stopped, *at, "why", str(stopped / TOPOLOGY), "--at", "2014-05-13T12:01:00Z", "--format", "json")
    causes = [(cause["cause"], cause["operator"]) for cause in json.loads(why.stdout)]
    # Six operators wait for it, and it is told of the first one.
    assert causes == [("driver_restarted", "board")]


def test_the_next_driver_ends_the_batch(stopped: Path, tmp_path: Path) -> None:
    home = shutil.copytree(stopped, tmp_path / "stopped")
    play = Play((home / TOPOLOGY).read_text(), home / "warehouse")
    play.resume(BATCHES_DECIDED, OFFSETS_DECIDED)
    play.start(epoch=3)
    play.batch(last_records(play), at_ms=ms(60))
    play.hop("by_id", at_ms=ms(61))
    play.settle()
    warehouse = Warehouse(play.home)
    assert [
        *warehouse.ask("select key, count(*) from changes where batch_id = 5 and operator = 'newest' group by key").rows
    ] == [("b", 1)]
    assert sorted(warehouse.ask("select id, v from board").rows) == [("a", 8), ("b", 11), ("c", 2)]
    of_newest = "from operator_batches where operator = 'newest' and batch_id >= 4"
    counts = f"select batch_id, records_in, emitted {of_newest} order by 1"
    assert [*warehouse.ask(counts).rows] == [(4, 2, 2), (5, 1, 1)]
    ever = "select key, value from latest_state where operator = 'ever'"
    totals = {key: json.loads(value)["total"] for key, value in warehouse.ask(ever).rows}
    assert totals == {"a": 8, "b": 11, "c": 2}


def test_maintenance_keeps_the_rows(play: Play) -> None:
    before, files_before = counted(play.home), files(play.home)
    # Soon after the last write: later, the retention removes rows.
    written_ms = max(DeltaTable(str(path)).history(1)[0]["timestamp"] for path in tables(play.home))
    maintain.run(Layout(play.home), play.topology, now_ms=written_ms + 10_000, closed_after_ms=0)
    after = counted(play.home)
    assert {name: after[name] for name in before} == before
    assert files(play.home) < files_before
    assert sorted(Warehouse(play.home).ask("select id, v from board").rows) == [("a", 6), ("b", 9), ("c", 1)]


def counted(home: Path) -> dict[str, int]:
    return {str(path.relative_to(home)): DeltaTable(str(path)).count() for path in tables(home)}


def files(home: Path) -> int:
    return sum(len(DeltaTable(str(path)).file_uris()) for path in tables(home))


def tables(home: Path) -> Iterator[Path]:
    for pattern in ("streams/*/*/*/_delta_log", "reports/*/*/_delta_log"):
        for log in sorted(home.glob(pattern)):
            yield log.parent
