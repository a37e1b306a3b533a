"""Schemas come from a registry over HTTP, once each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from support.schema_registry import SchemaRegistry
from tidemark.bounded_http import MOST_BYTES
from tidemark.cli.shared.brokers import Brokers
from tidemark.errors import InvalidArgument, InvalidSpec
from tidemark.kernels.formats.protobuf_fields import message_names
from tidemark.model.kinds.kafka_end import Format
from tidemark.model.kinds.source import Source
from tidemark.model.project.registries import read_registries, with_secrets
from tidemark.model.topology import parse
from tidemark.sample.parsed import parse_sample
from tidemark.sample.topic_sample import SampledRecord, TopicSample
from tidemark.stream.read.parsing import SchemasOf
from tidemark.stream.schemas.known_schemas import SchemaStore, are_known
from tidemark.stream.schemas.registry_client import RegistryClient, RegistryRefused, RegistryUnavailable


def schema(*names: str, type_: str = "string") -> str:
    fields = [{"name": name, "type": type_} for name in names]
    return json.dumps({"type": "record", "name": "R", "fields": fields})


def source(**changes: Any) -> Source:
    common = {"name": "t", "topic": "t", "timestamp_range_ms": (0, 1), "bound_ms": 0, "registry": "main"}
    return Source(**{**common, "fields": {"id": "string"}, "format": Format.AVRO, "subject": "t-value", **changes})


def raw(*ids: int) -> pl.DataFrame:
    return pl.DataFrame({"source": "t", "value": [b"\0" + id_.to_bytes(4, "big") for id_ in ids]})


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as running:
        yield running


class Ended(Exception):
    """Ends a wait, as a drain does."""


class Clock:
    """A clock that stands still, and counts what was slept."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.slept: list[float] = []

    def __call__(self) -> int:
        return self.now_ms

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_ms += round(1_000 * seconds)


def store(registry: SchemaRegistry, home: Path | None = None, **options: Any) -> SchemaStore:
    table: dict[str, Any] = {"url": registry.url}
    if registry.login is not None:
        table |= {"username": "ann", "password": {"env": "SECRET"}}
    registries = read_registries("t.toml", {"main": table})
    return SchemaStore(with_secrets(registries, {"SECRET": "s3cret"}, {}), home, **options)


def client_of(registry: SchemaRegistry) -> RegistryClient:
    return RegistryClient(read_registries("t.toml", {"main": {"url": registry.url}})["main"])


def test_a_schema_is_asked_for_once(registry: SchemaRegistry) -> None:
    one, two = registry.register("t-value", schema("id")), registry.register("t-value", schema("id", "n"))
    of = store(registry)
    assert not are_known(raw(one), [source()], of.known)
    known = of.resolve(raw(one, one, two), [source()])
    assert {id_: each.text for id_, each in known["main"].items()} == {one: schema("id"), two: schema("id", "n")}
    of.resolve(raw(two, one), [source()])
    assert sorted(registry.asked) == [f"/schemas/ids/{one}", f"/schemas/ids/{two}"]
    assert are_known(raw(one, two), [source()], of.known)


def test_known_schemas_outlive_an_outage_and_a_restart(registry: SchemaRegistry, tmp_path: Path) -> None:
    one = registry.register("t-value", schema("id"))
    store(registry, tmp_path).resolve(raw(one), [source()])
    registry.stop()
    assert store(registry, tmp_path).resolve(raw(one), [source()])["main"][one].text == schema("id")


def test_kept_schemas_belong_to_the_address_of_their_registry(registry: SchemaRegistry, tmp_path: Path) -> None:
    one = registry.register("t-value", schema("id"))
    store(registry, tmp_path).resolve(raw(one), [source()])
    with SchemaRegistry() as other:
        other.register("t-value", schema("other"))
        assert store(other, tmp_path).resolve(raw(one), [source()])["main"][one].text == schema("other")


@pytest.mark.parametrize("kind", ["down", "failing"])
def test_an_unknown_id_waits_until_the_registry_answers(registry: SchemaRegistry, kind: str) -> None:
    one, clock = registry.register("t-value", schema("id")), Clock()
    troubles: list[str | None] = []
    if kind == "down":
        registry.stop()
    else:
        registry.failing = 503

    def check() -> None:
        troubles.append(of.trouble)
        if len(clock.slept) == 4:  # in the third pause, of 4 s
            registry.failing = None
            if kind == "down" and not registry.is_running:
                registry.start()

    of = store(registry, check=check, sleep_s=clock.sleep)
    assert of.resolve(raw(one), [source()])["main"][one].text == schema("id")
    assert clock.slept == [1] * 7  # 1 s, 2 s and 4 s
    expected = "does not answer" if kind == "down" else "answered 503"
    assert (troubles[1] or "").startswith("waits for the schema 1: registry.main: ")
    assert expected in (troubles[1] or "")
    assert of.trouble is None


