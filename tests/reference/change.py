"""Decides if an update is unchanged, one update after the other.

`kernels/updates/change.py` decides for a whole batch at once, and must decide the same.
Source: KIP-557 and Kafka Streams, ValueAndTimestampSerializer.valuesAreSameAndTimeIsIncreasing (KAFKA-12508).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidemark.semantics.change import Rule


@dataclass(frozen=True)
class Versioned:
    """A value as canonical bytes with its record's timestamp, epoch ms.

    The value of a tombstone is None.
    """

    value: bytes | None
    timestamp_ms: int


@dataclass(frozen=True)
class Decisions:
    """The decision for each update, in order, and the version stored afterwards."""

    emits: tuple[bool, ...]
    stored: Versioned | None


def is_unchanged(stored: Versioned | None, update: Versioned, rule: Rule) -> bool:
    """Returns True if *update* is neither stored nor sent on.

    A key without a stored version counts as a stored tombstone. A tombstone after a tombstone is unchanged by every
    rule, whatever the timestamps.
    """
    if stored is None or stored.value is None or update.value is None:
        return update.value is None and (stored is None or stored.value is None)
    if stored.value != update.value:
        return False
    match rule:
        case Rule.STRICTLY_NEWER:
            return update.timestamp_ms > stored.timestamp_ms
        case Rule.SAME_INSTANT:
            return update.timestamp_ms == stored.timestamp_ms
        case Rule.VALUE_ONLY:
            return True


def decide(stored: Versioned | None, updates: Iterable[Versioned], rule: Rule) -> Decisions:
    """Decides the *updates* of one key, one after the other.

    A changed update is sent on and stored. An unchanged one leaves the stored version as it is, with its older
    timestamp: "the record time represents the beginning of the validity interval". So the stored version is always the
    last one that was sent on, by every rule.
    """
    emits = []
    for update in updates:
        changed = not is_unchanged(stored, update, rule)
        emits.append(changed)
        stored = update if changed else stored
    return Decisions(emits=tuple(emits), stored=stored)
