"""From the account of broken results to their causes: what is expected, what exceeds it, and whose return would help.

Source: the rules of `docs/decisions/0153-the-cause-is-whose-return-would-keep-most.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from tidemark.account.explanation import Cause, Explanation, Leaf, Verdict
from tidemark.account.owners import OWNERS, WORK_ON_RECORDS
from tidemark.account.owners.topic_volume import TOPIC_VOLUME
from tidemark.semantics.quantiles import MEDIAN, rank

ENOUGH = 20
"""So many results that kept the promise say what is expected."""
AS_USUAL, STANDARD_ERRORS = 1.5, 3
"""A share of broken results up to so many times its share in the history, or so near to it, is as usual."""
KEPT_ENOUGH, MOST_CAUSES = 0.9, 3
"""Causes are looked for until this share of the broken results would be kept, and at most so many."""
LEAST_SHARE = 0.1
"""A cause or a leaf has at least this share of the whole excess."""
ONE_CHILD = 0.7
"""A cause is the child of its node that has at least this share of the node's excess. An event is the whole of a leaf
that has as much of it."""
TOUCHED_MS, TOUCHED_SHARE = 100, 0.1
"""A leaf touched the results in which its excess is over 100 ms and over a tenth of its largest."""
OWNED = ["owner", "detail", "stream"]
Owned = tuple[str, str, str | None]


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Results that broke a promise, and results before them that kept it, with their parts.

    Attributes:
        results: `result`, `n` (how many it stands for), `age_ms`, `is_broken`.
        parts: PARTS of the results.
        limit_ms: what broken results exceed; null: nothing says how much they had to be quicker.
        batch_records: `stream`, `batch_id` and `records`, which the batch read.
        volume_of: the source whose volume more records in a batch are, by stream.
        configured: what the file says of the length of an owner, ms, by owner and detail; None stands for any detail.
        usual_share: of all results that broke the promise in the history; None: there is no history.
        judged: all results that were judged with the broken ones.
        is_open: whether the broken results are not visible yet.
    """

    results: pl.DataFrame
    parts: pl.DataFrame
    limit_ms: float
    batch_records: pl.DataFrame
    volume_of: Mapping[str, str] = field(default_factory=dict)
    configured: Mapping[tuple[str, str | None], int] = field(default_factory=dict)
    usual_share: float | None = None
    judged: int = 0
    is_open: bool = False


def explain(judged: Judged) -> Explanation:
    """Returns the causes of the broken results in *judged*, and the leaves with their amounts."""
    broken = judged.results.filter("is_broken")
    n_broken = int(broken["n"].sum())
    seen = {"broken": n_broken, "results": judged.judged, "usual_share": judged.usual_share}
    if not n_broken:
        return Explanation(verdict=Verdict.KEPT, **seen)
    expected = _Expected.of(judged)
    seen["has_history"] = expected.has_history
    if expected.whole_ms > judged.limit_ms:
        owned, ms = max(expected.lengths_ms.items(), key=lambda each: (each[1], each[0][:2]))
        amount_ms = ms
        if judged.is_open:
            spent = _of_results(judged, broken).filter(pl.col("owner") == owned[0], pl.col("detail") == owned[1])
            amount_ms = min(ms, int(spent["ms"].max() or 0))  # type: ignore[call-overload]
        leaf = Leaf(
            owner=owned[0], detail=owned[1], stream=owned[2], amount_ms=amount_ms, largest_ms=amount_ms, usual_ms=ms,
            touched=n_broken,
        )  # fmt: skip
        cause = Cause(owner=owned[0], detail=owned[1], explained=1.0)
        return Explanation(verdict=Verdict.CANNOT_BE_KEPT, causes=(cause,), leaves=(leaf,), explained=1.0, **seen)
    if _is_usual(n_broken, judged):
        return Explanation(verdict=Verdict.AS_USUAL, explained=1.0, **seen)
    excess = _excess(judged, broken, expected)
    whole_ms = float((excess["excess_ms"] * excess["n"]).sum())
    if not whole_ms:
        return Explanation(verdict=Verdict.NOT_KNOWN, **seen)
    causes = _causes(broken, excess, judged.limit_ms, whole_ms)
    return Explanation(
        verdict=Verdict.EXPLAINED,
        causes=causes,
        leaves=_leaves(excess, whole_ms, expected),
        explained=causes[-1].explained if causes else 0.0,
        **seen,
    )


def _is_usual(broken: int, judged: Judged) -> bool:
    """Returns True if the share of broken results is that of the history, by and large."""
    if judged.usual_share is None or not judged.judged:
        return False
    share, usual = broken / judged.judged, judged.usual_share
    error = (usual * (1 - usual) / judged.judged) ** 0.5
    return share <= AS_USUAL * usual or share - usual <= STANDARD_ERRORS * error and usual > 0


