"""Says whether an interval of a table is complete, and if it is not, what it waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, assert_never

import polars as pl

from tidemark.errors import InvalidArgument
from tidemark.facts.answers import Tables
from tidemark.facts.topology_changes import RecordedChange, concerning, topology_changes, with_compared
from tidemark.model.kinds.operator import Operator
from tidemark.model.kinds.repartition import HopSource
from tidemark.model.kinds.source import Source
from tidemark.model.settings.intervals import Interval, iso
from tidemark.model.settings.lengths import for_people, length_in_toml
from tidemark.model.topology import SubTopology, Topology
from tidemark.selection import names_in, present
from tidemark.semantics.completeness import needed_ms, reached_at_ms
from tidemark.semantics.liveness import RUNS
from tidemark.why.causes.drivers import drivers
from tidemark.why.causes.inputs import Inputs
from tidemark.why.causes.watermarks import Watermarks
from tidemark.why.evidence.findings import Trait, in_order
from tidemark.why.evidence.snapshot import Scene, watermark_text


@dataclass(frozen=True, kw_only=True)
class IntervalState:
    """How far an interval of a table is: open, complete, or changed after it was complete.

    Instants are epoch ms UTC.

    Attributes:
        operator: the operator that writes the table.
        start_ms: start of the interval, record time, included.
        end_ms: end of the interval, record time, excluded.
        is_complete: the watermark has passed the end of the interval and the allowed lateness. The value is None if the
            interval is before the first one of the table.
        is_final: late records do not change a complete interval, since they are set aside.
        watermark_needed_ms: the watermark that completes the interval.
        complete_at_ms: decision time of the batch that completed the interval. The value is None if no row tells of it.
        records: records of the interval at the operator, None where they were not counted.
        reopenings: number of batches that changed the interval after it was complete.
        by_idleness: a partition had not come to the end of the interval, and nobody waited for it because it was idle.
        reason: what the interval waits for, or waited for longest, and what happened to it since.
        expected_at_ms: when the interval will be complete, by the clock. The value is None if it is complete, or if no
            estimate can be made.
        changes: changes of the topology, since a week before the interval was complete, after which rows of the table
            mean something else.
    """

    operator: str
    start_ms: int
    end_ms: int
    is_complete: bool | None
    is_final: bool
    watermark_needed_ms: int
    complete_at_ms: int | None = None
    records: int | None = None
    reopenings: int = 0
    by_idleness: bool = False
    reason: str
    expected_at_ms: int | None = None
    changes: tuple[RecordedChange, ...] = ()


def table_operator(topology: Topology, table: str) -> Operator | None:
    """Returns the operator with the key `complete` that writes *table*, or whose name *table* is; None without one."""
    with_intervals = (operator for operator in topology.operators.values() if operator.complete)
    return next((operator for operator in with_intervals if table in {operator.name, operator.result_table}), None)


def newest_time_ms(of: Scene, operator: Operator) -> int | None:
    """Returns the newest record time in the stream of *operator*, epoch ms; None before the first record."""
    marks = of.of(operator.name).marks.values()
    return max(present(each for mark in marks for each in (mark.max_timestamp_ms, mark.watermark_ms)), default=None)


def interval_state(of: Scene, operator: Operator, time_ms: int) -> IntervalState:
    """Returns the state of the interval of *operator* that *time_ms* lies in.

    Args:
        of: the scene of the topology. Rows of batches that were decided after its instant do not count.
        operator: an operator with the key `complete`.
        time_ms: a record time in the interval, epoch ms.

    Raises:
        InvalidArgument: the operator has no such key.
    """
    if operator.complete is None:
        msg = f'{operator.name} has no intervals; write complete = {{ every = "1 h" }} at this operator'
        raise InvalidArgument(msg)
    start_ms = operator.complete.start_of(time_ms)
    end_ms = operator.complete.end_of(start_ms)
    passed_ms = needed_ms(end_ms, allowed_lateness_ms=of.topology.allowed_lateness_ms(operator.name))
    state = partial(
        IntervalState,
        operator=operator.name,
        start_ms=start_ms,
        end_ms=end_ms,
        is_final=of.topology.sets_late_aside(operator.name),
        watermark_needed_ms=passed_ms,
    )
    rows = of.of(operator.name).completions(operator.name)
    of_interval = rows.filter(pl.col("interval_start") == start_ms, pl.col("interval_end") == end_ms)
    if of_interval.height:
        return state(is_complete=True, **_completion(of_interval, _sources(of, operator)))
    if rows.height and end_ms <= min(rows["interval_start"]):
        reason = f"the first interval of {operator.name} is that of {iso(min(rows['interval_start']))}"
        return state(is_complete=None, reason=reason)
    if rows.height and end_ms <= max(rows["interval_end"]):
        if rows.filter(pl.col("interval_start") < end_ms, pl.col("interval_end") > start_ms).height:
            return state(is_complete=True, reason=_OTHER_LENGTH)
        reason = "it has no record, and lies in a jump of time"
        return state(is_complete=True, records=0, reason=reason)
    reason, expected_at_ms = _reason_and_estimate(of, operator, passed_ms)
    return state(is_complete=False, reason=reason, expected_at_ms=expected_at_ms)


def with_changes(state: IntervalState, tables: Tables, of: Scene) -> IntervalState:
    """Returns *state* with the changes of its topology since it was complete, read from *tables*."""
    since_ms = of.at_ms if state.complete_at_ms is None else state.complete_at_ms
    over = with_compared(Interval(min(since_ms, of.at_ms), of.at_ms + 1))
    changes = concerning(topology_changes(tables, of.topology.name, over), of.topology, state.operator)
    return replace(state, changes=tuple(changes))


_OTHER_LENGTH = "its records were counted in intervals of another length, before `every` or `timezone` was changed"


def _sources(of: Scene, operator: Operator) -> list[Source]:
    """Returns the sources whose records reach *operator* from outside the topology."""
    on_the_way = names_in(of.topology.path_into(operator.name))
    return [source for source in of.topology.outside_sources if source.name in on_the_way]


def _too_short(sources: Sequence[Source], *, by_idleness: bool) -> str:
    """Says which settings of *sources* were too short for a late record.

    Every partition that was not idle had passed the interval by its newest record less the bound, so the bound of its
    source was too short. With idleness, `idle_after` may have been.
    """
    settings = [f'bound = "{length_in_toml(source.bound_ms)}" of {source.name}' for source in sources]
    if by_idleness:
        silent = (source for source in sources if source.idle_after_ms)
        settings += [
            f'idle_after = "{length_in_toml(source.idle_after_ms or 0)}" of {source.name}' for source in silent
        ]
    return f"{' or '.join(settings)} is too short for it"


def _completion(rows: pl.DataFrame, sources: Sequence[Source]) -> Mapping[str, Any]:
    """Returns what the *rows* of an interval tell of its completion and its reopenings, as fields of its state.

    The rows are in order, the oldest first, and *sources* are those whose records reach the table.
    """
    first, last = rows.row(0, named=True), rows.row(-1, named=True)
    reason = "it waited for nothing"
    if first["waited_for"] is not None:
        number = first["waited_for_partition"]
        partition = first["waited_for"] if number is None else f"{first['waited_for']} partition {number}"
        reason = f"it waited longest for {partition}: {for_people(first['waited_ms'])}"
    elif first["by_idleness"]:
        reason = "it waited for no record: silence of an idle partition let the watermark advance"
    if last["reopened_at"] is not None:
        where = f"partition {last['cause_partition']}, offset {last['cause_offset']}"
        reason += f"; reopened at {iso(last['reopened_at'])}: {last['cause']}, {where}"
        # A writer that Tidemark trusts (`written_by`) tells its own watermark, which moves ours without a bound.
        if last["cause"] == "late_record" and not any(source.written_by for source in sources):
            reason += f": {_too_short(sources, by_idleness=first['by_idleness'])}"
    return {
        "complete_at_ms": first["decided_at"],
        "records": None if rows["records"].null_count() else sum(rows["records"]),
        "reopenings": rows.height - rows["reopened_at"].null_count(),
        "by_idleness": any(rows["by_idleness"]),
        "reason": reason,
    }


def _slowest_partition(of: Scene, sub: SubTopology) -> str:
    """Returns a clause that names the partition for which the watermark of *sub* waits; empty if it is not known.

    If *sub* waits for another stream, the partition is the one for which that stream waits.
    """
    marks = of.of(sub.operators[0].name).marks
    mark = marks.get((None, None))
    name = mark.blocked_by if mark else None
    for source in sub.sources:
        if source.name == name:
            match source:
                case HopSource():
                    return _slowest_partition(of, of.sub(source.repartition))
                case Source():
                    break
                case _:
                    assert_never(source)
    partition = Watermarks(of, Inputs(of)).slowest(sub, name)
    if partition is None:
        return ""
    slowest = marks.get((name, partition))
    return (
        f", and {name} partition {partition}, which holds the watermark back, to "
        f"{watermark_text(slowest.max_timestamp_ms if slowest else None)}"
    )


def _reason_and_estimate(of: Scene, operator: Operator, completing_ms: int) -> tuple[str, int | None]:
    """Returns what an interval of *operator* waits for, and when it should be complete, epoch ms.

    *completing_ms* is the watermark that completes the interval. The instant is None where it cannot be estimated:
    before the first record, without a driver, after a fault, or if the driver does not catch up.
    """
    sub, facts = of.sub(operator.name), of.of(operator.name)
    mark, newest_ms = facts.marks.get((None, None)), newest_time_ms(of, operator)
    if mark is None or mark.watermark_ms is None or newest_ms is None:
        return "no record was read yet", None
    time = f"the watermark is {watermark_text(mark.watermark_ms)}, and {iso(completing_ms)} is needed"
    if mark.watermark_ms >= completing_ms:
        return f"{time}: an operator holds results, or the driver has not written the row yet", None
    findings = in_order([*Watermarks(of, Inputs(of)).holding(sub, completing_ms)])
    is_running = facts.driver.liveness in RUNS
    if not is_running:
        findings = [*drivers(of, operator.name), *findings]
    progress = _progress(of, sub, mark.watermark_ms)
    reason = f"{time}: {findings[0].line if findings else progress}"
    beat = facts.driver.beat
    is_faulty = any(Trait.FAULT in finding.cause.traits for finding in findings)
    # The heartbeat of a driver that does not catch up has an arrival rate, and no instant at which it will have.
    if beat is None or not is_running or is_faulty or (beat.arrival_per_s is not None and beat.eta_at_ms is None):
        return reason, None
    bounds_ms = [source.bound_ms for source in sub.outside_sources]
    expected_at_ms = reached_at_ms(
        completing_ms,
        watermark_ms=mark.watermark_ms,
        now_ms=facts.tables.batches["decided_at"][-1],
        bound_ms=max(bounds_ms, default=0),
        eta_at_ms=beat.eta_at_ms,
    )
    # A watermark that should have come by now does not advance as fast as the clock.
    return reason, expected_at_ms if expected_at_ms >= of.at_ms else None


def _progress(of: Scene, sub: SubTopology, watermark_ms: int) -> str:
    """Says up to which record time *sub* has read; if its watermark is beyond that, what has moved it there."""
    marks = of.of(sub.operators[0].name).marks.values()
    newest_ms = max(present(mark.max_timestamp_ms for mark in marks), default=None)
    if newest_ms is None or watermark_ms <= newest_ms:
        read_until_ms = watermark_ms if newest_ms is None else newest_ms
        return f"records have come to {iso(read_until_ms)}{_slowest_partition(of, sub)}"
    silent = [source.name for source in of.sources(sub.operators[-1].name).values() if source.idle_advances]
    mover = (
        f"silence has moved it (idle_advances of {', '.join(silent)})" if silent else "it has moved without a record"
    )
    return f"the newest record is of {iso(newest_ms)}, and {mover}"
