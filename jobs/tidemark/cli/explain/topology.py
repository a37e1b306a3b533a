"""`tidemark topology`: shows the operators of a topology and their state.

The output is like that of Apex's get-app-info and list-operators.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tidemark.cli.explain.path import FORMATS
from tidemark.cli.shared.options import add_format, add_topology
from tidemark.cli.shared.output import say_inert, with_place
from tidemark.cli.shared.streams import warehouse_and_topology
from tidemark.clock import wall_clock_ms
from tidemark.facts.answers import Row
from tidemark.model.settings.intervals import epoch_ms, instant_ms, iso, on_the_clock
from tidemark.model.topology import Topology
from tidemark.query.text_table import as_document, format_table
from tidemark.reports.documents.topology import topology_document
from tidemark.reports.pages.topology_state import explained_text
from tidemark.reports.paths.path_text import age_text
from tidemark.safe_text import one_line
from tidemark.semantics.critical_path import STANDS_STILL

SHOWN_AS = {
    "operator": "operator",
    "kind": "kind",
    "upstreams": "reads",
    "moving_average_ms": "average_ms",
    "records_in_per_s": "in_per_s",
    "records_out_per_s": "out_per_s",
    "watermark": "watermark",
    "unread_records": "unread",
    "held_records": "held",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add_topology(parser)
    parser.add_argument("--at", metavar="INSTANT", help="show the state at this instant, ISO 8601 (default: now)")
    add_format(parser, FORMATS)


def command(options: argparse.Namespace) -> int:
    """Prints the topology in the options."""
    say_inert(topology(options, *warehouse_and_topology(options)))
    return 0


def topology(options: argparse.Namespace, warehouse: Path, of: Topology) -> str:
    """Returns the answer as text."""
    at_ms = wall_clock_ms() if options.at is None else instant_ms(options.at)
    facts = topology_document(warehouse, of, at_ms=at_ms)
    return as_document(facts) if options.format == "json" else with_place(as_text(facts), options)


def as_text(facts: Row) -> str:
    """Formats the topology for people, with a table per sub-topology."""
    path = facts["path_text"] or "no window is closed yet"
    when = ""
    if facts["age_ms"] is not None:
        when = f" of a window that was {one_line(age_text(facts))}"
        when += "" if facts["state"] in STANDS_STILL else f", {facts['finished_ago_ms'] / 1000:,.0f} s ago"
    head = f"{facts['topology']} at {facts['at']}: level {facts['level']}, windows of {facts['window_ms']:,} ms"
    broken = (one_line(explained_text(row)) for row in facts["broken_slas"])
    parts = [on_the_clock("\n".join([head, f"critical path{when}: {one_line(path)}", *broken]))]
    for driver in facts["sub_topologies"]:
        beat, batch_id = driver["last_heartbeat_at"], driver["last_batch_id"]
        batch = "no batch yet" if batch_id is None else f"batch {batch_id}"
        last_beat = "" if beat is None else f", last heartbeat {beat:%Y-%m-%d %H:%M:%S}, {batch}"
        rows = []
        for row in facts["operators"]:
            if row["sub_topology"] == driver["sub_topology"]:
                watermark = row["watermark"] and on_the_clock(iso(epoch_ms(row["watermark"])))
                shown = {**row, "upstreams": ", ".join(row["upstreams"]), "watermark": watermark}
                # Most operators have no value in some of these columns.
                rows.append(["-" if shown[name] is None else shown[name] for name in SHOWN_AS])
        parts.append(
            f"{driver['sub_topology']}: {one_line(driver['state'])}{catching_up_text(driver)}{last_beat}\n"
            f"{format_table(tuple(SHOWN_AS.values()), rows)}"
        )
    return "\n\n".join(parts)


def catching_up_text(driver: Row) -> str:
    """Returns how far *driver* is behind; empty if it is not."""
    if driver["eta_at"] is None:
        return ""
    return (
        f" ({driver['records_behind']:,} records behind, {driver['arrival_per_s']:,.0f} a second come in, "
        f"{driver['working_per_s']:,.0f} are read, all read about {driver['eta_at']:%Y-%m-%d %H:%M:%S})"
    )