def test_a_registry_gives_a_good_answer_whatever_schemas_it_has(registry: SchemaRegistry) -> None:
    of = store(registry)
    of.require_answers()
    registry.register("t-value", schema("id"))
    of.require_answers()
    registry.failing = 503
    with pytest.raises(RegistryUnavailable, match="answered 503"):
        of.require_answers()
    registry.failing = 401
    with pytest.raises(RegistryRefused, match="refuses the login"):
        of.require_answers()
    registry.stop()
    with pytest.raises(RegistryUnavailable, match="does not answer"):
        of.require_answers()


def test_a_drain_ends_the_wait(registry: SchemaRegistry) -> None:
    registry.failing = 500

    def check() -> None:
        raise Ended

    with pytest.raises(Ended):
        store(registry, check=check).resolve(raw(1), [source()])


def test_an_id_that_is_missing_is_asked_for_after_a_minute(registry: SchemaRegistry) -> None:
    clock = Clock()
    of = store(registry, sleep_s=clock.sleep, clock=clock)
    assert of.resolve(raw(1), [source()])["main"][1].is_missing
    assert (clock.slept, len(registry.asked)) == ([1, 1], 2)  # one host of a registry may be behind
    registry.register("t-value", schema("id"))
    clock.now_ms += 59_999
    assert of.resolve(raw(1), [source()])["main"][1].is_missing
    clock.now_ms += 1
    assert not are_known(raw(1), [source()], of.known)
    assert of.resolve(raw(1), [source()])["main"][1].text == schema("id")


def test_a_missing_id_that_is_a_minute_old_is_still_returned(registry: SchemaRegistry) -> None:
    clock = Clock()
    of = store(registry, sleep_s=clock.sleep, clock=clock)
    of.resolve(raw(1), [source()])
    clock.now_ms += 59_000
    known = of.resolve(raw(1, 2), [source()])["main"]  # id 2 costs 2 s, after which id 1 is a minute old
    assert (known[1].is_missing, known[2].is_missing) == (True, True)


def test_few_missing_ids_are_kept(registry: SchemaRegistry) -> None:
    clock = Clock()
    of = store(registry, sleep_s=clock.sleep, clock=clock, most_unusable=3)
    assert of.resolve(raw(1, 2, 3, 4, 5), [source()])["main"].keys() == {1, 2, 3, 4, 5}, "a batch gets all it needs"
    assert of.resolve(raw(1), [source()])["main"].keys() == {1, 3, 4, 5}, "the newest three, and id 1 again"


@pytest.mark.parametrize("content", ["", "[]", '{"URL": {"1": {"new": 1}}}', '{"URL": {"1": {"problem": "x"}}}'])
def test_a_file_of_another_version_is_not_used(registry: SchemaRegistry, tmp_path: Path, content: str) -> None:
    one = registry.register("t-value", schema("id"))
    (tmp_path / "schemas.json").write_text(content.replace("URL", registry.url))
    assert store(registry, tmp_path).resolve(raw(one), [source()])["main"][one].text == schema("id")


def test_a_schema_of_no_use_is_asked_for_again(registry: SchemaRegistry, tmp_path: Path) -> None:
    """Its reference was missing, or the compiler was killed: both pass."""
    clock, place = Clock(), json.dumps({"type": "record", "name": "Place", "fields": []})
    main = json.dumps({"type": "record", "name": "R", "fields": [{"name": "place", "type": "Place"}]})
    references = [{"name": "Place", "subject": "place", "version": 1}]
    id_ = registry.register("t-value", main, references=references)
    of = store(registry, tmp_path, clock=clock)
    missing = f"registry.main: {registry.url} has no /subjects/place/versions/1"
    assert of.resolve(raw(id_), [source()])["main"][id_].problem == missing
    registry.register("place", place)
    assert store(registry, tmp_path).resolve(raw(id_), [source()])["main"][id_].problem is None, "no file has it"
    clock.now_ms += 59_999
    assert of.resolve(raw(id_), [source()])["main"][id_].problem == missing
    clock.now_ms += 1
    assert not are_known(raw(id_), [source()], of.known)
    assert of.resolve(raw(id_), [source()])["main"][id_].problem is None


