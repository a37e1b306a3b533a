"""Marks of time in compacted topics are refused at all sinks at once."""

from __future__ import annotations

import tomllib
from types import SimpleNamespace

import pytest

from tidemark.errors import InvalidSpec
from tidemark.spec.topology import parse
from tidemark.stream.kafka import refuse_marks_in_compacted

SINK = '[operators.{0}]\nkind = "sink"\ninput = "a"\ntopic = "{0}"\nmarks = true\n'
TOML = (
    'name = "play"\n[operators.a]\nkind = "source"\ntopic = "t"\nfields = "k string"\nbound = "1 s"\n'
    f"{SINK.format('x')}{SINK.format('y')}{SINK.format('z')}"
)


def test_marks_are_refused_at_all_sinks_at_once() -> None:
    topology = parse(tomllib.loads(TOML), file="play.toml")
    broker = SimpleNamespace(is_compacted=lambda topic: topic in {"x", "z"})
    with pytest.raises(InvalidSpec) as refused:
        refuse_marks_in_compacted(topology, topology.sub_topologies[0], broker)
    keys = [line.split(": ")[1] for line in str(refused.value).splitlines()]
    assert keys == ["operators.x.marks", "operators.z.marks"]
