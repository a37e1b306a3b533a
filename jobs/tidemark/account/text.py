"""Says an explanation in sentences: the same on pages, in alerts and in commands."""

from __future__ import annotations

from tidemark.account.explanation import Explanation, Leaf, Verdict
from tidemark.account.owners import OWNERS
from tidemark.model.settings.lengths import for_people

NO_HISTORY = "there is no history that says what is usual"


def told(explanation: Explanation) -> str:
    """Returns why a promise is broken: what each leaf did, and how many results the causes explain.

    >>> late = Leaf(owner="producer", detail="orders/0", amount_ms=8_800, usual_ms=300)
    >>> told(Explanation(verdict=Verdict.EXPLAINED, leaves=(late,), explained=0.93, broken=41))
    '`orders` partition 0 was written 9.1 s late, usually 300 ms; this explains 93 % of 41 late results'
    >>> told(Explanation(verdict=Verdict.AS_USUAL, usual_share=0.12))
    'as usual: 12 % of the results before were late, too'
    """
    match explanation.verdict:
        case Verdict.EXPLAINED:
            known = [] if explanation.has_history else [NO_HISTORY]
            return "; ".join([*map(sentence_of, explanation.leaves), *_explained(explanation), *known])
        case Verdict.CANNOT_BE_KEPT:
            return f"the promise cannot be kept: {'; '.join(map(did, explanation.leaves))}"
        case Verdict.AS_USUAL:
            return f"as usual: {explanation.usual_share or 0:.0%} of the results before were late, too".replace(
                "%", " %"
            )
        case Verdict.KEPT:
            return "the promise is kept"
        case Verdict.NOT_KNOWN:
            return "no cause is known"


def _explained(explanation: Explanation) -> list[str]:
    """Returns how many late results the causes explain; of one late result, and of records, the leaves tell all."""
    if explanation.broken <= 1 or any(leaf.became for leaf in explanation.leaves):
        return []
    whole = f"this explains {explanation.explained:.0%} of {explanation.broken:,} late results"
    return [whole.replace("%", " %")]


def sentence_of(leaf: Leaf) -> str:
    """Returns what the owner of *leaf* did, or which records it kept from being counted.

    >>> from tidemark.account.explanation import Became
    >>> sentence_of(Leaf(owner="topic", detail="orders", records=36, became=Became.NOT_PRODUCED))
    '36 records of `orders`, not produced'
    """
    return described(leaf) if leaf.became else did(leaf)


def did(leaf: Leaf) -> str:
    """Returns what the owner of *leaf* did, with its whole length and what is usual of it.

    >>> did(Leaf(owner="pause", detail="shop/revenue", amount_ms=12_000, usual_ms=0))
    'the process of `shop/revenue` stood still for 12 s'
    """
    owner, usual_ms = OWNERS[leaf.owner], leaf.usual_ms or 0
    whole = for_people((leaf.amount_ms or 0) + usual_ms)
    said = owner.says.format(detail=place_of(leaf), stream=f"`{leaf.stream}`", amount=whole)
    return said + (f", usually {for_people(usual_ms)}" if usual_ms else "")


def described(leaf: Leaf) -> str:
    """Returns which records *leaf* is about.

    >>> from tidemark.account.explanation import Became
    >>> phone = {"records": 36, "became": Became.LATE, "partition": "orders/0", "key": "phone", "largest_ms": 208_200}
    >>> described(Leaf(owner="key", detail="phone", **phone))
    '36 records of `orders` partition 0, key `phone`, up to 208 s old'
    >>> refused = {"became": Became.QUARANTINED, "partition": "orders/1", "reason": "wrong_type amount"}
    >>> described(Leaf(owner="producer", detail="orders/1", records=1, **refused))
    '1 record of `orders` partition 1, quarantined: wrong_type amount'
    >>> described(Leaf(owner="topic", detail="orders", became=Became.NOT_PRODUCED))
    'the records of `orders`, not produced'
    """
    number = "the records" if leaf.records is None else f"{leaf.records:,} record{'s' * (leaf.records != 1)}"
    source, _, partition = (leaf.partition or leaf.detail).partition("/")
    parts = [f"{number} of `{source}`" + (f" partition {partition}" if leaf.partition and partition else "")]
    parts += [f"key `{leaf.key}`"] if leaf.key is not None else []
    parts += [f"up to {leaf.largest_ms // 1_000:,} s old"] if leaf.largest_ms is not None else []
    parts += [leaf.became] if leaf.became and leaf.largest_ms is None else []
    return ", ".join(parts) + (f": {leaf.reason}" if leaf.reason else "")


def place_of(leaf: Leaf) -> str:
    """Returns the detail of *leaf* for people.

    >>> place_of(Leaf(owner="next_record", detail="orders/0")), place_of(Leaf(owner="operator", detail="top"))
    ('`orders` partition 0', '`top`')
    """
    source, slash, partition = leaf.detail.rpartition("/")
    if slash and "PARTITION" in OWNERS[leaf.owner].detail:
        return f"`{source}` partition {partition}"
    return f"`{leaf.detail}`"


def remedy_of(leaf: Leaf) -> str:
    """Returns what shortens the time of *leaf*, or brings its records back."""
    return OWNERS[leaf.owner].remedy
