"""Judges a topology at an instant: its verdict, the state of its streams, its SLAs, and the causes.

The start page, the topology page, the SLA page, `tidemark status` and the JSON of Airflow's API server show it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from enum import StrEnum
from functools import cached_property

import polars as pl

from tidemark.account.explanation import Became
from tidemark.account.owners.registry import OWNERS
from tidemark.account.text import remedy_of_cause
from tidemark.facts.answers import Row
from tidemark.facts.checks import CAUSES, MEASURED, Check, newest_check
from tidemark.facts.fact_tables import Stored
from tidemark.facts.stream_facts import StreamFacts
from tidemark.model.measures.registry import MEASURES
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import utc
from tidemark.model.sla_event_rows import causes_of_row
from tidemark.model.sla_events import AlertCause
from tidemark.model.topology import Topology
from tidemark.reports.pages.partitions import partitions
from tidemark.selection import omit, present
from tidemark.semantics.incidents import BROKEN
from tidemark.semantics.liveness import WORKS, Liveness
from tidemark.semantics.sla import Verdict
from tidemark.storage.delta.data_files import naming_damage
from tidemark.why.accounted import accounted, finding_of_sla
from tidemark.why.causes.drivers import DRAINED, FINISHED
from tidemark.why.causes.inputs import QUIET_AFTER_MS
from tidemark.why.evidence.findings import HARMLESS, NEVER_STARTED, NO_REASONS, NOTHING_WRONG, Trait, WhyFinding
from tidemark.why.walk import OF_DRIVERS, Walk, is_harmless, scene, told_once

TO_START = frozenset({Liveness.STARTING, Liveness.ROTATED})
"""States of a stream whose next driver has read nothing yet."""
CHECKS_MISSED = 2
"""An SLA check counts as overdue after so many intervals of `check_every`."""


class PageVerdict(StrEnum):
    """The verdict on a topology or an operator, the worst first."""

    UNREADABLE = "unreadable"
    """Its file is not valid, or one of its tables is damaged. Running streams use the file as it was at their start."""
    BROKEN = "broken"
    """An SLA is broken by the newest check."""
    NOT_RUNNING = "not_running"
    """A stream that the topology or operator needs failed, hangs, was drained or was never started."""
    WARN = "warn"
    """An SLA is above the threshold of its warning."""
    LATE = "late"
    """Results are late for a cause that `why` names."""
    QUIET = "quiet"
    """No records come in, or fewer than usual, and all that came were read."""
    NOT_CHECKED = "not_checked"
    """Nothing is known to be wrong, but lately no SLA about the age of results was measured of what drivers read."""
    ON_TIME = "on_time"
    """Results come as usual, and every SLA that was measured holds; one of them is about the age of results."""


NEEDS_SOMEONE = frozenset(
    {PageVerdict.UNREADABLE, PageVerdict.BROKEN, PageVerdict.NOT_RUNNING, PageVerdict.WARN, PageVerdict.LATE}
)
"""With these verdicts somebody should look at the topology."""
VERDICT_WORDS = {
    PageVerdict.UNREADABLE.value: "not readable",
    PageVerdict.BROKEN.value: "SLA broken",
    PageVerdict.NOT_RUNNING.value: "not running",
    PageVerdict.WARN.value: "SLA warning",
    PageVerdict.LATE.value: "late",
    PageVerdict.QUIET.value: "no new records",
    PageVerdict.NOT_CHECKED.value: "age not judged",
    PageVerdict.ON_TIME.value: "on time",
}
"""The words of the verdicts that people read."""


class TopologyState:
    """A topology at an instant, as pages and commands show it.

    Each property is computed when it is first asked for, and all are of one version of the tables, which *stored*
    keeps. Lengths are ms, instants are timestamps in UTC. Properties raise UnreadableFile if a table is damaged.
    """

    def __init__(self, stored: Stored, layout: Layout, topology: Topology, *, at_ms: int) -> None:
        self.topology, self.at_ms = topology, at_ms
        self.scene = scene(topology, layout, at_ms, stored=stored)
        self.walk = Walk(self.scene)
        self.stored, self.layout = stored, layout

    def summary(self) -> Row:
        """Returns the fields of the page model with the verdict, its cause, and the states of streams and SLAs.

        Raises UnreadableFile if a table is damaged.
        """
        with naming_damage(self.scene.tables):
            return {
                "topology": self.topology.name,
                "verdict": self.verdict,
                "state": self.state,
                "cause": self.cause,
                "streams": self.streams,
                "slas": self.slas,
            }

    @cached_property
    def findings(self) -> list[WhyFinding]:
        """What `why` finds about the terminal operators, the best reason first."""
        return self.walk.explain()

    def about(self, operator: str | None = None) -> list[WhyFinding]:
        """Returns who owns missing results of *operator*, or of all terminal operators, and the remarks of `why`."""
        if operator is None:
            owners, findings = self.owners, self.findings
        else:
            owners = accounted(self.scene, self.layout, [operator], stored=self.stored)
            findings = self.walk.explain(operator)
        # If somebody keeps results of an operator waiting, it is not true that nothing is wrong.
        late = {each.operator for each in owners}
        remarks = (each for each in findings if each.cause is not NOTHING_WRONG or each.operator not in late)
        return [*owners, *told_once(remarks)]

    @cached_property
    def slas(self) -> Row:
        """The newest check of the SLAs: its instant, and how many and which SLAs have each verdict."""
        until = pl.col("checked_at") <= utc(self.at_ms)
        check = newest_check(self.stored, self.layout, self.topology.name, until, columns=(*MEASURED, *CAUSES))
        return _slas(check, self.topology, self.at_ms)

    @cached_property
    def streams(self) -> list[Row]:
        """The state of each stream, with its driver's last heartbeat."""
        culprits = {finding.sub_topology: finding.operator for finding in reversed(self._late)}
        streams = []
        for sub in self.topology.sub_topologies:
            facts = self.scene.facts[sub.name]
            streams.append(stream_row(facts, sub.name, culprits.get(sub.name), behind=facts.records_behind))
        return streams

    @property
    def state(self) -> str:
        """The worst state of a stream; unknown for watched tables, which have none."""
        states = [stream["state"] for stream in self.streams]
        return worst(states) if states else Liveness.UNKNOWN.value

    @cached_property
    def verdict(self) -> str:
        """The worst verdict that applies, of PageVerdict."""
        verdict = verdict_of(self.streams, self.slas, self.findings)
        if verdict not in {PageVerdict.NOT_CHECKED, PageVerdict.ON_TIME}:
            return verdict
        # No SLA is broken, and no rule of `why` finds a fault. But results do not come as usual.
        if any(owner.amount_ms is not None or owner.became == Became.UNREAD for owner in self._missing):
            return PageVerdict.LATE.value
        is_quiet = any(each.became == Became.NOT_PRODUCED for each in self._missing)
        return PageVerdict.QUIET.value if is_quiet else verdict

    @cached_property
    def _missing(self) -> list[WhyFinding]:
        """For each terminal operator without a result for QUIET_AFTER_MS, who owns most of its missing results."""
        since_ms = self.at_ms - QUIET_AFTER_MS
        silent = [name for name in self.topology.terminals if not self._gave_after(name, since_ms)]
        if not silent:
            return []
        return [*{owner.operator: owner for owner in reversed(self.owners) if owner.operator in silent}.values()]

    def _gave_after(self, operator: str, since_ms: int) -> bool:
        """Returns True if *operator* has given a result after *since_ms*, epoch ms."""
        newest_ms = self.scene.of(operator).outcomes.newest(operator, pl.col("gave") > 0)["finished_at"].max()
        return isinstance(newest_ms, int) and newest_ms > since_ms

    @cached_property
    def owners(self) -> list[WhyFinding]:
        """Who owns the missing results of terminal operators by the account of time; empty if nothing is missing."""
        return accounted(self.scene, self.layout, self.topology.terminals, stored=self.stored)

    @cached_property
    def cause(self) -> Row | None:
        """What explains the verdict, as a finding in JSON; None if nothing needs an explanation.

        A stream that does not run comes first. Then comes the cause of the worst SLA that the newest check found
        broken, then the owner of most of the time for which results are missing, and last a finding of `why`.
        """
        found = self._of_stopped_stream or self._of_broken_sla or self._of_late_results or self._finding
        return found.row if found else None

    @property
    def _of_stopped_stream(self) -> WhyFinding | None:
        """The finding about the driver of a stream that does not run; None if all run."""
        stopped = {stream["sub_topology"] for stream in self.streams if stream["state"] not in WORKS}
        of_drivers = (each for each in self._late if each.cause in OF_DRIVERS)
        return next((each for each in of_drivers if each.sub_topology in stopped), None)

    @property
    def _of_broken_sla(self) -> WhyFinding | None:
        row = next((row for row in worst_first(self.slas["rows"]) if row["causes"]), None)
        if row is None:
            return None
        cause = AlertCause(**row["causes"][0])
        return finding_of_sla(self.topology, row["subject"], cause, row["blocked_by"])

    @property
    def _of_late_results(self) -> WhyFinding | None:
        # That a stream does not run has a reason of its own, which is in the finding about its driver.
        is_late = self.verdict in NEEDS_SOMEONE and self.state in WORKS
        is_late |= self.verdict == PageVerdict.QUIET and not self._quiet
        return max(self.owners, key=lambda each: each.amount_ms or 0, default=None) if is_late else None

    @property
    def _finding(self) -> WhyFinding | None:
        """The finding of `why` that explains the verdict, if there is one."""
        quiet = self._quiet if self.verdict == PageVerdict.QUIET else []
        return next(iter(self._late or quiet or self._reasons), None)

    @property
    def _reasons(self) -> list[WhyFinding]:
        return [finding for finding in self.findings if finding.cause not in NO_REASONS]

    @property
    def _quiet(self) -> list[WhyFinding]:
        """The findings that say that no records come in."""
        return [finding for finding in self._reasons if Trait.QUIET in finding.cause.traits]

    @property
    def _late(self) -> list[WhyFinding]:
        """The findings that say why results are late: faults of streams that were neither drained nor have ended.

        What the tables of a drained stream show is from before, and is no fault now.
        """
        drained = {finding.sub_topology for finding in self._reasons if finding.cause in {DRAINED, FINISHED}}
        faults = (finding for finding in self._reasons if not finding.cause.traits & HARMLESS)
        return [finding for finding in faults if finding.sub_topology not in drained]

    @cached_property
    def partitions(self) -> list[Row]:
        """The partitions of the outside sources, as `partitions` describes them."""
        return partitions(self.scene, self.findings)


