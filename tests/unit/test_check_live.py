"""What `tidemark check --live` says about sampled records, without a broker."""

from __future__ import annotations

import tomllib

import polars as pl
import pytest

from support.topologies import sink, source, topology_of
from tidemark.cli.project.check_live import _examples
from tidemark.model.kinds.source import Source
from tidemark.model.topology import parse

DELETES = "correct what sends it, or set `key`, with which a record without a value deletes its key"


@pytest.mark.parametrize(
    ("key", "reason", "value", "remedy"),
    [
        (None, "wrong_type", b'{"id": 1}', "correct `fields`, or what sends it"),
        (None, "null_value", None, DELETES),
        ("id", "null_key", None, "correct what sends it"),
    ],
)
def test_a_remedy_can_help_the_record(key: str | None, reason: str, value: bytes | None, remedy: str) -> None:
    keyed = {"key": key} if key else {}
    text = topology_of(events=source("id string", **keyed), board=sink("events", table="board"))
    operator = parse(tomllib.loads(text), file="play.toml").operators["events"]
    assert isinstance(operator, Source)
    rows = pl.DataFrame([{"reason": reason, "partition": 0, "offset": 5, "value": value}])
    (line,) = _examples(operator, rows)
    shown = "null" if value is None else value.decode()
    assert line == f"warning: {reason}; {remedy}; for example at partition 0, offset 5: {shown}"
