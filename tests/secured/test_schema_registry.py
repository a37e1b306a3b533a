"""A schema registry needs a certificate that a trusted CA signed."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from secured.secured_broker import certificates

from support.schema_registry import SchemaRegistry
from tidemark.errors import InvalidArgument
from tidemark.model.kinds.kafka_end import Format
from tidemark.model.kinds.source import Source
from tidemark.model.project.registries import read_registries
from tidemark.stream.schemas.known_schemas import SchemaStore

SCHEMA = json.dumps({"type": "record", "name": "R", "fields": [{"name": "id", "type": "string"}]})
RAW = pl.DataFrame({"source": "t", "value": [b"\0\0\0\0\x01"]})


class Untrusted(Exception):
    """Ends the wait for a registry that is not trusted."""


def ask(url: str, home: Path, **keys: str) -> list[int]:
    source = Source(
        name="t",
        topic="t",
        timestamp_range_ms=(0, 1),
        bound_ms=0,
        fields={"id": "string"},
        format=Format.AVRO,
        registry="main",
    )

    def refuse_to_wait() -> None:
        if store.trouble is not None:
            raise Untrusted(store.trouble)

    store = SchemaStore(read_registries("t.toml", {"main": {"url": url, **keys}}, home), None, refuse_to_wait)
    return [*store.resolve(RAW, [source])["main"]]


def test_a_registry_needs_a_certificate_of_a_trusted_ca(tmp_path: Path) -> None:
    certificates(tmp_path)
    with SchemaRegistry(tls=tmp_path / "server.pem") as registry:
        registry.register("t-value", SCHEMA)
        assert ask(registry.url, tmp_path, ssl_ca="ca.pem") == [1]
        with pytest.raises(Untrusted, match="certificate verify failed"):
            ask(registry.url, tmp_path)
        (tmp_path / "odd.pem").write_text("-----BEGIN CERTIFICATE-----\nodd\n-----END CERTIFICATE-----\n")
        with pytest.raises(InvalidArgument, match=r"registry\.main\.ssl_ca: is not a PEM file with certificates"):
            ask(registry.url, tmp_path, ssl_ca="odd.pem")
