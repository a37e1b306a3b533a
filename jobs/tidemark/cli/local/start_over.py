"""`tidemark start-over`: deletes all that a topology has written, and starts it as if it were new."""

from __future__ import annotations

import argparse

from tidemark.cli.local import up
from tidemark.cli.local.fresh_start import start_over
from tidemark.cli.shared.local import Home, InstallationState, airflow
from tidemark.cli.shared.options import existing_warehouse
from tidemark.cli.shared.output import say_with_commands
from tidemark.cli.shared.plan import add_author, add_plan
from tidemark.cli.shared.streams import topology_with_file


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("topology", help="name of the topology, or its TOML file")
    parser.add_argument("--yes", action="store_true", help="do not ask for the name of the topology before it is done")
    add_author(parser)
    add_plan(parser)


def command(options: argparse.Namespace) -> int:
    """Shows what would be deleted, asks, drains, deletes, and starts the topology again if it ran here."""
    home, warehouse = Home(options.home.resolve()), existing_warehouse(options)
    topology = topology_with_file(options)
    ran_here = topology.name in InstallationState.of(home).running and airflow.runs(home.airflow)
    is_done = start_over(options, home, warehouse, topology)
    if options.dry_run or not is_done:
        return 0 if options.dry_run else 1
    if not ran_here:
        say_with_commands(f"`tidemark up {topology.name}` starts it here; elsewhere its DAG of streams does", options)
        return 0
    again = {"topologies": [topology.name], "unpause": False, "fresh": False}
    return up.command(argparse.Namespace(home=options.home, **again))
