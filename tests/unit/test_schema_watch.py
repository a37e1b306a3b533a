"""Changes of fields follow from samples by a rule."""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec
import polars as pl
import pytest

from support.parsed_source import AVRO, source
from tidemark.kernels.formats.sampled_fields import LONGEST, SAMPLE, field_sample, sampled_types
from tidemark.kernels.formats.written_schema import WrittenSchema
from tidemark.model.kinds.kafka_end import Format
from tidemark.model.kinds.source_place import Elsewhere
from tidemark.semantics.schema_watch import (
    MOST_FIELDS,
    FieldSample,
    SourceFields,
    step,
    watch,
)
from tidemark.stream.journal.notes import as_json

MINUTE = 60_000
Told = list[tuple[str, str, str | None]]


class Topic:
    """A topic with the declared fields `id` and `tail`."""

    def __init__(self) -> None:
        self.fields = SourceFields()
        self.now_ms = 0

    def batch(self, n: int, types: Mapping[str, str], *, minutes: int = 1) -> Told:
        """Samples *n* records with *types*; returns the recorded changes."""
        self.now_ms += minutes * MINUTE
        sample = FieldSample(n, {field: {word: n} for field, word in types.items()})
        self.fields, changes = watch(self.fields, sample, {"id", "tail"}, now_ms=self.now_ms)
        # As after a restart: the next batch has what the journal has.
        self.fields = msgspec.json.decode(as_json(self.fields), type=SourceFields)
        return [(change.field, change.found.change.value, change.found.type) for change in changes]


USUAL = {"id": "number", "tail": "string"}


@pytest.fixture
def topic() -> Topic:
    """A topic of which 100 records were sampled, in its first minute."""
    topic = Topic()
    assert topic.batch(100, USUAL) == []
    return topic


def test_a_field_that_nobody_declares_is_undeclared_once():
    topic = Topic()
    assert topic.batch(20, {**USUAL, "gate": "string"}) == [("gate", "undeclared", "string")]
    assert topic.batch(20, {**USUAL, "gate": "string"}) == []


def test_a_field_first_seen_after_100_records_is_new(topic):
    assert topic.batch(20, {**USUAL, "gate": "string"}) == [("gate", "new", "string")]


def test_a_field_first_seen_within_100_records_is_not_new():
    topic = Topic()
    topic.batch(99, {"id": "number"})
    assert topic.batch(1, USUAL) == []


def test_a_usual_field_vanishes_after_100_records_and_5_minutes(topic):
    # Last seen in minute 1: 80 records later it is minute 5, 100 records later minute 6.
    for minute in (2, 3, 4, 5):
        assert topic.batch(20, {"id": "number"}) == [], minute
    assert topic.batch(20, {"id": "number"}) == [("tail", "vanished", "string")]
    assert topic.batch(20, {"id": "number"}) == []
    gone = topic.fields.fields["tail"]
    assert (gone.first_ms, gone.last_ms, gone.found and gone.found.found_ms) == (MINUTE, MINUTE, 6 * MINUTE)


def test_many_records_in_a_short_time_let_no_field_vanish(topic):
    assert topic.batch(1_000, {"id": "number"}, minutes=4) == []
    assert topic.batch(1, {"id": "number"}) == [("tail", "vanished", "string")]


def test_silence_lets_no_field_vanish(topic):
    assert topic.batch(0, {}, minutes=60) == []
    assert topic.batch(99, {"id": "number"}) == []


def test_a_field_of_few_records_does_not_vanish():
    topic = Topic()
    topic.batch(89, USUAL)
    topic.batch(11, {"id": "number"})
    topic.batch(1, USUAL)  # in 90 of 101 records since it was first seen, less than nine of ten
    assert topic.batch(500, {"id": "number"}, minutes=10) == []


