"""Why an operator gives no results, reasoned from what the tables of its topology said at an instant.

From the operator upstream: what came in after its newest result and was not sent on is the reason where there is such;
otherwise the reason lies further up. Where a window waits for the watermark, it is followed to the partition that
holds it back. The first finding explains most. Instants are epoch ms.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import polars as pl

from tidemark.control import StreamState
from tidemark.errors import InvalidArgument
from tidemark.report.findings import Cause, Finding, in_order
from tidemark.report.stream_facts import LATELY, Mark, StreamFacts
from tidemark.semantics.alignment import lowest_reported, max_allowed_ms
from tidemark.semantics.idleness import Activity
from tidemark.semantics.watermark import Progress
from tidemark.spec.intervals import iso
from tidemark.spec.layout import Layout
from tidemark.spec.operators import Aggregate, HopSource, Join, Operator, Source, emission_of
from tidemark.spec.topology import SubTopology, Topology

BEATS_WITHIN_MS = 60_000
"""A driver that has not beaten for longer, four beats of 15 s, is dead."""
SLOW_AFTER_MS = 60_000
"""A batch that has been running for longer is worth a word."""
QUIET_AFTER_MS = 60_000
"""A source without an idle timeout is quiet when it had no record for longer."""
_MS_PER = {"s": 1_000.0, "ms": 1.0, "us": 1e-3, "ns": 1e-6}


def why(topology: Topology, layout: Layout, *, at_ms: int, operator: str | None = None) -> list[Finding]:
    """Why *operator* of *topology*, or each terminal one, gave no results at *at_ms*; the best explanation first.

    Raises:
        InvalidArgument: there is no such operator.
    """
    if operator is not None and operator not in topology.operators:
        msg = f"{topology.name} has no operator {operator!r}; known: {', '.join(topology.operators)}"
        raise InvalidArgument(msg)
    facts = {
        sub.name: StreamFacts(layout.stream_table(topology.name, sub.name, "_").parent, at_ms)
        for sub in topology.sub_topologies
    }
    read = {name for names in topology.upstreams.values() for name in names}
    asked = [operator] if operator else [name for name in topology.operators if name not in read]
    reasoning = _Reasoning(topology, facts, at_ms)
    return in_order([finding for name in asked for finding in reasoning.about(name)])


class _Reasoning:
    """Walks *topology* upstream over the *facts* of its sub-topologies."""

    def __init__(self, topology: Topology, facts: Mapping[str, StreamFacts], at_ms: int) -> None:
        self._topology, self._facts, self._at_ms = topology, facts, at_ms
        self._subs = {operator.name: sub for sub in topology.sub_topologies for operator in sub.operators}

    def about(self, name: str) -> list[Finding]:
        """Why the operator *name* gives nothing; never empty."""
        found = list(self._drivers(name))
        if any(finding.cause is Cause.NEVER_STARTED and finding.operator == name for finding in found):
            return found
        found += self._walk(name)
        return found or [self._in_time(name)]

    def _operator(self, name: str) -> Operator:
        return self._topology.operators[name]

    def _of(self, name: str) -> StreamFacts:
        return self._facts[self._subs[name].name]

    def _found(self, cause: Cause, name: str, seen: str, remedy: str, **more: str | int | None) -> Finding:
        sub = self._subs[name].name
        return Finding(cause=cause, sub_topology=sub, operator=name, seen=seen, remedy=remedy, **more)  # type: ignore[arg-type]

    # Drivers

    def _drivers(self, name: str) -> Iterator[Finding]:
        """What is wrong with the driver of the operator *name*, then with those of the sub-topologies it reads from."""
        own = self._driver(name, Cause.DRIVER_DEAD)
        if own:
            yield own
        for operator in self._subs[name].operators:
            if isinstance(operator, HopSource) and operator.name in self._ancestors(name):
                for finding in self._drivers(operator.repartition):
                    dead = finding.cause is Cause.DRIVER_DEAD
                    yield Finding(**{**vars(finding), "cause": Cause.UPSTREAM_DEAD}) if dead else finding

    def _driver(self, name: str, cause: Cause) -> Finding | None:
        facts, sub = self._of(name), self._subs[name].name
        beat, start = facts.beat, f"start the driver of {sub}"
        if beat is None:
            if facts.batches.height:
                return None  # Its driver is of a time before there were heartbeats.
            return self._found(Cause.NEVER_STARTED, name, f"{sub} left no heartbeat and no batch", start)
        if beat.state is StreamState.FAILED:
            return self._found(
                cause, name, f"the driver of {sub} failed: {beat.reason}", f"mend that and {start}", since_ms=beat.at_ms
            )
        if beat.state is StreamState.DRAINED:
            return self._found(cause, name, f"the driver of {sub} was drained", start, since_ms=beat.at_ms)
        if self._at_ms - beat.at_ms > BEATS_WITHIN_MS:
            seen = f"the driver of {sub} does not beat any more"
            return self._found(cause, name, seen, f"look at its log and {start}", since_ms=beat.at_ms)
        if beat.batch_started_at_ms is not None and beat.at_ms - beat.batch_started_at_ms > SLOW_AFTER_MS:
            seen = f"one batch of {sub} has been running for {_length(beat.at_ms - beat.batch_started_at_ms)}"
            remedy = "look for the slow operator with operator_latency, or at the driver's log"
            return self._found(Cause.SLOW_BATCH, name, seen, remedy, since_ms=beat.batch_started_at_ms)
        return None

    def _ancestors(self, name: str) -> set[str]:
        return {name}.union(*(self._ancestors(up) for up in self._operator(name).inputs))

    # Operators

    def _walk(self, name: str) -> list[Finding]:
        """The reasons that lie in the operator *name* or, without any, further up."""
        operator = self._operator(name)
        match operator:
            case Source():
                return self._source(operator)
            case HopSource():
                return self._hop(operator) or self._walk(operator.repartition)
            case _:
                waiting = [*self._late(operator), *self._held(operator)]
                return [*waiting, *self._walk(operator.inputs[0]), *self._left_out(operator)]

    def _left_out(self, operator: Operator) -> list[Finding]:
        """What became of all that came in after the newest result of *operator* and does not wait; most first."""
        rows = self._of(operator.name).since_last_result(operator.name)
        of = f"of {rows['records_in'].sum():,} updates since its newest result"
        reasons: dict[str, Callable[[str], list[Finding]]] = {
            "suppressed": lambda seen: self._suppressed(operator, seen),
            "filtered": lambda seen: self._filtered(operator, seen),
            "quarantined": lambda seen: self._unusable(operator, seen),
        }
        counts = Counter({word: int(rows[word].sum()) for word in reasons})
        return [
            finding for word, n in counts.most_common() if n for finding in reasons[word](f"{n:,} {of} were {word}")
        ]

    def _suppressed(self, operator: Operator, seen: str) -> list[Finding]:
        remedy = "nothing is to be done if the values are the same; see the table suppressed for each skip"
        return [
            self._found(
                Cause.ALL_SUPPRESSED, operator.name, seen, remedy, since_ms=self._since(operator.name, "suppressed")
            )
        ]

    def _filtered(self, operator: Operator, seen: str) -> list[Finding]:
        remedy, more = "look at its `where`", []
        if isinstance(operator, Join):
            remedy = f"no row of {operator.table or operator.delta} matched: look at `on`, or join with how = left"
            more = self._walk(operator.table) if operator.table else []
        since_ms = self._since(operator.name, "filtered")
        return [self._found(Cause.ALL_FILTERED, operator.name, seen, remedy, since_ms=since_ms), *more]

    def _unusable(self, operator: Operator, seen: str) -> list[Finding]:
        remedy = "its key column is null: look at the records in the table quarantine"
        since_ms = self._since(operator.name, "quarantined")
        return [self._found(Cause.POISON_AT_HEAD, operator.name, seen, remedy, since_ms=since_ms)]

    def _late(self, operator: Operator) -> list[Finding]:
        """Whether more than half of what came in lately was late."""
        facts = self._of(operator.name)
        rows = facts.lately(operator.name)
        late, n = rows["late"].sum(), rows["records_in"].sum()
        if late * 2 <= n:
            return []
        records = facts.late_records.filter(
            pl.col("operator") == operator.name, pl.col("batch_id").is_in(rows["batch_id"].implode())
        )
        partitions = records["partition"].unique()
        lateness_ms = records["lateness_ms"].max() or 0
        source = self._first_source(operator.name)
        bound_ms = source.bound_ms if source else 0
        assert isinstance(lateness_ms, int)
        found = self._found(
            Cause.BOUND_TOO_SMALL,
            operator.name,
            f"{late:,} of the {n:,} records of its last {rows.height} batches were late, by up to "
            f"{_length(lateness_ms)}, with a bound of {_length(bound_ms)}",
            f"a bound of {_length(bound_ms + lateness_ms + 1)} takes them in; "
            f"tidemark bound {self._topology.name} shows what each bound costs",
            input=source.name if source else None,
            partition=partitions.item() if partitions.len() == 1 else None,
            since_ms=_first(rows, "late"),
        )
        return [found]

    def _first_source(self, name: str) -> Source | None:
        """The source at the end of the first inputs of the operator *name*."""
        operator = self._operator(name)
        match operator:
            case Source():
                return operator
            case HopSource():
                return self._first_source(operator.repartition)
            case _:
                return self._first_source(operator.inputs[0])

    def _since(self, name: str, word: str) -> int | None:
        return _first(self._of(name).since_last_result(name), word)

    # Results that wait

    def _held(self, operator: Operator) -> Iterator[Finding]:
        """Why results of *operator* wait, unless its newest batch had some."""
        newest = self._of(operator.name).of_operator(operator.name).tail(1)
        held = newest["held_after"].sum()
        if not held or newest["gave"].sum():
            return
        since_ms = _first(self._of(operator.name).since_last_result(operator.name), "held_after")
        emission = emission_of(operator)
        if emission is not None and emission.interval_ms is not None:
            due_ms = (newest["decided_at"].item() // emission.interval_ms + 1) * emission.interval_ms
            yield self._found(
                Cause.HELD_UNTIL_INTERVAL,
                operator.name,
                f"{held:,} updates wait for {iso(due_ms)}, the end of an interval of {_length(emission.interval_ms)}",
                "wait, or choose a shorter interval",
                since_ms=since_ms,
            )
        elif isinstance(operator, Aggregate) and operator.windows:
            ends = self._of(operator.name).open_windows(operator.name)
            end_ms = ends.min()
            if isinstance(end_ms, int):
                needed_ms = end_ms - 1 + operator.windows.allowed_lateness_ms
                yield from self._open(operator.name, ends.len(), end_ms, needed_ms, since_ms)

    def _open(self, name: str, n: int, end_ms: int, needed_ms: int, since_ms: int | None) -> Iterator[Finding]:
        """Why *n* windows wait, the first of which ends at *end_ms*, for a watermark of *needed_ms*."""
        sub = self._subs[name]
        yield from self._holding(sub, needed_ms)
        mark = self._of(name).marks.get((None, None))
        held_by = mark.held_by if mark else None
        source = self._first_source(name)
        record = f"a record of {iso(needed_ms + source.bound_ms + 1)} or later closes it" if source else "wait"
        yield self._found(
            Cause.WINDOW_NOT_CLOSED,
            name,
            f"{n:,} results wait, the first for a watermark of {iso(needed_ms)} (window end {iso(end_ms)}); "
            f"it is at {_shown(mark.watermark_ms if mark else None)}",
            record,
            input=held_by or (source.name if source else None),
            partition=self._slowest(sub, held_by),
            since_ms=since_ms,
        )

    def _slowest(self, sub: SubTopology, source: str | None) -> int | None:
        mark = self._facts[sub.name].marks.get((source, None)) if source else None
        return int(mark.held_by) if mark and mark.held_by is not None else None

    # Watermarks

    def _holding(self, sub: SubTopology, needed_ms: int) -> Iterator[Finding]:
        """What holds the watermark of *sub* back from *needed_ms* although other records have come as far."""
        marks = self._facts[sub.name].marks
        tables = sub.table_inputs()
        leading = [o for o in sub.operators if isinstance(o, Source | HopSource) and o.name not in tables]
        names = {o.name for o in leading}
        ahead = any(_reached(mark, needed_ms) for (name, _), mark in marks.items() if name in names)
        for source in leading:
            if isinstance(source, Source):
                yield from self._source_holding(source, needed_ms, ahead=ahead)
            elif not _reached(marks.get((source.name, None)), needed_ms):
                yield from self._hop(source) or self._holding(self._subs[source.repartition], needed_ms)

    def _source_holding(self, source: Source, needed_ms: int, *, ahead: bool) -> Iterator[Finding]:
        partitions = self._partitions(source.name)
        behind = {n: m for n, m in partitions.items() if m.activity is not Activity.IDLE and not _reached(m, needed_ms)}
        if behind and self._never_read(source.name):
            yield from self._empty(source)
            return
        for number, mark in behind.items():
            found = self._blocked(source, number)
            if not found and ahead:
                found = [self._silent_or_behind(source, number, mark)]
            yield from found

    def _silent_or_behind(self, source: Source, number: int, mark: Mark) -> Finding:
        """Why partition *number*, from which nothing keeps the driver, holds back others that are ahead."""
        facts = self._of(source.name)
        reads = facts.of_partition(source.name, number).filter(pl.col("n") > 0)
        newest = facts.reads.filter(pl.col("n") > 0)["batch_id"].max()
        last = reads.tail(1)
        if last.height and last["batch_id"].item() == newest:
            return self._found(
                Cause.PARTITION_BEHIND_HOLDS_BACK,
                source.name,
                f"it gives records, the newest of {_shown(mark.max_timestamp_ms)}, while others are ahead",
                "speed up its producer, or wait until it has caught up",
                input=source.name,
                partition=number,
                since_ms=last["finished_at"].item(),
            )
        since_ms = last["finished_at"].item() if last.height else facts.batches["finished_at"].head(1).item()
        said = "it has been silent" if last.height else "it never had a record"
        idle = (
            "the source has no idle_after, so it never counts as idle"
            if source.idle_after_ms is None
            else f"it counts as idle only after {_length(source.idle_after_ms)} (idle_after)"
        )
        return self._found(
            Cause.PARTITION_IDLE_HOLDS_BACK,
            source.name,
            f"{said} and holds the watermark at {_shown(mark.watermark_ms)}; {idle}",
            f'give {source.name} a shorter idle_after, such as "30 s", or send keep-alive records to the partition',
            input=source.name,
            partition=number,
            since_ms=since_ms,
        )

    # Sources

    def _partitions(self, source: str) -> dict[int, Mark]:
        marks = self._of(source).marks
        return {number: mark for (name, number), mark in marks.items() if name == source and number is not None}

    def _never_read(self, source: str) -> bool:
        return not self._of(source).reads.filter(pl.col("source") == source)["n"].sum()

    def _empty(self, source: Source) -> list[Finding]:
        """What there is to say of a *source* of which nothing was ever read."""
        unread = [found for number in self._partitions(source.name) for found in self._blocked(source, number)]
        if unread:
            return unread
        first = self._of(source.name).batches["finished_at"].head(1)
        place = source.topic or source.delta or source.files
        seen = f"{place} never had a record"
        remedy = "look whether its producer runs and writes there"
        since_ms = first.item() if first.len() else None
        return [
            self._found(Cause.SOURCE_EMPTY, source.name, seen, remedy, input=source.name, since_ms=since_ms),
        ]

    def _source(self, source: Source) -> list[Finding]:
        """Why *source* gives nothing, or a partition of it."""
        if self._never_read(source.name):
            return self._empty(source)
        facts = self._of(source.name)
        gives = facts.since_last_result(source.name)["records_in"].sum() == 0
        found = list(self._waiting(source))
        for number in self._partitions(source.name):
            found += self._blocked(source, number, lately=LATELY if gives else 1)
        found += self._late(source)
        kept_alive = facts.since_last_result(source.name)["filtered"].sum()
        if kept_alive:
            found += self._filtered(source, f"{kept_alive:,} records since its newest result only kept it alive")
        return found

    def _blocked(self, source: Source, number: int, *, lately: int = 1) -> list[Finding]:
        """What keeps the records of a partition from being used.

        Nobody reads them; or all after the last usable one, and all of its last *lately* batches, are quarantined.
        """
        facts = self._of(source.name)
        reads = facts.of_partition(source.name, number)
        mark = facts.marks.get((source.name, number))
        unread = reads["unread"].tail(1).sum()
        if mark and mark.activity is Activity.BACKLOGGED and unread:
            return [self._backlog(source, number, unread, reads)]
        read = reads.filter(pl.col("n") > 0)
        usable = read.filter(pl.col("n") > pl.col("bad"))["batch_id"].max()
        bad = read if usable is None else read.filter(pl.col("batch_id") > usable)
        if not bad.height or bad.height < min(lately, read.height):
            return []
        return [self._poison(source, number, bad)]

    def _backlog(self, source: Source, number: int, unread: int, reads: pl.DataFrame) -> Finding:
        last = reads.filter(pl.col("n") > 0).tail(1)["finished_at"]
        return self._found(
            Cause.BACKLOG,
            source.name,
            f"{unread:,} records of it wait unread, and the newest batch read none of them",
            "look whether the driver can read the partition, or raise max_records",
            input=source.name,
            partition=number,
            since_ms=last.item() if last.len() else None,
        )

    def _poison(self, source: Source, number: int, bad: pl.DataFrame) -> Finding:
        rows = self._of(source.name).quarantine.filter(
            pl.col("source") == source.name,
            pl.col("partition") == number,
            pl.col("batch_id").is_in(bad["batch_id"].implode()),
        )
        where = {"input": source.name, "partition": number, "since_ms": bad["finished_at"].head(1).item()}
        absurd = rows.filter(pl.col("reason") == "timestamp_out_of_range")
        if absurd.height * 2 > rows.height and (unit := _plausible_unit(source, absurd["value"].to_list())):
            seen = f"the timestamps of its newest {absurd.height:,} records are out of range as {source.timestamp_unit}"
            seen += f" and plausible as {unit}"
            remedy = (
                f'set timestamp_unit = "{unit}" for {source.name}, or have the producer send {source.timestamp_unit}'
            )
            return self._found(Cause.WRONG_TIME_UNIT, source.name, seen, remedy, **where)
        reasons = Counter(rows["reason"].to_list()).most_common()
        seen = f"its newest {rows.height:,} records are quarantined ({', '.join(f'{n:,} {why}' for why, n in reasons)})"
        remedy = "look at them in the table quarantine, mend the producer, and send them again with tidemark requeue"
        return self._found(Cause.POISON_AT_HEAD, source.name, seen, remedy, **where)

    def _waiting(self, source: Source) -> Iterator[Finding]:
        """The partitions of *source* whose records wait for others that are too far behind."""
        facts, drift_ms = self._of(source.name), self._topology.max_drift_ms
        if drift_ms is None or not facts.of_operator(source.name).tail(1)["held_after"].sum():
            return
        sources = {o.name for o in self._subs[source.name].operators if isinstance(o, Source)}
        sources -= self._subs[source.name].table_inputs()
        group = {
            (name, number): Progress(watermark_ms=mark.watermark_ms, activity=mark.activity or Activity.ACTIVE)
            for (name, number), mark in facts.marks.items()
            if name in sources and number is not None
        }
        lowest_ms = lowest_reported(group.values())
        allowed_ms = max_allowed_ms(group.values(), max_drift_ms=drift_ms)
        slowest = [place for place, part in group.items() if part.watermark_ms == lowest_ms]
        ahead = facts.held_records.filter(
            pl.col("source") == source.name, pl.col("timestamp") - source.bound_ms - 1 > pl.lit(allowed_ms, pl.Int64)
        )
        rows = ahead.group_by("partition").agg(pl.len(), pl.col("batch_id").min()).sort("partition").iter_rows()
        for number, n, batch_id in rows:
            name, behind = slowest[0]
            yield self._found(
                Cause.ALIGNMENT_WAIT,
                source.name,
                f"{n:,} records wait, which are more than {_length(drift_ms)} (max_drift) ahead of "
                f"{name} partition {behind} at {_shown(lowest_ms)}",
                f"find out why {name} partition {behind} is slow, give it an idle_after, or allow a longer max_drift",
                input=source.name,
                partition=number,
                since_ms=facts.batches.filter(pl.col("batch_id") == batch_id)["finished_at"].item(),
            )

    def _hop(self, source: HopSource) -> list[Finding]:
        """Whether *source* has not read all that its repartition handed on."""
        handed = self._of(source.repartition).handed_on(source.repartition)
        until = self._of(source.name).of_partition(source.name, 0).tail(1)["until_offset"].sum()
        if handed < until:
            return []
        finished = self._of(source.repartition).batches.filter(pl.col("batch_id") >= until)["finished_at"]
        return [
            self._found(
                Cause.BACKLOG,
                source.name,
                f"{handed + 1 - until:,} batches that {source.repartition} handed on wait unread",
                f"look whether the driver of {self._subs[source.name].name} runs and keeps up",
                input=source.repartition,
                since_ms=finished.head(1).item() if finished.len() else None,
            )
        ]

    # No trouble

    def _in_time(self, name: str) -> Finding:
        """What to say of the operator *name* when nothing explains a silence."""
        rows = self._of(name).of_operator(name).filter(pl.col("gave") > 0).tail(1)
        if not rows.height:
            seen = "it had no results yet, and nothing is known that keeps it from them"
            return self._found(Cause.UNEXPLAINED, name, seen, "look at the table outcomes, and at the driver's log")
        at_ms = rows["finished_at"].item()
        source = self._first_source(name)
        if source is not None:
            reads = self._of(source.name).reads.filter(pl.col("source") == source.name, pl.col("n") > 0)
            read_ms = reads["finished_at"].max()
            quiet_after_ms = source.idle_after_ms or QUIET_AFTER_MS
            if isinstance(read_ms, int) and self._at_ms - read_ms > quiet_after_ms:
                seen = (
                    f"nothing came for {_length(self._at_ms - read_ms)}; results of all that had come at {iso(at_ms)}"
                )
                remedy = "look whether its producer runs, if you expect more"
                return self._found(Cause.SOURCE_QUIET, name, seen, remedy, input=source.name, since_ms=read_ms)
        seen = f"{rows['gave'].item():,} results came, of the newest records that were read"
        return self._found(Cause.NOTHING_WRONG, name, seen, "nothing is to be done", since_ms=at_ms)


def _first(rows: pl.DataFrame, word: str) -> int | None:
    """When the first of *rows* finished in which the count *word* was above 0."""
    found = rows.filter(pl.col(word) > 0)["finished_at"].head(1)
    return found.item() if found.len() else None


def _reached(mark: Mark | None, needed_ms: int) -> bool:
    return mark is not None and mark.watermark_ms is not None and mark.watermark_ms >= needed_ms


def _shown(at_ms: int | None) -> str:
    return "none yet" if at_ms is None else iso(at_ms)


def _length(ms: int) -> str:
    """A length of time as a topology's file has it."""
    for unit, size_ms in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if ms >= size_ms and ms % size_ms == 0:
            return f"{ms // size_ms:,} {unit}"
    return f"{ms:,} ms"


def _plausible_unit(source: Source, values: list[bytes | None]) -> str | None:
    """The one unit in which most of the timestamps in *values*, records of *source*, would have been in range."""
    low_ms, high_ms = source.timestamp_range_ms
    numbers = [number for value in values if (number := _timestamp(source, value)) is not None]
    fits = Counter(
        unit for number in numbers for unit, ms in _MS_PER.items() if low_ms <= number * ms < high_ms
    )  # fmt: skip
    unit, n = fits.most_common(1)[0] if fits else ("", 0)
    return unit if n * 2 > len(values) else None


def _timestamp(source: Source, value: bytes | None) -> float | None:
    """The number that the JSON record *value* has as its timestamp; None where it has none."""
    try:
        record = json.loads(value or b"")
    except (ValueError, RecursionError):
        return None
    number = record.get(source.timestamp) if isinstance(record, dict) else None
    return float(number) if isinstance(number, int | float) and not isinstance(number, bool) else None
