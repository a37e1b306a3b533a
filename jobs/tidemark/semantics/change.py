"""Names the rules by which an update counts as unchanged.

`kernels/updates/change.py` decides by them, for a whole batch at once.
Source: KIP-557 and Kafka Streams, ValueAndTimestampSerializer.valuesAreSameAndTimeIsIncreasing (KAFKA-12508).
"""

from __future__ import annotations

from enum import StrEnum


class Rule(StrEnum):
    """Change rule: when an update with an equal value counts as unchanged."""

    STRICTLY_NEWER = "strictly_newer"
    """Its timestamp is later. Kafka's rule for source tables.

    An update with an equal timestamp is sent on (KAFKA-12508).
    """
    SAME_INSTANT = "same_instant"
    """Its timestamp is the stored one. The KIP's rule for aggregations."""
    VALUE_ONLY = "value_only"
    """Its timestamp does not matter."""
