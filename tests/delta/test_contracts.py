"""Each violation of a table's contract counts once, and nothing else."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from support.play import NOON, Play
from support.topologies import aggregate, sink, source, table, topology_of
from tidemark.clock import wall_clock_ms
from tidemark.control.folder import StreamState
from tidemark.kernels.columns.schemas import arrow_schema, rows_of
from tidemark.model import topology
from tidemark.model.checks import words
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval
from tidemark.model.tables.catalog import (
    BATCHES,
    CHANGES,
    COUNTED,
    HEARTBEATS,
    OPERATOR_BATCHES,
    SLA_RESULTS,
    SUPPRESSED,
    TABLES,
    Table,
)
from tidemark.sla.contracts import counts
from tidemark.sla.contracts.periods import JudgedBefore
from tidemark.storage.delta.log import TableLog, add_action
from tidemark.storage.delta.tables import Committer, create
from tidemark.storage.fence import Fence
from tidemark.storage.files import MERGED, stats_of, write_parquet

NOW = 1_770_000_000_000
HOUR = Interval(NOW - 3_600_000, NOW)
TOPOLOGY = topology.parse(
    {
        "name": "t",
        "operators": {
            "events": source(
                "id string", sub_topology="s", timestamp_range=["2000-01-01", "2100-01-01"], bound="3 s", max_ahead=None
            ),
            "latest": table(),
            "board": {"kind": "sink", "input": "latest", "table": "board", "mode": "current", "key": ["id"]},
        },
    },
    file="t.toml",
)
LATE = topology_of(
    {"window": "10 s"},
    events=source(),
    counts=aggregate(key=["id"], aggregates={"n": "count(*)"}, window={"tumbling": "10 s"}, allowed_lateness="5 s"),
    out=sink("counts", table="out"),
)
LATEST = {"batch_id": 7, "operator": "latest", "kind": "table"}
ZERO = dict.fromkeys(COUNTED, 0)
FINE = {**LATEST, **ZERO, "records_in": 5, "emitted": 3, "suppressed": 2}
BAD = {"batch_id": 7, "operator": "events", "kind": "quarantined", "reason": "null_key"}
PROOF = {"batch_id": 7, "operator": "latest", "key": "a", "n": 2, "first_offset": 4, "last_offset": 9}
WINDOW = {"topology": "t", "window_start": NOW - 65_000, "window_end": NOW - 60_000}
PATH = {**WINDOW, "latency_ms": 300, "before_source_ms": 10_000}
STEPS = [
    {**WINDOW, "operator": name, "step": step, "latency_ms": ms, "state": "measured"}
    for name, step, ms in (("events", 0, 0), ("latest", 1, 300), ("off_the_path", None, 9_000))
]
OFFSET = {
    "host": "h",
    "estimated_at": None,
    "offset_ms": -3,
    "error_ms": 2,
    "samples": 5,
    "reference": "brokers",
}
BEAT = {"beat_at": NOW, "state": "running", "clock_offsets": [OFFSET]}
RAN = {"topology": "t", "run_id": "r", "sla": "fresh", "checked_at": NOW - 1, "verdict": "pass", "severity": "critical"}


def write(warehouse: Any, **rows: Any) -> None:
    """A batch that was finished in the hour, and *rows* by table."""
    warehouse.write(BATCHES, [{"batch_id": 7, "finished_at": NOW - 1_000, "records_in": 5, "level": "info"}])
    for name, written in rows.items():
        warehouse.write(TABLES[name], written)


def found(warehouse: Any, table: str, over: Interval = HOUR) -> counts.ContractCounts:
    (one,) = (each for each in counts.judge_contracts(warehouse.layout, TOPOLOGY, over) if each.table == table)
    return one


def broken(warehouse: Any, table: str) -> dict[str, int]:
    return {name: n for name, n in found(warehouse, table).counts.items() if n}


def test_rows_as_declared_break_no_contract(warehouse):
    write(warehouse, operator_batches=[FINE], suppressed=[PROOF], critical_paths=[PATH], critical_path_steps=STEPS)

    judged = {each.table: each for each in counts.judge_contracts(warehouse.layout, TOPOLOGY, HOUR)}

    assert {name: (each.rows, sum(each.counts.values())) for name, each in judged.items()} == {
        "batches": (1, 0), "operator_batches": (1, 0), "suppressed": (1, 0), "critical_paths": (1, 0),
        "critical_path_steps": (3, 0),
    }  # fmt: skip
    assert all(not any(each.schema.values()) for each in judged.values())
    assert (
        judged["operator_batches"].version,
        judged["operator_batches"].batch_id,
        judged["critical_paths"].batch_id,
    ) == (1, 7, None)


@pytest.mark.parametrize(
    ("table", "rows", "rule", "culprit"),
    [
        ("operator_batches", [FINE, FINE], "duplicate_keys", "latest"),
        ("operator_batches", [{**FINE, "records_in": -5, "held_before": 10}], "negative_counts", "latest"),
        ("operator_batches", [{**FINE, "emitted": 4}], "not_adding_up", "latest"),
        ("operator_batches", [{**FINE, "suppressed": 3, "emitted": 2}], "not_adding_up", "latest"),
        (
            "operator_batches",
            [{**FINE, "n": 1, "min_ms": 5, "max_ms": 4, "tasks": [{"n": 1}]}],
            "not_adding_up",
            "latest",
        ),
        ("operator_batches", [{**FINE, "n": 3, "tasks": [{"n": 1}, {"n": 1}]}], "not_adding_up", "latest"),
        ("operator_batches", [{**FINE, "disorder": [{"bucket": 0, "n": -1}]}], "negative_counts", "latest"),
        (
            "operator_batches",
            [{**FINE, "tasks": [{"shard": 0}, {"partition": 1, "idempotent_update_skip_total": -1}]}],
            "negative_counts",
            "latest",
        ),
        ("operator_windows", [{**LATEST, "window_start": NOW, "window_end": NOW}], "not_adding_up", "latest"),
        ("partition_batches", [{"batch_id": 7, "source": "events", "activity": "asleep"}], "unknown_words", "events"),
        ("partition_batches", [{"batch_id": 7, "source": "events", "until_offset": -1}], "negative_counts", "events"),
        ("partition_batches", [{"batch_id": 7, "source": "events", "lost_from_offset": 1}], "not_adding_up", "events"),
        ("changes", [{"batch_id": 7, "operator": "latest", "seq": 0, "value": "{}"}], "not_adding_up", "latest"),
        ("dead_letters", [{**BAD, "reason": "bad_luck"}], "unknown_words", "events"),
        ("dead_letters", [{**BAD, "kind": "lost", "reason": None}], "unknown_words", "events"),
        ("dead_letters", [{**BAD, "kind": "late"}], "not_adding_up", "events"),
        (
            "heartbeats",
            [BEAT, {**BEAT, "beat_at": NOW - 1, "clock_offsets": [{**OFFSET, "error_ms": -1}]}],
            "negative_counts",
            None,
        ),
        ("critical_paths", [{**PATH, "latency_ms": 301}], "not_adding_up", None),
        ("sla_results", [RAN, RAN], "duplicate_keys", None),
    ],
)
def test_each_rule_finds_its_violation_and_names_the_operator(warehouse, table, rows, rule, culprit):
    write(warehouse, suppressed=[PROOF], critical_path_steps=STEPS)
    if table != "critical_paths":
        write(warehouse, critical_paths=[PATH])
    write(warehouse, **{table: rows})

    judged = found(warehouse, table)
    assert {name: n for name, n in judged.counts.items() if n} == {rule: 1}
    assert judged.culprit == culprit


def test_evidence_without_a_skip_breaks_a_rule(warehouse):
    write(warehouse, operator_batches=[FINE], suppressed=[PROOF, {**PROOF, "operator": "nobody"}])

    assert broken(warehouse, "operator_batches") == {"not_adding_up": 1}
    assert found(warehouse, "operator_batches").culprit == "nobody"
    assert json.loads(str(found(warehouse, "operator_batches").example)) == {"batch_id": 7, "operator": "nobody"}


def test_two_current_rows_of_one_key_break_a_rule(warehouse):
    write(warehouse)
    at = pl.lit(NOW).cast(pl.Datetime("ms", "UTC")).cast(pl.Datetime("us", "UTC"))
    rows = pl.DataFrame({"id": ["a", "b", "a"]}).with_columns(
        timestamp=at,
        batch_id=pl.Series([3, 7, 7], dtype=pl.Int64),
        source_partition=pl.lit(0, pl.Int32),
        source_offset=pl.lit(3, pl.Int64),
    )
    write_deltalake(warehouse.layout.stream_table("t", "s", "board"), rows.to_arrow())

    assert (broken(warehouse, "board"), found(warehouse, "board").rows) == ({"duplicate_keys": 1}, 3)
    assert found(warehouse, "board").batch_id == 7


def test_rows_outside_of_the_interval_are_not_judged(warehouse):
    write(warehouse, operator_batches=[FINE, FINE])

    later, ended = Interval(NOW, NOW + 3_600_000), Interval(NOW - 3_600_000, NOW - 1_000)
    assert [found(warehouse, "operator_batches", over).counts for over in (later, ended)] == [{}, {}]


def test_reports_are_judged_by_the_time_of_arrival(warehouse):
    began_ms = wall_clock_ms()
    write(warehouse, sla_results=[{**RAN, "checked_at": 0}] * 2)

    assert found(warehouse, "sla_results", Interval(began_ms, began_ms + 1)).counts["duplicate_keys"] == 1
    assert found(warehouse, "sla_results", Interval(wall_clock_ms() + 1, NOW * 2)).counts == {}


def test_an_allowed_late_record_may_close_its_window_again(tmp_path):
    play = Play(LATE, tmp_path)
    for batch, second in enumerate((1, 13, 3, 30)):
        play.batch([play.row("events", NOON + second * 1_000, id="a", v=1)], at_ms=NOON + 100_000 + batch)

    found = counts.judge_contracts(Layout(tmp_path), play.topology, Interval(NOON, NOON + 200_000))
    assert next(each.rows for each in found if each.table == "operator_windows") > 0
    assert {each.table: each.counts for each in found if any(each.counts.values())} == {}


@pytest.mark.parametrize(
    ("columns", "schema"),
    [
        ({"batch_id": pl.String}, {"wrong_types": 1, "missing_columns": 0, "unreadable": 0}),
        ({"kind": None, "filtered": None}, {"wrong_types": 0, "missing_columns": 2, "unreadable": 0}),
    ],
)
def test_a_table_is_judged_only_by_its_own_columns(warehouse, columns, schema):
    write(warehouse)
    frame = pl.DataFrame(rows_of(TABLES["operator_batches"], [{"topology": "t", "sub_topology": "s", **FINE}]))
    frame = frame.drop([name for name, kind in columns.items() if kind is None])
    frame = frame.cast({name: kind for name, kind in columns.items() if kind is not None})
    write_deltalake(warehouse.layout.stream_table("t", "s", "operator_batches"), frame.to_arrow())

    one = found(warehouse, "operator_batches")

    assert (one.schema, one.counts) == (schema, {})
    assert set(columns) == {name for names in json.loads(str(one.example)).values() for name in names}


@pytest.mark.parametrize("torn", ["_delta_log/*.json", "*.parquet"])
@pytest.mark.parametrize("table", ["batches", "operator_batches", "suppressed"])
def test_an_unreadable_table_is_reported_and_the_check_continues(warehouse, table, torn):
    write(warehouse, operator_batches=[FINE], suppressed=[PROOF], sla_results=[RAN])
    for file in warehouse.layout.stream_table("t", "s", table).glob(torn):
        file.write_bytes(b"{")

    judged = counts.judge_contracts(warehouse.layout, TOPOLOGY, HOUR)
    assert [each.table for each in judged if each.schema["unreadable"]] == [table]
    assert {each.table: each.counts for each in judged if any(each.counts.values())} == {}


def test_contracts_know_every_state_of_a_driver():
    assert set(words(HEARTBEATS, "state")) == set(StreamState)


@pytest.mark.parametrize("table", [*TABLES.values()], ids=lambda table: table.name)
def test_keys_and_conditions_of_contracts_use_existing_columns(warehouse, table):
    write(warehouse, **{table.name: [{}]})

    assert set(table.key) <= set(table.names)
    found(warehouse, table.name, Interval(0, NOW * 10))


MINUTE = 60_000
BOARD = pa.schema(
    [
        pa.field("id", pa.string()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("batch_id", pa.int64()),
        pa.field("source_partition", pa.int32()),
        pa.field("source_offset", pa.int64()),
    ]
)


class Checked:
    """A stream's tables in *home*, whose files are as old as they say, and the checks of their contracts."""

    def __init__(self, home: Path) -> None:
        self.layout = Layout(home)
        self.before: dict[tuple[str | None, str], JudgedBefore] = {}

    def path(self, name: str) -> Path:
        if name in TABLES and TABLES[name].written_by == "report":
            return self.layout.report_table("t", name)
        return self.layout.stream_table("t", "s", name)

    def add(self, table: Table, rows: Sequence[Mapping[str, Any]], at_ms: int) -> None:
        of_stream = {"topology": "t"} | ({"sub_topology": "s"} if table.written_by == "stream" else {})
        create(self.path(table.name), arrow_schema(table))
        self.put(table.name, rows_of(table, [{**of_stream, **row} for row in rows]), at_ms)

    def put(self, name: str, rows: pa.Table, at_ms: int, *, prefix: str = "part-") -> None:
        """Adds a file with *rows* that was written at *at_ms*."""
        file = self.path(name) / f"{prefix}{uuid.uuid4().hex}.parquet"
        size = write_parquet(file, rows)
        action = add_action(file.name, size, at_ms, json.dumps(stats_of(pl.DataFrame(rows))))
        TableLog(self.path(name), "").append([action], None, {})

    def batch(self, batch_id: int, at_ms: int, *, changes: int = 2, **outcomes: int) -> None:
        """Writes a batch that was decided a second before *at_ms*, when it was finished."""
        of_batch = {"batch_id": batch_id, "operator": "latest", "decided_at": at_ms - 1_000}
        self.add(CHANGES, [{**of_batch, "seq": seq} for seq in range(changes)], at_ms)
        self.add(SUPPRESSED, [{**PROOF, **of_batch}], at_ms)
        self.add(OPERATOR_BATCHES, [{**FINE, **of_batch, **outcomes}], at_ms)
        finished = {"batch_id": batch_id, "decided_at": at_ms - 1_000, "finished_at": at_ms, "level": "info"}
        self.add(BATCHES, [finished], at_ms)

    def board(self, *ids: str | None) -> pa.Table:
        rows = [{"id": each, "batch_id": 7, "source_partition": 0, "source_offset": 3} for each in ids]
        return pa.Table.from_pylist(rows, schema=BOARD)

    def check(self, at_ms: int, *, whole: bool = False) -> dict[str, counts.ContractCounts]:
        over = Interval(at_ms - 60 * MINUTE, at_ms)
        judged = counts.judge_contracts(self.layout, TOPOLOGY, over, self.before, whole=whole)
        for each in judged:
            if each.is_sound and each.version is not None:
                self.before[each.sub_topology, each.table] = JudgedBefore(at_ms, each.version, each.batch_id)
        return {each.table: each for each in judged}

    def spoil(self) -> None:
        """Makes all data files unreadable that are there now."""
        for file in self.layout.warehouse.rglob("*.parquet"):
            file.write_bytes(b"nobody reads this")


