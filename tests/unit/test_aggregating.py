"""Results of aggregates per key do not depend on the batches."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

import polars as pl
import pytest
from hypothesis import settings

from tidemark.kernels.columns.schemas import META_SCHEMA
from tidemark.kernels.sql.expressions import PROBLEM, Expressions
from tidemark.model.kinds.aggregate import Aggregate
from tidemark.model.settings.emission import Emission
from tidemark.model.settings.windows import Shape, Windows
from tidemark.semantics.change import Rule
from tidemark.semantics.strategy import Strategy
from tidemark.stream.journal.batch import Moment
from tidemark.stream.state.memory import Memory, Moves
from tidemark.stream.updates.aggregating import Aggregator

SCHEMA = {"id": pl.String(), "v": pl.Int64(), **META_SCHEMA}
WATERMARK_MS = 10
WINDOWS = [
    None,
    Windows(shape=Shape.HOPPING, size_ms=6, hop_ms=4),
    Windows(shape=Shape.SESSION, size_ms=5, hop_ms=5),
    Windows(shape=Shape.SESSION, size_ms=5, hop_ms=5, allowed_lateness_ms=8),
]
CASES = [
    (windows, strategy)
    for windows in WINDOWS
    for strategy in (Strategy.ON_CHANGE, Strategy.ON_UPDATE, Strategy.ON_WINDOW_CLOSE)
    if windows is not None or strategy is not Strategy.ON_WINDOW_CLOSE
]
Record = tuple[str, int, int]
History = tuple[list[tuple[int, int]], int]
MOST_RECORDS = 6
AT_ONCE = 24
MOST = 2**63 - 1
VALUES = (0, 1, 2, 3, MOST, MOST - 1, -MOST - 1)


def history(draw: Random, least: int, most: int) -> History:
    """Draws times and values of a key's records, and a cut."""
    records = [(draw.randint(0, 30), draw.choice(VALUES)) for _ in range(draw.randint(least, most))]
    return records, draw.randint(0, most)


def histories(seed: int) -> list[History]:
    """Draws the histories of many keys, of which the first is longer.

    A batch has a fixed cost, and keys are independent, so a play has many keys. The longer history is alone in the
    last batches, because some rules ask if all records of a batch are in time or in open sessions.
    """
    draw = Random(seed)
    return [history(draw, 5, MOST_RECORDS), *(history(draw, 1, 4) for _ in range(AT_ONCE))]


def aggregate(windows: Windows | None, strategy: Strategy, sql: Expressions) -> tuple[Aggregator, Memory]:
    operator = Aggregate(
        name="a",
        key=("id",),
        windows=windows,
        aggregates={"n": ("count", "*"), "top": ("max", "v"), "last": ("last", "v"), "total": ("sum", "v")},
        select={"n": "n", "top": "top", "last": "last", "total": "total"},
        emission=Emission(strategy=strategy, rule=Rule.VALUE_ONLY),
    )
    memory = Memory()
    return Aggregator(operator, SCHEMA, sql, memory), memory


def play(windows: Windows | None, strategy: Strategy, batches: list[list[tuple[int, Record]]]) -> dict[str, Any]:
    """Returns results per key in order, late and refused records, and kept states.

    The last batch closes all windows.
    """
    sql = Expressions()
    aggregating, memory = aggregate(windows, strategy, sql)
    sent: dict[str, list[Any]] = {}
    late: list[int] = []
    for number, batch in enumerate([*batches, []]):
        rows = [(id_, v, None, at_ms, 0, n, 0, False, None, at_ms, False, n) for n, (id_, at_ms, v) in batch]
        closes = number == len(batches)
        moment = Moment(
            was_watermark_ms=WATERMARK_MS,
            watermark_ms=25 if closes else WATERMARK_MS,
            held_by=None,
            was_decided_at_ms=None,
            decided_at_ms=0,
        )
        moves = Moves()
        done = aggregating.run(pl.DataFrame(rows, schema=SCHEMA, orient="row"), moves, moment)
        for row in done.emitted.output.sort("_offset", maintain_order=True).to_dicts():
            sent.setdefault(row["id"], []).append((row.get("window_start"), row["_value"], row["_timestamp_ms"]))
        late += done.late["_offset"].to_list()
        memory.apply(moves)
    kept = memory.states["a"].all().drop("_offset", "_headers").sort("_key").rows()
    in_order = strategy is not Strategy.ON_WINDOW_CLOSE
    return {
        "sent": sent if in_order else {k: sorted(v) for k, v in sent.items()},
        "late": sorted(late),
        "refused": refused_by(sql),
        "kept": kept,
    }


def refused_by(sql: Expressions) -> list[tuple[int, int | None, str]]:
    """Returns offset, window and problem of each record that was set aside."""
    return sorted(
        (row["_offset"], row.get("window_start"), row[PROBLEM]) for rows in sql.failed for row in rows.to_dicts()
    )


def batches_of(drawn: list[History], number_of: Callable[[int, int], int]) -> list[list[tuple[int, Record]]]:
    """Returns batches; *number_of* a record's place and the cut is its batch."""
    batches: list[list[tuple[int, Record]]] = [[] for _ in range(MOST_RECORDS)]
    for number, (records, cut) in enumerate(drawn):
        for place, (at_ms, v) in enumerate(records):
            batches[number_of(place, cut)].append((number * MOST_RECORDS + place, (str(number), at_ms, v)))
    return batches


def plain_totals(batches: list[list[tuple[int, Record]]]) -> tuple[dict[str, int], list[int]]:
    """Returns the sum of each key without windows, and the offsets of records with which it would not fit."""
    totals: dict[str, int] = {}
    refused: list[int] = []
    for offset, (id_, _, v) in (record for batch in batches for record in batch):
        total = totals.get(id_, 0) + v
        if -MOST - 1 <= total <= MOST:
            totals[id_] = total
        else:
            refused.append(offset)
    return totals, refused


def test_an_update_whose_sum_does_not_fit_leaves_the_state_as_it_was():
    batches = batches_of(histories(3), lambda place, cut: int(place >= cut))[:2]
    found = play(None, Strategy.ON_UPDATE, batches)
    totals, refused = plain_totals(batches)
    assert len(refused) > AT_ONCE // 2
    assert [offset for offset, *_ in found["refused"]] == sorted(refused)
    assert {key: int(json.loads(sent[-1][1])["total"]) for key, sent in found["sent"].items()} == totals


# Seed 8 draws sessions whose lateness depends on the order of records; 0 and 1 do not.
@pytest.mark.parametrize("seed", range(8, 8 + settings().max_examples // AT_ONCE))
@pytest.mark.parametrize(("windows", "strategy"), CASES)
def test_results_do_not_depend_on_the_cut_into_batches(windows, strategy, seed):
    drawn = histories(seed)
    one_by_one = [batch for batch in batches_of(drawn, lambda place, _: place) if batch]
    cut_once = batches_of(drawn, lambda place, cut: int(place >= cut))[:2]
    assert play(windows, strategy, cut_once) == play(windows, strategy, one_by_one)
