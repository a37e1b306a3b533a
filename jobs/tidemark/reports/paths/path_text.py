"""Says in words what is known about critical paths.

Lengths are whole ms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tidemark.account.explanation import Leaf
from tidemark.account.owners.registry import OWNERS, is_at_operator
from tidemark.account.text import NO_HISTORY, detail_for_people, did
from tidemark.facts.path_facts import physical_name
from tidemark.model.settings.lengths import counted, for_people, percent
from tidemark.semantics.critical_path import STANDS_STILL


def task_text(step: Mapping[str, Any]) -> str | None:
    """Formats how late the task of *step* was.

    The text has the key of most of its records, if there is such a key. None: the operator has one task.
    """
    if not step["task"]:
        return None
    late = f"{physical_name(step)} finished {for_people(step['behind_tasks_ms'])} after the median of its other tasks"
    return f"{late}; {percent(step['hot_share'])} of its records are of {step['hot_key']}" if step["hot_key"] else late


def age_text(window: Mapping[str, Any]) -> str:
    """Returns how old *window* was at the end of its path, or that an operator stands still before it."""
    if window["state"] in STANDS_STILL:
        return f"not finished by {window['leaf']}"
    return f"{window['age_ms']:,} ms old when {window['leaf']} had finished it"


def part_text(part: Mapping[str, Any]) -> str:
    """Names the owner of *part* of a window's age, for people.

    >>> part_text({"owner": "next_record", "detail": "orders/0", "stream": "shop/top"})
    'next record: `orders` partition 0'
    >>> part_text({"owner": "trigger", "detail": "", "stream": "shop/top"})
    'trigger: `shop/top`'
    >>> part_text({"owner": "target", "detail": "journal", "stream": "shop/top"})
    'target: `journal` of `shop/top`'
    """
    leaf = _leaf(part)
    # The page of an old interval may have an owner that is no longer one.
    owner = OWNERS.get(leaf.owner)
    place = detail_for_people(leaf) if owner is not None else leaf.detail
    # An operator is one of the topology, and each stream has a journal.
    is_of_stream = (
        owner is not None and not is_at_operator(leaf.owner, leaf.detail) and leaf.stream not in {None, leaf.detail}
    )
    return f"{leaf.owner.replace('_', ' ')}: {place}{f' of `{leaf.stream}`' if is_of_stream else ''}"


def grown_text(window: Mapping[str, Any]) -> str | None:
    """Says which part of the age of *window* exceeds its usual length most; None if the parts are not known."""
    if not window["parts"]:
        return None
    most = max(window["parts"], key=_grown_ms)
    if _grown_ms(most) <= 0:
        return "no part of it is longer than usual"
    has_history = most["usual_ms"] is not None
    said = did(_leaf(most), has_history=has_history)
    return said if has_history else f"{said}; {NO_HISTORY}"


def _grown_ms(part: Mapping[str, Any]) -> int:
    return int(part["ms"]) - (part.get("usual_ms") or 0)


def _leaf(part: Mapping[str, Any]) -> Leaf:
    detail = part["detail"] or part["stream"] or ""
    grown_ms = _grown_ms(part) if "ms" in part else None
    usual_ms = part.get("usual_ms")
    return Leaf(owner=part["owner"], detail=detail, stream=part["stream"], amount_ms=grown_ms, usual_ms=usual_ms)


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