@pytest.fixture
def checked(tmp_path: Path) -> Checked:
    return Checked(tmp_path)


def told(judged: Mapping[str, counts.ContractCounts]) -> dict[str, tuple[int, dict[str, int]]]:
    """Returns the number of judged rows, and what is broken, of the tables with judged rows."""
    assert not any(any(each.schema.values()) for each in judged.values()), judged
    return {
        name: (each.rows, {rule: n for rule, n in each.counts.items() if n})
        for name, each in judged.items()
        if each.rows
    }


def test_a_check_without_news_opens_no_file_of_rows(checked):
    checked.batch(7, NOW - 2 * MINUTE)
    checked.add(SLA_RESULTS, [RAN], NOW - 2 * MINUTE)
    create(checked.path("board"), BOARD)
    checked.put("board", checked.board("a", "b"), NOW - 2 * MINUTE, prefix=MERGED)
    first = checked.check(NOW)
    assert told(first) == {
        "batches": (1, {}), "operator_batches": (1, {}), "suppressed": (1, {}), "changes": (2, {}), "board": (2, {}),
        "sla_results": (1, {}),
    }  # fmt: skip
    checked.spoil()

    assert told(checked.check(NOW + 10 * MINUTE)) == {}


def test_a_check_reads_the_rows_of_new_batches_alone(checked):
    checked.batch(7, NOW - 5 * MINUTE)
    checked.check(NOW)
    checked.spoil()
    checked.batch(8, NOW + MINUTE, changes=3)
    checked.batch(9, NOW + 2 * MINUTE, emitted=4)

    found = checked.check(NOW + 10 * MINUTE)

    assert told(found) == {
        "batches": (2, {}),
        "operator_batches": (2, {"not_adding_up": 1}),
        "suppressed": (2, {}),
        "changes": (5, {}),
    }
    assert json.loads(str(found["operator_batches"].example)) == {"batch_id": 9, "operator": "latest"}


