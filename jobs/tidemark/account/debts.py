"""What made records wait unread: the debts of a stream.

An owner that has more time than usual lets records pile up: its debt is its excess time × the usual number of
arrivals, in records. More arrivals than usual are the debt of their topic, and what a source has already when it begins
is that of the change of the topology file. A batch that reads more than a usual one pays debts off, and the time that
it takes for that belongs to those whose debts it pays. A plan that leaves nothing behind ends all debts.

So a catch-up after an absence is the absence's, however many batches it takes. (With the debts of the moment alone, a
slow one would be blamed on the volume or on `max_records`.) Records that a plan left behind wait for the next look,
and then for the one after it: each of these stretches belongs to the debts at its end, so that an operator that hangs
meanwhile owns what it caused.
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
"""What is left of a debt that was paid off, records: fractions do not add up exactly."""
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
"""To whom time belongs, from a share of it until another; both are 0 to 1, and the rows of a batch tile that."""


@dataclass(frozen=True)
class Debts:
    """The debts of streams.

    Attributes:
        waiting: SHARES of the time from the look before to a batch's own, for records that the plan before left
        behind. No
            row: nothing had slowed the stream down. One row of `unknown`: the beginning of the backlog is not known.
        extra: SHARES of a batch's work, from the share of it that a usual batch would have taken.
    """

    waiting: pl.DataFrame
    extra: pl.DataFrame


@dataclass(frozen=True)
class _Plan:
    """A batch's plan: when, what records it read and left behind, and arrivals since the plan before by input.

    `taken` has from which offset until which it took each partition, by input and partition. `begun` are the records of
    inputs that began with it. `found_nothing_before`: a look after the plan before found no records.
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
        """Returns False if a plan between the two is missing, or what this one did to a partition.

        Batches without a plan between them took nothing.
        """
        return all(
            place in self.taken and self.taken[place][0] in {until, None} for place, (_, until) in before.taken.items()
        )


@dataclass
class _Usual:
    """What is usual for a stream: arrivals per ms by input, records in a batch, and lengths from look to look."""

    per_ms: dict[str, float] = field(default_factory=dict)
    per_batch: float = 0
    lengths_ms: dict[Owned, float] = field(default_factory=dict)
    varying_ms: dict[Owned, float] = field(default_factory=dict)

    def extra_ms(self, owner: str, detail: str, share: float) -> float:
        """Returns how long an owner usually works on more records than those of a usual batch, the *share* of them."""
        return self.varying_ms.get((owner, detail), math.inf) * share / (1 - share) if share < 1 else math.inf


def debts_of(facts: AccountFacts, timeline: pl.DataFrame, batches: pl.DataFrame) -> Debts:
    """Returns the debts of all streams, whose *batches* and *timeline* are by the reference clock."""
    waiting: list[tuple[object, ...]] = []
    extra: list[tuple[object, ...]] = []
    usual = _usual(facts)
    lengths = _lengths(timeline, batches)
    for stream, plans in _plans(facts, batches).items():
        if stream not in usual:
            waiting += [(stream, plan.batch_id, UNKNOWN, "usual", 0.0, 1.0) for plan in plans]
            continue
        for batch_id, debts, share in _followed(plans, usual[stream], lengths.get(stream, {})):
            waiting += [(stream, batch_id, *row) for row in _in_turn(debts, 0.0)]
            if share:
                extra += [(stream, batch_id, *row) for row in _in_turn(debts, 1 - share)]
    return Debts(*(pl.DataFrame(rows, schema=SHARES, orient="row") for rows in (waiting, extra)))


def _followed(
    plans: list[_Plan], usual: _Usual, lengths: Mapping[int, Mapping[tuple[str, str, bool], int]]
) -> Iterator[tuple[int, dict[Owned, float], float]]:
    """Yields each batch with the debts at its plan, and the share of its work that pays them off."""
    debts: dict[Owned, float] = {}
    is_known = False
    share = paid = 0.0
    before: _Plan | None = None
    for plan in plans:
        follows = before is None or plan.follows(before)
        was_known = follows and is_known
        if was_known and before is not None:
            took_ms = _own_lengths(lengths.get(plan.batch_id, {}), debts, share, usual)
            kept = {owned: owed * (1 - paid) for owned, owed in debts.items()} if before.left else {}
            debts = _grown(kept, took_ms, plan, plan.looked_ms - before.looked_ms, usual)
            is_known = True
        else:
            debts = {}
            is_known = follows and (plan.found_nothing_before or plan.left == 0)
        owed = sum(debts.values())
        pays = min(max(0, plan.read - usual.per_batch), owed)
        share, paid = (pays / plan.read, pays / owed) if pays else (0.0, 0.0)
        yield plan.batch_id, debts if was_known else {(UNKNOWN, "backlog"): 1.0}, share
        before = plan


