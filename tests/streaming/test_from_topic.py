"""`tidemark init --from-topic` writes valid topologies for several record shapes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tidemark.cli.main import _parser
from tidemark.cli.project.check import check
from tidemark.errors import InvalidArgument
from tidemark.local import broker as embedded
from tidemark.model.kinds.source import Source
from tidemark.model.kinds.table import KeyedTable
from tidemark.model.project.connections import DEFAULT
from tidemark.model.project.files import Project
from tidemark.model.slas import sla_spec
from tidemark.model.topology import Topology, load

Records = Iterable[tuple[int, str | None, object]]
"""Partition, key and value; values that are not bytes become JSON.

None stays as it is.
"""


def topic(broker: str, name: str, records: Records) -> None:
    embedded.create_topics(broker, {name: 3})
    producer = Producer({"bootstrap.servers": broker})
    for partition, key, value in records:
        producer.produce(
            name, value if value is None or isinstance(value, bytes) else json.dumps(value), key, partition
        )
    assert producer.flush(30) == 0


def init(folder: Path, broker: str, name: str, *more: str) -> tuple[Topology, Source, KeyedTable]:
    given = ["--home", str(folder / "home"), "init", str(folder / "mine"), "--from-topic", name, "--bootstrap", broker]
    options = _parser().parse_args([*given, *more])
    assert options.run(options) == 0
    found = load(folder / "mine" / "topologies" / f"{name.lower()}.toml")
    source, table, _ = found.operators.values()
    assert isinstance(source, Source)
    assert isinstance(table, KeyedTable)
    return found, source, table


def readings(unit: float) -> Records:
    """Returns readings of two sensors in two partitions, some late.

    Two of 100 records are 7 s behind a newer one of their partition.
    """
    start_ms = int(time.time() * 1_000) - 200_000
    for n in range(100):
        at_ms = start_ms + 1_000 * n - (9_000 if n in {50, 51} else 0)
        key = "ab"[n % 2]
        yield n % 2, key, {"sensor": key, "temp_c": 20 if n % 10 else 20.5, "event_time": int(at_ms * unit), "ok": True}


@pytest.mark.parametrize(("unit", "per_ms"), [("s", 0.001), ("ms", 1), ("us", 1_000), ("ns", 1_000_000)])
def test_keyed_readings_with_each_unit(broker: str, tmp_path: Path, unit: str, per_ms: float) -> None:
    name = f"readings_{unit}"
    topic(broker, name, readings(per_ms))
    found, source, table = init(tmp_path, broker, name)
    assert dict(source.fields) == {"sensor": "string", "temp_c": "double", "event_time": "bigint", "ok": "boolean"}
    assert (source.timestamp, source.timestamp_unit, source.key, table.key) == ("event_time", unit, None, ("sensor",))
    assert (source.bound_ms, found.check_every_ms) == (10_000, 60_000)  # 98 % are not behind
    text = (tmp_path / "mine" / "topologies" / f"{name}.toml").read_text()
    assert "without records: partition 2" in text
    slas = sla_spec.load(tmp_path / "mine" / "expectations" / "slas.toml", found)
    assert [(sla.name, str(sla.measure)) for sla in slas] == [("in_time", "latency_p99"), ("fresh", "staleness")]


def test_iso_times_without_a_key_pass_the_live_check(broker: str, tmp_path: Path) -> None:
    now = int(time.time())
    clicks = (
        (n % 3, None, {"user_id": f"u{n % 7}", "page": f"/{n}", "read_at": _iso(now - 60 + n)}) for n in range(60)
    )
    topic(broker, "clicks", [*clicks, (0, None, b"no json")])
    _, source, table = init(tmp_path, broker, "clicks")
    assert (source.timestamp, source.fields["read_at"], table.key) == ("read_at", "timestamp", ("user_id",))
    with pytest.raises(InvalidArgument, match=r"clicks\.toml already exists"):
        init(tmp_path, broker, "clicks")
    lines = check([], tmp_path / "w", Project(tmp_path / "mine"), addresses=[(DEFAULT, broker)], look=True)
    sampled = "clicks: clicks: sampled 61 of 61 records, of which 1 (1.6 %) would be quarantined: 1 malformed_json"
    assert sampled in lines
    assert [line for line in lines if "warning" in line and "malformed_json" not in line] == []


def test_tombstones_and_no_time_of_its_own(broker: str, tmp_path: Path) -> None:
    rows: Records = [(0, str(n), {"id": n, "name": f"n{n}", "homeTown": "x"}) for n in range(20)]
    topic(broker, "customers", [*rows, (0, "3", None)])
    _, source, table = init(tmp_path, broker, "customers")
    assert (source.timestamp, source.key, source.fields["id"], table.key) == (None, "id", "string", ("id",))
    assert (source.named, source.other_fields) == ({"home_town": "homeTown"}, None)


def test_what_cannot_be_derived_names_the_remedy(broker: str, tmp_path: Path) -> None:
    for name, records, said in (
        ("sampled_empty", [], "is empty: nothing can be derived; send some records first"),
        (
            "sampled_texts",
            [(0, "k", b"21.5;a")],
            "none of 1 records is a JSON object that can be read, for example '21.5;a'; send JSON objects",
        ),
        (
            "sampled_unkeyed",
            [(0, None, {"id": n, "note": f"{n}"}) for n in range(9)],
            "have no key in Kafka that is a text, and no text field has .* with --key FIELD",
        ),
    ):
        topic(broker, name, records)
        with pytest.raises(InvalidArgument, match=said):
            init(tmp_path, broker, name)
    with pytest.raises(InvalidArgument, match="topic absent is not at"):
        init(tmp_path, broker, "absent")
    assert not (tmp_path / "mine").exists()
    assert init(tmp_path, broker, "sampled_unkeyed", "--key", "id")[2].key == ("id",)


def _iso(at_s: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at_s))
