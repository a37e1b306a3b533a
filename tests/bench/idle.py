"""Measures idle streams, and the wait of a record in a hop.

`flights` runs in one process. A second process runs as many idle Spark queries that read Kafka.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.freshness import started
from bench.ratios import Figure
from confluent_kafka import Producer
from streaming.drivers import PROJECT, Driver, SharedDriver, rows_of

from tidemark.local import broker

FLIGHTS = PROJECT / "jobs" / "topologies" / "flights.toml"
STREAMS = ("status", "carriers")
TOPICS = {"flight_events": 3, "weather": 1, "carrier_delays": 1}
SETTLED_S, MEASURED_S = 45, 60
RECORDS, EVERY_S = 20, 1.7
_TICKS_A_S = os.sysconf("SC_CLK_TCK")


def figures(runs: int) -> Iterator[Figure]:
    """Measures CPU and memory of both per minute, then the hop wait."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        home = Path(folder)
        address = broker.start(home / "broker").address
        stack.callback(broker.stop, home / "broker")
        broker.create_topics(address, {**TOPICS, "plain_0": 3, "plain_1": 1})
        plain = [f"plain_{n}={home / f'table_{n}'}" for n in range(len(STREAMS))]
        job = [sys.executable, str(Path(__file__).with_name("plain_sink.py")), address, "1 second", *plain]
        theirs = stack.enter_context(started(job, home / "plain.log"))
        shutil.copy(FLIGHTS, home)
        shared = stack.enter_context(SharedDriver(home))
        drivers = [Driver(name, home, address, topology="flights", shared=shared) for name in STREAMS]
        for driver in drivers:
            driver.wait_for_batches(1)
        ours = drivers[0].pid
        time.sleep(SETTLED_S)
        measured = [_cpu_s_a_minute(ours, theirs) for _ in range(runs)]
        memory_mib, plain_mib = _memory_mib(ours), _memory_mib(theirs)
        waits = _waits_ms(home, address)
    yield Figure("idle, both streams of flights", [one for one, _ in measured], unit="CPU s/min")
    yield Figure("idle, two queries of Spark alone", [other for _, other in measured], unit="CPU s/min")
    yield Figure("idle, flights / Spark alone", [one / other for one, other in measured], 1.5, at_most=True)
    yield Figure("idle, memory of flights", [memory_mib], unit="MiB")
    yield Figure("idle, memory of flights beyond Spark alone", [memory_mib - plain_mib], 200, at_most=True, unit="MiB")
    yield Figure("wait of a record in a hop", waits, unit="ms")


def _cpu_s_a_minute(ours: int, theirs: int) -> tuple[float, float]:
    """Returns CPU seconds of both sessions in the same minute."""
    before = cpu_s(ours), cpu_s(theirs)
    time.sleep(MEASURED_S)
    return tuple((cpu_s(pid) - was) * 60 / MEASURED_S for pid, was in zip((ours, theirs), before, strict=True))


def cpu_s(session: int) -> float:
    """Returns CPU use of *session*, including ended child processes."""
    return sum(sum(map(int, fields[11:15])) for _, fields in _processes(session)) / _TICKS_A_S


def _memory_mib(session: int) -> float:
    """Returns the memory of processes; shared memory counts once."""
    return sum(_pss_kib(place) for place, _ in _processes(session)) / 1_024


def _pss_kib(place: Path) -> int:
    """Returns the memory of the process at *place*; 0 if it has ended since it was listed."""
    with suppress(OSError):
        return int((place / "smaps_rollup").read_text().partition("Pss:")[2].split()[0])
    return 0


def _processes(session: int) -> Iterator[tuple[Path, list[str]]]:
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (place / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                yield place, fields


def _waits_ms(home: Path, address: str) -> list[float]:
    """Returns waits from a hop's writing batch to its reading batch.

    From the end of the batch that writes until the one that reads is planned.
    """
    producer = Producer({"bootstrap.servers": address})
    for number in range(RECORDS):
        flight = {
            "flight": f"UA{number}",
            "carrier": "UA",
            "origin": "EWR",
            "dest": "SFO",
            "status": "departed",
            "arr_delay_min": number,
        }
        at_ms = time.time_ns() // 1_000_000
        producer.produce("flight_events", json.dumps({**flight, "event_time": at_ms}).encode())
        producer.flush()
        time.sleep(EVERY_S)
    written = {
        row["batch_id"]: row["finished_at"] for row in rows_of(home / "warehouse", "flights", "status", "batches")
    }
    reading = rows_of(home / "warehouse", "flights", "carriers", "batches")
    read_records = {row["batch_id"] for row in reading if row["records_in"]}
    return [
        float(row["decided_at"] - written[row["until_offset"] - 1])
        for row in rows_of(home / "warehouse", "flights", "carriers", "partition_batches")
        if row["batch_id"] in read_records and (row["until_offset"] or 0) - 1 in written
    ]
