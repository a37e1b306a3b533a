"""`tidemark check`: whether topology files can run, down to their columns and SQL, before anything is started."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tidemark.delta import Reference
from tidemark.errors import InvalidArgument
from tidemark.inert import one_line
from tidemark.report.batch_job import TOPOLOGIES
from tidemark.spec.topology import Topology, load
from tidemark.stream.steps import Steps


def check(files: Sequence[Path], warehouse: Path) -> list[str]:
    """A line for each streaming query that *files* describe; without files, for those of all topologies of the project.

    Delta tables that joins name are looked for in *warehouse*.

    Raises:
        InvalidSpec: one of them cannot run; with file, key, what was seen and the remedy.
    """
    lines = []
    for file in files or sorted(TOPOLOGIES.glob("*.toml")):
        topology = _loaded(file)
        Steps(topology, Reference(warehouse))
        lines += [
            f"{one_line(file.name)}: {topology.name}/{sub.name}: {', '.join(o.name for o in sub.operators)}"
            for sub in topology.sub_topologies
        ]
    return lines


def _loaded(file: Path) -> Topology:
    try:
        return load(file)
    except FileNotFoundError as error:
        msg = f"{file}: there is no such file; name a topology's TOML file"
        raise InvalidArgument(msg) from error
