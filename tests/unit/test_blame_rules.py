"""Culprit parts of a window's age, with lengths worked out by hand."""

from random import Random
from statistics import median

from tidemark.semantics.blame import AgeCause, AgePart, ClosingBatches, KeptWindows, before_source, excesses, share_out

SOURCE, NEWEST, BOARD = AgePart("events", "source"), AgePart("newest", "table"), AgePart("board", "sink")


def age(finished_ms, *, ready_ms, queued_ms=0, **closing):
    """Returns, by name, parts of a window that ended at 10 s.

    The bound is 3 s, the trigger 1 s.
    """
    closing = ClosingBatches(began_ms=closing.pop("began_ms", finished_ms - 100), **closing)
    found = before_source(
        10_000, finished_ms, bound_ms=3_000, ready_ms=ready_ms, closing=closing, trigger_ms=1_000,
        queued_ms=queued_ms, source=SOURCE, busy=NEWEST,
    )  # fmt: skip
    assert sum(found.values()) == finished_ms - 10_000
    return {part.name: ms for part, ms in found.items() if ms}


def test_a_silent_partition_is_apart_from_the_bound():
    found = age(84_600, ready_ms=83_800, before_began_ms=83_500, before_ended_ms=83_700)
    assert found == {"bound": 3_000, "blocking_partition": 70_800, "trigger": 700, "events": 100}


def test_a_record_that_was_written_late_is_its_producers():
    found = age(25_000, ready_ms=13_000, before_began_ms=23_900, before_ended_ms=24_000)
    assert found == {"bound": 3_000, "late_producer": 10_900, "newest": 100, "trigger": 900, "events": 100}


def test_unread_records_are_a_backlog():
    found = age(25_000, ready_ms=13_000, before_began_ms=22_000, before_ended_ms=24_500, is_unread=True)
    assert found == {"bound": 3_000, "backlog": 11_500, "trigger": 400, "events": 100}


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
    ticker = AgePart("ticker", "table")
    assert share_out((0, 900), {ticker: (100, 700), BOARD: (650, 680)}, 620) == {
        ticker: 600, BOARD: 20, AgePart.of(AgeCause.QUEUED): 0,
    }  # fmt: skip


def kept(n):
    return KeptWindows({AgePart.of(AgeCause.BOUND): 3_000, NEWEST: 100 + number % 2} for number in range(n))


def test_what_grew_beyond_the_usual_is_to_blame():
    found = excesses({AgePart.of(AgeCause.BOUND): 3_000, NEWEST: 2_600}, kept(20), {"bound": 3_000})
    assert [(each.part.name, each.usual_ms, each.excess_ms) for each in found] == [
        ("newest", 100.5, 2_499.5), ("bound", 3_000, 0),
    ]  # fmt: skip


def test_without_history_the_configured_length_counts():
    found = excesses({AgePart.of(AgeCause.BOUND): 3_000, NEWEST: 2_600}, kept(19), {"bound": 3_000})
    assert [(each.part.name, each.usual_ms, each.excess_ms) for each in found] == [
        ("newest", None, 2_600), ("bound", None, 0),
    ]  # fmt: skip


def test_only_candidates_are_blamed_and_only_beyond_a_promise():
    found = excesses({NEWEST: 900, BOARD: 500}, KeptWindows(), {}, only={"board"}, promised_ms=300)
    assert [(each.part.name, each.excess_ms) for each in found] == [("board", 200), ("newest", 0)]


def test_usual_lengths_are_medians_over_the_windows_that_are_kept():
    parts, draw, kept, windows = [AgePart.of(AgeCause.BOUND), NEWEST, BOARD], Random(5), KeptWindows(), []
    for number in range(300):
        spent = {part: draw.choice([-40, 0, 0, 7, draw.randint(1, 90)]) for part in draw.sample(parts, 2)}
        windows.append(spent)
        kept.add(spent)
        if number % 3 == 2:
            windows.pop(0)
            kept.forget_oldest()
        aged = [each for each in windows if sum(each.values()) > 0]
        for part in parts:
            is_known = len(windows) >= 20
            assert kept.usual_ms(part) == (median(each.get(part, 0) for each in windows) if is_known else None)
            shares = [each.get(part, 0) / sum(each.values()) for each in aged]
            assert kept.usual_share(part) == (median(shares) if is_known and shares else None)