def broken_slas(model: Row) -> str | None:
    """Returns a clause about the SLAs in the page *model* that the newest check found broken, or None if none is.

    An SLA with a warning is named as such, since the verdict `broken` does not count it.
    """
    broken = worst_first(model["slas"]["rows"])
    if not broken:
        return None
    worst_sla, *others = broken
    also = [row["sla"] for row in others if row["verdict"] != Verdict.WARN]
    warned = [row["sla"] for row in others if row["verdict"] == Verdict.WARN]
    more = f"; also broken: {', '.join(also)}" if also else ""
    too = "also " if worst_sla["verdict"] == Verdict.WARN else ""
    more += f"; {too}with a warning: {', '.join(warned)}" if warned else ""
    return f"{worst_sla['sla']}: {worst_sla['message']}{more}"


def worst_first(rows: Iterable[Row]) -> list[Row]:
    """Returns the *rows* of broken SLAs; those with a warning, which the verdict `broken` does not count, are last."""
    return sorted((row for row in rows if row["verdict"] in BROKEN), key=lambda row: row["verdict"] == Verdict.WARN)


def explained_slas(topology: str, slas: Row) -> list[Row]:
    """Returns what the newest check says of each broken SLA in *slas*, of a page model, those in error first.

    A row has `sla`, `verdict`, `message`, `explained` (why, as a sentence, or null if that is not known), `causes`, and
    the `remedy` of the first cause.
    """
    told: list[Row] = []
    for row in worst_first(slas["rows"]):
        causes = row["causes"]
        # A check of another version may have named another owner.
        first = AlertCause(**causes[0]) if causes and causes[0]["owner"] in OWNERS else None
        remedy = remedy_of_cause(topology, first) if first else None
        known = {name: row[name] for name in ("sla", "verdict", "message")} | {"explained": row["blocked_by"]}
        told.append({**known, "causes": causes, "remedy": remedy})
    return told


