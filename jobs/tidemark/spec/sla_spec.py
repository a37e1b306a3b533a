"""Reads the SLAs of a topology from their TOML file, and tells those that cannot be judged apart."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from tidemark.errors import InvalidArgument, InvalidSpec
from tidemark.semantics.incidents import CHECKS, Damping
from tidemark.semantics.sla import AtLeast, BurnRate, Kept, Objective, Sla
from tidemark.spec.maintenance_windows import MaintenanceWindow, maintenance_window
from tidemark.spec.operators import Kind, Sink
from tidemark.spec.tables import CHANGES, OUTCOMES, TABLES
from tidemark.spec.toml_keys import IDENTIFIER, Keys, meant, read_toml
from tidemark.spec.topology import Topology


class Measure(StrEnum):
    """What is measured of a subject: ms unless it says otherwise."""

    STALENESS = "staleness"
    """Of a table: the check's instant − the newest record time visible in it."""
    LATENCY_P50 = "latency_p50"
    """Of an operator's records: end-to-end latency, from buckets."""
    LATENCY_P90 = "latency_p90"
    LATENCY_P99 = "latency_p99"
    OPERATOR_LATENCY_P50 = "operator_latency_p50"
    """Of an operator's streaming windows: how long it worked itself, without what it waited and was queued."""
    COMPLETENESS = "completeness"
    """Of the accounting: how long ago a batch was finished whose outcomes do not add up; 0 while all do."""
    WATERMARK_LAG = "watermark_lag"
    """Of a source or sub-topology: the check's instant − its watermark."""
    RECORDS = "records"
    """Of an operator: how many records came in; fewer than a limit break the SLA."""
    BURN_RATE = "burn_rate"
    """Of an operator's records: how fast those that took longer than a threshold use the error budget up; 1: exactly.

    The same over a twelfth of the time has to reach a limit as well: what has ended is no news.
    """
    CONTRACT = "contract"
    """Of a table, or of all: the rows that break what is declared of it."""


