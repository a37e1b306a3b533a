"""Makes the facts of the account from the rows that drivers have written to the tables of their streams.

For a query of a team's own job, Spark reports the event times of the earliest and the latest record of a batch, and not
their partitions. So all partitions of its source count as one here, and two records stand for the batch.

The rows have the columns of `model.tables`, and those that are still in journals are included. Nothing is guessed here:
what no row says is missing, and the account calls its time `unknown`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import assert_never

import polars as pl

from tidemark.account import facts
from tidemark.account.clocks import DRIVER
from tidemark.account.facts import AccountFacts
from tidemark.account.ledger import Ledger, batches_of, begun_of
from tidemark.account.owners.interval import INTERVAL
from tidemark.account.owners.max_records import MAX_RECORDS
from tidemark.account.owners.window import WINDOW
from tidemark.account.stored import STORED_READS, STORED_RESULTS, reads_of, results_of
from tidemark.kernels.columns.quantiles import quantile_of, rank
from tidemark.model.kinds.operator import Operator
from tidemark.model.kinds.repartition import HopSource
from tidemark.model.kinds.source import Source
from tidemark.model.topology import Topology
from tidemark.semantics.idleness import Activity
from tidemark.semantics.quantiles import MEDIAN
from tidemark.semantics.segments import NEXT
from tidemark.semantics.strategy import interval_end_ms

STREAM = pl.col("sub_topology").alias("stream")
OF_READ = ["stream", "input", "partition"]
ENOUGH = 10
"""If a stream has fewer batches from before, all its batches say what is usual."""


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """The rows of all streams of a topology, by table; each row has its `sub_topology`.

    `told_later` are rows of `batches` that finished after the instant that is asked about, with that instant by the
    boot clock of their driver, `until_ms`. They tell what the stream did until then.
    """

    batches: pl.DataFrame
    operator_batches: pl.DataFrame
    partition_batches: pl.DataFrame
    operator_windows: pl.DataFrame
    heartbeats: pl.DataFrame
    topology_changes: pl.DataFrame
    told_later: pl.DataFrame = field(default_factory=pl.DataFrame)

    def facts(self, topology: Topology) -> AccountFacts:
        """Returns the facts of the streams of *topology*, without what is usual (`with_usual`)."""
        batches = self._batches()
        inputs = _inputs(topology)
        plans, silences, begins = self._plans(inputs), self._silences(inputs, batches), self._begins(inputs)
        segments = self._segments()
        known = AccountFacts(
            segments=segments,
            tasks=self._tasks(),
            batches=batches,
            heartbeats=self._heartbeats(segments),
            clocks=self._clocks(),
            plans=plans,
            windows=self._windows(),
            marks=self._marks(topology),
            bounds=_as(inputs.drop_nulls("bound_ms"), facts.BOUNDS),
            drifts=self._drifts(topology.max_drift_ms),
            begins=begins,
            silences=silences,
        )
        stored, transactions = self._stored_reads(inputs), self._transactions()
        read, first = reads_of(stored, batches_of(known), begun_of(known))
        reads, firsts = (_with_transactions(rows, transactions, known) for rows in (read, first))
        holders = _holders(topology)
        dues = _dues(self.batches.with_columns(STREAM), batches, holders)
        results = _with_holds(
            results_of(self._stored_results(), stored), self.operator_batches.with_columns(STREAM), dues, holders
        )
        of_topology = replace(known, reads=reads, firsts=firsts, results=results)
        return _with_full_names(of_topology, topology.name)

    def ledger(self, topology: Topology) -> Ledger:
        """Returns the ledger of the streams of *topology*, for which all batches say what is usual."""
        return Ledger.of(with_usual(self.facts(topology)))

    def _segments(self) -> pl.DataFrame:
        """Returns SEGMENTS: the phases of batches, and the later segments that the newest heartbeat of each driver
        tells.
        """
        finished = self.batches.with_columns(until_ms="phases_boot_ms")
        told = (
            pl.concat([finished, self.told_later], how="diagonal_relaxed")
            .select(STREAM, "phases", "phases_boot_ms", "until_ms", driver="epoch")
            .drop_nulls("phases")
        )
        phases = (
            told.with_row_index("told")
            .explode("phases")
            .unnest("phases")
            # A phase is stored as a length; the last one ends at `phases_boot_ms`.
            .with_columns(after_ms=pl.col("ms").reverse().cum_sum().reverse().over("told"))
            .with_columns(began_ms=pl.col("phases_boot_ms") - pl.col("after_ms"))
            .with_columns(ended_ms=pl.min_horizontal(pl.col("began_ms") + pl.col("ms"), "until_ms"))
            .filter(pl.col("began_ms") <= pl.col("ended_ms"))
        )
        ends = told.group_by(DRIVER).agg(told_until_ms=pl.max("until_ms"))
        newest = (
            self.heartbeats.select(STREAM, "segments", "pulse_boot_ms", driver="epoch")
            .drop_nulls("segments")
            .sort("pulse_boot_ms")
            .group_by(DRIVER, maintain_order=True)
            .last()
            .explode("segments")
            .unnest("segments")
            .join(ends, on=DRIVER, how="left")
            .filter(pl.col("told_until_ms").is_null() | (pl.col("ended_ms") > pl.col("told_until_ms")))
            .with_columns(began_ms=pl.max_horizontal("began_ms", "told_until_ms"))
        )
        decided = self.batches.group_by(STREAM, driver="epoch").agg(after_newest=pl.max("batch_id") + 1)
        waits = (
            newest.sort("driver")
            .join_asof(decided.sort("driver"), on="driver", by="stream", check_sortedness=False)
            .with_columns(pl.col("after_newest").fill_null(0))
            .with_columns(batch_id=pl.when(pl.col("batch_id") == NEXT).then("after_newest").otherwise("batch_id"))
        )
        return pl.concat([_as(phases, facts.SEGMENTS), _as(waits, facts.SEGMENTS)])

    def running(self, sub_topology: str) -> tuple[str, str] | None:
        """Returns what a stream does by its newest heartbeat, as owner and detail.

        None if a row of a batch is newer: then the heartbeat does not tell what has been done since.
        """
        of_stream = pl.col("sub_topology") == sub_topology
        beats = self.heartbeats.filter(of_stream).drop_nulls("segments").sort("epoch", "pulse_boot_ms").tail(1)
        if beats.is_empty():
            return None
        segment, epoch = beats["segments"][0][-1], beats["epoch"][0]
        told_ms = self.batches.filter(of_stream, pl.col("epoch") == epoch)["phases_boot_ms"].max()
        is_newer = isinstance(told_ms, int) and segment["ended_ms"] <= told_ms
        return None if is_newer else (segment["owner"], segment["detail"])

    def _tasks(self) -> pl.DataFrame:
        epochs = self.batches.select("sub_topology", "batch_id", driver="epoch")
        tasks = (
            self.operator_batches.select(STREAM, "sub_topology", "batch_id", "operator", "tasks")
            .explode("tasks")
            .filter(pl.col("tasks").is_not_null())
            .unnest("tasks")
            .filter(pl.col("host").is_not_null())
            .join(epochs, on=["sub_topology", "batch_id"])
        )
        name = pl.when(pl.col("shard").is_not_null()).then(pl.format("shard {}", "shard"))
        return _as(
            tasks.with_columns(
                task=name.otherwise(pl.format("partition {}", "partition")),
                began_ms=_ms("started_at"),
                ended_ms=_ms("finished_at"),
            ),
            facts.TASKS,
        )

    def _batches(self) -> pl.DataFrame:
        hosts = self.heartbeats.drop_nulls("host").group_by("sub_topology", "epoch").agg(pl.first("host"))
        rows = self.batches.join(hosts, on=["sub_topology", "epoch"], how="left").filter(
            pl.col("started_boot_ms").is_not_null()
        )
        return _as(
            rows.with_columns(
                STREAM,
                driver="epoch",
                wall_ms=_ms("started_at"),
                boot_ms="started_boot_ms",
                looked_ms="looked_boot_ms",
                excluded_ms="excluded_boot_ms",
            ),
            facts.BATCHES,
        ).sort("stream", "batch_id")

    def _heartbeats(self, segments: pl.DataFrame) -> pl.DataFrame:
        """Returns HEARTBEATS from the first look of each driver on, which is where its *segments* begin."""
        looks = segments.group_by(DRIVER).agg(first_ms=pl.min("began_ms"))
        beats = self.heartbeats.drop_nulls("pulse_boot_ms").unique(["sub_topology", "epoch", "pulse_boot_ms"])
        return _as(
            beats.with_columns(STREAM, driver="epoch", ended_ms="pulse_boot_ms", wall_ms=_ms("beat_at"))
            .join(looks, on=DRIVER)
            .filter(pl.col("ended_ms") >= pl.col("first_ms"))
            .with_columns(began_ms=pl.max_horizontal("pulse_from_boot_ms", "first_ms")),
            facts.HEARTBEATS,
        ).sort("stream", "driver", "ended_ms")

    def _clocks(self) -> pl.DataFrame:
        told = self.heartbeats.select(STREAM, driver="epoch", at_ms="pulse_boot_ms", offsets="clock_offsets")
        offsets = told.drop_nulls("offsets").explode("offsets").unnest("offsets")
        return _as(offsets, facts.CLOCKS)

    def _transactions(self) -> pl.DataFrame:
        """Returns the open transactions that kept records from being read.

        A row has `stream`, `input`, `partition`, and `stable_offset`, the first offset that could not be read.
        """
        told = self.heartbeats.select(STREAM, "open_transactions").drop_nulls("open_transactions")
        rows = told.explode("open_transactions").filter(pl.col("open_transactions").is_not_null())
        found = rows.unnest("open_transactions").select("stream", "stable_offset", "partition", input="source")
        return found.with_columns(pl.col("partition").cast(pl.Int64)).unique()

    def _plans(self, inputs: pl.DataFrame) -> pl.DataFrame:
        rows = self._partitions(inputs).filter(pl.col("until_offset").is_not_null())
        n = pl.col("reads").list.eval(pl.element().struct["n"]).list.sum()
        # A batch takes all records that its look saw, unless an option of the source limits it.
        is_limited = pl.col("max_records").is_not_null() | pl.col("of_job")
        is_cut = pl.col("left_offset").is_not_null() & is_limited
        plans = rows.with_columns(
            n=pl.when("of_job").then(pl.col("until_offset") - pl.col("from_offset")).otherwise(n).fill_null(0),
            latest_offset=pl.coalesce("left_offset", "until_offset"),
            newest_ms=_ms("newest_timestamp"),
            cut_by=pl.when(is_cut).then(pl.lit(MAX_RECORDS)),
            cut_detail=pl.when(is_cut).then("input"),
        )
        of_jobs = (
            plans.filter("of_job")
            .group_by("stream", "batch_id", "input")
            .agg(pl.sum("from_offset", "until_offset", "latest_offset", "n"), pl.max("cut_by", "cut_detail"))
        )
        of_streams = plans.filter(~pl.col("of_job"))
        found = pl.concat([_as(of_streams, facts.PLANS), _as(of_jobs, facts.PLANS)])
        return found.sort("stream", "batch_id", "input", "partition")

    def _silences(self, inputs: pl.DataFrame, batches: pl.DataFrame) -> pl.DataFrame:
        """Returns SILENCES: where a partition became idle, and where time advanced because a source was silent.

        A silence begins with the last batch that read from the partition. A silent source is told as the partition that
        was read last.
        """
        rows = self._partitions(inputs).drop_nulls("partition").sort("stream", "input", "partition", "batch_id")
        to_boot_ms = batches.select("stream", "batch_id", to_boot_ms=pl.col("boot_ms") - pl.col("wall_ms"))
        is_idle = pl.col("activity") == Activity.IDLE.value
        read_at_ms = pl.when(pl.col("reads").is_not_null()).then(_ms("decided_at")).forward_fill().over(OF_READ)
        known = rows.with_columns(read_at_ms=read_at_ms, was_idle=is_idle.shift(fill_value=False).over(OF_READ))
        silent = known.filter(is_idle & ~pl.col("was_idle")).with_columns(
            setting=pl.lit("idle_after"), silent_ms="idle_after_ms"
        )
        found = pl.concat([silent, self._advances(inputs, known)], how="diagonal").join(
            to_boot_ms, on=["stream", "batch_id"], how="left"
        )
        return _as(
            found.with_columns(due_ms=pl.col("read_at_ms") + pl.col("silent_ms") + pl.col("to_boot_ms")), facts.SILENCES
        )

    def _advances(self, inputs: pl.DataFrame, partitions: pl.DataFrame) -> pl.DataFrame:
        """Returns the batches in which the watermark advanced because a whole source was silent (`idle_advances`).

        *partitions* have `read_at_ms`, the last batch that read from them.
        """
        of_batch = ["stream", "input", "batch_id"]
        reached = partitions.group_by(of_batch).agg(
            pl.col("partition", "read_at_ms").sort_by("read_at_ms", nulls_last=False).last(),
            reached_ms=_ms("watermark").max(),
        )
        sources = self.partition_batches.filter(pl.col("partition").is_null(), pl.col("reads").is_null())
        watermark_ms = _ms("watermark")
        combined = (
            sources.with_columns(STREAM)
            .join(inputs.filter("idle_advances"), on=["stream", "source"])
            .sort(of_batch)
            .with_columns(has_moved=watermark_ms > watermark_ms.shift().over("stream", "input"))
            .filter(pl.col("activity") == Activity.IDLE.value, pl.col("has_moved").fill_null(value=True))
        )
        silent_ms = watermark_ms - pl.col("reached_ms")
        return (
            combined.select(*of_batch, "watermark")
            .join(reached, on=of_batch)
            .with_columns(silent_ms=silent_ms, setting=pl.lit("idle_advances"))
            .filter(pl.col("silent_ms") > 0)
        )

    def _drifts(self, max_drift_ms: int | None) -> pl.DataFrame:
        if max_drift_ms is None:
            return facts.DRIFTS.to_frame()
        sources = self.partition_batches.select("sub_topology", operator="source").unique()
        worked = self.operator_batches.join(sources, on=["sub_topology", "operator"], how="semi")
        of_source = {"input": "operator", "from_ms": "finished_boot_ms"}
        return _as(worked.with_columns(STREAM, max_drift_ms=max_drift_ms, **of_source), facts.DRIFTS)

    def _begins(self, inputs: pl.DataFrame) -> pl.DataFrame:
        changes = self.topology_changes.filter("begins").with_columns(STREAM)
        return _as(
            changes.join(inputs.select("stream", "input", operator="source"), on=["stream", "operator"]), facts.BEGINS
        )

    def _marks(self, topology: Topology) -> pl.DataFrame:
        """Returns MARKS: up to which record time each hop was complete with each batch.

        The mark is visible when the repartition has written the rows of the batch. A batch that only moved the
        watermark has no such rows, and its mark is visible when the batch has finished.
        """
        hops = [(sub.name, o.name) for sub in topology.sub_topologies for o in sub.operators if o.hop_table]
        repartitions = pl.DataFrame(hops, schema={"sub_topology": pl.String, "place": pl.String}, orient="row")
        written = self.operator_batches.select(
            "sub_topology",
            "batch_id",
            place="operator",
            written_at="finished_at",
            written_boot_ms="finished_boot_ms",
            written_by="finished_epoch",
        )
        boot_ms = pl.col("started_boot_ms") + _ms("finished_at") - _ms("started_at")
        marks = self.batches.join(repartitions, on="sub_topology").join(
            written, on=["sub_topology", "batch_id", "place"], how="left"
        )
        return _as(
            marks.with_columns(
                STREAM,
                driver=pl.coalesce("written_by", "epoch"),
                watermark_ms=_ms("watermark"),
                visible_ms=pl.coalesce(_ms("written_at"), _ms("finished_at")),
                visible_boot_ms=pl.coalesce("written_boot_ms", boot_ms),
            ),
            facts.MARKS,
        )

    def _windows(self) -> pl.DataFrame:
        return _as(
            self.operator_windows.with_columns(
                STREAM,
                driver="finished_epoch",
                place="operator",
                end_ms=_ms("window_end"),
                visible_ms=_ms("ewt_at"),
                visible_boot_ms="finished_boot_ms",
            ),
            facts.WINDOWS,
        )

    def _partitions(self, inputs: pl.DataFrame) -> pl.DataFrame:
        """Returns the rows of `partition_batches` about single partitions, with what *inputs* says of their source.

        The partition of a hop is null. For a query of a job it is not known and null; so is the source, if there are
        several.
        """
        is_of_partition = pl.col("partition").is_not_null() | pl.col("reads").is_not_null()
        rows = self.partition_batches.filter(is_of_partition).with_columns(STREAM)
        found = rows.join(inputs, on=["stream", "source"], how="left", maintain_order="left")
        known = found.filter(pl.col("input").is_not_null() | pl.col("source").is_null())
        return known.with_columns(partition=pl.when(pl.col("writer").is_null()).then("partition"))

    def _stored_reads(self, inputs: pl.DataFrame) -> pl.DataFrame:
        rows = self._partitions(inputs).with_columns(decided_at_ms=_ms("decided_at"))
        return _as(rows, STORED_READS, "reads", "firsts")

    def _stored_results(self) -> pl.DataFrame:
        return _as(
            self.operator_batches.drop_nulls("results").with_columns(
                STREAM,
                driver="finished_epoch",
                place="operator",
                decided_at_ms=_ms("decided_at"),
                visible_ms=_ms("finished_at"),
                visible_boot_ms="finished_boot_ms",
            ),
            STORED_RESULTS,
            "results",
        )


def with_usual(known: AccountFacts, *, until_ms: int | None = None) -> AccountFacts:
    """Returns the facts *known* with USUAL_LENGTHS and USUAL_ARRIVALS.

    Batches before *until_ms* (epoch ms) say what is usual. If a stream has fewer than ENOUGH of them, or if *until_ms*
    is None, all its batches do.
    """
    is_before = pl.lit(value=True) if until_ms is None else pl.col("wall_ms") < until_ms
    is_enough = is_before.sum().over("stream") >= ENOUGH
    usual = replace(known, batches=known.batches.filter(is_before | ~is_enough))
    return replace(
        known,
        usual_lengths=_usual_lengths(usual, known.batches),
        usual_arrivals=_usual_arrivals(usual.plans, usual.batches),
    )


def since(known: AccountFacts, since_ms: int) -> AccountFacts:
    """Returns the facts *known* from *since_ms* (epoch ms) on; what is usual stays as it is.

    Each stream keeps its batches from the newest one before that instant whose plan left no record behind. A backlog of
    that time cannot be older.
    """
    left = known.plans.group_by("stream", "batch_id").agg(left=(pl.col("latest_offset") > pl.col("until_offset")).any())
    before = known.batches.filter(pl.col("wall_ms") < since_ms).join(left, on=["stream", "batch_id"], how="left")
    took_all = before.filter(~pl.col("left").fill_null(value=False))
    first = took_all.group_by("stream").agg(first_batch=pl.max("batch_id"))

    def cut(frame: pl.DataFrame) -> pl.DataFrame:
        is_later = pl.col("batch_id") >= pl.col("first_batch").fill_null(-1)
        rows = frame.join(first, on="stream", how="left", maintain_order="left")
        return rows.filter(pl.col("batch_id").is_null() | is_later).drop("first_batch")

    of_batches = ("segments", "tasks", "batches", "plans", "reads", "firsts", "results", "windows", "marks", "drifts")
    return replace(known, **{name: cut(getattr(known, name)) for name in of_batches})


def _with_transactions(reads: pl.DataFrame, transactions: pl.DataFrame, known: AccountFacts) -> pl.DataFrame:
    """Returns *reads* with `in_transaction` set for records that an open transaction kept from being read.

    Such records had arrived before a look that did not see them. *transactions* are those of
    `Recorded._transactions`.
    """
    if transactions.is_empty():
        return reads
    plans = known.plans.join(transactions, on=OF_READ).filter(
        pl.col("stable_offset").is_between("from_offset", "until_offset", closed="left")
    )
    excluded = batches_of(known).select("stream", "batch_id", without_ms="excluded_ms")
    ended = plans.select(*OF_READ, "batch_id", was_open=pl.lit(value=True)).unique()
    rows = reads.join(ended, on=[*OF_READ, "batch_id"], how="left", maintain_order="left", nulls_equal=True)
    rows = rows.join(excluded, on=["stream", "batch_id"], how="left", maintain_order="left")
    waited = pl.col("was_open") & (pl.col("arrived_ms") <= pl.col("without_ms"))
    is_so = pl.col("in_transaction") | waited.fill_null(value=False)
    return rows.with_columns(in_transaction=is_so).select(reads.columns)


def _with_full_names(known: AccountFacts, topology: str) -> AccountFacts:
    """Returns the facts *known* with full names of streams, TOPOLOGY/SUB_TOPOLOGY; tables have the sub-topology
    alone.
    """
    frames = {fact.name: getattr(known, fact.name) for fact in fields(known)}
    full = [pl.format(f"{topology}/{{}}", pl.col(name)).alias(name) for name in ("stream", "writer")]
    return AccountFacts(
        **{name: frame.with_columns(full if "writer" in frame.columns else full[:1]) for name, frame in frames.items()}
    )


def _with_holds(
    results: pl.DataFrame, finished: pl.DataFrame, dues: pl.DataFrame, holders: Mapping[str, Operator]
) -> pl.DataFrame:
    """Returns *results* with the columns of RESULTS about the setting that held them.

    A result was held if an earlier batch had read its newest record.

    Args:
        results: RESULTS without these columns.
        finished: rows of `operator_batches`, with `stream`.
        dues: why and when results no longer had to wait, as `_dues` returns it.
        holders: the operator that holds the results of each operator.
    """
    names = {place: holder.name for place, holder in holders.items()}
    holder = pl.col("place").replace_strict(names, default=None, return_dtype=pl.String)
    return (
        results.with_columns(held_detail=pl.when(pl.col("read_batch") < pl.col("batch_id")).then(holder))
        .drop("held_by", "held_from_ms", "due_ms")
        .join(
            finished.select("stream", read_batch="batch_id", held_detail="operator", held_from_ms="finished_boot_ms"),
            on=["stream", "read_batch", "held_detail"],
            how="left",
            maintain_order="left",
        )
        .join(dues, on=["stream", "batch_id", "held_detail"], how="left", maintain_order="left")
        .select(results.columns)
    )


def _holders(topology: Topology) -> dict[str, Operator]:
    """Returns which operator holds the results of each operator: itself, or the nearest one before it in its stream.

    Operators whose results nothing holds are left out.
    """
    holders: dict[str, Operator] = {}
    for name, operator in topology.operators.items():
        before = [holders[upstream] for upstream in operator.inputs if upstream in holders]
        if operator.emission is not None and operator.emission.holds:
            holders[name] = operator
        elif before:
            holders[name] = before[0]
    return holders


def _dues(decided: pl.DataFrame, batches: pl.DataFrame, holders: Mapping[str, Operator]) -> pl.DataFrame:
    """Returns when the results of each `stream` and `batch_id` were due, and whether a window or an interval held them.

    A window is closed by the look of the batch. An interval of `periodic` ends after the batch before was
    decided and before this batch is; results are due at the end of the interval.

    Args:
        decided: rows of `batches`, with `stream`.
        batches: BATCHES.
        holders: the operator that holds the results of each operator.
    """
    looked_ms = pl.col("looked_ms") + pl.col("wall_ms") - pl.col("boot_ms")
    rows = (
        decided.select("stream", "batch_id", decided_ms=_ms("decided_at"))
        .sort("stream", "batch_id")
        .with_columns(before_ms=pl.col("decided_ms").shift().over("stream"))
        .join(batches.select("stream", "batch_id", looked_ms=looked_ms), on=["stream", "batch_id"], how="left")
    )
    dues = [pl.DataFrame(schema=_DUES)]
    for holder in {operator.name: operator for operator in holders.values()}.values():
        assert holder.emission is not None
        interval_ms = holder.emission.interval_ms
        ends_ms = [
            None if interval_ms is None or before_ms is None else interval_end_ms(interval_ms, before_ms)
            for before_ms in rows["before_ms"]
        ]
        of_holder = rows.with_columns(end_ms=pl.Series(ends_ms, dtype=pl.Int64), held_detail=pl.lit(holder.name))
        has_ended = (pl.col("end_ms") <= pl.col("decided_ms")).fill_null(value=False)
        dues.append(
            of_holder.with_columns(
                held_by=pl.when(has_ended).then(pl.lit(INTERVAL)).otherwise(pl.lit(WINDOW)),
                due_ms=pl.when(has_ended).then("end_ms").otherwise("looked_ms"),
            ).select(*_DUES)
        )
    return pl.concat(dues)


_DUES = {
    "stream": pl.String(),
    "batch_id": pl.Int64(),
    "held_detail": pl.String(),
    "held_by": pl.String(),
    "due_ms": pl.Int64(),
}


def _usual_lengths(known: AccountFacts, every: pl.DataFrame) -> pl.DataFrame:
    """Returns USUAL_LENGTHS: the median time of each owner over the batches *known*, 0 in a batch without such time.

    The part that grows with the number of records comes from the least-squares line through *every* batch.
    """
    of_every = (
        known.segments.join(every, on=["stream", "batch_id"], how="semi")
        .group_by("stream", "batch_id", "owner", "detail")
        .agg(ms=(pl.col("ended_ms") - pl.col("began_ms")).sum())
    )
    owned = of_every.join(known.batches, on=["stream", "batch_id"], how="semi")
    number = known.batches.group_by("stream").agg(number=pl.len())
    read = known.plans.group_by("stream", "batch_id").agg(n=pl.sum("n").cast(pl.Float64))
    of_owner = ["stream", "owner", "detail"]
    growth = (
        of_every.join(read, on=["stream", "batch_id"])
        .group_by(of_owner)
        .agg(per_record_ms=pl.cov("ms", "n") / pl.var("n"), n=quantile_of(pl.col("n"), MEDIAN), vary=pl.var("n"))
    )
    lengths = owned.group_by(of_owner).agg("ms").join(number, on="stream").join(growth, on=of_owner, how="left")
    # Batches without a row are zeros at the front of the sorted list: they move the middle to the left.
    zeros = pl.col("number").cast(pl.Int64) - pl.col("ms").list.len()
    middle = rank(pl.col("number"), MEDIAN) - zeros
    usual_ms = pl.when(middle >= 0).then(pl.col("ms").list.sort().list.get(middle.clip(0))).otherwise(0)
    lengths = lengths.with_columns(usual_ms=usual_ms)
    varying_ms = (pl.col("per_record_ms") * pl.col("n")).clip(0, pl.col("usual_ms"))
    return _as(lengths.with_columns(varying_ms=pl.when(pl.col("vary") > 0).then(varying_ms)), facts.USUAL_LENGTHS)


def _usual_arrivals(plans: pl.DataFrame, batches: pl.DataFrame) -> pl.DataFrame:
    """Returns USUAL_ARRIVALS, as medians over *batches* and their *plans*."""
    read = plans.group_by("stream", "batch_id", "input").agg(pl.sum("n"))
    looks = batches.select("stream", "driver", "batch_id", "looked_ms").sort("stream", "driver", "batch_id")
    since_ms = pl.col("looked_ms") - pl.col("looked_ms").shift().over("stream", "driver")
    rates = read.join(looks.with_columns(since_ms=since_ms), on=["stream", "batch_id"])
    return _as(
        rates.group_by("stream", "input").agg(
            per_ms=quantile_of((pl.col("n") / pl.col("since_ms")).filter(pl.col("since_ms") > 0), MEDIAN).fill_null(0),
            per_batch=quantile_of(pl.col("n"), MEDIAN).cast(pl.Float64),
        ),
        facts.USUAL_ARRIVALS,
    )


def _inputs(topology: Topology) -> pl.DataFrame:
    """Returns what the topology file says of each `source` of a `stream`, without those that joins only look up.

    `input` is its name in the facts. A hop is named after the repartition that writes it, and has its `writer`.
    """
    rows: list[dict[str, object]] = []
    of_job = bool(topology.jobs)  # which say nothing of bounds, limits and silence
    for sub in topology.sub_topologies:
        for source in sub.sources:
            if source.name in sub.table_inputs():
                continue
            row: dict[str, object] = {"stream": sub.name, "source": source.name, "input": source.name, "of_job": of_job}
            match source:
                case HopSource():
                    row |= {"input": source.repartition, "writer": source.upstream, "writer_place": source.repartition}
                case Source():
                    of_file = {
                        "bound_ms": source.bound_ms,
                        "idle_after_ms": source.idle_after_ms,
                        "max_records": source.max_records,
                        "idle_advances": source.idle_advances,
                    }
                    row |= {} if of_job else of_file
                case _:
                    assert_never(source)
            rows.append(row)
    whole = ("bound_ms", "idle_after_ms", "max_records")
    is_so = ("of_job", "idle_advances")
    words = ("stream", "source", "input", "writer", "writer_place")
    types = {**dict.fromkeys(words, pl.String), **dict.fromkeys(whole, pl.Int64), **dict.fromkeys(is_so, pl.Boolean)}
    return pl.DataFrame(rows, schema=types)


def _ms(column: str) -> pl.Expr:
    """Returns the timestamps of *column* as epoch ms."""
    return pl.col(column).dt.epoch("ms")


def _as(rows: pl.DataFrame, schema: pl.Schema, *lists: str) -> pl.DataFrame:
    """Returns *rows* in *schema*, with nulls for missing columns, and with the columns *lists* as they are."""
    columns = [
        (pl.col(name) if name in rows.columns else pl.lit(None)).cast(kind).alias(name) for name, kind in schema.items()
    ]
    return rows.select(*columns, *lists)
