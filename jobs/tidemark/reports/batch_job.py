"""The command line that all batch jobs share, and the topology, SLAs and lock that they work with."""

from __future__ import annotations

import argparse
import logging
import os
from contextlib import AbstractContextManager
from pathlib import Path

from tidemark.control.folder import Control
from tidemark.errors import InvalidArgument, TidemarkError, argument_type
from tidemark.model.project.connections import named_address
from tidemark.model.project.files import Project
from tidemark.model.project.layout import WATCH, Layout
from tidemark.model.project.secrets import read_given
from tidemark.model.settings.intervals import instant_ms
from tidemark.model.slas import sla_spec
from tidemark.model.slas.sla_spec import SlaSpec, load_usable
from tidemark.model.topology import Topology, load, load_each
from tidemark.recorded_jobs.queries import recorded_topologies, recorded_topology
from tidemark.selection import names_in
from tidemark.storage.location import is_missing, location

log = logging.getLogger(__name__)

AT_MOST_S = 600.0
IN_YARN = "SPARK_YARN_STAGING_DIR"
"""Environment variable that Spark sets for a driver on YARN."""


def parser(description: str | None) -> argparse.ArgumentParser:
    """Returns a parser for the arguments of every batch job: `warehouse`, a Layout, and `topology`, a name or a
    file.
    """
    arguments = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument(
        "--warehouse",
        type=argument_type(lambda text: Layout(location(text))),
        required=True,
        help="folder of the tables, or a URL such as s3://BUCKET/FOLDER",
    )
    name = "TOML file of the topology, or name of a topology of the project or of recorded queries"
    arguments.add_argument("--topology", required=True, help=name)
    return arguments


def parse(arguments: argparse.ArgumentParser) -> argparse.Namespace:
    """Parses the arguments of a batch job, with `topology` as the loaded Topology.

    The job ends with 0 if nothing was recorded yet for a topology of recorded jobs. In a container of YARN, Spark is
    started even if the job needs none: YARN calls a program without a Spark context failed.
    """
    options = arguments.parse_args()
    try:
        options.topology = topology(options.topology, options.warehouse)
    except TidemarkError as error:
        if isinstance(error, InvalidArgument) and _is_of_jobs(options.topology):
            folder = options.warehouse.warehouse
            if is_missing(folder):
                arguments.error(f"argument --warehouse: {missing_warehouse_message(folder, options.topology)}")
            arguments.exit(message=f"nothing to do: {folder} has no query of {options.topology} yet\n")
        arguments.error(f"argument --topology: {error}")
    if IN_YARN in os.environ:
        from tidemark.spark_session import session  # elsewhere a job may have no packages of Spark

        session(f"tidemark-{options.topology.name}")
    return options


def missing_warehouse_message(folder: Path, topology: str) -> str:
    """Returns the message for a *folder* that does not exist, given as the warehouse of a topology of recorded jobs."""
    right = "give the right folder (in Airflow the variable tidemark_warehouse)"
    return f"{folder}: no such folder; {right}, or run a job of {topology}: the first launch creates the folder"


def _is_of_jobs(name: str) -> bool:
    """Returns True if the project's SLAs say that *name* is a topology of recorded jobs."""
    try:
        return name in sla_spec.recorded_topologies(Project.here().slas)
    except InvalidArgument:
        return False


def report_lock(layout: Layout, topology: str) -> AbstractContextManager[None]:
    """Returns a context that holds the lock of the reports of *topology*: one job writes them at a time.

    Raises:
        OtherFormat: a version with another format has written to the warehouse.
    """
    from tidemark.storage.delta.format import refuse_other

    refuse_other(layout.warehouse)
    # In an object store a job waits for the lease of another one, for AT_MOST_S, and then gives up.
    return Control(layout.report_control(topology)).held_alone(patience_s=AT_MOST_S)


def interval_parser(description: str | None, *, required: bool = True) -> argparse.ArgumentParser:
    """Returns a parser that also takes an interval, as `start_ms` and `end_ms`, epoch ms.

    Without *required* the interval may be left out, and both are None then.
    """
    arguments = parser(description)
    add_instant(arguments, "--from", "start_ms", "start of the interval", required=required)
    add_instant(arguments, "--to", "end_ms", "end of the interval, exclusive", required=required)
    return arguments


