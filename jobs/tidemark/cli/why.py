"""Why there are no results, as lines for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from tidemark.cli.text_table import as_json
from tidemark.inert import one_line
from tidemark.spec.intervals import iso
from tidemark.why.findings import Finding

COLUMNS = ("cause", "sub_topology", "operator", "input", "partition", "since", "seen", "remedy")


def as_lines(findings: Sequence[Finding]) -> str:
    """One line per finding."""
    return "\n".join(one_line(finding.line) for finding in findings)


def as_objects(findings: Sequence[Finding]) -> str:
    """A JSON array of one object per finding, with the keys COLUMNS; `since` is an ISO instant or null."""
    return as_json(COLUMNS, [_row(finding) for finding in findings])


FORMATS: Mapping[str, Callable[[Sequence[Finding]], str]] = MappingProxyType({"table": as_lines, "json": as_objects})


def _row(found: Finding) -> tuple[object, ...]:
    since = None if found.since_ms is None else iso(found.since_ms)
    place = (found.cause.value, found.sub_topology, found.operator, found.input, found.partition)
    return (*place, since, found.seen, found.remedy)
