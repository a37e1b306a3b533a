"""The table `batches` tells what a driver did in all of its life, and on whose clock results were shown."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from support.crashes import Crash, crash_at
from support.play import BOOTED_MS, Play, ms
from support.topologies import NEWEST
from tidemark.clock import wall_clock_ms


def played(home: Path) -> Play:
    """Returns a play with a batch each 5 s, in which each write takes 10 ms."""
    play = Play(NEWEST, home)
    play.write_ms = 10
    for n in range(3):
        batch(play, n)
    return play


def batch(play: Play, n: int) -> None:
    play.batch([play.row("events", ms(n), key="a", id="a", v=n)], at_ms=ms(10 + 5 * n), now_ms=ms(10 + 5 * n) + 20)


def since_boot(at_s: float) -> int:
    return ms(at_s) - BOOTED_MS


def phases(play: Play) -> dict[int, list[tuple[str, str, int, int]]]:
    return {
        row["batch_id"]: [(each["owner"], each["detail"], each["batch_id"], each["ms"]) for each in row["phases"] or ()]
        for row in play.rows("batches")
    }


def test_phases_follow_each_other_without_a_gap(tmp_path: Path) -> None:
    play = played(tmp_path)
    first, second, third = play.rows("batches")
    assert first["phases"] is None  # nothing took time before the first entry
    # Ten ms each for the entry, changes, the sink's changes and their merge; the facts go into a file and four tables.
    assert phases(play)[2] == [
        ("target", "journal", 1, 10), ("target", "changes", 1, 10), ("target", "changes_of_board", 1, 10),
        ("target", "board", 1, 10), ("target", "facts", 1, 50), ("trigger", "", 2, 4_910),
    ]  # fmt: skip
    for before, after in pairwise((second, third)):
        told_ms = sum(each["ms"] for each in after["phases"])
        assert told_ms == after["phases_boot_ms"] - before["phases_boot_ms"]


def test_looks_and_results_are_on_the_boot_clock(tmp_path: Path) -> None:
    play = played(tmp_path)
    assert [
        (row["started_boot_ms"], row["looked_boot_ms"], row["excluded_boot_ms"]) for row in play.rows("batches")
    ] == [
        (since_boot(10.02), since_boot(10), None),
        (since_boot(15.02), since_boot(15), since_boot(10)),
        (since_boot(20.02), since_boot(20), since_boot(15)),
    ]
    board = [row for row in play.rows("operator_batches") if row["operator"] == "board"]
    # The entry and two writes came before its rows could be seen.
    assert [(row["finished_boot_ms"], row["finished_epoch"]) for row in board] == [
        (since_boot(at_s + 0.05), 1) for at_s in (10, 15, 20)
    ]


def test_a_clock_that_is_set_within_a_batch_moves_no_result_on_the_boot_clock(tmp_path: Path) -> None:
    play = played(tmp_path)

    # The host's clock is set by 8 s while the batch commits its changes.
    def set_clock(step: str) -> None:
        play.set_ms = 8_000 if step == "committed changes" else play.set_ms

    play.start(reached=set_clock)
    batch(play, 3)
    shown = {row["operator"]: row for row in play.rows("operator_batches") if row["batch_id"] == 3}
    assert shown["board"]["finished_at"] == ms(25 + 0.05 + 8)
    assert shown["board"]["finished_boot_ms"] == since_boot(25.05)
    assert shown["newest"]["finished_boot_ms"] == since_boot(25.02)


@pytest.mark.parametrize(("step", "by"), [("decided", 2), ("committed changes_of_board", 1)])
def test_a_result_names_the_driver_that_wrote_it(tmp_path: Path, step: str, by: int) -> None:
    # Delta's log has the time of a commit by the clock of this machine.
    began_ms = wall_clock_ms()
    play = Play(NEWEST, tmp_path)
    play.start(reached=crash_at(step))
    with pytest.raises(Crash):
        play.batch([play.row("events", began_ms, key="a", id="a", v=1)], at_ms=began_ms)
    play.start(epoch=2)
    play.batch([play.row("events", began_ms, key="a", id="a", v=2)], at_ms=wall_clock_ms() + 1)
    shown = {row["operator"]: row for row in play.rows("operator_batches") if row["batch_id"] == 0}
    assert (shown["events"]["finished_epoch"], shown["board"]["finished_epoch"]) == (1, by)
    assert shown["board"]["finished_boot_ms"] == shown["board"]["finished_at"] - BOOTED_MS


def test_a_driver_that_died_has_told_of_its_work_in_the_entry(tmp_path: Path) -> None:
    play = Play(NEWEST, tmp_path)
    play.write_ms = 10
    steps: list[str] = []

    def die_in_the_second_batch(step: str) -> None:
        steps.append(step)
        if steps.count("decided") == 2:
            raise Crash(step)

    play.start(reached=die_in_the_second_batch)
    batch(play, 0)
    with pytest.raises(Crash):
        batch(play, 1)
    play.start(epoch=2)
    play.process(2, [play.row("events", ms(2), key="a", id="a", v=2)], at_ms=ms(60))
    assert phases(play)[1][0] == ("target", "journal", 0, 10)
    assert phases(play)[1][-1] == ("trigger", "", 1, 4_900)
    # The second driver tells of its own life alone: it carried out what the first one had decided.
    assert phases(play)[2][0] == ("target", "changes", 1, 10)