def add_instant(arguments: argparse.ArgumentParser, flag: str, name: str, what: str, *, required: bool = True) -> None:
    """Adds an argument for an instant, which is parsed to epoch ms.

    Args:
        arguments: the parser that gets the argument.
        flag: the flag of the argument, such as `--from`.
        name: the name of the parsed value.
        what: describes the instant in the help.
        required: the argument must be given; otherwise its value may be None.
    """
    text = f"{what}, ISO 8601 (default zone: UTC)"
    arguments.add_argument(
        flag, dest=name, metavar="INSTANT", type=argument_type(instant_ms), required=required, help=text
    )


def add_bootstrap(arguments: argparse.ArgumentParser, otherwise: str = "none") -> None:
    """Adds the arguments with addresses and secrets of Kafka clusters; *otherwise* is the default in the help."""
    text = f"address of a Kafka cluster, see docs/connections.md; without NAME that of `default` (default: {otherwise})"
    arguments.add_argument(
        "--bootstrap",
        action="append",
        default=[],
        type=argument_type(named_address),
        metavar="[NAME=]HOST:PORT",
        help=text,
    )
    arguments.add_argument(
        "--secrets",
        type=Path,
        metavar="FILE",
        help="JSON file with secrets of Kafka clusters and schema registries that are in Airflow's connections "
        "(default: none)",
    )


def given_secrets(options: argparse.Namespace) -> dict[str, str]:
    """Returns the secrets in the file of `--secrets`, by the place at which a setting needs them.

    Raises:
        InvalidArgument: the file cannot be used.
    """
    return read_given(options.secrets) if getattr(options, "secrets", None) else {}


def topology(name: str, layout: Layout | None = None) -> Topology:
    """Loads a topology by its *name*, or from the TOML file *name*.

    Without a file, the topology consists of the queries that were recorded under *name* in the warehouse of *layout*.
    WATCH is that of watched tables.

    Raises:
        InvalidArgument: there is no such topology; the message lists the known ones.
        InvalidSpec: the file, or the description of a recorded query, is invalid.
    """
    if name == WATCH:
        return _watched_topology()
    try:
        files = _files(name)
    except InvalidArgument:  # recorded queries need no project
        files = {}
    if name not in files and layout is not None and (recorded := recorded_topology(layout, name)) is not None:
        return recorded
    return load(topology_file(name, layout))


def _watched_topology() -> Topology:
    file = Project.here().slas
    if (watch := sla_spec.known_watch(file)) is not None:
        return watch
    msg = f"{file} has no SLA of a watched table; write one into [{WATCH}.NAME], as docs/watch.md shows"
    raise InvalidArgument(msg)


def topology_file(name: str, layout: Layout | None = None) -> Path:
    """Returns the file of the topology *name*.

    *name* may be a TOML file itself. With *layout* the error also names topologies recorded in that warehouse.

    Raises:
        InvalidArgument: there is no such file; the message lists the known topologies, or says that this one is
            recorded from jobs.
        InvalidSpec: the topology is recorded from jobs, and the description of one of its queries is invalid.
    """
    files = _files(name)
    if name in files:
        return files[name]
    if layout is not None and recorded_topology(layout, name) is not None:
        msg = f"{name} has no topology file: it is recorded from jobs, and this is not for recorded jobs"
        raise InvalidArgument(msg)
    recorded = names_in(recorded_topologies(layout)) if layout is not None else []
    listed = ", ".join((*files, *recorded)) or "none"
    msg = f"there is no topology {name!r} in {Project.here().topologies}; known: {listed}"
    raise InvalidArgument(msg)


def _files(name: str) -> dict[str, Path]:
    """Returns the topology files of the project by name; that of *name* is among them, if there is one."""
    if name.endswith(".toml") and Path(name).is_file():
        return {name: Path(name)}
    folder = Project.here().topologies
    files = {path.stem: path for path in sorted(folder.glob("*.toml"))}
    if name not in files:
        # A topology may have another name than its file.
        files |= {each.name: path for path, each in load_each(folder).items() if isinstance(each, Topology)}
    return files


def load_usable_slas(topology: Topology) -> tuple[SlaSpec, ...]:
    """Loads the valid SLAs of *topology*.

    Reports can be made without promises. So an invalid SLA, or a missing file, is only logged as a warning.
    """
    file = Project.here().slas
    if not file.exists():
        log.warning("%s is missing, so reports have no promises", file)
        return ()
    slas = load_usable(file, topology)
    for error in slas.errors.values():
        log.warning("%s; its promise is left out", error)
    return slas.specs
