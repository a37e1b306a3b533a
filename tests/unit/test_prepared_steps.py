"""A process prepares a topology once, and opens one database."""

from __future__ import annotations

import tomllib

import duckdb
import polars as pl
import pytest

from support.topologies import aggregate, operators, source, topology_of
from tidemark.kernels.sql import expressions
from tidemark.model.topology import Topology, parse
from tidemark.stream.operate.steps import Steps
from tidemark.stream.updates.step import OperatorStep

EVENTS = topology_of(events=source("id string, v int", max_ahead=None))
COUNTS = EVENTS + operators(counts=aggregate(key=["id"], aggregates={"n": "count(*)"}))
JOINED = EVENTS + operators(x={"kind": "join", "input": "events", "delta": "names", "on": {"id": "id"}})


def topology(toml: str) -> Topology:
    return parse(tomllib.loads(toml), file="play.toml")


def test_operators_run_over_no_records_once_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    own_name = topology(COUNTS.replace('"play"', '"prepared"'))
    first = Steps(own_name, lambda place: pl.DataFrame())
    asked: list[str] = []
    really = OperatorStep.schema
    monkeypatch.setattr(OperatorStep, "schema", lambda step: asked.append(step.operator.name) or really(step))
    later = Steps(own_name, lambda place: pl.DataFrame())
    assert asked == []
    assert later.schemas == first.schemas
    assert later.schemas["counts"]["n"] == pl.Int64()
    # Each has a memory of its own.
    assert [*later.memory.states] == [*first.memory.states] == ["counts"]
    assert later.memory.states["counts"] is not first.memory.states["counts"]
    Steps(topology(COUNTS.replace("count(*)", "max(v)")), lambda place: pl.DataFrame())
    assert asked == ["counts"]


def test_columns_of_a_joined_delta_table_are_read_each_time() -> None:
    joined = topology(JOINED)
    for column in ("name", "town"):
        names = pl.DataFrame({"id": ["a"], column: ["b"]})
        assert column in Steps(joined, lambda place, names=names: names).schemas["x"]


def test_a_connection_sees_only_its_own_records() -> None:
    one, other = expressions._connection(), expressions._connection()
    for connection, value in ((one, 1), (other, 2)):
        connection.register("records", pl.DataFrame({"v": [value]}).to_arrow())
    assert one.execute("SELECT v FROM records").fetchall() == [(1,)]
    assert other.execute("SELECT v FROM records").fetchall() == [(2,)]


def test_sql_of_a_topology_has_no_files_and_cannot_ask_for_them() -> None:
    connection = expressions._connection()
    for statement in ("SET enable_external_access = true", "SET TimeZone = 'Europe/Berlin'"):
        with pytest.raises(duckdb.InvalidInputException, match="the configuration has been locked"):
            connection.execute(statement)
    with pytest.raises(duckdb.PermissionException, match="disabled"):
        connection.execute("SELECT * FROM read_csv('/etc/passwd')")
    assert connection.execute("SELECT current_setting('TimeZone')").fetchall() == [("UTC",)]
