"""Topologies derived from any sample are accepted by `check`.

Names of the topic and its fields are arbitrary.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tidemark.cli.project.check import check
from tidemark.cli.project.from_topic import write
from tidemark.cli.project.init import init
from tidemark.model.kinds.source import Source
from tidemark.model.kinds.table import KeyedTable
from tidemark.model.project.files import Project
from tidemark.model.tables.catalog import TABLES
from tidemark.model.toml_operators import RESERVED
from tidemark.model.topology import load
from tidemark.sampling.proposal import Proposal, propose
from tidemark.sampling.topic_sample import SampledRecord, TopicSample

NOON_MS = 1_784_548_800_000


def proposed(
    folder: Path,
    topic: str,
    objects: list[dict[str, Any]],
    key: str | None = None,
    kafkas_key: bytes | None = None,
) -> tuple[Project, str]:
    """Creates a project from a sample of *objects* of *topic*, all with *kafkas_key*.

    They come a second apart. Returns the name of its topology, too.
    """
    records = tuple(
        SampledRecord(n % 2, n // 2, kafkas_key, json.dumps(each).encode(), (), NOON_MS + 1_000 * n)
        for n, each in enumerate(objects)
    )
    ends = {0: (0, len(objects)), 1: (0, len(objects))}
    found: Proposal = propose(
        TopicSample(topic, ends, records, complete=True), "localhost:9", NOON_MS + 60_000, key=key, own_cluster=False
    )
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
    objects = [{"eventTime": NOON_MS, "orderNo": n, "note": f"{n}"} for n in range(9)]
    project, name = proposed(tmp_path, "orders", objects, key="orderNo")
    _, table, _ = load(project.topologies / f"{name}.toml").operators.values()
    assert isinstance(table, KeyedTable)
    assert table.key == ("order_no",)


def test_a_key_that_is_no_text_is_not_proposed(tmp_path: Path) -> None:
    objects = [{"device": f"d{n % 2}", "event_time": NOON_MS + 1_000 * n} for n in range(10)]
    project, name = proposed(tmp_path, "readings", objects, kafkas_key=b"\xff\x01")
    assert 'key = ["device"]' in (text := (project.topologies / f"{name}.toml").read_text())
    assert "10 of 10 records have no key that is text" in text
    assert "kafka_key" not in text


def test_fields_may_be_named_as_columns_of_our_own(tmp_path: Path) -> None:
    names = [*sorted(RESERVED), "event_time", "window_start", "window_end", "final", "last_seen_at", "select", "_read"]
    objects = [{"id": f"s{n % 2}", **dict.fromkeys(names, "x"), "at": NOON_MS + 1_000 * n} for n in range(6)]
    project, _ = proposed(tmp_path, "readings", objects)
    assert checked(project) == []


def test_rare_fields_are_kept_as_json_and_parts_of_objects_shown(tmp_path: Path) -> None:
    objects = [{"id": f"s{n % 3}", "at": NOON_MS + 1_000 * n, "reading": {"value": n}} for n in range(99)]
    objects[7] |= {"vlaue": 1}
    project, name = proposed(tmp_path, "readings", objects)
    source, *_ = load(project.topologies / f"{name}.toml").operators.values()
    assert isinstance(source, Source)
    assert source.fields == {"id": "string", "at": "bigint", "reading": "string"}
    assert source.other_fields == "other_fields"
    text = (project.topologies / f"{name}.toml").read_text()
    assert "an object, whose value is column ->> '$.value' in SQL" in text
    assert "as JSON, what few records have or no column can be named: vlaue" in text
    # A record each second: 2 * (1 s of pause + 10 s of work), rounded up.
    assert 'error_after = "30 s"  # twice, rounded up: the longest pause 1 s, 10 s of work' in (
        project.slas.read_text()
    )
