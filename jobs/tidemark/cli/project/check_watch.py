"""What `tidemark check` says of watched tables: mistakes in their places, and what their SLAs find now."""

from __future__ import annotations

from collections.abc import Iterator

from tidemark.clock import wall_clock_ms
from tidemark.errors import InvalidArgument, InvalidSpec
from tidemark.model.project.files import Project
from tidemark.model.project.layout import WATCH
from tidemark.model.slas import sla_spec
from tidemark.model.topology import Topology
from tidemark.model.watched import TABLES, set_of
from tidemark.safe_text import one_line
from tidemark.sla.sla_text import measurement_text
from tidemark.sla.watched import is_in_a_store, read_watched, watched_statuses
from tidemark.storage.location import location


def place_mistakes(project: Project, watch: Topology) -> Iterator[InvalidSpec]:
    """Yields a mistake for each place of a set that is no path and no URL of a store."""
    for each in watch.watched:
        for text in each.places:
            try:
                location(text)
            except InvalidArgument as error:
                at = f"{WATCH}.{each.name}.{TABLES.name}"
                yield InvalidSpec.at(project.slas.name, at, f"has {text!r}", str(error))


def lines_of_watch(project: Project, watch: Topology, *, look: bool) -> Iterator[str]:
    """Yields a line for each SLA of a watched table with its verdict of now.

    Tables in object stores are only read to *look*.
    """
    specs = sla_spec.load_usable(project.slas, watch).specs
    in_stores = [each.name for each in watch.watched if is_in_a_store(each)]
    asked = [spec for spec in specs if look or set_of(spec.subject) not in in_stores]
    at_ms = wall_clock_ms()
    found = watched_statuses(asked, read_watched(watch, asked, at_ms=at_ms), at_ms=at_ms)
    for status in found:
        yield one_line(f"{WATCH}.{status.spec.name}: {status.verdict}: {measurement_text(status)}")
    for spec in specs:
        if spec not in asked:
            yield f"{WATCH}.{spec.name}: {spec.subject} is in an object store: --live reads it"