def test_a_batch_that_takes_longer_than_a_check_to_come_is_judged_as_a_whole(checked):
    checked.batch(7, NOW - 1_000)
    slow = {"batch_id": 8, "operator": "latest", "decided_at": NOW + 1_000}
    checked.add(CHANGES, [{**slow, "seq": 0}], NOW + 2_000)
    checked.check(NOW + 10 * MINUTE)
    checked.add(CHANGES, [{**slow, "seq": 0}], NOW + 21 * MINUTE)
    finished = {"batch_id": 8, "decided_at": NOW + 1_000, "finished_at": NOW + 22 * MINUTE, "level": "info"}
    checked.add(BATCHES, [finished], NOW + 22 * MINUTE)

    assert told(checked.check(NOW + 25 * MINUTE))["changes"] == (2, {"duplicate_keys": 1})


def test_rows_that_others_add_to_a_judged_batch_are_judged_with_it(checked):
    checked.batch(6, NOW - 50 * MINUTE)
    checked.batch(7, NOW - 5 * MINUTE)
    checked.check(NOW)
    path = checked.path("changes")
    batch = DeltaTable(str(path)).to_pyarrow_table(filters=[("batch_id", "=", 7), ("seq", "=", 1)])
    write_deltalake(path, batch, mode="append")

    found = checked.check(NOW + 10 * MINUTE)

    assert told(found) == {"changes": (3, {"duplicate_keys": 1})}
    assert json.loads(str(found["changes"].example)) == {"batch_id": 7, "operator": "latest", "seq": 1}
    assert told(checked.check(NOW * 2)) == {}  # each row once


