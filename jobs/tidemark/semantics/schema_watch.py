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

from tidemark.selection import omit

LEARNED = 100
"""A field that appears after so many sampled records is new; before that it is learned."""
GONE = 100
"""A usual field has vanished after so many sampled records without it, if GONE_MS have passed as well."""
GONE_MS = 300_000
"""Shortest time for which a usual field is absent before it has vanished."""
USUAL = 0.9
"""A field is usual if at least this share of the sampled records has it."""
REMEMBERED = 1_000
"""So many sampled records count for the share of a field; beyond that old ones lose weight by half."""
REPEATED_MS = 3_600_000
"""Time after which a change of a seen field is recorded again."""
MOST_FIELDS = 200
"""Most fields of a source that are watched, unless more are declared."""
NULL = "null"
"""The type of a field without a value."""


class FieldChange(StrEnum):
    """Changes of a field of a topic."""

    UNDECLARED = "undeclared"
    """Records have a field that the topology does not declare."""
    NEW = "new"
    """Records have a field that they did not have before."""
    VANISHED = "vanished"
    """Records usually had the field, and do not have it any more."""
    RETYPED = "retyped"
    """The values of a field have another type than before."""


OF_RECORDS = (FieldChange.NEW, FieldChange.VANISHED, FieldChange.RETYPED)
"""Changes between earlier and later records; the topology's declaration plays no part in them."""


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
            sums = fields.setdefault(name, {})
            for type_, n in counts.items():
                sums[type_] = sums.get(type_, 0) + n
        return FieldSample(self.records + other.records, fields)


NO_SAMPLE = FieldSample()


_STEP = re.compile(r'"(?:[^"\\]|\\.)*"|\[\]|[^.\[]+')
_NO_FIELDS: Mapping[str, Any] = {}  # a task of Spark pickles it, and pickle knows no MappingProxyType


class TypeSeen(NamedTuple):
    """A type that values of a field had.

    The type was seen last in the batch of `last_ms`; since then the field had other types in `absent` sampled records.
    """

    last_ms: int
    absent: int = 0


class FoundChange(NamedTuple):
    """The newest change of a field.

    `type` is the type that its values had then; for a retyped field `was_type` is the type before. The change was found
    in the batch of `found_ms`, and last recorded in the batch of `recorded_ms`.
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
        """True if the field vanished, and was not seen again."""
        return self.found is not None and self.found.change is FieldChange.VANISHED

    @property
    def newest_type(self) -> str | None:
        """The type that was seen last; None if the field never had a value."""
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
    """Returns the name of a field as one step of a path to it, quoted if needed.

    >>> step("tail"), step("a.b")
    ('tail', '"a.b"')
    """
    return name if name and not any(letter in name for letter in '."[') else json.dumps(name)


@lru_cache(maxsize=10_000)
def _outer(path: str) -> tuple[str, ...]:
    """Returns the paths of the fields around the field *path*, nearest first.

    >>> _outer("a[].b")
    ('a[]', 'a')
    """
    ends = [match.end() for match in _STEP.finditer(path)]
    return tuple(path[:end] for end in reversed(ends[:-1]))


def watch(
    before: SourceFields, sample: FieldSample, declared: Collection[str], *, now_ms: int
) -> tuple[SourceFields, list[ChangedField]]:
    """Returns a topic's fields after a batch, and changes to record.

    A field inside another one is declared with it, and neither appears nor vanishes by itself in a batch in which the
    outer one does.

    Args:
        before: the fields before the batch.
        sample: the fields of the batch's sampled records.
        declared: the outermost fields that the topology declares, each as a `step` of a path.
        now_ms: decision time of the batch.
    """
    if not sample.records:
        return before, []
    fields: dict[str, FieldSeen] = {}
    changes: list[ChangedField] = []
    room = MOST_FIELDS - len({*declared, *before.fields})
    # Outer fields come before those inside, for which they are looked up.
    for path in sorted({*before.fields, *sample.fields}, key=lambda path: (len(_outer(path)), path)):
        known, types = before.fields.get(path), sample.fields.get(path, {})
        # Declared fields are always watched, so undeclared ones share what room they leave.
        if known is None and path not in declared:
            room -= 1
            if room < 0:
                continue
        outer = [fields[name] for name in _outer(path) if name in fields]
        is_declared = (_outer(path) or (path,))[-1] in declared
        now = _seen(known, types, sample.records, now_ms)
        change = _change(
            known, now, types, now_ms, is_taught=before.sampled >= LEARNED, is_known=is_declared or bool(outer)
        )
        if change is FieldChange.VANISHED and any(around.is_gone for around in outer):
            continue
        if change is FieldChange.NEW and any(around.found and around.found.found_ms == now_ms for around in outer):
            # A field that had vanished is back, so its old change counts no longer.
            change = known = None
        found = _found(known, now, types, change, now_ms, is_declared=is_declared)
        fields[path] = now._replace(found=found)
        if found and found.recorded_ms == now_ms:
            changes.append(ChangedField(path, is_declared, fields[path], found))
    return SourceFields(min(before.sampled + sample.records, LEARNED), fields), changes


def _seen(before: FieldSeen | None, types: Mapping[str, int], records: int, now_ms: int) -> FieldSeen:
    """Returns a field after a batch with so many sampled *records*.

    Args:
        before: the field before the batch; None if it was never seen.
        types: how many sampled records of the batch have the field with each type; empty if none has it.
        records: all sampled records of the batch.
        now_ms: decision time of the batch.
    """
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
    """Returns how a batch changed a field; None if it did not.

    Args:
        before: the field before the batch; None if it was never seen.
        now: the field after it.
        types: how many sampled records of the batch have the field with each type; empty if none has it.
        now_ms: decision time of the batch.
        is_taught: enough records were sampled before the batch to call a field new.
        is_known: the field is declared, or lies inside another field, which is reported in its place.
    """
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
    """Returns the newest change of a field after a batch; None if it has none to report.

    Args:
        before: the field before the batch; None if it was never seen.
        now: the field after it.
        types: how many sampled records of the batch have the field with each type.
        change: the change in this batch; None keeps the one before, which is recorded again once an hour.
        now_ms: decision time of the batch.
        is_declared: the topology declares the field, so an older UNDECLARED counts no longer.
    """
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
