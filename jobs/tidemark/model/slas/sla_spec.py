"""Reads the valid SLAs of a topology, even among invalid ones."""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from tidemark.errors import InvalidSpec
from tidemark.model.kinds.operator import Operator
from tidemark.model.measures.completeness import COMPLETENESS, OUTCOMES
from tidemark.model.measures.limits import ERROR_AFTER, WARN_AFTER, Thresholds
from tidemark.model.measures.records import RECORDS
from tidemark.model.measures.registry import MEASURES, Measure
from tidemark.model.measures.staleness import STALENESS
from tidemark.model.measures.watermark_lag import WATERMARK_LAG
from tidemark.model.project.files import Project
from tidemark.model.project.layout import WATCH
from tidemark.model.settings.declared_tables import Key, MistakenKey, Values
from tidemark.model.settings.lengths import for_people, length_in_toml
from tidemark.model.settings.maintenance_windows import MaintenanceWindow, WeeklyHours, weekly_hours
from tidemark.model.settings.retention import DAY_MS
from tidemark.model.settings.toml_files import read_toml
from tidemark.model.settings.value_types import IDENTIFIER, suggestion_of
from tidemark.model.slas.calendars import (
    Calendars,
    ExemptDays,
    calendars_in,
    longest_between_days,
    mistakes_of_countries,
    mistakes_of_library,
    names_of_files,
)
from tidemark.model.slas.sla_keys import (
    BURN_WINDOWS,
    BY,
    EXCEPT,
    HOURS,
    IGNORE_WHEN_IDLE,
    LATENCY,
    LEAST_RECORDS,
    MAINTENANCE,
    MAINTENANCE_WINDOWS,
    MEASURE,
    OBJECTIVE,
    OBJECTIVES,
    OPEN_AFTER,
    OVER,
    OWNER,
    PLACE,
    PROMISED_TARGET,
    RECORDED,
    RESOLVE_AFTER,
    RUNBOOK,
    SEVERITY,
    SUBJECT,
    WHILE_CATCHING_UP,
    WINDOW,
    BurnWindow,
    MeasureKind,
    ResultPlace,
    WhileCatchingUp,
    form,
)
from tidemark.model.topology import Topology, name_in, of_jobs, of_watched
from tidemark.model.topology_keys import CALENDARS
from tidemark.model.watched import EXACT, WatchedSet, is_set, set_of, sets_in, table_of
from tidemark.selection import names_in, omit, outside, present
from tidemark.semantics.incidents import CHECKS, Damping
from tidemark.semantics.repairs import DECISION
from tidemark.semantics.sla import BurnRate, Objective, RecordMinimums, Severity, Sla

