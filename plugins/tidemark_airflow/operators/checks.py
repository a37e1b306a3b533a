"""Hosts the process that looks at SLAs, and starts runs of Airflow when it asks for them.

Purpose: a promise that breaks is an alert within seconds, and an hour in which all hold costs no task.

How it works: each topology has an asset that is updated when its SLAs need Airflow, and the DAG `sla_check` is
scheduled on it. A watcher of that asset is a trigger, so Airflow keeps it in exactly one triggerer, as long as the DAG
is not paused. The first trigger in a triggerer starts the checker (`tidemark.sla.checker`) as a child process, and all
triggers there share it. It is started again when it dies or says nothing for HANGS_AFTER_S. It ends when the triggerer
does, since its standard input ends then.

A question that gets lost, because a triggerer was killed before Airflow had stored the event, is asked again by the
checker that follows.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetWatcher, Variable
from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from tidemark.control.process import without_airflow
from tidemark.model.settings.lengths import duration_ms
from tidemark_airflow.operators.store import warehouse_at

if TYPE_CHECKING:
    from tidemark.sla.checker_lines import Asked, Settings

log = logging.getLogger(__name__)
HANGS_AFTER_S = 900.0
"""A round may wait for the locks of reports, 10 minutes at most."""
AGAIN_AFTER_S = 1.0
"""Wait before a checker that ended is started again."""


def asked_asset(topology: str) -> Asset:
    """Returns the asset that is updated when the SLAs of *topology* need a run of Airflow.

    Its watcher looks at the SLAs. A task that names the asset has to name the watcher, too, because Airflow cancels the
    trigger when it parses a file that has the asset without a watcher.
    """
    watcher = AssetWatcher(name=f"tidemark_{topology}_slas", trigger=CheckTrigger(topology=topology))
    return Asset(name=f"tidemark_{topology}_asked", watchers=[watcher])


class CheckTrigger(BaseEventTrigger):
    """Fires when the SLAs of *topology* need a run of Airflow; the payload is an `Asked`.

    The variable `tidemark_warehouse` is the path of the tables, `tidemark_looks_every` the time between looks (15 s by
    default), and `tidemark_alive_url` an address that is asked each minute while checks are made (by default none).
    """

    def __init__(self, *, topology: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's triggers have no types
        self._topology = topology

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Returns how the triggerer creates this trigger again."""
        return "tidemark_airflow.operators.checks.CheckTrigger", {"topology": self._topology}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yields an event whenever the checker asks."""
        host = host_of(await sync_to_async(_settings)())
        questions = host.watch(self._topology)
        try:
            while True:
                asked = await questions.get()
                self.log.info("%s: a run is needed: %s", self._topology, ", ".join(asked.why))
                yield TriggerEvent(asdict(asked))  # type: ignore[no-untyped-call]  # as above
        finally:
            host.leave(self._topology)


def _settings() -> Settings:
    """Returns the settings of the checker, by Airflow's variables."""
    from tidemark.sla.checker_lines import EVERY_S, Settings  # parsers of DAGs need neither

    warehouse = Variable.get("tidemark_warehouse")
    warehouse_at(warehouse)
    every = Variable.get("tidemark_looks_every", default="")
    every_ms = duration_ms(every) if every else None
    if every and not every_ms:
        log.warning("the variable tidemark_looks_every is no length of time, got %r; write one such as 15 s", every)
    alive_url = Variable.get("tidemark_alive_url", default="")
    return Settings(warehouse=warehouse, every_s=every_ms / 1_000 if every_ms else EVERY_S, alive_url=alive_url)


class CheckerHost:
    """Keeps a checker running for the topologies that triggers of this process watch."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._questions: dict[str, asyncio.Queue[Asked]] = {}
        self._task: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self.looked: asyncio.Queue[list[str]] = asyncio.Queue(maxsize=1)
        """The topologies whose SLAs could not be judged in the newest round."""

    @property
    def pid(self) -> int | None:
        """The process of the checker, or None while none runs."""
        return None if self._process is None else self._process.pid

    async def ended(self) -> None:
        """Waits until the checker has ended, after the last topology was left."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def watch(self, topology: str) -> asyncio.Queue[Asked]:
        """Returns the queue in which the questions about *topology* arrive from now on."""
        questions = self._questions[topology] = asyncio.Queue()
        self._say_names()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep_running(), name="tidemark-checker")
        return questions

    def leave(self, topology: str) -> None:
        """Ends looks at *topology*, and with the last topology the checker."""
        self._questions.pop(topology, None)
        self._say_names()
        if not self._questions and self._task is not None:
            self._task.cancel()

    def _say_names(self) -> None:
        if self._process is not None and self._process.stdin is not None and self._process.returncode is None:
            self._process.stdin.write(json.dumps(sorted(self._questions)).encode() + b"\n")

    async def _keep_running(self) -> None:
        while True:
            try:
                await self._run()
            except Exception:
                log.exception("the checker of SLAs cannot run; it is started again")
            await asyncio.sleep(AGAIN_AFTER_S)

    async def _run(self) -> None:
        """Runs a checker to its end."""
        pipe = asyncio.subprocess.PIPE
        start = partial(asyncio.create_subprocess_exec, sys.executable, "-W", "ignore", "-m", "tidemark.sla.checker")
        process = self._process = await start(
            stdin=pipe, stdout=pipe, stderr=pipe, env=without_airflow(os.environ), start_new_session=True
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        errors = asyncio.create_task(_log_lines(process.stderr))
        try:
            process.stdin.write(json.dumps(asdict(self._settings)).encode() + b"\n")
            self._say_names()
            while line := await self._line(process.stdout):
                self._receive(json.loads(line))
            log.warning("the checker of SLAs ended with status %s; it is started again", await process.wait())
        finally:
            self._process = None
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            errors.cancel()

    async def _line(self, answers: asyncio.StreamReader) -> bytes:
        # `asyncio.wait_for` of Python 3.11 may swallow that this task is cancelled.
        async with asyncio.timeout(HANGS_AFTER_S):
            return await answers.readline()

    def _receive(self, line: dict[str, Any]) -> None:
        from tidemark.sla.checker_lines import Asked, Looked

        kind = line.pop("kind")
        if kind == Looked.__name__:
            if self.looked.full():
                self.looked.get_nowait()
            self.looked.put_nowait(line["failed"])
            return
        asked = Asked(**{**line, "why": tuple(line["why"])})
        if asked.topology in self._questions:
            self._questions[asked.topology].put_nowait(asked)


async def _log_lines(stream: asyncio.StreamReader) -> None:
    while line := await stream.readline():
        log.warning("%s", line.decode(errors="replace").rstrip())


_HOSTS: dict[tuple[Settings, int], CheckerHost] = {}


def host_of(settings: Settings) -> CheckerHost:
    """Returns the host of the checker with these *settings* in the running loop of this process."""
    return _HOSTS.setdefault((settings, id(asyncio.get_running_loop())), CheckerHost(settings))
