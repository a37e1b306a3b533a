"""The command line that the batch jobs share."""

from __future__ import annotations

import argparse
from pathlib import Path

from tidemark.errors import InvalidArgument
from tidemark.layout import Layout
from tidemark.topology import Topology, load

TOPOLOGIES = Path(__file__).resolve().parents[1] / "topologies"


def parser(description: str | None) -> argparse.ArgumentParser:
    """Asks for what every batch job needs: `warehouse`, a Layout, and `topology`, read from its file."""
    arguments = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--warehouse", type=lambda text: Layout(Path(text)), required=True, help="its folder")
    arguments.add_argument(
        "--topology", type=topology, required=True, help="its name: that of a file in jobs/topologies"
    )
    return arguments


def interval_parser(description: str | None) -> argparse.ArgumentParser:
    """Asks for an interval besides: `start` and `end`."""
    arguments = parser(description)
    arguments.add_argument(
        "--from", dest="start", required=True, help="ISO 8601, inclusive; UTC unless it says otherwise"
    )
    arguments.add_argument("--to", dest="end", required=True, help="ISO 8601, exclusive")
    return arguments


def topology(name: str) -> Topology:
    """The topology *name*; raises InvalidArgument that lists the known ones."""
    files = {path.stem: path for path in sorted(TOPOLOGIES.glob("*.toml"))}
    if name not in files:
        msg = f"a topology is a file in {TOPOLOGIES}, got {name!r}; known: {', '.join(files)}"
        raise InvalidArgument(msg)
    return load(files[name])
