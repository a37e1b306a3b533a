from __future__ import annotations

from random import Random

from tidemark.semantics.catching_up import READS, BatchRead, CatchingUp, catching_up

FIRST, SECOND = ("events", 0), ("events", 1)


def read(at_s: float, *parts: tuple[int, int], took_s: float = 0.0) -> BatchRead:
    """A batch of *at_s*; *parts* are its until and latest offsets."""
    places = (FIRST, SECOND)[: len(parts)]
    return BatchRead(
        asked_at_ms=round(at_s * 1_000),
        finished_at_ms=round((at_s + took_s) * 1_000),
        until=dict(zip(places, (until for until, _ in parts), strict=True)),
        latest=dict(zip(places, (latest for _, latest in parts), strict=True)),
    )


def test_a_stream_at_the_end_of_its_topics_is_not_behind() -> None:
    assert catching_up([read(0, (10, 90)), read(1, (100, 100))]) == CatchingUp(records_behind=0)


def test_records_that_came_since_the_plan_are_not_a_backlog() -> None:
    # Each batch reads all that had come when the batch before it ended, and more has come meanwhile.
    assert catching_up([read(0, (10, 30)), read(1, (30, 90))]) == CatchingUp(records_behind=60)


def test_rates_of_one_batch_are_unknown() -> None:
    assert catching_up([read(0, (10, 90), (0, 20))]) == CatchingUp(records_behind=100)


def test_records_that_came_during_the_batch_are_behind() -> None:
    # 10 a second come in, and 60 a second are read; each batch takes 1 s. After the last batch 1,000 − 120 = 880 wait,
    # and 10 that came while it ran: 890 / (60 − 10) = 17.8 s later.
    state = catching_up([read(0, (0, 980), took_s=1), read(1, (60, 990), took_s=1), read(2, (120, 1_000), took_s=1)])
    assert state == CatchingUp(records_behind=890, arrival_per_s=10, working_per_s=60, eta_at_ms=20_800)


def test_a_stream_that_falls_behind_has_no_end() -> None:
    state = catching_up([read(0, (0, 100)), read(1, (50, 150))])
    assert state == CatchingUp(records_behind=100, arrival_per_s=50, working_per_s=50, eta_at_ms=None)


def test_an_end_that_no_calendar_has_is_unknown() -> None:
    # 10,000 records in 1,000.001 s came in, and as many were read in 1,000 s: a surplus of 1e-8 a ms for 10 million.
    first, last = (0, 10_000_000), (10_000, 10_010_000)
    until, latest = {FIRST: first[0]}, {FIRST: first[1]}
    reads = [
        BatchRead(asked_at_ms=0, finished_at_ms=1, until=until, latest=latest),
        BatchRead(asked_at_ms=1_000_001, finished_at_ms=1_000_001, until={FIRST: last[0]}, latest={FIRST: last[1]}),
    ]
    state = catching_up(reads)
    assert (state.records_behind, state.eta_at_ms) == (10_000_000, None)


def test_rates_leave_out_partitions_without_earlier_reads() -> None:
    # The second partition is new: its 40 records wait, and say nothing about rates.
    state = catching_up([read(0, (0, 100)), read(1, (50, 110), (0, 40))])
    assert state == CatchingUp(records_behind=100, arrival_per_s=10, working_per_s=50, eta_at_ms=3_500)


def test_a_clock_that_was_set_back_gives_no_rate() -> None:
    assert catching_up([read(5, (0, 100)), read(1, (50, 110))]) == CatchingUp(records_behind=60)


def half_time_error(seed: int) -> float:
    """Returns the error of the estimate at half time, a share.

    A restart with 10,000 to 500,000 records behind is played as a queue: 12 to 40 batches of a limited size, read at a
    speed that varies by a fifth from batch to batch, while records keep coming. The estimate is that of the batch which
    ended nearest to half of the time until the queue is empty.
    """
    random = Random(seed)
    behind, speed = random.randint(10_000, 500_000), random.uniform(2_000, 50_000)
    arrival, limit = speed * random.uniform(0, 0.6), behind // random.randint(12, 40)
    now_s, until, latest, reads = 0.0, 0, behind, []
    while until < latest:
        latest = behind + int(arrival * now_s)
        n = min(limit, latest - until)
        until += n
        took_s = n / (speed * random.uniform(0.8, 1.2))
        reads.append(read(now_s, (until, latest), took_s=took_s))
        now_s += took_s
    # Named within two batches.
    assert catching_up(reads[:2]).eta_at_ms is not None
    distance = {abs(each.finished_at_ms - now_s * 500): number for number, each in enumerate(reads)}
    nearest = distance[min(distance)]
    eta_at_ms = catching_up(reads[max(0, nearest + 1 - READS) : nearest + 1]).eta_at_ms
    assert eta_at_ms is not None
    return abs(eta_at_ms - now_s * 1_000) / (now_s * 1_000 - reads[nearest].finished_at_ms)


def test_estimates_at_half_time_are_within_a_fifth() -> None:
    errors = [half_time_error(seed) for seed in range(20)]
    assert sum(error <= 0.2 for error in errors) >= 18, errors