SHORT = 12
"""Divisor of `over`: a burn rate is also measured over that time."""


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
    In a maintenance window, outside its *calendar* (None: always) and on *exempt* days checks change no incident.
    *compliance* is set if it is a window of an objective.
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
    exempt: tuple[ExemptDays, ...] = ()
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
        """Returns all times over which it is measured, the longest one first."""
        return (self.over_ms, self.short_ms) if isinstance(self.limits, BurnRate) else (self.over_ms,)

    def counted_since_ms(self, at_ms: int) -> int | None:
        """Returns when exempt days ended, if that is in the time over which a check at *at_ms* counts: epoch ms.

        What comes later is all that it counts. A minimum of records is no such case: it needs the whole time, and is
        not judged before.
        """
        if isinstance(self.limits, RecordMinimums) or any(days.holds(at_ms) for days in self.exempt):
            return None
        return _last_change_ms(self.exempt, at_ms, after_ms=at_ms - self.over_ms)

    def counted_ms(self, at_ms: int) -> tuple[int, ...]:
        """Returns the lengths over which a check at *at_ms* counts: `lengths_ms`, or less after exempt days."""
        since_ms = self.counted_since_ms(at_ms)
        if since_ms is None:
            return self.lengths_ms
        # An interval has an instant, also in a check at the very end of exempt days.
        return tuple(min(length_ms, max(1, at_ms - since_ms)) for length_ms in self.lengths_ms)

    def remembered_since_ms(self, at_ms: int) -> int:
        """Returns the instant from which until *at_ms* it is `over_ms`, without exempt days: epoch ms.

        A group that was last seen before a weekend is not forgotten on the Monday.
        """
        since_ms, left_ms = at_ms, self.over_ms
        while True:
            before_ms = since_ms - 1
            changed_ms = _last_change_ms(self.exempt, before_ms, after_ms=0)
            is_exempt = bool(self.exempt_by(before_ms))
            if changed_ms is None or (not is_exempt and since_ms - changed_ms >= left_ms):
                return since_ms - left_ms
            left_ms -= 0 if is_exempt else since_ms - changed_ms
            since_ms = changed_ms

    def is_in_maintenance(self, at_ms: int) -> bool:
        """Returns whether *at_ms* (epoch ms) is in a maintenance window."""
        return any(window.holds(at_ms) for window in self.maintenance_windows)

    def is_judged(self, at_ms: int) -> bool:
        """Returns whether *at_ms* (epoch ms) is in its calendar, and no exempt day."""
        is_in_hours = self.calendar is None or self.calendar.holds(at_ms)
        return is_in_hours and not self.exempt_by(at_ms)

    def exempt_by(self, at_ms: int) -> list[str]:
        """Returns the names of the calendars by which *at_ms* (epoch ms) is in an exempt day."""
        return [days.name for days in self.exempt if days.holds(at_ms)]

    @property
    def may_be_excused(self) -> bool:
        """Returns whether it passes beyond its limit while there is nothing to send, or while streams catch up."""
        return self.ignore_when_idle or self.while_catching_up is WhileCatchingUp.EXCUSE

    def judged_since_ms(self, at_ms: int, *, after_ms: int) -> int | None:
        """Returns since when it is judged, if that is after *after_ms*: epoch ms.

        Before, it was in a maintenance window, outside its calendar or in an exempt day. None: not after *after_ms*, or
        it is not judged at *at_ms*.
        """
        if self.is_in_maintenance(at_ms) or not self.is_judged(at_ms):
            return None
        times = (*self.maintenance_windows, *present((self.calendar,)), *self.exempt)
        return _last_change_ms(times, at_ms, after_ms=after_ms)

    def excused_since_ms(self, instant_ms: int, at_ms: int) -> int | None:
        """Returns since when it is judged at *at_ms*, if it was not judged at the earlier *instant_ms*: epoch ms."""
        if self.is_judged(instant_ms) and not self.is_in_maintenance(instant_ms):
            return None
        return self.judged_since_ms(at_ms, after_ms=instant_ms)


def _last_change_ms(times: Iterable[MaintenanceWindow | ExemptDays], at_ms: int, *, after_ms: int) -> int | None:
    """Returns when one of *times* last began or ended until *at_ms*, if that is after *after_ms*: epoch ms."""
    return max(present(time.changed_ms(at_ms, after_ms=after_ms) for time in times), default=None)


@dataclass(frozen=True, kw_only=True)
class Slas:
    """The valid SLAs of a topology, and errors by name."""

    specs: tuple[SlaSpec, ...]
    errors: Mapping[str, InvalidSpec]

    def refuse(self) -> None:
        """Raises InvalidSpec with a line per error, if there are any."""
        if self.errors:
            # SLAs that name a calendar with a mistake, or a table of a set with one, have its mistake.
            raise InvalidSpec("\n".join(dict.fromkeys(map(str, self.errors.values()))))

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


GROUPS_OVER_MS = 86_400_000
"""Time after which an unseen group of rows counts no more."""
OF_TOPOLOGIES = (MAINTENANCE, RECORDED)
"""The keys of the table of a topology, beside its SLAs."""
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
    return parse(read_toml(path), topology, file=path.name, folder=path.parent)


def load_usable(path: Path, topology: Topology) -> Slas:
    """Returns the valid SLAs of *topology* in the file at *path*.

    The result also has the errors of the others. Raises InvalidSpec if the file is not valid TOML.
    """
    return usable_slas(read_toml(path), topology, file=path.name, folder=path.parent)


def known_slas(topology: Topology) -> Slas:
    """Returns the SLAs of *topology* in the project of this process.

    There are none if the file is missing or not valid TOML. They are for those who judge nothing: nobody has asked if
    the countries of their calendars exist.
    """
    return slas_in(Project.here(), topology)


def slas_in(project: Project, topology: Topology) -> Slas:
    """Returns the SLAs of *topology* in *project*, as `known_slas` does."""
    file = project.slas
    try:
        return _readable_slas(read_toml(file), topology, file=file.name, folder=file.parent)
    except (FileNotFoundError, InvalidSpec):
        return Slas(specs=(), errors={})


def parse(
    content: Mapping[str, Any], topology: Topology, *, file: str, folder: Path | None = None
) -> tuple[SlaSpec, ...]:
    """Returns the SLAs of *topology* in *content*, a parsed TOML file.

    Errors name the file as *file*, and files that it names lie in *folder*. A topology that is not in the file has the
    DEFAULT_SLAS.
    """
    slas = usable_slas(content, topology, file=file, folder=folder)
    slas.refuse()
    return slas.specs


