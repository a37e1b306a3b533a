"""`tidemark check --live` reports what a stream would find in topics."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AclOperation, AdminClient

from support.broker_rights import grant
from support.command_line import tidemark
from support.process_watch import watched
from support.topologies import sink, source, table, topology_of
from tidemark.cli.project.check import check
from tidemark.control.process import wait_until
from tidemark.errors import InvalidArgument, InvalidSpec
from tidemark.local import broker as embedded
from tidemark.model.project.connections import DEFAULT, Cluster
from tidemark.model.project.files import Project
from tidemark.sample.topic_sample import SampledCluster, ask_for

TOML = topology_of(
    {"name": "live"},
    readings=source("sensor string, temp_c double", topic="live_readings", bound="{bound}", max_ahead=None),
    newest=table("readings", key=["sensor"], newest_by="event_time"),
    board=sink("newest", table="board", mode="current", refresh="1 s", key=["sensor"]),
)
SLAS = '[live.fresh]\nsubject = "board"\nmeasure = "staleness"\nerror_after = "{limit}"\nowner = "o"\n'


@pytest.fixture(scope="module")
def readings(broker: str) -> str:
    """Creates a topic of three partitions with some faulty records.

    The last partition is empty: 100 records, the newest an hour old, one 9 s late, one of a wrong type.
    """
    embedded.create_topics(broker, {"live_readings": 3})
    start_ms = int(time.time() * 1_000) - 3_600_000
    producer = Producer({"bootstrap.servers": broker})
    for n in range(100):
        at_ms = start_ms - 100_000 + 1_000 * n
        temp_c: object = "warm" if n == 10 else 20.5
        value = {"sensor": "ab"[n % 2], "temp_c": temp_c, "event_time": at_ms - (9_000 if n == 50 else 0)}
        producer.produce("live_readings", json.dumps(value), "ab"[n % 2], n % 2)
    assert producer.flush(30) == 0
    return broker


def project(folder: Path, *, bound: str = "20 s", limit: str = "2 h", topic: str = "live_readings") -> Path:
    for name in ("topologies", "expectations"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "channels.toml").write_text("")
    (folder / "expectations" / "slas.toml").write_text(SLAS.format(limit=limit))
    file = folder / "topologies" / "live.toml"
    file.write_text(TOML.format(bound=bound).replace('"live_readings"', f'"{topic}"'))
    return file


def lines(folder: Path, broker: str, **changes: str) -> list[str]:
    file = project(folder, **changes)
    return check([file], folder / "w", Project(folder), addresses=[(DEFAULT, broker)], look=True)


def test_a_good_file_ends_with_a_summary_and_a_sample(readings: str, tmp_path: Path) -> None:
    found = lines(tmp_path, readings)
    assert found[:6] == [
        "live.toml: live/readings: readings, newest, board",
        "live.toml: operators.newest: compares temp_c, and not the event time (event_time)",
        "live: streams: readings",
        f"live: topics: reads live_readings at {readings} (3 partitions)",
        "live: tables: board",
        "live: SLAs: fresh (staleness of board)",
    ]
    assert found[7:10] == [
        "live: readings: sampled 100 of 100 records, of which 1 (1.0 %) would be quarantined: 1 wrong_type in temp_c",
        found[8],
        "live: readings: bound 20 s covers 100 % of them; the furthest is 7 s behind a newer one of its partition",
    ]
    place = "correct `fields`, or what sends it; for example at partition 0, offset 5: {"
    assert found[8].startswith(f"live: readings: warning: wrong_type; {place}")
    assert found[10] == "live: readings: without records: partition 2"
    assert found[11].startswith("live: readings: its newest record is 1 h old")
    assert len(found) == 12


def test_a_short_bound_and_a_strict_sla_are_warnings(readings: str, tmp_path: Path) -> None:
    found = [line for line in lines(tmp_path, readings, bound="5 s", limit="30 min") if "warning: SLA" in line]
    assert len(found) == 1
    assert found[0].startswith(
        "live: warning: SLA fresh promises staleness of board below 30 min, and the newest record"
    )
    bound = [line for line in lines(tmp_path, readings, bound="5 s") if "bound 5 s" in line]
    late = "covers 99.0 % of them, and 1.0 % would be late"  # one of the 99 that can be used
    assert bound == [f'live: readings: warning: bound 5 s {late}; 99 % need a bound of "7 s"']


def test_a_topic_that_is_not_there_is_refused_with_its_remedy(readings: str, tmp_path: Path) -> None:
    file = project(tmp_path, topic="elsewhere")
    for local, remedy in (
        (readings, "tidemark topic create elsewhere --partitions 3"),
        (None, "ask the administrator"),
    ):
        with pytest.raises(InvalidSpec, match=r"live\.toml: operators\.readings\.topic: is 'elsewhere'") as refused:
            check([file], tmp_path / "w", Project(tmp_path), addresses=[(DEFAULT, readings)], look=True, local=local)
        assert remedy in str(refused.value)
    near = project(tmp_path, topic="live_reading")
    with pytest.raises(InvalidSpec, match=r"; did you mean live_readings\? else ask the administrator"):
        check([near], tmp_path / "w", Project(tmp_path), addresses=[(DEFAULT, readings)], look=True)


def test_run_refuses_a_missing_topic_before_it_starts_spark(readings: str, tmp_path: Path) -> None:
    file = project(tmp_path, topic="elsewhere")
    words = ["--warehouse", str(tmp_path / "w"), "run", str(file), "--bootstrap", readings]
    commands: set[bytes] = set()
    with watched(commands):
        refused = tidemark(tmp_path, *words, TIDEMARK_PROJECT=str(tmp_path))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "live.toml: operators.readings.topic: is 'elsewhere', which is not at" in refused.stderr
    # The driver's process would make its folder first, and name it in its command line.
    assert not (tmp_path / "w").exists()
    assert [command for command in commands if f"{tmp_path}/w".encode() in command] == []


def test_a_right_that_is_missing_is_named(broker: str, tmp_path: Path) -> None:
    embedded.create_topics(broker, {"live_guarded": 1, "live_hidden": 1})
    admin = AdminClient({"bootstrap.servers": broker})
    grant(admin, "live_guarded", "User:*", AclOperation.DESCRIBE)
    grant(admin, "live_hidden", "User:ann", AclOperation.READ)
    wait_until(lambda: SampledCluster(Cluster(broker)).rights("live_guarded") == {"DESCRIBE"}, "the ACL", 30)
    with pytest.raises(InvalidSpec) as refused:
        lines(tmp_path, broker, topic="live_guarded")
    (said,) = str(refused.value).splitlines()
    assert said == (
        f"live.toml: operators.readings.topic: is 'live_guarded', of which {broker} does not grant READ; "
        f"{ask_for('READ', 'live_guarded')}"
    )
    with pytest.raises(
        InvalidSpec, match=r"is 'live_hidden', which is not at .*, or may not be seen there; ask the admin"
    ):
        lines(tmp_path, broker, topic="live_hidden")


def test_a_sample_is_bounded_and_has_every_partition(readings: str) -> None:
    sample = SampledCluster(Cluster(readings)).sample("live_readings", most=30)
    assert [(n, sum(r.partition == n for r in sample.records)) for n in range(3)] == [(0, 10), (1, 10), (2, 0)]
    assert [r.offset for r in sample.records[:10]] == [*range(40, 50)]
    assert (sample.there, sample.complete) == (100, True)


def test_without_a_broker_to_ask_live_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="default has no address"):
        check([project(tmp_path)], tmp_path / "w", Project(tmp_path), look=True)
