"""Judges the SLAs of a topology every few seconds, and makes a check when a verdict changes.

How it works: a *look* judges all SLAs by facts that are kept from look to look. They are measured again when a driver
or a report has written something, or a driver has stopped; without news a look only compares instants with the clock.
So a look also finds when an age will reach its limit, and the next look is at that instant. What is counted over an
interval changes without news, too, as results leave the interval, and is measured again after INTERVALS_ANEW_MS.
Critical paths, by which an operator's own work is judged, are found for the newest windows, and stored only by checks.

Rows that break a contract are counted by checks, and by looks every CONTRACTS_ANEW_MS if an SLA promises that there
are none: to count costs as much as to measure everything else. Suites of great-expectations confirm what was found.

A *check* measures, judges, explains and stores what it has found, with the changes of incidents and alerts that follow.
A look makes one when a verdict has changed, when an incident is due to open or to be resolved, and otherwise every
`check_every`. So `sla_results` has regular checks, and what a look finds is never told to anyone before a check found
the same. A check does not import great-expectations: what its suites judge waits in `unjudged`.

Whoever looks asks Airflow for a run only where a look returns why. The question is asked again with each check for as
long as a channel has something to deliver, so one that got lost is only late.
"""

from __future__ import annotations

import logging
import os
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import polars as pl

from tidemark.clock import Clock
from tidemark.control.liveness import liveness_of
from tidemark.facts.answers import Row
from tidemark.facts.checks import newest_check
from tidemark.facts.fact_tables import Stored
from tidemark.facts.report_rows import lies_in, report_rows
from tidemark.model.measures.contract import CONTRACT, CONTRACTS_OVER_MS
from tidemark.model.measures.registry import Need
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval, utc
from tidemark.model.settings.retention import DAY_MS
from tidemark.model.sla_events import SlaResult
from tidemark.model.slas.channel_spec import Channel
from tidemark.model.slas.sla_spec import SlaSpec
from tidemark.model.tables.catalog import CRITICAL_PATHS, EXPECTATION_RESULTS, LATENCY_ROLLUP
from tidemark.model.topology import Topology
from tidemark.reports.batch_job import report_lock
from tidemark.semantics.incidents import BROKEN
from tidemark.semantics.sla import Verdict
from tidemark.sla.check_steps import (
    CheckTime,
    JudgedTables,
    Measured,
    check_time,
    explain,
    judge,
    measure,
    notify,
    record,
    since_the_check_before,
    stored_expectations,
)
from tidemark.sla.contracts.counts import ContractCounts, judge_contracts
from tidemark.sla.contracts.periods import judged_before, standing_results
from tidemark.sla.contracts.verdicts import standing_contracts, verdicts_by_limits
from tidemark.sla.incidents.explaining import explainer
from tidemark.sla.incidents.tables import open_slas, pending_changes
from tidemark.sla.measures.progress import wait_for_facts
from tidemark.sla.measures.status import Status
from tidemark.sla.unjudged import found_rows, keep
from tidemark.sla.watched import news_of_watched
from tidemark.storage.object_path import ObjectPath
from tidemark.stream.journal.layout import journal_of

log = logging.getLogger(__name__)
INTERVALS_ANEW_MS = 30_000
"""Longest age of facts that are counted over an interval."""
CONTRACTS_ANEW_MS = 30_000
"""Shortest length from one count of rows that break contracts to the next."""
BEHIND_AGAIN_MS = 60_000
"""A check that lacked facts is made again after this length."""
OBJECTS_EVERY_MS = 60_000
"""In an object store drivers write facts once a minute, and each look at a log is a request."""
READ_REPORTS = (LATENCY_ROLLUP.name, CRITICAL_PATHS.name, EXPECTATION_RESULTS.name)
"""The reports whose rows SLAs are judged by."""
HOUR_MS = 3_600_000
STEP_MS = 250
"""The instant at which a verdict will change is found to this length."""
News = tuple[object, ...]


