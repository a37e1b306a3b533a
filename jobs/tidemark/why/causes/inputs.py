"""Explains why a source sends nothing on.

Either it has no records, or its records are unread, unusable, late, or wait for records of other partitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

import polars as pl

from tidemark.facts.fact_tables import has_rows
from tidemark.facts.outcome_facts import LATELY
from tidemark.facts.read_facts import Unread, unread_of
from tidemark.facts.stream_facts import NewestWatermark
from tidemark.model.kinds.operator import Operator
from tidemark.model.kinds.repartition import HopSource
from tidemark.model.kinds.source import Source
from tidemark.model.settings.intervals import iso
from tidemark.model.settings.lengths import by_number, counted, for_people, length_in_toml
from tidemark.model.topology import SubTopology
from tidemark.selection import outside, present
from tidemark.semantics.alignment import lowest_reported, max_allowed_ms, must_wait
from tidemark.semantics.idleness import Activity
from tidemark.semantics.liveness import HAS_DRIVER, Liveness
from tidemark.semantics.watermark import Progress
from tidemark.why.causes.producers import Producers
from tidemark.why.causes.time_unit import plausible_unit
from tidemark.why.causes.wrong_type import wrong_fields
from tidemark.why.evidence.commands import LIVE, logs, quarantine_query, requeue, requeue_late, start
from tidemark.why.evidence.findings import (
    ALL_FILTERED,
    BACKLOG,
    BEING_READ,
    POISON_AT_HEAD,
    Cause,
    Trait,
    WhyFinding,
)
from tidemark.why.evidence.snapshot import Scene, began, first, watermark_text

SOURCE_EMPTY = Cause(
    "source_empty",
    Trait.QUIET | Trait.SILENCE,
    "no batch has ever read a record of a source",
)
WRONG_TIME_UNIT = Cause(
    "wrong_time_unit",
    Trait.FAULT,
    "timestamps would be plausible in another unit, and every record is quarantined",
)
ALL_DUPLICATES = Cause(
    "all_duplicates",
    Trait.FAULT,
    "the ids (`written_by`) of all usable records since the newest result were read before",
)
ALIGNMENT_WAIT = Cause(
    "alignment_wait",
    Trait.FAULT,
    "records of a partition that is too far ahead (`max_drift`) wait for the others",
)
OPEN_TRANSACTION = Cause(
    "open_transaction",
    Trait.FAULT,
    "a producer's transaction stays open, and nothing after its first record is read; it appears within 40 s",
)
PARTITION_SILENT = Cause(
    "partition_silent",
    Trait.USUAL | Trait.SILENCE,
    "a partition with records in at least five batches is silent, for three times as long as ever before, "
    "while others have records",
)
BOUND_TOO_SMALL = Cause(
    "bound_too_small",
    Trait.FAULT | Trait.EVENT_TIME,
    "more than half of the recent records were late; after five batches the remedy names a longer bound",
)

QUIET_AFTER_MS = 60_000
"""A source without `idle_after` is quiet after this long without a record, ms."""
LEAST_READS = 5
"""A partition that was read at least this often shows how long its silences usually are."""
UNUSUAL_TIMES = 3
"""A silence this many times as long as before is unusual."""
UNREAD_AFTER_MS = 10_000
"""Rows of a hop are reported as unread only this long after their batch finished, ms: a reader needs some time."""


class Inputs:
    """The sources of *scene*, and the hops that its streams read from each other."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._producers = Producers(scene)

    def partitions(self, source: str) -> dict[int, NewestWatermark]:
        """Returns the newest watermarks of the partitions of *source*, the one that stood still longest first."""
        marks = self._scene.of(source).marks
        return {number: mark for (name, number), mark in marks.items() if name == source and number is not None}

    def last_read_ms(self, source: Source) -> int | None:
        """Returns when the newest batch that read from *source* finished, epoch ms; None if none did."""
        finished_ms = self._scene.of(source.name).reads.newest(source.name)["finished_at"].max()
        return finished_ms if isinstance(finished_ms, int) else None

    def silent_ms(self, source: Source) -> int:
        """Returns how long *source* is known to have been silent, ms; 0 for one that was never read."""
        read_ms = self.last_read_ms(source)
        return 0 if read_ms is None else max(0, self._looked_ms(source) - read_ms)

    def _looked_ms(self, source: Source) -> int:
        """Returns until when it is known what *source* has sent, epoch ms.

        A driver looks for records between batches, so what came since the running batch began is not known.
        """
        driver = self._scene.of(source.name).driver
        beat = driver.beat
        if beat is not None and beat.batch_started_at_ms is not None and not driver.finished_after(beat.at_ms):
            return min(driver.looked_ms, beat.batch_started_at_ms)
        return driver.looked_ms

    def waiting(self, source: Source) -> list[WhyFinding]:
        """Returns a finding for each partition of *source* with records that the newest look saw and no batch has
        read.
        """
        return [*present(self.coming(source, number) for number in self.partitions(source.name))]

    def has_unread(self, sub: SubTopology) -> bool:
        """Returns True if the newest look of *sub* saw records, or a hop has updates, that *sub* has not read."""
        marks = self._scene.facts[sub.name].marks.values()
        return any(mark.unread for mark in marks) or any(not self._unread_of(hop).is_empty() for hop in sub.hops_read)

    def quiet_ms(self, source: Source) -> int:
        """Returns how long *source* has been silent beyond its limit, ms.

        The length is negative for a source that is not silent, and for one that was never read.
        """
        return self.silent_ms(source) - (source.idle_after_ms or QUIET_AFTER_MS)

    def never_read(self, source: str) -> bool:
        """Returns True if no record of *source* was ever read."""
        return self._scene.of(source).reads.newest(source).is_empty()

    def empty(self, source: Source) -> list[WhyFinding]:
        """Returns findings for a *source* of which no record was ever read."""
        unread: list[WhyFinding] = []
        for number in self.partitions(source.name):
            unread += self.blocked(source, number)
        if unread:
            return unread
        read_from = source.read_from
        facts = self._scene.of(source.name)
        looks = facts.reads.of_source(source.name, has_rows).group_by("partition").agg(pl.all().last())
        if being_read := facts.driver.being_read(self._scene.sub(source.name)).get(source.name):
            observation = (
                f"no record of {read_from} was processed yet, and the batch that is planned has up to {being_read:,}"
            )
            first_records = self._scene.finding(BEING_READ, source.name, observation, "wait", input=source.name)
            return [first_records]
        if coming := self.waiting(source):
            return coming
        observation = f"no batch has read a record of {read_from} yet"
        if looks.height and (looks["until_offset"] == 0).all() and looks["unread"].null_count() == 0:
            observation = f"{read_from} had no record yet when the newest finished batch looked at it"
        remedy = f"check that its producer runs and writes to it{f'; {LIVE}' if source.topic else ''}"
        since_ms = facts.tables.first_finished_ms
        finding = self._scene.finding(
            SOURCE_EMPTY, source.name, observation, remedy, input=source.name, since_ms=since_ms
        )
        return [finding]

    def source(self, source: Source) -> list[WhyFinding]:
        """Returns why *source*, or one of its partitions, sends nothing on."""
        if self.never_read(source.name):
            return self.empty(source)
        facts = self._scene.of(source.name)
        is_giving = facts.outcomes.since_last_result(source.name)["records_in"].sum() == 0
        findings = [*self._producers.ahead(source), *self._too_far_ahead(source)]
        for number in self.partitions(source.name):
            findings += self.blocked(source, number, lately=LATELY if is_giving else 1)
        findings += self.late(source)
        findings += self._duplicates(source)
        findings += self._silent_partitions(source)
        kept_alive = facts.outcomes.since_last_result(source.name)["filtered"].sum()
        if kept_alive:
            since = "since its newest result"
            observation = counted(
                int(kept_alive), f"record {since} was a keep-alive", f"records {since} were keep-alives"
            )
            remedy, since_ms = "no action is needed", self._scene.since(source.name, "filtered")
            findings.append(self._scene.finding(ALL_FILTERED, source.name, observation, remedy, since_ms=since_ms))
        return findings

    def _silent_partitions(self, source: Source) -> Iterator[WhyFinding]:
        """Yields the partitions of *source* that are silent for unusually long while others have records."""
        facts, limit_ms = self._scene.of(source.name), source.idle_after_ms or QUIET_AFTER_MS
        if not source.topic or self.quiet_ms(source) > 0:
            return
        for number in self.partitions(source.name):
            newest_ms = facts.reads.of_partition(source.name, number).filter(pl.col("n") > 0)["finished_at"].max()
            if not isinstance(newest_ms, int) or self._looked_ms(source) - newest_ms <= limit_ms:
                continue
            # All reads: a partition may be silent each weekend.
            reads = facts.reads.of_source(source.name, lambda recent: False)
            read_ms = reads.filter(pl.col("partition") == number, pl.col("n") > 0)["finished_at"].sort()
            if read_ms.len() < LEAST_READS:
                continue
            silent_ms, longest_ms = self._looked_ms(source) - read_ms[-1], read_ms.diff().max()
            assert isinstance(longest_ms, int)
            if silent_ms > max(limit_ms, UNUSUAL_TIMES * longest_ms):
                observation = (
                    f"it has been silent for {for_people(silent_ms)}, and before for {for_people(longest_ms)} at most; "
                    f"the newest record of another partition was read {for_people(self.silent_ms(source))} ago"
                )
                remedy = 'check the producers that write to it; an SLA with by = ["partition"] reports it'
                where = {"input": source.name, "partition": number, "since_ms": read_ms[-1]}
                yield self._scene.finding(PARTITION_SILENT, source.name, observation, remedy, **where)

    def _duplicates(self, source: Source) -> Iterator[WhyFinding]:
        """Yields a finding if all usable records lately had been read before."""
        rows = self._scene.of(source.name).outcomes.since_last_result(source.name).filter(pl.col("records_in") > 0)
        repeated, usable = rows["duplicate"].sum(), (rows["records_in"] - rows["quarantined"]).sum()
        if not repeated or repeated < usable:
            return
        writers = ", ".join(source.written_by)
        n = int(repeated)
        which = by_number(n, "the only record", f"all {n:,} records")
        were, their = by_number(n, "was", "were"), by_number(n, "its", "their")
        yield self._scene.finding(
            ALL_DUPLICATES,
            source.name,
            f"{which} since its newest result {were} read before, by {their} header tidemark-id",
            f"find out what sends them as {writers}: that writer has a new warehouse, or a service copies its headers",
            input=source.name,
            since_ms=first(rows, "duplicate"),
        )

    def blocked(self, source: Source, number: int, *, lately: int = 1) -> list[WhyFinding]:
        """Returns what keeps the records of partition *number* of *source* from being used; nothing if they are used.

        A transaction stays open before them, or no driver reads them, or all records since the last usable one are
        quarantined. The last of these counts only if it was so in at least *lately* batches.
        """
        facts = self._scene.of(source.name)
        if stays_open := self._open_transaction(source, number):
            return [stays_open]
        reads = facts.reads.of_partition(source.name, number)
        mark = facts.marks.get((source.name, number))
        unread = unread_of(reads, partial(self._planned_until, source, number))
        if unread and unread.n and (unread.is_left or self._plans_no_more(source)):
            if mark and mark.activity is Activity.BACKLOGGED and not unread.in_batch:
                return [self._backlog(source, number, unread)]
            if growing := self._lagging(source, number, unread, reads):
                return [growing]
        read = reads.filter(pl.col("n") > 0)
        usable = read.filter(pl.col("n") > pl.col("bad"))["batch_id"].max()
        bad = read if usable is None else read.filter(pl.col("batch_id") > usable)
        if not bad.height or bad.height < min(lately, read.height):
            return []
        return [self._poison(source, number, bad)]

    def coming(self, source: Source, number: int) -> WhyFinding | None:
        """Returns a finding if the newest look saw records of a partition that no finished batch has read; else
        None.
        """
        reads = self._scene.of(source.name).reads.of_partition(source.name, number)
        unread = unread_of(reads, partial(self._planned_until, source, number))
        if unread is None:
            return None
        seen = counted(unread.n, "record of it was", "records of it were")
        observation, remedy = f"{seen} there when the newest batch had been planned", "wait for the next batch"
        if unread.in_batch:
            seen = counted(unread.in_batch, "record of it waited", "records of it waited")
            observation, remedy = f"{seen} unread, and the newest batch that was planned reads them", "wait"
        return self._scene.finding(
            BEING_READ,
            source.name,
            observation,
            remedy,
            input=source.name,
            partition=number,
            since_ms=unread.seen_ms,
        )

    def _open_transaction(self, source: Source, number: int) -> WhyFinding | None:
        """Returns a finding if the newest heartbeat tells of an open transaction in the partition; None otherwise."""
        driver = self._scene.of(source.name).driver
        beat = driver.beat
        if beat is None or driver.liveness not in HAS_DRIVER:
            return None
        for transaction in beat.open_transactions:
            if (transaction.source, transaction.partition) == (source.name, number):
                topic, partition = transaction.topic_partition
                return self._scene.finding(
                    OPEN_TRANSACTION,
                    source.name,
                    f"topic {topic}, partition {partition}: a transaction is open, so the last stable offset is "
                    f"{transaction.stable_offset} and has not moved since the look of {iso(transaction.since_ms)}; "
                    "nothing from "
                    "there on is read before the transaction ends",
                    "look at its producer, or end the transaction in its place: `kafka-transactions.sh "
                    f"--bootstrap-server HOST:PORT abort --topic {topic} --partition {partition} "
                    f"--start-offset {transaction.stable_offset}`",
                    input=source.name,
                    partition=number,
                    since_ms=transaction.since_ms,
                )
        return None

    def _plans_no_more(self, source: Source) -> bool:
        """Returns True if the driver has planned no batch for longer than its trigger."""
        facts = self._scene.of(source.name)
        finished_ms = facts.tables.batches["finished_at"].max()
        is_due = isinstance(finished_ms, int) and self._scene.at_ms - finished_ms > self._scene.topology.trigger_ms
        return is_due and facts.planned.ends(self._scene.sub(source.name)) is None

    def _planned_until(self, source: Operator, number: int) -> int | None:
        """Returns the exclusive end offset that a batch which has not finished reads of a partition.

        The end is None if no such batch was planned, and 0 if the plan leaves the partition out.
        """
        ends = self._scene.of(source.name).planned.ends(self._scene.sub(source.name))
        return None if ends is None else ends.get((source.name, number), 0)

    def _backlog(self, source: Source, number: int, unread: Unread) -> WhyFinding:
        waiting = counted(unread.n, "record of it waits unread", "records of it wait unread")
        return self._scene.finding(
            BACKLOG,
            source.name,
            f"{waiting}, and the newest batch read none of {by_number(unread.n, 'the partition', 'them')}",
            f"check in the log that the driver can read the partition: {logs(self._scene, source.name)}; or raise "
            f"max_records and {start(self._scene, source.name)}",
            input=source.name,
            partition=number,
            since_ms=unread.seen_ms,
        )

    def _lagging(self, source: Source, number: int, unread: Unread, reads: pl.DataFrame) -> WhyFinding | None:
        """Returns a finding if the last batches of a partition each left more unread than they read."""
        last = reads.filter(pl.col("n") > 0).tail(LATELY)
        least = last["unread"].min()
        if self._scene.of(source.name).driver.liveness is Liveness.CATCHING_UP:
            return None
        if not isinstance(least, int) or not (last["unread"] > last["n"]).all():
            return None
        waiting = counted(unread.n, "record of it waits unread", "records of it wait unread")
        batches, left = last_batches(last.height), by_number(last.height, f"{least:,}", f"{least:,} or more each")
        return self._scene.finding(
            BACKLOG,
            source.name,
            f"{waiting}; {batches} read {last['n'].sum():,} and left {left}",
            self._remedy_if_lagging(source, last.height),
            input=source.name,
            partition=number,
            since_ms=unread.seen_ms,
        )

    def _remedy_if_lagging(self, source: Source, batches: int) -> str:
        """Returns what to do if the last *batches* of a partition, at most LATELY, each left more than they read."""
        if batches < LATELY:
            return f"wait: after {LATELY} such batches it is known that the driver does not keep up"
        more = "raise max_records, run it in shards (shards), or give it more cores"
        return f"the driver does not keep up: {more}, and {start(self._scene, source.name)}"

    def _poison(self, source: Source, number: int, bad: pl.DataFrame) -> WhyFinding:
        rows = self._scene.of(source.name).reads.quarantined(source.name, bad["batch_id"])
        rows = rows.filter(pl.col("partition") == number)
        where = {"input": source.name, "partition": number, "since_ms": bad["finished_at"].head(1).item()}
        absurd = rows.filter(pl.col("reason") == "timestamp_out_of_range")
        if absurd.height * 2 > rows.height and (unit := plausible_unit(source, absurd["value"].to_list())):
            newest = by_number(
                absurd.height,
                "the timestamp of its newest record is",
                f"the timestamps of its newest {absurd.height:,} records are",
            )
            observation = f"{newest} out of range as {source.timestamp_unit} and plausible as {unit}"
            again = requeue(self._scene, source, "timestamp_out_of_range")
            remedy = (
                f'set timestamp_unit = "{unit}" for {source.name}, {start(self._scene, source.name)}, and {again}; '
                f"or have the producer send {source.timestamp_unit}"
            )
            return self._scene.finding(WRONG_TIME_UNIT, source.name, observation, remedy, **where)
        newest = by_number(rows.height, "its newest record is", f"its newest {rows.height:,} records are")
        observation = f"{newest} quarantined ({reasons_of(source, rows)})"
        look = quarantine_query(self._scene, source.name)
        remedy = f"look at them: {look}; correct the producer or the topology; then {requeue(self._scene, source)}"
        return self._scene.finding(POISON_AT_HEAD, source.name, observation, remedy, **where)

    def _too_far_ahead(self, source: Source) -> Iterator[WhyFinding]:
        """Yields a finding if records of *source* wait because slower partitions are too far behind.

        Nothing counts these records by partition, so all partitions that wait are in one finding.
        """
        facts, drift_ms = self._scene.of(source.name), self._scene.topology.max_drift_ms
        held = int(facts.outcomes.newest(source.name)["held_after"].sum())
        if drift_ms is None or not held:
            return
        group = self._group(source)
        lowest_ms = lowest_reported(group.values())
        allowed_ms = max_allowed_ms(group.values(), max_drift_ms=drift_ms)
        ahead = {
            number: watermark_text(mark.watermark_ms)
            for number, mark in self.partitions(source.name).items()
            if must_wait(mark.watermark_ms, allowed_ms=allowed_ms)
        }
        if not ahead:
            return
        name, slowest = next(key for key, progress in group.items() if progress.watermark_ms == lowest_ms)
        holding = facts.outcomes.since_last(source.name, pl.col("held_after") == 0)
        rows = facts.outcomes.newest(source.name, n=LATELY)
        released, limit = int(rows["released_early"].sum()), f"max_held = {self._scene.topology.max_held:,}"
        were = counted(released, "was", "were")
        early = f"; {were} released early in {last_batches(rows.height)} ({limit})" if released else ""
        which = ", ".join(f"partition {number} at {watermark}" for number, watermark in ahead.items())
        yield self._scene.finding(
            ALIGNMENT_WAIT,
            source.name,
            f"{counted(held, 'record waits', 'records wait')}: {which} {by_number(len(ahead), 'is', 'are')} more than "
            f"{for_people(drift_ms)} (max_drift) ahead of {name} partition {slowest} at "
            f"{watermark_text(lowest_ms)}{early}",
            f"look why {name} partition {slowest} is slow, give it an idle_after, or allow a longer max_drift",
            input=source.name,
            partition=next(iter(ahead)) if len(ahead) == 1 else None,
            since_ms=first(holding, "held_after"),
        )

    def _group(self, source: Source) -> dict[tuple[str, int], Progress]:
        """Returns the progress of all partitions that `max_drift` keeps together with those of *source*, by source and
        number.
        """
        sub = self._scene.sub(source.name)
        # A source that only feeds the tables of joins is read as fast as it can be.
        names = {o.name for o in sub.operators if o.reads_outside} - sub.table_inputs()
        progress: dict[tuple[str, int], Progress] = {}
        for name in sorted(names):
            for number, mark in self.partitions(name).items():
                activity = mark.activity or Activity.ACTIVE
                progress[name, number] = Progress(watermark_ms=mark.watermark_ms, activity=activity)
        return progress

    def late(self, operator: Operator) -> list[WhyFinding]:
        """Returns a finding if most records of the last batches of *operator* were late; no finding otherwise."""
        facts = self._scene.of(operator.name)
        rows = facts.outcomes.lately(operator.name)
        late, n = int(rows["late"].sum()), int(rows["records_in"].sum())
        if late * 2 <= n:
            return []
        since_ms = began(facts.outcomes.recently(operator.name), pl.col("late") * 2 > pl.col("records_in"))
        # A share of one batch, or of few, is no advice.
        is_known, later = rows.height >= LATELY, f"wait: after {LATELY} batches it is known whether the"
        which = by_number(n, "the only record", f"{late:,} of the {n:,} records")
        were = f"{which} of {last_batches(rows.height)} {by_number(n, 'was', 'were')}"
        if self._scene.topology.jobs:
            observation = f"{were} behind its watermark"
            remedy = "let withWatermark in the job allow a longer delay: Spark has dropped them"
            remedy = remedy if is_known else f"{later} delay of withWatermark is too short"
            return [self._scene.finding(BOUND_TOO_SMALL, operator.name, observation, remedy, since_ms=since_ms)]
        records = facts.late_records(operator.name, rows["batch_id"])
        partitions = records["partition"].unique()
        lateness_ms = records["lateness_ms"].max() or 0
        sources = self._scene.sources(operator.name)
        assert isinstance(lateness_ms, int)
        if len(sources) == 1:
            (only,) = sources.values()
            bounds = f"a bound of {for_people(only.bound_ms)}"
            enough = f'a bound of "{length_in_toml(only.bound_ms + lateness_ms + 1)}" would accept them'
            option = f" --source {only.name}"
        else:
            # The table does not say of which source they are.
            each = ", ".join(f"{for_people(source.bound_ms)} ({source.name})" for source in sources.values())
            bounds, option = f"bounds of {each}", ""
            enough = f'bounds that are "{length_in_toml(lateness_ms + 1)}" longer would accept them'
        longer = f"{enough}; `tidemark bound {self._scene.topology.name}{option}` shows the price of each bound"
        finding = self._scene.finding(
            BOUND_TOO_SMALL,
            operator.name,
            f"{were} late, by up to {for_people(lateness_ms)}, with {bounds}{taken_in_again(rows)}",
            f"{longer if is_known else f'{later} bound is too small'}; {requeue_late(self._scene, operator.name)}",
            input=next(iter(sources)) if len(sources) == 1 else None,
            partition=partitions.item() if len(sources) == partitions.len() == 1 else None,
            since_ms=since_ms,
        )
        return [finding]

    def hop(self, source: HopSource) -> list[WhyFinding]:
        """Returns a finding if *source* has not read updates that its writer sent more than UNREAD_AFTER_MS ago."""
        unread = self._unread_of(source)
        since_ms = unread["finished_at"].min()
        if not isinstance(since_ms, int) or self._scene.at_ms - since_ms <= UNREAD_AFTER_MS:
            return []
        return [
            self._scene.finding(
                BACKLOG,
                source.name,
                counted(
                    unread.height,
                    f"batch that {source.repartition} sent on waits unread",
                    f"batches that {source.repartition} sent on wait unread",
                ),
                f"check that the driver of {self._scene.sub(source.name).name} runs and keeps up: "
                f"{logs(self._scene, source.name)} and `tidemark topology {self._scene.topology.name}`",
                input=source.repartition,
                since_ms=since_ms,
            )
        ]

    def _unread_of(self, source: HopSource) -> pl.DataFrame:
        """Returns the batches of the writer of *source* that no batch of its reader has read or plans to read."""
        writer = self._scene.of(source.repartition)
        # The offsets of a hop are batches of its writer. The sum is 0 where the hop was never read.
        until = int(self._scene.of(source.name).reads.of_partition(source.name, 0).tail(1)["until_offset"].sum())
        sent = writer.sent_on(source.repartition, until)
        if sent.len():
            # Updates that a planned batch reads do not wait.
            sent = sent.filter(sent >= (self._planned_until(source, 0) or 0))
        return writer.tables.batches_of(sent).filter(pl.col("batch_id").is_in(sent.implode()))


