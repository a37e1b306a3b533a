"""Decides which fields of a topic are undeclared, new, vanished or retyped.

Only samples of the records are known, so a rare field is found late. The first LEARNED sampled records teach the usual
fields. Instants are decision times of batches, epoch ms.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

from tidemark.collecting import omit

LEARNED = 100
"""Sampled records after which an unseen field is new."""
GONE = 100
"""Sampled records without a usual field, after which it has vanished."""
GONE_MS = 300_000
"""Shortest time without a usual field, after which it has vanished."""
USUAL = 0.9
"""Share of the sampled records that have a usual field."""
REMEMBERED = 1_000
"""Most sampled records that count for the share of a field."""
REPEATED_MS = 3_600_000
"""Time after which a change of a seen field is recorded again."""
MOST_FIELDS = 200
"""Most fields of a source that are watched, unless more are declared."""
NULL = "null"
"""The type of a field without a value."""


class FieldChange(StrEnum):
    """Changes of a field of a topic."""

    UNDECLARED = "undeclared"
    """The topology does not declare it."""
    NEW = "new"
    """It was not in the records before."""
    VANISHED = "vanished"
    """It was usual, and records do not have it any more."""
    RETYPED = "retyped"
    """Its values have another type."""


OF_RECORDS = (FieldChange.NEW, FieldChange.VANISHED, FieldChange.RETYPED)
"""The changes of records, and not of declarations."""


@dataclass(frozen=True)
class FieldSample:
    """The fields of sampled records.

    `records` is their number; `fields` has, by field and type, the number of those that have it.
    """

    records: int = 0
    fields: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def plus(self, other: FieldSample) -> FieldSample:
        """Returns the sum of two samples."""
        fields = {name: dict(counts) for name, counts in self.fields.items()}
        for name, counts in other.fields.items():
            own = fields.setdefault(name, {})
            for type_, n in counts.items():
                own[type_] = own.get(type_, 0) + n
        return FieldSample(self.records + other.records, fields)


NO_SAMPLE = FieldSample()


_STEP = re.compile(r'"(?:[^"\\]|\\.)*"|\[\]|[^.\[]+')
_NO_FIELDS: Mapping[str, Any] = {}  # a task of Spark pickles it, and pickle knows no MappingProxyType


class TypeSeen(NamedTuple):
    """A type of a field.

    It was seen last in the batch of `last_ms`; `absent` sampled records had other types since.
    """

    last_ms: int
    absent: int = 0


class FoundChange(NamedTuple):
    """The newest change of a field.

    `type` is that of its values then, and `was_type` the one before of a retyped field. It was found in the batch of
    `found_ms`, and recorded last in that of `recorded_ms`.
    """

    change: FieldChange
    found_ms: int
    recorded_ms: int
    type: str | None
    was_type: str | None = None


class FieldSeen(NamedTuple):
    """A field of a topic.

    Of the sampled records up to the last one with it, `n` had it and `missing` did not; `absent` records came after.
    """

    first_ms: int
    last_ms: int
    n: int
    missing: int
    absent: int = 0
    types: Mapping[str, TypeSeen] = _NO_FIELDS
    found: FoundChange | None = None

    @property
    def is_gone(self) -> bool:
        """True if it vanished, and was not seen again."""
        return self.found is not None and self.found.change is FieldChange.VANISHED

    @property
    def newest_type(self) -> str | None:
        """The type that was seen last; None: it had no value."""
        valued = omit(self.types, (NULL,))
        return max(valued, key=lambda word: (valued[word].last_ms, word), default=None)


class SourceFields(NamedTuple):
    """The fields of a topic.

    `sampled` records were looked at so far, counted up to LEARNED.
    """

    sampled: int = 0
    fields: Mapping[str, FieldSeen] = _NO_FIELDS


@dataclass(frozen=True)
class ChangedField:
    """A change to record, and what was seen of the field."""

    field: str
    is_declared: bool
    seen: FieldSeen
    found: FoundChange


@lru_cache(maxsize=10_000)
def step(name: str) -> str:
    """Returns a name as a step of a path, quoted if needed.

    >>> step("tail"), step("a.b")
    ('tail', '"a.b"')
    """
    return name if name and not any(letter in name for letter in '."[') else json.dumps(name)


@lru_cache(maxsize=10_000)
def _outer(path: str) -> tuple[str, ...]:
    """Returns the paths of outer fields of *path*, nearest first.

    >>> _outer("a[].b")
    ('a[]', 'a')
    """
    ends = [match.end() for match in _STEP.finditer(path)]
    return tuple(path[:end] for end in reversed(ends[:-1]))


def watch(
    was: SourceFields, sample: FieldSample, declared: Collection[str], *, now_ms: int
) -> tuple[SourceFields, list[ChangedField]]:
    """Returns a topic's fields after a batch, and changes to record.

    A field inside another one is declared with it, and neither appears nor vanishes by itself in a batch in which the
    outer one does.

    Args:
        was: the fields before the batch.
        sample: the fields of the batch's sampled records.
        declared: the fields that the topology declares, as steps.
        now_ms: decision time of the batch.
    """
    if not sample.records:
        return was, []
    fields: dict[str, FieldSeen] = {}
    changes: list[ChangedField] = []
    places = MOST_FIELDS - len({*declared, *was.fields})
    # Outer fields come before those inside, for which they are looked up.
    for path in sorted({*was.fields, *sample.fields}, key=lambda path: (len(_outer(path)), path)):
        before, types = was.fields.get(path), sample.fields.get(path, {})
        # Places of declared fields are kept free for them.
        if before is None and path not in declared:
            places -= 1
            if places < 0:
                continue
        outer = [fields[name] for name in _outer(path) if name in fields]
        is_declared = (_outer(path) or (path,))[-1] in declared
        now = _seen(before, types, sample.records, now_ms)
        change = _change(
            before, now, types, now_ms, is_taught=was.sampled >= LEARNED, is_known=is_declared or bool(outer)
        )
        if change is FieldChange.VANISHED and any(each.is_gone for each in outer):
            continue
        if change is FieldChange.NEW and any(each.found and each.found.found_ms == now_ms for each in outer):
            # A field that had vanished is back, so its old change counts no longer.
            change = before = None
        found = _found(before, now, types, change, now_ms, is_declared=is_declared)
        fields[path] = now._replace(found=found)
        if found and found.recorded_ms == now_ms:
            changes.append(ChangedField(path, is_declared, fields[path], found))
    return SourceFields(min(was.sampled + sample.records, LEARNED), fields), changes


def _seen(before: FieldSeen | None, types: Mapping[str, int], records: int, now_ms: int) -> FieldSeen:
    """Returns a field after a batch of so many sampled *records*."""
    n = sum(types.values())
    after: dict[str, TypeSeen] = {}
    for word, seen in before.types.items() if before else ():
        absent = seen.absent + n
        # If types were never forgotten, a type that comes back would be no change.
        if not (absent >= GONE and now_ms - seen.last_ms >= GONE_MS):
            after[word] = TypeSeen(seen.last_ms, absent)
    after |= dict.fromkeys(types, TypeSeen(now_ms))
    if before is None or (before.is_gone and n):
        return FieldSeen(before.first_ms if before else now_ms, now_ms, n, records - n, types=after)
    if not n:
        return before._replace(absent=before.absent + records)
    had, had_not = before.n + n, before.missing + before.absent + records - n
    if had + had_not > REMEMBERED:
        had, had_not = had // 2, had_not // 2
    return before._replace(last_ms=now_ms, n=had, missing=had_not, absent=0, types=after)


def _change(
    before: FieldSeen | None, now: FieldSeen, types: Mapping[str, int], now_ms: int, *, is_taught: bool, is_known: bool
) -> FieldChange | None:
    """Returns the change of a field in a batch, or None."""
    if before is None or (before.is_gone and types):
        if is_taught:
            return FieldChange.NEW
        return None if is_known else FieldChange.UNDECLARED
    if types:
        valued = omit(types, (NULL,))
        if before.newest_type and not valued.keys() <= before.types.keys():
            return FieldChange.RETYPED
        return None if is_known or before.found else FieldChange.UNDECLARED
    is_usual = now.n >= USUAL * (now.n + now.missing)
    is_over = now.absent >= GONE and now_ms - now.last_ms >= GONE_MS
    return FieldChange.VANISHED if is_usual and is_over and not before.is_gone else None


def _found(
    before: FieldSeen | None,
    now: FieldSeen,
    types: Mapping[str, int],
    change: FieldChange | None,
    now_ms: int,
    *,
    is_declared: bool,
) -> FoundChange | None:
    """Returns the newest change of a field: *change*, if it is one."""
    if change is FieldChange.RETYPED and before:
        other = max(omit(types, (*before.types, NULL)), key=lambda word: (types[word], word))
        return FoundChange(change, now_ms, now_ms, other, before.newest_type)
    if change:
        return FoundChange(change, now_ms, now_ms, now.newest_type)
    found = before.found if before else None
    if found is None or (found.change is FieldChange.UNDECLARED and is_declared):
        return None
    is_due = types and now_ms - found.recorded_ms >= REPEATED_MS
    return found._replace(recorded_ms=now_ms) if is_due else found
