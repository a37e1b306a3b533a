"""Valid topology files, and refusals of invalid ones."""

from __future__ import annotations

import copy
import tomllib
from pathlib import Path
from typing import Any

import pytest

from support.schemas import validator
from tidemark.errors import InvalidSpec
from tidemark.model.kinds.aggregate import Aggregate
from tidemark.model.kinds.repartition import HopSource
from tidemark.model.kinds.source import Source
from tidemark.model.topology import load, parse
from tidemark.semantics.change import Rule

FLIGHTS = Path(__file__).parents[2] / "jobs" / "topologies" / "flights.toml"


@pytest.fixture
def flights() -> dict[str, Any]:
    return tomllib.loads(FLIGHTS.read_text())


def test_a_topology_is_cut_behind_its_repartitions():
    status, carriers = load(FLIGHTS).sub_topologies
    assert (status.name, carriers.name) == ("status", "carriers")
    assert [operator.name for operator in carriers.operators] == [
        "by_carrier_source",
        "carrier_state",
        "carrier_delays",
    ]
    hop = carriers.operators[0]
    assert isinstance(hop, HopSource)
    assert (hop.repartition, hop.upstream) == ("by_carrier", "status")


def test_a_hops_reader_comes_after_its_repartition():
    upstreams = load(FLIGHTS).upstreams
    assert upstreams["by_carrier_source"] == ("by_carrier",)
    assert upstreams["carrier_state"] == ("by_carrier_source",)
    assert upstreams["flight_weather"] == ("flight_status", "weather_now")
    assert upstreams["flight_events"] == ()


def test_only_feeders_of_a_joins_table_side_are_table_inputs():
    status, carriers = load(FLIGHTS).sub_topologies
    assert status.table_inputs() == {"weather", "weather_now"}
    assert carriers.table_inputs() == set()
    assert status.terminals() == {"flight_board", "by_carrier"}


def test_a_source_reads_its_lengths_of_time_in_ms():
    source = load(FLIGHTS).operators["flight_events"]
    assert isinstance(source, Source)
    assert (source.bound_ms, source.idle_after_ms) == (3_000, 5_000)
    assert source.timestamp_range_ms == (946_684_800_000, 4_102_444_800_000)


def test_a_batch_reads_no_more_than_the_driver_can_hold(flights):

    assert parse(flights, file="flights.toml").operators["weather"].max_records == 200_000
    flights["operators"]["weather"]["max_records"] = 2_000_000
    assert parse(flights, file="flights.toml").operators["weather"].max_records == 2_000_000


@pytest.mark.parametrize(
    ("place", "limits", "meant"),
    [
        ("delta", {}, (None, 1_000, 64_000_000)),
        ("delta", {"max_files": 5}, (None, 5, 64_000_000)),
        ("files", {}, (None, None, 64_000_000)),
        ("files", {"max_files": 5}, (None, 5, None)),
        ("files", {"max_bytes": 7}, (None, None, 7)),
    ],
)
def test_a_batch_takes_in_no_more_files_than_the_driver_can_hold(flights, place, limits, meant):
    del flights["operators"]["weather"]["topic"]
    flights["operators"]["weather"] |= {place: "outside/weather", **limits}
    weather = parse(flights, file="flights.toml").operators["weather"]
    assert (weather.max_records, weather.max_files, weather.max_bytes) == meant


def test_a_source_names_one_writer_or_several(flights):
    for said, meant in [("shop/0", ("shop/0",)), (["shop/0", "a.b/c-d"], ("shop/0", "a.b/c-d"))]:
        flights["operators"]["weather"]["written_by"] = said
        assert parse(flights, file="flights.toml").operators["weather"].written_by == meant


@pytest.mark.parametrize(
    ("written", "group"),
    [({}, None), (False, None), (True, "tidemark-flights-status"), ("acme.lag", "acme.lag-flights-status")],
)
def test_a_stream_has_a_consumer_group_if_the_file_asks_for_it(flights, written, group):
    flights |= {} if written == {} else {"consumer_groups": written}
    assert parse(flights, file="flights.toml").consumer_group("status") == group


@pytest.mark.parametrize("written", ["", "two words", 1, ["tidemark"]])
def test_a_consumer_group_has_a_name_that_kafkas_tools_can_be_given(flights, written):
    flights["consumer_groups"] = written
    with pytest.raises(
        InvalidSpec, match=r"^flights.toml: consumer_groups: is .*; (use letters|write consumer_groups = true)"
    ):
        parse(flights, file="flights.toml")
    assert not validator("topology").is_valid(flights)


def test_an_aggregate_defaults_to_the_rule_of_the_kip(flights):
    del flights["operators"]["carrier_state"]["rule"]
    state = parse(flights, file="flights.toml").operators["carrier_state"]
    assert isinstance(state, Aggregate)
    assert state.emission.rule is Rule.SAME_INSTANT


