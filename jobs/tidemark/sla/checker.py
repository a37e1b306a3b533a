"""The process that checks the SLAs of topologies for as long as its parent lives.

The parent writes lines of JSON to the standard input of this process: `Settings` first, and then the names of the
topologies to check, whenever they change. The process answers on its standard output: `Asked` for each topology for
which Airflow has to run, and `Looked` after each round. It ends when its standard input does, whatever it is doing
then.

A round begins every `every_s`, or later if the looks would take more than SHARE of a core for long. Between two rounds
only those topologies are looked at in which the clock alone breaks or keeps a promise, at that instant, but at least
EARLIEST of a round after the look before.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import asdict
from math import ceil
from pathlib import Path
from typing import TypeAlias

import tidemark.allocator  # noqa: F401 - before others import Arrow
from tidemark.bounded_http import NoAnswer, ask
from tidemark.clock import wall_clock_ms
from tidemark.model.project.files import Project
from tidemark.model.project.layout import Layout
from tidemark.model.project.spark_settings import WITHOUT_SPARK
from tidemark.model.slas.channel_spec import channels_of
from tidemark.model.slas.sla_spec import files_of_dates, load_usable, recorded_topologies
from tidemark.recorded_jobs.queries import recorded_topology
from tidemark.reports.batch_job import topology
from tidemark.safe_text import log_to_stderr
from tidemark.sla.checker_lines import Asked, Looked, Settings
from tidemark.sla.watch import Promised, SlaWatch
from tidemark.storage.location import location

log = logging.getLogger("tidemark.checker")
_Written: TypeAlias = list[tuple[Path, int]]
"""Files, and when each was written, ns."""
SHARE = 0.35
"""The most cores that looks and checks take on average."""
AHEAD_S = 60.0
"""Most CPU seconds that they may take beyond SHARE at once, if they took less before."""
EARLIEST = 1 / 3
"""The shortest length between two looks at a topology, as a share of a round: each may have to measure everything."""
ALIVE_EVERY_S = 60.0
"""Seconds between two requests that tell a watcher outside (a dead man's switch) that checks are made."""
ANSWERS_WITHIN_S = 10.0


def promised_by(name: str, layout: Layout, project: Project) -> Promised:
    """Returns what the topology *name* of *project* promises.

    Raises:
        InvalidSpec: its file, or that of the SLAs, is not valid.
    """
    described = topology(name, layout)
    slas = load_usable(project.slas, described)
    return Promised(
        topology=described,
        specs=slas.specs,
        unusable=slas.unusable,
        channels=channels_of(project.channels, name),
        project=project.topologies,
    )


class Checker:
    """Checks topologies in rounds.

    Args:
        layout: paths of the warehouse.
        project: the files of topologies, SLAs and channels.
        tell: is called for each topology for which Airflow has to run.
    """

    def __init__(self, layout: Layout, project: Project, tell: Callable[[Asked], None]) -> None:
        self._layout, self._project, self._tell = layout, project, tell
        self._watches: dict[str, SlaWatch] = {}
        self._files: tuple[_Written, _Written] | None = None
        self._dates: list[Path] = []
        self._again_ms: dict[str, int] = {}
        """When a topology has to be looked at before the next round, epoch ms."""

    @property
    def again_ms(self) -> int | None:
        """When a topology has to be looked at before the next round, epoch ms; None if none has to."""
        return min(self._again_ms.values(), default=None)

    def look_again(self, *, every_s: float) -> None:
        """Looks at the topologies that cannot wait for the next round, and whose instant has come."""
        now_ms = wall_clock_ms()
        for name in [name for name, at_ms in self._again_ms.items() if at_ms <= now_ms]:
            self._look(name, is_turn=False, every_s=every_s)

    def round(self, names: Iterable[str], *, every_s: float) -> list[str]:
        """Looks at the topologies *names*; returns those whose SLAs could not be judged."""
        self._follow_files()
        self._again_ms = {}
        self._watches = {name: watch for name, watch in self._watches.items() if name in {*names}}
        failed: list[str] = []
        for name in names:
            try:
                if name not in self._watches and not self._is_yet_to_be_recorded(name):
                    self._watches[name] = self._watch(name)
            except Exception:
                log.exception("%s: its files cannot be used", name)
                failed.append(name)
        # Regular checks take turns, so that no round has many of them.
        in_turn = sorted(self._watches, key=lambda name: self._watches[name].checked_ms)
        turns = ceil(len(in_turn) * every_s * 1_000 / _least_ms(self._watches.values()))
        for number, name in enumerate(in_turn):
            if not self._look(name, is_turn=number < turns, every_s=every_s):
                failed.append(name)
        return failed

    def _look(self, name: str, *, is_turn: bool, every_s: float) -> bool:
        """Looks at a topology; returns False if its SLAs cannot be judged now."""
        self._again_ms.pop(name, None)
        every_ms = round(every_s * 1_000)
        try:
            found = self._watches[name].look(is_turn=is_turn, ahead_ms=every_ms)
        except Exception:
            log.exception("%s: its SLAs cannot be judged now", name)
            return False
        if found.again_ms is not None:
            self._again_ms[name] = max(found.again_ms, found.at_ms + round(every_ms * EARLIEST))
        if found.why:
            self._tell(Asked(topology=name, at_ms=found.at_ms, run_id=found.run_id, why=(*sorted(found.why),)))
        return True

    def _watch(self, name: str) -> SlaWatch:
        def promised() -> Promised:
            return promised_by(name, self._layout, self._project)

        return SlaWatch(self._layout, promised, clock=wall_clock_ms)

    def _is_yet_to_be_recorded(self, name: str) -> bool:
        """Returns True if *name* is a topology of jobs that have recorded nothing yet: it has nothing to judge."""
        is_of_jobs = name in recorded_topologies(self._project.slas)
        return is_of_jobs and recorded_topology(self._layout, name) is None

    def _follow_files(self) -> None:
        """Has topologies checked by the newest files, if a file has changed since the last round."""
        slas = self._project.slas
        own = _written([slas, self._project.channels, *sorted(self._project.topologies.glob("*.toml"))])
        # Which files have dates of calendars is read again only after a change.
        dates = self._dates if self._files and self._files[0] == own else files_of_dates(slas)
        now = (own, _written(dates))
        if self._files is not None and now != self._files:
            for watch in self._watches.values():
                watch.changed()
        self._files, self._dates = now, dates


def _written(files: Iterable[Path]) -> _Written:
    """Returns those of *files* that exist."""
    return [(path, path.stat().st_mtime_ns) for path in files if path.exists()]


def _least_ms(watches: Iterable[SlaWatch]) -> int:
    return min((watch.check_every_ms for watch in watches), default=1)


def say_alive(url: str) -> None:
    """Sends a request to *url*, a dead man's switch, which shows that checks are made. A failure is logged."""
    try:
        answer = ask(urllib.request.Request(url), within_s=ANSWERS_WITHIN_S, most_bytes=0)
        problem = None if answer.status < 400 else f"status {answer.status}"
    except (NoAnswer, ValueError) as error:
        problem = str(error)
    if problem:
        log.warning("the dead man's switch did not answer: %s", problem)


class _Parent:
    """Reads what the parent says, in a thread of its own."""

    def __init__(self, settings: Settings, names: Iterable[str]) -> None:
        self.settings, self.names = settings, tuple(names)
        self.has_changed = threading.Event()

    def listen(self, lines: Iterable[str]) -> None:
        """Follows the *lines* of the parent, and ends this process after the last."""
        for line in lines:
            self.names = tuple(json.loads(line))
            self.has_changed.set()
        # The parent is gone, and so is whoever reads what a look would find.
        os._exit(0)


def main() -> None:
    """Looks at SLAs until the parent ends."""
    log_to_stderr()
    logging.getLogger().setLevel(logging.WARNING)
    os.environ[WITHOUT_SPARK] = "1"
    answers, sys.stdout = sys.stdout, sys.stderr  # nothing else may write into the answers
    settings = Settings(**json.loads(sys.stdin.readline()))
    parent = _Parent(settings, json.loads(sys.stdin.readline()))
    threading.Thread(target=parent.listen, args=(sys.stdin,), daemon=True).start()

    def say(line: Asked | Looked) -> None:
        print(json.dumps({"kind": type(line).__name__, **asdict(line)}), file=answers, flush=True)

    checker = Checker(Layout(location(settings.warehouse)), Project.here(), say)
    round_s, alive_s, spent_s = float("-inf"), float("-inf"), 0.0
    while True:
        has_changed = parent.has_changed.is_set()
        parent.has_changed.clear()
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        if has_changed or began_s >= round_s:
            round_s = began_s + settings.every_s
            names = parent.names
            failed = checker.round(names, every_s=settings.every_s)
            say(Looked(cpu_s=time.process_time() - began_cpu_s, failed=(*failed,)))
            is_well = bool(names) and not failed
            if settings.alive_url and is_well and began_s - alive_s >= ALIVE_EVERY_S - settings.every_s / 2:
                alive_s = began_s
                say_alive(settings.alive_url)
        else:
            checker.look_again(every_s=settings.every_s)
        spent_s += time.process_time() - began_cpu_s
        pause_s = round_s - time.monotonic()
        if checker.again_ms is not None:
            pause_s = min(pause_s, (checker.again_ms - wall_clock_ms()) / 1_000)
        parent.has_changed.wait(max(0.0, pause_s, (spent_s - AHEAD_S) / SHARE))
        spent_s = max(0.0, spent_s - SHARE * (time.monotonic() - began_s))


if __name__ == "__main__":
    main()
