"""The page of a topology as it is now, with its newest critical path: one HTML file without script (ring 2)."""

from __future__ import annotations

from collections.abc import Sequence

from tidemark.report.drawing import BOX, drawing
from tidemark.report.path_facts import Row
from tidemark.report.templates import length, template
from tidemark.spec.topology import Topology


def topology_page(told: Row, window: Row | None, topology: Topology, known: Sequence[str]) -> str:
    """The page that tells *told* and *window*, what `tidemark topology` and `path` say; *known* are all topologies."""
    path = window["path"] if window else []
    return template("report/topology_page.html.j2").render(
        told=told,
        window=window,
        topology=topology,
        known=known,
        path=path,
        drawing=drawing(topology.upstreams, path),
        box=BOX,
        operators={row["operator"]: _operator(row) for row in told["operators"]},
    )


def _operator(row: Row) -> Row:
    latency_ms = row["moving_average_ms"]
    return {"latency_ms": latency_ms, "said": f"moving average {length(latency_ms)}", "share": None}
