"""Puts an explanation into sentences, which pages, alerts and commands show alike."""

from __future__ import annotations

from dataclasses import replace

from tidemark.account.excess import path_of
from tidemark.account.explanation import Answer, Became, Explanation, Leaf
from tidemark.account.owners.registry import AHEAD, NOT_COUNTED, OWNERS
from tidemark.account.owners.topic import TOPIC
from tidemark.model.settings.lengths import for_people, percent
from tidemark.model.sla_events import AlertCause

NO_HISTORY = "there is no history that says what is usual"


def told(explanation: Explanation) -> str:
    """Returns why a promise is broken, as a sentence: what each leaf did, and how many results the causes explain.

    >>> late = Leaf(owner="producer", detail="orders/0", amount_ms=8_800, usual_ms=300)
    >>> told(Explanation(answer=Answer.EXPLAINED, leaves=(late,), explained=0.93, broken=41))
    '`orders` partition 0 was written 9.1 s late, usually 300 ms; this explains 93 % of 41 late results'
    >>> told(Explanation(answer=Answer.AS_USUAL, usual_share=0.12))
    'as usual: 12 % of the results before were late, too'
    >>> unread = Leaf(owner="topic", detail="orders", records=36, is_estimate=True, became=Became.NOT_PRODUCED)
    >>> told(Explanation(answer=Answer.EXPLAINED, leaves=(unread,), explained=1.0, broken=36))
    'about 36 records of `orders` that usually come were not produced; this explains 100 % of 36 records'
    >>> slow = Leaf(owner="operator", detail="top", amount_ms=479), Leaf(owner="target", detail="commit", amount_ms=500)
    >>> told(Explanation(answer=Answer.EXPLAINED, leaves=slow, explained=0.0, broken=41)).rpartition("; ")[2]
    'none of these alone explains any of 41 late results'
    >>> told(Explanation(answer=Answer.EXPLAINED, leaves=(Leaf(owner="operator", detail="top"),), broken=3))
    'rows of `top` are not as they are declared'
    >>> worked = Leaf(owner="operator", detail="top", amount_ms=479)
    >>> told(Explanation(answer=Answer.EXPLAINED, leaves=(worked,), explained=1.0, broken=9, is_of_batches=True))
    'in a batch the operator `top` worked for 479 ms; this explains 100 % of 9 batches over the limit'
    """
    match explanation.answer:
        case Answer.EXPLAINED:
            explains = (
                f"this explains {percent(explanation.explained)}"
                if explanation.explained
                else "none of these alone explains any"
            )
            whole = f"{explains} of {_judged(explanation)}"
            known = [] if explanation.has_history else [NO_HISTORY]
            # Nobody counts which owner has how many of the rows that break a contract.
            is_counted = any(leaf.became or leaf.amount_ms is not None for leaf in explanation.leaves)
            has_several = explanation.broken > 1 and is_counted
            each = each_did(explanation)
            if explanation.is_of_batches:
                # The measure counts windows, of which a batch may finish many, so that its value is another one.
                each = [f"in a batch {what_it_did}" for what_it_did in each]
            parts = [*each, *([whole] if has_several else []), *known]
            return "; ".join(parts)
        case Answer.CANNOT_BE_KEPT:
            return f"the promise cannot be kept: {'; '.join(each_did(explanation))}"
        case Answer.AS_USUAL:
            before = "batches before were over the limit" if explanation.is_of_batches else "results before were late"
            return f"as usual: {percent(explanation.usual_share or 0)} of the {before}, too"
        case Answer.KEPT:
            return "the promise is kept"
        case Answer.NOT_KNOWN:
            return "no cause is known"


def _judged(explanation: Explanation) -> str:
    """Returns how many results broke the promise, with the noun for what they are."""
    if explanation.is_of_batches:
        return f"{explanation.broken:,} batches over the limit"
    what = "records" if any(leaf.became for leaf in explanation.leaves) else "late results"
    return f"{explanation.broken:,} {what}"


def each_did(explanation: Explanation) -> list[str]:
    """Returns a clause for each leaf: what its owner did.

    >>> waits = Leaf(owner="trigger", detail="", stream="shop/top", amount_ms=19, usual_ms=1_000)
    >>> each_did(Explanation(answer=Answer.CANNOT_BE_KEPT, leaves=(waits,), has_history=False))
    ['`shop/top` waited 19 ms until it looked again']
    >>> unread = Leaf(owner="topic", detail="orders", records=36, is_estimate=True, became=Became.NOT_PRODUCED)
    >>> each_did(Explanation(answer=Answer.EXPLAINED, leaves=(unread,), has_history=False))
    ['the records of `orders` were not produced']
    """
    leaves = explanation.leaves
    if explanation.answer is Answer.CANNOT_BE_KEPT:
        # What is expected of it is its whole length.
        leaves = tuple(replace(leaf, usual_ms=0) for leaf in leaves)
    if not explanation.has_history:
        # Nobody knows how many usually come.
        leaves = tuple(replace(leaf, records=None) if leaf.is_estimate else leaf for leaf in leaves)
    return [did(leaf, has_history=explanation.has_history) for leaf in leaves]


