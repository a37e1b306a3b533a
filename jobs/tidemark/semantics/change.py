"""Names the rules by which an update counts as unchanged.

`kernels/updates/change.py` decides by them, for a whole batch at once.
Source: KIP-557 and Kafka Streams, ValueAndTimestampSerializer.valuesAreSameAndTimeIsIncreasing (KAFKA-12508).
"""

from __future__ import annotations

from enum import StrEnum


class Rule(StrEnum):
    """Change rule: when an update with an equal value counts as unchanged."""

    STRICTLY_NEWER = "strictly_newer"
    """The timestamp of the update is later than the stored one: Kafka's rule for source tables.

    An update with an equal timestamp is sent on (KAFKA-12508).
    """
    SAME_INSTANT = "same_instant"
    """The timestamp of the update equals the stored one: the KIP's rule for aggregations."""
    VALUE_ONLY = "value_only"
    """The timestamp of the update does not matter."""
