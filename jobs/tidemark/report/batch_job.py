"""The command line that the batch jobs share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tidemark.errors import InvalidArgument, TidemarkError
from tidemark.spec.intervals import instant_ms
from tidemark.spec.layout import Layout
from tidemark.spec.topology import Topology, load

T = TypeVar("T")
TOPOLOGIES = Path(__file__).resolve().parents[2] / "topologies"


def parser(description: str | None) -> argparse.ArgumentParser:
    """Asks for what every batch job needs: `warehouse`, a Layout, and `topology`, read from its file."""
    arguments = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--warehouse", type=lambda text: Layout(Path(text)), required=True, help="its folder")
    name = "its name: that of a file in jobs/topologies"
    arguments.add_argument("--topology", type=_told(topology), required=True, help=name)
    return arguments


def interval_parser(description: str | None, *, required: bool = True) -> argparse.ArgumentParser:
    """Asks for an interval besides: `start_ms` and `end_ms`; None where it is not *required* and not given."""
    arguments = parser(description)
    add_instant(arguments, "--from", "start_ms", "first instant", required=required)
    add_instant(arguments, "--to", "end_ms", "instant after the last", required=required)
    return arguments


def add_instant(arguments: argparse.ArgumentParser, flag: str, name: str, what: str, *, required: bool = True) -> None:
    """Make *arguments* ask for an instant, epoch ms in the end."""
    written = f"{what}, ISO 8601; UTC unless it says otherwise"
    arguments.add_argument(flag, dest=name, metavar="INSTANT", type=_told(instant_ms), required=required, help=written)


def topology(name: str) -> Topology:
    """The topology *name*, or that of the TOML file *name*; raises InvalidArgument that lists the known ones."""
    if name.endswith(".toml") and Path(name).is_file():
        return load(Path(name))
    files = {path.stem: path for path in sorted(TOPOLOGIES.glob("*.toml"))}
    if name not in files:
        msg = f"a topology is a file in {TOPOLOGIES}, got {name!r}; known: {', '.join(files)}"
        raise InvalidArgument(msg)
    return load(files[name])


def _told(read: Callable[[str], T]) -> Callable[[str], T]:
    """*read* so that argparse shows what is wrong, where it would hide the message of any other error."""

    def told(text: str) -> T:
        try:
            return read(text)
        except TidemarkError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return told
