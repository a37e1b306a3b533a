"""Explains promises about numbers of records: which shares of them did not come through, and whose these are.

It explains a number of records, a share of late or quarantined ones, and the staleness of a table for which nothing is
on its way. Of the records that usually come in such a time, some were not produced and some are unread, and what was
read became something else than a result (`account.outcomes`). A share is named from a tenth of all that is beyond what
is usual.

Each operator counts what it read: behind a repartition that sends a record on twice, one record is two.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from tidemark.account.counts import Counts, Span, finished_ms_of, first_finished_ms, newest_result, read_of_hop
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
    """Returns why the promise *spec*, a number or a share of records or a staleness, is broken at *at_ms* (epoch ms).

    Of a staleness nothing may be on its way to the table: its newest row is that of the newest batch that gave it one,
    and what was read since then gave none.
    """
    if spec.measure.outcome is not None:
        return _of_share(tables, spec, at_ms)
    if spec.measure is RECORDS:
        return _of_number(tables, spec, at_ms)
    return shares_since_newest_row(tables, _writers(tables.topology, spec.subject), at_ms=at_ms)


def shares_since_newest_row(tables: AccountTables, writers: Sequence[str], *, at_ms: int) -> Explanation:
    """Returns what became of the records from which the operators *writers* should have had results until *at_ms*.

    They are those since the newest row that one of them wrote, or of all time without a row.
    """
    topology = tables.topology
    lost = Lost(tables, _since_newest_row(tables, writers, at_ms), at_ms)
    found = Explanation(answer=Answer.NOT_KNOWN, has_history=lost.has_history)
    return _explained(found, lost.on(topology.path_into(*writers)), STALENESS)


def _of_share(tables: AccountTables, spec: SlaSpec, at_ms: int) -> Explanation:
    assert isinstance(spec.limits, ShareMaximums)
    span, outcome = _judged(spec, at_ms), spec.measure.outcome
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


def _of_number(tables: AccountTables, spec: SlaSpec, at_ms: int) -> Explanation:
    limits, span = spec.limits, _judged(spec, at_ms)
    assert isinstance(limits, RecordMinimums)
    lost = Lost(tables, dict.fromkeys(_streams(tables.topology), span), at_ms)
    rows = lost.counts.outcomes.filter(pl.col("operator") == spec.subject)
    n = int(rows.filter(span.holds())["records_in"].sum())
    before = numbers_before(rows["finished_ms"].to_numpy(), rows["records_in"].to_numpy(), span)
    usual = sum(judge_count(int(each), limits) in BROKEN for each in before) / len(before) if len(before) else None
    missing = max(0, round(float(np.median(before))) - n) if len(before) else 0
    found = Explanation(answer=Answer.KEPT, broken=missing, results=n, usual_share=usual, has_history=usual is not None)
    if judge_count(n, limits) not in BROKEN:
        return found
    # The number that is judged is one result, and broke the promise: its share is 1.
    if usual is not None and usual * AS_USUAL >= 1:
        return replace(found, answer=Answer.AS_USUAL)
    return _explained(found, lost.before(spec.subject), spec.measure)


def _judged(spec: SlaSpec, at_ms: int) -> Span:
    """Returns the time over which *spec* is measured; a batch that finishes at the instant of the check is later."""
    return Span(at_ms - spec.over_ms - 1, at_ms - 1)


def _streams(topology: Topology) -> list[str]:
    return [sub.name for sub in topology.sub_topologies]


def _writers(topology: Topology, table: str) -> list[str]:
    """Returns the operators whose results *table* has; of `changes` not those that only joins look up."""
    if table != CHANGES.name:
        return [o.name for o in topology.operators.values() if o.result_table == table]
    looked_up = {name for sub in topology.sub_topologies for name in sub.table_inputs()}
    return [o.name for o in topology.operators.values() if o.emission and o.name not in looked_up]


def _since_newest_row(tables: AccountTables, writers: Iterable[str], at_ms: int) -> dict[str, Span]:
    """Returns, by stream, the time since the newest batch whose records a table of *writers* has.

    Of a table without a row it is all the time.
    """
    topology, scan = tables.topology, tables.of_all_streams
    newest = newest_result(scan, [*writers], at_ms=at_ms)
    if newest is None:
        first_ms = first_finished_ms(scan)
        return dict.fromkeys(_streams(topology), Span(at_ms if first_ms is None else first_ms - 1, at_ms))
    batches, since = dict([newest]), {newest[0]: finished_ms_of(scan, *newest) or at_ms}
    for sub in reversed(topology.sub_topologies):
        for hop in sub.hops_read if sub.name in batches else ():
            until = read_of_hop(scan, sub.name, hop.name, batches[sub.name])
            if until is not None:
                batches[hop.upstream] = until - 1
                since[hop.upstream] = finished_ms_of(scan, hop.upstream, until - 1) or since[sub.name]
    first_ms = min(since.values())
    return {name: Span(since.get(name, first_ms), at_ms) for name in _streams(topology)}


def _explained(found: Explanation, losses: Iterable[Loss], measure: Measure) -> Explanation:
    """Returns *found* with the leaves of *losses* that are large enough, the largest first.

    What is too small by itself is added up by topic and by what became of it.
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
    leaves = tuple(replace(each.leaf, share=each.excess / whole, touched=round(each.excess)) for each in named)
    return replace(
        found,
        answer=Answer.EXPLAINED if leaves else Answer.NOT_KNOWN,
        leaves=leaves,
        explained=sum(leaf.share for leaf in leaves),
    )
