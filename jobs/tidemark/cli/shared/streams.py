"""Finds streams by the names that people use: `TOPOLOGY/STREAM`."""

from __future__ import annotations

import argparse
from pathlib import Path

from tidemark.cli.shared.options import existing_warehouse, place
from tidemark.errors import InvalidArgument
from tidemark.model.project.files import Project
from tidemark.model.project.layout import Layout
from tidemark.model.topology import SubTopology, Topology, load, load_each
from tidemark.recorded_jobs.queries import recorded_topologies
from tidemark.reports.batch_job import topology, topology_file
from tidemark.selection import index_by_name, names_in


def add_stream(parser: argparse.ArgumentParser) -> None:
    """Adds the argument for one stream."""
    text = "TOPOLOGY/STREAM, as `tidemark status` lists it, or TOPOLOGY if it has one stream"
    parser.add_argument("stream", metavar="STREAM", help=text)


def stream(name: str, layout: Layout | None = None) -> tuple[Topology, SubTopology]:
    """Returns the stream called *name* with its topology.

    With *layout* it may be a query that was recorded in that warehouse.

    Raises InvalidArgument, with the names of all its streams, if there is no such stream.
    """
    of, _, sub_name = name.partition("/")
    parent = topology(of, layout)
    subs = index_by_name(parent.sub_topologies)
    if not sub_name and len(subs) == 1:
        return parent, parent.sub_topologies[0]
    if sub_name not in subs:
        names = ", ".join(f"{parent.name}/{sub}" for sub in subs)
        msg = f"a stream is named TOPOLOGY/STREAM, got {name!r}; known: {names}"
        raise InvalidArgument(msg)
    return parent, subs[sub_name]


def warehouse_and_topology(options: argparse.Namespace) -> tuple[Path, Topology]:
    """Returns the warehouse of *options*, and its topology.

    That is a topology of the project, or of queries recorded in the warehouse.
    """
    home = existing_warehouse(options)
    return home, topology(options.topology, Layout(home))


def topology_with_file(options: argparse.Namespace) -> Topology:
    """Returns the topology of *options*, which has a file.

    Raises:
        InvalidArgument: there is none; the error says if it is recorded from jobs.
    """
    return load(topology_file(options.topology, Layout(place(options))))


def valid_topologies(layout: Layout | None = None) -> list[Topology]:
    """Returns the topologies of the project whose files are valid.

    With *layout* also those of queries that were recorded in its warehouse.
    """
    of_files = [each for each in load_each(Project.here().topologies).values() if isinstance(each, Topology)]
    recorded = recorded_topologies(layout) if layout else []
    return [*of_files, *(each for each in recorded if each.name not in names_in(of_files))]
