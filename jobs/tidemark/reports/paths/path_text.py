"""Says in words what is known about critical paths.

Lengths are whole ms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tidemark.facts.path_facts import physical_name
from tidemark.model.settings.lengths import counted, for_people
from tidemark.semantics.blame import AgeCause, Compared
from tidemark.semantics.critical_path import STANDS_STILL

PART_WORDS = {
    AgeCause.BOUND: "the source's bound",
    AgeCause.BLOCKING_PARTITION: "a partition that blocked the watermark",
    AgeCause.SILENCE: "silence until the watermark advanced",
    AgeCause.BACKLOG: "records that waited unread for a batch",
    AgeCause.DRIVER_RESTARTED: "a driver that restarted",
    AgeCause.LATE_PRODUCER: "a producer that wrote late",
    AgeCause.UNKNOWN: "not known",
    AgeCause.TRIGGER: "waiting for a trigger",
    AgeCause.WAITING: "waiting for a driver",
    AgeCause.QUEUED: "waiting for the journal or for Spark's task slots",
}
"""Names for people of parts in which no operator worked.

They are parts of a window's age.
"""
BEFORE_SOURCE = frozenset(
    {
        AgeCause.BOUND,
        AgeCause.BLOCKING_PARTITION,
        AgeCause.SILENCE,
        AgeCause.BACKLOG,
        AgeCause.DRIVER_RESTARTED,
        AgeCause.LATE_PRODUCER,
        AgeCause.UNKNOWN,
    }
)
"""The parts before a source has finished the window."""


def task_text(step: Mapping[str, Any]) -> str | None:
    """Formats how late the task of *step* was.

    The text has the key of most of its records, if there is such a key. None: the operator has one task.
    """
    if not step["task"]:
        return None
    late = f"{physical_name(step)} finished {for_people(step['behind_tasks_ms'])} after the median of its other tasks"
    return f"{late}; {step['hot_share']:.0%} of its records are of {step['hot_key']}" if step["hot_key"] else late


def age_text(window: Mapping[str, Any]) -> str:
    """Returns how old *window* was at the end of its path, or that an operator stands still before it."""
    if window["state"] in STANDS_STILL:
        return f"not finished by {window['leaf']}"
    return f"{window['age_ms']:,} ms old when {window['leaf']} had finished it"


PARTS_ARE = (
    "the part of an operator is all of its work that the window waited for, also on an earlier batch; an operator "
    "beside the path has a part if the path waited for it"
)
"""Says why a part of a window's age may be longer than the operator's work on the window."""


def judged_text(verdict: Mapping[str, Any], length: Callable[[float], str]) -> str:
    """Says by the limit of which SLA a window was judged, what was measured, and the limit.

    The SLA itself is judged by checks, over a longer time.

    *verdict* is one of critical_paths, and *length* formats ms.
    """
    judged = f"The window {'breaks' if verdict['broken'] else 'keeps'} the limit of SLA {verdict['sla']}"
    if verdict["quantile"] is None:
        measured = f"{verdict['operator']} worked {length(verdict['value_ms'])} on it"
    else:
        measured = f"{_quantile(verdict, 'its records')} is about {length(verdict['value_ms'])}"
    return f"{judged}: {measured}, {_limit(verdict, length)}"


def judged_windows_text(judged: Mapping[str, Any], length: Callable[[float], str]) -> str:
    """Says how many windows broke the limit of an SLA, the longest length that was measured, and the limit.

    *judged* is a row of an interval's SLAs, and *length* formats ms.
    """
    windows = f"{judged['broken']:,} of {counted(judged['windows'], 'window')} broke its limit{_unjudged(judged)}"
    worst = length(judged["worst_ms"])
    if judged["quantile"] is None:
        measured = f"{judged['operator']} worked up to {worst} on a window"
    else:
        of_records = _quantile(judged, "a window's records")
        measured = f"{of_records} was at most about {worst}"
    return f"SLA {judged['sla']}: {windows}; {measured}, {_limit(judged, length)}"


def _unjudged(judged: Mapping[str, Any]) -> str:
    """Says how many closed windows an SLA did not judge, and why it may not."""
    if not judged["unjudged"]:
        return ""
    were, these = ("was", "this window") if judged["unjudged"] == 1 else ("were", "these windows")
    reason = f"no record of {these} reached {judged['operator']}"
    if judged["quantile"] is None:
        reason = "the work was not measured"
    return f", and {judged['unjudged']:,} more {were} not judged, since {reason}"


def _quantile(judged: Mapping[str, Any], whose: str) -> str:
    """Names the quantile that was measured; its value comes from a bucket, so that it is within 1 % of it."""
    return f"the p{judged['quantile'] * 100:g} of the latency of {whose} at {judged['operator']}"


def _limit(judged: Mapping[str, Any], length: Callable[[float], str]) -> str:
    return f"and the limit is {length(judged['limit_ms'])}"


def blame_text(blamed: Mapping[str, Any], windows: str, slas: Sequence[str], length: Callable[[float], str]) -> str:
    """Says what of a part was judged, how long it was, and by how much that is too long.

    Args:
        blamed: the columns of BLAME about lengths.
        windows: the window, or the windows that were summed.
        slas: from `limiting_slas`.
        length: formats ms.
    """
    judged, excess, expected = (length(blamed[f"{name}_ms"]) for name in ("judged", "excess", "expected"))
    whose = "its work on" if blamed["compared"] == Compared.WORK else "its part of the age of"
    took = f"{whose} {windows} took {judged}"
    if slas:
        return f"{took}, {excess} more than the {expected} that {_named(slas)} for its work"
    if blamed["compared"] == Compared.WORK:
        return f"{took}, {excess} more than the {expected} that its SLA allows"
    if blamed["compared"] == Compared.USUAL:
        return f"{took}, {excess} more than the {expected} that are usual"
    unknown = "too few windows say what is usual"
    if not blamed["expected_ms"]:
        return f"{took}, and {unknown}"
    return f"{took}, {excess} more than the {expected} that its settings allow ({unknown})"


def compared_text(blamed: Mapping[str, Any], slas: Sequence[str]) -> str:
    """Says in a few words what of a part was compared, and with what; *slas* are from `limiting_slas`."""
    what = "work" if blamed["compared"] == Compared.WORK else "part of the age"
    if slas:
        return f"{what}, with what {_named(slas)} for work"
    # The windows of an hour or a day may have been compared with different ones.
    return f"{what}, with {_EXPECTED.get(blamed['compared'], 'what is expected of each window')}"


_EXPECTED = {
    Compared.WORK: "the limit of its SLA",
    Compared.USUAL: "its usual length",
    Compared.CONFIGURED: "the settings, as too few windows say what is usual",
}


def limiting_slas(blamed: Mapping[str, Any], verdicts: Iterable[Mapping[str, Any]]) -> list[str]:
    """Returns the names of the SLAs of work whose limit is the expected length of *blamed*.

    *verdicts* are those of a window, or rows about the SLAs of an interval.
    """
    slas: dict[str, None] = {}
    for verdict in verdicts:
        is_own = verdict["operator"] == blamed["operator"] and verdict["quantile"] is None
        expects_limit = verdict["limit_ms"] * blamed["windows"] == blamed["expected_ms"]
        if is_own and expects_limit and blamed["compared"] != Compared.USUAL:
            slas[verdict["sla"]] = None
    return list(slas)


def _named(slas: Sequence[str]) -> str:
    return f"SLA {slas[0]} allows" if len(slas) == 1 else f"SLAs {' and '.join(slas)} allow"


def mostly_before_source(window: Mapping[str, Any]) -> str | None:
    """Names the longest part before the source; None: bound, or unknown."""
    # Parts come longest first.
    longest = next((part["kind"] for part in window["parts"] if part["kind"] in BEFORE_SOURCE), AgeCause.BOUND)
    return None if longest == AgeCause.BOUND else PART_WORDS[longest]
