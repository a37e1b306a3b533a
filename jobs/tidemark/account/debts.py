"""Who is to blame for records that wait unread: each owner has a debt, in records.

An owner that takes more time than usual lets records pile up. Its debt is its excess time × the usual number of
arrivals. If more records arrive than usual, the excess is the debt of their topic. What a source holds already when the
stream begins to read it is the debt of the change of the topology file. A batch that reads more records than usual pays
debts off, and the time that it takes for these records belongs to the owners whose debts it pays. When a plan leaves no
record behind, all debts are paid.

So a catch-up after an absence is blamed on the absence, however many batches it takes. (If debts were forgotten from
batch to batch, a slow catch-up would be blamed on the volume or on `max_records`.) Records that a plan left behind wait
for the next look, and then for the one after it. Each of these stretches belongs to the debts at its end, so that an
operator that hangs meanwhile owns what it caused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import polars as pl

from tidemark.account.arrivals import begun_before
from tidemark.account.facts import MS, TEXT, AccountFacts
from tidemark.account.owners.registry import work_on_records
from tidemark.account.owners.topic_volume import TOPIC_VOLUME
from tidemark.account.owners.topology_change import TOPOLOGY_CHANGE
from tidemark.account.owners.unknown import UNKNOWN
from tidemark.account.timeline import FIRST_MS, TIMELINE, overlay

PAID_OFF = 1e-6
"""A debt of at most this many records counts as paid, since fractions do not add up exactly."""
Owned = tuple[str, str]
"""An owner and its detail."""
SHARES = pl.Schema(
    {
        "stream": TEXT,
        "batch_id": pl.Int64(),
        "owner": TEXT,
        "detail": TEXT,
        "since": pl.Float64(),
        "until": pl.Float64(),
    }
)
"""To whom a stretch of time belongs: from the share `since` of it to the share `until`, both 0 to 1.

