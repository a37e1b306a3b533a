"""Culprit parts of a window's age, with lengths worked out by hand."""

from pathlib import Path
from random import Random
from statistics import median_low

import numpy as np
import pytest

from tidemark.kernels.reports.ages import (
    CAUSES,
    PLACE,
    Ages,
    ClosingBatches,
    before_source,
    compared_lengths,
    share_out,
    usual_lengths,
)
from tidemark.reports.paths.path_text import PART_WORDS
from tidemark.semantics.blame import AgeCause, AgePart

DOCS = Path(__file__).parents[2] / "docs"
SOURCE, NEWEST, BOARD = AgePart("events", "source"), AgePart("newest", "table"), AgePart("board", "sink")
TICKER = AgePart("ticker", "table")
PARTS = [*CAUSES, SOURCE, NEWEST, BOARD, TICKER]
BOUND = PARTS[PLACE[AgeCause.BOUND]]


def column(*values, type_=float):
    """Returns a value for each of some windows, NaN for None."""
    return np.array([np.nan if value is None else value for value in values], type_)


def lengths(ages):
    """Returns the parts of the first window that took time, by name."""
    return {part.name: ms for part, ms in zip(ages.parts, ages.ms[:, 0].tolist(), strict=True) if ms}


def age(finished_ms, *, ready_ms, queued_ms=0, **closing):
    """Returns, by name, parts of a window that ended at 10 s.

    The bound is 3 s, the trigger 1 s.
    """
    instants = {name: column(closing.get(name)) for name in ("before_began_ms", "before_ended_ms", "still_from_ms")}
    flags = {
        name: column(closing.get(name, False), type_=bool)
        for name in ("is_unread", "is_unknown", "by_silence", "has_restarted")
    }
    ages = Ages(PARTS, 1)
    before_source(
        ages, column(10_000), column(finished_ms), bound_ms=column(3_000), ready_ms=column(ready_ms),
        closing=ClosingBatches(began_ms=column(closing.get("began_ms", finished_ms - 100)), **instants, **flags),
        trigger_ms=1_000, queued_ms=column(queued_ms), source=PARTS.index(SOURCE), busy=np.array([PARTS.index(NEWEST)]),
    )  # fmt: skip
    assert ages.ms.sum() == finished_ms - 10_000
    return lengths(ages)


@pytest.mark.parametrize("cause", AgeCause)
def test_every_part_has_a_name_for_people_and_its_rows_in_the_documents(cause):
    assert cause in PART_WORDS
    assert f"| `{cause}` |" in (DOCS / "reports.md").read_text()


def test_a_silent_partition_is_apart_from_the_bound():
    found = age(84_600, ready_ms=83_800, before_began_ms=83_500, before_ended_ms=83_700)
    assert found == {"bound": 3_000, "blocking_partition": 70_800, "trigger": 700, "events": 100}


def test_silence_is_apart_from_a_partition_that_got_a_record():
    found = age(84_600, ready_ms=83_800, before_began_ms=83_500, before_ended_ms=83_700, by_silence=True)
    assert found == {"bound": 3_000, "silence": 70_800, "trigger": 700, "events": 100}


def test_a_record_that_was_written_late_is_its_producers():
    found = age(25_000, ready_ms=13_000, before_began_ms=23_900, before_ended_ms=24_000)
    assert found == {"bound": 3_000, "late_producer": 10_900, "newest": 100, "trigger": 900, "events": 100}


def test_unread_records_are_a_backlog():
    found = age(25_000, ready_ms=13_000, before_began_ms=22_000, before_ended_ms=24_500, is_unread=True)
    assert found == {"bound": 3_000, "backlog": 11_500, "trigger": 400, "events": 100}


def test_a_wait_without_known_unread_records_is_unknown():
    found = age(25_000, ready_ms=13_000, before_began_ms=23_900, before_ended_ms=24_000, is_unknown=True)
    assert found == {"bound": 3_000, "unknown": 10_900, "newest": 100, "trigger": 900, "events": 100}


def test_what_waited_for_a_driver_to_come_back_is_no_backlog():
    found = age(73_000, ready_ms=13_000, before_began_ms=13_100, before_ended_ms=13_200, has_restarted=True)
    assert found == {"bound": 3_000, "late_producer": 100, "newest": 100, "driver_restarted": 58_700, "trigger": 1_000,
                     "events": 100}  # fmt: skip


def test_records_of_a_new_drivers_second_batch_waited_for_it():
    found = age(25_000, ready_ms=13_000, before_began_ms=22_000, before_ended_ms=24_500, is_unread=True,
                has_restarted=True)  # fmt: skip
    assert found == {"bound": 3_000, "driver_restarted": 11_500, "trigger": 400, "events": 100}


def test_a_driver_that_is_busy_counts_for_who_keeps_it_busy():
    found = age(16_700, ready_ms=13_000, before_began_ms=13_000, before_ended_ms=16_500)
    assert found == {"bound": 3_000, "newest": 3_500, "trigger": 100, "events": 100}