def last_batches(n: int) -> str:
    """Returns the last *n* batches of an operator in words, whose number may be all that there are."""
    return by_number(n, "its last batch", f"its last {n:,} batches")


def taken_in_again(rows: pl.DataFrame) -> str:
    """Returns a clause that counts the late records in *rows* which closed windows processed again; empty without
    one.
    """
    again = int(rows["reopened"].sum())
    were = counted(again, "late record was", "late records were")
    return f"; {were} processed again by closed windows" if again else ""


def reasons_of(source: Source, records: pl.DataFrame) -> str:
    """Returns how many *records* of *source* were quarantined for each reason, with the fields that have a wrong
    type.
    """
    wrong_type = records.filter(pl.col("reason") == "wrong_type")["value"].to_list()
    return _counted_reasons(records, "wrong_type", wrong_fields(source, wrong_type))


def reasons_at(operator: Operator, records: pl.DataFrame) -> str:
    """Returns how many *records* the *operator* quarantined for each reason, with the columns of null keys.

    The operator is no source: those have `reasons_of`.
    """
    from tidemark.stream.operate.registry import step_of

    # The start of the window is in the key of a windowed aggregate, and never null.
    return _counted_reasons(records, "null_key", outside(step_of(operator).key(operator) or (), {"window_start"}))


def _counted_reasons(records: pl.DataFrame, named: str, columns: Sequence[str]) -> str:
    """Returns how many *records* were quarantined for each reason; behind the reason *named* come its *columns*."""
    counts = Counter(records["reason"].to_list()).most_common()
    in_columns = f" in {', '.join(columns)}" if columns else ""
    return ", ".join(f"{n:,} {reason}{in_columns if reason == named else ''}" for reason, n in counts)
