"""Finds the causes of broken results: owners that took more time than expected, and whose return to it would help.

`docs/decisions/0154-the-cause-is-whose-return-keeps-most.md` has the rules, with an example.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from tidemark.account.explanation import LEAST_SHARE, Answer, CausingOwner, Explanation, Leaf
from tidemark.account.facts import COUNT, MS, TEXT
from tidemark.account.owners.registry import OWNERS
from tidemark.account.owners.topic_volume import TOPIC_VOLUME
from tidemark.account.usual_numbers import AS_USUAL, is_usual
from tidemark.semantics.quantiles import MEDIAN, rank

ENOUGH = 20
"""With fewer results that kept the promise there is no history. Then the settings in the file say what is expected."""
KEPT_ENOUGH, MOST_CAUSES = 0.9, 3
"""Causes are added until KEPT_ENOUGH of the broken results would be kept without them, and at most MOST_CAUSES."""
ONE_CHILD = 0.7
"""If one child of a node in the owners' trees has this share of the node's excess, the child is the cause. If one event
has this share of an excess, the event caused it."""
TOUCHED_MS, TOUCHED_SHARE = 100, 0.1
"""An owner touched a result if its excess there is over TOUCHED_MS, and over TOUCHED_SHARE of its largest excess."""
OWNED = ["owner", "detail", "stream"]
Owned = tuple[str, str, str | None]
Node = tuple[str, str]
"""An owner and its detail, as a node of the owners' trees."""
SUMS = pl.Schema(
    {
        "result": pl.Int64(),
        "n": COUNT,
        "owner": TEXT,
        "detail": TEXT,
        "stream": TEXT,
        "ms": MS,
        "records": COUNT,
        "event_ms": MS,
        "began_ms": MS,
    }
)
"""The time of an owner in a result, or its excess: `ms`.

`records` is how many records the batch read, `event_ms` the end of the event that took most of the time, and `began_ms`
the beginning of the owner's first part.
"""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Results that broke a promise, and results before them that kept it, with their parts.

    Attributes:
        results: a row for each result, with its number `result`, how many results `n` it stands for, its age `age_ms`,
            that age less the longest one that keeps the promise, `over_ms`, and `is_broken`.
        parts: PARTS of the results.
        batch_records: how many `records` a batch read, by `stream` and `batch_id`.
        volume_of: the source that makes the batches of a stream large, by stream (`source_of_volume`).
        configured: the length of each setting, ms, by owner and detail; the detail None stands for all details.
        usual_share: which share of earlier results broke the promise, 0 to 1; None without earlier results.
        judged: how many results were judged, with those that kept the promise.
        is_open: the broken result is not visible yet.
    """

    results: pl.DataFrame
    parts: pl.DataFrame
    batch_records: pl.DataFrame
    volume_of: Mapping[str, str] = field(default_factory=dict)
    configured: Mapping[tuple[str, str | None], int] = field(default_factory=dict)
    usual_share: float | None = None
    judged: int = 0
    is_open: bool = False

    def sums(self, results: pl.DataFrame) -> pl.DataFrame:
        """Returns the SUMS of *results*, which are some of those judged."""
        parts = self.parts.join(results.select("result", "n"), on="result", maintain_order="left")
        return (
            parts.join(self.batch_records, on=["stream", "batch_id"], how="left", maintain_order="left")
            .group_by("result", "n", *OWNED, maintain_order=True)
            .agg(
                pl.sum("ms"),
                pl.max("records"),
                event_ms=pl.col("ended_ms").sort_by("ms").last(),
                began_ms=(pl.col("ended_ms") - pl.col("ms")).min(),
            )
            .select(SUMS.names())
            .cast(SUMS)
        )


def explain(judged: Judged) -> Explanation:
    """Returns the causes of the broken results in *judged*, and the leaves with their amounts."""
    broken = judged.results.filter("is_broken")
    n_broken = int(broken["n"].sum())
    if not n_broken:
        return Explanation(answer=Answer.KEPT, results=judged.judged, usual_share=judged.usual_share)
    expected, sums = _expected(judged), judged.sums(broken)
    limit_ms = broken.select((pl.col("age_ms") - pl.col("over_ms")).min()).item()
    answer, causes, leaves = Answer.NOT_KNOWN, tuple[CausingOwner, ...](), tuple[Leaf, ...]()
    if sum(expected.lengths_ms.values()) > limit_ms:
        answer, causes, leaves = Answer.CANNOT_BE_KEPT, *_largest_expected(expected, sums, judged)
    elif _is_usual(n_broken, judged):
        answer = Answer.AS_USUAL
    else:
        excess = _excess(judged, sums, expected)
        whole_ms = float((excess["ms"] * excess["n"]).sum())
        if whole_ms:
            answer = Answer.EXPLAINED
            causes, leaves = _causes(broken, excess, whole_ms), _leaves(excess, whole_ms, expected)
    return Explanation(
        answer=answer,
        causes=causes,
        leaves=leaves,
        explained=causes[-1].explained if causes else 0.0,
        broken=n_broken,
        results=judged.judged,
        usual_share=judged.usual_share,
        has_history=expected.has_history,
    )


def _is_usual(broken: int, judged: Judged) -> bool:
    """Returns True if about as many results broke the promise in the history."""
    if judged.usual_share is None or not judged.judged:
        return False
    return is_usual(broken / judged.judged, judged.usual_share, judged.judged, times=AS_USUAL)


# What is expected


@dataclass(frozen=True)
class _Expected:
    """What is expected of each owner in a result.

    Attributes:
        lengths_ms: the time of the owner.
        records: how many records the batch has when the owner takes that time.
        varying_ms: the part of that time which grows with the number of records.
        has_history: earlier results say what is expected; otherwise the settings in the file do.
    """

    lengths_ms: Mapping[Owned, int]
    records: Mapping[Owned, int]
    varying_ms: Mapping[Owned, float]
    has_history: bool


def _expected(judged: Judged) -> _Expected:
    """Returns the medians of the results that kept the promise; if they are too few, the lengths in the file."""
    kept = judged.results.filter(~pl.col("is_broken"))
    whole = int(kept["n"].sum())
    if whole < ENOUGH:
        broken = judged.sums(judged.results.filter("is_broken"))
        configured = {
            (owner, detail, stream): judged.configured.get((owner, detail), judged.configured.get((owner, None), 0))
            for owner, detail, stream in broken.select(OWNED).unique().rows()
        }
        return _Expected({owned: ms for owned, ms in configured.items() if ms}, {}, {}, has_history=False)
    lengths_ms, records, varying_ms = dict[Owned, int](), dict[Owned, int](), dict[Owned, float]()
    for owned, rows in _by_owner(judged.sums(kept)):
        lengths_ms[owned] = median_of_all(rows["ms"], rows["n"], whole)
        of_batches = rows.drop_nulls("records")
        if of_batches.height:
            records[owned] = median_of_all(of_batches["records"], of_batches["n"], int(of_batches["n"].sum()))
            varying_ms[owned] = _varying_ms(of_batches, records[owned], lengths_ms[owned])
    return _Expected(lengths_ms, records, varying_ms, has_history=True)


def _varying_ms(rows: pl.DataFrame, usual_records: int, usual_ms: int) -> float:
    """Returns the part of a usual length that grows with the number of records, by the least-squares line of *rows*.

    If all batches had the same number of records, the whole length counts.
    """
    per_record_ms = rows.select(pl.cov("ms", "records") / pl.var("records").replace(0, None)).item()
    return float(usual_ms) if per_record_ms is None else min(max(0.0, per_record_ms * usual_records), float(usual_ms))


def _by_owner(sums: pl.DataFrame) -> Iterator[tuple[Owned, pl.DataFrame]]:
    for (owner, detail, stream), rows in sums.group_by(OWNED, maintain_order=True):
        yield (str(owner), str(detail), None if stream is None else str(stream)), rows


def median_of_all(lengths: pl.Series, n: pl.Series, whole: int) -> int:
    """Returns the median of *whole* lengths, of which *lengths* occur *n* times each and all others are 0."""
    ordered = pl.DataFrame({"length": lengths, "n": n}).sort("length")
    # The zeros come first in the order of lengths.
    rank_of_given = rank(whole, MEDIAN) - (whole - int(ordered["n"].sum()))
    row = int(np.searchsorted(ordered["n"].cum_sum().to_numpy(), rank_of_given, side="right"))
    return int(ordered["length"][row]) if rank_of_given >= 0 else 0


def _largest_expected(
    expected: _Expected, sums: pl.DataFrame, judged: Judged
) -> tuple[tuple[CausingOwner, ...], tuple[Leaf, ...]]:
    """Returns the owner of the largest expected length, as cause and leaf; of an open result, the time spent so far."""

    def length_then_name(expectation: tuple[Owned, int]) -> tuple[int, str, str, str]:
        (owner, detail, stream), ms = expectation
        return ms, owner, detail, stream or ""

    (owner, detail, stream), ms = max(expected.lengths_ms.items(), key=length_then_name)
    spent_ms = sums.filter(pl.col("owner") == owner, pl.col("detail") == detail).select(pl.max("ms")).item() or 0
    amount_ms = min(ms, int(spent_ms)) if judged.is_open else ms
    broken = int(judged.results.filter("is_broken")["n"].sum())
    leaf = Leaf(
        owner=owner,
        detail=detail,
        stream=stream,
        amount_ms=amount_ms,
        largest_ms=amount_ms,
        usual_ms=ms,
        touched=broken,
    )
    return (CausingOwner(owner=owner, detail=detail, explained=1.0),), (leaf,)


# What exceeds it


def _excess(judged: Judged, sums: pl.DataFrame, expected: _Expected) -> pl.DataFrame:
    """Returns the excess of each owner in each result, as SUMS.

    If the batch had more records than expected, the excess of work that is due to them belongs to the volume of the
    topic.
    """
    rows: list[tuple[object, ...]] = []
    for result, n, owner, detail, stream, ms, records, event_ms, began_ms in sums.iter_rows():
        owned = owner, detail, stream
        usual_ms, usual_records = expected.lengths_ms.get(owned, 0), expected.records.get(owned, 0)
        excess_ms, volume_ms = max(0, ms - usual_ms), 0
        if OWNERS[owner].works_on_records and usual_records and records:
            more_records = max(0, records - usual_records)
            volume_ms = min(excess_ms, round(expected.varying_ms[owned] * more_records / usual_records))
        volume = TOPIC_VOLUME, judged.volume_of.get(stream, stream), stream
        for blamed, blamed_ms in ((owned, excess_ms - volume_ms), (volume, volume_ms)):
            if blamed_ms:
                rows.append((result, n, *blamed, blamed_ms, records, event_ms, began_ms))
    found = pl.DataFrame(rows, schema=SUMS, orient="row")
    return found.group_by("result", "n", *OWNED, maintain_order=True).agg(
        pl.sum("ms"), pl.max("records"), pl.col("event_ms").sort_by("ms").last(), pl.min("began_ms")
    )


# Whose return would help


def path_of(owned: Owned) -> tuple[Node, ...]:
    """Returns the nodes of an owner's tree from its root to the owner.

    Owners below `topic` have the source as root, and owners below `driver` the stream. All others are roots themselves.

    >>> path_of(("producer", "orders/0", None))
    (('topic', 'orders'), ('producer', 'orders/0'))
    >>> path_of(("operator", "top", "shop/report"))
    (('driver', 'shop/report'), ('operator', 'top'))
    """
    owner, detail, stream = owned
    path: list[Node] = [(owner, detail)]
    parent = OWNERS[owner].parent
    while parent is not None:
        before = OWNERS[parent].parent
        source = detail.split("/")[0] if before is None else detail
        path.insert(0, (parent, (stream or detail) if parent == "driver" else source))
        parent = before
    return tuple(path)


def _causes(broken: pl.DataFrame, excess: pl.DataFrame, whole_ms: float) -> tuple[CausingOwner, ...]:
    """Returns the roots without whose excess most *broken* results would keep the promise, the best one first.

    Each root is told as the deepest node that has most of its excess. *whole_ms* is the sum of all excess.
    """
    paths: dict[Owned, tuple[Node, ...]] = {owned: path_of(owned) for owned, _ in _by_owner(excess)}
    roots = sorted({path[0] for path in paths.values()})
    row_of = {result: row for row, result in enumerate(broken["result"])}
    excess_ms = np.zeros((broken.height, len(roots)))  # of each root in each broken result
    for result, owner, detail, stream, ms in excess.select("result", *OWNED, "ms").iter_rows():
        excess_ms[row_of[result], roots.index(paths[owner, detail, stream][0])] += ms
    n, over_ms = broken["n"].to_numpy(), broken["over_ms"].to_numpy().astype(float)
    sums_ms = excess_ms.T @ n
    left = [number for number in range(len(roots)) if sums_ms[number] >= LEAST_SHARE * whole_ms]
    causes: list[CausingOwner] = []
    while left and len(causes) < MOST_CAUSES and (not causes or causes[-1].explained < KEPT_ENOUGH):
        kept = {number: int(n[over_ms <= excess_ms[:, number]].sum()) for number in left}
        best = max(left, key=lambda number: (kept[number], sums_ms[number], -number))
        left.remove(best)
        over_ms = over_ms - excess_ms[:, best]
        owner, detail = _deepest_cause(roots[best], excess, paths)
        causes.append(CausingOwner(owner=owner, detail=detail, explained=kept[best] / int(n.sum())))
    return tuple(causes)


def _deepest_cause(root: Node, excess: pl.DataFrame, paths: Mapping[Owned, tuple[Node, ...]]) -> Node:
    """Walks down from *root*, as long as one child has ONE_CHILD of its parent's excess, and returns the last node."""
    sums_ms: dict[tuple[Node, ...], float] = {}
    for owned, rows in _by_owner(excess):
        for depth in range(1, len(paths[owned]) + 1):
            node = paths[owned][:depth]
            sums_ms[node] = sums_ms.get(node, 0) + float((rows["ms"] * rows["n"]).sum())
    found: tuple[Node, ...] = (root,)
    while True:
        least_ms = ONE_CHILD * sums_ms[found]
        children = [path for path, ms in sums_ms.items() if path[:-1] == found and ms >= least_ms]
        if not children:
            return found[-1]
        found = children[0]


