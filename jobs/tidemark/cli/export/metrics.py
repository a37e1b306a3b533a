"""`tidemark metrics`: prints metrics, or alerting rules for them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection

from tidemark.cli.shared.options import existing_warehouse, place
from tidemark.cli.shared.output import say_inert
from tidemark.cli.shared.streams import valid_topologies
from tidemark.errors import InvalidArgument
from tidemark.model.project.layout import WATCH, Layout
from tidemark.model.slas.sla_spec import known_slas
from tidemark.model.tables.catalog import TABLE_AGES
from tidemark.model.topology import Topology, of_watched
from tidemark.selection import names_in
from tidemark.storage.warehouse import is_table

METRICS, RULES = "text", "rules"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    what = f"{METRICS}: the metrics in Prometheus' text format; {RULES}: a file of alerting rules, from the SLAs"
    parser.add_argument("what", choices=(METRICS, RULES), help=what)
    add_topologies(parser)


def add_topologies(parser: argparse.ArgumentParser) -> None:
    """Adds the argument for several topologies."""
    parser.add_argument("topologies", nargs="*", metavar="TOPOLOGY", help="names (default: all of the project)")


def command(options: argparse.Namespace) -> int:
    """Prints metrics or rules.

    Raises InvalidArgument for an unknown topology, or without a warehouse.
    """
    if options.what == RULES:
        from tidemark.metrics.rules import rules_file

        chosen = chosen_topologies(options.topologies, Layout(place(options)))
        say_inert(rules_file([(each, known_slas(each).specs) for each in chosen]).rstrip("\n"))
        return 0
    from prometheus_client import CollectorRegistry, generate_latest

    from tidemark.metrics.exporter import Exporter

    layout = Layout(existing_warehouse(options))
    registry = CollectorRegistry()
    registry.register(Exporter(layout, watched_topologies(options.topologies, layout)))
    say_inert(generate_latest(registry).decode().rstrip("\n"))
    return 0


def chosen_topologies(names: Collection[str], layout: Layout) -> list[Topology]:
    """Returns the valid topologies that have *names*; none: all.

    They are those of the project, and of queries recorded in the warehouse of *layout*.

    Raises InvalidArgument for another name.
    """
    valid = valid_topologies(layout)
    unknown = {*names} - {*names_in(valid)}
    if unknown:
        listed = ", ".join(names_in(valid))
        msg = f"there is no topology {', '.join(sorted(unknown))} with a valid file; known: {listed}"
        raise InvalidArgument(msg)
    return [each for each in valid if not names or each.name in names]


def watched_topologies(names: Collection[str], layout: Layout) -> Callable[[], list[Topology]]:
    """Returns a function that returns the topologies of *names* valid now.

    Without names it returns all, and one for watched tables if `tidemark watch` has recorded some. A file that becomes
    invalid later hides no other topology. Raises InvalidArgument for a name that is not valid at the start.
    """
    chosen_topologies([name for name in names if name != WATCH], layout)

    def now() -> list[Topology]:
        valid = valid_topologies(layout)
        if WATCH not in names_in(valid) and is_table(layout.report_table(WATCH, TABLE_AGES.name)):
            valid = [*valid, of_watched(())]
        return [each for each in valid if not names or each.name in names]

    return now