class Why(StrEnum):
    """Why Airflow has to run."""

    VERDICT = "a verdict changed"
    DELIVERY = "a channel has something to deliver"
    CONTRACT = "suites do not know yet that rows break a contract"


@dataclass(frozen=True, kw_only=True)
class Promised:
    """What a topology promises.

    Attributes:
        topology: the topology that promises the SLAs.
        specs: the SLAs that can be judged.
        unusable: names of the SLAs that cannot be judged.
        channels: the channels that get its alerts.
        project: the folder of the topologies that may read its topics.
    """

    topology: Topology
    specs: Sequence[SlaSpec]
    unusable: Collection[str]
    channels: Sequence[Channel]
    project: Path | None


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a look led to.

    Attributes:
        run_id: the run of the check that was made; None if no check was needed.
        at_ms: the instant of that check, or without a check the instant of the look, epoch ms.
        why: the reasons why Airflow has to run; empty if it need not.
        again_ms: when another look will find something if nothing is written until then, epoch ms; None: not soon.
    """

    run_id: str | None
    at_ms: int
    why: frozenset[Why] = frozenset()
    again_ms: int | None = None


@dataclass(frozen=True, kw_only=True)
class _LastCheck:
    """What the newest check found.

    Attributes:
        at_ms: the instant of the check, epoch ms.
        verdicts: the verdicts that it stored, by SLA.
        seen: the verdicts that a look gives by the same facts; a look does not know whether facts are behind.
        due_ms: when another check is needed even if no verdict changes, epoch ms; None if no such instant is known.
    """

    at_ms: int
    verdicts: Mapping[str, Verdict]
    seen: Mapping[str, Verdict]
    due_ms: int | None = None


@dataclass(frozen=True, kw_only=True)
class _Counted:
    """The newest count of rows that break contracts.

    Attributes:
        at_ms: when they were counted, epoch ms.
        news: what was written until then.
        by_contract: the counts of each table, of the rows that suites had not judged yet.
    """

    at_ms: int
    news: News
    by_contract: Sequence[ContractCounts]

    @cached_property
    def verdicts(self) -> list[dict[str, Any]]:
        """A row of `expectation_results` for each table and expectation."""
        return verdicts_by_limits(self.by_contract, at_ms=self.at_ms)

    @property
    def unreadable(self) -> frozenset[Path]:
        """The tables that cannot be read."""
        return frozenset(each.path for each in self.by_contract if not each.is_readable)


class SlaWatch:
    """Looks at the SLAs of one topology.

    Args:
        layout: paths of the warehouse.
        promised: returns what the topology promises; it is called before each check.
        clock: returns the present, epoch ms.
        sleep_s: sleeps for so many seconds.
    """

    def __init__(
        self,
        layout: Layout,
        promised: Callable[[], Promised],
        *,
        clock: Clock,
        sleep_s: Callable[[float], None] = time.sleep,
    ) -> None:
        self._layout, self._ask_promised, self._clock, self._sleep_s = layout, promised, clock, sleep_s
        self._promised = promised()
        self._last: _LastCheck | None = None
        self._since_ms: dict[str, int] = {}
        """Since when an SLA is broken, or is not, by checks of this process."""
        self._counted: _Counted | None = None
        self._measured: list[Measured] = []
        """All facts since there was news, and if they are old, newer ones of the SLAs over intervals."""
        self._news: News = ()
        self._paths: dict[str, pl.DataFrame] = {}
        """Rows about critical paths that are newer than the stored ones, by table."""
        self._is_new, self._must_check = True, False
        self.measured_n = 0
        """How often facts were measured."""

    def changed(self) -> None:
        """Has the next look make a check, by what the files of the project say then."""
        self._must_check = True

    @property
    def check_every_ms(self) -> int:
        """Length from one regular check to the next."""
        return self._promised.topology.check_every_ms

    @property
    def checked_ms(self) -> int:
        """The instant of the newest check, epoch ms; 0 if none is known."""
        return self._last.at_ms if self._last else 0

    def look(self, *, is_turn: bool = True, ahead_ms: int = 0) -> Found:
        """Judges all SLAs, and makes a check if one is due.

        Args:
            is_turn: False postpones a regular check, by half of `check_every` at most.
            ahead_ms: for so long ahead it is found when the next look has to be.

        Raises:
            Exception: any error of a check, whose tables cannot be read or written now.
        """
        at_ms = self._clock()
        is_first, self._is_new = self._is_new, False
        try:
            is_due = self._is_due(at_ms, is_turn=is_turn)
        except Exception:
            # A check leaves out the table that cannot be read.
            log.warning("%s: a look at its SLAs failed", self._promised.topology.name, exc_info=True)
            is_due = True
        if is_due:
            found = self._check()
        else:
            # Nobody knows what became of the questions of an earlier process.
            why = {Why.DELIVERY} if is_first and self._has_pending() else ()
            found = Found(run_id=None, at_ms=at_ms, why=frozenset(why))
        return replace(found, again_ms=self._changes_ms(found.at_ms, ahead_ms))

    def _changes_ms(self, at_ms: int, ahead_ms: int) -> int | None:
        """Returns when the clock alone changes a verdict or makes an incident due; None if it does not do so soon.

        For example an age reaches its limit, a deadline passes, or a maintenance window ends. "Soon" is the time of
        *ahead_ms* that follows *at_ms*.
        """
        last = self._last
        if last is None or not self._measured:
            return None
        instants_ms = range(at_ms + STEP_MS, at_ms + ahead_ms + 1, STEP_MS)
        if not instants_ms:
            return None

        def is_as_last(at_ms: int) -> bool:
            return self._judged_at(at_ms) == last.seen

        due_ms = [] if last.due_ms is None else [last.due_ms]
        # A verdict that changes twice in this time is left to the next look.
        if not is_as_last(instants_ms[-1]):
            due_ms.append(instants_ms[bisect_left(instants_ms, 1, key=lambda ms: not is_as_last(ms))])
        return min((ms for ms in due_ms if at_ms < ms <= instants_ms[-1]), default=None)

    def _is_due(self, at_ms: int, *, is_turn: bool) -> bool:
        last = self._last = self._last or self._check_of_others(at_ms)
        if last is None or self._must_check:
            return True
        every_ms = self.check_every_ms
        if at_ms - last.at_ms >= (every_ms if is_turn else every_ms * 3 // 2):
            return True
        if last.due_ms is not None and last.due_ms <= at_ms:
            return True
        return self._seen_at(at_ms) != last.seen

    def _seen_at(self, at_ms: int) -> dict[str, Verdict]:
        """Returns the verdicts of all SLAs at *at_ms*, by facts that are measured again where they may differ."""
        topology, specs = self._promised.topology, self._promised.specs
        news = self._news_at(at_ms)
        self._count_if_promised(news, at_ms)
        if not self._measured or news != self._news:
            needs_accounts = any(Need.ACCOUNTS in spec.measure.needs for spec in specs)
            self._paths = _paths_now(self._layout, topology, specs, at_ms)
            self._measured = [self._measure(specs, self._look_at(at_ms), with_accounts=needs_accounts)]
            self._news = news
        newest_ms = self._measured[-1].time.at_ms
        over_intervals = [spec for spec in specs if spec.measure.changes_without_news or spec.by]
        if over_intervals and at_ms - newest_ms >= INTERVALS_ANEW_MS:
            anew = self._measure(over_intervals, self._look_at(at_ms), with_accounts=False)
            self._measured = [self._measured[0], anew]
        return self._judged_at(at_ms)

    def _judged_at(self, at_ms: int) -> dict[str, Verdict]:
        """Returns the verdicts of all SLAs at *at_ms* by what is measured."""
        seen: dict[str, Verdict] = {}
        for measured in self._measured:
            seen |= _verdicts(measured.status_at(at_ms))
        return seen

    def _news_at(self, at_ms: int) -> News:
        """Returns what differs from look to look if facts may differ at *at_ms*."""
        topology = self._promised.topology
        of_tables = news_of_watched(topology, self._promised.specs, at_ms) if topology.is_watch else ()
        return (*news_of(self._layout, topology, at_ms), *of_tables)

    def _look_at(self, at_ms: int) -> CheckTime:
        before_ms = self._last.at_ms if self._last else None
        return CheckTime(at_ms=at_ms, run_id="", is_past=False, before_ms=before_ms)

    def _measure(self, specs: Sequence[SlaSpec], moment: CheckTime, *, with_accounts: bool = True) -> Measured:
        self.measured_n += 1
        unreadable = frozenset[Path]() if self._counted is None else self._counted.unreadable
        judged = JudgedTables(contracts=self._standing(moment.at_ms), readable=_AllBut(unreadable))
        topology = self._promised.topology
        return measure(self._layout, topology, specs, moment, judged, with_accounts=with_accounts, paths=self._paths)

    def _standing(self, at_ms: int) -> list[Row]:
        """Returns what is known of contracts: what the newest suites found, and what was counted since."""
        stored, counted = stored_expectations(self._layout, self._promised.topology), self._counted
        if counted is None or counted.at_ms <= at_ms - CONTRACTS_OVER_MS:
            return _standing_by_suites(stored)
        return standing_contracts(counted.verdicts, counted.by_contract, stored, at_ms=at_ms)

    def _check(self) -> Found:
        """Makes a check, and returns it with the reasons why Airflow has to run."""
        self._promised = promised = self._ask_promised()
        self._must_check = False
        topology, layout = promised.topology, self._layout
        with report_lock(layout, topology.name):
            at_ms = self._clock()
            run_id = f"check__{at_ms}"
            behind = wait_for_facts(layout, topology, at_ms=at_ms, clock=self._clock, sleep_s=self._sleep_s)
            if any(Need.PATHS in spec.measure.needs for spec in promised.specs):
                _find_paths(layout, topology, promised.specs, at_ms)
            self._paths = {}
            moment = check_time(layout, topology.name, at_ms=at_ms, run_id=run_id)
            news = self._news_at(at_ms)
            self._count_contracts(moment, news)
            measured = self._measure(promised.specs, moment)
            found = judge(measured, behind)
            results = explain(measured, found, explainer(topology, layout, measured.tables.stored, at_ms=at_ms))
            record(measured, results)
            if not measured.time.is_past:
                keep(layout, topology.name, found_rows(measured, found, results))
            notify(measured, made_ms=self._clock(), unusable=promised.unusable, project=promised.project)
        self._measured, self._news = [measured], news
        before = self._verdicts_before(at_ms)
        self._last = self._remember(found, results, measured, is_behind=bool(behind))
        why = {Why.CONTRACT} if self._suites_have_to_confirm() else set()
        if _told(before) != _told(self._last.verdicts):
            why.add(Why.VERDICT)
        if self._has_pending():
            why.add(Why.DELIVERY)
        return Found(run_id=run_id, at_ms=at_ms, why=frozenset(why))

    def _count_if_promised(self, news: News, at_ms: int) -> None:
        """Counts the rows that break contracts again, if an SLA is about them, there is news, and the count is old."""
        is_promised = any(spec.measure is CONTRACT for spec in self._promised.specs)
        counted = self._counted
        is_old = counted is None or (counted.news != news and at_ms - counted.at_ms >= CONTRACTS_ANEW_MS)
        if is_promised and is_old:
            self._count_contracts(self._look_at(at_ms), news)
            self._measured = []

    def _count_contracts(self, moment: CheckTime, news: News) -> None:
        """Counts the rows that break contracts, of those that suites have not judged yet."""
        topology = self._promised.topology
        before = judged_before(stored_expectations(self._layout, topology))
        by_contract = judge_contracts(self._layout, topology, since_the_check_before(moment), before)
        self._counted = _Counted(at_ms=moment.at_ms, news=news, by_contract=by_contract)

    def _suites_have_to_confirm(self) -> bool:
        """Returns True if suites have not found yet what the newest count found broken."""
        if self._counted is None:
            return False
        by_suites = _standing_by_suites(stored_expectations(self._layout, self._promised.topology))
        return not _broken_parts(self._counted.verdicts) <= _broken_parts(by_suites)

    def _has_pending(self) -> bool:
        """Returns True if a channel has something to deliver."""
        layout, name, now_ms = self._layout, self._promised.topology.name, self._clock()
        return any(pending_changes(layout, name, channel, now_ms=now_ms) for channel in self._promised.channels)

    def _check_of_others(self, at_ms: int) -> _LastCheck | None:
        """Returns the newest stored check, which another process made, or None if this process has to check first.

        It has to if a promise is broken or an incident is open, because it does not know since when.
        """
        name = self._promised.topology.name
        check = newest_check(Stored(), self._layout, name, columns=("sla", "verdict"))
        if check is None or check.at_ms > at_ms or open_slas(self._layout, name):
            return None
        verdicts = {row["sla"]: Verdict(row["verdict"]) for row in check.rows}
        return None if _told(verdicts) else _LastCheck(at_ms=check.at_ms, verdicts=verdicts, seen=verdicts)

    def _verdicts_before(self, at_ms: int) -> Mapping[str, Verdict]:
        """Returns the verdicts of the check before *at_ms*, which another process may have made."""
        if self._last is not None:
            return self._last.verdicts
        name, is_before = self._promised.topology.name, pl.col("checked_at") < utc(at_ms)
        check = newest_check(Stored(), self._layout, name, is_before, columns=("sla", "verdict"))
        return {} if check is None else {row["sla"]: Verdict(row["verdict"]) for row in check.rows}

    def _remember(
        self, found: Sequence[Status], results: Sequence[SlaResult], measured: Measured, *, is_behind: bool
    ) -> _LastCheck:
        at_ms, verdicts = measured.time.at_ms, _verdicts(found)
        before = self._last.verdicts if self._last else {}
        for name, verdict in verdicts.items():
            was_broken = before.get(name) in BROKEN
            if name not in self._since_ms or was_broken != (verdict in BROKEN):
                self._since_ms[name] = at_ms
        open_incidents = {*open_slas(self._layout, self._promised.topology.name).values()}
        due = [*self._due(found, results, open_incidents, at_ms)]
        # No news may say that facts are not behind any more.
        due += [at_ms + BEHIND_AGAIN_MS] if is_behind else []
        seen = _verdicts(measured.status_at(at_ms))
        return _LastCheck(at_ms=at_ms, verdicts=verdicts, seen=seen, due_ms=min(due, default=None))

    def _due(
        self, found: Sequence[Status], results: Sequence[SlaResult], open_incidents: Collection[str], at_ms: int
    ) -> Iterator[int]:
        """Yields when incidents are due to open or to be resolved after *at_ms*, if nothing changes until then."""
        for status, result in zip(found, results, strict=True):
            damping, is_open = status.spec.damping, status.spec.name in open_incidents
            since_ms = self._since_ms[status.spec.name]
            if result.excluded_because is not None:
                continue
            if status.verdict in BROKEN and not is_open:
                crossed_ms = since_ms if status.crossed_ms is None else min(since_ms, status.crossed_ms)
                yield max(crossed_ms + damping.open_after_ms, at_ms + 1)
            if status.verdict is Verdict.PASS and is_open:
                yield max(since_ms + damping.resolve_after_ms, at_ms + 1)


class _AllBut(Container[Path]):
    """All places but some."""

    def __init__(self, some: frozenset[Path]) -> None:
        self._some = some

    def __contains__(self, path: object) -> bool:
        return path not in self._some


def news_of(layout: Layout, topology: Topology, at_ms: int) -> News:
    """Returns what differs from look to look if the facts of *topology* may differ at *at_ms*, epoch ms.

    That is when something was written into a log or a journal, and the liveness of each driver, which changes with
    silence. In an object store it is the minute.
    """
    liveness: list[object] = []
    for sub in topology.sub_topologies:
        liveness.append(liveness_of(layout.control(topology.name, sub.name), at_ms))
    if isinstance(layout.warehouse, ObjectPath):
        return (at_ms // OBJECTS_EVERY_MS, *liveness)
    written: list[object] = []
    for sub in topology.sub_topologies:
        home = layout.stream(topology.name, sub.name)
        written.append(_written_at(journal_of(home)))
        written += [(path, _written_at(Path(path) / "_delta_log")) for path in _folders(home)]
    written += [_written_at(layout.report_table(topology.name, name) / "_delta_log") for name in READ_REPORTS]
    return (*written, *liveness)


def _written_at(folder: Path) -> int | None:
    """Returns when a file was made in *folder*, or removed, in ns; None: there is no such folder."""
    try:
        return folder.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def _folders(home: Path) -> list[str]:
    try:
        with os.scandir(home) as entries:
            return sorted(entry.path for entry in entries)
    except FileNotFoundError:
        return []


def _verdicts(found: Sequence[Status]) -> dict[str, Verdict]:
    return {status.spec.name: status.verdict for status in found}


def _standing_by_suites(stored: Sequence[Row]) -> list[Row]:
    """Returns what the newest suites found of contracts, of the *stored* rows; it stands until the next ones."""
    judged = judged_before(stored)
    newest_ms = max((each.at_ms for each in judged.values()), default=0)
    return [*standing_results((), stored, judged, since_ms=newest_ms - CONTRACTS_OVER_MS)]


def _broken_parts(found: Sequence[Row]) -> set[tuple[str | None, str, str]]:
    """Returns the parts of contracts that are broken: sub-topology, table, and the count that is not 0."""
    return {(row["sub_topology"], row["table"], row["column"]) for row in found if not row["success"]}


def _told(verdicts: Mapping[str, Verdict]) -> dict[str, Verdict]:
    """Returns the verdicts that break a promise: only these, and their end, are worth a run of Airflow."""
    return {name: verdict for name, verdict in verdicts.items() if verdict in BROKEN}


def _paths_now(layout: Layout, topology: Topology, specs: Sequence[SlaSpec], at_ms: int) -> dict[str, pl.DataFrame]:
    """Returns the rows about critical paths that SLAs are judged by, by table: none if no SLA needs them.

    Paths of windows that ended in the hour before *at_ms* are found now. Those of earlier windows are as the newest
    check has stored them, a day back and as long as SLAs look back: a driver that catches up finishes old windows.
    """
    longest_ms = max((spec.over_ms for spec in specs if Need.PATHS in spec.measure.needs), default=None)
    if longest_ms is None:
        return {}
    from tidemark.reports.paths.report import paths_now

    hour_before_ms = at_ms - HOUR_MS
    newest, before = Interval(hour_before_ms, at_ms), Interval(at_ms - DAY_MS - longest_ms, hour_before_ms)
    stored = partial(report_rows, layout, topology.name)
    try:
        found = paths_now(layout, topology, specs, newest)
        earlier = {table: stored(table, lies_in("window_end", before)) for table in found}
    except Exception:
        log.warning("%s: its critical paths cannot be found now", topology.name, exc_info=True)
        return {}
    return {table.name: pl.concat([earlier[table], rows], how="diagonal_relaxed") for table, rows in found.items()}


def _find_paths(layout: Layout, topology: Topology, specs: Sequence[SlaSpec], at_ms: int) -> None:
    """Finds the critical paths of the hour before *at_ms*, by which an operator's own work is judged."""
    from tidemark.reports.paths.report import run  # most topologies need no paths here

    try:
        run(layout, topology, specs, Interval(at_ms - HOUR_MS, at_ms))
    except (Exception, SystemExit):  # it may need Spark, and SLAs are checked nevertheless
        log.warning("%s: its critical paths cannot be found now", topology.name, exc_info=True)
