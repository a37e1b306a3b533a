"""Measures `tidemark status` of 20 topologies as a whole command, with its imports.

Each is `flights` under another name, with two streams of 20 minutes. In the healthy project nothing is wrong; in the
other one each topology has a failed stream, a silent partition and broken SLAs.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.ratios import Figure, by_turns

from support.busy_warehouse import FLIGHTS, busy, healthy
from tidemark.clock import wall_clock_ms
from tidemark.model.topology import Topology, load

TOPOLOGIES = 20


def figures(runs: int) -> Iterator[Figure]:
    """Measures CPU s of the command; a first turn warms up."""
    with TemporaryDirectory() as folder:
        projects = {name: _project(Path(folder) / name, write) for name, write in _KINDS.items()}
        took = by_turns({name: lambda at=at: _status(at) for name, at in projects.items()}, runs + 1)
        whole = [_status(projects["healthy"], "--format", "json") for _ in range(2)]
    for name, of_turns in took.items():
        yield Figure(
            f"`tidemark status` of {TOPOLOGIES} topologies, {name}", of_turns[1:], 2, at_most=True, unit="s CPU"
        )
    yield Figure("  as JSON, healthy", whole[1:], unit="s CPU")


_KINDS = {"healthy": healthy, "broken": busy}


def _project(folder: Path, write: Callable[[Path, int, Topology], Path]) -> Path:
    """Writes a project, whose facts are of now, and go on while it is measured."""
    for part in ("topologies", "expectations"):
        (folder / part).mkdir(parents=True)
    text = FLIGHTS.read_text(encoding="utf-8")
    for number in range(TOPOLOGIES):
        name = f"flights{number}"
        file = folder / "topologies" / f"{name}.toml"
        file.write_text(text.replace('name = "flights"', f'name = "{name}"'), encoding="utf-8")
        write(folder / ".tidemark" / "warehouse", wall_clock_ms(), load(file))
    return folder


def _status(project: Path, *options: str) -> float:
    """Returns CPU s of the command in *project*."""
    command = [str(Path(sys.executable).with_name("tidemark")), "status", *options]
    # An installation has bytecode.
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    told = subprocess.run(command, cwd=project, env=variables, capture_output=True, text=True, check=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert "flights19" in told, told
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
