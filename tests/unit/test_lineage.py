"""Columns of sinks have the fields of the topics that made them."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

import pytest
from openlineage.client.serde import Serde

from support.command_line import tidemark
from tidemark.cli.export.lineage import events, origins
from tidemark.errors import InvalidArgument
from tidemark.kernels.sql.columns_read import columns_read
from tidemark.model import topology
from tidemark.model.project.layout import Layout
from tidemark.recorded_jobs.queries import RecordedQuery, write_query

PROJECT = Path(__file__).parents[2]
FLIGHTS = topology.load(PROJECT / "jobs" / "topologies" / "flights.toml")
ORDERS = """
name = "orders"
[operators.orders]
kind = "source"
topic = "orders"
fields = "id string, amount double from Betrag, event_time bigint"
timestamp = "event_time"
bound = "1 s"
[operators.big]
kind = "map"
input = "orders"
select = { id = "id", gross = "AMOUNT * 1.19", label = "case when event_time > 0 then 'new' else id end" }
[operators.per_id]
kind = "aggregate"
input = "big"
key = ["id"]
aggregates = { n = "count(*)", total = "sum(gross)" }
select = { mean = "total / n", n = "n" }
window = { tumbling = "1 min" }
[operators.totals]
kind = "sink"
input = "per_id"
table = "totals"
"""


def of_stream(whole: topology.Topology, stream: str) -> dict:
    return origins(whole, whole.sub_topology(stream), columns_read())


LOOKED_UP = """
name = "regions"
[operators.orders]
kind = "source"
topic = "orders"
fields = "id string, event_time bigint"
timestamp = "event_time"
bound = "1 s"
[operators.named]
kind = "join"
input = "orders"
delta = "/data/customers"
on = { id = "id" }
[operators.per_region]
kind = "aggregate"
input = "named"
key = ["region"]
aggregates = { n = "count(*)", newest = "max(event_time)" }
window = { tumbling = "1 min" }
[operators.totals]
kind = "sink"
input = "per_region"
table = "totals"
"""


def test_a_key_that_a_join_looks_up_has_no_origin() -> None:
    whole = topology.parse(tomllib.loads(LOOKED_UP), file="regions.toml")
    totals = of_stream(whole, "orders")["totals"]
    assert "region" not in totals
    assert {field for _, field in totals["newest"]} == {"event_time"}


def test_a_column_has_the_fields_of_its_expressions() -> None:
    whole = topology.parse(tomllib.loads(ORDERS), file="orders.toml")
    of = of_stream(whole, "orders")
    assert {column: sorted(field for _, field in fields) for column, fields in of["totals"].items()} == {
        "timestamp": ["event_time"],
        "id": ["id"],
        "window_start": ["event_time"],
        "mean": ["Betrag", "id"],  # n counts the records of an id
        "n": ["id"],
    }
    assert sorted(field for _, field in of["big"]["label"]) == ["event_time", "id"]


def test_each_column_of_each_sink_traces_to_fields_of_topics() -> None:
    read = {sub.name: of_stream(FLIGHTS, sub.name) for sub in FLIGHTS.sub_topologies}
    found: set[str] = set()
    for sub in FLIGHTS.sub_topologies:
        for sink in sub.sinks:
            fields = {*frozenset().union(*read[sub.name][sink.name].values())}
            while hops := {field for field in fields if FLIGHTS.operators[field[0]].hop_of}:
                fields -= hops
                for source, column in hops:
                    hop = FLIGHTS.operators[source]
                    fields |= read[hop.upstream][hop.repartition][column]
            assert all(read[sub.name][sink.name].values()), sink.name
            assert {FLIGHTS.operators[source].topic_read for source, _ in fields} <= {"flight_events", "weather"}
            found.add(sink.name)
    assert found == {sink.name for sink in FLIGHTS.sinks}


def test_events_name_topics_tables_and_columns(tmp_path: Path) -> None:
    whole = topology.parse(tomllib.loads(ORDERS), file="orders.toml")
    (event,) = events(whole, Layout(tmp_path), "2026-11-27T08:00:00Z")
    written = json.loads(Serde.to_json(event))
    (read,) = written["inputs"]
    (table,) = written["outputs"]
    assert (written["job"]["namespace"], written["job"]["name"]) == ("tidemark", "orders.orders")
    assert (read["namespace"], read["name"]) == ("kafka://default", "orders")
    assert (table["namespace"], table["name"]) == ("file", f"{tmp_path}/streams/orders/orders/totals")
    mean = table["facets"]["columnLineage"]["fields"]["mean"]["inputFields"]
    topic = {"namespace": "kafka://default", "name": "orders"}
    fields = [{key: field[key] for key in ("namespace", "name", "field")} for field in mean]
    assert fields == [{**topic, "field": "Betrag"}, {**topic, "field": "id"}]


def test_each_topic_of_a_list_is_an_input(tmp_path: Path) -> None:
    text = ORDERS.replace('topic = "orders"', 'topics = ["orders", "returns"]\nidle_after = "30 s"')
    (event,) = events(topology.parse(tomllib.loads(text), file="orders.toml"), Layout(tmp_path), "2026-11-27T08:00:00Z")
    written = json.loads(Serde.to_json(event))
    assert [each["name"] for each in written["inputs"]] == ["orders", "returns"]
    count = written["outputs"][0]["facets"]["columnLineage"]["fields"]["n"]["inputFields"]
    assert [(field["name"], field["field"]) for field in count] == [("orders", "id"), ("returns", "id")]


def test_text_that_is_no_sql_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="is not an expression of SQL"):
        columns_read()("a +")


def test_events_are_sent_by_the_configured_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OPENLINEAGE")]:
        monkeypatch.delenv(name)
    refused = tidemark(PROJECT, "--warehouse", str(tmp_path), "publish", "lineage", "--send")
    assert (refused.returncode, "is not configured; set OPENLINEAGE_URL" in refused.stderr) == (1, True)
    file = tmp_path / "events.jsonl"
    transport = {"type": "file", "log_file_path": str(file), "append": True}
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT", json.dumps(transport))
    done = tidemark(PROJECT, "--warehouse", str(tmp_path), "publish", "lineage", "--send")
    streams = [sub.name for sub in FLIGHTS.sub_topologies]
    assert done.returncode == 0, done.stderr
    sent = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert [each["job"]["name"] for each in sent if each["job"]["name"].startswith("flights.")] == [
        f"flights.{name}" for name in streams
    ]
    closed = {"type": "http", "url": "http://127.0.0.1:1", "timeout": 1, "retry": {"total": 0}}
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT", json.dumps(closed))
    failed = tidemark(PROJECT, "--warehouse", str(tmp_path), "publish", "lineage", "--send")
    assert (failed.returncode, "did not take an event" in failed.stderr) == (1, True), failed.stderr


def test_topologies_of_jobs_are_left_out_by_name(tmp_path: Path) -> None:
    query = RecordedQuery(name="enrich", query_id="1", sources={"enrich:orders": "topic:orders"})
    for topology_of_jobs in ("shop", "bakery"):
        write_query(Layout(tmp_path), topology_of_jobs, query)
    for folder in ("topologies", "expectations"):  # of a project without topologies
        (tmp_path / folder).mkdir()
    done = tidemark(tmp_path, "--warehouse", str(tmp_path), "publish", "lineage")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("left out: bakery, shop: ")
