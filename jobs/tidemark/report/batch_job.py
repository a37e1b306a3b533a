"""The command line that the batch jobs share."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

from tidemark.control import Control
from tidemark.errors import InvalidArgument, TidemarkError
from tidemark.place import location
from tidemark.spec.connections import named_address
from tidemark.spec.intervals import instant_ms
from tidemark.spec.layout import Layout
from tidemark.spec.project import Project
from tidemark.spec.sla_spec import SlaSpec, load_usable
from tidemark.spec.topology import Topology, load, load_each

log = logging.getLogger(__name__)

T = TypeVar("T")
AT_MOST_S = 600.0


def parser(description: str | None) -> argparse.ArgumentParser:
    """Asks for what every batch job needs: `warehouse`, a Layout, and `topology`, read from its file."""
    arguments = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument(
        "--warehouse", type=told(lambda text: Layout(location(text))), required=True, help="its folder, or s3a://"
    )
    name = "its TOML file, or its name: that of a file among the project's topologies"
    arguments.add_argument("--topology", type=told(topology), required=True, help=name)
    return arguments


def writing(layout: Layout, topology: str) -> AbstractContextManager[None]:
    """For as long as a job writes reports of *topology*: in an object store others wait, AT_MOST_S, or give up."""
    return Control(layout.report_control(topology)).held_alone(patience_s=AT_MOST_S)


def interval_parser(description: str | None, *, required: bool = True) -> argparse.ArgumentParser:
    """Asks for an interval besides: `start_ms` and `end_ms`; None where it is not *required* and not given."""
    arguments = parser(description)
    add_instant(arguments, "--from", "start_ms", "first instant", required=required)
    add_instant(arguments, "--to", "end_ms", "instant after the last", required=required)
    return arguments


def add_instant(arguments: argparse.ArgumentParser, flag: str, name: str, what: str, *, required: bool = True) -> None:
    """Make *arguments* ask for an instant, epoch ms in the end."""
    written = f"{what}, ISO 8601; UTC unless it says otherwise"
    arguments.add_argument(flag, dest=name, metavar="INSTANT", type=told(instant_ms), required=required, help=written)


def add_bootstrap(arguments: argparse.ArgumentParser, otherwise: str = "none") -> None:
    """Ask for addresses of Kafka clusters; *otherwise* says what `default` is where nothing has its address."""
    text = f"a Kafka cluster, `default` without NAME (docs/connections.md; {otherwise})"
    arguments.add_argument(
        "--bootstrap", action="append", default=[], type=told(named_address), metavar="[NAME=]HOST:PORT", help=text
    )


def topology(name: str) -> Topology:
    """The topology *name*, or that of the TOML file *name*; raises InvalidArgument that lists the known ones."""
    return load(topology_file(name))


def topology_file(name: str) -> Path:
    """The file of the topology *name*, which may be a TOML file itself; raises InvalidArgument."""
    if name.endswith(".toml") and Path(name).is_file():
        return Path(name)
    folder = Project.here().topologies
    files = {path.stem: path for path in sorted(folder.glob("*.toml"))}
    if name not in files:
        files |= {found.name: path for path, found in load_each(folder).items() if isinstance(found, Topology)}
    if name not in files:
        msg = f"a topology is a file in {folder}, got {name!r}; known: {', '.join(files)}"
        raise InvalidArgument(msg)
    return files[name]


def promised(topology: Topology) -> tuple[SlaSpec, ...]:
    """The SLAs of *topology* that can be used, with a warning in the log for each of the others."""
    found = load_usable(Project.here().slas, topology)
    for error in found.errors.values():
        log.warning("%s; its promise is left out", error)
    return found.specs


def told(read: Callable[[str], T]) -> Callable[[str], T]:
    """*read* so that argparse shows what is wrong, where it would hide the message of any other error."""

    def read_text(text: str) -> T:
        try:
            return read(text)
        except TidemarkError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read_text
