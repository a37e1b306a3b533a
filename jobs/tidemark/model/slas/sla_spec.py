"""Reads the valid SLAs of a topology, even among invalid ones."""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from tidemark.collecting import names_in, outside, present
from tidemark.errors import InvalidArgument, InvalidSpec
from tidemark.model.measures.burn_rate import BURN_RATE
from tidemark.model.measures.complete_by import COMPLETE_BY
from tidemark.model.measures.completeness import COMPLETENESS, OUTCOMES
from tidemark.model.measures.registry import MEASURES, Measure, Thresholds
from tidemark.model.measures.staleness import STALENESS
from tidemark.model.project.files import Project
from tidemark.model.settings.lengths import for_people, length_in_toml
from tidemark.model.settings.maintenance_windows import (
    MaintenanceWindow,
    WeeklyHours,
    calendar,
    maintenance_windows,
)
from tidemark.model.settings.retention import DAY_MS
from tidemark.model.settings.toml_keys import Keys, read_inner, read_toml, read_whole, suggestion_of
from tidemark.model.settings.value_types import IDENTIFIER, LENGTH_ABOVE_0, Form
from tidemark.model.topology import Topology, name_in, of_jobs
from tidemark.semantics.incidents import CHECKS, Damping
from tidemark.semantics.repairs import DECISION
from tidemark.semantics.sla import (
    BurnRate,
    Objective,
    Severity,
    Sla,
)


class ResultPlace(StrEnum):
    """Where readers look for the results of a sink with current rows."""

    VIEW = "view"
    """The view of the table's name: exact at once."""
    TABLE = "table"
    """The files of the table: merged every `refresh`."""


class WhileCatchingUp(StrEnum):
    """Judgement of a late subject while its streams catch up."""

    COUNT = "count"
    """The SLA breaks as at any other time."""
    EXCUSE = "excuse"
    """The SLA passes, and its result gives the reason."""


SHORT = 12
"""Divisor of `over`: a burn rate is also measured over that time."""


@dataclass(frozen=True, kw_only=True)
class BurnWindow:
    """A time over which the burn rate of an objective is judged.

    The SLA is broken if the rate over `over_ms` and over a twelfth of it reach `rate`.
    """

    over_ms: int
    rate: float
    severity: Severity


DEADLINE: Form = {"anyOf": [LENGTH_ABOVE_0, {"type": "string", "pattern": r"^\d\d:\d\d( .+)?$"}]}
"""The form of `complete_by`: a length, or a time of day."""
BURN_WINDOWS = (
    BurnWindow(over_ms=3_600_000, rate=14.4, severity=Severity.CRITICAL),
    BurnWindow(over_ms=21_600_000, rate=6, severity=Severity.CRITICAL),
    BurnWindow(over_ms=3 * DAY_MS, rate=1, severity=Severity.WARNING),
)
"""The windows of each objective.

Source: Google's SRE Workbook, "Alerting on SLOs", table of recommended parameters.
"""
WINDOW_MS = 28 * DAY_MS
MIN_RECORDS = 100
OBJECTIVE_EXAMPLE = '{ latency = "30 s", target = 0.99 }'


@dataclass(frozen=True, kw_only=True)
class Compliance:
    """The objective to which an SLA belongs, by its *name*.

    Its error budget is that of the records of *window_ms* before the check.
    """

    name: str
    window_ms: int


