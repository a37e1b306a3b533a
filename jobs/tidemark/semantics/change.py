"""When an update says nothing new, by name.

`kernels/change.py` decides the same for a whole batch at once; this is what its decisions have to equal.
Source: KIP-557 and Kafka Streams, ValueAndTimestampSerializer.valuesAreSameAndTimeIsIncreasing (KAFKA-12508).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Rule(StrEnum):
    """When an update with the value that is stored already counts as unchanged."""

    STRICTLY_NEWER = "strictly_newer"
    """Its timestamp is later. Kafka's rule for source tables; an equal one is sent on (KAFKA-12508)."""
    SAME_INSTANT = "same_instant"
    """Its timestamp is the stored one. The KIP's rule for aggregations."""
    VALUE_ONLY = "value_only"
    """Whatever its timestamp."""


@dataclass(frozen=True)
class Versioned:
    """A value as canonical bytes, or None for a tombstone, and the timestamp of its record in epoch ms."""

    value: bytes | None
    timestamp_ms: int


@dataclass(frozen=True)
class Decided:
    """One `emit` per update, in their order, and the version that is stored after the last one."""

    emits: tuple[bool, ...]
    stored: Versioned | None


def is_unchanged(stored: Versioned | None, update: Versioned, rule: Rule) -> bool:
    """Whether *update* says nothing that *stored* does not: it is neither stored nor sent on.

    A key without a stored version is as if a tombstone were stored. A tombstone after a tombstone is unchanged by
    every rule, whatever the timestamps.
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


def decide(stored: Versioned | None, updates: Iterable[Versioned], rule: Rule) -> Decided:
    """What becomes of the *updates* of one key, one after the other.

    An update that changes is sent on and stored; one that does not leaves the stored version as it is, with its
    older timestamp: "the record time represents the beginning of the validity interval". So the stored version is
    always the last one sent on, by every rule.
    """
    emits = []
    for update in updates:
        changed = not is_unchanged(stored, update, rule)
        emits.append(changed)
        stored = update if changed else stored
    return Decided(emits=tuple(emits), stored=stored)