class Severity(StrEnum):
    """How bad it is when an SLA is broken; who is told may depend on it."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


QUANTILES: Mapping[Measure, float] = MappingProxyType(
    {
        Measure.LATENCY_P50: 0.5,
        Measure.LATENCY_P90: 0.9,
        Measure.LATENCY_P99: 0.99,
    }
)
"""Of the measures that are read from buckets."""


Limits: TypeAlias = Sla | AtLeast | BurnRate | Kept
"""Of lengths of time, of records, of burn rates, and of contracts."""
ALL_TABLES = "tables"
"""The subject of a contract that is about every table of the topology."""
SHORT = 12
"""A burn rate is looked at over this part of its time, too."""


@dataclass(frozen=True, kw_only=True)
class SlaSpec:
    """One SLA: who promises what of which subject, over how long before the check it is measured.

    *runbook* says what to do (URL or text); nobody is told in a maintenance window.
    """

    name: str
    subject: str
    measure: Measure
    limits: Limits
    owner: str
    over_ms: int
    ignore_when_idle: bool
    severity: Severity = Severity.CRITICAL
    runbook: str | None = None
    damping: Damping = field(default_factory=Damping)
    maintenance_windows: tuple[MaintenanceWindow, ...] = ()

    @property
    def short_ms(self) -> int:
        """Over how long a burn rate is looked at besides."""
        return max(1, self.over_ms // SHORT)

    @property
    def lengths_ms(self) -> tuple[int, ...]:
        """All over which it is measured."""
        return (self.over_ms, self.short_ms) if self.measure is Measure.BURN_RATE else (self.over_ms,)

    def is_quiet(self, at_ms: int) -> bool:
        """Whether the instant *at_ms* lies in one of its maintenance windows."""
        return any(window.holds(at_ms) for window in self.maintenance_windows)


@dataclass(frozen=True, kw_only=True)
class Slas:
    """The SLAs of a topology that can be used, and by name what is wrong with each of the others."""

    specs: tuple[SlaSpec, ...]
    errors: Mapping[str, InvalidSpec]

    def refuse(self) -> None:
        """Raise InvalidSpec, with a line for each that cannot be used, where there is one."""
        if self.errors:
            raise InvalidSpec("\n".join(map(str, self.errors.values())))


KEYS = (
    "subject", "measure", "owner", "severity", "runbook", "over", "ignore_when_idle", "open_after", "resolve_after",
    "maintenance_windows", "warn_after", "error_after", "warn_below", "error_below", "threshold", "target", "warn_at",
    "error_at",
)  # fmt: skip
"""Of an SLA, whatever its measure: one that is none of these is told before what it may have caused."""
RESOLVE_AFTER_MS = 600_000
OVER_MS = 600_000
CONTRACTS_OVER_MS = 3_600_000
"""Over how long contracts are judged at least, all of them at once."""
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
    return parse(read_toml(path), topology, file=path.name)


def load_usable(path: Path, topology: Topology) -> Slas:
    """The SLAs of *topology* in the file at *path*, mistakes apart; raises InvalidSpec where it is no TOML."""
    return _slas(read_toml(path), topology, path.name)


def parse(content: Mapping[str, Any], topology: Topology, *, file: str) -> tuple[SlaSpec, ...]:
    """The SLAs of *topology* in *content*, a parsed TOML file named *file* in errors.

    One that the file does not name promises that nothing gets lost.
    """
    found = _slas(content, topology, file)
    found.refuse()
    return found.specs


def mistakes(path: Path, topologies: Iterable[Topology], names: Collection[str]) -> list[InvalidSpec]:
    """All that is wrong with the file at *path*: in the SLAs of *topologies*, and of such as *names* does not have."""
    try:
        content = read_toml(path)
    except FileNotFoundError:
        return [InvalidSpec.at(path.name, "file", "is not there", f"write what is promised into {path}")]
    except InvalidSpec as error:
        return [error]
    unknown = [name for name in content if name not in names]
    found = [InvalidSpec.at(path.name, name, "is no topology", meant(name, names, "ones")) for name in unknown]
    return [*found, *(error for each in topologies for error in _slas(content, each, path.name).errors.values())]


def _slas(content: Mapping[str, Any], topology: Topology, file: str) -> Slas:
    tables = content.get(topology.name, UNLESS_SAID)
    if not isinstance(tables, dict) or not tables:
        remedy = f"write a table [{topology.name}.NAME] for each"
        return Slas(specs=(), errors={topology.name: InvalidSpec.at(file, topology.name, "has no SLAs", remedy)})
    specs, errors = [], {}
    for name, table in tables.items():
        try:
            specs.append(_spec(file, name, table, topology))
        except InvalidSpec as error:
            errors[name] = error
    return Slas(specs=tuple(specs), errors=errors)


def _spec(file: str, name: str, table: Any, topology: Topology) -> SlaSpec:
    keys = Keys(file, f"{topology.name}.{name}", table if isinstance(table, dict) else {})
    if not IDENTIFIER.fullmatch(name) or name == CHECKS:
        problem = "is what Tidemark calls its own" if name == CHECKS else "is no name for an SLA"
        raise InvalidSpec.at(file, keys.at, problem, "use another one: lower-case letters, digits and _")
    keys.refuse_all_but(KEYS)
    measure = keys.choice("measure", Measure, Measure.STALENESS)
    spec = SlaSpec(
        name=name,
        subject=_subject(keys, measure, topology),
        measure=measure,
        limits=_limits(keys, measure),
        owner=keys.text("owner", "orders team"),
        over_ms=CONTRACTS_OVER_MS if measure is Measure.CONTRACT else keys.duration("over", "10 min", OVER_MS),
        ignore_when_idle=bool(keys.get("ignore_when_idle", bool, "true", False)),
        severity=keys.choice("severity", Severity, Severity.CRITICAL),
        runbook=keys.text("runbook", "https://wiki.example.org/late-boards", None),
        damping=Damping(
            open_after_ms=keys.duration("open_after", "5 min", 0, zero=True),
            resolve_after_ms=keys.duration("resolve_after", "10 min", RESOLVE_AFTER_MS, zero=True),
        ),
        maintenance_windows=tuple(_windows(keys)),
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
    sinks = tuple(o.table for o in topology.operators.values() if isinstance(o, Sink) and o.table)
    if measure is Measure.STALENESS:
        return (*sinks, CHANGES.name)
    if measure is Measure.CONTRACT:
        hops = (f"hop_{o.name}" for o in topology.operators.values() if o.kind is Kind.REPARTITION)
        return (ALL_TABLES, *sinks, *hops, *TABLES)
    if measure is Measure.WATERMARK_LAG:
        sources = (o.name for o in topology.operators.values() if o.kind is Kind.SOURCE)
        return (*sources, *(sub.name for sub in topology.sub_topologies))
    return (OUTCOMES.name,) if measure is Measure.COMPLETENESS else tuple(topology.operators)


def _windows(keys: Keys) -> Iterator[MaintenanceWindow]:
    example = '["Sun 02:00-04:00", "2026-12-24T00:00Z/2026-12-26T00:00Z"]'
    for text in keys.names("maintenance_windows", example, ()):
        if (window := maintenance_window(text)) is None:
            keys.fail("maintenance_windows", f"has {text!r}", f"write hours of UTC, such as {example}")
        yield window


def _limits(keys: Keys, measure: Measure) -> Limits:
    match measure:
        case Measure.RECORDS:
            return _at_least(keys)
        case Measure.BURN_RATE:
            return _burn_rate(keys)
        case Measure.CONTRACT:
            return Kept()
        case _:
            return _lengths(keys)


def _at_least(keys: Keys) -> AtLeast:
    warn, error = (keys.count(key, "100", None) for key in ("warn_below", "error_below"))
    try:
        return AtLeast(warn_below=warn, error_below=error)
    except InvalidArgument:
        problem = f"is {warn} and error_below is {error}"
        keys.fail("warn_below", problem, "write one or both, the error not above: warn_below = 100, error_below = 1")


def _burn_rate(keys: Keys) -> BurnRate:
    threshold_ms = keys.duration("threshold", "30 s")
    target, warn, error = (
        keys.number(key, example, default)
        for key, example, default in (("target", "0.99", ...), ("warn_at", "1", 1), ("error_at", "14.4", 14.4))
    )
    try:
        objective = Objective(threshold_ms=threshold_ms, target=target)
    except InvalidArgument:
        keys.fail("target", f"is {target:g}", "write the share of records that keep to the threshold: target = 0.99")
    try:
        return BurnRate(objective=objective, warn_at=warn, error_at=error)
    except InvalidArgument:
        highest = f"error_at at most {1 / (1 - target):g}, the rate at which all records are over the threshold"
        keys.fail("warn_at", f"is {warn:g} and error_at is {error:g}", f"write the lower one first, and {highest}")


def _lengths(keys: Keys) -> Sla:
    warn_ms, error_ms = (keys.duration(key, "30 s", None) for key in ("warn_after", "error_after"))
    try:
        return Sla(warn_after_ms=warn_ms, error_after_ms=error_ms)
    except InvalidArgument:
        keys.fail(
            "warn_after",
            f"is {keys.content.get('warn_after')!r} and error_after is {keys.content.get('error_after')!r}",
            'write one or both, the warning first: warn_after = "30 s", error_after = "2 min"',
        )