def explained_text(row: Row) -> str:
    """Returns one of `explained_slas` as a sentence."""
    broken = "has a warning" if row["verdict"] == Verdict.WARN else "is broken"
    return "; ".join(present([f"{row['sla']} {broken}: {row['message']}", row["explained"], row["remedy"]]))


def unchecked_text(model: Row) -> str | None:
    """Returns a clause for SLAs in the page *model* that were not checked lately, with what checks them, or None."""
    if not (model.get("slas") or {}).get("is_overdue"):
        return None
    when = "yet" if model["slas"]["checked_at"] is None else "lately"
    return (
        f"its SLAs were not checked {when}: the DAG tidemark_{model['topology']}_sla_check does so, unless it is paused"
    )


def told_cause(model: Row) -> Row | None:
    """Returns the cause that is shown beside the verdict of the page *model*; None if there is none to show.

    What is usual for a healthy stream is no reason for a broken SLA, and is left out. A drained stream is a reason.
    """
    cause: Row | None = model["cause"]
    is_broken = any(row["verdict"] in BROKEN for row in model["slas"]["rows"])
    if cause and is_broken and is_harmless(cause["cause"]) and model["state"] in WORKS:
        return None
    return cause


def worst(words: Iterable[str]) -> str:
    """Returns the worst of *words*, which are of PageVerdict or of Liveness.

    >>> worst(["running", "drained"]), worst(["on_time", "warn"])
    ('drained', 'warn')
    """
    present, worst_first = set(words), map(str, [*PageVerdict, *Liveness])
    return next(word for word in worst_first if word in present)


