"""Rate of suppressed unchanged updates per second, over the last minute."""

from __future__ import annotations

from pathlib import Path

from support.play import Play
from support.topologies import NEWEST, source, table, topology_of

T = 1_770_033_600_000


def rates(play: Play) -> list[tuple[int, float]]:
    found = [(task["idempotent_update_skip_total"], task["idempotent_update_skip_rate"]) for task in play.tasks()]
    return [skips for skips in found if skips != (None, None)]


def played(home: Path, *batches: tuple[int, int]) -> Play:
    """Runs batches at ms after T, each with records of one value.

    The first of all is no repetition.
    """
    play = Play(f'level = "debug"{NEWEST}', home)
    for after_ms, n in batches:
        at_ms = T + after_ms
        play.batch([play.row("events", at_ms - 500 + i, id="a", v=1) for i in range(n)], at_ms=at_ms)
    return play


def test_the_minute_of_a_rate_slides(tmp_path: Path) -> None:
    play = played(tmp_path, (0, 7), (30_000, 12), (59_999, 3), (60_000, 3), (120_000, 1))
    assert rates(play) == [(6, 0.1), (18, 0.3), (21, 0.35), (24, 0.3), (25, 1 / 60)]


def test_batches_of_less_than_a_second_do_not_raise_it(tmp_path: Path) -> None:
    play = played(tmp_path, *((200 * i, 4) for i in range(6)))
    assert rates(play)[-1] == (23, 23 / 60)


def test_in_silence_the_rate_is_0_and_written_once(tmp_path: Path) -> None:
    play = played(tmp_path, (0, 7), (59_999, 0), (60_000, 0), (60_001, 0), (500_000, 0))
    assert rates(play) == [(6, 0.1), (6, 0.0)]


def test_a_new_driver_knows_the_last_minute(tmp_path: Path) -> None:
    play = played(tmp_path, (0, 7))
    play.start(epoch=2)
    play.batch([play.row("events", T + 30_000, id="a", v=2)], at_ms=T + 30_000)
    play.batch(at_ms=T + 60_000)
    assert rates(play) == [(6, 0.1), (6, 0.1), (6, 0.0)]


def test_a_removed_operator_has_no_rates_any_more(tmp_path: Path) -> None:
    keys = {"level": "debug"}
    played_once = Play(topology_of(keys, events=source(key="id"), newest=table(), second=table()), tmp_path)
    played_once.batch([played_once.row("events", T, id="a", v=1)], at_ms=T)
    play = Play(topology_of(keys, events=source(key="id"), newest=table()), tmp_path)
    play.resume({play.sub: 1}, {("events", 0): 1})
    play.batch([play.row("events", T + 1, id="a", v=1)], at_ms=T + 1_000)
    skips = [task for task in play.tasks() if task["idempotent_update_skip_total"] is not None]
    found = [(task["batch_id"], task["operator"]) for task in skips]
    assert found == [(0, "newest"), (0, "second"), (1, "newest")]


def test_the_rate_of_a_removed_operator_falls_to_0_in_a_row_without_a_kind(tmp_path: Path) -> None:
    keys = {"level": "debug"}
    played_once = Play(topology_of(keys, events=source(key="id"), newest=table(), second=table()), tmp_path)
    played_once.batch([played_once.row("events", T + i, id="a", v=1) for i in range(7)], at_ms=T)
    play = Play(topology_of(keys, events=source(key="id"), newest=table()), tmp_path)
    play.resume({play.sub: 1}, {("events", 0): 7})
    play.batch([play.row("events", T + 60_000, id="a", v=1)], at_ms=T + 60_000)
    (row,) = [row for row in play.rows("operator_batches") if row["operator"] == "second" and row["batch_id"] == 1]
    assert (row["kind"], row["records_in"], row["suppressed"], row["finished_at"]) == (None, 0, 0, None)
    (task,) = row["tasks"]
    assert (task["idempotent_update_skip_total"], task["idempotent_update_skip_rate"]) == (6, 0.0)