def _leaves(excess: pl.DataFrame, whole_ms: float, expected: _Expected) -> tuple[Leaf, ...]:
    """Returns the owners with at least LEAST_SHARE of the whole excess as leaves, the one with most first."""
    leaves: list[Leaf] = []
    for owned, rows in _by_owner(excess):
        share = float((rows["ms"] * rows["n"]).sum()) / whole_ms
        if share < LEAST_SHARE:
            continue
        largest_ms = int(rows.select(pl.max("ms")).item())
        touched = rows.filter(pl.col("ms") > max(TOUCHED_MS, TOUCHED_SHARE * largest_ms))
        touched = rows if touched.is_empty() else touched
        n = int(touched["n"].sum())
        leaves.append(
            Leaf(
                owner=owned[0],
                detail=owned[1],
                stream=owned[2],
                amount_ms=largest_ms if _is_one_event(touched) else median_of_all(touched["ms"], touched["n"], n),
                largest_ms=largest_ms,
                usual_ms=expected.lengths_ms.get(owned, 0),
                share=share,
                touched=n,
                since_ms=touched.select(pl.min("began_ms")).item(),
            )
        )
    return tuple(sorted(leaves, key=lambda leaf: (-leaf.share, leaf.owner, leaf.detail)))


def _is_one_event(touched: pl.DataFrame) -> bool:
    """Returns True if most of the excess ended at one instant: then a single event has caused it."""
    weighted = touched.with_columns(ms=pl.col("ms") * pl.col("n"))
    of_events = weighted.drop_nulls("event_ms").group_by("event_ms").agg(pl.sum("ms"))
    most_ms = of_events.select(pl.max("ms")).item() or 0
    return bool(most_ms >= ONE_CHILD * int(weighted["ms"].sum()))