def mistakes(
    path: Path, topologies: Iterable[Topology], names: Collection[str], parts: Iterable[Topology] = ()
) -> list[InvalidSpec]:
    """Returns all mistakes in the file at *path*.

    These are mistakes in the SLAs of *topologies*, topologies that *names* does not have and that are not marked as
    recorded, and those of *names* that are. *topologies* also has those of jobs. *parts* are what can be used of files
    with mistakes: what their SLAs are about is not known. `unknown_countries` has those of countries, which are not
    asked for here: that takes a second, and DAG files are parsed all the time.
    """
    try:
        content = read_toml(path)
    except FileNotFoundError:
        return [InvalidSpec.at(path.name, "file", "does not exist", f"write the SLAs into {path}")]
    except InvalidSpec as error:
        return [error]
    # A list is the maintenance of all topologies, and a table is a topology's.
    tables = {name: table for name, table in content.items() if not _is_setting(name, table, (MAINTENANCE,))}
    tables.pop(CALENDARS, None)
    if WATCH in tables:
        topologies = (*topologies, watched_topology(content, file=path.name))
    recorded = _recorded(content)
    errors = [
        InvalidSpec.at(path.name, f"{name}.{RECORDED.name}", "has a topology file", f"remove {RECORDED.name}")
        for name in recorded
        if name in names
    ]
    calendars = calendars_in(content, file=path.name, folder=path.parent)
    errors += calendars.mistakes.values()
    errors += mistakes_of_library(calendars.usable.values(), file=path.name).values()
    every_name = {*names, *recorded, *((WATCH,) if WATCH in tables else ())}
    errors += (_unknown(path.name, name, content[name], every_name) for name in outside(tables, every_name))
    for topology in topologies:
        errors += _readable_slas(content, topology, file=path.name, folder=path.parent).errors.values()
    for part in parts:
        of_part = content.get(part.name, {})
        if not isinstance(of_part, dict):
            errors.append(_without_slas(path.name, part.name))
            continue
        for name, table in _slas_of(of_part).items():
            wrong = _read_specs(path.name, name, table, part, calendars)[1]
            errors += [mistake for mistake in wrong if not _is_about_operators(mistake, table)]
    # Each topology has a mistake in the maintenance of all.
    return list({str(error): error for error in errors}.values())


def unknown_countries(path: Path) -> list[InvalidSpec]:
    """Returns the mistakes about countries in the calendars of the file at *path*.

    The package `holidays` decides. There are none if the file is missing or not valid TOML, which `mistakes` has.
    """
    try:
        calendars = calendars_in(read_toml(path), file=path.name, folder=path.parent)
    except (FileNotFoundError, InvalidSpec):
        return []
    return [*mistakes_of_countries(calendars.usable.values(), file=path.name).values()]


def files_of_dates(path: Path) -> list[Path]:
    """Returns the files that calendars in the file at *path* name; none if it is missing or not valid TOML."""
    try:
        return names_of_files(read_toml(path), folder=path.parent)
    except (FileNotFoundError, InvalidSpec):
        return []


def _unknown(file: str, name: str, table: Any, names: Collection[str]) -> InvalidSpec:
    """Returns the mistake about *name*, which is not among *names*."""
    remedy = suggestion_of(name, names, "topologies")
    if isinstance(table, list):
        remedy = f"maintenance of all topologies has the key {MAINTENANCE.name}"
    content = table if isinstance(table, dict) else {}
    values = {key: value for key, value in content.items() if not isinstance(value, dict)}
    recorded = RECORDED.name
    if recorded in values:
        return InvalidSpec.at(file, f"{name}.{recorded}", f"is {values[recorded]!r}", f"write {recorded} = true")
    for key in difflib.get_close_matches(recorded, values, n=1):
        return InvalidSpec.at(file, f"{name}.{key}", "is not a valid key here", f"did you mean {recorded}?")
    return InvalidSpec.at(file, name, "is not a topology", remedy)


def recorded_topologies(path: Path) -> list[str]:
    """Returns the topologies of jobs in the file at *path*.

    There are none if it is missing or not valid TOML, which `mistakes` has.
    """
    return _recorded(_content_or_nothing(path))


def topologies_of_jobs(slas: Path, files: Iterable[Path]) -> dict[str, Topology]:
    """Returns the topologies of jobs in the file *slas* by name.

    They have no queries, which only the warehouse knows. One that a file of *files* describes is left out, even if that
    file is invalid.
    """
    marked = recorded_topologies(slas)
    with_file = {*map(name_in, files)} if marked else set()
    return {name: of_jobs(name) for name in outside(marked, with_file)}


