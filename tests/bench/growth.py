"""Measures how costs grow with shards, keys, topologies and days.

Requests grow with topologies, too.

Each measurement is a line of docs/growth.jsonl, from which docs/growth.md has its table. `AXES="days topologies"`
measures only these axes, `SIZES="90 365"` only these sizes; the lines of the others are kept.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench import large_state
from bench.growth_page import CLUSTERS, RAW, TOLERANCE, Sample, exponent, read, write_page
from bench.jobs import COMMAND
from bench.ratios import Figure
from bench.records import PARTITIONS, counted, raw_rows
from objectstore.counting import GET, LIST, PUT, Requests
from objectstore.server import BUCKET, object_store

from support import past_days
from support.flights_day import few_flights
from support.play import Play
from support.quiet_broker import Silence
from support.separate_executors import OneWorker
from tidemark.model.project.files import CHECKOUT, VARIABLE
from tidemark.model.project.spark_settings import WITHOUT_SPARK
from tidemark.model.settings.intervals import iso
from tidemark.storage.location import location
from tidemark.stream.read.sources import parsed_batch
from tidemark.stream.wiring import build_engine

SHARDS, RECORDS, WARM = (1, 2, 4, 8), 20_000, 2
KEYS = (10_000, 100_000, 1_000_000, 10_000_000)
TOPOLOGIES = (1, 3, 10, 25, 50)
DAYS, BATCHES_AN_HOUR = (1, 7, 30, 90, 365), 12
STORED, PLAYED, INTERVAL_S = (1, 3, 10), 30, 10
"""Topologies in an object store, batches of `flights`, and seconds between."""
FLIGHTS = CHECKOUT / "jobs" / "topologies" / "flights.toml"
OPENED = re.compile(r'openat\([^"]*"([^"]+)".* = \d+$', re.MULTILINE)
USED = """
import json, resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([used.ru_utime + used.ru_stime, used.ru_maxrss]))
"""
"""Runs a command and prints its CPU and peak memory.

Its process is small, because the peak of a child counts that of the process that forked it.
"""
FIGURES = ("CPU", "memory", "data files read", "files of logs read")
"""Names of a command's figures; CPU in s, memory in MB."""
QUERY = (
    "select operator, sum(n) from operator_batches "
    f"where topology = 'flights' and finished_at >= timestamptz '{iso(past_days.HOUR.start_ms)}' group by operator"
)


def figures(runs: int) -> Iterator[Figure]:
    """Measures the axes and yields their exponents.

    Writes their lines and the table of the page.
    """
    axes = os.environ.get("AXES", " ".join(MEASURED)).split()
    samples = read() if RAW.exists() else []
    for axis in axes:
        sizes, measure = MEASURED[axis]
        for size in map(int, os.environ.get("SIZES", " ".join(map(str, sizes))).split()):
            new = []
            for sample in measure(size, runs):
                new.append(replace(sample, load=round(os.getloadavg()[0], 1)))
                sys.stderr.write(f"{new[-1]}\n")
            # Each size is kept at once: the next one may take long.
            samples = [sample for sample in samples if (sample.axis, sample.size) != (axis, size)] + new
            samples.sort(key=lambda sample: ([*MEASURED, CLUSTERS].index(sample.axis), sample.size))
            RAW.write_text("".join(json.dumps(asdict(sample)) + "\n" for sample in samples))
            write_page(samples)
    measured = [sample for sample in samples if sample.axis in axes]
    for axis, figure in dict.fromkeys((sample.axis, sample.figure) for sample in measured):
        found = [sample for sample in measured if (sample.axis, sample.figure) == (axis, figure)]
        values = [median(sample.values) for sample in found]
        if len(found) > 1 and min(values) > 0:
            slope = exponent([sample.size for sample in found], values).slope
            aim = None if found[0].aim is None else found[0].aim + TOLERANCE
            yield Figure(f"{axis}: {figure}", [slope], aim, at_most=True, unit="exponent")


def _shards(shards: int, runs: int) -> Iterator[Sample]:
    """Counts what a batch of a table and an aggregate writes."""
    with TemporaryDirectory() as folder:
        stream = counted(Path(folder), shards)
        engine = build_engine(stream, Silence(PARTITIONS), thread_id="t", epoch=1, slow_ms={})
        took: list[tuple[float, int, int, int]] = []
        for number in range(WARM + runs):
            rows = parsed_batch(raw_rows(number, RECORDS, RECORDS), stream.sub.operators)
            before, began_s = _files(Path(folder)), time.process_time()
            engine.process(number, lambda rows=rows: rows, {}, OneWorker(rows) if shards > 1 else None)
            cpu_s = time.process_time() - began_s
            new = {path: size for path, size in _files(Path(folder)).items() if path not in before}
            data = sum(path.suffix == ".parquet" for path in new)
            took.append((cpu_s, data, len(new), sum(new.values())))
        cpu, data, files, bytes_ = zip(*took[WARM:], strict=True)
        of = f"a batch of {RECORDS:,} records"
        yield Sample("shards", shards, f"{of}: data files", "files", data, 1)
        yield Sample("shards", shards, f"{of}: files written (PUT requests)", "files", files, 1)
        yield Sample("shards", shards, f"{of}: bytes written", "bytes", bytes_, 0)
        yield Sample("shards", shards, f"{of}: CPU of engine and tasks, without Spark", "s", cpu, 0)


