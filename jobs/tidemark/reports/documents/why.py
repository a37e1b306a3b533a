"""Why there are no results."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tidemark.facts.answers import Row, answers_over
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import utc
from tidemark.model.topology import Topology
from tidemark.reports.pages.topology_state import TopologyState
from tidemark.sla.sla_findings import sla_findings
from tidemark.why.evidence.findings import WhyFinding, in_order
from tidemark.why.walk import known


@dataclass(frozen=True, kw_only=True)
class WhyDocument:
    """What explains missing results of *topology* at *at_ms*, epoch ms.

    `findings` are who owns what is missing, then remarks, and what is known of SLAs.
    """

    topology: str
    at_ms: int
    findings: list[WhyFinding]

    @property
    def row(self) -> Row:
        """The document for programs."""
        rows = [finding.row for finding in self.findings]
        return {"topology": self.topology, "at": utc(self.at_ms), "findings": rows}


def why_document(warehouse: Path, topology: Topology, *, at_ms: int, operator: str | None = None) -> WhyDocument:
    """Explains why results are missing at an instant.

    Args:
        warehouse: the warehouse.
        topology: the topology.
        at_ms: the instant, epoch ms.
        operator: the operator without results; None explains all terminal operators and all SLAs.

    Raises:
        InvalidArgument: there is no such operator.
    """
    asked = known(topology, operator)
    tables = answers_over(warehouse, topology.name)
    state = TopologyState(tables.stored, Layout(warehouse), topology, at_ms=at_ms)
    of_slas = sla_findings(tables, topology, at_ms=at_ms, operator=operator)
    return WhyDocument(topology=topology.name, at_ms=at_ms, findings=in_order([*state.about(asked), *of_slas]))
