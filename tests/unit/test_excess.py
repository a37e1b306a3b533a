"""From parts to causes, with numbers that are worked out here by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tidemark.account.excess import Judged, explain
from tidemark.account.explanation import Answer, Explanation
from tidemark.account.steps import PARTS
from tidemark.account.text import told

LIMIT_MS = 4_000
Parts = dict[tuple[str, str], int]
"""The parts of a result, ms, by owner and detail."""
USUAL: Parts = {("producer", "orders/0"): 300, ("operator", "top"): 100}


def judged(broken: Sequence[Parts], kept: Sequence[Parts] = (USUAL,) * 40, **more: Any) -> Judged:
    """Returns results with these parts; each part ends at an instant of its own, unless `event` says otherwise."""
    events: dict[str, int] = more.pop("events", {})
    records: Sequence[int] = more.pop("records", [6] * (len(broken) + len(kept)))
    parts, results = [], []
    for number, of_result in enumerate([*broken, *kept]):
        age_ms = sum(of_result.values())
        results.append((number, 1, age_ms, age_ms - LIMIT_MS, number < len(broken)))
        for nth, ((owner, detail), ms) in enumerate(of_result.items()):
            stream = None if owner == "producer" else "shop/reads"
            ended_ms = events.get(owner, 100_000 * number + nth + ms)
            parts.append((number, owner, detail, stream, None if stream is None else number, ended_ms, ms, 0))
    columns = {"result": pl.Int64, "n": pl.Int64, "age_ms": pl.Int64, "over_ms": pl.Int64, "is_broken": pl.Boolean}
    return Judged(
        results=pl.DataFrame(results, schema=columns, orient="row"),
        parts=pl.DataFrame(parts, schema=PARTS, orient="row"),
        batch_records=pl.DataFrame(
            {"stream": ["shop/reads"] * len(records), "batch_id": range(len(records)), "records": records},
            schema={"stream": pl.String, "batch_id": pl.Int64, "records": pl.Int64},
        ),
        volume_of={"shop/reads": "orders"},
        configured={("trigger", None): 30_000},
        judged=more.pop("judged", len(broken)),
        **more,
    )


def leaves(found: Explanation) -> list[tuple[str, str, int | None, int]]:
    return [(leaf.owner, leaf.detail, leaf.amount_ms, leaf.touched) for leaf in found.leaves]


def test_two_causes_with_the_share_of_results_that_each_keeps() -> None:
    """Eight results were written 9 s later than usual, and two waited 5 s longer for the operator: 72 s and 10 s."""
    late, slow = USUAL | {("producer", "orders/0"): 9_300}, USUAL | {("operator", "top"): 5_100}
    found = explain(judged([late] * 8 + [slow] * 2))
    assert found.answer is Answer.EXPLAINED
    assert [(cause.owner, cause.detail, cause.explained) for cause in found.causes] == [
        ("producer", "orders/0", 0.8),
        ("operator", "top", 1.0),
    ]
    assert leaves(found) == [("producer", "orders/0", 9_000, 8), ("operator", "top", 5_000, 2)]
    assert [round(leaf.share, 3) for leaf in found.leaves] == [0.878, 0.122]
    assert (found.broken, found.results, found.has_history) == (10, 10, True)
    page = (Path(__file__).parents[2] / "docs" / "why.md").read_text(encoding="utf-8")
    assert f"\n{told(found)}\n" in page


def test_a_cause_is_the_node_that_holds_its_leaves_together() -> None:
    """Two operators of a driver have 60 % and 40 % of its excess: neither has 70 %, and the driver is the cause."""
    both = USUAL | {("operator", "top"): 3_100, ("operator", "out"): 2_000}
    found = explain(judged([both] * 5))
    assert [(cause.owner, cause.detail) for cause in found.causes] == [("driver", "shop/reads")]
    assert leaves(found) == [("operator", "top", 3_000, 5), ("operator", "out", 2_000, 5)]


@pytest.mark.parametrize(
    ("events", "amount_ms"),
    [({}, 8_000), ({"pause": 77_000}, 12_000)],
    ids=["several pauses are a lasting fault", "one pause has its length"],
)
def test_the_amount_of_an_event_is_its_largest_excess(events: dict[str, int], amount_ms: int) -> None:
    """Results that arrived during a pause of 12 s waited for 12, 8 and 5 s of it: the median is 8 s."""
    paused = [USUAL | {("pause", "shop/reads"): ms} for ms in (12_000, 8_000, 5_000)]
    assert leaves(explain(judged(paused, events=events))) == [("pause", "shop/reads", amount_ms, 3)]


def test_work_on_more_records_belongs_to_the_volume_of_their_topic() -> None:
    """100 ms are usual for six records. Of 6 s for 120 records 2 s are due to them, and 3.9 s are the operator's."""
    busy = USUAL | {("operator", "top"): 6_000}
    found = explain(judged([busy] * 3, records=[120] * 3 + [6] * 40))
    assert leaves(found) == [("operator", "top", 4_000, 3), ("topic_volume", "orders", 1_900, 3)]


def test_as_many_late_results_as_before_are_as_usual() -> None:
    """Of 100 results 15 broke the promise; 10 % did before, and 15 % are 1.5 times that."""
    late = USUAL | {("producer", "orders/0"): 9_300}
    asked = {"judged": 100, "usual_share": 0.1}
    assert explain(judged([late] * 15, **asked)).answer is Answer.AS_USUAL
    # Three standard errors of 10 % in 100 are 9 %.
    assert explain(judged([late] * 19, **asked)).answer is Answer.AS_USUAL
    assert explain(judged([late] * 20, **asked)).answer is Answer.EXPLAINED


def test_a_promise_below_the_length_of_a_setting_cannot_be_kept() -> None:
    """Nothing ever kept it: the trigger of 30 s alone is longer than 4 s."""
    found = explain(judged([{("trigger", ""): 24_000}] * 5, kept=(), usual_share=1.0, judged=5))
    assert (found.answer, found.has_history) == (Answer.CANNOT_BE_KEPT, False)
    assert leaves(found) == [("trigger", "", 30_000, 5)]


def test_without_history_the_whole_length_is_excess() -> None:
    found = explain(judged([USUAL | {("operator", "top"): 5_000}] * 3, kept=(USUAL,) * 19))
    assert (found.answer, found.has_history) == (Answer.EXPLAINED, False)
    assert leaves(found) == [("operator", "top", 5_000, 3)]


def test_what_kept_the_promise_has_no_cause() -> None:
    found = explain(judged([]))
    assert (found.answer, found.causes, found.leaves) == (Answer.KEPT, (), ())