def _keys(keys: int, runs: int) -> Iterator[Sample]:
    """Measures a task of one of four shards."""
    with TemporaryDirectory() as folder:
        stream = large_state.with_keys(Path(folder) / "home", keys, also=(0,))
        states = [size for path, size in _files(stream.control).items() if "state" in str(path)]
        task = Path(folder) / "task"
        shutil.copytree(stream.control, saved := Path(folder) / "saved")
        large_state._first_task(stream, keys, task)
        shutil.copytree(saved, stream.control, dirs_exist_ok=True)  # states that this batch has replaced
        found = [large_state._in_a_process(task) for _ in range(runs)]
    yield Sample("keys", keys, "bytes of states, all shards", "bytes", [large_state.SHARDS * sum(states)], 1)
    yield Sample("keys", keys, "files of states, a shard", "files", [len(states)], 0)
    for name, figure, unit in (
        ("most_mb", "memory of a task of four shards", "MB"),
        ("first_s", "CPU of a worker's first batch, 50,000 records", "s"),
        ("next_s", "CPU of its next batch", "s"),
    ):
        yield Sample("keys", keys, figure, unit, [each[name] for each in found], 0)


def _topologies(topologies: int, runs: int) -> Iterator[Sample]:
    """Parses DAG files, and looks at one topology among many."""
    with TemporaryDirectory() as folder:
        project, warehouse = Path(folder) / "project", Path(folder) / "warehouse"
        _write_project(project, topologies)
        past_days.write(warehouse, 0, minutes=6)
        for number in range(1, topologies):
            for part in ("streams", "control"):
                shutil.copytree(warehouse / part / "flights", warehouse / part / f"flights_{number}")
        parse = [sys.executable, "-m", "bench.one_parse", str(CHECKOUT / "dags")]
        parsed = [json.loads(_ran(parse, project, home=Path(folder) / "airflow")) for _ in range(runs)]
        for name, figure, unit, aim in (
            ("cpu_s", "CPU to parse all DAG files once", "s", 1),
            ("modules", "modules that parsing imports", "modules", 0),
            ("dags", "DAGs", "DAGs", 1),
            ("task_runs", "task runs a day", "runs", 1),
            ("bytes", "bytes of serialized DAGs in Airflow's database", "bytes", 1),
        ):
            yield Sample("topologies", topologies, figure, unit, [each[name] for each in parsed], aim)
        schedule = [sys.executable, "-m", "bench.one_scheduling", str(CHECKOUT / "dags")]
        asked = json.loads(_ran(schedule, project, home=Path(folder) / "airflow"))
        for name, figure, aim in (
            ("parse", "statements to Airflow's database, all DAG files parsed again", 1),
            ("idle_loop", "statements of a loop of the scheduler, nothing due", 0),
            ("first_loops", "statements of the loops that start the first runs", 1),
        ):
            yield Sample("topologies", topologies, figure, "statements", [asked[name]], aim)
        yield from _work("topologies", topologies, warehouse, project, runs)


def _days(days: int, runs: int) -> Iterator[Sample]:
    """Runs commands about the last hour after days of facts."""
    with TemporaryDirectory() as folder:
        project, warehouse = Path(folder) / "project", Path(folder) / "warehouse"
        _write_project(project, 1)
        past_days.write(warehouse, days, minutes=BATCHES_AN_HOUR)
        files = _files(warehouse)
        yield Sample("days", days, "files of the warehouse", "files", [len(files)], 1)
        yield Sample("days", days, "bytes of the warehouse", "bytes", [sum(files.values())], 1)
        yield from _work("days", days, warehouse, project, runs)