def test_an_unnamed_sub_topology_is_called_after_its_source(flights):
    del flights["operators"]["flight_events"]["sub_topology"]
    del flights["operators"]["carrier_state"]["sub_topology"]
    names = [sub.name for sub in parse(flights, file="flights.toml").sub_topologies]
    assert names == ["flight_events", "by_carrier"]


def test_a_given_name_is_taken_before_that_of_a_source():
    def source(name, **more):
        keys = {"kind": "source", "topic": name, "fields": "at bigint", "timestamp": "at", "bound": "1 s"}
        return {name: {**keys, **more}}

    def sink(name, read):
        return {name: {"kind": "sink", "input": read, "table": name}}

    operators = {**source("a", sub_topology="b"), **source("b"), **sink("x", "a"), **sink("y", "b")}
    topology = parse({"name": "two", "operators": operators}, file="two.toml")
    assert {sub.name: [o.name for o in sub.operators] for sub in topology.sub_topologies} == {
        "b": ["a", "x"],
        "y": ["b", "y"],
    }


@pytest.mark.parametrize(
    ("operator", "change", "says"),
    [
        ("flight_events", {"bound": "3"}, "operators.flight_events.bound: is '3', which has no known unit"),
        ("flight_events", {"bond": "3 s"}, "flight_events.bond: is not a valid key here; did you mean bound"),
        ("flight_events", {"topic": 7}, 'operators.flight_events.topic: is 7; write topic = "readings"'),
        ("flight_events", {"timestamp": "flight"}, "flight_events.timestamp: is 'flight'; name a field of type"),
        ("flight_events", {"fields": "flight text"}, "flight_events.fields: has 'flight text'; write `name type`"),
        ("flight_events", {"fields": "at bigint from"}, "where the record has another name, `name type from its"),
        ("flight_events", {"fields": "fare decimal(39,2)"}, "fields: has 'fare decimal(39,2)'; write `name type`"),
        ("flight_events", {"fields": "fare decimal"}, "fields: has 'fare decimal'; write `name type`"),
        ("flight_events", {"fields": "a int from x..y, b int from `z"}, "has 'a int from x..y', 'b int from `z'"),
        ("flight_events", {"fields": "id string from a.b, n int from a.`b`"}, "fields: reads 'a.b' twice"),
        (
            "flight_events",
            {"fields": "flight string, at double", "timestamp": "at", "timestamp_unit": "ns"},
            "timestamp_unit: is 'ns', but 'at' is a double",
        ),
        ("flight_events", {"fields": "id string from Id, n int from ID"}, "fields: reads 'id' twice (Spark ignores"),
        ("flight_events", {"timestamp_range": ["soon", "2100-01-01"]}, "timestamp_range: is 'soon'; write an ISO date"),
        (
            "flight_events",
            {"topic": None, "delta": "outside/flights", "max_records": 5},
            "flight_events.max_records: is 5, but there is no topic or topics; leave it out: a table",
        ),
        (
            "flight_events",
            {"max_files": 5},
            "flight_events.max_files: is 5, but there is no delta or files; leave it out: a topic has max_records",
        ),
        (
            "flight_events",
            {"topic": None, "files": "outside/flights", "max_bytes": 0},
            "flight_events.max_bytes: is 0; write 1 or more, such as max_bytes = 16000000",
        ),
        (
            "flight_events",
            {"topic": None, "files": "outside/flights", "max_files": 5, "max_bytes": 5},
            "flight_events.max_files: is set together with max_bytes; keep one of the two",
        ),
        (
            "flight_events",
            {"topic": None, "files": "s3://bucket/flights"},
            "flight_events.files: is 's3://bucket/flights', a URL; write a folder of a disk: relative to the warehouse",
        ),
        (
            "flight_events",
            {"key": None, "tombstone_time": {"header": "at"}},
            "flight_events.tombstone_time: is {'header': 'at'}, but there is no key; leave it out, or write key =",
        ),
        (
            "flight_events",
            {"key": "flight", "timestamp": None, "tombstone_time": {"header": "at"}},
            "flight_events.tombstone_time: is {'header': 'at'}, but there is no timestamp; leave it out, or write",
        ),
        ("flight_events", {"key": "flight", "tombstone_time": {"headr": "at"}}, "flight_events.tombstone_time"),
        ("flight_events", {"nan": "drop"}, "flight_events.nan: is 'drop'; use one of keep, quarantine"),
        (
            "flight_events",
            {"nan": "quarantine", "key": None, "timestamp": "at", "fields": "flight string, at bigint"},
            "flight_events.nan: is 'quarantine', but no field is a double",
        ),
        ("flight_events", {"written_by": "status"}, "written_by: has 'status'; name a writer as topology/"),
        ("flight_events", {"written_by": [7]}, 'flight_events.written_by: is [7]; write written_by = "flights/status"'),
        ("flight_updates", {"input": "nobody"}, "operators.flight_updates: reads 'nobody', which does not exist"),
        ("flight_updates", {"input": "flight_weather"}, "operators: form a cycle: "),
        ("flight_status", {"key": []}, 'operators.flight_status.key: is []; write key = ["device"]'),
        ("flight_status", {"rule": "newer"}, "operators.flight_status.rule: is 'newer'; use one of strictly_newer"),
        ("flight_weather", {"table": "flight_updates"}, "operators.flight_weather.table: is the map 'flight_updates'"),
        ("carrier_state", {"aggregates": {"worst": "max(delay_min)"}}, 'is "max(delay_min)", which cannot retract'),
        ("carrier_state", {"input": "flight_weather", "key": ["carrier"]}, "reads the updates of 'flight_weather'"),
        ("flight_board", {"topic": "board"}, "flight_board.topic: is set together with table; write exactly one of"),
        ("flight_events", {"idle_after": "0 s"}, "idle_after: is '0 s'; write a length above 0"),
        ("weather", {"topic": "flight_events"}, "weather.topic: is already read by 'flight_events'; read"),
        ("flight_updates", {"select": {"_timestamp_ms": "1"}}, "select._timestamp_ms: is not a valid column name"),
        ("by_carrier", {"partitions": 0}, "operators.by_carrier.partitions: is 0; write 1 or more"),
        ("carrier_delays", {"sub_topology": "other"}, "give one sub-topology the names carriers and other; keep one"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_with_file_key_and_remedy(flights, operator, change, says):
    wrong = copy.deepcopy(flights)
    wrong["operators"][operator].update(change)
    wrong["operators"][operator] = {
        key: value for key, value in wrong["operators"][operator].items() if value is not None
    }
    with pytest.raises(InvalidSpec) as refusal:
        parse(wrong, file="flights.toml")
    assert str(refusal.value).startswith("flights.toml: ")
    assert says in str(refusal.value)


def test_a_file_that_is_no_toml_is_refused_by_name(tmp_path):
    path = tmp_path / "broken.toml"
    path.write_text("name = ")
    with pytest.raises(InvalidSpec, match=r"broken\.toml: file: is not valid TOML"):
        load(path)


@pytest.mark.parametrize("name", ["batches", "dead_letters", "value", "hop_x"])
def test_a_name_of_tidemarks_own_is_refused_for_an_operator(flights, name):
    flights["operators"][name] = flights["operators"].pop("flight_board")
    with pytest.raises(InvalidSpec, match=rf"operators.{name}: is reserved for a table or column"):
        parse(flights, file="flights.toml")


TWO_DRIVERS = """
name = "two"
[operators.out]
kind = "sink"
input = "both"
topic = "out"
[operators.both]
kind = "union"
inputs = ["theirs", "mine"]
[operators.theirs]
kind = "map"
input = "by_g"
select = { g = "g" }
[operators.mine]
kind = "map"
input = "b"
select = { g = "g" }
[operators.b]
kind = "source"
topic = "b"
fields = "g string, t bigint"
timestamp = "t"
bound = "3 s"
[operators.by_g]
kind = "repartition"
input = "a"
key = ["g"]
columns = ["g"]
[operators.a]
kind = "source"
topic = "a"
fields = "g string, t bigint"
timestamp = "t"
bound = "3 s"
"""
"""Operators precede the ones they read, and readers precede writers.

The reading driver comes before the writing one.
"""


def test_operators_come_in_any_order_of_the_file():
    topology = parse(tomllib.loads(TWO_DRIVERS), file="two.toml")
    assert [[o.name for o in sub.operators] for sub in topology.sub_topologies] == [
        ["a", "by_g"],
        ["b", "mine", "by_g_source", "theirs", "both", "out"],
    ]
    seen: set[str] = set()
    for name in topology.operators:
        assert seen.issuperset(topology.upstreams[name])
        seen.add(name)


def test_drivers_that_wait_for_each_other_are_refused_by_name():
    content = tomllib.loads(TWO_DRIVERS)
    content["operators"]["a"]["sub_topology"] = "first"
    content["operators"]["b"]["sub_topology"] = "second"
    content["operators"]["back"] = {"kind": "repartition", "input": "mine", "key": ["g"], "columns": ["g"]}
    content["operators"]["all"] = {"kind": "union", "inputs": ["a", "back"]}
    content["operators"]["board"] = {"kind": "sink", "input": "all", "topic": "board"}
    with pytest.raises(InvalidSpec) as refusal:
        parse(content, file="two.toml")
    assert str(refusal.value).startswith("two.toml: operators: make drivers wait for each other: sub-topologies ")
    assert "first → second" in str(refusal.value)
    assert "remove one of the repartitions " in str(refusal.value)
    assert "back" in str(refusal.value)
    assert "by_g" in str(refusal.value)


def test_a_driver_that_waits_for_itself_is_refused_by_name():
    content = tomllib.loads(TWO_DRIVERS)
    content["operators"]["mine"]["input"] = "a"
    content["operators"]["a"]["sub_topology"] = "alone"
    del content["operators"]["b"]
    with pytest.raises(InvalidSpec, match=r"sub-topologies alone → alone; remove one of the repartitions by_g, or"):
        parse(content, file="two.toml")
