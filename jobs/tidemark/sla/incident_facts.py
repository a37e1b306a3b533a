"""From the checks of SLAs to the changes of their incidents, and what is told of each (ring 1).

Rows are those of `sla_results` and `incidents`, with instants as epoch ms.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from tidemark.errors import InvalidArgument
from tidemark.semantics.incidents import CHECKS, Change, Standing, follow, interrupted
from tidemark.semantics.sla import Verdict
from tidemark.spec.intervals import iso
from tidemark.spec.retention import DAY_MS
from tidemark.spec.sla_spec import Severity, SlaSpec
from tidemark.spec.toml_keys import length
from tidemark.spec.topology import Topology

Row = Mapping[str, Any]
_COPIED = ("verdict", "severity", "subject", "measure", "said", "culprit", "held_by", "budget_left", "owner", "runbook")
GONE = "the SLA is not promised any more"
PAST = "past"
"""Why a check is quiet: somebody asked about an instant before one that was checked already."""
MISSED = 2
"""So many checks in a row may be missing, less one, before that is an incident."""


def looks_back_ms(specs: Sequence[SlaSpec]) -> int:
    """How old a check may be that still says something of where an SLA stands."""
    return DAY_MS + max((max(s.damping.open_after_ms, s.damping.resolve_after_ms) for s in specs), default=0)


def quiet(spec: SlaSpec, at_ms: int, *, is_past: bool) -> str | None:
    """Why no incident follows from a check of *spec* for *at_ms*; None: one may."""
    if is_past:
        return PAST
    return "maintenance" if spec.is_quiet(at_ms) else None


def gap_ms(topology: Topology) -> int:
    """For how long nobody may check, before that is an incident and says nothing of what lasted through it."""
    return MISSED * topology.check_every_ms


def changes(
    specs: Sequence[SlaSpec],
    results: Sequence[Row],
    known: Sequence[Row],
    *,
    at_ms: int,
    gap_ms: int,
    unusable: Collection[str] = (),
) -> list[dict[str, Any]]:
    """The rows of `incidents` that follow from *results* and are not among those *known*; again, none.

    *results* are those of all checks that are not older than `looks_back_ms`. Those for the past are passed over, and
    those of an older version, which have no severity; those in maintenance and gaps of more than *gap_ms* interrupt
    what has lasted. What is open of an SLA that is not promised any more is resolved at *at_ms*; of one that is
    promised and *unusable*, by name, it stays as it is: nobody has judged it.
    """
    by_sla: dict[str, list[Row]] = defaultdict(list)
    for result in results:
        if result["quiet"] != PAST and result["severity"] is not None:
            by_sla[result["sla"]].append(result)
    found = [row for spec in specs for row in _of_one(spec, by_sla[spec.name], _by_checks(known, spec.name), gap_ms)]
    promised = {*unusable, *(spec.name for spec in specs)} - {CHECKS}
    for last in open_incidents(known).values():
        if last["sla"] not in promised:
            found.append(_ended(last, at_ms))
    return found


def checks_missed(
    topology: Topology, last_ms: int | None, known: Sequence[Row], *, at_ms: int, is_due: bool = False
) -> list[dict[str, Any]]:
    """The row which says that no check of the SLAs of *topology* finished in time at *at_ms*; none when that is known.

    A check that takes longer is not distinguished from one that does not run. The last check was for *last_ms*; without
    any there is a row if one *is_due*. It ends like that of an SLA that is not promised any more: with the next check,
    or at once when this is one.
    """
    if any(row["sla"] == CHECKS for row in open_incidents(known).values()):
        return []
    if last_ms is None and not is_due:
        return []
    since_ms = at_ms if last_ms is None else last_ms + gap_ms(topology)
    if last_ms is not None and since_ms >= at_ms:
        return []
    before = "" if last_ms is None else f" since the one for {iso(last_ms)}"
    said = (
        f"no check of the SLAs of {topology.name} has finished{before}, due every {length(topology.check_every_ms)}: "
        f"checks do not run, fail, or take longer than {length(gap_ms(topology))}; look at the DAG "
        f"tidemark_{topology.name}_sla_check, and raise check_every if its runs succeed"
    )
    opened = dict.fromkeys((*_COPIED, "run_id", "by")) | {
        "incident": _name(CHECKS, since_ms),
        "topology": topology.name,
        "sla": CHECKS,
        "change": Change.OPENED.value,
        "at": at_ms,
        "opened_at": since_ms,
        "broken_since": since_ms,
        "verdict": Verdict.ERROR.value,
        "severity": Severity.CRITICAL.value,
        "subject": "sla_check",
        "said": said,
        "owner": topology.owner,
    }
    return [] if any(row["incident"] == opened["incident"] for row in known) else [opened]


def _ended(last: Row, at_ms: int) -> dict[str, Any]:
    said = "the SLAs are checked again" if last["sla"] == CHECKS else GONE
    change = {"change": Change.RESOLVED.value, "at": at_ms, "verdict": Verdict.UNKNOWN.value, "said": said}
    return {**last, **change, "by": None, "culprit": None, "held_by": None}


def open_incidents(known: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """By name: the newest change that a check made of each incident that is not resolved."""
    found: dict[str, dict[str, Any]] = {}
    for row in sorted(known, key=in_time):
        if row["change"] == Change.RESOLVED:
            found.pop(row["incident"], None)
        elif row["change"] != Change.ACKNOWLEDGED:
            found[row["incident"]] = dict(row)
    return found


def acknowledged(known: Sequence[Row], incident: str, *, by: str, note: str, at_ms: int) -> dict[str, Any] | None:
    """The row which says that *by* looks after *incident*; None where somebody has said so before.

    Raises:
        InvalidArgument: it is not open.
    """
    still_open = open_incidents(known)
    if incident not in still_open:
        names = ", ".join(still_open) or "none"
        msg = f"an incident is acknowledged while it is open, and {incident!r} is not; open are: {names}"
        raise InvalidArgument(msg)
    if any(row["incident"] == incident and row["change"] == Change.ACKNOWLEDGED for row in known):
        return None
    change = {"change": Change.ACKNOWLEDGED.value, "at": at_ms, "by": by, "said": note or None, "run_id": None}
    return {**still_open[incident], **change}


def _by_checks(known: Sequence[Row], sla: str) -> list[Row]:
    rows = [row for row in known if row["sla"] == sla and row["change"] != Change.ACKNOWLEDGED]
    return sorted(rows, key=in_time)


def in_time(change: Row) -> tuple[int, str, int]:
    """The order in which changes came."""
    return change["at"], change["incident"], list(Change).index(Change(change["change"]))


def _of_one(spec: SlaSpec, results: Sequence[Row], known: Sequence[Row], gap_ms: int) -> Iterator[dict[str, Any]]:
    last = known[-1] if known else None
    standing = Standing()
    if last is not None and last["change"] != Change.RESOLVED:
        standing = Standing(
            opened_at_ms=last["opened_at"], worst=Verdict(last["verdict"]), broken_since_ms=last["broken_since"]
        )
    before_ms = None if last is None else last["at"]
    for result in sorted(results, key=lambda result: (result["checked_at"], result["run_id"])):
        if last is not None and result["checked_at"] <= last["at"]:
            continue
        if result["quiet"] is not None or (before_ms is not None and result["checked_at"] - before_ms > gap_ms):
            standing = interrupted(standing)
        before_ms = result["checked_at"]
        if result["quiet"] is not None:
            continue
        before = standing
        standing, change = follow(
            standing, at_ms=result["checked_at"], verdict=Verdict(result["verdict"]), damping=spec.damping
        )
        if change is not None:
            yield _row(change, before if change is Change.RESOLVED else standing, result)


def _row(change: Change, standing: Standing, result: Row) -> dict[str, Any]:
    opened_ms = standing.opened_at_ms or result["checked_at"]
    return {
        **{name: result[name] for name in ("topology", "sla", "run_id", *_COPIED)},
        "incident": _name(result["sla"], opened_ms),
        "change": change.value,
        "at": result["checked_at"],
        "opened_at": opened_ms,
        "broken_since": standing.broken_since_ms,
        "by": None,
    }


def _name(sla: str, opened_ms: int) -> str:
    return f"{sla}-{datetime.fromtimestamp(opened_ms / 1_000, UTC):%Y%m%dT%H%M%S}"
