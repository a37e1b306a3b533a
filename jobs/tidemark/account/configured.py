"""What the topology file says about time: the lengths of its settings, and which source fills the batches of a
stream.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidemark.account.owners.allowed_lateness import ALLOWED_LATENESS
from tidemark.account.owners.bound import BOUND
from tidemark.account.owners.interval import INTERVAL
from tidemark.account.owners.trigger import TRIGGER
from tidemark.account.owners.window import WINDOW
from tidemark.model.kinds.operator import Operator
from tidemark.model.kinds.repartition import HopSource
from tidemark.model.kinds.source import Source
from tidemark.model.topology import SubTopology, Topology
from tidemark.semantics.strategy import Strategy


def configured_lengths(topology: Topology) -> Mapping[tuple[str, str | None], int]:
    """Returns the length of each setting of *topology* that makes results wait, ms, by owner and detail.

    The detail None stands for all details of that owner.
    """
    found: dict[tuple[str, str | None], int] = {(TRIGGER, None): topology.trigger_ms}
    for name, operator in topology.operators.items():
        if isinstance(operator, Source) and operator.bound_ms is not None:
            found[BOUND, name] = operator.bound_ms
        if operator.windows is not None and operator.allowed_lateness_ms:
            found[ALLOWED_LATENESS, name] = operator.allowed_lateness_ms
        if operator.emission is not None and operator.emission.interval_ms is not None:
            found[INTERVAL, name] = operator.emission.interval_ms
    return found


def source_of_volume(topology: Topology) -> Mapping[str, str]:
    """Returns, by the full name of each stream, the source that makes its batches large.

    This is the source at the beginning of the chain of hops. Tables that a join looks up do not count.
    """
    found: dict[str, str] = {}
    for sub in topology.sub_topologies:
        first = sub
        while (hop := hop_into(first)) is not None:
            first = topology.sub_topology(hop.upstream)
        leading = [o for o in first.sources if o.name not in first.table_inputs()] or first.sources
        found[f"{topology.name}/{sub.name}"] = leading[0].name
    return found


def hop_into(sub: SubTopology) -> HopSource | None:
    """Returns the hop by which records come to *sub*, other than to tables that its joins look up; None without a
    hop.
    """
    leading = [o for o in sub.sources if o.name not in sub.table_inputs()]
    return next((o for o in leading if isinstance(o, HopSource)), None)


def holding_setting(operator: Operator) -> str | None:
    """Returns the setting because of which *operator* holds results, as an owner of time; None if it holds none."""
    if operator.emission is None or not operator.emission.holds:
        return None
    if operator.emission.strategy is Strategy.PERIODIC:
        return INTERVAL
    return ALLOWED_LATENESS if operator.allowed_lateness_ms else WINDOW