def test_a_proof_that_comes_without_its_skip_breaks_the_sum_of_a_judged_batch(checked):
    checked.batch(7, NOW - 5 * MINUTE)
    checked.check(NOW)
    checked.add(SUPPRESSED, [{**PROOF, "decided_at": NOW - 5 * MINUTE}], NOW + MINUTE)

    assert told(checked.check(NOW + 10 * MINUTE))["operator_batches"] == (1, {"not_adding_up": 1})


def test_a_merge_is_keyed_and_files_of_others_are_compared_with_the_whole_table(checked):
    checked.batch(7, NOW - 5 * MINUTE)
    create(checked.path("board"), BOARD)
    checked.put("board", checked.board("a", "b", None), NOW - 5 * MINUTE, prefix=MERGED)
    assert told(checked.check(NOW))["board"] == (3, {})
    new = checked.board("a", "c").append_column("deleted", pa.array([False, False]))
    Committer("t/s", Fence(clock=lambda: NOW)).upsert(checked.path("board"), new, 8, key=["id"])
    assert told(checked.check(NOW + 10 * MINUTE))["board"] == (4, {})  # in the file that the merge wrote

    write_deltalake(checked.path("board"), checked.board("c", "d", None), mode="append")
    found = checked.check(NOW + 20 * MINUTE)
    assert told(found)["board"] == (5, {"duplicate_keys": 2})
    assert json.loads(str(found["board"].example)) == {"id": "c"}


