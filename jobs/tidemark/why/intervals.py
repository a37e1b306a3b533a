"""Explains if an interval of a table is complete, and why not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, assert_never

import polars as pl

from tidemark.collecting import names_in, present
from tidemark.errors import InvalidArgument
from tidemark.facts.answers import Tables
from tidemark.facts.topology_changes import RecordedChange, concerning, topology_changes, with_compared
from tidemark.model.kinds.operator import Operator
from tidemark.model.kinds.repartition import HopSource
from tidemark.model.kinds.source import Source
from tidemark.model.settings.intervals import Interval, iso
from tidemark.model.settings.lengths import for_people, length_in_toml
from tidemark.model.topology import SubTopology, Topology
from tidemark.semantics.completeness import needed_ms, reached_at_ms
from tidemark.semantics.liveness import RUNS
from tidemark.why.causes.drivers import drivers
from tidemark.why.causes.inputs import Inputs
from tidemark.why.causes.watermarks import Watermarks
from tidemark.why.evidence.findings import Trait, in_order
from tidemark.why.evidence.snapshot import Scene, watermark_text


@dataclass(frozen=True, kw_only=True)
class IntervalState:
    """The state of an interval of a table.

    Instants are epoch ms UTC.

    Attributes:
        operator: the operator that has the table.
        start_ms: start of the interval, record time.
        end_ms: its end.
        is_complete: the watermark has passed its end and the allowed lateness. None: it is before the first interval,
            or the table has none.
        is_final: late records do not change a complete interval, since they are set aside.
        watermark_needed_ms: the watermark that completes it.
        complete_at_ms: decision time at which it was complete first; None: it is not, or has no row.
        records: its records at the operator; None: not counted.
        reopenings: batches that changed it after it was complete.
        by_idleness: an idle partition had not passed it.
        reason: what it waits for, or waited for longest; what happened to it since.
        expected_at_ms: the clock at which it will be complete; None: it is, or that cannot be estimated.
        changes: changes after which rows of the table mean something else, since a week before it was complete.
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
    """Returns the operator that has *table* and the key `complete`.

    It may be the name of the operator itself. None: no operator has both.
    """
    named = (o for o in topology.operators.values() if o.complete and table in {o.name, o.result_table})
    return next(named, None)


def newest_time_ms(of: Scene, operator: Operator) -> int | None:
    """Returns the newest record time in the stream of *operator*."""
    marks = of.of(operator.name).marks.values()
    return max(present(each for mark in marks for each in (mark.max_timestamp_ms, mark.watermark_ms)), default=None)


def interval_state(of: Scene, operator: Operator, time_ms: int) -> IntervalState:
    """Returns the state of an interval of *operator*.

    Args:
        of: the scene of the topology, whose instant is the decision time up to which rows count.
        operator: with the key `complete`.
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
    own = rows.filter(pl.col("interval_start") == start_ms, pl.col("interval_end") == end_ms)
    if own.height:
        return state(is_complete=True, **_of_rows(own, _sources(of, operator)))
    if rows.height and end_ms <= min(rows["interval_start"]):
        reason = f"the first interval of {operator.name} is that of {iso(min(rows['interval_start']))}"
        return state(is_complete=None, reason=reason)
    if rows.height and end_ms <= max(rows["interval_end"]):
        if rows.filter(pl.col("interval_start") < end_ms, pl.col("interval_end") > start_ms).height:
            return state(is_complete=True, reason=_OTHER_LENGTH)
        reason = "it has no record, and lies in a jump of time"
        return state(is_complete=True, records=0, reason=reason)
    reason, expected_at_ms = _waits(of, operator, passed_ms)
    return state(is_complete=False, reason=reason, expected_at_ms=expected_at_ms)


def with_changes(state: IntervalState, tables: Tables, of: Scene) -> IntervalState:
    """Returns *state* with the changes of the topology that *tables* have."""
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

    Without idleness every partition had passed the interval by a record of its own, less the bound.
    """
    settings = [f'bound = "{length_in_toml(source.bound_ms)}" of {source.name}' for source in sources]
    if by_idleness:
        silent = (source for source in sources if source.idle_after_ms)
        settings += [
            f'idle_after = "{length_in_toml(source.idle_after_ms or 0)}" of {source.name}' for source in silent
        ]
    return f"{' or '.join(settings)} is too short for it"


