"""Derives the outline of a topology for rollups.

It comes from the files of the topology and its SLAs: facts do not have it.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemark.kernels.reports.rollups import Outline
from tidemark.model.slas.sla_spec import SlaSpec
from tidemark.model.topology import Topology
from tidemark.reports.promises import promises
from tidemark.semantics.critical_path import leaves


def outline(topology: Topology, slas: Iterable[SlaSpec]) -> Outline:
    """Returns the paths to terminal operators, and their tightest SLAs.

    The paths are those of *topology*. Of each operator there is the tightest of its latency *slas*.
    """
    return Outline({name: path_to(name, topology) for name in leaves(topology.upstreams)}, promises(slas).end_to_end_ms)


def path_to(terminal: str, topology: Topology) -> str:
    """Returns the operators that lead to *terminal*, its source first.

    They have the names of the topology's file: `orders → totals → board`.

    Upstream of a union it follows the first input; the tables of joins are not on the path.
    """
    path = [terminal]
    while upstreams := topology.upstreams[path[0]]:
        path.insert(0, upstreams[0])
    # The reading end of a hop is not in the file.
    return " → ".join(name for name in path if not topology.operators[name].hop_of)