def test_a_vanished_field_is_new_when_it_returns(topic):
    topic.batch(100, {"id": "number"}, minutes=5)
    assert topic.batch(1, USUAL) == [("tail", "new", "string")]
    assert topic.fields.fields["tail"].first_ms == MINUTE


def test_another_type_is_a_change_once_and_so_is_its_return(topic):
    assert topic.batch(20, {"id": "string", "tail": "string"}) == [("id", "retyped", "string")]
    assert topic.batch(20, USUAL) == []  # both are known, as while producers are replaced
    assert topic.batch(100, {"id": "string", "tail": "string"}, minutes=5) == []
    assert topic.batch(20, USUAL) == [("id", "retyped", "number")]


def test_the_type_before_is_the_one_seen_last(topic):
    topic.batch(20, {"id": "string", "tail": "string"})
    found = topic.fields.fields["id"].found
    assert found
    assert (found.was_type, found.type) == ("number", "string")


def test_null_is_no_type_and_no_absence(topic):
    assert topic.batch(500, {"id": "number", "tail": "null"}, minutes=10) == []
    assert topic.batch(1, USUAL) == []


def test_a_field_inside_another_one_changes_with_it(topic):
    crew = {"crew": "object", "crew.pilot": "string"}
    assert topic.batch(100, {**USUAL, **crew}) == [("crew", "new", "object")]
    assert topic.batch(100, USUAL, minutes=5) == [("crew", "vanished", "object")]
    assert topic.batch(1, {**USUAL, **crew}) == [("crew", "new", "object")]
    assert topic.batch(1, {**USUAL, **crew, "crew.second": "string"}) == [("crew.second", "new", "string")]


def test_fields_two_levels_inside_a_new_one_are_not_listed(topic):
    crew = {"crew": "object", "crew.pilot": "object", "crew.pilot.name": "string"}
    assert topic.batch(1, {**USUAL, **crew}) == [("crew", "new", "object")]


def test_a_vanished_field_returns_silently_with_its_object(topic):
    crew = {"crew": "object", "crew.pilot": "string"}
    topic.batch(100, {**USUAL, **crew})
    assert topic.batch(100, {**USUAL, "crew": "object"}, minutes=5) == [("crew.pilot", "vanished", "string")]
    assert topic.batch(100, USUAL, minutes=5) == [("crew", "vanished", "object")]
    assert topic.batch(1, {**USUAL, **crew}, minutes=120) == [("crew", "new", "object")]
    assert topic.batch(1, {**USUAL, **crew}) == []


def test_a_change_is_recorded_again_after_an_hour_with_the_field(topic):
    with_gate = {**USUAL, "gate": "string"}
    topic.batch(1, with_gate)
    assert topic.batch(1, with_gate, minutes=59) == []
    assert topic.batch(1, USUAL, minutes=1) == []
    assert topic.batch(1, with_gate, minutes=1) == [("gate", "new", "string")]
    gate = topic.fields.fields["gate"]
    assert gate.found
    assert gate.found.found_ms == 2 * MINUTE
    assert gate.last_ms == 63 * MINUTE


def test_names_of_fields_without_end_are_not_all_kept(topic):
    names = {f"user_{n}": "number" for n in range(1_000)}
    assert len(topic.batch(20, names)) == MOST_FIELDS - 2
    assert topic.batch(20, {f"other_{n}": "number" for n in range(1_000)}) == []


def test_other_names_take_no_place_of_a_declared_field(topic):
    names = {f"a{n}": "number" for n in range(300)}
    topic.batch(100, names, minutes=5)
    assert "a299" not in topic.fields.fields
    late = Topic()
    late.batch(100, names)
    assert late.batch(1, USUAL) == [("id", "new", "number"), ("tail", "new", "string")]
    assert len(late.fields.fields) == MOST_FIELDS


def test_outer_fields_take_places_before_inner_ones():
    topic = Topic()
    topic.batch(100, {"id": "object", **{f"id.{n}": "number" for n in range(300)}, "gate": "string"})
    assert {"id", "gate"} < {*topic.fields.fields}
    assert len(topic.fields.fields) == MOST_FIELDS - 1  # that of `tail` is free


