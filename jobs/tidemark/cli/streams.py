"""Streams by the name that people use: `TOPOLOGY/STREAM`."""

from __future__ import annotations

import argparse

from tidemark.errors import InvalidArgument
from tidemark.report.batch_job import topology
from tidemark.spec.topology import SubTopology, Topology


def add_stream(parser: argparse.ArgumentParser) -> None:
    """Ask for one stream."""
    text = "TOPOLOGY/STREAM, as `tidemark status` lists them; TOPOLOGY alone, if it has one stream"
    parser.add_argument("stream", metavar="STREAM", help=text)


def stream(name: str) -> tuple[Topology, SubTopology]:
    """The stream called *name*, and its topology; raises InvalidArgument that lists the known ones."""
    of, _, sub_name = name.partition("/")
    found = topology(of)
    subs = {sub.name: sub for sub in found.sub_topologies}
    if not sub_name and len(subs) == 1:
        return found, found.sub_topologies[0]
    if sub_name not in subs:
        msg = f"a stream is named TOPOLOGY/STREAM, got {name!r}; known: {', '.join(f'{found.name}/{s}' for s in subs)}"
        raise InvalidArgument(msg)
    return found, subs[sub_name]