def _recorded(content: Mapping[str, Any]) -> list[str]:
    tables = omit(content, [CALENDARS, WATCH])
    return [name for name, table in tables.items() if isinstance(table, dict) and table.get(RECORDED.name) is True]


def watched_topology(content: Mapping[str, Any], *, file: str) -> Topology:
    """Returns the topology of the valid sets of watched tables in *content*, a parsed TOML file."""
    tables = content.get(WATCH)
    sets = sets_in(file, tables) if isinstance(tables, dict) else {}
    return of_watched(each for each in sets.values() if isinstance(each, WatchedSet))


def known_watch(path: Path) -> Topology | None:
    """Returns the topology of watched tables of the file at *path*; None: it has no SLA about any.

    There is none if the file is missing or not valid TOML, which `mistakes` has.
    """
    content = _content_or_nothing(path)
    tables = content.get(WATCH)
    is_promised = isinstance(tables, dict) and any(not is_set(table) for table in _slas_of(tables).values())
    return watched_topology(content, file=path.name) if is_promised else None


def known_sets(path: Path) -> Topology:
    """Returns the topology of the sets of watched tables of the file at *path*, with and without SLAs."""
    return watched_topology(_content_or_nothing(path), file=path.name)


def _content_or_nothing(path: Path) -> Mapping[str, Any]:
    try:
        return read_toml(path)
    except (FileNotFoundError, InvalidSpec):
        return {}


def _slas_of(tables: Mapping[str, Any]) -> dict[str, Any]:
    return {name: table for name, table in tables.items() if not _is_setting(name, table, OF_TOPOLOGIES)}


def _promised_in(tables: Mapping[str, Any], topology: Topology) -> Mapping[str, Any]:
    """Returns the tables of the SLAs of *topology* in its *tables*; those of watched tables with their owner."""
    if not topology.is_watch:
        return _slas_of(tables) or DEFAULT_SLAS
    promised = {name: table for name, table in _slas_of(tables).items() if not is_set(table)}
    return {name: _with_owner(table, topology.watched) for name, table in promised.items()}


def _with_owner(table: Any, sets: Iterable[WatchedSet]) -> Any:
    """Returns the *table* of an SLA with the owner of the set of its subject, if it names none itself."""
    subject = table.get(SUBJECT.name) if isinstance(table, dict) else None
    if not isinstance(subject, str):
        return table
    owner = next((each.owner for each in sets if each.name == set_of(subject)), None)
    return table if owner is None else {OWNER.name: owner, **table}


def _without_slas(file: str, topology: str) -> InvalidSpec:
    return InvalidSpec.at(file, topology, "has no SLAs", f"write a table [{topology}.NAME] for each SLA")


def usable_slas(content: Mapping[str, Any], topology: Topology, *, file: str, folder: Path | None = None) -> Slas:
    """Returns the valid SLAs of *topology* in *content*, as `load_usable` does.

    Files that it names lie in *folder*; None: in the working directory.
    """
    slas = _readable_slas(content, topology, file=file, folder=folder)
    exempt = {days.name: days for spec in slas.specs for days in spec.exempt}
    if not (wrong := mistakes_of_countries(exempt.values(), file=file)):
        return slas
    errors = dict(slas.errors)
    for spec in slas.specs:
        for days in spec.exempt:
            if days.name in wrong:
                errors.setdefault(spec.table, wrong[days.name])
    return Slas(specs=tuple(spec for spec in slas.specs if spec.table not in errors), errors=errors)


