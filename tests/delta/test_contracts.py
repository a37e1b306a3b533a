"""Each violation of a table's contract counts once, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import pytest
from deltalake import write_deltalake

from support.play import NOON, Play
from support.topologies import aggregate, sink, source, table, topology_of
from tidemark.clock import wall_clock_ms
from tidemark.control.folder import StreamState
from tidemark.kernels.columns.schemas import rows_of
from tidemark.model import topology
from tidemark.model.checks import words
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval
from tidemark.model.tables.catalog import BATCHES, COUNTED, HEARTBEATS, TABLES
from tidemark.sla.contracts import counts

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
        ("operator_batches", [{**FINE, "kind": "filter"}], "unknown_words", "latest"),
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
