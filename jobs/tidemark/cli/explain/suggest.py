"""`tidemark suggest slas`: proposes limits of SLAs, from the last seven days."""

from __future__ import annotations

import argparse

from tidemark.cli.shared.options import add_topology, existing_warehouse
from tidemark.cli.shared.output import say_inert
from tidemark.cli.shared.streams import topology_with_file
from tidemark.clock import wall_clock_ms
from tidemark.facts.answers import answers_over
from tidemark.model.project.files import Project
from tidemark.model.settings.toml_files import read_toml
from tidemark.model.slas.sla_spec import parse
from tidemark.sla.suggestion import suggest


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("subject", choices=("slas",), metavar="slas", help="proposes limits of SLAs")
    add_topology(parser)


def command(options: argparse.Namespace) -> int:
    """Prints the suggestions; fails if none of them has a limit."""
    topology, file = topology_with_file(options), Project.here().slas
    content = read_toml(file) if file.exists() else {}
    specs = parse(content, topology, file=file.name)
    tables = answers_over(existing_warehouse(options), topology.name)
    suggestions = suggest(tables, topology, specs, now_ms=wall_clock_ms())
    say_inert("\n\n".join(map(str, suggestions)))
    return 0 if any(each.measured.limit_ms for each in suggestions) else 1
