from __future__ import annotations

import pytest

from tidemark.model.slas.sla_spec import parse
from tidemark.model.topology import parse as parse_topology
from tidemark.reports.batch_job import topology
from tidemark.reports.outline import outline

FLIGHTS = topology("flights")


def slas(**tables):
    each = {name: {"owner": "o", "measure": "latency_p99", **table} for name, table in tables.items()}
    return parse({"flights": each}, FLIGHTS, file="slas.toml")


def test_a_path_crosses_repartitions_and_passes_tables_of_joins():
    assert outline(FLIGHTS, ()).paths == {
        "flight_board": "flight_events → flight_updates → flight_status → flight_weather → flight_board",
        "carrier_delays": "flight_events → flight_updates → flight_status → flight_weather → by_carrier "
        "→ carrier_state → carrier_delays",
    }


def test_a_table_that_nobody_reads_ends_a_path():
    source = {"kind": "source", "topic": "e", "fields": "id string, at bigint", "timestamp": "at", "bound": "0 s"}
    table = {"kind": "table", "input": "events", "key": ["id"]}
    small = parse_topology({"name": "small", "operators": {"events": source, "newest": table}}, file="small.toml")

    assert outline(small, ()).paths == {"newest": "events → newest"}


@pytest.mark.parametrize(
    ("tables", "promised"),
    [
        ({"one": {"warn_after": "1 s"}}, {"flight_board": 1_000}),
        ({"one": {"warn_after": "1 s", "error_after": "2 s"}}, {"flight_board": 2_000}),
        (
            {"one": {"error_after": "3 s"}, "two": {"error_after": "2 s", "measure": "latency_p50"}},
            {"flight_board": 2_000},
        ),
        ({"one": {"error_after": "3 s", "measure": "operator_latency_p50"}}, {}),
    ],
)
def test_an_operator_promises_the_tightest_of_its_latency_slas(tables, promised):
    specs = slas(**{name: {"subject": "flight_board", **table} for name, table in tables.items()})

    assert outline(FLIGHTS, specs).sla_ms == promised
