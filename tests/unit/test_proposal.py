"""Topologies derived from any sample are accepted by `check`.

Names of the topic and its fields are arbitrary.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.test_hostile_records import AROUND, JSON, of_json

from tidemark.cli.project.check import check
from tidemark.cli.project.from_topic import write
from tidemark.cli.project.init import init
from tidemark.cli.project.test import run_file
from tidemark.errors import InvalidArgument
from tidemark.model.kinds.source import Source
from tidemark.model.kinds.table import KeyedTable
from tidemark.model.project.files import TESTS, Project
from tidemark.model.tables.catalog import TABLES
from tidemark.model.toml_operators import RESERVED
from tidemark.model.topology import load, parse
from tidemark.safe_text import inert
from tidemark.sample.parsed import parse_sample
from tidemark.sample.proposal import Proposal, propose
from tidemark.sample.topic_sample import SampledRecord, TopicSample

pytestmark = pytest.mark.slow

NOON_MS = 1_784_548_800_000


NOW_MS = NOON_MS + 60_000
Value = dict[str, Any] | bytes | None


def sample_of(values: Sequence[Value], keys: Sequence[str | bytes | None] = (), topic: str = "readings") -> TopicSample:
    """Returns a sample of records that come a second apart, in turn in two partitions."""
    records: list[SampledRecord] = []
    for n, value in enumerate(values):
        key = keys[n] if keys else None
        written = json.dumps(value).encode() if isinstance(value, dict) else value
        bytes_of_key = key.encode() if isinstance(key, str) else key
        records.append(SampledRecord(n % 2, n // 2, bytes_of_key, written, (), NOON_MS + 1_000 * n))
    return TopicSample(topic, {0: (0, len(values)), 1: (0, len(values))}, tuple(records), complete=True)


def proposal_of(sample: TopicSample, key: str | None = None) -> Proposal:
    return propose(sample, "localhost:9", NOW_MS, key=key, own_cluster=False)


def source_in(proposal: Proposal) -> Source:
    """Returns the source of a proposed topology, as its file has it."""
    topology = parse(tomllib.loads(inert(proposal.topology)), file="x.toml")
    source = topology.operators[proposal.name]
    assert isinstance(source, Source)
    return source


def key_in(proposal: Proposal) -> str:
    topology = parse(tomllib.loads(inert(proposal.topology)), file="x.toml")
    table = topology.operators[f"{proposal.name}_newest"]
    assert isinstance(table, KeyedTable)
    return table.key[0]


def proposed(folder: Path, topic: str, objects: list[dict[str, Any]], key: str | None = None) -> tuple[Project, str]:
    """Creates a project from a sample of *objects* of *topic*. Returns the name of its topology, too."""
    found = proposal_of(sample_of(objects, topic=topic), key)
    project = init(folder / "mine")
    write(project, found)
    return project, found.name


def checked(project: Project) -> list[str]:
    return [line for line in check([], project.folder / "w", project) if "warning" in line or "error" in line]


OBJECTS = [{"id": f"s{n % 2}", "at": NOON_MS + 1_000 * n} for n in range(6)]


def topic_of(project: Project, name: str) -> str:
    source, *_ = load(project.topologies / f"{name}.toml").operators.values()
    assert isinstance(source, Source)
    return source.topic


@pytest.mark.parametrize("topic", ["hop_x", "orders_source", "1st", "Ä-1", "x" * 249, "_", "batches", "timestamp_ms"])
def test_every_topic_gives_a_topology(tmp_path: Path, topic: str) -> None:
    project, name = proposed(tmp_path, topic, OBJECTS)
    assert checked(project) == []
    assert topic_of(project, name) == topic


def test_a_topic_may_be_named_as_a_table_or_column_of_ours(tmp_path: Path) -> None:
    for topic in sorted({*TABLES, *RESERVED, "hop_source"}):
        assert topic_of(*proposed(tmp_path / topic, topic, OBJECTS)) == topic


def test_fields_in_any_style_become_columns(tmp_path: Path) -> None:
    objects = [
        {"deviceId": f"s{n % 2}", "eventTime": NOON_MS + 1_000 * n, "2nd": n, "tempC": 20.5, "temp_c": 1.5, "a,b": 1}
        for n in range(6)
    ]
    project, name = proposed(tmp_path, "Readings", objects)
    assert checked(project) == []
    source, table, _ = load(project.topologies / f"{name}.toml").operators.values()
    assert isinstance(source, Source)
    assert isinstance(table, KeyedTable)
    assert source.field_of == {
        "device_id": "deviceId", "event_time": "eventTime", "f_2nd": "2nd", "temp_c_2": "tempC", "temp_c": "temp_c"
    }  # fmt: skip
    assert (source.timestamp, table.key, source.other_fields) == ("event_time", ("device_id",), "other_fields")


def test_a_key_is_named_as_the_record_has_it(tmp_path: Path) -> None:
    objects = [{"eventTime": NOON_MS + n, "orderNo": n, "note": f"{n}"} for n in range(9)]
    project, name = proposed(tmp_path, "orders", objects, key="orderNo")
    _, table, _ = load(project.topologies / f"{name}.toml").operators.values()
    assert isinstance(table, KeyedTable)
    assert table.key == ("order_no",)


def test_fields_may_be_named_as_columns_of_our_own(tmp_path: Path) -> None:
    names = [*sorted(RESERVED), "event_time", "window_start", "window_end", "final", "last_seen_at", "select", "_read"]
    objects = [{"id": f"s{n % 2}", **dict.fromkeys(names, "x"), "at": NOON_MS + 1_000 * n} for n in range(6)]
    project, _ = proposed(tmp_path, "readings", objects)
    assert checked(project) == []


def test_the_proposed_test_expects_what_came_of_the_newest_records(tmp_path: Path) -> None:
    objects = [{"id": f"it's {n % 2}", "at": NOON_MS + 1_000 * n, "temp": n} for n in range(9)]
    project, name = proposed(tmp_path, "readings", objects)
    file = project.topologies / TESTS / f"{name}.toml"
    (test,) = tomllib.loads(file.read_text())["test"]
    assert [json.loads(record["value"]) for record in test["given"][0]["records"]] == objects[6:]
    (expected,) = test["expect"]
    assert (expected["operator"], [(row["id"], row["temp"]) for row in expected["rows"]]) == (
        "readings_now",
        [("it's 0", 6), ("it's 0", 8), ("it's 1", 7)],
    )
    assert [differences for _, _, differences in run_file(file)[1]] == [[]]


def test_rare_fields_are_kept_as_json_and_parts_of_objects_shown(tmp_path: Path) -> None:
    objects = [{"id": f"s{n % 3}", "at": NOON_MS + 1_000 * n, "reading": {"value": n}} for n in range(99)]
    # A time that is none does not keep other fields from being kept.
    objects[7] |= {"vlaue": 1, "at": "?"}
    project, name = proposed(tmp_path, "readings", objects)
    source, *_ = load(project.topologies / f"{name}.toml").operators.values()
    assert isinstance(source, Source)
    assert source.fields == {"id": "string", "at": "bigint", "reading": "string"}
    assert source.other_fields == "other_fields"
    text = (project.topologies / f"{name}.toml").read_text()
    assert "an object, whose value is column ->> '$.value' in SQL" in text
    assert "as JSON, fields that few records have or that cannot be columns (1): vlaue" in text
    # A record each second: 2 * (1 s of pause + 10 s of work), rounded up.
    assert 'error_after = "30 s"  # twice, rounded up: the longest pause 1 s, 10 s of work' in (
        project.slas.read_text()
    )


TIMES: Sequence[tuple[Sequence[Any], str | None, str]] = [
    (["2026-07-20 12:00:0{n},123"], "timestamp", "ms"),
    (["2026-07-20T12:00:0{n}+02:00"], "timestamp", "ms"),
    (["2026-07-20T120{n}Z"], None, "ms"),
    (["20260720T12000{n}"], None, "ms"),
    (["2026-W30-1"], None, "ms"),
    (["2026-07-20"], None, "ms"),
    (["2026-07-20T00:00:00Z"], None, "ms"),
    (["9999-12-31T23:59:59Z"], None, "ms"),
    (["2026-07-20T23:00:0{n}Z"], None, "ms"),
    (["2026-07-20T12:00:0{n}Z", "2026-07-20"], "timestamp", "ms"),
    (["{n}"], None, "ms"),
    ([NOON_MS // 1_000], "bigint", "s"),
    ([NOON_MS + 1], "bigint", "ms"),
    ([NOON_MS * 1_000 + 1], "bigint", "us"),
    ([NOON_MS * 1_000_000 + 1], "bigint", "ns"),
    ([NOON_MS * 10**9], None, "ms"),
    ([10**4_000], None, "ms"),
    ([True], None, "ms"),
    ([*[NOON_MS + 1] * 19, "n/a"], "bigint", "ms"),
    ([*[NOON_MS + 1] * 18, "n/a", None], None, "ms"),
]
"""Values of a field, which records have in turn, and the type and unit of the event time; no type: it is not one."""


def test_an_event_time_is_what_a_stream_reads_as_one() -> None:
    for values, word, unit in TIMES:
        of_records = (values[n % len(values)] for n in range(20))
        times = [each.format(n=n % 10) if isinstance(each, str) else each for n, each in enumerate(of_records)]
        sample = sample_of([{"id": f"s{n % 3}", "created": each} for n, each in enumerate(times)])
        source = source_in(proposal_of(sample))
        assert (source.timestamp, source.timestamp_unit) == (word and "created", unit), values
        assert source.fields["created"] == word or word is None
        rows = parse_sample(source, sample, NOW_MS)
        assert rows["reason"].null_count() >= (19 if word else 20)


def test_dates_and_unreadable_texts_give_way_to_a_real_time() -> None:
    names = {"event_date": "2026-07-20", "timestamp": "2026-07-20T1200Z", "logged": "2026-07-20 12:00:00,5"}
    source = source_in(proposal_of(sample_of([{**names, "id": f"s{n % 2}"} for n in range(8)])))
    assert source.timestamp == "logged"
    assert source.fields["event_date"] == source.fields["timestamp_field"] == "string"


REPEATED = [f"k{n % 3}" for n in range(9)]
UNIQUE = [f"k{n}" for n in range(9)]
KEYS: Sequence[tuple[Sequence[str | bytes | None], dict[str, Sequence[Any]], str | None]] = [
    ([], {"zone": REPEATED}, "zone"),
    ([], {"zone": REPEATED, "user_id": ["a", "b", "b"] * 3}, "user_id"),
    ([], {"zone": ["k"] * 9}, None),
    ([], {"order_id": UNIQUE}, None),
    ([], {"order_id": UNIQUE, "kind_id": ["k"] * 9, "zone": REPEATED}, "zone"),
    ([], {"zone": [*REPEATED[:8], None]}, None),
    ([], {"n": [n % 3 for n in range(9)]}, None),
    ([], {"seen": [f"2026-07-1{n % 3}" for n in range(9)]}, None),
    (REPEATED, {"zone": UNIQUE}, "kafka_key"),
    (REPEATED, {"kafka_key": UNIQUE}, "kafka_key_2"),
    (REPEATED, {"zone": REPEATED}, "zone"),
    (["k"] * 9, {"zone": REPEATED}, "zone"),
    (["k"] * 9, {"zone": UNIQUE}, None),
    (REPEATED, {}, "kafka_key"),
    ([str(NOON_MS + n // 3) for n in range(9)], {"at": [NOON_MS + n // 3 for n in range(9)]}, "kafka_key"),
    (UNIQUE, {"zone": REPEATED}, "zone"),
    (UNIQUE, {"zone": UNIQUE}, None),
    ([*REPEATED[:8], None], {"zone": UNIQUE}, None),
]
"""Kafka's keys, other fields by name, and the key; no key: it has to be named with --key."""