def _readable_slas(content: Mapping[str, Any], topology: Topology, *, file: str, folder: Path | None) -> Slas:
    """Returns the SLAs of *topology* that can be read, without a look at what the library knows of countries."""
    calendars = calendars_in(content, file=file, folder=folder)
    tables = content.get(topology.name, DEFAULT_SLAS)
    if not isinstance(tables, dict) or not tables:
        return Slas(specs=(), errors={topology.name: _without_slas(file, topology.name)})
    specs: list[SlaSpec] = []
    errors: dict[str, InvalidSpec] = {}
    sets = sets_in(file, tables) if topology.is_watch else {}
    errors |= {name: mistake for name, mistake in sets.items() if isinstance(mistake, InvalidSpec)}
    windows: list[MaintenanceWindow] = []
    of_all, of_topology = (
        _settings(file, "", content, (MAINTENANCE,)),
        _settings(file, topology.name, tables, OF_TOPOLOGIES),
    )
    for settings in (of_all, of_topology):
        errors |= {mistake.key: mistake for mistake in settings.mistakes}
        with suppress(MistakenKey):
            times = settings[MAINTENANCE]
            windows += times or ()
    for name, table in _promised_in(tables, topology).items():
        if (mistaken := _mistaken_set(table, sets)) is not None:
            errors[name] = mistaken
            continue
        read, mistakes = _read_specs(file, name, table, topology, calendars)
        if mistakes:
            errors[name] = InvalidSpec("\n".join(map(str, mistakes)))
        specs += (replace(spec, maintenance_windows=(*windows, *spec.maintenance_windows)) for spec in read)
    counts = Counter(spec.name for spec in specs)
    for name in list(names_in(spec for spec in specs if not spec.compliance)):
        if counts[name] > 1:
            problem, remedy = "is also the name of a window of an objective", "use another name"
            errors[name] = InvalidSpec.at(file, f"{topology.name}.{name}", problem, remedy)
    return Slas(specs=tuple(spec for spec in specs if spec.name not in errors), errors=errors)


def _mistaken_set(table: Any, sets: Mapping[str, WatchedSet | InvalidSpec]) -> InvalidSpec | None:
    """Returns what is wrong with the set whose table an SLA is about; None: nothing, or there is no such set."""
    subject = table.get(SUBJECT.name) if isinstance(table, dict) else None
    found = sets.get(set_of(subject)) if isinstance(subject, str) else None
    return found if isinstance(found, InvalidSpec) else None


def _settings(file: str, at: str, table: Mapping[str, Any], keys: Sequence[Key[Any]]) -> Values:
    """Reads *keys* of a *table* that has tables beside them, whose names may be the same."""
    settings = Values(file, at)
    for key in keys:
        if _is_setting(key.name, table.get(key.name, {}), keys):
            settings.read([key], table[key.name])
        else:
            settings.read_default(key, key.example)
    return settings


def _is_setting(name: str, value: Any, settings: Sequence[Key[Any]]) -> bool:
    """Returns True for one of *settings*; a table is none."""
    return name in names_in(settings) and not isinstance(value, dict)


def _measure_of(table: Any) -> str | None:
    measure = table.get(MEASURE.name) if isinstance(table, dict) else None
    return measure if isinstance(measure, str) else None


def _is_about_operators(mistake: InvalidSpec, table: Any) -> bool:
    """Returns True if *mistake* in the *table* of an SLA may be none with other operators."""
    key = mistake.key.rpartition(".")[2]
    return key in names_in((SUBJECT, BY, PLACE)) or (key == MEASURE.name and _measure_of(table) in MEASURES)


def _read_specs(
    file: str, name: str, table: Any, topology: Topology, calendars: Calendars
) -> tuple[tuple[SlaSpec, ...], list[InvalidSpec]]:
    """Reads the SLAs of a *table*: those of its objective, or one.

    Of a table with mistakes it returns these alone, and of one whose only mistakes are in a calendar those of the
    calendar.
    """
    at = f"{topology.name}.{name}"
    if not isinstance(table, dict):
        remedy = f"write a table [{at}]"
        if isinstance(table, list):
            remedy = f"maintenance of all SLAs of a topology has the key {MAINTENANCE.name}"
        return (), [InvalidSpec.at(file, at, "is not a table of an SLA", remedy)]
    is_reserved = name in {CHECKS, DECISION}
    if not IDENTIFIER.fullmatch(name) or is_reserved:
        problem = "is reserved for Tidemark" if is_reserved else "is not a valid SLA name"
        return (), [InvalidSpec.at(file, at, problem, "use another name: lower-case letters, digits and _")]
    values = form().read(file, at, table, examples=_nearer(table, topology))
    values.judge(
        partial(_refuse_streams_keys, topology=topology),
        _refuse_groups,
        partial(_refuse_measure, topology=topology),
        partial(_refuse_subject, topology=topology),
        partial(_refuse_place, topology=topology),
        _refuse_excuse,
        _refuse_unseen_groups,
        partial(_refuse_unknown_calendars, calendars=calendars),
        partial(_refuse_limits_beyond_exempt_days, calendars=calendars),
    )
    if values.kind is OBJECTIVES:
        values.judge(_refuse_long_name, partial(_refuse_lost_rollups, topology=topology))
    elif isinstance(values.kind, MeasureKind):
        values.judge(values.kind.measure.limits.thresholds)
    if values.mistakes:
        return (), values.mistakes
    if of_calendars := [calendars.mistakes[each] for each in values.get(EXCEPT, ()) if each in calendars.mistakes]:
        return (), of_calendars[:1]
    exempt = _exempt(values, calendars)
    read = _objective(values, name) if values.kind is OBJECTIVES else (_spec(values, name, topology),)
    return tuple(replace(spec, exempt=exempt) for spec in read), []