@dataclass(frozen=True, kw_only=True)
class SlaSpec:
    """Describes one SLA: its subject, measure, thresholds and owner.

    It is measured over the `over_ms` before the check. *place* is where the subject's readers look; only for sinks with
    current rows do the places differ. With *by*, a staleness is judged for each group of rows with equal values in
    these columns, and a group that was not seen for `over_ms` counts no more. *runbook* is the remedy (URL or text).
    In a maintenance window, and outside its *calendar* (None: always), checks change no incident. *compliance* is set
    if it is a window of an objective.
    """

    name: str
    subject: str
    measure: Measure
    limits: Thresholds
    owner: str
    over_ms: int
    ignore_when_idle: bool
    place: ResultPlace = ResultPlace.VIEW
    while_catching_up: WhileCatchingUp = WhileCatchingUp.COUNT
    by: tuple[str, ...] = ()
    severity: Severity = Severity.CRITICAL
    runbook: str | None = None
    damping: Damping = field(default_factory=Damping)
    maintenance_windows: tuple[MaintenanceWindow, ...] = ()
    calendar: WeeklyHours | None = None
    compliance: Compliance | None = None

    @property
    def table(self) -> str:
        """Returns the name of its table in the file of SLAs."""
        return self.compliance.name if self.compliance else self.name

    @property
    def short_ms(self) -> int:
        """Returns the shorter time over which a burn rate is measured."""
        return max(1, self.over_ms // SHORT)

    @property
    def lengths_ms(self) -> tuple[int, ...]:
        """Returns all times over which it is measured."""
        return (self.over_ms, self.short_ms) if isinstance(self.limits, BurnRate) else (self.over_ms,)

    def is_in_maintenance(self, at_ms: int) -> bool:
        """Returns whether *at_ms* (epoch ms) is in a maintenance window."""
        return any(window.holds(at_ms) for window in self.maintenance_windows)

    def is_judged(self, at_ms: int) -> bool:
        """Returns whether *at_ms* (epoch ms) is in its calendar."""
        return self.calendar is None or self.calendar.holds(at_ms)

    @property
    def may_be_excused(self) -> bool:
        """Returns whether it passes beyond its limit while there is nothing to send, or while streams catch up."""
        return self.ignore_when_idle or self.while_catching_up is WhileCatchingUp.EXCUSE

    def judged_since_ms(self, at_ms: int, *, after_ms: int) -> int | None:
        """Returns since when it is judged, if that is after *after_ms*: epoch ms.

        Before, it was in a maintenance window or outside its calendar. None: not after *after_ms*, or it is not judged
        at *at_ms*.
        """
        if self.is_in_maintenance(at_ms) or not self.is_judged(at_ms):
            return None
        times = (*self.maintenance_windows, *present((self.calendar,)))
        return max(present(time.changed_ms(at_ms, after_ms=after_ms) for time in times), default=None)


@dataclass(frozen=True, kw_only=True)
class Slas:
    """The valid SLAs of a topology, and errors by name."""

    specs: tuple[SlaSpec, ...]
    errors: Mapping[str, InvalidSpec]

    def refuse(self) -> None:
        """Raises InvalidSpec with a line per error, if there are any."""
        if self.errors:
            raise InvalidSpec("\n".join(map(str, self.errors.values())))

    @property
    def least_latency_ms(self) -> int | None:
        """Returns the shortest latency beyond which a record counts against one of them; None: none is about latency.

        A record that is slower than a limit of `latency_*` or the threshold of an objective counts against it.
        """
        limits_ms: list[float] = []
        for spec in self.specs:
            match spec.limits:
                case Sla() if spec.measure.is_latency:
                    limits_ms.append(spec.limits.least_ms)
                case BurnRate():
                    limits_ms.append(spec.limits.objective.threshold_ms)
        return math.floor(min(limits_ms)) if limits_ms else None

    @property
    def unusable(self) -> frozenset[str]:
        """Returns the names of SLAs that may be promised and are invalid."""
        # An invalid table may be one with an objective.
        windows = [_window_name(name, window) for name in self.errors for window in BURN_WINDOWS]
        return frozenset((*self.errors, *windows))


KEYS = (
    "subject", "measure", "by", "place", "owner", "severity", "runbook", "over", "ignore_when_idle",
    "while_catching_up", "open_after", "resolve_after", "maintenance_windows", "calendar",
    "warn_after", "error_after", "warn_below", "error_below", "warn_above", "error_above",
    "threshold", "target", "warn_at", "error_at", "min_records", "objective", "complete_by",
)  # fmt: skip
"""Keys of an SLA of any measure.

An unknown key is reported before the mistakes that it may have caused.
"""
DECIDING = ("measure", "objective", "complete_by", "by")
"""Keys that decide what is measured."""
OF_AN_OBJECTIVE = frozenset(
    {"measure", "over", "severity", "threshold", "target", "warn_at", "error_at", "min_records"}
)
"""Keys of a burn rate that an objective sets itself."""
MAINTENANCE = "maintenance"
"""Key for all SLAs: of the file, or of a topology's table."""
RECORDED = "recorded"
"""Key of a topology without a file, of queries of jobs."""
RESOLVE_AFTER_MS = 600_000
GROUPS_OVER_MS = 86_400_000
"""Time after which an unseen group of rows counts no more."""
CLOCKS_APART_MS = 60_000
"""Largest lead of a check's instant over this clock.

The scheduler that sets the instant has a clock of its own.
"""
DEFAULT_SLAS: Mapping[str, Any] = {
    "nothing_gets_lost": {
        "subject": OUTCOMES,
        "measure": COMPLETENESS.name,
        "error_after": "1 ms",
        "owner": "tidemark",
    }
}


def load(path: Path, topology: Topology) -> tuple[SlaSpec, ...]:
    """Returns the SLAs of *topology* in the file at *path*.

    Raises InvalidSpec with file, key and remedy.
    """
    return parse(read_toml(path), topology, file=path.name)


def load_usable(path: Path, topology: Topology) -> Slas:
    """Returns the valid SLAs of *topology* in the file at *path*.

    The result also has the errors of the others. Raises InvalidSpec if the file is not valid TOML.
    """
    return usable_slas(read_toml(path), topology, file=path.name)


def known_slas(topology: Topology) -> Slas:
    """Returns the SLAs of *topology* in the project of this process.

    There are none if the file is missing or not valid TOML.
    """
    return slas_in(Project.here(), topology)


def slas_in(project: Project, topology: Topology) -> Slas:
    """Returns the SLAs of *topology* in *project*, as `known_slas` does."""
    try:
        return load_usable(project.slas, topology)
    except (FileNotFoundError, InvalidSpec):
        return Slas(specs=(), errors={})


def parse(content: Mapping[str, Any], topology: Topology, *, file: str) -> tuple[SlaSpec, ...]:
    """Returns the SLAs of *topology* in *content*, a parsed TOML file.

    Errors name the file as *file*. A topology that is not in the file has the DEFAULT_SLAS.
    """
    slas = usable_slas(content, topology, file=file)
    slas.refuse()
    return slas.specs


def mistakes(
    path: Path, topologies: Iterable[Topology], names: Collection[str], parts: Iterable[Topology] = ()
) -> list[InvalidSpec]:
    """Returns all mistakes in the file at *path*.

    These are mistakes in the SLAs of *topologies*, topologies that *names* does not have and that are not marked as
    recorded, and those of *names* that are. *topologies* also has those of jobs. *parts* are what can be used of files
    with mistakes: what their SLAs are about is not known.
    """
    try:
        content = read_toml(path)
    except FileNotFoundError:
        return [InvalidSpec.at(path.name, "file", "does not exist", f"write the SLAs into {path}")]
    except InvalidSpec as error:
        return [error]
    # A list is the maintenance of all topologies, and a table is a topology's.
    tables = {name: table for name, table in content.items() if not _is_setting(name, table, {MAINTENANCE})}
    recorded = _recorded(content)
    errors = [
        InvalidSpec.at(path.name, f"{name}.{RECORDED}", "has a topology file", f"remove {RECORDED}")
        for name in recorded
        if name in names
    ]
    every_name = {*names, *recorded}
    errors += (_unknown(path.name, name, content[name], every_name) for name in outside(tables, every_name))
    for topology in topologies:
        errors += usable_slas(content, topology, file=path.name).errors.values()
    for part in parts:
        for name, table in _slas_of(content.get(part.name, {})).items():
            wrong = _read_specs(path.name, name, table, part)[1]
            errors += [mistake for mistake in wrong if not _is_about_operators(mistake, table)]
    # Each topology has a mistake in the maintenance of all.
    return list({str(error): error for error in errors}.values())


def _unknown(file: str, name: str, table: Any, names: Collection[str]) -> InvalidSpec:
    """Returns the mistake about *name*, which is not among *names*."""
    remedy = suggestion_of(name, names, "topologies")
    if isinstance(table, list):
        remedy = f"maintenance of all topologies has the key {MAINTENANCE}"
    content = table if isinstance(table, dict) else {}
    values = {key: value for key, value in content.items() if not isinstance(value, dict)}
    if RECORDED in values:
        return InvalidSpec.at(file, f"{name}.{RECORDED}", f"is {values[RECORDED]!r}", f"write {RECORDED} = true")
    for key in difflib.get_close_matches(RECORDED, values, n=1):
        return InvalidSpec.at(file, f"{name}.{key}", "is not a valid key here", f"did you mean {RECORDED}?")
    return InvalidSpec.at(file, name, "is not a topology", remedy)


def recorded_topologies(path: Path) -> list[str]:
    """Returns the topologies of jobs in the file at *path*.

    There are none if it is missing or not valid TOML, which `mistakes` has.
    """
    try:
        return _recorded(read_toml(path))
    except (FileNotFoundError, InvalidSpec):
        return []


def topologies_of_jobs(slas: Path, files: Iterable[Path]) -> dict[str, Topology]:
    """Returns the topologies of jobs in the file *slas* by name.

    They have no queries, which only the warehouse knows. One that a file of *files* describes is left out, even if that
    file is invalid.
    """
    marked = recorded_topologies(slas)
    with_file = {*map(name_in, files)} if marked else set()
    return {name: of_jobs(name) for name in outside(marked, with_file)}


def _recorded(content: Mapping[str, Any]) -> list[str]:
    return [name for name, table in content.items() if isinstance(table, dict) and table.get(RECORDED) is True]


def _slas_of(tables: Mapping[str, Any]) -> dict[str, Any]:
    return {name: table for name, table in tables.items() if not _is_setting(name, table, {MAINTENANCE, RECORDED})}


def usable_slas(content: Mapping[str, Any], topology: Topology, *, file: str) -> Slas:
    """Returns the valid SLAs of *topology* in *content*, as `load_usable` does."""
    tables = content.get(topology.name, DEFAULT_SLAS)
    if not isinstance(tables, dict) or not tables:
        remedy = f"write a table [{topology.name}.NAME] for each SLA"
        return Slas(specs=(), errors={topology.name: InvalidSpec.at(file, topology.name, "has no SLAs", remedy)})
    specs: list[SlaSpec] = []
    errors: dict[str, InvalidSpec] = {}
    windows: list[MaintenanceWindow] = []
    for place, within in (("", content), (topology.name, tables)):
        try:
            windows += _of_all(Keys(file, place, within))
        except InvalidSpec as error:
            errors[f"{place}.{MAINTENANCE}".removeprefix(".")] = error
    if tables.get(RECORDED, True) is not True and not isinstance(tables[RECORDED], dict):
        problem, remedy = f"is {tables[RECORDED]!r}", f"write {RECORDED} = true, or leave it out"
        errors[RECORDED] = InvalidSpec.at(file, f"{topology.name}.{RECORDED}", problem, remedy)
    for name, table in (_slas_of(tables) or DEFAULT_SLAS).items():
        try:
            read = _specs(file, name, table, topology)
        except InvalidSpec as error:
            errors[name] = error
        else:
            specs += (replace(spec, maintenance_windows=(*windows, *spec.maintenance_windows)) for spec in read)
    counts = Counter(spec.name for spec in specs)
    for name in list(names_in(spec for spec in specs if not spec.compliance)):
        if counts[name] > 1:
            problem, remedy = "is also the name of a window of an objective", "use another name"
            errors[name] = InvalidSpec.at(file, f"{topology.name}.{name}", problem, remedy)
    return Slas(specs=tuple(spec for spec in specs if spec.name not in errors), errors=errors)


def _of_all(keys: Keys) -> Iterator[MaintenanceWindow]:
    """Yields the maintenance windows of all SLAs in a table."""
    if _is_setting(MAINTENANCE, keys.content.get(MAINTENANCE, {}), {MAINTENANCE}):
        yield from maintenance_windows(keys, MAINTENANCE)


def _is_setting(name: str, value: Any, settings: Collection[str]) -> bool:
    """Returns True for one of *settings*; a table is none."""
    return name in settings and not isinstance(value, dict)


def _is_about_operators(mistake: InvalidSpec, table: Any) -> bool:
    """Returns True if *mistake* in the *table* of an SLA may be none with other operators."""
    key = mistake.key.rpartition(".")[2]
    return key in {"subject", "by", "place"} or (key == "measure" and table.get(key) in MEASURES)


def _specs(file: str, name: str, table: Any, topology: Topology) -> tuple[SlaSpec, ...]:
    """Reads the SLAs of a *table*: those of its objective, or one.

    Raises InvalidSpec with a line for each mistake.
    """
    specs, wrong = _read_specs(file, name, table, topology)
    if wrong or specs is None:
        raise InvalidSpec("\n".join(map(str, wrong)))
    return specs


def _read_specs(
    file: str, name: str, table: Any, topology: Topology
) -> tuple[tuple[SlaSpec, ...] | None, list[InvalidSpec]]:
    """Reads the SLAs of a *table*, and every mistake in it."""
    at = f"{topology.name}.{name}"
    if not isinstance(table, dict):
        remedy = f"write a table [{at}]"
        if isinstance(table, list):
            remedy = f"maintenance of all SLAs of a topology has the key {MAINTENANCE}"
        return None, [InvalidSpec.at(file, at, "is not a table of an SLA", remedy)]
    is_reserved = name in {CHECKS, DECISION}
    if not IDENTIFIER.fullmatch(name) or is_reserved:
        problem = "is reserved for Tidemark" if is_reserved else "is not a valid SLA name"
        return None, [InvalidSpec.at(file, at, problem, "use another name: lower-case letters, digits and _")]

    def read(keys: Keys) -> tuple[SlaSpec, ...]:
        keys.refuse_all_but(KEYS)
        promised = keys.get("objective", dict, OBJECTIVE_EXAMPLE, None)
        return (_spec(keys, name, topology),) if promised is None else _objective(keys, name, topology)

    return read_whole(file, at, table, read)


def _spec(keys: Keys, name: str, topology: Topology) -> SlaSpec:
    # Only one measure has this key, so it need not be named.
    complete_by = keys.text("complete_by", "10 min", None, form=DEADLINE)
    usual = STALENESS if complete_by is None else COMPLETE_BY
    measure = MEASURES[keys.word("measure", MEASURES, usual.name)]
    if complete_by is not None and measure is not COMPLETE_BY:
        keys.fail("complete_by", f"is set, but measure is {measure.name!r}", "leave one of the two out")
    by = keys.names("by", '["sensor"]', ())
    subject = _subject(keys, measure, topology, by)
    spec = SlaSpec(
        name=name,
        subject=subject,
        place=_place(keys, measure, subject, topology),
        measure=measure,
        by=by,
        limits=measure.limits(keys),
        over_ms=_over_ms(keys, measure, by),
        severity=Severity(keys.choice("severity", Severity, Severity.CRITICAL)),
        **_of_any(keys, measure),
    )
    _refuse_unseen_groups(keys, spec)
    return spec


def _of_any(keys: Keys, measure: Measure) -> dict[str, Any]:
    """Reads the fields that SLAs of limits and of objectives share."""
    return {
        "owner": keys.text("owner", "orders team"),
        "ignore_when_idle": bool(keys.get("ignore_when_idle", bool, "true", False)),
        "while_catching_up": _while_catching_up(keys, measure),
        "runbook": keys.text("runbook", "https://wiki.example.org/late-boards", None),
        "damping": Damping(
            open_after_ms=keys.duration("open_after", "5 min", 0, zero=True),
            resolve_after_ms=keys.duration("resolve_after", "10 min", RESOLVE_AFTER_MS, zero=True),
        ),
        "maintenance_windows": tuple(maintenance_windows(keys, "maintenance_windows")),
        "calendar": calendar(keys),
    }


def _objective(keys: Keys, name: str, topology: Topology) -> tuple[SlaSpec, ...]:
    """Reads an objective: an SLA of a burn rate for each window."""
    longest = max((_window_name("", window) for window in BURN_WINDOWS), key=len)
    if not IDENTIFIER.fullmatch(name + longest):
        raise InvalidSpec.at(
            keys.file, keys.at, "is too long for an objective", f"shorten it by {len(longest)} letters"
        )
    for key in keys.content:
        if key in OF_AN_OBJECTIVE:
            keys.fail(key, "is set, but an objective has its own", "leave it out")
    subject = _subject(keys, BURN_RATE, topology, ())

    def read(of_objective: Keys) -> tuple[int, list[BurnRate]]:
        threshold_ms = of_objective.duration("latency", "30 s")
        target = of_objective.number("target", "0.99", ...)
        window_ms: int = of_objective.duration("window", "28 d", WINDOW_MS)
        min_records = of_objective.count("min_records", "100", MIN_RECORDS)
        _refuse_window(of_objective, window_ms, topology)
        try:
            promised = Objective(threshold_ms=threshold_ms, target=target)
            return window_ms, [
                BurnRate(objective=promised, warn_at=window.rate, error_at=window.rate, min_records=min_records)
                for window in BURN_WINDOWS
            ]
        except InvalidArgument:
            rate = max(each.rate for each in BURN_WINDOWS)
            remedy = f"write a share from {_least_target(rate)} to below 1, such as 0.99"
            of_objective.fail("target", f"is {target:g}, whose budget cannot burn at the rate {rate:g}", remedy)

    window_ms, limits = read_inner(keys, "objective", keys.get("objective", dict, OBJECTIVE_EXAMPLE), read)
    shared = {"subject": subject, "measure": BURN_RATE, **_of_any(keys, BURN_RATE)}
    return tuple(
        SlaSpec(
            name=_window_name(name, window),
            limits=limit,
            over_ms=window.over_ms,
            severity=window.severity,
            compliance=Compliance(name=name, window_ms=window_ms),
            **shared,
        )
        for window, limit in zip(BURN_WINDOWS, limits, strict=True)
    )


def _least_target(rate: float) -> float:
    """Returns the lowest target whose budget can burn at *rate*, in 1/1000."""
    return math.ceil(1_000 * (1 - 1 / rate)) / 1_000


def _refuse_window(keys: Keys, window_ms: int, topology: Topology) -> None:
    """Refuses a window whose records cannot be counted."""
    shortest_ms = max(window.over_ms for window in BURN_WINDOWS)
    if window_ms < shortest_ms:
        problem = f"is {for_people(window_ms)}, shorter than the longest burn-rate window"
        remedy = f'write "{length_in_toml(shortest_ms)}" or longer, such as "{length_in_toml(WINDOW_MS)}"'
        keys.fail("window", problem, remedy)
    kept_ms = topology.retention.reports_ms
    if kept_ms is not None and kept_ms < window_ms:
        problem = f"is {for_people(window_ms)}, but {topology.name} keeps rollups for {for_people(kept_ms)}"
        keys.fail("window", problem, "raise retention.reports of the topology, or write a shorter window")


def _window_name(name: str, window: BurnWindow) -> str:
    """Returns the name of the SLA of *window*, such as `in_time_1h`."""
    return f"{name}_{length_in_toml(window.over_ms).replace(' ', '')}"


def _refuse_unseen_groups(keys: Keys, spec: SlaSpec) -> None:
    """Refuses an `over` that ends before a group is stale."""
    if not spec.by or not isinstance(spec.limits, Sla):
        return
    longest_ms = round(max(present((spec.limits.warn_after_ms, spec.limits.error_after_ms))))
    if spec.over_ms <= longest_ms:
        problem = f"is {for_people(spec.over_ms)}, after which an unseen group counts no more"
        remedy = f"write a longer time than the limit of {for_people(longest_ms)}"
        keys.fail("over", problem, remedy, beside=("by", "warn_after", "error_after"))


def _over_ms(keys: Keys, measure: Measure, by: Collection[str]) -> int:
    if measure.fixed_over_ms is not None:
        return measure.fixed_over_ms
    over_ms: int = keys.duration("over", "10 min", GROUPS_OVER_MS if by else measure.usual_over_ms)
    return over_ms


def _subject(keys: Keys, measure: Measure, topology: Topology, by: Collection[str]) -> str:
    if by:
        return _subject_of_groups(keys, measure, topology, by)
    allowed = measure.subjects(topology)
    if not topology.outside_sources and measure.any_operator:
        return str(keys.text("subject", "orders"))  # nothing was recorded yet, so any query may come
    if not allowed:
        problem, remedy = measure.without_subjects
        keys.fail("measure", f"is {measure.name!r}, but {problem}", remedy)
    subject = str(keys.text("subject", allowed[0]))
    if subject not in allowed:
        problem, remedy = f"is {subject!r}, which has no {measure}", f"use one of {', '.join(allowed)}"
        keys.fail("subject", problem, remedy, beside=DECIDING)
    return subject


def _subject_of_groups(keys: Keys, measure: Measure, topology: Topology, by: Collection[str]) -> str:
    """Reads the operator whose staleness is judged for each group *by* columns."""
    if measure is not STALENESS:
        remedy = 'leave it out, or measure = "staleness"'
        keys.fail("by", f"is set, but {measure} is not measured by groups", remedy, beside=DECIDING)
    grouped = {name: o.groups for name, o in topology.operators.items() if o.groups}
    subject = str(keys.text("subject", next(iter(grouped), "latest")))
    if subject not in grouped:
        by_columns = ", ".join(f"{name} (by {', '.join(columns)})" for name, columns in grouped.items())
        problem = f"is {subject!r}, which has no groups"
        keys.fail("subject", problem, f"with `by`, use one of {by_columns}", beside=DECIDING)
    if outside(by, grouped[subject]):
        remedy = f"use columns of the key of {subject}: {', '.join(grouped[subject])}"
        keys.fail("by", f"is {[*by]}", remedy, beside="subject")
    return subject


def _while_catching_up(keys: Keys, measure: Measure) -> WhileCatchingUp:
    chosen = WhileCatchingUp(keys.choice("while_catching_up", WhileCatchingUp, WhileCatchingUp.COUNT))
    if chosen is WhileCatchingUp.EXCUSE and not measure.is_excusable:
        problem = f"is {chosen.value!r}, but {measure} is not late while a stream catches up"
        remedy = f"leave it out, or measure {', '.join(name for name, each in MEASURES.items() if each.is_excusable)}"
        keys.fail("while_catching_up", problem, remedy, beside=DECIDING)
    return chosen


def _place(keys: Keys, measure: Measure, subject: str, topology: Topology) -> ResultPlace:
    """Reads where readers of *subject* look."""
    place = ResultPlace(keys.choice("place", ResultPlace, ResultPlace.VIEW))
    if place is ResultPlace.VIEW:
        return place
    tables = [o for o in topology.operators.values() if o.result_table]
    sinks = [o for o in tables if subject == (o.result_table if measure is STALENESS else o.name)]
    if not sinks or not (measure is STALENESS or (measure.is_latency)):
        problem = f"is {place.value!r}, but {measure} of {subject!r} is not measured in a sink's table"
        remedy = "leave it out, or measure staleness or a latency of a sink with a table"
        keys.fail("place", problem, remedy, beside=(*DECIDING, "subject"))
    # Both places of an append-only table are the same.
    return place if any(not sink.appends_each_record for sink in sinks) else ResultPlace.VIEW
