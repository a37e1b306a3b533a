"""Measures one stream in two shards on a cluster, for docs/growth.md.

The cluster is Spark's own with two workers, and YARN with two nodes if `make yarn` was run. Each measurement is a line
of docs/growth.jsonl. `ON="standalone"` measures this cluster only.

After a start it measures one million records, and then two: the difference is the price of a million in warm JVMs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from bench.cost import PATIENCE_S, TOPOLOGY, send
from bench.growth_page import CLUSTERS, RAW, Sample, read
from bench.ratios import Figure
from bench.shards import cpu_s
from cluster.submitting import spark_table, submit_command
from streaming.drivers import OnlyDriver

from support import yarn_cluster
from tidemark.control import process
from tidemark.local import broker, spark_cluster
from tidemark.model.project.layout import Layout
from tidemark.spark_session import SECRETS

WARMING, SIZES = 400_000, (1_000_000, 2_000_000)
BOTH = ("standalone", "yarn")
OPTIMIZES = {"spark.executor.defaultJavaOptions": "-XX:+UseSerialGC"}
"""Executors of tests have the first compiler alone: slower code."""


class Place(NamedTuple):
    """A cluster: the table `spark` of jobs, and parents of executors."""

    spark: str
    parents: list[int]


def figures(_: int) -> Iterator[Figure]:
    """Measures each cluster once."""
    wanted = os.environ.get("ON", " ".join(BOTH)).split()
    kept = [sample for sample in read() if not (sample.axis == CLUSTERS and sample.figure.split(":")[0] in wanted)]
    for name in wanted:
        with TemporaryDirectory() as folder, ExitStack() as stack:
            home = Path(folder)
            address = broker.start(home / "broker").address
            stack.callback(broker.stop, home / "broker")
            place = stack.enter_context(PLACES[name](home))
            for size, figure, value, unit in _measure(home, address, place):
                sample = Sample(CLUSTERS, size, f"{name}: {figure}", unit, [value], None, round(os.getloadavg()[0], 1))
                kept.append(sample)
                yield Figure(f"{sample.figure}, {size:,} records", sample.values, unit=unit)
    RAW.write_text("".join(json.dumps(asdict(sample)) + "\n" for sample in kept))


def _measure(home: Path, address: str, place: Place) -> Iterator[tuple[int, str, float, str]]:
    """Measures SIZES, one after the other, that come after WARMING records.

    Yields a size, a figure, its value and its unit.
    """
    topic = "readings_sized"
    toml = f"shards = 2\n{TOPOLOGY.format(records='sized')}{place.spark}"
    (home / "bench.toml").write_text(toml)
    program = submit_command(home / "bench.toml", home / "airflow")
    send(address, topic, range(WARMING))
    with OnlyDriver(home, toml, address, program=program) as driver:
        _wait(driver, sent := WARMING)
        yield 0, "CPU of the driver", _cpu_s(driver, place)[0], "s"
        yield 0, "CPU of the executors", _cpu_s(driver, place)[1], "s"
        for size in SIZES:
            before, batches = _cpu_s(driver, place), len(driver.rows("batches"))
            disk, changes = _bytes(home), _changes(driver)
            send(address, topic, range(sent, sent + size))
            _wait(driver, sent := sent + size)
            after = _cpu_s(driver, place)
            yield size, "batches", len(driver.rows("batches")) - batches, "batches"
            yield size, "CPU of the driver", after[0] - before[0], "s"
            yield size, "CPU of the executors", after[1] - before[1], "s"
            yield size, "memory of the driver", _memory_mb([driver.pid]), "MB"
            yield size, "memory of an executor", _memory_mb(_executors(place)) / 2, "MB"
            yield size, "bytes of tables", _bytes(home) - disk, "bytes"
            yield size, "changes", _changes(driver) - changes, "updates"
        assert driver.drain() == 0


def _wait(driver: OnlyDriver, records: int) -> None:
    """Waits until the batches of *driver* have read *records*."""
    driver.wait(lambda: sum(row["records_in"] for row in driver.rows("batches")) == records, "records", PATIENCE_S)


def _changes(driver: OnlyDriver) -> int:
    return sum(row["emitted"] for row in driver.rows("operator_batches") if row["operator"] == "latest")


def _cpu_s(driver: OnlyDriver, place: Place) -> tuple[float, float]:
    """Returns the CPU time of the driver and of executors."""
    return cpu_s(of=[driver.pid]), cpu_s(of=place.parents)


def _executors(place: Place) -> list[int]:
    """Returns the processes of the JVMs that run tasks."""
    return [pid for pid in below(place.parents) if "CoarseGrainedExecutorBackend" in _words(pid)]


def below(pids: Collection[int]) -> set[int]:
    """Returns *pids* and all their descendants."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found, grown = set(pids), {-1}
    while grown:
        grown = {pid for pid, parent in parents.items() if parent in found} - found
        found |= grown
    return found


def _words(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def _memory_mb(pids: Collection[int]) -> float:
    """Returns the memory of *pids* and descendants; shared counts once."""
    texts = []
    for pid in below(pids):
        try:
            texts.append(Path(f"/proc/{pid}/smaps_rollup").read_text())
        except OSError:
            continue
    return sum(int(text.partition("Pss:")[2].split()[0]) for text in texts if "Pss:" in text) / 1_024


def _bytes(home: Path) -> int:
    tables = Layout(home / "warehouse").stream("bench", "readings")
    return sum(path.stat().st_size for path in tables.rglob("*.parquet"))


@contextmanager
def _standalone(home: Path) -> Iterator[Place]:
    folder = home / "cluster"
    try:
        cluster = spark_cluster.start(folder, cores=2, memory="2g")
        os.environ[SECRETS] = str(cluster.secrets)
        yield Place(spark_table(cluster.address, home, **OPTIMIZES), [worker.pid for worker in cluster.workers])
    finally:
        os.environ.pop(SECRETS, None)
        spark_cluster.stop(folder)


@contextmanager
def _yarn(home: Path) -> Iterator[Place]:
    folder = home / "cluster"
    try:
        cluster = yarn_cluster.start(folder)
        os.environ["HADOOP_CONF_DIR"] = str(cluster.conf)
        jars = f"local:{yarn_cluster.SPARKS_JARS}/*"
        conf = {"spark.yarn.jars": jars, "spark.yarn.stagingDir": f"file://{folder / 'staging'}"}
        conf["spark.executorEnv.SPARK_LOCAL_IP"] = spark_cluster.HOST
        yield Place(
            spark_table("yarn", home, **OPTIMIZES, **conf),
            [node.pid for name in yarn_cluster.NODES if (node := process.find(folder, name))],
        )
    finally:
        os.environ.pop("HADOOP_CONF_DIR", None)
        yarn_cluster.stop(folder)


PLACES: dict[str, Callable[[Path], object]] = {"standalone": _standalone, "yarn": _yarn}