def test_what_others_do_to_a_table_with_current_rows_does_not_hide_a_repeated_key(checked):
    checked.batch(7, NOW - 5 * MINUTE)
    path = checked.path("board")
    create(path, BOARD)
    checked.put("board", checked.board("a", "b"), NOW - 5 * MINUTE, prefix=MERGED)
    checked.check(NOW)
    rows = []
    for minute, change in enumerate(
        (
            lambda table: write_deltalake(table, checked.board("b", "c"), mode="append"),
            lambda table: table.delete("id = 'c'"),
            lambda table: table.optimize.compact(),
            lambda table: table.restore(1),
            lambda table: write_deltalake(table, checked.board("a"), mode="append"),
        ),
        1,
    ):
        change(DeltaTable(str(path)))
        rows.append(told(checked.check(NOW + minute * 10 * MINUTE)).get("board"))
    twice = {"duplicate_keys": 1}
    assert rows[0] == (3, twice)
    assert rows[1][1] == rows[2][1] == twice
    assert rows[4] == (2, twice)  # after the restore the table has each key once, and then `a` came again


def test_once_a_day_keys_without_a_batch_are_compared_in_whole_tables(checked):
    checked.batch(7, NOW - 5 * MINUTE)
    create(checked.path("board"), BOARD)
    checked.put("board", checked.board("a", "b", "a"), NOW - 5 * MINUTE, prefix=MERGED)
    checked.add(SLA_RESULTS, [RAN], NOW - 300 * MINUTE)
    assert told(checked.check(NOW))["board"] == (3, {})
    checked.add(SLA_RESULTS, [RAN], NOW + MINUTE)
    assert told(checked.check(NOW + 10 * MINUTE)) == {"sla_results": (1, {})}

    found = told(checked.check(NOW + 20 * MINUTE, whole=True))

    assert found == {"board": (3, {"duplicate_keys": 1}), "sla_results": (2, {"duplicate_keys": 1})}
