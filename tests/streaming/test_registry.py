"""A real driver reads a topic by the schemas of a registry.

The registry is that of tests/support, which has the requests of Confluent's interface that a driver sends. Records are
encoded here, byte by byte.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from streaming.drivers import OnlyDriver, SharedDriver

from support.schema_registry import SchemaRegistry
from tidemark.local import broker as embedded
from tidemark.stream.schemas.protoc import compiled

NOON = 1_400_000_000_000
FIELDS = "device string, temp_c double, at timestamp, more string"
TOPOLOGY = """
name = "registered"
window = "5 s"
trigger = "500 ms"
facts_every = "0 s"
shards = {shards}

[registry.main]
url = "{url}"
username = "ann"
password = {{ file = "password" }}

[operators.avros]
kind = "source"
sub_topology = "all"
topic = "avros_{shards}"
format = "avro"
registry = "main"
fields = "{fields}"
timestamp = "at"
bound = "1 min"

[operators.protos]
kind = "source"
topic = "protos_{shards}"
format = "protobuf"
registry = "main"
fields = "{fields}"
timestamp = "at"
bound = "1 min"

[operators.plain]
kind = "source"
topic = "plain_{shards}"
format = "protobuf"
schema = "readings.desc"
message = "plant.Reading"
fields = "{fields}"
timestamp = "at"
bound = "1 min"

[operators.readings]
kind = "union"
inputs = ["avros", "protos", "plain"]

[operators.newest]
kind = "table"
input = "readings"
key = ["device"]

