"""`tidemark suggest slas`: proposes limits of SLAs, from the last seven days, or from the commits of watched tables."""

from __future__ import annotations

import argparse

from tidemark.cli.shared.options import add_topology, existing_warehouse
from tidemark.cli.shared.output import say_inert
from tidemark.cli.shared.streams import topology_with_file
from tidemark.clock import wall_clock_ms
from tidemark.errors import InvalidArgument
from tidemark.facts.answers import answers_over
from tidemark.model.project.files import Project
from tidemark.model.project.layout import WATCH
from tidemark.model.settings.retention import DAY_MS
from tidemark.model.settings.toml_files import read_toml
from tidemark.model.slas.calendars import calendars_in
from tidemark.model.slas.sla_spec import parse, watched_topology
from tidemark.sla.suggestion import suggest
from tidemark.sla.watched_suggestion import LOOKED_BACK_MS, suggest_watched


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("subject", choices=("slas",), metavar="slas", help="proposes limits of SLAs")
    add_topology(parser)


def command(options: argparse.Namespace) -> int:
    """Prints the suggestions; fails if none of them has a limit."""
    if options.topology == WATCH:
        return _of_watched(options)
    topology, file = topology_with_file(options), Project.here().slas
    content = read_toml(file) if file.exists() else {}
    specs = parse(content, topology, file=file.name, folder=file.parent)
    tables = answers_over(existing_warehouse(options), topology.name)
    suggestions = suggest(tables, topology, specs, now_ms=wall_clock_ms())
    say_inert("\n\n".join(map(str, suggestions)))
    return 0 if any(each.measured.limit_ms for each in suggestions) else 1


def _of_watched(options: argparse.Namespace) -> int:
    """Prints the suggestions for watched tables as TOML; fails if none of them has a limit."""
    file = Project.here().slas
    content = read_toml(file) if file.exists() else {}
    topology = watched_topology(content, file=file.name)
    if not topology.watched:
        msg = f"{file}: it has no set of watched tables; write [{WATCH}.NAME] with tables = [...]"
        raise InvalidArgument(msg)
    specs = parse(content, topology, file=file.name, folder=file.parent)
    calendars = calendars_in(content, file=file.name, folder=file.parent).usable
    tables = answers_over(existing_warehouse(options), topology.name)
    suggestions = suggest_watched(tables, topology, specs, calendars, now_ms=wall_clock_ms())
    if not suggestions:
        places = " ".join(place for each in topology.watched for place in each.places)
        msg = f"table_ages has no commit of the tables in {file}; run tidemark --warehouse WAREHOUSE watch {places}"
        raise InvalidArgument(msg)
    say_inert("\n\n\n".join((INTRODUCTION, *map(str, suggestions))))
    return 0 if any(each.proposal.limits for each in suggestions) else 1


INTRODUCTION = (
    f"# Proposed from what table_ages has of the last {LOOKED_BACK_MS // DAY_MS} days. Nothing is judged by these "
    "limits, and nobody is alerted,\n"
    "# until a person has pasted them into slas.toml."
)
