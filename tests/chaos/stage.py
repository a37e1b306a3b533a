"""Runs broker, drivers and a small disk for a chaos run."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
from chaos.feed import PARTITIONS, TOPIC, Flow
from deltalake import DeltaTable
from streaming.drivers import TABLE_POLL_S, Driver, ends_of, reads_of, rows_of

from tidemark.control import process
from tidemark.local import broker
from tidemark.model.project.layout import Layout
from tidemark.model.stream import Stream
from tidemark.model.topology import load
from tidemark.storage.object_path import ObjectPath
from tidemark.stream.startup.evidence import evidence
from tidemark.stream.startup.soundness import findings
from tidemark.stream.state.runs import CACHE, SUFFIX

HERE = Path(__file__).resolve().parent
TOPOLOGY = "chaos"
SUBS = ("players", "teams")
BOARDS = {"players": "board", "teams": "team_board"}
PATIENCE_S = 180


class StagedDriver(Driver):
    """A driver that dies or stops at a step of a batch.

    The next batch that reaches the step triggers it (driver.py).
    """

    def __init__(self, sub: str, home: Path, address: str, *arguments: str, warehouse: Path) -> None:
        self._told = home / f"{sub}.told"
        self._reached = self._told.with_suffix(".reached")
        self.script = (str(HERE / "driver.py"), str(self._told))
        super().__init__(sub, home, address, *arguments, topology=TOPOLOGY, warehouse=warehouse)

    def tell(self, number: signal.Signals, step: str) -> None:
        """Have it send itself the signal *number* at *step*."""
        self._reached.unlink(missing_ok=True)
        partial = self._told.with_suffix(".partial")
        partial.write_text(f"{number.value} {step}")
        partial.rename(self._told)

    def has_reached(self) -> bool:
        """Returns true if it reached the step that it was given."""
        return self._reached.exists()

    def exit_status(self) -> int | None:
        """None while it lives."""
        return None if self._process.runs() else self._process.status()

    def kill_workers(self) -> int:
        """Kills the Python workers of Spark and returns their number."""
        # Spark's daemon of workers leaves the process group of its driver.
        started = psutil.Process(self._process.pid).children(recursive=True)
        killed = 0
        for process_ in started:
            with suppress(psutil.NoSuchProcess):
                if "pyspark.daemon" in process_.cmdline():
                    process_.kill()
                    killed += 1
        return killed

    def pids(self) -> list[int]:
        """Returns the processes of its group: it and its JVM."""
        listed = subprocess.run(["pgrep", "-g", str(self._process.pid)], capture_output=True, text=True, check=False)
        return [int(pid) for pid in listed.stdout.split()]


class Stage:
    """Starts all parts of a chaos run in the folder *home*.

    All of them end with the `with` block. The warehouse is in *home*, or in an object store.
    """

    def __init__(self, home: Path, seed: int, shards: int = 1, *, warehouse: Path | None = None) -> None:
        self.home, self.warehouse, self._seed = home, warehouse or home / "warehouse", seed
        self.shards = shards
        self.is_in_store = isinstance(warehouse, ObjectPath)
        self.drivers: dict[str, StagedDriver] = {}
        self.ended: list[str] = []  # drivers that ended by themselves and were started again
        self._cleaning = ExitStack()

    def __enter__(self) -> Stage:
        with ExitStack() as stack:
            self.warehouse.mkdir(parents=True)
            disk = ("mount", "-t", "tmpfs", "-o", "size=4g", "tidemark-chaos", str(self.warehouse))
            self._is_mounted = not self.is_in_store and _run(*disk)
            if self._is_mounted:
                stack.callback(_run, "umount", "--lazy", str(self.warehouse))
            toml = (HERE / f"{TOPOLOGY}.toml").read_text()
            if self.is_in_store:  # facts come once a minute there, for which every look at the tables would wait
                toml = toml.replace('facts_every = "1 s"', 'facts_every = "0 s"')
            (self.home / f"{TOPOLOGY}.toml").write_text(f"shards = {self.shards}\n{toml}")
            stack.callback(broker.stop, self.home / "broker")
            self.address = broker.start(self.home / "broker").address
            broker.create_topics(self.address, {TOPIC: PARTITIONS, "news": 1})
            self.flow = Flow(self._seed, self.address)
            self._have_copies(stack)
            self._cleaning = stack.pop_all()
        for sub in SUBS:
            self.start(sub)
        return self

    def __exit__(self, *_: object) -> None:
        self._cleaning.close()

    def _have_copies(self, stack: ExitStack) -> None:
        """Makes drivers map copies of states, as for an object store."""
        before = os.environ.get(CACHE)
        os.environ[CACHE] = str(self.home / "copies")
        stack.callback(lambda: os.environ.pop(CACHE) if before is None else os.environ.update({CACHE: before}))

    def copies(self) -> list[Path]:
        """Returns the copies of states that drivers made."""
        return sorted((self.home / "copies").rglob(f"*{SUFFIX}"))

    def start(self, sub: str, *arguments: str) -> StagedDriver:
        """Starts a new driver of *sub* and makes it the current one."""
        # A lease in a store does not end with its driver, which is dead here.
        soon = ("--silent-after", "2") if self.is_in_store else ()
        driver = StagedDriver(sub, self.home, self.address, *soon, *arguments, warehouse=self.warehouse)
        self.drivers[sub] = driver
        self._cleaning.callback(driver.end)
        return driver

    def restart(self, sub: str) -> None:
        """Kills the driver of *sub* in any state and starts the next."""
        self.drivers[sub].end()
        self.start(sub)

    def second(self, sub: str) -> Driver:
        """Starts one more driver of *sub* beside the current one."""
        driver = Driver(sub, self.home, self.address, topology=TOPOLOGY, warehouse=self.warehouse)
        self._cleaning.callback(driver.end)
        return driver

    def kill_broker(self) -> None:
        """Kill -9."""
        found = process.find(self.home / "broker", broker.NAME)
        assert found is not None
        os.killpg(found.pid, signal.SIGKILL)
        process.wait_until(lambda: not process.is_alive(found), "the end of the broker", PATIENCE_S)

    def start_broker(self) -> None:
        """Where it was before, with what it had."""
        assert broker.start(self.home / "broker").address == self.address

    def findings(self, sub: str) -> list[str]:
        """Returns the findings of `tidemark doctor` for *sub*, whose driver ended."""
        topology = load(self.home / f"{TOPOLOGY}.toml")
        seen = evidence(Stream(topology, topology.sub_topology(sub), Layout(self.warehouse)))
        return [finding.lines for finding in findings(seen)]

    def tables(self, sub: str) -> list[Path]:
        """The Delta tables of *sub*."""
        return sorted(Layout(self.warehouse).stream_table(TOPOLOGY, sub, "_").parent.iterdir())

    @contextmanager
    def full_disk(self, left: int) -> Iterator[None]:
        """Leaves *left* bytes of space in the warehouse.

        Where nothing may be mounted, no file gets any space.
        """
        if self._is_mounted:
            # It refuses to be smaller than what a driver has written since it was asked.
            self.wait(lambda: self._resize(self._used() + left), "a small disk")
        else:
            self._limit_files(0)
        try:
            yield
        finally:
            if self._is_mounted:
                self._resize(4 << 30)
            else:
                self._limit_files(resource.RLIM_INFINITY)

    def _used(self) -> int:
        disk = os.statvfs(self.warehouse)
        return (disk.f_blocks - disk.f_bfree) * disk.f_frsize

    def _resize(self, size: int) -> bool:
        return _run("mount", "-o", f"remount,size={size}", str(self.warehouse))

    def _limit_files(self, size: int) -> None:
        for driver in self.drivers.values():
            for pid in driver.pids():
                with suppress(ProcessLookupError):
                    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Return as soon as *condition* holds."""
        process.wait_until(condition, what, PATIENCE_S)

    def settle(self, *, may_end: bool = False) -> None:
        """Return when the drivers have done with all that was sent.

        One that has ended by itself is started again if it *may_end*, as its supervisor would.
        """
        self.ended = []
        ends = ends_of(self.address, {TOPIC: TOPIC})

        def is_done() -> bool:
            for sub, driver in self.drivers.items():
                if (status := driver.exit_status()) is not None:
                    assert may_end, f"the driver of {sub} ended with {status}\n{driver.log()}"
                    self.ended.append(f"{sub} ended with {status}")
                    self.start(sub)
            return self._is_done(ends)

        process.wait_until(is_done, "the end of all that was sent", PATIENCE_S, poll_s=TABLE_POLL_S)

    def _is_done(self, ends: dict[str, int]) -> bool:
        """Returns true if drivers reported it and newest facts are readable."""
        told = {sub: driver.offsets() for sub, driver in self.drivers.items()}
        is_read = self._have_read(ends, **told) and all(told[sub] == self._read_to(sub) for sub in SUBS)
        return is_read and all(self._is_merged(sub, table) for sub, table in BOARDS.items())

    def _is_merged(self, sub: str, table: str) -> bool:
        """Returns true if the current rows of *table* show all appended changes.

        They are up to a refresh behind.
        """
        appended = rows_of(self.warehouse, TOPOLOGY, sub, f"changes_of_{table}")
        board = DeltaTable(str(Layout(self.warehouse).stream_table(TOPOLOGY, sub, table)))
        merged = board.transaction_version(f"{TOPOLOGY}/{sub}/{table}")
        return not appended or (merged is not None and merged >= appended[-1]["batch_id"])

    def _read_to(self, sub: str) -> dict[str, int]:
        """Returns the progress of *sub* by the newest rows of `partition_batches`.

        It is up to a flush behind its heartbeat.
        """
        reads = [*reads_of(rows_of(self.warehouse, TOPOLOGY, sub, "partition_batches")).values()]
        return {f"{part.topic}/{part.partition}": part.until_offset for newest in reads[-1:] for part in newest}

    def _have_read(self, ends: dict[str, int], players: dict[str, int], teams: dict[str, int]) -> bool:
        if not ends.items() <= players.items():
            return False
        hop = DeltaTable(str(Layout(self.warehouse).hop(TOPOLOGY, "players", "by_team")))
        last = hop.transaction_version(f"{TOPOLOGY}/players/hop_by_team")
        return last is not None and teams == {"by_team_source/0": last + 1}

    def behind(self) -> int:
        """Counts acknowledged records that `players` has not reported as processed."""
        return len(self.flow.acknowledged) - sum(self.drivers["players"].offsets().values())

    def pause(self, seconds: float) -> None:
        """Let things go on for so long."""
        time.sleep(seconds)


def _run(*command: str) -> bool:
    """Runs *command* and returns true on success."""
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False
