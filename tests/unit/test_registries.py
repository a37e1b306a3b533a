"""Registries, formats and their keys in files, and what is refused there."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from tidemark.errors import InvalidArgument, InvalidSpec
from tidemark.model.kinds.kafka_end import Format
from tidemark.model.kinds.source import Source
from tidemark.model.project.connections import shared_clusters
from tidemark.model.project.registries import (
    passwords_in_clear,
    read_registries,
    shared_registries,
    with_secrets,
)
from tidemark.model.topology import Topology, parse
from tidemark.stream.operate.steps import Steps
from tidemark.stream.read.joined_tables import Reference
from tidemark.stream.schemas.protoc import compiled

URL = "https://registry.example.org"
ENV = {"env": "SECRET"}


def registry(**keys: Any) -> Any:
    return read_registries("t.toml", {"main": {"url": URL, **keys}})["main"]


def topology(folder: Path | None = None, **keys: Any) -> Topology:
    table = {"kind": "source", "topic": "readings", "fields": "id string, n int", "bound": "1 s", **keys}
    content = {"name": "t", "registry": {"main": {"url": URL}}, "operators": {"readings": table}}
    return parse(content, file="t.toml", folder=folder)


def source(folder: Path | None = None, **keys: Any) -> Source:
    (found,) = topology(folder, **keys).outside_sources
    return found


def test_a_slash_at_the_end_of_an_address_does_not_count() -> None:
    assert registry(url=f"{URL}/ccompat/").url == f"{URL}/ccompat"


@pytest.mark.parametrize(
    ("keys", "mistake"),
    [
        (
            {"url": "registry:8081"},
            "registry.main.url: is 'registry:8081'; write url = \"https://registry.example.org\"",
        ),
        ({"url": "ftp://registry"}, "registry.main.url: is 'ftp://registry'"),
        ({"url": "http://ann:s3cret@registry"}, "registry.main.url: has a login; write username and password"),
        ({"url": f"{URL}?x=1"}, "with a query"),
        ({"url": "htp://ann:s3cret@registry"}, "registry.main.url: is not an address"),
        ({"url": "http://ann:s3cret@registry:0x"}, "registry.main.url: is not an address"),
        ({"username": "ann"}, "registry.main.username: is written without password"),
        ({"password": ENV}, "registry.main.password: is written without username"),
        ({"username": "ann", "password": "s3cret"}, "registry.main.password: is written in the file itself"),
        ({"url": "http://r", "ssl_ca": "ca.pem"}, "registry.main.ssl_ca: is written, but url is 'http://r'"),
        ({"user": "ann"}, "registry.main.user: is not a valid key here; did you mean username?"),
    ],
)
def test_a_mistake_in_a_registry_names_its_key(keys: dict[str, Any], mistake: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        registry(**keys)
    assert mistake in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_a_secret_is_looked_up_and_never_shown() -> None:
    main = registry(username="ann", password=ENV)
    assert {*main.references} == {"registry.main.password"}
    with pytest.raises(InvalidArgument, match=r"registry\.main\.password: environment variable SECRET is not set"):
        with_secrets({"main": main}, {}, {})["main"].text("password")
    for environ, given in (({"SECRET": "s3cret"}, {}), ({}, {"registry.main.password": "s3cret"})):
        able = with_secrets({"main": main}, environ, given)["main"]
        assert able.text("password") == "s3cret"
        assert "s3cret" not in repr(able)
        assert b"s3cret" not in pickle.dumps(able)


def test_a_secret_of_a_cluster_is_none_of_a_registry() -> None:
    main = registry(username="ann", password=ENV)
    with pytest.raises(InvalidArgument):
        with_secrets({"main": main}, {}, {"main.password": "s3cret"})["main"].text("password")


def test_a_password_without_tls_is_a_warning() -> None:
    registries = {"a": registry(url="http://r", username="ann", password=ENV), "b": registry(url="http://r")}
    assert passwords_in_clear(registries) == ["registry.a.url: warning: http sends the password unencrypted; use https"]


def test_a_file_of_connections_has_clusters_and_registries(tmp_path: Path) -> None:
    for name in ("topologies", "expectations"):
        (tmp_path / name).mkdir()
    text = f'[kafka.eu]\nbootstrap = "b:1"\n[registry.main]\nurl = "{URL}"\n'
    (tmp_path / "connections.toml").write_text(text)
    assert [*shared_clusters(tmp_path / "topologies")] == ["eu"]
    assert [*shared_registries(tmp_path / "topologies")] == ["main"]


def test_a_source_names_a_registry_and_its_subject() -> None:
    read = source(format="protobuf", registry="main")
    assert (read.format, read.registry, read.subject) == (Format.PROTOBUF, "main", "readings-value")
    assert source(format="avro", registry="main", subject="plant.Reading").subject == "plant.Reading"
    assert [*topology(format="avro", registry="main").registries_used] == ["main"]
    assert topology().registries_used == {}


@pytest.mark.parametrize(
    ("keys", "mistake"),
    [
        ({"format": "avro"}, "schema: is missing, and format is 'avro'; write schema = \"readings.avsc\""),
        ({"format": "protobuf"}, "schema: is missing, and format is 'protobuf'; write schema = "),
        ({"format": "protobuf", "schema": "r.desc"}, "message: is missing, and format is 'protobuf'; write message = "),
        ({"format": "protobuf", "schema": "r.desc", "message": "a b"}, "message: is 'a b', which is not the name"),
        ({"format": "avro", "schema": "gone.avsc"}, "schema: is 'gone.avsc': No such file"),
        ({"format": "avro", "schema": "r.avsc", "registry": "main"}, "schema: is 'r.avsc', but registry is set"),
        ({"format": "avro", "schema": "r.desc"}, "schema: is 'r.desc', which is not UTF-8"),
        ({"format": "avro", "registry": "other"}, "registry: is 'other', which neither this file nor connections.toml"),
        ({"schema": "r.avsc"}, "schema: is 'r.avsc', but format is 'json'; leave it out, or write format = \"avro\""),
        ({"subject": "x"}, "subject: is 'x', but there is no registry; leave it out, or write registry ="),
        ({"format": "parquet"}, "format: is 'parquet'; use one of json, avro, protobuf for topics"),
        ({"topic": None, "files": "in", "registry": "main"}, "registry: is 'main', but there is no topic"),
    ],
)
def test_a_mistake_in_a_format_names_its_key(tmp_path: Path, keys: dict[str, Any], mistake: str) -> None:
    (tmp_path / "r.avsc").write_text("{}")
    (tmp_path / "r.desc").write_bytes(b"\xff")
    given = {key: value for key, value in ({"topic": "readings"} | keys).items() if value is not None}
    table = {"kind": "source", "fields": "id string, at bigint", "timestamp": "at", "bound": "1 s", **given}
    content = {"name": "t", "registry": {"main": {"url": URL}}, "operators": {"readings": table}}
    with pytest.raises(InvalidSpec) as refused:
        parse(content, file="t.toml", folder=tmp_path)
    assert f"t.toml: operators.readings.{mistake}" in str(refused.value)


def test_a_sink_writes_no_protobuf(tmp_path: Path) -> None:
    readings = {"kind": "source", "topic": "r", "fields": "id string", "bound": "1 s"}
    out = {"kind": "sink", "input": "readings", "topic": "o", "format": "protobuf"}
    with pytest.raises(InvalidSpec, match=r"operators.out.format: is 'protobuf'; use one of json, avro"):
        parse({"name": "t", "operators": {"readings": readings, "out": out}}, file="t.toml", folder=tmp_path)


def test_descriptors_are_checked_before_a_start(tmp_path: Path) -> None:
    (tmp_path / "r.desc").write_bytes(
        compiled('syntax = "proto3"; package p; message R { string id = 1; int32 n = 2; }', {})
    )
    (tmp_path / "odd.desc").write_bytes(b"\xff")

    def steps(**keys: Any) -> Steps:
        return Steps(topology(tmp_path, format="protobuf", **keys), Reference(tmp_path))

    steps(schema="r.desc", message="p.R")
    wrong = r"operators\.readings\.message: is 'p\.Wrong', which the schema does not have; use one of p\.R"
    with pytest.raises(InvalidSpec, match=wrong):
        steps(schema="r.desc", message="p.Wrong")
    with pytest.raises(InvalidSpec, match=r"operators\.readings\.schema: is not a set of Protobuf descriptors; make"):
        steps(schema="odd.desc", message="p.R")