def _exempt(values: Values, calendars: Calendars) -> tuple[ExemptDays, ...]:
    """Returns the calendars without mistakes in which nothing is promised."""
    return tuple(calendars.usable[name] for name in values.get(EXCEPT, ()) if name in calendars.usable)


def _refuse_unknown_calendars(values: Values, calendars: Calendars) -> None:
    """Refuses an exception by a calendar that the file does not have."""
    known = {*calendars.usable, *calendars.mistakes}
    for name in outside(values.get(EXCEPT, ()), known):
        remedy = suggestion_of(name, known, "calendars") if known else f"write a table [{CALENDARS}.{name}]"
        values.fail(EXCEPT, f"has {name!r}, which is no calendar", remedy)


def _refuse_limits_beyond_exempt_days(values: Values, calendars: Calendars) -> None:
    """Refuses a limit that is never reached, since ages count anew after each exempt day."""
    longest_days = longest_between_days(_exempt(values, calendars))
    if longest_days == 0:
        values.fail(EXCEPT, "exempts every day, so that nothing is ever judged", "leave a calendar out")
    if longest_days is None or values.kind is OBJECTIVES:
        return
    measure, lengths_ms = _measure(values), dict[Key[Any], int]()
    if measure in (STALENESS, WATERMARK_LAG):
        limits = ((key, values[key]) for key in (WARN_AFTER, ERROR_AFTER))
        lengths_ms = {key: length_ms for key, length_ms in limits if length_ms is not None}
    elif measure is RECORDS:
        lengths_ms = {OVER: _over_ms(values)}
    longest_ms = longest_days * DAY_MS
    for key, length_ms in lengths_ms.items():
        if length_ms >= longest_ms:
            between = f"but at most {for_people(longest_ms)} lie between the days that {EXCEPT.name} leaves out"
            problem = f"is {for_people(length_ms)}, {between}: it counts anew after each, and never breaks"
            values.fail(key, problem, f"write a length below {for_people(longest_ms)}")


def _nearer(table: Mapping[str, Any], topology: Topology) -> dict[str, str]:
    """Returns a better example of the subject of a *table*: one that *topology* has."""
    if topology.is_watch:
        return {SUBJECT.name: f'"{next(iter(names_in(topology.watched)), "silver")}.orders"'}
    kind = form().kind_of(table)
    subjects = (kind.measure if isinstance(kind, MeasureKind) else STALENESS).subjects(topology)
    return {SUBJECT.name: f'"{subjects[0]}"'} if subjects else {}


def _measure(values: Values) -> Measure:
    """Returns what is measured.

    Raises MistakenKey where a mistake leaves that open.
    """
    if not isinstance(values.kind, MeasureKind):
        raise MistakenKey(MEASURE.name)
    return values.kind.measure


def _groups(values: Values) -> tuple[str, ...]:
    """Returns the columns whose groups are judged."""
    by = None if values.kind is OBJECTIVES else values[BY]
    return by or ()


def _spec(values: Values, name: str, topology: Topology) -> SlaSpec:
    measure = _measure(values)
    return SlaSpec(
        name=name,
        subject=values[SUBJECT],
        place=_place(values, topology),
        measure=measure,
        by=_groups(values),
        limits=measure.limits.thresholds(values),
        over_ms=_over_ms(values),
        severity=values[SEVERITY],
        **_of_any(values),
    )


def _of_any(values: Values) -> dict[str, Any]:
    """Returns the fields that SLAs of limits and of objectives share."""
    hours = values[HOURS]
    return {
        "owner": values[OWNER],
        "ignore_when_idle": values[IGNORE_WHEN_IDLE],
        "while_catching_up": values[WHILE_CATCHING_UP],
        "runbook": values[RUNBOOK],
        "damping": Damping(open_after_ms=values[OPEN_AFTER], resolve_after_ms=values[RESOLVE_AFTER]),
        "maintenance_windows": values[MAINTENANCE_WINDOWS] or (),
        "calendar": None if hours is None else weekly_hours(hours),
    }