def _requests(topologies: int, runs: int) -> Iterator[Sample]:
    """Counts requests of batches, reports and checks, and of a day."""
    with TemporaryDirectory() as folder, object_store(log := Path(folder) / "server.log"):
        project, warehouse = Path(folder) / "project", location(f"s3://{BUCKET}/growth/warehouse")
        requests, found = Requests(log, warehouse), dict[str, Counter[str]]()
        for name in reversed(_write_project(project, topologies)):
            played = PLAYED if name == "flights" else 3
            play = Play((project / "topologies" / f"{name}.toml").read_text(), warehouse, facts_every_ms=10_000)
            play.broker._partitions = {"flight_events": 3, "weather": 1}
            for sub in past_days.SUBS:
                play.start(sub)
            batches = Counter[str]()
            for number in range(played):
                at_ms = past_days.MIDNIGHT_MS + number * INTERVAL_S * 1_000
                requests.since_last()
                play.batch(few_flights(play, at_ms, number), at_ms=at_ms, sub="status")
                batches += requests.since_last()
                play.hop("carriers", at_ms=at_ms + 2_000)
            found["a batch"] = Counter({kind: n / played for kind, n in batches.items()})
        for name, command in _commands(warehouse).items():
            for _ in range(2):  # the first time makes the tables
                requests.since_last()
                subprocess.run(command, env=_environment(project, None), check=True, stdout=subprocess.DEVNULL)
                found[name] = requests.since_last()
    times = {"a batch": 86_400 / INTERVAL_S * len(past_days.SUBS), "SLA check": 144}
    times |= {"rollup": 24, "critical paths and pages": 24}
    for kind in (PUT, LIST, GET):
        for name, of_kinds in found.items():
            yield Sample("requests", topologies, f"{name}: {kind} requests", "requests", [of_kinds[kind]], 0)
        of_day = topologies * sum(found[name][kind] * n for name, n in times.items())
        yield Sample("requests", topologies, f"a day of all streams: {kind} requests", "requests", [of_day], 1)


def _work(axis: str, size: int, warehouse: Path, project: Path, runs: int) -> Iterator[Sample]:
    for name, command in _commands(warehouse).items():
        used = [_used(command, project, warehouse) for _ in range(runs)]
        for figure, unit, values in zip(FIGURES, ("s", "MB", "files", "files"), zip(*used, strict=True), strict=True):
            yield Sample(axis, size, f"{name}: {figure}", unit, values, 0)


def _commands(warehouse: Path) -> dict[str, list[str]]:
    """Returns what Airflow and people run for the last hour, by name."""
    at, hour = iso(past_days.HOUR.end_ms), past_days.HOUR
    where = ["--warehouse", str(warehouse), "--topology", "flights"]
    span = ["--from", iso(hour.start_ms), "--to", iso(hour.end_ms)]

    def job(name: str, *arguments: str) -> list[str]:
        return [sys.executable, str(CHECKOUT / "jobs" / f"{name}.py"), *where, *arguments]

    cli = [sys.executable, "-c", COMMAND, "--warehouse", str(warehouse)]
    return {
        "rollup": job("rollup", *span),
        "critical paths and pages": job("critical_path", *span, "--html", f"{warehouse}/html"),
        "SLA check": job("check_sla", "--at", at, "--run-id", "growth"),
        "`tidemark why`": [*cli, "why", "flights", "--at", at],
        "`tidemark sql`": [*cli, "sql", QUERY],
    }


def _write_project(project: Path, topologies: int) -> list[str]:
    """Writes `flights` and copies with its SLAs; returns their names."""
    toml, slas = FLIGHTS.read_text(), (CHECKOUT / "expectations" / "slas.toml").read_text()
    names = ["flights", *(f"flights_{number}" for number in range(1, topologies))]
    for folder in ("topologies", "expectations"):
        (project / folder).mkdir(parents=True)
    for name in names:
        (project / "topologies" / f"{name}.toml").write_text(toml.replace('name = "flights"', f'name = "{name}"'))
    of_all = "".join(slas.replace("[flights.", f"[{name}.") for name in names)
    (project / "expectations" / "slas.toml").write_text(of_all)
    return names


def _environment(project: Path, home: Path | None) -> dict[str, str]:
    path = os.pathsep.join(str(CHECKOUT / part) for part in ("jobs", "tests", "plugins"))
    airflow = {"AIRFLOW_HOME": str(home), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"} if home else {}
    return {**os.environ, **airflow, "PYTHONPATH": path, VARIABLE: str(project), WITHOUT_SPARK: "1"}


def _ran(command: Sequence[str], project: Path, *, home: Path | None = None) -> str:
    ran = subprocess.run(command, env=_environment(project, home), check=True, stdout=subprocess.PIPE, text=True)
    return ran.stdout.splitlines()[-1]


def _used(command: Sequence[str], project: Path, warehouse: Path) -> tuple[float, float, int, int]:
    """Returns the FIGURES of *command*."""
    trace = warehouse.parent / "trace"
    strace = ["strace", "-f", "--seccomp-bpf", "-qq", "-s", "500", "-e", "trace=openat", "-o", str(trace)]
    cpu_s, kib = json.loads(_ran([*strace, sys.executable, "-c", USED, *command], project))
    opened = {path for path in OPENED.findall(trace.read_text()) if path.startswith(str(warehouse)) and "." in path}
    logs = {path for path in opened if "/_delta_log/" in path}
    return cpu_s, kib / 1_024, sum(path.endswith(".parquet") for path in opened - logs), len(logs)


def _files(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}


MEASURED: dict[str, tuple[Sequence[int], Callable[[int, int], Iterator[Sample]]]] = {
    "shards": (SHARDS, _shards),
    "keys": (KEYS, _keys),
    "topologies": (TOPOLOGIES, _topologies),
    "days": (DAYS, _days),
    "requests": (STORED, _requests),
}
"""By axis, its sizes, and what measures one of them."""