def test_a_first_start_is_checked_again_after_its_refusal(registry: SchemaRegistry, tmp_path: Path) -> None:
    """The first source fits and the second one does not."""
    registry.register("t-value", schema("id"))
    registry.register("u-value", schema("id", type_="int"))
    wrong = source(name="u", subject="u-value", fields={"id": "boolean"})
    for _ in range(2):
        with pytest.raises(InvalidSpec, match=r"operators\.u\.fields"):
            store(registry, tmp_path).check_latest([source(), wrong], "t.toml")


def test_many_missing_ids_cost_one_pause(registry: SchemaRegistry) -> None:
    clock, found = Clock(), registry.register("t-value", schema("id"), id_=3)
    known = store(registry, sleep_s=clock.sleep).resolve(raw(1, 2, 3, 4), [source()])["main"]
    assert {id_: each.is_missing for id_, each in known.items()} == {1: True, 2: True, found: False, 4: True}
    assert clock.slept == [1, 1]


def test_references_of_avro_come_before_their_users(registry: SchemaRegistry) -> None:
    deep = json.dumps({"type": "enum", "name": "Deep", "symbols": ["a"]})
    registry.register("deep", deep)
    place = json.dumps({"type": "record", "name": "Place", "fields": [{"name": "d", "type": "Deep"}]})
    registry.register("place", place, references=[{"name": "Deep", "subject": "deep", "version": 1}])
    main = json.dumps({"type": "record", "name": "R", "fields": [{"name": "place", "type": "Place"}]})
    references = [{"name": "Place", "subject": "place", "version": 1}]
    id_ = registry.register("t-value", main, references=references)
    found = store(registry).resolve(raw(id_), [source()])["main"][id_]
    assert (found.text, found.referenced, found.problem) == (main, (deep, place), None)


def test_protobuf_is_compiled_with_its_references(registry: SchemaRegistry) -> None:
    registry.register("b", 'syntax = "proto3"; package b; message B { int32 n = 1; }', "PROTOBUF")
    text = 'syntax = "proto3"; import "b.proto"; message M { b.B b = 1; }'
    references = [{"name": "b.proto", "subject": "b", "version": 1}]
    id_ = registry.register("t-value", text, "PROTOBUF", references)
    found = store(registry).resolve(raw(id_), [source(format=Format.PROTOBUF)])["main"][id_]
    assert (message_names(found.descriptors), found.problem) == (["M"], None)


@pytest.mark.parametrize(
    ("kind", "text", "problem"),
    [
        ("AVRO", '"string"', "is not an Avro schema of records"),
        ("AVRO", "{", "is not a valid Avro schema"),
        ("AVRO", schema("id", type_="Gone"), "is not a valid Avro schema"),
        ("PROTOBUF", "message M {", "cannot be compiled: schema.proto:1:12: Reached end of input"),
        ("PROTOBUF", 'syntax = "proto3";', "has no message"),
        ("PROTOBUF", 'edition = "2099"; message M {}', "cannot be compiled"),
    ],
)
def test_a_schema_of_no_use_says_why(registry: SchemaRegistry, kind: str, text: str, problem: str) -> None:
    id_ = registry.register("t-value", text, kind)
    found = store(registry).resolve(raw(id_), [source()])["main"][id_]
    assert (found.problem or "").startswith(problem)


def test_a_registry_names_no_other_path(registry: SchemaRegistry) -> None:
    references = [{"name": "b.proto", "subject": "a/b", "version": "1/../../../config?x=#"}]
    id_ = registry.register("t-value", 'syntax = "proto3"; message M {}', "PROTOBUF", references)
    assert store(registry).resolve(raw(id_), [source()])["main"][id_].problem is not None
    assert registry.asked[-1] == "/subjects/a%2Fb/versions/1%2F..%2F..%2F..%2Fconfig%3Fx%3D%23"


def test_an_answer_that_is_too_deep_is_no_answer(registry: SchemaRegistry) -> None:
    deep: Any = "int"
    for _ in range(300):
        deep = [deep]
    id_ = registry.register("t-value", schema("id"))
    registry._schemas[id_]["metadata"] = deep
    with pytest.raises(RegistryUnavailable, match="JSON that cannot be read: it is nested more than 200 levels deep"):
        client_of(registry).schema(id_)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"<html>", r"answered /x with JSON that cannot be read: Expecting value: line 1 column 1 \(char 0\)$"),
        (b'{"id": 7}', "answered /x without a schema in JSON$"),
        (b" " * (MOST_BYTES + 1), "answered /x with more than 16,777,216 bytes$"),
    ],
    ids=["no JSON", "no schema", "too long"],
)
def test_an_answer_without_a_schema_says_what_it_is(registry: SchemaRegistry, content: bytes, said: str) -> None:
    with pytest.raises(RegistryUnavailable, match=said):
        client_of(registry)._parsed("/x", content)


