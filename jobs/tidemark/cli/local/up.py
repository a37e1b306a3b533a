"""`tidemark up`: starts topologies and waits for their first results.

It starts all that they need on this machine.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Container, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from tidemark.cli.explain import status
from tidemark.cli.local import topic
from tidemark.cli.local.fresh_start import start_over
from tidemark.cli.shared.local import (
    AirflowApi,
    Conductor,
    Home,
    InstallationState,
    addresses,
    broker,
    once_every,
    parts_of,
    program,
    stack,
    step,
    topics_of,
    writable_home,
)
from tidemark.cli.shared.output import say, say_inert
from tidemark.clock import wall_clock_ms
from tidemark.errors import InvalidArgument, InvalidSpec, TidemarkError
from tidemark.model.project.connections import DEFAULT, PARTITIONS, with_address
from tidemark.model.project.extras import require
from tidemark.model.project.files import Project
from tidemark.model.project.jars import require_jars
from tidemark.model.project.layout import WATCH, Layout
from tidemark.model.slas.sla_spec import known_watch, topologies_of_jobs
from tidemark.model.topology import Topology, load_each
from tidemark.recorded_jobs.queries import recorded_topology
from tidemark.reports.documents.status import status_document
from tidemark.reports.pages.topology_state import PageVerdict
from tidemark.safe_text import one_message
from tidemark.selection import index_by_name, names_in, omit, outside, present, within

PARSED_WITHIN_S = 120.0
RESULTS_WITHIN_S = 180.0
TELL_EVERY_S = 5.0
POLL_S = 1.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    which = "names of topologies (default: those that ran at the last `tidemark down`; at first all of the project)"
    parser.add_argument("topologies", nargs="*", metavar="TOPOLOGY", help=which)
    parser.add_argument("--unpause", action="store_true", help="also unpause DAGs that a person has paused")
    fresh = "first delete all that they have written, as `tidemark start-over` does, which asks for their names"
    parser.add_argument("--fresh", action="store_true", help=fresh)
    parser.add_argument("--yes", action="store_true", help="with --fresh: do not ask")


def command(options: argparse.Namespace) -> int:
    """Starts the topologies; returns 1 if any of them cannot run.

    The others are started nevertheless.
    """
    up = StackStart(writable_home(options.home), Project.here(), unpause=options.unpause)
    ran_before, is_started = up.home.running(), False
    try:
        chosen = up.chosen(options.topologies)
        if options.fresh and not up.begins_anew(chosen.values(), agreed=options.yes):
            return 1
        has_jobs_here = any(topology.spark.python is None for topology in chosen.values())
        require("airflow", *(("great_expectations", "pyspark") if has_jobs_here else ()))
        require_jars("spark")
        topologies = up.with_topics(chosen)
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
    shown = up.with_queries(topologies)
    say_inert("\n" + status.as_text(status.documents(up.home, up.home.warehouse, shown)) if shown else "")
    for name in outside(topologies, names_in(shown)):
        of_jobs = "no job of it has run yet; docs/any-stream.md shows how to launch one"
        of_watch = f"the SLAs of watched tables are judged; `{program(up.home)} incidents {WATCH}` has what they found"
        say_inert(f"{name}: {of_watch if name == WATCH else of_jobs}")
    say_inert("\n" + addresses(up.home))
    for dag_id in up.held:
        again = f"`{program(up.home)} up {' '.join(topologies)} --unpause`"
        say_inert(f"{dag_id} stays paused because a person paused it; {again} unpauses it")
    for name, problem in up.problems.items():
        say(one_message(f"tidemark up: {name}: {problem}"), sys.stderr)
    return 1 if up.problems else 0


class StackStart:
    """The steps that start topologies of *project* in *home*.

    A topology that cannot run joins `problems`. `held` are DAGs that stay paused because a person paused them.
    """

    def __init__(self, home: Home, project: Project, *, unpause: bool = False) -> None:
        self.home, self.project = home, project
        self.problems: dict[str, str] = {}
        self.held: list[str] = []
        self._unpause = unpause
        self._remembered = InstallationState.of(home)

    def chosen(self, names: Iterable[str]) -> dict[str, Topology]:
        """Returns the topologies *names* by name.

        Without *names* these are the topologies that ran at the last `down`, or else all of the project.
        """
        loaded = load_each(self.project.topologies)
        # Neither those of jobs nor watched tables have a file.
        of_jobs = topologies_of_jobs(self.project.slas, loaded)
        of_jobs |= index_by_name(present((known_watch(self.project.slas),)))
        available = of_jobs | {path.stem: each for path, each in loaded.items()}
        available |= {each.name: each for each in loaded.values() if isinstance(each, Topology)}
        all_names = [*(path.stem for path in loaded), *of_jobs]
        chosen_names = list(names) or self._still_there(available) or all_names
        if not chosen_names:
            msg = f"{self.project.topologies} has no topology; write one into NAME.toml, as README.md there shows"
            raise InvalidArgument(msg)
        chosen: dict[str, Topology] = {}
        for name in chosen_names:
            each = available.get(Path(name).stem)
            if isinstance(each, Topology):
                chosen[each.name] = each
            else:
                unknown = (
                    f"no such topology in {self.project.topologies}; known: {', '.join(sorted(available)) or 'none'}"
                )
                self.problems[name] = unknown if each is None else str(each)
        return self._usable(chosen)

    def _still_there(self, available: Container[str]) -> list[str]:
        """Returns the topologies that ran at the last `down` and are *available*.

        It prints the names of the others: their files are gone.
        """
        ran = self._remembered.ran or []
        gone = outside(ran, available)
        if gone:
            say(f"{', '.join(gone)} ran before, but has no file in {self.project.topologies} any more", sys.stderr)
        return within(ran, available)

    def begins_anew(self, topologies: Iterable[Topology], *, agreed: bool) -> bool:
        """Deletes what *topologies* have written, if a person has *agreed* or agrees; returns False if one still runs.

        Raises:
            InvalidArgument: the person has not agreed, or cannot be asked.
        """
        asked = {"command": "start-over", "dry_run": False, "plan": None, "asked_in": None, "by": None, "yes": agreed}
        options = argparse.Namespace(**asked, note="tidemark up --fresh")
        written = (each for each in topologies if each.sub_topologies)
        return all(start_over(options, self.home, self.home.warehouse, each) for each in written)

    def with_topics(self, topologies: Mapping[str, Topology]) -> dict[str, Topology]:
        """Returns the topologies whose topics exist.

        It starts the local broker if one of *topologies* needs it.
        """
        needed = {name: topics_of(each) if _uses_local_broker(each) else {} for name, each in topologies.items()}
        if not any(needed.values()):
            return dict(topologies)
        with self._step("starting Kafka"):
            address = broker.start(self.home.broker).address
            if self.project.is_checkout:  # the demo's topics are part of it
                demo_topics: dict[str, int] = {}
                for topics in needed.values():
                    demo_topics |= topics
                broker.create_topics(address, demo_topics)
            there = broker.topics(address)
        for name, topics in needed.items():
            if missing := {each: PARTITIONS for each in topics if each not in there}:
                self.problems[name] = topic.missing_topics_message(missing, address)
        return self._usable(topologies)

    def start_airflow(self) -> AirflowApi:
        """Starts Airflow and returns its API."""
        with self._step("starting Airflow"):
            return stack.start_airflow(self.home, bootstrap=broker.address(self.home.broker), project=self.project)

    def with_dags(self, api: AirflowApi, topologies: Mapping[str, Topology]) -> dict[str, Topology]:
        """Waits for DAGs; returns the topologies whose DAGs Airflow has read."""
        waiting, began, is_due = dict(topologies), time.monotonic(), once_every(TELL_EVERY_S)
        with self._step("waiting for the DAGs"):
            while waiting and time.monotonic() - began < PARSED_WITHIN_S:
                if is_due():
                    say_inert(f"  Airflow has not read the DAGs of {', '.join(waiting)} yet")
                waiting = {name: each for name, each in waiting.items() if not self._has_dags(api, each)}
                time.sleep(POLL_S if waiting else 0)
        for name in waiting:
            # The last line of a traceback has the error.
            why = "; ".join(error.strip().splitlines()[-1] for error in api.import_errors().values())
            self.problems[name] = f"Airflow has not read its DAGs within {PARSED_WITHIN_S:g} s: {why or 'no error'}"
        return self._usable(topologies)

    def _has_dags(self, api: AirflowApi, topology: Topology) -> bool:
        return all(api.has_dag(self._conductor(topology).dag(part)) for part in parts_of(topology))

    def launch(self, api: AirflowApi, topologies: Mapping[str, Topology]) -> dict[str, tuple[Conductor, str]]:
        """Launches the streams; returns by topology the run of their DAG.

        A topology is left out if a person paused that DAG, or if its jobs are started by DAGs of your own.
        """
        runs = {}
        for name, each in topologies.items():
            conductor = self._conductor(each)
            if "streams" in parts_of(each) and self._let_go(api, conductor.dag("streams")):
                runs[name] = (conductor, conductor.trigger_streams(api, {}))
        self._remembered.started(topologies)
        self._remembered.keep(self.home)
        return runs

    def wait_for_results(self, api: AirflowApi, runs: Mapping[str, tuple[Conductor, str]]) -> None:
        """Waits until each topology has a result, or none to wait for.

        A topology that has nothing to read, or has failed, has none. The wait ends after RESULTS_WITHIN_S at the
        latest.
        """
        waiting, began, is_due = dict(runs), time.monotonic(), once_every(TELL_EVERY_S)
        with self._step("waiting for the first results"):
            while waiting and time.monotonic() - began < RESULTS_WITHIN_S:
                # A copy, since topologies leave `waiting` in the loop.
                for name, (conductor, run_id) in list(waiting.items()):
                    try:
                        waiting[name] = (conductor, conductor.still_going_on(api, run_id, {}))
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
        """Unpauses the DAGs with a schedule, and has SLAs checked now.

        DAGs that a person paused stay so.
        """
        # Batch jobs refuse a missing warehouse. A topology of jobs may have written nothing yet.
        self.home.warehouse.mkdir(parents=True, exist_ok=True)
        # After the first results: before them each missing table would break an SLA, and the streams need the slots.
        recorded = names_in(self.with_queries(topologies))
        for name, each in topologies.items():
            for part in parts_of(each):
                dag = self._conductor(each).dag(part)
                if part != "streams" and self._let_go(api, dag) and part == "sla_check" and name in recorded:
                    api.trigger(dag, {})
        self._remembered.keep(self.home)

    def with_queries(self, topologies: Mapping[str, Topology]) -> list[Topology]:
        """Returns *topologies*, those of jobs with their queries.

        Those of jobs that have not run yet are left out, and those with a broken description join `problems`.
        """
        layout, shown = Layout(self.home.warehouse), list[Topology]()
        for name, topology in topologies.items():
            try:
                whole = topology if topology.sub_topologies else recorded_topology(layout, name)
            except InvalidSpec as error:
                self.problems[name] = str(error)
                continue
            if whole is not None:
                shown.append(whole)
        return shown

    def open_pages(self, api: AirflowApi) -> None:
        """Opens the pages once, because the first answer takes seconds."""
        with self._step("opening the pages"):
            api.topologies()

    def _has_something_to_show(self, topology: Topology) -> bool:
        model = status_document(self.home.warehouse, topology, at_ms=wall_clock_ms())
        return model["newest_result_at"] is not None or model["verdict"] == PageVerdict.QUIET

    def _let_go(self, api: AirflowApi, dag_id: str) -> bool:
        """Unpauses the DAG; returns False if it stays paused.

        It does so if a person paused it after Tidemark had unpaused it.
        """
        was_unpaused = dag_id in self._remembered.unpaused
        if was_unpaused and api.is_paused(dag_id) and not self._unpause:
            self.held.append(dag_id)
            return False
        api.unpause(dag_id)
        if not was_unpaused:
            self._remembered.unpaused.append(dag_id)
        return True

    def _usable(self, topologies: Mapping[str, Topology]) -> dict[str, Topology]:
        """Returns the topologies without a problem.

        Raises:
            InvalidArgument: none is left.
        """
        usable = omit(topologies, self.problems)
        if not usable:
            raise InvalidArgument("\n".join(f"{name}: {problem}" for name, problem in self.problems.items()))
        return usable

    def _conductor(self, topology: Topology) -> Conductor:
        return Conductor(self.home, topology, say_inert)

    def _step(self, what: str) -> AbstractContextManager[None]:
        return step(say_inert, what)


def _uses_local_broker(topology: Topology) -> bool:
    """Returns True if no setting gives *topology*'s cluster `default` an address."""
    return DEFAULT in topology.clusters_used and not with_address([DEFAULT], topology.clusters, {}, os.environ)
