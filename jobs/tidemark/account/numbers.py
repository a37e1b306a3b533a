"""Explains promises about numbers of records: which records did not come through, and who is to blame.

Three kinds of promise are explained so: a number of records, a share of late or quarantined ones, and the staleness of
a table for which nothing is on its way. Of the records that usually come in such a time, some were not produced, some
are unread, and some were read and led to no result (`account.outcomes`). An owner is named if it has at least a tenth
of the records beyond what is usual.

Each operator counts the records that it reads itself. Behind a repartition that sends a record on twice, the record
counts as two.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from tidemark.account.counts import Counts, TimeSpan, finished_ms_of, first_finished_ms, newest_result, read_of_hop
from tidemark.account.explanation import LEAST_SHARE, Answer, Became, Explanation
from tidemark.account.lost import Lost
from tidemark.account.moves import can_move
from tidemark.account.outcomes import Loss, OutcomesOf, as_one, large
from tidemark.account.owners.topic import TOPIC
from tidemark.account.usual_numbers import AS_USUAL, is_usual, numbers_before
from tidemark.account.warehouse import AccountTables
from tidemark.model.measures.records import RECORDS
from tidemark.model.measures.registry import Measure
from tidemark.model.measures.shares import LATE_SHARE
from tidemark.model.measures.staleness import STALENESS
from tidemark.model.slas.sla_spec import SlaSpec
from tidemark.model.tables.catalog import CHANGES
from tidemark.model.topology import Topology
from tidemark.semantics.sla import RecordMinimums, ShareMaximums, Verdict, judge_count, judge_share

BROKEN = frozenset({Verdict.WARN, Verdict.ERROR})


def shares_of_records(tables: AccountTables, spec: SlaSpec, *, at_ms: int) -> Explanation:
    """Returns why *spec*, a promise about a number, a share or staleness, is broken at *at_ms* (epoch ms).

    For staleness nothing may be on its way to the table: all records since its newest row have led to no row.
    """
    if spec.measure.outcome is not None:
        return _explain_share(tables, spec, at_ms)
    if spec.measure is RECORDS:
        return _explain_number(tables, spec, at_ms)
    return shares_since_newest_row(tables, _writers(tables.topology, spec.subject), at_ms=at_ms)


def shares_since_newest_row(tables: AccountTables, writers: Sequence[str], *, at_ms: int) -> Explanation:
    """Returns what became of the records that should have led to rows of the operators *writers* until *at_ms*.

    Records count since the newest row that one of *writers* wrote; all of them if none has written a row.
    """
    topology = tables.topology
    lost = Lost(tables, _since_newest_row(tables, writers, at_ms), at_ms)
    found = Explanation(answer=Answer.NOT_KNOWN, has_history=lost.has_history)
    return _explained(found, lost.on(topology.path_into(*writers)), STALENESS)


def _explain_share(tables: AccountTables, spec: SlaSpec, at_ms: int) -> Explanation:
    assert isinstance(spec.limits, ShareMaximums)
    span, outcome = _measured_span(spec, at_ms), spec.measure.outcome
    assert outcome is not None
    counts = Counts(tables, since_ms=span.since_ms, at_ms=span.until_ms)
    outcomes = OutcomesOf(tables.topology, counts, tables.topology.operators[spec.subject], span)
    n, broken, usual = outcomes.now["records_in"], outcomes.now[outcome], outcomes.usual_share(outcome)
    found = Explanation(answer=Answer.KEPT, broken=broken, results=n, usual_share=usual, has_history=usual is not None)
    if judge_share(broken, n, spec.limits) not in BROKEN:
        return found
    if usual is not None and is_usual(broken / n, usual, n, times=AS_USUAL):
        return replace(found, answer=Answer.AS_USUAL)
    return _explained(found, outcomes.late() if spec.measure is LATE_SHARE else outcomes.quarantined(), spec.measure)


def _explain_number(tables: AccountTables, spec: SlaSpec, at_ms: int) -> Explanation:
    limits, span = spec.limits, _measured_span(spec, at_ms)
    assert isinstance(limits, RecordMinimums)
    lost = Lost(tables, dict.fromkeys(_streams(tables.topology), span), at_ms)
    rows = lost.counts.outcomes.filter(pl.col("operator") == spec.subject)
    n = int(rows.filter(span.holds())["records_in"].sum())
    before = numbers_before(rows["finished_ms"].to_numpy(), rows["records_in"].to_numpy(), span)
    usual = sum(judge_count(int(number), limits) in BROKEN for number in before) / len(before) if len(before) else None
    missing = max(0, round(float(np.median(before))) - n) if len(before) else 0
    found = Explanation(answer=Answer.KEPT, broken=missing, results=n, usual_share=usual, has_history=usual is not None)
    if judge_count(n, limits) not in BROKEN:
        return found
    # Only one number is judged, and it broke the promise: the broken share is 1.
    if usual is not None and usual * AS_USUAL >= 1:
        return replace(found, answer=Answer.AS_USUAL)
    return _explained(found, lost.before(spec.subject), spec.measure)


def _measured_span(spec: SlaSpec, at_ms: int) -> TimeSpan:
    """Returns the time over which a check at *at_ms* measures *spec*; a batch that finishes at *at_ms* is after it."""
    return TimeSpan(at_ms - spec.over_ms - 1, at_ms - 1)


def _streams(topology: Topology) -> list[str]:
    return [sub.name for sub in topology.sub_topologies]


def _writers(topology: Topology, table: str) -> list[str]:
    """Returns the operators that write *table*; for `changes`, without those that joins only look up."""
    if table != CHANGES.name:
        return [o.name for o in topology.operators.values() if o.result_table == table]
    looked_up = {name for sub in topology.sub_topologies for name in sub.table_inputs()}
    return [o.name for o in topology.operators.values() if o.emission and o.name not in looked_up]


def _since_newest_row(tables: AccountTables, writers: Iterable[str], at_ms: int) -> dict[str, TimeSpan]:
    """Returns for each stream the time since the newest batch whose records led to a row of *writers*.

    Without any row it is all the time since the first batch. Behind a hop, the batch of the writer counts that the
    batch of the row had read.
    """
    topology, scan = tables.topology, tables.of_all_streams
    newest = newest_result(scan, [*writers], at_ms=at_ms)
    if newest is None:
        first_ms = first_finished_ms(scan)
        return dict.fromkeys(_streams(topology), TimeSpan(at_ms if first_ms is None else first_ms - 1, at_ms))
    batches, since = dict([newest]), {newest[0]: finished_ms_of(scan, *newest) or at_ms}
    for sub in reversed(topology.sub_topologies):
        for hop in sub.hops_read if sub.name in batches else ():
            until = read_of_hop(scan, sub.name, hop.name, batches[sub.name])
            if until is not None:
                batches[hop.upstream] = until - 1
                since[hop.upstream] = finished_ms_of(scan, hop.upstream, until - 1) or since[sub.name]
    first_ms = min(since.values())
    return {name: TimeSpan(since.get(name, first_ms), at_ms) for name in _streams(topology)}


def _explained(found: Explanation, losses: Iterable[Loss], measure: Measure) -> Explanation:
    """Returns *found* with the leaves of those *losses* that are large enough to be named, the largest first.

    Losses that are too small by themselves are added up by topic, if the same became of their records. Owners that
    cannot be blamed for *measure* are left out.
    """
    known = [loss for loss in losses if loss.excess > 0 and can_move(loss.leaf.owner, measure)]
    whole, named = sum(loss.excess for loss in known), large(known)
    small: dict[tuple[str, Became | None], list[Loss]] = defaultdict(list)
    for loss in known:
        if loss not in named and loss.leaf.partition is not None:
            small[loss.leaf.partition.split("/")[0], loss.leaf.became].append(loss)
    for (source, _), of_source in small.items():
        named += [sum_ for sum_ in as_one(of_source, owner=TOPIC, detail=source) if sum_.excess >= LEAST_SHARE * whole]
    named.sort(key=lambda loss: (-loss.excess, loss.leaf.owner, loss.leaf.detail))
    leaves = tuple(replace(loss.leaf, share=loss.excess / whole, touched=round(loss.excess)) for loss in named)
    return replace(
        found,
        answer=Answer.EXPLAINED if leaves else Answer.NOT_KNOWN,
        leaves=leaves,
        explained=sum(leaf.share for leaf in leaves),
    )