def test_a_wait_for_another_stream_of_the_process_is_queued():
    # the batch began at 16.6 s, was queued until 16.9 s, and had finished at 17 s
    found = age(17_000, ready_ms=13_000, queued_ms=300, before_began_ms=13_000, before_ended_ms=16_500, began_ms=16_600)
    assert found == {"bound": 3_000, "newest": 3_500, "trigger": 100, "queued": 300, "events": 100}


def test_a_window_that_was_finished_before_its_end_adds_up_too():
    assert age(9_000, ready_ms=13_000) == {"bound": -1_000}


def test_who_worked_beside_the_path_gets_the_time_of_the_queue():
    ages = Ages(PARTS, 1)
    beside = [(PARTS.index(BOARD), column(650), column(680)), (PARTS.index(TICKER), column(100), column(700))]
    share_out(ages, (column(0), column(900)), beside, column(620))
    assert lengths(ages) == {"ticker": 600, "board": 20}


def test_of_equal_overlaps_the_first_by_name_is_served_first():
    ages = Ages(PARTS, 2)
    beside = [(PARTS.index(BOARD), column(0, 0), column(50, 50)), (PARTS.index(TICKER), column(0, 0), column(50, 60))]
    share_out(ages, (column(0, 0), column(90, 90)), beside, column(70, 70))
    assert ages.ms[PARTS.index(BOARD)].tolist() == [50, 10]
    assert ages.ms[PARTS.index(TICKER)].tolist() == [20, 60]


def kept(windows):
    """Returns the lengths of PARTS in *windows*."""
    return np.array([[spent.get(part, 0) for spent in windows] for part in PARTS], float)


def blamed(spent, n, configured_ms=None, work_of=None, worked_ms=0, limit_ms=0):
    """Returns usual length and excess of parts, by name; of *work_of* its work is judged.

    There were *n* windows before, with the bound and about 100 ms of work.
    """
    before = kept([{BOUND: 3_000, NEWEST: 100 + number % 2} for number in range(n)])
    usual_ms, _ = usual_lengths(before, np.array([0]), np.array([n]))
    configured = np.array([[(configured_ms or {}).get(part.name, 0.0)] for part in PARTS])
    excess_ms = compared_lengths(
        kept([spent]),
        usual_ms,
        configured,
        is_work=np.array([[part.name == work_of] for part in PARTS]),
        worked_ms=column(worked_ms),
        limit_ms=limit_ms,
    ).excess_ms
    at = {part.name: PARTS.index(part) for part in spent}
    usual = {name: None if np.isnan(usual_ms[place, 0]) else usual_ms[place, 0] for name, place in at.items()}
    return {name: (usual[name], excess_ms[place, 0]) for name, place in at.items()}


def test_what_grew_beyond_the_usual_is_to_blame():
    found = blamed({BOUND: 3_000, NEWEST: 2_600}, 20, {"bound": 3_000})
    assert found == {"newest": (100, 2_500), "bound": (3_000, 0)}


def test_without_history_the_configured_length_counts():
    found = blamed({BOUND: 3_000, NEWEST: 2_600}, 19, {"bound": 3_000})
    assert found == {"newest": (None, 2_600), "bound": (None, 0)}


def test_work_is_compared_with_its_limit_without_the_time_of_earlier_batches():
    # Of its part of 701 ms it worked 421 ms on the window, and 280 ms on the batch before.
    found = blamed({BOUND: 3_000, NEWEST: 701}, 20, work_of="newest", worked_ms=421, limit_ms=300)
    assert found == {"newest": (100, 121), "bound": (3_000, 0)}
    # Within its limit it is not blamed, even where it usually takes less.
    assert blamed({NEWEST: 701}, 20, work_of="newest", worked_ms=299, limit_ms=300) == {"newest": (100, 0)}


def test_usual_lengths_are_medians_of_the_windows_kept():
    parts, draw = [BOUND, NEWEST, BOARD], Random(5)
    windows = []
    for _ in range(300):
        windows.append({part: draw.choice([-40, 0, 0, 7, draw.randint(1, 90)]) for part in draw.sample(parts, 2)})
    # A history that grows, keeps its length, loses more than it gets, and stands still.
    last = np.array([*range(150), *[150] * 5, *range(150, 301)])
    first = np.maximum.accumulate(
        np.maximum(last - np.array([60] * 200 + [draw.choice((60, 25, 18)) for _ in range(106)]), 0)
    )
    usual_ms, usual_share = usual_lengths(kept(windows), first, last)
    for number, (begin, end) in enumerate(zip(first, last, strict=True)):
        of_window = windows[begin:end]
        aged = [each for each in of_window if sum(each.values()) > 0]
        for part in parts:
            found = [of[PARTS.index(part), number] for of in (usual_ms, usual_share)]
            is_known = len(of_window) >= 20
            shares = [each.get(part, 0) / sum(each.values()) for each in aged]
            assert np.array_equal(
                found,
                column(
                    median_low(each.get(part, 0) for each in of_window) if is_known else None,
                    median_low(shares) if is_known and shares else None,
                ),
                equal_nan=True,
            )
