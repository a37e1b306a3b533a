"""Each record that did not go on is one row of `dead_letters`, although two kinds of commits write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.crashes import Crash
from support.play import Play, Row, bad, ms
from support.topologies import NEWEST_SENT
from tidemark.query.sql import Warehouse

STRICT = NEWEST_SENT.replace('bound = "1 s"', 'bound = "1 s"\nallowed_lateness = "0 ms"')
HOUR_MS = 3_600_000
BATCHES = 3
LAST = BATCHES - 1
LETTERS = [
    *((n, "late", 4 * n + 2) for n in range(1, BATCHES)),  # before the first batch there is no watermark
    *((n, "quarantined", 4 * n + 3) for n in range(BATCHES)),
    *((n, "undeliverable", 4 * n + 1) for n in range(BATCHES)),
]
"""Batch, kind and offset of each."""
BESIDE = ("committed out", "committed undeliverable", "committed dead_letters")
"""Steps before, between and after the two commits."""


def play_with(home: Path, *, facts_every_ms: int) -> Play:
    play = Play(STRICT, home, facts_every_ms=facts_every_ms)
    play.broker.refuses = lambda record: record["id"] == "b"
    return play


def records(play: Play, n: int) -> list[Row]:
    """One record that is sent, one that the topic refuses, one that is late, and one that cannot be read."""
    usable = [(10 * n, "a"), (10 * n, "b"), (-60, "a")]
    rows = [play.row("events", ms(second), id=id_, v=n) for second, id_ in usable]
    return [*rows, bad("malformed_json")(play)]


def letters(play: Play) -> list[tuple[int, str, int]]:
    """What a reader of table and journal sees."""
    asked = 'SELECT batch_id, kind, "offset" FROM dead_letters ORDER BY kind, batch_id'
    return [*Warehouse(play.home).ask(asked).rows]  # type: ignore[list-item]


@pytest.mark.parametrize("facts_every_ms", [0, HOUR_MS])
def test_a_kill_between_the_two_commits_loses_and_repeats_no_row(tmp_path: Path, facts_every_ms: int) -> None:
    play = play_with(tmp_path / "before", facts_every_ms=facts_every_ms)
    for n in range(LAST):
        play.batch(records(play, n), at_ms=ms(10 * n))
    rows, steps = records(play, LAST), list[str]()
    watched = play.copied_to(tmp_path / "watched")
    watched.start(epoch=2, reached=steps.append)
    watched.batch(rows, at_ms=ms(20))
    # Waiting rows are committed after the refused ones of the same batch, or by a start before those of the next.
    in_turn = [step for step in steps if step in BESIDE]
    start = [BESIDE[2]] if facts_every_ms else []
    assert in_turn == [*start, BESIDE[0], BESIDE[1], *([] if facts_every_ms else [BESIDE[2]])]
    for number in range(len(in_turn)):
        killed, reached = play.copied_to(tmp_path / str(number)), list[str]()

        def reach(name: str, *, number: int = number, reached: list[str] = reached) -> None:
            reached += [name] if name in BESIDE else []
            if len(reached) > number:
                raise Crash(name)

        killed.start(epoch=2, reached=reach)
        with pytest.raises(Crash):
            killed.batch(rows, at_ms=ms(20))
        seen = letters(killed)
        assert len(seen) == len({*seen}), reached
        assert {one for one in LETTERS if one[0] < LAST} <= {*seen} <= {*LETTERS}, reached
        killed.start(epoch=3)
        killed.batch(rows, at_ms=ms(20))
        assert letters(killed) == LETTERS, reached
        killed.engine(killed.sub).flush()
        in_table = sorted((row["kind"], row["batch_id"], row["offset"]) for row in killed.rows("dead_letters"))
        assert in_table == [(kind, n, offset) for n, kind, offset in LETTERS], reached
