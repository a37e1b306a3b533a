"""Reads the SLAs of a topology from their TOML file, and refuses one that cannot be judged."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tidemark.errors import InvalidArgument, InvalidSpec
from tidemark.semantics.sla import Sla
from tidemark.spec.operators import Sink
from tidemark.spec.tables import CHANGES, OUTCOMES
from tidemark.spec.toml_keys import IDENTIFIER, Keys
from tidemark.spec.topology import Topology


class Measure(StrEnum):
    """What is measured of a subject, in ms."""

    STALENESS = "staleness"
    """Of a table: the check's instant − the newest record time visible in it."""
    LATENCY_P50 = "latency_p50"
    """Of an operator's records: end-to-end latency, from buckets."""
    LATENCY_P90 = "latency_p90"
    LATENCY_P99 = "latency_p99"
    OPERATOR_LATENCY_P50 = "operator_latency_p50"
    """Of an operator's streaming windows: what it added itself, EWT − latest upstream EWT."""
    COMPLETENESS = "completeness"
    """Of the accounting: how long ago a batch was finished whose outcomes do not add up; 0 while all do."""


QUANTILES: Mapping[Measure, float] = MappingProxyType(
    {
        Measure.LATENCY_P50: 0.5,
        Measure.LATENCY_P90: 0.9,
        Measure.LATENCY_P99: 0.99,
    }
)
"""Of the measures that are read from buckets."""


@dataclass(frozen=True, kw_only=True)
class SlaSpec:
    """One SLA: who promises what of which subject, over how long before the check it is measured."""

    name: str
    subject: str
    measure: Measure
    limits: Sla
    owner: str
    over_ms: int
    ignore_when_idle: bool


UNLESS_SAID: Mapping[str, Any] = {
    "nothing_gets_lost": {
        "subject": OUTCOMES.name,
        "measure": Measure.COMPLETENESS,
        "error_after": "1 ms",
        "owner": "tidemark",
    }
}


def load(path: Path, topology: Topology) -> tuple[SlaSpec, ...]:
    """The SLAs of *topology* in the file at *path*; raises InvalidSpec with file, key and remedy."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise InvalidSpec.at(path.name, "file", f"is no TOML: {error}", "mend the line it names") from error
    return parse(content, topology, file=path.name)


def parse(content: Mapping[str, Any], topology: Topology, *, file: str) -> tuple[SlaSpec, ...]:
    """The SLAs of *topology* in *content*, a parsed TOML file named *file* in errors.

    One that the file does not name promises that nothing gets lost.
    """
    tables = content.get(topology.name, UNLESS_SAID)
    if not isinstance(tables, dict) or not tables:
        remedy = f"write a table [{topology.name}.NAME] for each"
        raise InvalidSpec.at(file, topology.name, "has no SLAs", remedy)
    return tuple(_spec(file, name, table, topology) for name, table in tables.items())


def _spec(file: str, name: str, table: Any, topology: Topology) -> SlaSpec:
    keys = Keys(file, f"{topology.name}.{name}", table if isinstance(table, dict) else {})
    if not IDENTIFIER.fullmatch(name):
        raise InvalidSpec.at(file, keys.at, "is no name for an SLA", "use lower-case letters, digits and _")
    measure = keys.choice("measure", Measure, Measure.STALENESS)
    spec = SlaSpec(
        name=name,
        subject=_subject(keys, measure, topology),
        measure=measure,
        limits=_limits(keys),
        owner=keys.text("owner", "flight desk"),
        over_ms=keys.duration("over", "10 min", 600_000),
        ignore_when_idle=bool(keys.get("ignore_when_idle", bool, "true", False)),
    )
    keys.done()
    return spec


def _subject(keys: Keys, measure: Measure, topology: Topology) -> str:
    known = subjects(measure, topology)
    subject = str(keys.text("subject", known[0]))
    if subject not in known:
        keys.fail("subject", f"is {subject!r}, of which no {measure} is measured", f"use one of {', '.join(known)}")
    return subject


def subjects(measure: Measure, topology: Topology) -> tuple[str, ...]:
    """What *measure* is known of in *topology*."""
    if measure is Measure.STALENESS:
        sinks = (o.table for o in topology.operators.values() if isinstance(o, Sink) and o.table)
        return (*sinks, CHANGES.name)
    return (OUTCOMES.name,) if measure is Measure.COMPLETENESS else tuple(topology.operators)


def _limits(keys: Keys) -> Sla:
    warn_ms, error_ms = (keys.duration(key, "30 s", None) for key in ("warn_after", "error_after"))
    try:
        return Sla(warn_after_ms=warn_ms, error_after_ms=error_ms)
    except InvalidArgument:
        keys.fail(
            "warn_after",
            f"is {keys.content.get('warn_after')!r} and error_after is {keys.content.get('error_after')!r}",
            'write one or both, the warning first: warn_after = "30 s", error_after = "2 min"',
        )
