"""Measures what it costs to keep an eye on SLAs: the checker, beside a process for each check.

`TOPOLOGIES=10 make bench PARTS=checks` has so many topologies, instead of 50, each `flights` under another name. Every
EVERY_S each of their streams commits heartbeats and a batch, so that the checker has news in each round.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.grown import EVERY_MS, NEWS, Grown
from bench.idle import cpu_s
from bench.jobs import _cpu_s, _job
from bench.ratios import Figure
from deltalake import write_deltalake

from support.busy_warehouse import FLIGHTS, healthy
from tidemark.clock import wall_clock_ms
from tidemark.kernels.columns.schemas import rows_of
from tidemark.model.project.files import CHECKOUT, VARIABLE
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import iso
from tidemark.model.settings.retention import DAY_MS
from tidemark.model.slas.sla_spec import load_usable
from tidemark.model.tables.catalog import BATCHES, HEARTBEATS
from tidemark.model.topology import Topology, load
from tidemark.sla.watch import Promised, SlaWatch

TOPOLOGIES = int(os.environ.get("TOPOLOGIES", "50"))
EVERY_S = 15.0
MEASURED_S = float(os.environ.get("MEASURED_S", "240"))
CHECK_EVERY_S = 600.0
"""The default of `check_every`."""


def figures(runs: int) -> Iterator[Figure]:
    """Measures looks at 20 SLAs, and then the checker of many topologies for *runs* × MEASURED_S / 5."""
    yield from _looks(runs)
    yield from _many(MEASURED_S * runs / 5)


def _looks(runs: int) -> Iterator[Figure]:
    """Measures looks in this process, at the tables of a check with the news of 10 minutes."""
    midnight_ms = int(time.time() * 1_000) // DAY_MS * DAY_MS
    with TemporaryDirectory() as folder:
        grown = Grown(Path(folder) / "checked", 300_000, midnight_ms - 2 * NEWS * EVERY_MS)
        grown.write()
        later = grown.goes_on()
        old = [later.check(f"old {run}") for run in range(runs)]
        topology = load(grown.folder / "grown.toml")
        specs = load_usable(grown.folder / "slas.toml", topology).specs
        promised = Promised(topology=topology, specs=specs, unusable=(), channels=(), project=None)
        now_ms = later.now_ms + 10
        watch = SlaWatch(Layout(grown.folder / "warehouse"), lambda: promised, clock=lambda: now_ms)
        watch.look()
        quiet, busy, checks = [], [], []
        for _ in range(runs):
            watch.look()
            began_s = time.process_time()
            for _ in range(4):  # a minute: facts of intervals are measured twice
                now_ms += round(EVERY_S * 1_000)
                watch.look()
            quiet.append((time.process_time() - began_s) / 4)
            watch._news = ()
            busy.append(_process_s(watch.look))
            watch.changed()
            checks.append(_process_s(watch.look))
    of = f"{len(specs)} SLAs"
    yield Figure(f"a look at {of} without news", quiet, 0.1, at_most=True, unit="CPU s")
    yield Figure(f"a look at {of} with news", busy, unit="CPU s")
    yield Figure("  a check by the checker", checks, unit="CPU s")
    yield Figure("  a check by a process of its own", [cost.cpu_s + cost.imports_s for cost in old], unit="CPU s")


def _process_s(work: object) -> float:
    began_s = time.process_time()
    work()  # type: ignore[operator]
    return time.process_time() - began_s


def _many(measured_s: float) -> Iterator[Figure]:
    """Measures the checker as a triggerer starts it, and the process that each check was before."""
    with TemporaryDirectory() as folder:
        project = Path(folder)
        topologies = _project(project)
        os.environ[VARIABLE] = str(project)  # of the processes that are measured
        with _news(project, topologies), _checker(project, topologies) as checker:
            rounds = (json.loads(line) for line in checker.stdout or () if '"Looked"' in line)
            next(rounds)  # the first one makes all checks
            cpu_before_s, began_s = cpu_s(checker.pid), time.monotonic()
            of_rounds = [next(rounds)["cpu_s"]]
            while time.monotonic() - began_s < measured_s:
                of_rounds.append(next(rounds)["cpu_s"])
            cores = (cpu_s(checker.pid) - cpu_before_s) / (time.monotonic() - began_s)
        where = ["--warehouse", str(project / "warehouse"), "--topology", topologies[0].name]
        old = [_cpu_s([_job("check_sla"), *where, "--at", iso(wall_clock_ms()), "--run-id", str(n)]) for n in range(3)]
    of = f"the checker of {TOPOLOGIES} topologies, all with news"
    yield Figure(of, [cores], 0.4, at_most=True, unit="cores")
    yield Figure("  its rounds, which regular checks are part of", of_rounds, unit="CPU s")
    yield Figure(
        f"  a process for each check, every {CHECK_EVERY_S:g} s",
        [each * TOPOLOGIES / CHECK_EVERY_S for each in old],
        unit="cores",
    )


def _project(project: Path) -> list[Topology]:
    for part in ("topologies", "expectations"):
        (project / part).mkdir()
    text, slas = FLIGHTS.read_text(), (CHECKOUT / "expectations" / "slas.toml").read_text()
    (project / "expectations" / "channels.toml").write_text("")
    names, found = [f"flights{number}" for number in range(TOPOLOGIES)], []
    (project / "expectations" / "slas.toml").write_text(
        "\n".join(slas.replace("[flights.", f"[{name}.") for name in names)
    )
    for name in names:
        file = project / "topologies" / f"{name}.toml"
        file.write_text(text.replace('name = "flights"', f'name = "{name}"'))
        found.append(load(file))
        healthy(project / "warehouse", wall_clock_ms(), found[-1])
    return found


@contextmanager
def _news(project: Path, topologies: list[Topology]) -> Iterator[None]:
    """Lets each stream commit a batch and a heartbeat every EVERY_S."""
    over = threading.Event()

    def write() -> None:
        number = 1_000_000
        while not over.wait(EVERY_S):
            number += 1
            for topology in topologies:
                for sub in topology.sub_topologies:
                    of = {"topology": topology.name, "sub_topology": sub.name, "batch_id": number, "epoch": 1}
                    at_ms = wall_clock_ms()
                    batch = {
                        "decided_at": at_ms,
                        "started_at": at_ms,
                        "finished_at": at_ms,
                        "duration_ms": 0,
                        "records_in": 0,
                    }
                    beat = {"beat_at": at_ms, "state": "running"}
                    for table, row in ((BATCHES, batch), (HEARTBEATS, beat)):
                        path = Layout(project / "warehouse").stream_table(topology.name, sub.name, table.name)
                        write_deltalake(path, rows_of(table, [{**of, **row}]), mode="append")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def _checker(project: Path, topologies: list[Topology]) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-W", "ignore", "-m", "tidemark.sla.checker"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=project, start_new_session=True) as checker:
        assert checker.stdin is not None
        for line in ({"warehouse": str(project / "warehouse")}, [each.name for each in topologies]):
            checker.stdin.write(json.dumps(line) + "\n")
        checker.stdin.flush()
        try:
            yield checker
        finally:
            checker.stdin.close()