def stream_row(facts: StreamFacts, sub_topology: str, culprit: str | None = None, *, behind: int | None = None) -> Row:
    """Returns the state of a stream, and its driver's last heartbeat.

    *culprit* is the operator of the first finding about the stream that is a fault, *behind* the number of its unread
    records.
    """
    beat, state = facts.driver.beat, facts.driver.liveness
    newest = facts.tables.batches.tail(1)
    return {
        "sub_topology": sub_topology,
        "state": state.value,
        "reason": beat.reason if beat else None,
        "last_heartbeat_at": utc(beat.at_ms) if beat else None,
        "since": utc(facts.driver.started_ms) if beat else None,
        "last_batch_at": utc(newest["finished_at"].item()) if newest.height else None,
        "records_in": int(facts.tables.every_batch["records_in"].sum()),
        "records_behind": behind,
        "arrival_per_s": beat.arrival_per_s if beat else None,
        "working_per_s": beat.working_per_s if beat else None,
        "culprit": culprit,
        "eta_at": utc(beat.eta_at_ms) if beat and beat.eta_at_ms is not None else None,
    }


def _slas(check: Check | None, topology: Topology, at_ms: int) -> Row:
    """Returns the newest *check* of the SLAs: its time, counts and rows."""
    checked_at, rows = (None, []) if check is None else (check.checked_at, [*map(_with_causes, check.rows)])
    is_overdue = check is None or at_ms - check.at_ms > CHECKS_MISSED * topology.check_every_ms
    return {"checked_at": checked_at, "is_overdue": is_overdue, **counts_of(rows), "rows": rows}


def _with_causes(row: Row) -> Row:
    """Returns a *row* of a check in which `causes` replaces their columns; the cause that explains most is first."""
    return {**omit(row, CAUSES), "causes": [asdict(cause) for cause in causes_of_row(row)]}


def counts_of(rows: Sequence[Row]) -> dict[str, int]:
    """Counts SLAs by their verdict."""
    counts = Counter(row["verdict"] for row in rows)
    broken = sum(counts[verdict] for verdict in BROKEN - {Verdict.WARN})
    return {"n": len(rows), "broken": broken, "warned": counts[Verdict.WARN], "unknown": counts[Verdict.UNKNOWN]}


def verdict_of(streams: Sequence[Row], slas: Row, findings: Sequence[WhyFinding]) -> str:
    """Returns the verdict on a topology."""
    causes = {finding.cause for finding in findings}
    of_lateness = [name for name, measure in MEASURES.items() if measure.is_of_lateness]
    ages = (row["verdict"] for row in slas["rows"] if row["measure"] in of_lateness)
    # What a check measured of the results of an earlier driver says nothing about those of one that has read nothing.
    reads = not any(stream["state"] in TO_START for stream in streams)
    is_measured = reads and not slas["is_overdue"] and any(verdict != Verdict.UNKNOWN for verdict in ages)
    # The worst verdict comes first, and the first that applies counts.
    rules = {
        PageVerdict.BROKEN: slas["broken"] > 0,
        PageVerdict.NOT_RUNNING: any(stream["state"] not in WORKS for stream in streams),
        PageVerdict.WARN: slas["warned"] > 0,
        PageVerdict.LATE: any(not cause.traits & HARMLESS for cause in causes - {NEVER_STARTED}),
        PageVerdict.QUIET: any(Trait.QUIET in cause.traits for cause in causes),
        PageVerdict.NOT_CHECKED: not is_measured,
    }
    return next((standing for standing, holds in rules.items() if holds), PageVerdict.ON_TIME).value