def test_a_key_has_several_values_that_repeat() -> None:
    for kafka_keys, fields, key in KEYS:
        objects = [{name: values[n] for name, values in fields.items()} for n in range(9)]
        sample = sample_of([{"at": NOON_MS + n, **each} for n, each in enumerate(objects)], kafka_keys)
        if key is None:
            with pytest.raises(InvalidArgument, match=r"several values that repeat; name .* with --key FIELD"):
                proposal_of(sample)
        else:
            assert key_in(proposal_of(sample)) == key


def test_records_without_any_field_are_kept_by_kafkas_key() -> None:
    found = proposal_of(sample_of([{}] * 8 + [None], REPEATED))
    assert (source_in(found).fields, source_in(found).key) == ({"kafka_key": "string"}, "kafka_key")


def test_kafkas_key_of_a_compacted_topic_is_named() -> None:
    objects = [{"at": NOON_MS + n, "id": key} for n, key in enumerate(UNIQUE)]
    with pytest.raises(
        InvalidArgument, match=r"different value in each record of the sample .9.,.* or --key kafka_key for Kafka's key"
    ):
        proposal_of(sample_of(objects, UNIQUE))
    assert key_in(proposal_of(sample_of(objects, UNIQUE), "kafka_key")) == "id"
    deleting = sample_of([*objects, None], [*UNIQUE, "gone"])
    for named in ("kafka_key", "id"):
        assert source_in(proposal_of(deleting, named)).key == "id"
    with pytest.raises(InvalidArgument, match="no record has a field 'ID' that can be a column; they have at, id"):
        proposal_of(deleting, "ID")


