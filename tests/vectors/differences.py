"""Lists all deliberate differences between Tidemark and vectors, with their reasons.

A vector is chosen by what it says of itself, so that others of its form are too. The runner of the value that it is
chosen by holds Tidemark to its own rule, and to the way in which that differs.
"""

from typing import NamedTuple


class Difference(NamedTuple):
    reason: str
    ids: tuple[str, ...]


DIFFERENCES = {
    ("kafka_emit_on_change.json", "rule", "as_shipped_2_6"): Difference(
        "Kafka 2.6 took an equal value at an equal timestamp for unchanged, so an update whose state had been written "
        "and whose output had not was lost for ever (KAFKA-12508). Tidemark has only the corrected rule.",
        ids=("k557-12",),
    ),
    ("kafka_e2e_latency.json", "kind", "percentile_pinning"): Difference(
        "Kafka's percentiles pinned values outside of a fixed range to its ends, and were dropped for it "
        "(KAFKA-10165). Tidemark's buckets have no range.",
        ids=("k613-8", "k613-9"),
    ),
}
"""By file, and a field of the vector with its value."""

NOT_OFFERED = {
    "terminal_before_fix": "the stale clock of Kafka Streams before KAFKA-14597, in k613-10: it leaves processing out"
}
"""Returns parts of an expectation that follow from a wrong rule."""
