"""Explains why an operator gave no results, from tables of one instant.

The walk starts at the operator and goes upstream. If records came in after its newest result and it did not send them
on, they are the reason; otherwise the reason lies further up. Where a window waits for the watermark, the walk goes on
at the partition that holds the watermark back. The first finding explains most. Instants are epoch ms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from operator import itemgetter
from typing import assert_never

import polars as pl

from tidemark.errors import InvalidArgument, UnreadableFile
from tidemark.facts.fact_tables import RECENT_MS, FactTables, Stored, stored_in
from tidemark.facts.stream_facts import StreamFacts
from tidemark.model.kinds.boundary import Reading
from tidemark.model.kinds.operator import Operator
from tidemark.model.kinds.repartition import HopSource
from tidemark.model.kinds.source import Source
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import iso
from tidemark.model.settings.lengths import by_number, counted, for_people
from tidemark.model.tables.catalog import BATCHES, OPERATOR_BATCHES
from tidemark.model.topology import Topology
from tidemark.storage.delta.data_files import naming_damage
from tidemark.why.causes.drivers import (
    BROKER_SILENT,
    CANNOT_WRITE,
    DRAINED,
    DRIVER_DEAD,
    DRIVER_RESTARTED,
    DRIVER_STARTING,
    DRIVER_STUCK,
    DRIVER_UNKNOWN,
    FILE_UNREADABLE,
    FINISHED,
    FIRST_BATCH,
    REGISTRY_SILENT,
    SHORT_OF_MEMORY,
    SLOW_BATCH,
    UPSTREAM_DEAD,
    drivers,
    file_unreadable,
)
from tidemark.why.causes.inputs import SOURCE_EMPTY, Inputs, last_batches, reasons_at, reasons_of
from tidemark.why.causes.registry import rules
from tidemark.why.causes.rights import MISSING_RIGHT
from tidemark.why.causes.watermarks import Watermarks
from tidemark.why.causes.windows import HeldWindows
from tidemark.why.evidence.commands import LIVE, logs, quarantine_query, requeue, requeue_late
from tidemark.why.evidence.findings import (
    ALL_FILTERED,
    BEING_READ,
    HARMLESS,
    NEVER_STARTED,
    NOTHING_WRONG,
    POISON_AT_HEAD,
    SET_ASIDE,
    SOURCE_QUIET,
    UNEXPLAINED,
    Cause,
    Trait,
    WhyFinding,
    declared,
    in_order,
    with_a_meaning,
)
from tidemark.why.evidence.snapshot import Scene, first

HELD_UNTIL_INTERVAL = Cause(
    "held_until_interval",
    Trait.USUAL,
    "results wait for the end of an interval (`periodic`)",
)
ALL_SUPPRESSED = Cause(
    "all_suppressed",
    Trait.USUAL | Trait.SILENCE,
    "all updates since the newest result were unchanged",
)

NOT_SENT_ON = Cause(
    "not_sent_on",
    Trait.USUAL | Trait.SILENCE,
    "a part of the updates since the newest result was unchanged, or was dropped as by `all_filtered`",
)

OF_DRIVERS = frozenset(
    {
        DRAINED, FINISHED, DRIVER_DEAD, DRIVER_STUCK, DRIVER_UNKNOWN, DRIVER_STARTING, DRIVER_RESTARTED,
        FILE_UNREADABLE, CANNOT_WRITE, REGISTRY_SILENT, BROKER_SILENT, SHORT_OF_MEMORY, SLOW_BATCH, FIRST_BATCH,
        NEVER_STARTED, MISSING_RIGHT, UPSTREAM_DEAD,
    }
)  # fmt: skip
"""Causes that lie in a driver, so that every operator of its streams waits."""
CHECK_PRODUCER = "check that its producer runs, if you expect more"
_CAUSE_OF_OUTCOME = {"suppressed": ALL_SUPPRESSED, "filtered": ALL_FILTERED, "quarantined": POISON_AT_HEAD}
"""Why records were not sent on, by their outcome."""


def why(topology: Topology, layout: Layout, *, at_ms: int, operator: str | None = None) -> list[WhyFinding]:
    """Explains why *operator* gave no results at *at_ms* (epoch ms), the best reason first.

    Without *operator*, the answer is about each terminal operator of *topology*. Tables are read as *layout* has them.

    Raises:
        InvalidArgument: there is no such operator.
    """
    return Walk(scene(topology, layout, at_ms)).explain(known(topology, operator))


def known(topology: Topology, operator: str | None) -> str | None:
    """Returns *operator*, after a check that *topology* has it.

    Raises:
        InvalidArgument: *topology* has no such operator.
    """
    if operator is not None and operator not in topology.operators:
        msg = f"{topology.name} has no operator {operator!r}; known: {', '.join(topology.operators)}"
        raise InvalidArgument(msg)
    return operator


def told_once(findings: Iterable[WhyFinding]) -> list[WhyFinding]:
    """Returns *findings* with one for each state of a driver, which is found again at each operator that waits for it,
    and at those of streams behind it under another cause: the first one stays.
    """
    distinct: dict[object, WhyFinding] = {}
    for finding in findings:
        state = (finding.sub_topology, finding.seen)
        distinct.setdefault(state if finding.cause in OF_DRIVERS else finding, finding)
    return [*distinct.values()]


def remarks() -> list[Cause]:
    """Returns the causes that a walk can find, in the order of their names."""
    rules()  # imports the files that declare causes
    return with_a_meaning()


def is_harmless(word: str) -> bool:
    """Returns True if *word* names a cause that is no fault."""
    rules()  # imports the files that declare causes
    cause = declared(word)
    return cause is not None and bool(cause.traits & HARMLESS)


def scene(
    topology: Topology,
    layout: Layout,
    at_ms: int,
    *,
    recent_ms: int = RECENT_MS,
    stored: Stored | None = None,
) -> Scene:
    """Returns the facts of *topology* at an instant.

    Each table but `batches` is opened when it is first needed.

    Args:
        topology: the topology whose streams are looked at.
        layout: where its tables and control folders are.
        at_ms: the instant, epoch ms; later rows do not count.
        recent_ms: how far back before that rows are read.
        stored: tables that were opened already, so that several answers come from the same versions.
    """
    facts: dict[str, StreamFacts] = {}
    opened = stored or Stored()
    for sub in topology.sub_topologies:
        home, control = layout.stream(topology.name, sub.name), layout.control(topology.name, sub.name)
        # The row in `batches` is the last that a batch writes: all tables that are opened after this one have its rows.
        opened.snapshot(home / BATCHES.name)
        tables = FactTables(stored_in(home, opened), at_ms, recent_ms=recent_ms)
        facts[sub.name] = StreamFacts(tables, home, control, topology.trigger_ms)
    return Scene(topology, facts, at_ms)


class Walk:
    """Walks upstream through *scene*, visiting each operator once."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._inputs = Inputs(scene)
        self._watermarks = Watermarks(scene, self._inputs)
        self._windows = HeldWindows(scene, self._inputs, self._watermarks)
        # Operators may share an upstream, whose reasons are found once.
        self._walked: dict[str, list[WhyFinding]] = {}
        self._set_aside = cache(self._find_set_aside)

    def explain(self, operator: str | None = None) -> list[WhyFinding]:
        """Explains why *operator* gives no results, the best reason first; without a name, each terminal operator."""
        findings: list[WhyFinding] = []
        for name in [operator] if operator else self._scene.topology.terminals:
            try:
                with naming_damage(self._scene.tables):
                    findings += self._reasons_for(name)
            except UnreadableFile as damage:
                findings.append(file_unreadable(self._scene, name, damage))
        return in_order(findings)

    def _reasons_for(self, name: str) -> list[WhyFinding]:
        """Returns why the operator *name* gives no results.

        There is no finding while the driver has finished its first batch, and that is not in the tables yet.
        """
        findings = list(drivers(self._scene, name))
        # Without a batch there is no table to reason from.
        if not self._scene.of(name).tables.batches.height:
            if findings or self._scene.of(name).has_finished:
                return findings
            # The driver has planned its first batch since its newest heartbeat: that is no fault.
            seen = f"the first batch of {self._scene.sub(name).name} was planned, and has not finished"
            return [self._scene.finding(FIRST_BATCH, name, seen, "wait")]
        findings += self._walk(name)
        for rule in rules():
            findings += rule(self._scene, name)
        return findings or [*self._no_reason(name)]

    def _walk(self, name: str) -> Sequence[WhyFinding]:
        """Returns the reasons in the operator *name* and, where it has none, upstream of it."""
        if name not in self._walked:
            self._walked[name] = self._reasons_in(self._scene.operator(name))
        return self._walked[name]

    def _reasons_in(self, operator: Operator) -> list[WhyFinding]:
        if isinstance(operator, Reading):
            return self._reasons_in_source(operator)
        findings = [*self._inputs.late(operator), *self._reasons_to_hold(operator)]
        for upstream in operator.flows:
            findings += self._walk(upstream)
        return [*findings, *self._not_sent_on(operator)]

    def _reasons_in_source(self, source: Reading) -> list[WhyFinding]:
        """Returns the reasons in *source* and, where it has none, in the operators of the warehouse that write it."""
        match source:
            case Source():
                findings = self._inputs.source(source)
                for sink in () if findings else source.written_to_by:
                    findings += self._walk(sink)
                return findings
            case HopSource():
                return self._inputs.hop(source) or [*self._walk(source.repartition)]
            case _:
                assert_never(source)

    def _not_sent_on(self, operator: Operator) -> list[WhyFinding]:
        """Returns why *operator* sent on no update since its newest result, the outcome of most updates first.

        Updates that it still holds are not among them (`_reasons_to_hold`).
        """
        rows = self._scene.of(operator.name).outcomes.since_last_result(operator.name)
        n_all = int(rows["records_in"].sum())
        whole = f"of {counted(n_all, 'update')} since its newest result"
        counts = Counter({word: int(rows[word].sum()) for word in _CAUSE_OF_OUTCOME})
        findings = []
        for word, n in counts.most_common():
            if n:
                batches = rows.filter(pl.col(word) > 0)["batch_id"]
                reasons = self._quarantine_reasons(operator, batches) if word == "quarantined" else ""
                observation = f"{n:,} {whole} {by_number(n, 'was', 'were')} {word}{reasons}"
                remedy = self._remedy_for(word, operator)
                cause = _CAUSE_OF_OUTCOME[word] if n >= n_all or word == "quarantined" else NOT_SENT_ON
                since_ms = first(rows, word)
                findings.append(self._scene.finding(cause, operator.name, observation, remedy, since_ms=since_ms))
        if counts["filtered"] and operator.joined_table:
            table_findings = self._walk(operator.joined_table)
            # If the table never had a row, its empty source explains more than the missing matches.
            never_had_rows = any(finding.cause is SOURCE_EMPTY for finding in table_findings)
            findings = [*table_findings, *findings] if never_had_rows else [*findings, *table_findings]
        return findings

    def _remedy_for(self, outcome: str, operator: Operator) -> str:
        """Returns what to do about updates at *operator* with an *outcome* of _CAUSE_OF_OUTCOME."""
        remedies = {
            "suppressed": "no action is needed if the values are the same; the table suppressed lists them",
            "filtered": operator.remedy_if_filtered,
            "quarantined": f"look at them: {quarantine_query(self._scene, operator.name)}",
        }
        return remedies[outcome]

    def _reasons_to_hold(self, operator: Operator) -> Iterator[WhyFinding]:
        """Yields why *operator* holds results back, unless it has sent some in its newest batch."""
        newest = self._scene.of(operator.name).outcomes.newest(operator.name)
        held = newest["held_after"].sum()
        if not held or newest["gave"].sum():
            return
        since_ms = first(self._scene.of(operator.name).outcomes.since_last_result(operator.name), "held_after")
        emission = operator.emission
        if emission is not None and emission.interval_ms is not None:
            # Intervals of `periodic` begin at multiples of their length since the epoch.
            due_ms = (newest["decided_at"].item() // emission.interval_ms + 1) * emission.interval_ms
            interval = f"{iso(due_ms)}, the end of an interval of {for_people(emission.interval_ms)}"
            if due_ms > self._scene.at_ms:
                observation = f"{counted(int(held), 'update waits', 'updates wait')} for {interval}"
                remedy = "wait, or choose a shorter interval"
            else:
                observation = f"{counted(int(held), 'update was', 'updates were')} due at {interval}"
                remedy = "they come with the next batch of the stream, if it runs"
            yield self._scene.finding(HELD_UNTIL_INTERVAL, operator.name, observation, remedy, since_ms=since_ms)
        elif operator.windows:
            yield from self._windows.waiting(operator, operator.windows, since_ms)

    def _no_reason(self, name: str) -> Iterator[WhyFinding]:
        """Yields what is left to say of the operator *name* when the walk has found no reason for a silence.

        Its first records may be on their way, its sources may be quiet, or nothing is wrong. Records that operators
        before it set aside have findings of their own, which all operators behind them share.
        """
        rows = self._scene.of(name).outcomes.newest(name, pl.col("gave") > 0)
        if not rows.height and self._has_first_records(name):
            observation = "no record has reached it yet, and the first ones wait unread or are being read on the way"
            yield self._scene.finding(BEING_READ, name, observation, "wait")
            return
        if not rows.height:
            observation = "it has no results yet, and no cause is known"
            remedy = f"look at the table {OPERATOR_BATCHES.name}, and at the driver's log: {logs(self._scene, name)}"
            yield self._scene.finding(UNEXPLAINED, name, observation, remedy)
            return
        sources = self._scene.sources(name)
        quiet = [source for source in sources.values() if self._inputs.quiet_ms(source) > 0]
        silent_ms = {source.name: self._inputs.silent_ms(source) for source in quiet}
        gave = f"{counted(rows['gave'].item(), 'result')} came, of the newest records that were read"
        if silent_ms and len(silent_ms) == len(sources):
            # Records that wait are no silence, however long none was read.
            if waiting := [finding for source in quiet for finding in self._inputs.waiting(source)]:
                yield waiting[0]
                return
            newest, newest_ms = min(silent_ms.items(), key=itemgetter(1))
            subject = by_number(len(sources), "it has", f"{', '.join(sources)} have")
            # A new driver may have looked since then, and told nothing yet.
            known = "" if self._scene.of(newest).driver.looks else " by the newest look that is known"
            observation = f"{subject} been silent for {for_people(newest_ms)}{known}; before, {gave}"
            remedy = f"{CHECK_PRODUCER}{f'; {LIVE}' if sources[newest].topic else ''}"
            read_ms = self._inputs.last_read_ms(sources[newest])
            yield self._scene.finding(SOURCE_QUIET, name, observation, remedy, input=newest, since_ms=read_ms)
        else:
            silences = [f"{source} has been silent for {for_people(ms)}" for source, ms in silent_ms.items()]
            remedy = CHECK_PRODUCER if silences else "no action is needed"
            yield self._scene.finding(NOTHING_WRONG, name, "; ".join([gave, *silences]), remedy)
        for upstream in self._scene.topology.path_into(name):
            yield from self._set_aside(upstream.name)

    def _has_first_records(self, name: str) -> bool:
        """Returns True if no record has reached the operator *name* yet, and a stream before it has some to read."""
        topology = self._scene.topology
        if self._scene.of(name).outcomes.since_last_result(name)["records_in"].sum():
            return False
        on_the_way = {topology.sub_topology_of(each.name).name for each in topology.path_into(name)}
        return any(self._inputs.has_unread(topology.sub_topology(each)) for each in on_the_way)

    def _find_set_aside(self, name: str) -> list[WhyFinding]:
        """Returns what the operator *name* did lately to some of its records while it sent others on.

        Such records were late, quarantined, or late in a closed window that was processed again for them.
        """
        operator, found = self._scene.operator(name), list[WhyFinding]()
        facts, what = self._scene.of(name), "record" if operator.reads_outside else "update"
        rows = facts.outcomes.lately(name)
        n, batches = int(rows["records_in"].sum()), rows["batch_id"]

        def note(part: int, were: str, remedy: str) -> None:
            which = by_number(n, f"the only {what}", f"{part:,} of the {n:,} {what}s")
            observation = f"{which} that it got in {last_batches(rows.height)} {were}"
            found.append(self._scene.finding(SET_ASIDE, name, observation, remedy))

        if late := int(rows["late"].sum()):
            longest_ms = facts.late_records(name, batches)["lateness_ms"].max() or 0
            assert isinstance(longest_ms, int)
            were = f"{by_number(late, 'was', 'were')} late, by up to {for_people(longest_ms)}"
            note(late, were, requeue_late(self._scene, name))
        if bad := int(rows["quarantined"].sum()):
            remedy = f"look at what is quarantined: {quarantine_query(self._scene, name)}"
            if isinstance(operator, Source):
                remedy += f"; correct the producer or the topology; then {requeue(self._scene, operator)}"
            are = by_number(bad, "is", "are")
            note(bad, f"{are} quarantined{self._quarantine_reasons(operator, batches)}", remedy)
        if again := int(rows["reopened"].sum()):
            were, them = by_number(again, "was", "were"), by_number(again, "it", "them")
            were = f"{were} late, and closed windows processed {them} again"
            note(again, were, "the table requeued lists them")
        return found

    def _quarantine_reasons(self, operator: Operator, batches: pl.Series) -> str:
        """Returns why *operator* quarantined records of *batches*, in brackets; empty if no row of them is kept."""
        bad = self._scene.of(operator.name).reads.quarantined(operator.name, batches)
        if not bad.height:
            return ""
        return f" ({reasons_of(operator, bad) if isinstance(operator, Source) else reasons_at(operator, bad)})"