def _grown(
    debts: Mapping[Owned, float], took_ms: Mapping[Owned, float], plan: _Plan, since_ms: int, usual: _Usual
) -> dict[Owned, float]:
    """Returns *debts* with those of the last *since_ms*, in which each owner took its time, in order of owners."""
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


def _own_lengths(
    lengths: Mapping[tuple[str, str, bool], int], debts: Mapping[Owned, float], share: float, usual: _Usual
) -> dict[Owned, float]:
    """Returns the time of each owner from look to look, where a *share* of the batch's work belonged to *debts*."""
    took_ms: dict[Owned, float] = {}
    extra_ms = 0.0
    for (owner, detail, works), ms in lengths.items():
        own_ms = ms - min(ms * share, usual.extra_ms(owner, detail, share)) if works else ms
        extra_ms += ms - own_ms
        took_ms[owner, detail] = took_ms.get((owner, detail), 0) + own_ms
    owed = sum(debts.values())
    for owned, each in debts.items():
        took_ms[owned] = took_ms.get(owned, 0) + extra_ms * each / owed
    return took_ms


def _in_turn(debts: Mapping[Owned, float], since: float) -> Iterator[tuple[str, str, float, float]]:
    """Yields the shares of *debts* in the time from the share *since* to its end, one after the other."""
    owed, sum_owed, first = sum(debts.values()), 0.0, since
    for n, ((owner, detail), each) in enumerate(debts.items(), 1):
        sum_owed += each
        # The last one ends at the very end, so that the shares tile the time also when it is cut to ms.
        until = first + (1 - first) * sum_owed / owed if n < len(debts) else 1.0
        yield owner, detail, since, until
        since = until


def with_extra_time(
    timeline: pl.DataFrame, batches: pl.DataFrame, extra: pl.DataFrame, usual_lengths: pl.DataFrame
) -> pl.DataFrame:
    """Returns the TIMELINE in which the last part of each piece of work belongs to the debts that it paid off.

    That is as long as such work usually takes: what is slow in a batch is so whether or not it reads more.
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
    owed_of = (1 - pl.col("own")) / (1 - pl.col("usual"))
    owed = owed.with_columns((1 - (1 - pl.col(name)) * owed_of).alias(name) for name in ("since", "until"))
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
    """Returns True for pieces of work on a batch's records, which begin with the look that found these."""
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
    # What began before the batches that are known has its first plan before them, too.
    oldest = looked.group_by("stream").agg(oldest=pl.min("batch_id"))
    known = facts.begins.unique().join(oldest, on="stream").filter(pl.col("batch_id") >= pl.col("oldest"))
    begins = known.drop("oldest").with_columns(begun_with="batch_id")
    placed = placed.with_columns(begun_before(placed, begins, pl.col("batch_id")))
    # The first plan that looked at it may be later.
    first = pl.col("batch_id").min().over("stream", "input", "begun_with")
    placed = placed.with_columns(begins=pl.col("begun_with").is_not_null() & (pl.col("batch_id") == first))
    more = pl.col("latest_offset") - pl.col("latest_offset").shift().over("stream", "input", "partition")
    # What an input has when it begins did not arrive since the plan before. The offsets of a hop are batches: their
    # records count as arrived when they are read.
    arrived = pl.when("begins").then(0).when(pl.col("writer").is_null()).then(more).otherwise("n")
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
        *of_places,
        read,
        left,
    ) in by_plan.iter_rows():
        taken = {
            (name, number): (since, until)
            for name, *places in zip(inputs, *of_places, strict=True)
            for number, since, until in zip(*places, strict=True)
        }
        arrivals = dict(zip(inputs, arrived_of, strict=True))
        begun = {name: n for name, n in zip(inputs, begun_of, strict=True) if n is not None}
        plan = _Plan(batch_id, looked_ms, read, left, arrivals, begun, taken, nothing)
        found.setdefault(stream, []).append(plan)
    return found


def _lengths(timeline: pl.DataFrame, batches: pl.DataFrame) -> dict[str, dict[int, dict[tuple[str, str, bool], int]]]:
    """Returns the time of each owner from the look before to that of each batch, by stream and batch.

    True: it was work on the records of the batch before.
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
