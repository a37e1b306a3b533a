"""An aggregate over batches: however records are cut into batches, the results of each key are the same."""

from __future__ import annotations

from typing import Any

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from tidemark.kernels.expressions import Expressions
from tidemark.kernels.schemas import META_SCHEMA
from tidemark.semantics.change import Rule
from tidemark.semantics.strategy import Strategy
from tidemark.spec.operators import Aggregate, Emission, Kind, Shape, Windows
from tidemark.stream.batch import Moment
from tidemark.stream.operate.aggregating import Aggregating
from tidemark.stream.state import Memory, Moves

SCHEMA = {"id": pl.String(), "v": pl.Int64(), **META_SCHEMA}
WATERMARK_MS = 10
RECORDS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 30), st.integers(0, 3)), min_size=1, max_size=7)
WINDOWS = [
    None,
    Windows(shape=Shape.HOPPING, size_ms=6, hop_ms=4),
    Windows(shape=Shape.SESSION, size_ms=5, hop_ms=5),
    Windows(shape=Shape.SESSION, size_ms=5, hop_ms=5, allowed_lateness_ms=8),
]
Record = tuple[str, int, int]


def aggregate(windows: Windows | None, strategy: Strategy) -> tuple[Aggregating, Memory]:
    operator = Aggregate(
        name="a",
        kind=Kind.AGGREGATE,
        key=("id",),
        windows=windows,
        aggregates={"n": ("count", "*"), "top": ("max", "v"), "last": ("last", "v")},
        select={"n": "n", "top": "top", "last": "last"},
        emission=Emission(strategy=strategy, rule=Rule.VALUE_ONLY),
    )
    memory = Memory()
    return Aggregating(operator, SCHEMA, Expressions(), memory), memory


def play(windows: Windows | None, strategy: Strategy, batches: list[list[tuple[int, Record]]]) -> dict[str, Any]:
    """Per key what was sent on, one after the other, then all late records and what is kept; the last batch closes."""
    aggregating, memory = aggregate(windows, strategy)
    sent: dict[str, list[Any]] = {}
    late: list[int] = []
    for number, batch in enumerate([*batches, []]):
        rows = [(id_, v, None, at_ms, 0, offset, 0, False, None, at_ms, False) for offset, (id_, at_ms, v) in batch]
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
        memory.take(moves)
    kept = memory.states["a"].all().drop("_offset", "_headers").sort("_key").rows()
    in_order = strategy is not Strategy.ON_WINDOW_CLOSE
    return {"sent": sent if in_order else {k: sorted(v) for k, v in sent.items()}, "late": sorted(late), "kept": kept}


@given(RECORDS, st.sampled_from(WINDOWS), st.sampled_from([Strategy.ON_CHANGE, Strategy.ON_UPDATE]), st.integers(0, 7))
def test_records_in_one_batch_come_to_what_they_come_to_one_by_one(records, windows, strategy, cut):
    numbered = list(enumerate(records))
    one_by_one = play(windows, strategy, [[record] for record in numbered])
    assert play(windows, strategy, [numbered[:cut], numbered[cut:]]) == one_by_one


@given(RECORDS, st.sampled_from(WINDOWS[1:]), st.integers(0, 7))
def test_final_results_do_not_depend_on_how_records_were_cut_into_batches(records, windows, cut):
    numbered = list(enumerate(records))
    one_by_one = play(windows, Strategy.ON_WINDOW_CLOSE, [[record] for record in numbered])
    assert play(windows, Strategy.ON_WINDOW_CLOSE, [numbered[:cut], numbered[cut:]]) == one_by_one
