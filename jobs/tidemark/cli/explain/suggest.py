"""`tidemark suggest`: proposes limits of SLAs from past checks."""

from __future__ import annotations

import argparse
from zoneinfo import ZoneInfo

from tidemark.cli.shared.options import add_topology, existing_warehouse
from tidemark.cli.shared.output import say_inert
from tidemark.cli.shared.streams import topology_with_file
from tidemark.clock import wall_clock_ms
from tidemark.errors import InvalidArgument
from tidemark.model.project.files import Project
from tidemark.model.settings.maintenance_windows import zone_named
from tidemark.model.settings.toml_keys import read_toml
from tidemark.model.sla_spec import DEFAULT_SLAS, parse
from tidemark.query.sql import Warehouse
from tidemark.sla.suggestion import as_toml, suggest


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("subject", choices=("slas",), metavar="slas", help="proposes limits of SLAs")
    add_topology(parser)
    parser.add_argument("--zone", default="UTC", help="time zone of the hours, such as Europe/Berlin (default: UTC)")


def command(options: argparse.Namespace) -> int:
    """Prints the proposal; fails if there is none."""
    zone, topology, file = _zone(options.zone), topology_with_file(options), Project.here().slas
    content = read_toml(file) if file.exists() else {}
    specs, now_ms = parse(content, topology, file=file.name), wall_clock_ms()
    tables = Warehouse(existing_warehouse(options), topology=topology.name)
    of_topology = content.get(topology.name, DEFAULT_SLAS)
    suggestions = suggest(tables, topology, specs, of_topology, zone=zone, now_ms=now_ms)
    say_inert(as_toml(suggestions, topology, zone=zone, now_ms=now_ms))
    return 0 if any(each.limits for each in suggestions) else 1


def _zone(name: str) -> ZoneInfo:
    if (zone := zone_named(name)) is None:
        msg = f"{name!r} is no time zone; write a name such as --zone Europe/Berlin"
        raise InvalidArgument(msg)
    return zone
