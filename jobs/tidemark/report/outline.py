"""What the files of a topology and its SLAs say that rollups need and facts do not have."""

from __future__ import annotations

from collections.abc import Iterable

from tidemark.kernels.rollups import Outline
from tidemark.semantics.critical_path import leaves
from tidemark.spec.operators import HopSource
from tidemark.spec.sla_spec import QUANTILES, SlaSpec
from tidemark.spec.topology import Topology


def outline(topology: Topology, slas: Iterable[SlaSpec]) -> Outline:
    """The paths to the terminal operators of *topology*, and of each operator the tightest of its latency *slas*.

    An SLA promises what it calls an error, and where it has none what it warns of.
    """
    promised: dict[str, int] = {}
    for sla in slas:
        warn_ms, error_ms = sla.limits.warn_after_ms, sla.limits.error_after_ms
        limit_ms = warn_ms if error_ms is None else error_ms
        if sla.measure in QUANTILES and limit_ms is not None:
            promised[sla.subject] = min(int(limit_ms), promised.get(sla.subject, int(limit_ms)))
    return Outline({name: path_to(name, topology) for name in leaves(topology.upstreams)}, promised)


def path_to(terminal: str, topology: Topology) -> str:
    """The operators that lead to *terminal*, its source first, as the file names them: `orders → totals → board`.

    An operator reads one stream, so one source leads; the tables that joins look into do not.
    """
    path = [terminal]
    while upstreams := topology.upstreams[path[0]]:
        path.insert(0, upstreams[0])
    return " → ".join(name for name in path if not isinstance(topology.operators[name], HopSource))