def did(leaf: Leaf, *, has_history: bool = True) -> str:
    """Returns a clause about what the owner of *leaf* did, how long it took, and how long it usually takes.

    Without a history (*has_history*) nobody knows what is usual, and the clause claims nothing of it.

    >>> did(Leaf(owner="pause", detail="shop/revenue", amount_ms=12_000, usual_ms=0))
    'the process of `shop/revenue` stood still for 12 s'
    >>> did(Leaf(owner="producer", detail="orders/0", amount_ms=-3_000_000))
    'records of `orders` partition 0 are 50 min ahead of the clock'
    >>> did(Leaf(owner="spark", detail="commit", stream="shop/top", amount_ms=2_430, usual_ms=1))
    "Spark's own work for `shop/top`, `commit`, took 2.43 s of a result's age, usually 1 ms"
    >>> did(Leaf(owner="operator", detail="addBatch", stream="shop/pairs", amount_ms=750))
    'reading, calculating and writing in `shop/pairs` took 750 ms (phase `addBatch` of Spark)'
    >>> did(Leaf(owner="operator", detail="top"))
    'rows of `top` are not as they are declared'
    >>> did(Leaf(owner="topic_volume", detail="orders", amount_ms=9_000), has_history=False)
    'records of `orders`, which came faster than in the median batch, took 9 s'
    """
    if leaf.became is not None:
        return _did_to_records(leaf, leaf.became)
    if leaf.amount_ms is None:
        return (
            f"{'fields' if leaf.owner == TOPIC else 'rows'} of {detail_for_people(leaf)} are not as they are declared"
        )
    if leaf.amount_ms < 0:
        return f"records of {detail_for_people(leaf)} are {for_people(-leaf.amount_ms)} ahead of the clock"
    owner, usual_ms = OWNERS[leaf.owner], leaf.usual_ms or 0
    whole = for_people(leaf.amount_ms + usual_ms)
    says = owner.says if has_history else owner.says_without_history or owner.says
    if leaf.detail in owner.phases:
        says = f"{owner.phases[leaf.detail]} in {{stream}} took {{amount}} (phase {{detail}} of Spark)"
    said = says.format(detail=detail_for_people(leaf), stream=f"`{leaf.stream}`", amount=whole)
    return said + (f", usually {for_people(usual_ms)}" if usual_ms else "")


def _did_to_records(leaf: Leaf, became: Became) -> str:
    """Returns a clause about the records that the owner of *leaf* kept from being counted.

    >>> phone = {"records": 36, "became": Became.LATE, "partition": "orders/0", "key": "phone", "largest_ms": 208_200}
    >>> did(Leaf(owner="key", detail="phone", **phone))
    '36 records of `orders` partition 0, key `phone`, late, up to 208 s old'
    >>> did(Leaf(owner="key", detail="phone", **phone | {"records": 1}))
    '1 record of `orders` partition 0, key `phone`, late, 208 s old'
    >>> refused = {"became": Became.QUARANTINED, "partition": "orders/1", "reason": "wrong_type amount"}
    >>> did(Leaf(owner="producer", detail="orders/1", records=1, **refused))
    '1 record of `orders` partition 1, quarantined: wrong_type amount'
    >>> did(Leaf(owner="topic", detail="orders", became=Became.NOT_PRODUCED))
    'the records of `orders` were not produced'
    >>> did(Leaf(owner="absence", detail="shop/sums", became=Became.UNREAD, partition="orders/0", records=6))
    '6 records of `orders` partition 0, unread: absence of `shop/sums`'
    >>> did(Leaf(owner="topology_change", detail="more", became=Became.LATE, partition="more/0", records=6))
    '6 records of `more` partition 0, late: topology change of `more`'
    >>> did(Leaf(owner="absence", detail="shop/sums", became=Became.UNREAD, records=24, is_estimate=True))
    'about 24 records usually come in the time in which nobody looked for any: absence of `shop/sums`'
    >>> did(Leaf(owner="absence", detail="shop/sums", became=Became.UNREAD, is_estimate=True))
    'nobody looked for records: absence of `shop/sums`'
    """
    is_of_topic = path_of((leaf.owner, leaf.detail, leaf.stream))[0][0] == TOPIC
    records = "the records" if leaf.records is None else f"{leaf.records:,} record{'s' * (leaf.records != 1)}"
    of = leaf.partition or (leaf.detail if is_of_topic else "")
    source, _, partition = of.partition("/")
    if of:
        records += f" of `{source}`" + (f" partition {partition}" if leaf.partition and partition else "")
    is_counted = leaf.is_estimate and leaf.records is not None
    records = f"about {records}" if is_counted else records
    whose = f"{leaf.owner.replace('_', ' ')} of {detail_for_people(leaf)}"
    come, were = ("comes", "was") if leaf.records == 1 else ("come", "were")
    if became is Became.NOT_PRODUCED:
        return f"{records}{f' that usually {come}' if is_counted else ''} {were} not produced"
    if became is Became.UNREAD and leaf.is_estimate and leaf.records is None:
        return f"nobody looked for records: {whose}"
    if became is Became.UNREAD and leaf.is_estimate:
        return f"{records} usually {come} in the time in which nobody looked for any: {whose}"
    parts = [records]
    parts += [f"key `{leaf.key}`"] if leaf.key is not None else []
    parts.append(became)
    if leaf.largest_ms is not None:
        parts.append(f"{'' if leaf.records == 1 else 'up to '}{leaf.largest_ms // 1_000:,} s old")
    why = leaf.reason if is_of_topic else whose
    return ", ".join(parts) + (f": {why}" if why else "")