@pytest.mark.parametrize("references", [[{"subject": "t-value"}], ["t-value"], 7])
def test_references_of_another_form_are_a_problem(registry: SchemaRegistry, references: Any) -> None:
    id_ = registry.register("t-value", schema("id"))
    registry._schemas[id_]["references"] = references
    found = store(registry).resolve(raw(id_), [source()])["main"][id_]
    assert found.problem == "has references of an unknown form"


def test_a_login_is_sent_and_its_refusal_names_the_keys(registry: SchemaRegistry) -> None:
    one = registry.register("t-value", schema("id"))
    registry.login = "ann:s3cret"
    assert one in store(registry).resolve(raw(one), [source()])["main"]
    registry.login = "ann:other"
    with pytest.raises(
        InvalidArgument, match=r"registry.main: .* refuses the login \(401\); correct username and password"
    ):
        store(registry).resolve(raw(one), [source()])
    registry.login, registry.failing = "ann:s3cret", 403
    with pytest.raises(
        InvalidArgument, match=rf"does not permit /schemas/ids/{one} \(403\); grant the login the right"
    ):
        store(registry).resolve(raw(one), [source()])
    registry.failing = None
    anonymous = SchemaStore(read_registries("t.toml", {"main": {"url": registry.url}}), None)
    with pytest.raises(InvalidArgument, match="write username and password"):
        anonymous.resolve(raw(one), [source()])


def test_a_schema_that_a_login_may_not_read_stops_no_other(registry: SchemaRegistry) -> None:
    secret, one = registry.register("secret", schema("id")), registry.register("t-value", schema("id"))
    registry.forbidden = {secret}
    clock = Clock()
    kept = store(registry, clock=clock)
    found = kept.resolve(raw(secret, one), [source()])["main"]
    assert found[one].is_usable
    assert (found[secret].problem or "").startswith("may not be read: registry.main: ")
    registry.forbidden = set()
    assert not kept.resolve(raw(secret), [source()])["main"][secret].is_usable
    clock.now_ms += 60_000  # it is asked for again after a minute
    assert kept.resolve(raw(secret), [source()])["main"][secret].is_usable


def test_a_latest_version_that_does_not_fit_stops_the_start(registry: SchemaRegistry) -> None:
    registry.register("t-value", schema("id"))
    store(registry).check_latest([source()], "t.toml")
    registry.register("t-value", schema("id", type_="int"))
    seen = "are not those of t-value, whose latest version is schema 2: id is int, not boolean"
    with pytest.raises(InvalidSpec, match=seen):
        store(registry).check_latest([source(fields={"id": "boolean"})], "t.toml")


def test_a_wrong_latest_version_stops_no_stream_that_ran(registry: SchemaRegistry, tmp_path: Path) -> None:
    one = registry.register("t-value", schema("id"))
    store(registry, tmp_path).resolve(raw(one), [source()])
    two = registry.register("t-value", schema("id", type_="int"))
    of = store(registry, tmp_path)
    of.check_latest([source(fields={"id": "timestamp"})], "t.toml")
    assert two in of.known["main"]


def test_a_start_needs_neither_a_subject_nor_a_registry(registry: SchemaRegistry) -> None:
    store(registry).check_latest([source()], "t.toml")
    registry.stop()
    store(registry).check_latest([source()], "t.toml")


def test_a_sample_is_read_by_its_schemas_and_never_waits(registry: SchemaRegistry) -> None:
    one = registry.register("t-value", schema("id"))
    value = b"\0" + one.to_bytes(4, "big") + b"\x04a1"  # a text of 2 bytes
    sample = TopicSample("t", {0: (0, 1)}, (SampledRecord(0, 0, None, value, (), 0),), complete=True)
    asked = store_of_check(registry)
    (row,) = parse_sample(source(timestamp_range_ms=(0, 1)), sample, 0, asked).to_dicts()
    assert (row["t"]["id"], row["reason"]) == ("a1", None)
    registry.stop()
    with pytest.raises(InvalidArgument, match=r"waits for the schema 1: registry\.main: .* does not answer"):
        parse_sample(source(), sample, 0, store_of_check(registry))


def store_of_check(registry: SchemaRegistry) -> SchemasOf:
    table = {
        "kind": "source",
        "topic": "t",
        "format": "avro",
        "registry": "main",
        "fields": "id string",
        "bound": "1 s",
    }
    content = {"name": "t", "registry": {"main": {"url": registry.url}}, "operators": {"t": table}}
    return Brokers((), None, {}).schemas(parse(content, file="t.toml"))