def _objective(values: Values, name: str) -> tuple[SlaSpec, ...]:
    """Returns the SLAs of an objective: a burn rate for each window."""
    promised = _promised(values)
    objective = Objective(threshold_ms=promised[LATENCY], target=promised[PROMISED_TARGET])
    shared = {"subject": values[SUBJECT], "measure": _measure(values), **_of_any(values)}
    return tuple(
        SlaSpec(
            name=_window_name(name, window),
            limits=BurnRate(
                objective=objective,
                warn_at=window.rate,
                error_at=window.rate,
                min_records=promised[LEAST_RECORDS],
            ),
            over_ms=window.over_ms,
            severity=window.severity,
            compliance=Compliance(name=name, window_ms=promised[WINDOW]),
            **shared,
        )
        for window in BURN_WINDOWS
    )


def _promised(values: Values) -> Values:
    """Returns the table of an objective."""
    promised = values[OBJECTIVE]
    assert promised is not None  # only tables that have one are objectives
    return promised


def _refuse_long_name(values: Values) -> None:
    """Refuses a name to which those of windows cannot be added."""
    longest = max((_window_name("", window) for window in BURN_WINDOWS), key=len)
    name = values.at.rpartition(".")[2]
    if not IDENTIFIER.fullmatch(name + longest):
        remedy = f"shorten it by {len(longest)} letters"
        raise InvalidSpec.at(values.file, values.at, "is too long for an objective", remedy)


def _refuse_lost_rollups(values: Values, topology: Topology) -> None:
    """Refuses a window whose records cannot be counted to its end."""
    if topology.is_watch:  # what is known of a watched table is up to its log
        return
    promised = _promised(values)
    kept_ms, window_ms = topology.retention.reports_ms, promised[WINDOW]
    if kept_ms is not None and kept_ms < window_ms:
        problem = f"is {for_people(window_ms)}, but {topology.name} keeps rollups for {for_people(kept_ms)}"
        promised.fail(WINDOW, problem, "raise retention.reports of the topology, or write a shorter window")


def _window_name(name: str, window: BurnWindow) -> str:
    """Returns the name of the SLA of *window*, such as `in_time_1h`."""
    return f"{name}_{length_in_toml(window.over_ms).replace(' ', '')}"


def _refuse_unseen_groups(values: Values) -> None:
    """Refuses an `over` that ends before a group is stale."""
    if not _groups(values) or _measure(values) is not STALENESS:
        return
    over_ms, longest_ms = _over_ms(values), max(present((values[WARN_AFTER], values[ERROR_AFTER])), default=0)
    if over_ms <= longest_ms:
        problem = f"is {for_people(over_ms)}, after which an unseen group counts no more"
        remedy = f"write a longer time than the limit of {for_people(longest_ms)}"
        values.fail(OVER, problem, remedy)


def _over_ms(values: Values) -> int:
    """Returns the time before the check that is measured."""
    measure = _measure(values)
    if measure.fixed_over_ms is not None:
        return measure.fixed_over_ms
    return values[OVER] or (GROUPS_OVER_MS if _groups(values) else measure.usual_over_ms)


def _may_have_any_subject(measure: Measure, topology: Topology) -> bool:
    """Returns True if nothing was recorded yet, so that any query may come."""
    return measure.any_operator and not topology.outside_sources


OF_STREAMS = (BY, PLACE, IGNORE_WHEN_IDLE, WHILE_CATCHING_UP)
"""Keys of SLAs about streams."""


def _refuse_streams_keys(values: Values, topology: Topology) -> None:
    """Refuses what is about streams in an SLA of a watched table, of which only commits are known."""
    written = [key for key in OF_STREAMS if values.has(key)] if topology.is_watch else []
    if written:
        problem = "is set, but of a watched table only commits are known, and no streams"
        values.fail(written[0], problem, "leave it out")


def _refuse_measure(values: Values, topology: Topology) -> None:
    """Refuses a measure that nothing in *topology* has."""
    measure = _measure(values)
    if topology.is_watch:
        if measure.of_watched is None:
            of_watched = ", ".join(name for name, each in MEASURES.items() if each.of_watched)
            values.fail(MEASURE, f"is {measure.name!r}, which watched tables do not have", f"measure {of_watched}")
        watched_set = next((each for each in topology.watched if each.name == set_of(values[SUBJECT])), None)
        if measure.is_of_rows and watched_set is not None and not watched_set.is_exact:
            key, value = (OBJECTIVE, "set") if values.kind is OBJECTIVES else (MEASURE, repr(measure.name))
            problem = f"is {value}, which needs the event time of each row, and the log has only the bounds of files"
            values.fail(key, problem, f"write {EXACT.name} = true in [{WATCH}.{watched_set.name}]")
        return
    if not measure.subjects(topology) and not _may_have_any_subject(measure, topology):
        problem, remedy = measure.without_subjects
        values.fail(MEASURE, f"is {measure.name!r}, but {problem}", remedy)


