"""`tidemark up`: start topologies with all that they need on this machine, and wait for their first results."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Container, Iterable, Mapping
from contextlib import AbstractContextManager
from itertools import product
from pathlib import Path

from tidemark.cli import status, topic
from tidemark.cli.local import (
    PARTS,
    AirflowApi,
    Conductor,
    Home,
    Remembered,
    addresses,
    broker,
    once_every,
    stack,
    step,
    topics_of,
)
from tidemark.cli.options import add_slow
from tidemark.cli.output import say, say_inert
from tidemark.errors import InvalidArgument, TidemarkError
from tidemark.inert import one_message
from tidemark.report.page_model import Standing
from tidemark.spec.connections import DEFAULT, PARTITIONS, with_address
from tidemark.spec.project import Project
from tidemark.spec.topology import Topology, load_each

RUN_AT_ONCE = frozenset({"sla_check", "maintenance"})
"""DAGs that run as soon as there are results, whatever their schedule; streams ask for their first report."""
PARSED_WITHIN_S = 120.0
RESULTS_WITHIN_S = 180.0
TELL_EVERY_S = 5.0
POLL_S = 1.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    which = "their names (those that ran at the last `tidemark down`; the first time all of the project)"
    parser.add_argument("topologies", nargs="*", metavar="TOPOLOGY", help=which)
    parser.add_argument("--unpause", action="store_true", help="unpause DAGs that a person has paused, too")
    add_slow(parser)


def command(options: argparse.Namespace) -> int:
    """Start them; 1 when one of them cannot run, which does not keep the others from it."""
    up = Up(Home(options.home.resolve()), Project.here(), slow=options.slow, unpause=options.unpause)
    ran_before, is_started = up.home.running(), False
    try:
        topologies = up.with_topics(up.chosen(options.topologies))
        api = up.start_airflow()
        topologies = up.with_dags(api, topologies)
        runs = up.launch(api, topologies)
        is_started = True
        up.wait_for_results(api, runs)
        up.check(api, topologies)
        up.open_pages(api)
    finally:
        if not is_started and not ran_before:
            stack.stop(up.home)
    say_inert("\n" + status.as_text(status.documents(up.home, up.home.warehouse, topologies.values())))
    say_inert("\n" + addresses(up.home))
    for dag_id in up.held:
        again = f"`tidemark up {' '.join(topologies)} --unpause`"
        say_inert(f"{dag_id} stays paused, as a person has left it; {again} unpauses it")
    for name, problem in up.problems.items():
        say(one_message(f"tidemark up: {name}: {problem}"), sys.stderr)
    return 1 if up.problems else 0


class Up:
    """The steps of a start in *home* of topologies of *project*; a topology that cannot run joins `problems`.

    `held` are the DAGs that stay paused because a person has paused them.
    """

    def __init__(self, home: Home, project: Project, *, slow: Iterable[str] = (), unpause: bool = False) -> None:
        self.home, self.project = home, project
        self.problems: dict[str, str] = {}
        self.held: list[str] = []
        self._slow, self._unpause = tuple(slow), unpause
        self._remembered = Remembered.of(home)

    def chosen(self, names: Iterable[str]) -> dict[str, Topology]:
        """The topologies *names*, or without any those of the last `down`, or all; by name."""
        loaded = load_each(self.project.topologies)
        known = {path.stem: each for path, each in loaded.items()}
        known |= {each.name: each for each in loaded.values() if isinstance(each, Topology)}
        asked = list(names) or self._still_there(known) or [path.stem for path in loaded]
        if not asked:
            msg = f"{self.project.topologies} has no topology; write one into NAME.toml, as README.md there shows"
            raise InvalidArgument(msg)
        found: dict[str, Topology] = {}
        for name in asked:
            each = known.get(Path(name).stem)
            if isinstance(each, Topology):
                found[each.name] = each
            else:
                unknown = f"no such topology in {self.project.topologies}; known: {', '.join(sorted(known)) or 'none'}"
                self.problems[name] = unknown if each is None else str(each)
        return self._usable(found)

    def _still_there(self, known: Container[str]) -> list[str]:
        """The topologies that ran at the last `down`; says of which there is no file any more."""
        ran = self._remembered.ran or []
        gone = [name for name in ran if name not in known]
        if gone:
            say(f"{', '.join(gone)} ran before, and has no file in {self.project.topologies} any more", sys.stderr)
        return [name for name in ran if name in known]

    def with_topics(self, topologies: Mapping[str, Topology]) -> dict[str, Topology]:
        """Those of *topologies* whose topics are there; the local broker is started if one needs it."""
        needed = {name: topics_of(each) if _uses_local_broker(each) else {} for name, each in topologies.items()}
        if not any(needed.values()):
            return dict(topologies)
        with self._step("starting Kafka"):
            address = broker.start(self.home.broker).address
            if self.project.is_checkout:  # the demo's topics are part of it
                broker.create_topics(address, {topic: n for each in needed.values() for topic, n in each.items()})
            there = broker.topics(address)
        for name, topics in needed.items():
            if missing := {each: PARTITIONS for each in topics if each not in there}:
                self.problems[name] = topic.missing(missing, address)
        return self._usable(topologies)

    def start_airflow(self) -> AirflowApi:
        """The API of Airflow, healthy."""
        with self._step("starting Airflow"):
            return stack.start_airflow(self.home, bootstrap=broker.address(self.home.broker), project=self.project)

    def with_dags(self, api: AirflowApi, topologies: Mapping[str, Topology]) -> dict[str, Topology]:
        """Those of *topologies* whose DAGs Airflow has read."""
        waiting, began, is_due = dict(topologies), time.monotonic(), once_every(TELL_EVERY_S)
        with self._step("waiting for the DAGs"):
            while waiting and time.monotonic() - began < PARSED_WITHIN_S:
                if is_due():
                    say_inert(f"  Airflow has not read the DAGs of {', '.join(waiting)} yet")
                waiting = {name: each for name, each in waiting.items() if not self._has_dags(api, each)}
                time.sleep(POLL_S if waiting else 0)
        for name in waiting:
            why = "; ".join(error.strip().splitlines()[-1] for error in api.import_errors().values())
            self.problems[name] = f"Airflow has not read its DAGs within {PARSED_WITHIN_S:g} s: {why or 'no error'}"
        return self._usable(topologies)

    def _has_dags(self, api: AirflowApi, topology: Topology) -> bool:
        return all(api.has_dag(self._conductor(topology).dag(part)) for part in PARTS)

    def launch(self, api: AirflowApi, topologies: Mapping[str, Topology]) -> dict[str, tuple[Conductor, str]]:
        """Launch the streams, except where a person has paused their DAG; per topology the run of that."""
        runs = {}
        for name, each in topologies.items():
            conductor = self._conductor(each)
            if self._let_go(api, conductor.dag("streams")):
                runs[name] = (conductor, conductor.trigger_streams(api, self._conf(each)))
        self._remembered.started(topologies)
        self._remembered.keep(self.home)
        return runs

    def wait_for_results(self, api: AirflowApi, runs: Mapping[str, tuple[Conductor, str]]) -> None:
        """Return when each has a result, has nothing to read, or has failed; after RESULTS_WITHIN_S at the latest."""
        waiting, began, is_due = dict(runs), time.monotonic(), once_every(TELL_EVERY_S)
        with self._step("waiting for the first results"):
            while waiting and time.monotonic() - began < RESULTS_WITHIN_S:
                for name, (conductor, run_id) in list(waiting.items()):
                    try:
                        waiting[name] = (
                            conductor,
                            conductor.still_going_on(api, run_id, self._conf(conductor.topology)),
                        )
                    except TidemarkError as error:
                        self.problems[name] = str(error)
                        del waiting[name]
                        continue
                    if conductor.all_run() and self._has_something_to_show(conductor.topology):
                        del waiting[name]
                if is_due():
                    for name, (conductor, _) in waiting.items():
                        say_inert(f"  {name}: {conductor.progress()}")
                time.sleep(POLL_S if waiting else 0)

    def check(self, api: AirflowApi, topologies: Mapping[str, Topology]) -> None:
        """Unpause the DAGs with a schedule, except those that a person has paused, and have SLAs checked now.

        Before the first result every table would be missing, which breaks an SLA, and the streams need the slots.
        """
        for each, part in product(topologies.values(), PARTS):
            dag = self._conductor(each).dag(part)
            if part != "streams" and self._let_go(api, dag) and part in RUN_AT_ONCE:
                api.trigger(dag, {})
        self._remembered.keep(self.home)

    def open_pages(self, api: AirflowApi) -> None:
        """Have the pages answer, which takes seconds the first time: not when a person opens one."""
        with self._step("opening the pages"):
            api.topologies()

    def _conf(self, topology: Topology) -> dict[str, object]:
        """What the DAG of its streams is asked for."""
        return {"slow": [pair for pair in self._slow if pair.partition("=")[0] in topology.operators]}

    def _has_something_to_show(self, topology: Topology) -> bool:
        model = status.document(self.home.warehouse, topology)
        return model["newest_result_at"] is not None or model["verdict"] == Standing.QUIET

    def _let_go(self, api: AirflowApi, dag_id: str) -> bool:
        """Unpause the DAG, unless a person has paused it since it was unpaused here; whether it is not paused now."""
        was_unpaused = dag_id in self._remembered.unpaused
        if was_unpaused and api.is_paused(dag_id) and not self._unpause:
            self.held.append(dag_id)
            return False
        api.unpause(dag_id)
        if not was_unpaused:
            self._remembered.unpaused.append(dag_id)
        return True

    def _usable(self, topologies: Mapping[str, Topology]) -> dict[str, Topology]:
        """Those of *topologies* without a problem; raises InvalidArgument where none is left."""
        left = {name: each for name, each in topologies.items() if name not in self.problems}
        if not left:
            raise InvalidArgument("\n".join(f"{name}: {problem}" for name, problem in self.problems.items()))
        return left

    def _conductor(self, topology: Topology) -> Conductor:
        return Conductor(self.home, topology, say_inert)

    def _step(self, what: str) -> AbstractContextManager[None]:
        return step(say_inert, what)


def _uses_local_broker(topology: Topology) -> bool:
    """Whether it uses the cluster `default`, and nothing gives that an address."""
    return DEFAULT in topology.clusters_used and not with_address([DEFAULT], topology.clusters, {}, os.environ)
