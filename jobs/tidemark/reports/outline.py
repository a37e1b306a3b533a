"""Makes the outline of a topology that rollups need and facts do not have: its paths and its tightest promises."""

from __future__ import annotations

from collections.abc import Iterable

from tidemark.kernels.reports.rollups import Outline
from tidemark.model.slas.sla_spec import SlaSpec
from tidemark.model.topology import Topology
from tidemark.reports.promises import promises
from tidemark.semantics.critical_path import leaves


def outline(topology: Topology, slas: Iterable[SlaSpec]) -> Outline:
    """Returns the path to each terminal operator of *topology*, and the lowest latency limit in *slas* of each
    operator.
    """
    return Outline({name: path_to(name, topology) for name in leaves(topology.upstreams)}, promises(slas).end_to_end_ms)


def path_to(terminal: str, topology: Topology) -> str:
    """Returns the names of the operators that lead to *terminal*, from its source on: `orders → totals → board`.

    The path goes through the first input of a union, and not through the tables that joins look up.
    """
    path = [terminal]
    while upstreams := topology.upstreams[path[0]]:
        path.insert(0, upstreams[0])
    # The source that reads a hop is no operator of the file, so people do not know its name.
    return " → ".join(name for name in path if not topology.operators[name].hop_of)