def _refuse_subject(values: Values, topology: Topology) -> None:
    """Refuses a subject that the measure does not have; of an unknown measure, one that none has."""
    subject = values[SUBJECT]
    if topology.is_watch:
        _refuse_unwatched(values, topology)
        return
    if values.kind is None:
        of_any = {each for measure in MEASURES.values() for each in measure.subjects(topology)}
        if topology.outside_sources and subject not in of_any:
            values.fail(SUBJECT, f"is {subject!r}, which has no measure", suggestion_of(subject, of_any, "subjects"))
        return
    measure = _measure(values)
    if by := _groups(values):
        _refuse_ungrouped(values, topology, by)
        return
    allowed = measure.subjects(topology)
    if allowed and subject not in allowed and not _may_have_any_subject(measure, topology):
        values.fail(SUBJECT, f"is {subject!r}, which has no {measure}", f"use one of {', '.join(allowed)}")


def _refuse_unwatched(values: Values, topology: Topology) -> None:
    """Refuses a subject that is no table of a set. Whether the table exists is not in the file."""
    subject, sets = values[SUBJECT], names_in(topology.watched)
    if not sets:
        remedy = f'write [{WATCH}.silver] with tables = ["s3://lake/silver"], and subject = "silver.orders"'
        values.fail(SUBJECT, f"is {subject!r}, but no set of tables is watched", remedy)
    if set_of(subject) not in sets or not table_of(subject):
        names = ", ".join(sets)
        remedy = f'write SET.TABLE, such as "{next(iter(sets))}.orders"; sets: {names}'
        values.fail(SUBJECT, f"is {subject!r}, which is no table of a set", remedy)


def _refuse_groups(values: Values) -> None:
    """Refuses groups where a measure has none."""
    measure = _measure(values)
    if _groups(values) and measure is not STALENESS:
        remedy = 'leave it out, or measure = "staleness"'
        values.fail(BY, f"is set, but {measure} is not measured by groups", remedy)


def _refuse_ungrouped(values: Values, topology: Topology, by: Collection[str]) -> None:
    """Refuses a subject without groups *by* these columns."""
    if _measure(values) is not STALENESS:
        return
    grouped = {name: o.groups for name, o in topology.operators.items() if o.groups}
    subject = values[SUBJECT]
    if subject not in grouped:
        by_columns = ", ".join(f"{name} (by {', '.join(columns)})" for name, columns in grouped.items())
        values.fail(SUBJECT, f"is {subject!r}, which has no groups", f"with `by`, use one of {by_columns}")
    if outside(by, grouped[subject]):
        remedy = f"use columns of the key of {subject}: {', '.join(grouped[subject])}"
        values.fail(BY, f"is {[*by]}", remedy)


def _refuse_excuse(values: Values) -> None:
    """Refuses to excuse what is not late while a stream catches up."""
    chosen, measure = values[WHILE_CATCHING_UP], _measure(values)
    if chosen is WhileCatchingUp.EXCUSE and not measure.is_excusable:
        problem = f"is {chosen.value!r}, but {measure} is not late while a stream catches up"
        remedy = f"leave it out, or measure {', '.join(name for name, each in MEASURES.items() if each.is_excusable)}"
        values.fail(WHILE_CATCHING_UP, problem, remedy)


def _refuse_place(values: Values, topology: Topology) -> None:
    """Refuses a place of what is not in the table of a sink."""
    if values.kind is OBJECTIVES or values[PLACE] is ResultPlace.VIEW:
        return
    measure, subject = _measure(values), values[SUBJECT]
    is_measured = measure is STALENESS or measure.is_latency
    if not is_measured or not _sinks(measure, subject, topology):
        problem = f"is {values[PLACE].value!r}, but {measure} of {subject!r} is not measured in a sink's table"
        values.fail(PLACE, problem, "leave it out, or measure staleness or a latency of a sink with a table")


def _sinks(measure: Measure, subject: str, topology: Topology) -> list[Operator]:
    """Returns the sinks with a table that the *subject* of *measure* is."""
    tables = [o for o in topology.operators.values() if o.result_table]
    return [o for o in tables if subject == (o.result_table if measure is STALENESS else o.name)]


def _place(values: Values, topology: Topology) -> ResultPlace:
    """Returns where readers of the subject look."""
    # Both places of an append-only table are the same.
    sinks = _sinks(_measure(values), values[SUBJECT], topology)
    return values[PLACE] if any(not sink.appends_each_record for sink in sinks) else ResultPlace.VIEW