def _of_rows(rows: pl.DataFrame, sources: Sequence[Source]) -> Mapping[str, Any]:
    """Returns fields of the state from an interval's *rows*, oldest first.

    *sources* are those whose records reach the table.
    """
    first, last = rows.row(0, named=True), rows.row(-1, named=True)
    reason = "it waited for nothing"
    if first["waited_for"] is not None:
        part = first["waited_for_partition"]
        place = first["waited_for"] if part is None else f"{first['waited_for']} partition {part}"
        reason = f"it waited longest for {place}: {for_people(first['waited_ms'])}"
    elif first["by_idleness"]:
        reason = "it waited for no record: silence of an idle partition let the watermark advance"
    if last["reopened_at"] is not None:
        where = f"partition {last['cause_partition']}, offset {last['cause_offset']}"
        reason += f"; reopened at {iso(last['reopened_at'])}: {last['cause']}, {where}"
        # A mark of time of a trusted writer moves the watermark without a bound.
        if last["cause"] == "late_record" and not any(source.written_by for source in sources):
            reason += f": {_too_short(sources, by_idleness=first['by_idleness'])}"
    return {
        "complete_at_ms": first["decided_at"],
        "records": None if rows["records"].null_count() else sum(rows["records"]),
        "reopenings": rows.height - rows["reopened_at"].null_count(),
        "by_idleness": any(rows["by_idleness"]),
        "reason": reason,
    }


def _slowest(of: Scene, sub: SubTopology) -> str:
    """Names the partition for which the watermark of *sub* waits, also beyond hops; empty if it is not known."""
    marks = of.of(sub.operators[0].name).marks
    mark = marks.get((None, None))
    name = mark.blocked_by if mark else None
    for source in sub.sources:
        if source.name == name:
            match source:
                case HopSource():
                    return _slowest(of, of.sub(source.repartition))
                case Source():
                    break
                case _:
                    assert_never(source)
    partition = Watermarks(of, Inputs(of)).slowest(sub, name)
    if partition is None:
        return ""
    place = marks.get((name, partition))
    return (
        f", and {name} partition {partition}, which holds the watermark back, to "
        f"{watermark_text(place.max_timestamp_ms if place else None)}"
    )


def _waits(of: Scene, operator: Operator, passed_at_ms: int) -> tuple[str, int | None]:
    """Returns what an interval waits for, and when it is expected.

    *passed_at_ms* is the watermark that it needs.
    """
    sub, facts = of.sub(operator.name), of.of(operator.name)
    mark, newest_ms = facts.marks.get((None, None)), newest_time_ms(of, operator)
    if mark is None or mark.watermark_ms is None or newest_ms is None:
        return "no record was read yet", None
    time = f"the watermark is {watermark_text(mark.watermark_ms)}, and {iso(passed_at_ms)} is needed"
    if mark.watermark_ms >= passed_at_ms:
        return f"{time}: an operator holds results, or the driver has not written the row yet", None
    findings = in_order([*Watermarks(of, Inputs(of)).holding(sub, passed_at_ms)])
    is_running = facts.driver.liveness in RUNS
    if not is_running:
        findings = [*drivers(of, operator.name), *findings]
    come = _come(of, sub, mark.watermark_ms)
    reason = f"{time}: {findings[0].line if findings else come}"
    beat = facts.driver.beat
    is_faulty = any(Trait.FAULT in finding.cause.traits for finding in findings)
    # A driver that is behind, and does not catch up, has rates and no end.
    if beat is None or not is_running or is_faulty or (beat.arrival_per_s is not None and beat.eta_at_ms is None):
        return reason, None
    bounds_ms = [source.bound_ms for source in sub.outside_sources]
    expected_at_ms = reached_at_ms(
        passed_at_ms,
        watermark_ms=mark.watermark_ms,
        now_ms=facts.tables.batches["decided_at"][-1],
        bound_ms=max(bounds_ms, default=0),
        eta_at_ms=beat.eta_at_ms,
    )
    # A watermark that should have come by now does not advance as fast as the clock.
    return reason, expected_at_ms if expected_at_ms >= of.at_ms else None


def _come(of: Scene, sub: SubTopology, watermark_ms: int) -> str:
    """Says to which record time records have come, or what has moved the watermark of *sub* beyond them."""
    marks = of.of(sub.operators[0].name).marks.values()
    newest_ms = max(present(mark.max_timestamp_ms for mark in marks), default=None)
    if newest_ms is None or watermark_ms <= newest_ms:
        return f"records have come to {iso(watermark_ms if newest_ms is None else newest_ms)}{_slowest(of, sub)}"
    silent = [source.name for source in of.sources(sub.operators[-1].name).values() if source.idle_advances]
    mover = (
        f"silence has moved it (idle_advances of {', '.join(silent)})" if silent else "it has moved without a record"
    )
    return f"the newest record is of {iso(newest_ms)}, and {mover}"
