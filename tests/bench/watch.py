"""Measures looks at watched tables: a first one, later ones, a table of many files, and requests to an object store.

The time of a look includes writing and reading what is kept. It is compared with that of parsing the JSON of all
commits, as every reader of a log has to. Requests are counted by the server of tests/objectstore, if it is installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import process_time

from bench.ratios import Figure

from tidemark.storage.location import location
from tidemark.watch.commits import History
from tidemark.watch.kept import KeptHistories
from tidemark.watch.reading import watched
from tidemark.watch.rules import table_age
from tidemark.watch.statistics import TimeColumnRequest

TABLES, COMMITS = int(os.environ.get("TABLES", "500")), 100
FILES = int(os.environ.get("FILES", "200_000"))
NOW = 1_767_268_800_000  # 2026-01-01 12:00 UTC
SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in (("at", "timestamp"), ("id", "long"), ("value", "double"))
        ],
    }
)
METADATA = {"id": "bench", "format": {"provider": "parquet", "options": {}}, "schemaString": SCHEMA}
METADATA |= {"partitionColumns": [], "configuration": {}, "createdTime": NOW}
PROTOCOL = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["v2Checkpoint"]}
PROTOCOL |= {"writerFeatures": ["v2Checkpoint"]}


def figures(runs: int) -> Iterator[Figure]:
    """Measures sweeps in this process, and the memory of a first look in one of its own."""
    with TemporaryDirectory() as folder:
        lake, kept = Path(folder) / "lake", Path(folder) / "kept"
        for n in range(TABLES):
            for version in range(COMMITS):
                _commit(lake / f"t{n}", version)
        parsed = [_cpu_s(lambda: _parse(lake)) for _ in range(2)]
        first = _cpu_s(lambda: _sweep(lake, kept))
        unchanged = [_cpu_s(lambda: _sweep(lake, kept)) for _ in range(runs)]
        tenth = []
        for run in range(runs):
            for n in range(TABLES // 10):
                _commit(lake / f"t{n}", COMMITS + run)
            tenth.append(_cpu_s(lambda: _sweep(lake, kept)))
        yield Figure(f"first look at {TABLES} tables of {COMMITS} commits, CPU", [first], 5, at_most=True, unit="s")
        yield Figure("  beside parsing the JSON of their logs", [first / min(parsed)])
        yield Figure("  unchanged tables, CPU", unchanged, unit="s")
        yield Figure("    beside the first look", [each / first for each in unchanged])
        yield Figure("  a new commit in a tenth of the tables, CPU", tenth, unit="s")
        yield Figure("    beside unchanged tables", [each / median(unchanged) for each in tenth])
    with TemporaryDirectory() as folder:
        large, kept = Path(folder) / "large", Path(folder) / "kept"
        _of_many_files(large)
        cpu_s, mb = _in_own_process(large, kept)
        again = [_cpu_s(lambda: _sweep(large, kept)) for _ in range(runs)]
        yield Figure(f"first look at a table of {FILES:,} files, CPU", [cpu_s], 6, at_most=True, unit="s")
        yield Figure("  memory of that process", [mb], 300, at_most=True, unit="MB")
        yield Figure("  unchanged, CPU", [each * 1_000 for each in again], 20, at_most=True, unit="ms")
    requests = _requests()
    if requests is not None:
        yield Figure("requests of an unchanged table in an object store", [requests], 1, at_most=True, unit="")


def _requests() -> int | None:
    """Returns the requests of a look at an unchanged table; None: no server is installed."""
    # Not in the process whose memory is measured.
    from objectstore.counting import Requests
    from objectstore.server import BUCKET, PROGRAM, object_store

    if not PROGRAM.exists():
        return None
    with TemporaryDirectory() as folder, object_store(Path(folder) / "server.log"):
        table, kept = location(f"s3://{BUCKET}/bench/orders"), Path(folder) / "kept"
        for version in range(COMMITS):
            name = f"{version:020d}.json"
            (table / "_delta_log" / name).write_text(_content(version))
        requests = Requests(Path(folder) / "server.log", table)
        _sweep(table, kept)
        requests.since_last()
        _sweep(table, kept)
        return requests.since_last().total()


def _parse(place: Path) -> None:
    for file in place.rglob("*.json"):
        for line in file.read_bytes().splitlines():
            json.loads(line)


def _sweep(place: Path, kept: Path) -> None:
    found = watched([place], TimeColumnRequest(), NOW - 86_400_000, KeptHistories(kept))
    if not found or not all(isinstance(each, History) for each in found):
        msg = f"all tables should be readable, got {found[:1]}"
        raise AssertionError(msg)
    for each in found:
        if isinstance(each, History):
            table_age(each, now_ms=NOW, since_ms=NOW - 86_400_000, limit_ms=3_600_000)


def _cpu_s(work: Callable[[], object]) -> float:
    began_s = process_time()
    work()
    return process_time() - began_s


def _in_own_process(place: Path, kept: Path) -> tuple[float, float]:
    """Returns CPU s of a first look, and MB that its process had at most, with Python and its packages."""
    code = "import sys; from pathlib import Path; from bench import watch; watch.measured(*map(Path, sys.argv[1:]))"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ran = subprocess.run(
        [sys.executable, "-c", code, str(place), str(kept)], env=environment, check=True, capture_output=True, text=True
    )
    cpu_s, mb = map(float, ran.stdout.split())
    return cpu_s, mb


def measured(place: Path, kept: Path) -> None:
    """Writes CPU s of a look at *place*, and MB that this process had at most."""
    cpu_s = _cpu_s(lambda: _sweep(place, kept))
    # Unlike this one, `ru_maxrss` also counts what the process was that started this one.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    sys.stdout.write(f"{cpu_s} {int(status['VmHWM'].split()[0]) / 1_024}\n")


def _commit(table: Path, version: int) -> None:
    log = table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    (log / f"{version:020d}.json").write_text(_content(version))


def _content(version: int) -> str:
    info = {"timestamp": NOW - 60_000 * (2 * COMMITS - version), "operation": "WRITE", "engineInfo": "bench"}
    actions: list[object] = [{"commitInfo": info}, {"add": _add(version)}]
    if version == 0:
        actions += [{"protocol": PROTOCOL}, {"metaData": METADATA}]
    return "\n".join(map(json.dumps, actions))


def _add(n: int) -> dict[str, object]:
    at = f"2026-01-01T{n // 60 % 10:02}:{n % 60:02}"
    bounds = {"minValues": {"at": f"{at}:00.000Z", "id": n}, "maxValues": {"at": f"{at}:59.999Z", "id": n + 99}}
    stats = json.dumps({"numRecords": 100, **bounds, "nullCount": {"at": 0, "id": 0, "value": 0}})
    path = f"part-{n:05}-6c401768-9c6f-43f0-a58f-d570d31bdbbe.c000.snappy.parquet"
    content = {"path": path, "partitionValues": {}, "size": 10_000, "modificationTime": NOW, "dataChange": True}
    return {**content, "stats": stats}


def _of_many_files(table: Path) -> None:
    """Writes a table of FILES files in a checkpoint of version 2 with two further files, and a commit."""
    import polars as pl  # not in the process whose memory is measured

    _commit(table, 0)
    log = table / "_delta_log"
    (log / "_sidecars").mkdir()
    named = []
    for half in range(2):
        adds = [_add(n) for n in range(half * FILES // 2, (half + 1) * FILES // 2)]
        shown = [{key: value for key, value in add.items() if key != "partitionValues"} for add in adds]
        pl.DataFrame({"add": shown}).write_parquet(log / "_sidecars" / f"{half}.parquet")
        named.append({"sidecar": {"path": f"{half}.parquet", "sizeInBytes": 1, "modificationTime": NOW}})
    actions = [{"checkpointMetadata": {"version": 0}}, {"protocol": PROTOCOL}, {"metaData": METADATA}, *named]
    name = f"{0:020d}.checkpoint.6c401768-9c6f-43f0-a58f-d570d31bdbbe.json"
    (log / name).write_text("\n".join(map(json.dumps, actions)))
    _commit(table, 1)
    (log / f"{0:020d}.json").unlink()