@dataclass(frozen=True)
class _Expected:
    """What is expected of owners in a result, ms, and of how many records in a batch that is."""

    lengths_ms: Mapping[Owned, int]
    records: Mapping[Owned, int]
    has_history: bool

    @property
    def whole_ms(self) -> int:
        return sum(self.lengths_ms.values())

    @classmethod
    def of(cls, judged: Judged) -> _Expected:
        kept = judged.results.filter(~pl.col("is_broken"))
        whole = int(kept["n"].sum())
        if whole < ENOUGH:
            told = judged.parts.join(judged.results.filter("is_broken"), on="result").select(OWNED).unique()
            lengths = {owned: ms for owned in told.rows() if (ms := _configured(judged.configured, owned))}
            return cls(lengths, {}, has_history=False)
        of_kept = _of_results(judged, kept)
        lengths, records = dict[Owned, int](), dict[Owned, int]()
        for owned, rows in of_kept.group_by(OWNED):
            lengths[owned] = _weighted_median(rows["ms"], rows["n"], whole)
            of_batches = rows.drop_nulls("records")
            if of_batches.height:
                records[owned] = _weighted_median(of_batches["records"], of_batches["n"], int(of_batches["n"].sum()))
        return cls(lengths, records, has_history=True)


def _configured(configured: Mapping[tuple[str, str | None], int], owned: Owned) -> int:
    return configured.get(owned[:2], configured.get((owned[0], None), 0))


def _weighted_median(lengths: pl.Series, n: pl.Series, whole: int) -> int:
    """Returns the median of *whole* lengths, *n* of each; those that are not told are 0 (nearest rank)."""
    ordered = pl.DataFrame({"ms": lengths, "n": n}).sort("ms")
    place = rank(whole, MEDIAN) - (whole - int(ordered["n"].sum()))
    at = int(np.searchsorted(ordered["n"].cum_sum().to_numpy(), place, side="right"))
    return int(ordered["ms"][at]) if place >= 0 else 0


def _of_results(judged: Judged, results: pl.DataFrame) -> pl.DataFrame:
    """Returns the sum of each owner in each of *results*, with the most records of its batches, and its last event."""
    parts = judged.parts.join(results.select("result", "n"), on="result")
    return (
        parts.join(judged.batch_records, on=["stream", "batch_id"], how="left")
        .group_by("result", "n", *OWNED, maintain_order=True)
        .agg(
            pl.sum("ms"),
            pl.max("records"),
            ended_ms=pl.col("ended_ms").sort_by("ms").last(),
            began_ms=(pl.col("ended_ms") - pl.col("ms")).min(),
        )
    )


def _excess(judged: Judged, broken: pl.DataFrame, expected: _Expected) -> pl.DataFrame:
    """Returns the excess of owners in *broken* results: `result`, `n`, OWNED, `excess_ms`, `ended_ms`, `began_ms`.

    Of work on more records than expected the topic's volume has the excess that is due to them.
    """
    rows = []
    for row in _of_results(judged, broken).iter_rows(named=True):
        owned = row["owner"], row["detail"], row["stream"]
        usual_ms = expected.lengths_ms.get(owned, 0)
        excess_ms = max(0, row["ms"] - usual_ms)
        usual_records, records = expected.records.get(owned), row["records"]
        more_ms = 0
        if row["owner"] in WORK_ON_RECORDS and usual_records and records:
            more_ms = min(excess_ms, max(0, round(usual_ms * (records - usual_records) / usual_records)))
        of_volume = (TOPIC_VOLUME, judged.volume_of.get(row["stream"], row["stream"]), row["stream"])
        for each, ms in ((owned, excess_ms - more_ms), (of_volume, more_ms)):
            if ms:
                rows.append((row["result"], row["n"], *each, ms, row["ended_ms"], row["began_ms"]))
    whole = pl.Int64()
    schema = {"result": whole, "n": whole, **dict.fromkeys(OWNED, pl.String())}
    schema |= {"excess_ms": whole, "ended_ms": whole, "began_ms": whole}
    found = pl.DataFrame(rows, schema=schema, orient="row")
    of_one = ["result", "n", *OWNED]
    return found.group_by(of_one, maintain_order=True).agg(
        pl.sum("excess_ms"), pl.col("ended_ms").sort_by("excess_ms").last(), pl.min("began_ms")
    )