def rows(*values: bytes | None, partitions: list[int] | None = None) -> pl.DataFrame:
    places = partitions or [0] * len(values)
    return pl.DataFrame({"partition": places, "value": values}, {"partition": pl.Int32(), "value": pl.Binary()})


def types_of(value: str) -> object:
    (text,) = sampled_types(rows(value.encode("utf-8", "surrogatepass")), source(), {})
    return None if text is None else json.loads(text)


def test_each_partition_is_sampled_evenly():
    raw = rows(*[b'{"id": "a"}'] * 105, partitions=[0] * 100 + [1] * 5)
    sampled = sampled_types(raw, source(), {}).is_not_null().arg_true().to_list()
    assert sampled == [*range(0, 100, 5), *range(100, 105)]
    assert field_sample(sampled_types(raw, source(), {})) == FieldSample(SAMPLE + 5, {"id": {"string": SAMPLE + 5}})


def test_fields_of_json_have_types_of_json():
    record = '{"id": "a", "n": 1.5, "on": true, "no": null, "in": {"a.b": [{"x": 1}, "y"]}, "empty": []}'
    assert types_of(record) == {
        "id": "string", "n": "number", "on": "boolean", "no": "null", "in": "object", 'in."a.b"': "array",
        'in."a.b"[]': "object", "empty": "array",
    }  # fmt: skip


@pytest.mark.parametrize(
    "value", ["", "{", "[1]", '"text"', "\x00", '{"a": "\ud800"}', '{"\ud800": 1}', "[" * 100_000, "7"]
)
def test_a_record_without_readable_fields_is_in_no_sample(value):
    assert types_of(value) is None


def test_hostile_names_and_depths_are_bounded():
    wide = json.dumps({f"f{n}": n for n in range(10_000)})
    deep = '{"a":' * 500 + "1" + "}" * 500
    assert len(types_of(wide)) == MOST_FIELDS
    assert types_of(deep) == {"a": "object", "a.a": "object", "a.a.a": "object"}
    assert {"id", "n"} < {*types_of(json.dumps({f"f{n}": {"x": n} for n in range(300)} | {"n": 1, "id": "a"}))}
    assert "last" in types_of(json.dumps({"first": {f"f{n}": n for n in range(300)}, "last": 1}))
    assert types_of(json.dumps({"x" * 300: 1, "": 2, "a[]": 3})) == {'""': "number", '"a[]"': "number"}


def test_long_names_are_not_kept_in_memory():
    step.cache_clear()
    types_of(json.dumps({"x" * LONGEST: {"y" * 100_000: 1}, "z" * 100_000: {"id": 1}, "id": "a"}))
    assert step.cache_info().currsize == 2  # of the names that are watched


def test_records_of_a_registry_have_the_fields_of_their_schema():
    avro = source(format=Format.AVRO, registry="main")
    wider = {**AVRO, "fields": [{"name": "id", "type": "long"}, *AVRO["fields"][1:3]]}
    schemas = {
        1: WrittenSchema(text=json.dumps(AVRO)),
        2: WrittenSchema(text=json.dumps(wider)),
        3: WrittenSchema(is_missing=True),
    }
    values = [b"\0\0\0\0" + bytes([id_]) for id_ in (1, 1, 2, 3)]
    sampled = sampled_types(rows(*values, b"no id", None), avro, schemas)
    assert field_sample(sampled) == FieldSample(
        3,
        {
            "id": {"string": 2, "bigint": 1},
            "n": {"int": 3},
            "at": {"timestamp": 3},
            "zone": {"string": 2},
        },
    )


def test_a_table_is_not_watched():
    assert sampled_types(
        rows(b'{"id": "a"}'), source(topic=None, elsewhere=Elsewhere("delta", "t"), name="t"), {}
    ).to_list() == [None]