[operators.kept]
kind = "sink"
input = "newest"
table = "kept"
"""


def avro_schema(temp_type: str = "double", **more: str) -> str:
    fields: list[dict[str, Any]] = [
        {"name": "device", "type": "string"},
        {"name": "temp_c", "type": ["null", temp_type]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ]
    fields += [{"name": name, "type": type_} for name, type_ in more.items()]
    return json.dumps({"type": "record", "name": "Reading", "fields": fields})


def proto_schema(temp_type: str = "double", more: str = "") -> str:
    head = 'syntax = "proto3"; package plant; import "google/protobuf/timestamp.proto"; message Reading {'
    fields = f"string device = 1; optional {temp_type} temp_c = 2; google.protobuf.Timestamp at = 3;"
    return f"{head} {fields} {more} }}"


def varint(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def avro(id_: int, device: str, temp_c: float, more: str = "") -> bytes:
    body = varint(2 * len(device)) + device.encode() + b"\x02" + struct.pack("<d", temp_c) + varint(2 * NOON)
    return b"\0" + struct.pack(">I", id_) + body + (varint(2 * len(more)) + more.encode() if more else b"")


def proto(id_: int, device: str, temp_c: float, more: str = "") -> bytes:
    at = b"\x08" + varint(NOON // 1_000)
    body = b"\x0a" + varint(len(device)) + device.encode() + b"\x11" + struct.pack("<d", temp_c)
    body += b"\x1a" + varint(len(at)) + at + (b"\x22" + varint(len(more)) + more.encode() if more else b"")
    return b"\0" + struct.pack(">I", id_) + b"\0" + body


@pytest.mark.parametrize("shards", [1, pytest.param(2, marks=pytest.mark.long)])
def test_versions_come_while_a_registry_comes_and_goes(
    tmp_path: Path, broker: str, shared: SharedDriver, shards: int
) -> None:
    avros, protos, plain = f"avros_{shards}", f"protos_{shards}", f"plain_{shards}"
    embedded.create_topics(broker, {avros: 1, protos: 1, plain: 1})
    producer = Producer({"bootstrap.servers": broker})

    def send(of_avro: bytes, of_proto: bytes) -> None:
        producer.produce(avros, of_avro)
        producer.produce(protos, of_proto)
        assert producer.flush(30) == 0

    (tmp_path / "password").write_text("s3cret\n")
    (tmp_path / "readings.desc").write_bytes(compiled(proto_schema(more="string more = 4;"), {}))
    producer.produce(plain, proto(0, "q", 3.5, "z")[6:])  # without id and indexes
    with SchemaRegistry(login="ann:s3cret") as registry:
        register = registry.register
        send(
            avro(register(f"{avros}-value", avro_schema()), "a", 1.5),
            proto(register(f"{protos}-value", proto_schema(), "PROTOBUF"), "p", 2.5),
        )
        toml = TOPOLOGY.format(shards=shards, url=registry.url, fields=FIELDS)
        with OnlyDriver(tmp_path, toml, broker, shared=shared) as driver:

            def kept(number: int) -> list[tuple[str, float, str | None]]:
                rows = driver.wait_for("kept", number)
                return sorted((row["device"], row["temp_c"], row["more"]) for row in rows)

            assert kept(3) == [("a", 1.5, None), ("p", 2.5, None), ("q", 3.5, "z")]
            # A compatible version has another field, which is declared already.
            a2 = register(f"{avros}-value", avro_schema(more="string"))
            p2 = register(f"{protos}-value", proto_schema(more="string more = 4;"), "PROTOBUF")
            send(avro(a2, "a2", -1.0, "x"), proto(p2, "p2", -2.0, "y"))
            assert {("a2", -1.0, "x"), ("p2", -2.0, "y")} < {*kept(5)}
            # In an incompatible one the temperature is a text.
            a3 = register(f"{avros}-value", avro_schema("string"))
            p3 = register(f"{protos}-value", proto_schema("string"), "PROTOBUF")
            send(avro(a3, "a3", 0.0), proto(p3, "p3", 0.0))
            bad = driver.wait_for("quarantine", 2)
            assert sorted((row["source"], row["reason"], row["detail"]) for row in bad) == [
                ("avros", "incompatible_schema", f"schema {a3} does not fit the fields: temp_c is string, not double"),
                (
                    "protos",
                    "incompatible_schema",
                    f"schema {p3} does not fit the fields: temp_c is string, not double (message plant.Reading)",
                ),
            ]
            assert {row["value"] for row in bad} == {avro(a3, "a3", 0.0), proto(p3, "p3", 0.0)}
            # In an outage known ids are processed, and a new one waits.
            registry.stop()
            send(avro(a2, "a4", 4.0, "known"), proto(p2, "p4", 4.5, "known"))
            assert len(kept(7)) == 7
            a5 = register(f"{avros}-value", avro_schema(more="string", extra="string"))
            producer.produce(avros, avro(a5, "a5", 5.0, "z") + b"\x02x")
            assert producer.flush(30) == 0

            def waits(id_: int) -> bool:
                beat = driver.beat()
                return ((beat and beat.reason) or "").startswith(f"waits for the schema {id_}: registry.main: ")

            driver.wait(lambda: waits(a5), "a batch that waits for a schema")
            assert (len(driver.rows("kept")), len(driver.rows("quarantine"))) == (7, 2)
            registry.start()
            assert ("a5", 5.0, "z") in kept(8)
            # The wait for another schema ends with a drain, and the next driver begins in the outage.
            registry.stop()
            a6 = register(f"{avros}-value", avro_schema(more="string", extra="long"))
            send(avro(a6, "a6", 6.0, "z") + b"\x02", proto(p2, "p6", 6.5, "known"))
            driver.wait(lambda: waits(a6), "a batch that waits for another schema")
            assert driver.drain() == 0
            log = driver.log()
        if shards == 1:
            with OnlyDriver(tmp_path, toml, broker, shared=shared) as driver:
                driver.wait(lambda: waits(a6), "a driver that starts in an outage, and waits")
                registry.start()
                assert {("a6", 6.0, "z"), ("p6", 6.5, "known")} < {*kept(10)}
                assert driver.drain() == 0
        assert len(driver.rows("quarantine")) == 2
        log += driver.log()
    assert "s3cret" not in log
    asked = [path for path in registry.asked if "/schemas/ids/" in path]
    assert len(asked) == len(set(asked)) == 6 - (shards == 2)  # the latest versions at the start are known already