def detail_for_people(leaf: Leaf) -> str:
    """Returns the detail of *leaf* as people read it.

    >>> (
    ...     detail_for_people(Leaf(owner="next_record", detail="orders/0")),
    ...     detail_for_people(Leaf(owner="operator", detail="top")),
    ...     detail_for_people(Leaf(owner="unknown", detail="segment")),
    ... )
    ('`orders` partition 0', '`top`', 'what a driver did')
    """
    if leaf.detail in OWNERS[leaf.owner].details:
        return OWNERS[leaf.owner].details[leaf.detail]
    source, slash, partition = leaf.detail.rpartition("/")
    if slash and "PARTITION" in OWNERS[leaf.owner].detail:
        return f"`{source}` partition {partition}"
    return f"`{leaf.detail}`"


def deed_of(became: str | None, amount_ms: int | None, records: int | None) -> str | None:
    """Returns what an owner did, where its remedy depends on it: a key of `Owner.remedies`, or None for its time.

    >>> deed_of("late", None, 3), deed_of(None, -5_000, None), deed_of(None, None, 3), deed_of(None, 5_000, None)
    ('late', 'ahead', 'not counted', None)
    """
    if became is not None:
        return became
    if amount_ms is not None:
        return AHEAD if amount_ms < 0 else None
    return None if records is None else NOT_COUNTED


def remedy_of(topology: str, owner: str, detail: str | None, stream: str | None, deed: str | None = None) -> str:
    """Returns what to do about an *owner*, as a sentence whose commands can be typed as they are.

    Args:
        topology: the topology that it delays.
        owner: one of `account.owners`.
        detail: which operator, partition or stream it is; None where the owner has no detail.
        stream: whose time it is, TOPOLOGY/STREAM; None where that is not known. The detail of some owners is a stream.
        deed: what the owner did, as `deed_of` says it.

    >>> remedy_of("shop", "driver", "shop/top", None)
    '`tidemark logs shop/top` shows what the driver did'
    >>> remedy_of("shop", "operator", "cheap+top shard 3", "shop/top").partition("; ")[2]
    '`tidemark whatif shop --operator top --scale 0.5` estimates what an operator that is twice as fast saves'
    """
    named = detail or ""
    of_stream = stream or (named if named.startswith(f"{topology}/") else topology)
    # Operators that run in one step have one detail. The step is named after all of them, and belongs to the last.
    operator = named.partition(" shard ")[0].rpartition("+")[2]
    fields = {"{topology}": topology, "{stream}": of_stream, "{operator}": operator}
    of_owner = OWNERS[owner]
    remedy = (
        of_owner.remedy_of_phase if named in of_owner.phases else of_owner.remedies.get(deed or "", of_owner.remedy)
    )
    for field, value in fields.items():
        remedy = remedy.replace(field, value)
    return remedy


def remedy_of_cause(topology: str, cause: AlertCause) -> str:
    """Returns the remedy for the *cause* of a broken SLA."""
    deed = deed_of(None, cause.amount_ms, cause.records)
    return remedy_of(topology, cause.owner, cause.detail, cause.stream, deed)
