"""Marks of time in compacted topics are refused at all sinks.

A broker that was named must answer.
"""

from __future__ import annotations

import socket
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from tidemark.cli.main import _parser
from tidemark.errors import InvalidArgument, InvalidSpec
from tidemark.model.topology import parse
from tidemark.stream.kafka import client
from tidemark.stream.kafka.client import refuse_marks_in_compacted

SINK = '[operators.{0}]\nkind = "sink"\ninput = "a"\ntopic = "{0}"\nmarks = true\n'
TOML = (
    'name = "play"\n[operators.a]\nkind = "source"\ntopic = "t"\nfields = "k string"\nbound = "1 s"\n'
    f"{SINK.format('x')}{SINK.format('y')}{SINK.format('z')}"
)


def test_marks_are_refused_at_all_sinks_at_once() -> None:
    topology = parse(tomllib.loads(TOML), file="play.toml")
    broker = SimpleNamespace(is_compacted=lambda sink: sink.topic in {"x", "z"})
    with pytest.raises(InvalidSpec) as refused:
        refuse_marks_in_compacted(topology, topology.sub_topologies[0], broker)
    keys = [line.split(": ")[1] for line in str(refused.value).splitlines()]
    assert keys == ["operators.x.marks", "operators.z.marks"]


def test_a_broker_that_was_named_must_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "TIMEOUT_S", 0.5)
    file = tmp_path / "play.toml"
    file.write_text(TOML)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # bound, without a listener
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        options = _parser().parse_args(["--home", str(tmp_path), "check", str(file), "--bootstrap", address])
        with pytest.raises(
            InvalidArgument,
            match=f"^--bootstrap {address} .cluster default.: no Kafka broker answered within 0.5 s",
        ):
            options.run(options)
