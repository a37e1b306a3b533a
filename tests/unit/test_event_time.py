"""How a batch moves record time."""

from __future__ import annotations

from dataclasses import replace

from tidemark.semantics.event_time import PartitionReading, advance, follow, watermark_over_inputs
from tidemark.semantics.idleness import Activity
from tidemark.semantics.progress import InputProgress, PartitionProgress

NOW = 1_000_000


def read(until: int, newest: int | None = None, *, since: int = 0) -> PartitionReading:
    return PartitionReading(from_offset=since, until_offset=until, max_timestamp_ms=newest)


def silent(at: int, *, latest: int) -> PartitionReading:
    return PartitionReading(from_offset=at, until_offset=at, latest_offset=latest)


def after(was: InputProgress, seen: dict[int, PartitionReading], now_ms: int = NOW) -> InputProgress:
    return advance(was, seen, bound_ms=10, idle_after_ms=5_000, now_ms=now_ms)


def test_the_slowest_partition_holds_the_source_back():
    one = after(InputProgress(), {0: read(3, 200), 1: read(5, 900)})
    assert (one.watermark_ms, one.held_by) == (189, "0")


def test_a_partition_without_records_holds_back_until_it_is_idle():
    one = after(InputProgress(), {0: read(3, 200), 1: silent(0, latest=0)})
    assert (one.watermark_ms, one.held_by) == (None, "1")
    two = after(one, {0: read(4, 300, since=3), 1: silent(0, latest=0)}, NOW + 5_000)
    assert two.watermark_ms is None  # exactly 5 s of silence is not more than 5 s
    three = after(two, {0: read(5, 400, since=4), 1: silent(0, latest=0)}, NOW + 5_001)
    assert three.partitions[1].activity is Activity.IDLE
    assert (three.watermark_ms, three.held_by) == (389, "0")


def test_a_silent_partition_with_unread_records_holds_back():
    one = after(InputProgress(), {0: read(3, 200), 1: read(1, 50)})
    two = after(one, {0: read(9, 800, since=3), 1: silent(1, latest=7)}, NOW + 60_000)
    assert two.partitions[1].activity is Activity.BACKLOGGED
    assert (two.watermark_ms, two.held_by) == (39, "1")


def test_a_silent_partition_with_an_open_transaction_holds_back_until_it_ends():
    one = after(InputProgress(), {0: read(3, 200), 1: read(1, 50)})
    waits = replace(silent(1, latest=1), has_open_transaction=True)
    two = after(one, {0: read(9, 800, since=3), 1: waits}, NOW + 60_000)
    assert two.partitions[1].activity is Activity.BACKLOGGED
    assert (two.watermark_ms, two.held_by) == (39, "1")
    ended = after(two, {0: read(10, 900, since=9), 1: silent(1, latest=1)}, NOW + 60_001)
    assert (ended.partitions[1].activity, ended.watermark_ms) == (Activity.IDLE, 889)


def test_when_all_partitions_are_idle_the_furthest_counts():
    one = after(InputProgress(), {0: read(3, 200), 1: read(1, 50)})
    two = after(one, {0: silent(3, latest=3), 1: silent(1, latest=1)}, NOW + 5_001)
    assert (two.watermark_ms, two.idle) == (189, True)


def test_records_that_wake_a_partition_keep_the_watermark():
    one = after(InputProgress(), {0: read(3, 200), 1: read(1, 50)})
    two = after(one, {0: silent(3, latest=3), 1: silent(1, latest=1)}, NOW + 5_001)
    three = after(two, {0: silent(3, latest=3), 1: read(2, 60, since=1)}, NOW + 5_002)
    assert (three.watermark_ms, three.idle, three.held_by) == (189, False, "1")


def test_bad_records_keep_a_partition_awake_and_move_no_time():
    one = after(InputProgress(), {0: read(3, 200)})
    two = after(one, {0: read(4, None, since=3)}, NOW + 60_000)
    assert two.partitions[0].activity is Activity.ACTIVE
    assert two.watermark_ms == 189


def test_behind_a_hop_the_upstreams_watermark_counts():
    one = follow(InputProgress(), read(4, 900), watermark_ms=500, idle=False, idle_watermark_ms=40, now_ms=NOW)
    assert (one.watermark_ms, one.partitions[0].max_timestamp_ms) == (500, 900)
    two = follow(one, read(5, 700, since=4), watermark_ms=None, now_ms=NOW + 1)
    assert (two.watermark_ms, two.partitions[0].max_timestamp_ms) == (500, 900)
    three = follow(two, read(6, 700, since=5), watermark_ms=600, idle=False, now_ms=NOW + 2)
    assert [each.idle_watermark_ms for each in (one, two, three)] == [40, 40, None], "as the newest mark says"


def test_a_sub_topology_waits_for_its_slowest_input():
    inputs = {"fast": InputProgress(watermark_ms=900), "slow": InputProgress(watermark_ms=100)}
    assert watermark_over_inputs(inputs, previous_ms=None).watermark_ms == 100
    assert watermark_over_inputs(inputs, previous_ms=None).held_by == "slow"


def test_while_all_are_idle_time_advances_at_doubled_silence():
    def quiet(was: InputProgress, after_ms: int) -> InputProgress:
        seen = {0: silent(3, latest=3), 1: silent(1, latest=1)}
        return advance(was, seen, bound_ms=10, idle_after_ms=5_000, now_ms=NOW + after_ms, idle_advances=True)

    now = after(InputProgress(), {0: read(3, 200), 1: read(1, 50)})
    reached = []
    for silence_ms in (5_000, 5_001, 9_999, 10_000, 19_999, 20_000, 45_000):
        now = quiet(now, silence_ms)
        reached.append(now.watermark_ms)
    assert reached == [39, 5_189, 5_189, 10_189, 10_189, 20_189, 40_189]


def test_an_unread_partition_keeps_time_from_advancing():
    one = after(InputProgress(), {0: read(3, 200), 1: read(1, 50)})
    seen = {0: silent(3, latest=3), 1: silent(1, latest=2)}
    two = advance(one, seen, bound_ms=10, idle_after_ms=5_000, now_ms=NOW + 60_000, idle_advances=True)
    assert (two.watermark_ms, two.held_by) == (39, "1")


def test_of_many_plans_that_left_records_behind_the_oldest_and_the_newest_are_known() -> None:
    progress = PartitionProgress()
    for batch_id in range(65):
        progress = progress.leaves(10 + batch_id, batch_id)
    # Every other one is forgotten, and its records count as left behind by the next.
    assert [plan.batch_id for plan in progress.left_behind] == list(range(0, 65, 2))