def test_each_of_three_bounds_has_its_share_of_the_sample() -> None:
    # Of 200 records 100 are in each partition. In one of them 15 are 3 s behind the newest one, and one is 40 s behind.
    behind_s = [3] * 15 + [40] + [0] * 84
    objects: list[dict[str, Any]] = []
    for n in range(200):
        late_s = behind_s[n // 2 - 1] if n % 2 and n > 1 else 0
        objects.append({"id": f"s{n % 2}", "at": NOON_MS + (60_000 if n % 2 else 0) - 1_000 * late_s})
    found = proposal_of(sample_of(objects))
    # 184 are not behind, 199 at most 3 s, and all at most 40 s, for which the next round length is 1 min.
    shares = "10 ms 92.0 %, 3 s 99.5 %, 1 min 100 %"
    assert found.notes[-1] == f"bound 3 s; shares of the sample that bounds cover: {shares}"
    assert f'bound = "3 s"  # shares of the sample that bounds cover: {shares}; the furthest record is 40 s' in (
        found.topology
    )
    ordered = proposal_of(sample_of([{"id": f"s{n % 2}", "at": NOON_MS + n} for n in range(9)]))
    assert ordered.notes[-1] == "bound 1 s; shares of the sample that bounds cover: 10 ms 100 %, 1 s 100 %, 2 s 100 %"


def test_a_table_does_not_wait_for_the_bound_so_its_limit_has_none() -> None:
    # In each partition every tenth record is 500 s older than the others, and Kafka has all records within 20 s.
    objects = [{"id": f"s{n % 2}", "at": NOON_MS - (500_000 if n % 20 > 17 else 0)} for n in range(20)]
    found = proposal_of(sample_of(objects))
    assert 'bound = "10 min"' in found.topology
    # The delay of the 99th percentile is that of the oldest one: 500 s, and 19 s until Kafka had it.
    assert 'error_after = "20 min"  # twice, rounded up: records come 8 min 39 s late, 10 s of work' in found.slas


def test_a_sample_with_every_hostile_record_gives_a_topology() -> None:
    good: list[Value] = [{"id": f"s{n % 3}", "n": n, "at": NOON_MS + n} for n in range(600)]
    bad = [of_json(more) for more, *_ in JSON.values()] + [b"{}" + text.encode() for text in AROUND]
    many = json.dumps({f"f{n}": n for n in range(100_000)}).encode()
    found = proposal_of(sample_of([*good, *bad, b"", b"\xff", None, many]))
    assert (source_in(found).timestamp, key_in(found)) == ("at", "id")
    # One record has half a character in the name of a field, and would be quarantined if such fields were kept.
    assert source_in(found).other_fields is None
    assert "# without other_fields: half characters in some records cannot be kept" in found.topology


@pytest.mark.parametrize("name", JSON)
def test_a_topic_of_one_hostile_record_gives_a_topology_or_a_remedy(name: str) -> None:
    more, reason, _ = JSON[name]
    sample = sample_of([of_json(more)] * 4)
    if reason is not None and reason != "wrong_type":
        with pytest.raises(InvalidArgument, match="is a JSON object that can be read"):
            proposal_of(sample, "at")
    else:
        # What does not fit the types of one topology has another type in this one.
        source = source_in(proposal_of(sample, "at"))
        assert parse_sample(source, sample, NOW_MS)["reason"].null_count() == 4


def test_many_fields_in_every_record_become_a_hundred_columns_and_json() -> None:
    objects = [{"id": f"s{n % 2}", "at": NOON_MS + n, **{f"f{k}": "x" for k in range(300)}} for n in range(6)]
    objects[5]["late_one"] = 1
    source = source_in(proposal_of(sample_of(objects), key="f299"))
    assert len(source.fields) == 101
    assert [*source.fields] == ["f299", "id", "at", *(f"f{k}" for k in range(98))]
    assert source.other_fields == "other_fields"


HOSTILE_NAMES = ["\u202eabc", "a\u2066b", "\x1b[31m", "a\x00", "\ud800", "\U000e0041", "a\u2028b", "\x7f", "a\nb"]


def test_no_file_has_control_or_bidirectional_characters(tmp_path: Path) -> None:
    named = {name: f"v{name}" for name in HOSTILE_NAMES}
    objects = [{"id": f"s\u202e{n % 2}", "at": NOON_MS + n, "o": {name: 1}} for n, name in enumerate(HOSTILE_NAMES)]
    for more in ({}, named):
        project, name = proposed(tmp_path / str(len(more)), "readings", [{**each, **more} for each in objects])
        for file in (project.topologies / f"{name}.toml", project.slas):
            assert all(char.isprintable() or char == "\n" for char in file.read_text(encoding="utf-8"))
        assert checked(project) == []


SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats() | st.text(max_size=4)
    | st.sampled_from([10**400, "NaN", "Infinity", "2026-07-20", "2026-07-20T1200Z", "2026-07-20 12:00:00,5", NOON_MS])
)  # fmt: skip
ANY = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner))
RECORD = st.fixed_dictionaries({}, optional=dict.fromkeys(["a", "b c", "Cd", "ts"], ANY)) | st.dictionaries(
    st.text(max_size=3), ANY, max_size=3
)


@settings(max_examples=20)
@given(st.lists(RECORD, min_size=1, max_size=6))
def test_every_sampled_value_of_a_proposed_field_is_read_by_the_stream(objects: list[dict[str, Any]]) -> None:
    values = [{**each, "key_field": "k"} for each in objects]
    sample = sample_of(values)
    found = proposal_of(sample, "key_field")
    source = source_in(found)
    rows = parse_sample(source, sample, NOW_MS).sort("offset", "partition")
    for value, reason, fields in zip(values, rows["reason"], rows[source.name], strict=True):
        # An event time may be missing in one of twenty records, and no sample here has as many.
        assert reason is None
        for column, name in source.field_of.items():
            assert (fields[column] is None) == (value.get(name) is None)