def path_of(owner: str, detail: str, stream: str | None) -> tuple[tuple[str, str], ...]:
    """Returns the nodes from the root of an owner's tree to its leaf, each by owner and detail.

    A topic's root is its source, and a driver's its stream. Owners that stand alone are roots themselves.
    """
    above: list[tuple[str, str]] = []
    parent = OWNERS[owner].parent
    while parent is not None:
        above.append((parent, (stream or "") if parent == "driver" else detail))
        parent = OWNERS[parent].parent
    if above and above[-1][0] == "topic":
        above[-1] = "topic", detail.split("/")[0]
    return (*reversed(above), (owner, detail))


def _causes(broken: pl.DataFrame, excess: pl.DataFrame, limit_ms: float, whole_ms: float) -> tuple[Cause, ...]:
    """Returns the roots whose return keeps most of the *broken* results, each the deepest node that has its excess."""
    paths = {owned: path_of(*owned) for owned in excess.select(OWNED).unique(maintain_order=True).rows()}
    roots = sorted({path[0] for path in paths.values()})
    place = {result: row for row, result in enumerate(broken["result"])}
    matrix = np.zeros((broken.height, len(roots)))
    for result, owner, detail, stream, ms in excess.select("result", *OWNED, "excess_ms").iter_rows():
        matrix[place[result], roots.index(paths[owner, detail, stream][0])] += ms
    n, ages_ms = broken["n"].to_numpy(), broken["age_ms"].to_numpy().astype(float)
    sums_ms = matrix.T @ n
    left = {number for number in range(len(roots)) if sums_ms[number] >= LEAST_SHARE * whole_ms}
    causes: list[Cause] = []
    while left and len(causes) < MOST_CAUSES:
        kept = {number: int(n[ages_ms - matrix[:, number] <= limit_ms].sum()) for number in left}
        best = max(left, key=lambda number: (kept[number], sums_ms[number], -number))
        left.remove(best)
        ages_ms = ages_ms - matrix[:, best]
        owner, detail = _descended(roots[best], excess, paths)
        causes.append(Cause(owner=owner, detail=detail, explained=kept[best] / int(n.sum())))
        if causes[-1].explained >= KEPT_ENOUGH:
            break
    return tuple(causes)


def _descended(
    root: tuple[str, str], excess: pl.DataFrame, paths: Mapping[Owned, tuple[tuple[str, str], ...]]
) -> tuple[str, str]:
    """Returns the deepest node below *root* to which one child after the other leads."""
    sums_ms: dict[tuple[tuple[str, str], ...], float] = {}
    for owner, detail, stream, ms in excess.select(*OWNED, pl.col("excess_ms") * pl.col("n")).iter_rows():
        path = paths[owner, detail, stream]
        for depth in range(len(path)):
            sums_ms[path[: depth + 1]] = sums_ms.get(path[: depth + 1], 0) + ms
    node: tuple[tuple[str, str], ...] = (root,)
    while True:
        children = [path for path in sums_ms if len(path) == len(node) + 1 and path[: len(node)] == node]
        large = [path for path in children if sums_ms[path] >= ONE_CHILD * sums_ms[node]]
        if not large:
            return node[-1]
        node = large[0]


def _leaves(excess: pl.DataFrame, whole_ms: float, expected: _Expected) -> tuple[Leaf, ...]:
    """Returns the leaves that have enough of the excess, the one with most first."""
    leaves: list[tuple[float, Leaf]] = []
    for owned, rows in excess.group_by(OWNED, maintain_order=True):
        sum_ms = float((rows["excess_ms"] * rows["n"]).sum())
        if sum_ms < LEAST_SHARE * whole_ms:
            continue
        largest_ms = int(rows["excess_ms"].max())  # type: ignore[arg-type]
        touched = rows.filter(pl.col("excess_ms") > max(TOUCHED_MS, TOUCHED_SHARE * largest_ms))
        touched = touched if touched.height else rows
        n = int(touched["n"].sum())
        events = touched.drop_nulls("ended_ms").group_by("ended_ms").agg(pl.col("excess_ms").dot("n").alias("ms"))
        is_event = events.height > 0 and events["ms"].max() >= ONE_CHILD * touched["excess_ms"].dot(touched["n"])
        amount_ms = largest_ms if is_event else _weighted_median(touched["excess_ms"], touched["n"], n)
        owner, detail, stream = owned
        leaf = Leaf(
            owner=str(owner), detail=str(detail), stream=None if stream is None else str(stream),
            amount_ms=amount_ms, largest_ms=largest_ms, usual_ms=expected.lengths_ms.get(owned, 0),  # type: ignore[call-overload]
            share=sum_ms / whole_ms, touched=n, since_ms=touched["began_ms"].min(),  # type: ignore[arg-type]
        )  # fmt: skip
        leaves.append((sum_ms, leaf))
    return tuple(leaf for _, leaf in sorted(leaves, key=lambda each: (-each[0], each[1].owner, each[1].detail)))
