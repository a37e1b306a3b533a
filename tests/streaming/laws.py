"""Laws that hold for every topology's tables."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise

from streaming.drivers import BECAME, Row

from support.oracle_parts import Late, Place, Reached, Update

COUNTED = ("records_in", "held_before", *BECAME, "fan_out", "repeated")
UPDATE = ("key", "value", "timestamp", "old_timestamp", "source_partition", "source_offset")

ONE_ROW_PER = {  # batch and:
    "batches": (),
    "operator_batches": ("operator",),
    "latency_minutes": ("operator", "task_id", "window_start"),
    "operator_windows": ("operator", "window_start"),
    "partition_batches": ("source", "partition"),
    "changes": ("operator", "seq"),
    "state_changes": ("operator", "key"),
}

Outcomes = dict[tuple[int, str, str], int]
"""Updates by batch id, operator and outcome; none of 0."""


def outcomes_of(rows: Iterable[Row]) -> Outcomes:
    return {(r["batch_id"], r["operator"], word): r[word] for r in rows for word in COUNTED if r[word]}


def counted(outcomes: Mapping[int, Mapping[str, Mapping[str, int]]]) -> Outcomes:
    """An oracle's counts in the same form."""
    return {(b, name, word): n for b, of in outcomes.items() for name, c in of.items() for word, n in c.items() if n}


def check_accounting(outcomes: Iterable[Row]) -> None:
    """Checks that each input has an outcome, per batch and operator.

    Inputs are records that came in, or waited.
    """
    for row in outcomes:
        assert row["records_in"] + row["held_before"] == sum(row[word] for word in BECAME), row


def check_suppressed(outcomes: Iterable[Row], suppressed: Iterable[Row]) -> None:
    """Checks that evidence of suppressed updates equals their count.

    This holds for every batch and operator.
    """
    proofs: Counter[tuple[int, str]] = Counter()
    for row in suppressed:
        proofs[row["batch_id"], row["operator"]] += row["n"]
    assert proofs == {(r["batch_id"], r["operator"]): r["suppressed"] for r in outcomes if r["suppressed"]}


def check_never_back(partitions: Iterable[Row]) -> None:
    """Checks that no watermark goes back: partition, source or whole."""
    reached_ms: dict[tuple[str | None, int | None], int] = {}
    for row in partitions:
        place = (row["source"], row["partition"])
        assert (row["watermark"] or 0) >= reached_ms.get(place, 0), row
        reached_ms[place] = row["watermark"] or 0
    assert reached_ms


def check_final(batches: Iterable[Row], changes: Iterable[Row], *, closed_after_ms: int) -> None:
    """Checks that windows have one result, in their closing batch.

    It is the first batch whose watermark is *closed_after_ms* past the window's last instant.
    """
    watermarks_ms = {row["batch_id"]: row["watermark"] or 0 for row in batches}
    before_ms = dict(zip(list(watermarks_ms)[1:], watermarks_ms.values(), strict=False))
    rows = list(changes)
    assert max(Counter(row["key"] for row in rows).values()) == 1
    for row in rows:
        due_ms = row["window_end"] - 1 + closed_after_ms
        assert before_ms.get(row["batch_id"], 0) < due_ms <= watermarks_ms[row["batch_id"]], row


def updates_of(changes: Iterable[Row], operator: str) -> list[Update]:
    """Returns the updates that an operator sent, in order."""
    return [Update(*(row[name] for name in UPDATE)) for row in changes if row["operator"] == operator]


def by_batch(changes: Iterable[Row], operator: str) -> dict[int, list[Update]]:
    """Returns an operator's updates per batch, by key.

    For operators that send many keys at once.
    """
    found: dict[int, list[Update]] = defaultdict(list)
    for row in changes:
        found[row["batch_id"]] += updates_of([row], operator)
    return {batch_id: sorted(updates) for batch_id, updates in found.items() if updates}


def skips_of(suppressed: Iterable[Row], operator: str) -> Counter[str]:
    """How many updates of each key an operator did not send on."""
    found: Counter[str] = Counter()
    for row in suppressed:
        found[row["key"]] += row["n"] if row["operator"] == operator else 0
    return +found


def late_of(late_records: Iterable[Row], operator: str) -> list[Late]:
    """Returns an operator's late records, by place."""
    rows = [row for row in late_records if row["operator"] == operator]
    assert all(row["lateness_ms"] == row["watermark"] - row["timestamp"] for row in rows)
    return sorted(
        Late(Place(operator, row["partition"], row["offset"]), row["timestamp"], row["watermark"]) for row in rows
    )


def times_of(partitions: Iterable[Row], batches: Iterable[Row], source: str) -> dict[int, dict[int | None, Reached]]:
    """Returns the time of *source* and its partitions after each batch.

    The table has what a batch changed.
    """
    rows: dict[int, list[Row]] = defaultdict(list)
    for row in partitions:
        rows[row["batch_id"]] += [row] if row["source"] == source else []
    so_far: dict[int | None, Reached] = {}
    found = {}
    for batch in batches:
        so_far |= {row["partition"]: Reached(row["watermark"], row["activity"]) for row in rows[batch["batch_id"]]}
        found[batch["batch_id"]] = so_far.copy()
    return found


def check_read_once(partitions: Iterable[Row]) -> None:
    """Every batch reads on where the one before it ended."""
    ends: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for row in partitions:
        if row["until_offset"] is not None:
            ends[row["source"], row["partition"]].append((row["from_offset"], row["until_offset"]))
    assert ends
    for parts in ends.values():
        assert parts[0][0] == 0
        assert all(one[1] == other[0] for one, other in pairwise(parts))
