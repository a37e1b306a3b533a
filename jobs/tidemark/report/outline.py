"""What the files of a topology and its SLAs say that rollups need and facts do not have."""

from __future__ import annotations

from collections.abc import Iterable

from tidemark.kernels.rollups import Outline
from tidemark.report.promises import promises
from tidemark.semantics.critical_path import leaves
from tidemark.spec.operators import HopSource
from tidemark.spec.sla_spec import SlaSpec
from tidemark.spec.topology import Topology


def outline(topology: Topology, slas: Iterable[SlaSpec]) -> Outline:
    """The paths to the terminal operators of *topology*, and of each operator the tightest of its latency *slas*."""
    return Outline({name: path_to(name, topology) for name in leaves(topology.upstreams)}, promises(slas).end_to_end_ms)


def path_to(terminal: str, topology: Topology) -> str:
    """The operators that lead to *terminal*, its source first, as the file names them: `orders → totals → board`.

    Upstream of a union it follows the first input; the tables of joins are not on the path.
    """
    path = [terminal]
    while upstreams := topology.upstreams[path[0]]:
        path.insert(0, upstreams[0])
    return " → ".join(name for name in path if not isinstance(topology.operators[name], HopSource))