The rows of a batch tile its stretch without a gap.
"""


@dataclass(frozen=True)
class Debts:
    """The debts of streams.

    Attributes:
        waiting: SHARES of the time between the look before a batch and its own look, for records that the plan before
            left behind. A batch has no row if nothing had slowed the stream down, and one row of `unknown` if the
            beginning of the backlog is not known.
        extra: SHARES of the work of a batch. They begin at the share that a batch of usual size would have taken.
    """

    waiting: pl.DataFrame
    extra: pl.DataFrame


@dataclass(frozen=True)
class _Plan:
    """The plan of a batch: which records it takes, and which it leaves for later.

    Attributes:
        batch_id: the batch.
        looked_ms: when its end offsets were known, reference clock, ms.
        read: number of records that it takes.
        left: number of records that it leaves behind.
        arrivals: number of records that have arrived since the plan before, by input.
        begun: number of records that were there already when the stream began to read an input, by input.
        taken: first offset (None if not known) and exclusive end offset of what it takes, by input and partition.
        found_nothing_before: since the plan before, a look has found no records.
    """

    batch_id: int
    looked_ms: int
    read: int
    left: int
    arrivals: Mapping[str, int]
    begun: Mapping[str, int]
    taken: Mapping[tuple[str, int | None], tuple[int | None, int]]
    found_nothing_before: bool

    def follows(self, before: _Plan) -> bool:
        """Returns True if this plan goes on where the plan *before* has ended, in each partition.

        Otherwise rows of a plan between the two, or of a partition, are missing. A batch that took nothing has no plan.
        """
        return all(
            partition in self.taken and self.taken[partition][0] in {end, None}
            for partition, (_, end) in before.taken.items()
        )


@dataclass
class _Usual:
    """What is usual for a stream.

    Attributes:
        per_ms: arrivals in a ms, by input.
        per_batch: records that a batch reads.
        lengths_ms: time of each owner from one look to the next.
        varying_ms: the part of that time which grows with the number of records.
    """

    per_ms: dict[str, float] = field(default_factory=dict)
    per_batch: float = 0
    lengths_ms: dict[Owned, float] = field(default_factory=dict)
    varying_ms: dict[Owned, float] = field(default_factory=dict)

    def extra_ms(self, owner: str, detail: str, share: float) -> float:
        """Returns how long an owner usually works on the extra records of a batch, which are the *share* of all it
        read.
        """
        return self.varying_ms.get((owner, detail), math.inf) * share / (1 - share) if share < 1 else math.inf


def debts_of(facts: AccountFacts, timeline: pl.DataFrame, batches: pl.DataFrame) -> Debts:
    """Returns the debts of all streams. *timeline* (TIMELINE) and *batches* (of a Ledger) are by the reference
    clock.
    """
    waiting: list[tuple[object, ...]] = []
    extra: list[tuple[object, ...]] = []
    usual = _usual(facts)
    lengths = _lengths(timeline, batches)
    for stream, plans in _plans(facts, batches).items():
        if stream not in usual:
            waiting += [(stream, plan.batch_id, UNKNOWN, "usual", 0.0, 1.0) for plan in plans]
            continue
        for batch_id, debts, share in _debts_at_plans(plans, usual[stream], lengths.get(stream, {})):
            waiting += [(stream, batch_id, *row) for row in _in_turn(debts, 0.0)]
            if share:
                extra += [(stream, batch_id, *row) for row in _in_turn(debts, 1 - share)]
    return Debts(*(pl.DataFrame(rows, schema=SHARES, orient="row") for rows in (waiting, extra)))


def _debts_at_plans(
    plans: list[_Plan], usual: _Usual, lengths: Mapping[int, Mapping[tuple[str, str, bool], int]]
) -> Iterator[tuple[int, dict[Owned, float], float]]:
    """Yields the number of each batch, the debts at its plan, and the share of its work that pays debts off.

    *plans* are those of one stream, in order, and *lengths* the result of `_lengths` for it. Until a plan is known that
    leaves nothing behind, the only debt is one of `unknown`.
    """
    debts: dict[Owned, float] = {}
    is_known = False
    extra_share = paid = 0.0
    before: _Plan | None = None
    for plan in plans:
        follows = before is None or plan.follows(before)
        was_known = follows and is_known
        if was_known and before is not None:
            took_ms = _length_of_owners(lengths.get(plan.batch_id, {}), debts, extra_share, usual)
            kept = {owned: owed * (1 - paid) for owned, owed in debts.items()} if before.left else {}
            debts = _grown(kept, took_ms, plan, plan.looked_ms - before.looked_ms, usual)
            is_known = True
        else:
            debts = {}
            is_known = follows and (plan.found_nothing_before or plan.left == 0)
        owed = sum(debts.values())
        pays = min(max(0, plan.read - usual.per_batch), owed)
        extra_share, paid = (pays / plan.read, pays / owed) if pays else (0.0, 0.0)
        yield plan.batch_id, debts if was_known else {(UNKNOWN, "backlog"): 1.0}, extra_share
        before = plan


def _grown(
    debts: Mapping[Owned, float], took_ms: Mapping[Owned, float], plan: _Plan, since_ms: int, usual: _Usual
) -> dict[Owned, float]:
    """Returns the debts at a plan, sorted by owner.

    Args:
        debts: what was left of the debts after the plan before.
        took_ms: the time of each owner since then.
        plan: the plan, with the records that have arrived since then.
        since_ms: the length of that time.
        usual: what is usual for the stream.
    """
    rate = sum(usual.per_ms.values())
    grown = dict(debts)
    for owned, ms in took_ms.items():
        excess_ms = max(0, ms - usual.lengths_ms.get(owned, 0))
        grown[owned] = grown.get(owned, 0) + excess_ms * rate
    for source, found in plan.begun.items():
        grown[TOPOLOGY_CHANGE, source] = max(0, found - usual.per_ms.get(source, 0) * since_ms)
    for source, arrived in plan.arrivals.items():
        volume = TOPIC_VOLUME, source
        grown[volume] = max(0, grown.get(volume, 0) + arrived - usual.per_ms.get(source, 0) * since_ms)
    return {owned: owed for owned, owed in sorted(grown.items()) if owed > PAID_OFF}


def _length_of_owners(
    lengths: Mapping[tuple[str, str, bool], int], debts: Mapping[Owned, float], share: float, usual: _Usual
) -> dict[Owned, float]:
    """Returns the time of each owner from one look to the next.

    Of the work of an owner on more records than usual, the excess belongs to the owners of *debts*, in proportion.

    Args:
        lengths: the recorded time by owner, detail, and whether it was work on records.
        debts: the debts that the batch paid off.
        share: which share of the records of the batch paid debts off, 0 to 1.
        usual: what is usual for the stream.
    """
    took_ms: dict[Owned, float] = {}
    extra_ms = 0.0
    for (owner, detail, works), ms in lengths.items():
        own_ms = ms - min(ms * share, usual.extra_ms(owner, detail, share)) if works else ms
        extra_ms += ms - own_ms
        took_ms[owner, detail] = took_ms.get((owner, detail), 0) + own_ms
    owed = sum(debts.values())
    for owned, debt in debts.items():
        took_ms[owned] = took_ms.get(owned, 0) + extra_ms * debt / owed
    return took_ms


def _in_turn(debts: Mapping[Owned, float], since: float) -> Iterator[tuple[str, str, float, float]]:
    """Yields the owners of *debts* one after the other, each with its stretch of the time from the share *since* to
    1.
    """
    owed, sum_owed, first = sum(debts.values()), 0.0, since
    for n, ((owner, detail), debt) in enumerate(debts.items(), 1):
        sum_owed += debt
        # The last stretch ends at 1 exactly, so that no ms is left over.
        until = first + (1 - first) * sum_owed / owed if n < len(debts) else 1.0
        yield owner, detail, since, until
        since = until


def with_extra_time(
    timeline: pl.DataFrame, batches: pl.DataFrame, extra: pl.DataFrame, usual_lengths: pl.DataFrame
) -> pl.DataFrame:
    """Returns *timeline* with the last part of each piece of work given to the owners whose debts it paid off.

    That part is as long as work on so many extra records usually takes. If the work was slower than usual, the excess
    stays with its own owner: the operator would have been slow with fewer records, too.

    Args:
        timeline: TIMELINE of the streams.
        batches: the batches of a Ledger.
        extra: the SHARES in `Debts.extra`.
        usual_lengths: USUAL_LENGTHS.
    """
    looked = batches.select("stream", "batch_id", "looked_ms")
    pieces = timeline.join(looked, on=["stream", "batch_id"], how="left", maintain_order="left")
    pays = extra.group_by("stream", "batch_id").agg(usual=pl.min("since"))
    pieces = pieces.join(pays, on=["stream", "batch_id"], how="left", maintain_order="left")
    is_split = _is_work() & (pl.col("began_ms") < pl.col("ended_ms")) & pl.col("usual").is_not_null()
    split = pieces.filter(is_split)
    if split.is_empty():
        return timeline
    length_ms = pl.col("ended_ms") - pl.col("began_ms")
    extra_ms = pl.coalesce("varying_ms", "usual_ms") * (1 - pl.col("usual")) / pl.col("usual")
    split = split.join(usual_lengths, on=["stream", "owner", "detail"], how="left", maintain_order="left").with_columns(
        own=pl.max_horizontal("usual", 1 - extra_ms / length_ms.sum().over("stream", "batch_id", "owner", "detail"))
    )
    own = split.with_columns(since=0.0, until="own")
    owed = split.drop("owner", "detail").join(extra, on=["stream", "batch_id"])
    # A debt has a share of the time after the length of a usual batch. If the owner keeps more than that for itself,
    # all shares of debts get smaller in the same proportion.
    squeezed = (1 - pl.col("own")) / (1 - pl.col("usual"))
    owed = owed.with_columns((1 - (1 - pl.col(name)) * squeezed).alias(name) for name in ("since", "until"))
    of_split = pl.concat([own, owed], how="diagonal").with_columns(
        began_ms=pl.col("began_ms") + (length_ms * pl.col("since")).floor().cast(MS),
        ended_ms=pl.col("began_ms") + (length_ms * pl.col("until")).floor().cast(MS),
    )
    return (
        pl.concat(
            [frame.select(TIMELINE.names()) for frame in (pieces.filter(~is_split.fill_null(value=False)), of_split)]
        )
        .filter(pl.col("began_ms") < pl.col("ended_ms"))
        .sort("stream", "began_ms")
    )


def _is_work() -> pl.Expr:
    """Returns the condition for work on the records of a batch: it comes after the look that found them."""
    return pl.col("owner").is_in(work_on_records()) & (pl.col("began_ms") >= pl.col("looked_ms"))


def _usual(facts: AccountFacts) -> dict[str, _Usual]:
    found: dict[str, _Usual] = {}
    for stream, source, per_ms, per_batch in facts.usual_arrivals.iter_rows():
        usual = found.setdefault(stream, _Usual())
        usual.per_ms[source] = per_ms
        usual.per_batch += per_batch
    for stream, owner, detail, usual_ms, varying_ms in facts.usual_lengths.iter_rows():
        if stream in found:
            found[stream].lengths_ms[owner, detail] = usual_ms
            found[stream].varying_ms[owner, detail] = usual_ms if varying_ms is None else varying_ms
    return found


def _plans(facts: AccountFacts, batches: pl.DataFrame) -> dict[str, list[_Plan]]:
    """Returns the plans of each stream, in order."""
    before_ms = pl.col("looked_ms").shift().over("stream").fill_null(FIRST_MS)
    looked = batches.sort("stream", "batch_id").select(
        "stream", "batch_id", "looked_ms", nothing=(pl.col("excluded_ms") > before_ms).fill_null(value=False)
    )
    placed = facts.plans.join(looked, on=["stream", "batch_id"]).sort("batch_id")
    # An input that began before the oldest known batch was first planned before it, too.
    oldest = looked.group_by("stream").agg(oldest=pl.min("batch_id"))
    known = facts.begins.unique().join(oldest, on="stream").filter(pl.col("batch_id") >= pl.col("oldest"))
    begins = known.drop("oldest").with_columns(begun_with="batch_id")
    placed = placed.with_columns(begun_before(placed, begins, pl.col("batch_id")))
    # The first plan with the input may be later than the first batch of the driver.
    first = pl.col("batch_id").min().over("stream", "input", "begun_with")
    placed = placed.with_columns(begins=pl.col("begun_with").is_not_null() & (pl.col("batch_id") == first))
    new_offsets = pl.col("latest_offset") - pl.col("latest_offset").shift().over("stream", "input", "partition")
    # What an input has when it begins did not arrive since the plan before. The offsets of a hop are batches: their
    # records count as arrived when they are read.
    arrived = pl.when("begins").then(0).when(pl.col("writer").is_null()).then(new_offsets).otherwise("n")
    waits = pl.when("begins").then(pl.col("n") + pl.col("latest_offset") - pl.col("until_offset"))
    of_plan = ["stream", "batch_id", "looked_ms", "nothing"]
    by_input = (
        placed.with_columns(arrived=arrived.fill_null(0), begun=waits)
        .group_by(*of_plan, "input", maintain_order=True)
        .agg(
            pl.sum("arrived"),
            pl.col("partition", "from_offset", "until_offset"),
            begun=pl.when(pl.col("begun").is_not_null().any()).then(pl.sum("begun")),
            read=pl.sum("n"),
            left=(pl.col("latest_offset") - pl.col("until_offset")).sum(),
        )
    )
    lists = ("input", "arrived", "begun", "partition", "from_offset", "until_offset")
    by_plan = by_input.group_by(of_plan, maintain_order=True).agg(*lists, pl.sum("read", "left"))
    found: dict[str, list[_Plan]] = {}
    for (
        stream,
        batch_id,
        looked_ms,
        nothing,
        inputs,
        arrived_of,
        begun_of,
        *offsets_of,
        read,
        left,
    ) in by_plan.iter_rows():
        taken = {
            (name, number): (since, until)
            for name, *offsets in zip(inputs, *offsets_of, strict=True)
            for number, since, until in zip(*offsets, strict=True)
        }
        arrivals = dict(zip(inputs, arrived_of, strict=True))
        begun = {name: n for name, n in zip(inputs, begun_of, strict=True) if n is not None}
        plan = _Plan(batch_id, looked_ms, read, left, arrivals, begun, taken, nothing)
        found.setdefault(stream, []).append(plan)
    return found


def _lengths(timeline: pl.DataFrame, batches: pl.DataFrame) -> dict[str, dict[int, dict[tuple[str, str, bool], int]]]:
    """Returns the time of each owner from the look before to the look of each batch, by stream and batch.

    The key of a length is owner, detail, and whether the time was work on the records of the batch before.
    """
    before = [pl.col(name).shift().over("stream").alias(f"before_{name}") for name in ("batch_id", "looked_ms")]
    spans = (
        batches.sort("stream", "batch_id")
        .with_columns(before)
        .filter(pl.col("before_looked_ms") < pl.col("looked_ms"))
        .select(
            "stream",
            until_batch="batch_id",
            before_batch="before_batch_id",
            began_ms="before_looked_ms",
            ended_ms="looked_ms",
            error_ms=pl.lit(0, MS),
        )
    )
    pieces = overlay(spans, timeline).rename({"piece_began_ms": "_began_ms"})
    works = (
        pl.col("owner").is_in(work_on_records())
        & (pl.col("batch_id") == pl.col("before_batch"))
        & (pl.col("_began_ms") >= pl.col("began_ms"))
    ).fill_null(value=False)
    sums = (
        pieces.with_columns(works=works)
        .group_by("stream", "until_batch", "owner", "detail", "works", maintain_order=True)
        .agg(pl.sum("ms"))
    )
    found: dict[str, dict[int, dict[tuple[str, str, bool], int]]] = {}
    for stream, batch_id, owner, detail, is_work, ms in sums.iter_rows():
        found.setdefault(stream, {}).setdefault(batch_id, {})[owner, detail, is_work] = ms
    return found
