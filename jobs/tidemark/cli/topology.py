"""`tidemark topology`: its operators and how they are doing, as Apex's get-app-info and list-operators show them."""

from __future__ import annotations

import argparse
from pathlib import Path

from tidemark.cli.options import add_topology
from tidemark.cli.options import warehouse as existing
from tidemark.cli.output import say_inert
from tidemark.cli.path import FORMATS
from tidemark.cli.sql import Warehouse
from tidemark.cli.text_table import aligned, as_document
from tidemark.clock import wall_clock_ms
from tidemark.inert import one_line
from tidemark.report.batch_job import topology as topology_named
from tidemark.report.path_facts import Row
from tidemark.report.topology_facts import topology_facts
from tidemark.spec.intervals import instant_ms
from tidemark.spec.operators import Repartition
from tidemark.spec.topology import Topology

READS = frozenset({"batches", "heartbeats", "operator_windows", "outcomes", "watermarks"}) | {
    "critical_paths",
    "critical_path_steps",
}
SHOWN_AS = {
    "operator": "operator",
    "kind": "kind",
    "upstreams": "reads",
    "moving_average_ms": "latency_ms",
    "records_in_per_s": "in_per_s",
    "records_out_per_s": "out_per_s",
    "watermark": "watermark",
    "unread_records": "unread",
    "held_records": "held",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    add_topology(parser)
    parser.add_argument("--at", metavar="INSTANT", help="ask about a past instant, ISO 8601 (now)")
    parser.add_argument("--format", choices=FORMATS, default="table", help="(%(default)s)")


def command(options: argparse.Namespace) -> int:
    """Show the topology that was asked for."""
    say_inert(topology(options, existing(options), topology_named(options.topology)))
    return 0


def topology(options: argparse.Namespace, warehouse: Path, of: Topology) -> str:
    """The answer as text."""
    told = document(warehouse, of, at_ms=instant_ms(options.at) if options.at else wall_clock_ms())
    return as_document(told) if options.format == "json" else as_text(told)


def document(warehouse: Path, of: Topology, *, at_ms: int) -> Row:
    """The answer for programs: how the operators of a topology were doing at *at_ms*, epoch ms."""
    hops = {f"hop_{operator.name}" for operator in of.operators.values() if isinstance(operator, Repartition)}
    return topology_facts(Warehouse(warehouse, READS | hops), of, at_ms=at_ms)


def as_text(told: Row) -> str:
    """The topology for people, a table of operators per sub-topology."""
    path = " → ".join(told["critical_path"]) if told["critical_path"] else "no window is closed, or no report has run"
    when = (
        ""
        if told["age_ms"] is None
        else f" of a window that was {told['age_ms']:,} ms old when {one_line(told['leaf'])} had finished it, "
        f"{told['finished_ago_ms'] / 1000:,.0f} s ago"
    )
    head = f"{told['topology']} at {told['at']}: level {told['level']}, windows of {told['window_ms']:,} ms"
    parts = [f"{head}\ncritical path{when}: {one_line(path)}"]
    for driver in told["sub_topologies"]:
        beat = driver["last_heartbeat_at"]
        said = "" if beat is None else f", last heartbeat {beat:%Y-%m-%d %H:%M:%S}, batch {driver['last_batch_id']}"
        rows = [
            [
                "" if row[name] is None else ", ".join(row[name]) if name == "upstreams" else row[name]
                for name in SHOWN_AS
            ]
            for row in told["operators"]
            if row["sub_topology"] == driver["sub_topology"]
        ]
        parts.append(
            f"{driver['sub_topology']}: {one_line(driver['state'])}{said}\n{aligned(tuple(SHOWN_AS.values()), rows)}"
        )
    return "\n\n".join(parts)
