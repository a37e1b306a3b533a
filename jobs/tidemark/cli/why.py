"""Why there are no results, as lines for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from tidemark.cli.text_table import as_document
from tidemark.inert import one_line
from tidemark.why.findings import Finding


def as_lines(findings: Sequence[Finding]) -> str:
    """One line per finding."""
    return "\n".join(one_line(finding.line) for finding in findings)


def as_objects(findings: Sequence[Finding]) -> str:
    """A JSON array of one object per finding; `since` is an ISO instant or null."""
    return as_document([finding.row for finding in findings])


FORMATS: Mapping[str, Callable[[Sequence[Finding]], str]] = MappingProxyType({"table": as_lines, "json": as_objects})
