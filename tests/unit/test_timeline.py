"""The timeline of a driver has no gap, and each segment is told once by an entry, and by heartbeats until then."""

from __future__ import annotations

from tidemark.semantics.segments import NEXT, Segment, SegmentOwner
from tidemark.stream.journal.timeline import Timeline

BROKER, ENGINE, OPERATOR, SLOTS, SPARK, TARGET, TRIGGER = (
    SegmentOwner.BROKER,
    SegmentOwner.ENGINE,
    SegmentOwner.OPERATOR,
    SegmentOwner.SLOTS,
    SegmentOwner.SPARK,
    SegmentOwner.TARGET,
    SegmentOwner.TRIGGER,
)


class Clock:
    """A boot clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


def lived(*pieces: tuple[SegmentOwner, str, int]) -> tuple[Timeline, Clock]:
    """Returns a timeline on which each owner has worked until an instant; the engine runs after the last one."""
    timeline = Timeline(clock := Clock())
    for owner, detail, until_ms in pieces:
        timeline.begin(owner, detail)
        clock.now_ms = until_ms
    timeline.begin(ENGINE)
    return timeline, clock


def test_segments_follow_each_other_without_a_gap() -> None:
    timeline, clock = lived((OPERATOR, "a", 100), (OPERATOR, "b", 100), (TARGET, "t", 130))
    timeline.work_on(7)
    clock.now_ms = 150
    # What took no time is no segment.
    assert timeline.since_entry() == (
        Segment("operator", "a", 7, 0, 100), Segment("target", "t", 7, 100, 130), Segment("engine", "", 7, 130, 150),
    )  # fmt: skip


def test_a_part_of_the_running_segment_may_be_booked_for_another_owner() -> None:
    timeline, clock = lived((TARGET, "t", 10))
    timeline.begin(BROKER, "orders")
    clock.now_ms = 60
    timeline.book(SLOTS, "shop/other", until_ms=40)
    timeline.book(SLOTS, "none", until_ms=30)  # before it: no time is left for it
    timeline.begin(ENGINE)
    assert timeline.since_entry()[1:] == (
        Segment("slots", "shop/other", NEXT, 10, 40), Segment("broker", "orders", NEXT, 40, 60),
    )  # fmt: skip


def test_an_instant_that_is_told_later_than_it_was_overlaps_nothing() -> None:
    timeline, clock = lived((TARGET, "t", 100))
    clock.now_ms = 200
    timeline.begin(SPARK, "planning", at_ms=90)
    timeline.begin(ENGINE, at_ms=150)
    assert timeline.since_entry() == (
        Segment("target", "t", NEXT, 0, 100), Segment("spark", "planning", NEXT, 100, 150),
        Segment("engine", "", NEXT, 150, 200),
    )  # fmt: skip


def test_waits_belong_to_the_batch_after_them() -> None:
    timeline, clock = lived()
    timeline.work_on(3)
    clock.now_ms = 10
    timeline.begin(TRIGGER, batch_id=NEXT)
    clock.now_ms = 50
    timeline.begin(SPARK, "commit")
    clock.now_ms = 60
    timeline.begin(BROKER, "orders", batch_id=NEXT)
    clock.now_ms = 70
    timeline.work_on(4)
    assert [(each.owner, each.batch_id) for each in timeline.since_entry()] == [
        ("engine", 3), ("trigger", 4), ("spark", 3), ("broker", 4),
    ]  # fmt: skip


def test_heartbeats_have_what_no_row_of_a_batch_has() -> None:
    timeline, clock = lived((OPERATOR, "a", 100))
    clock.now_ms = 130
    entry = timeline.since_entry()
    clock.now_ms = 140
    running = Segment("engine", "", NEXT, 130, 140)
    # The entry may not have been written, and then its batch is carried out, which may take long.
    assert timeline.open() == (*entry, running)
    timeline.recorded(entry)
    assert timeline.open() == (*entry, running)
    # The next entry has the row of the batch before.
    timeline.recorded(timeline.since_entry())
    clock.now_ms = 150
    assert timeline.open() == (running, running._replace(began_ms=140, ended_ms=150))
    assert Timeline(clock).open() == ()


def test_a_night_without_news_is_one_segment() -> None:
    timeline, clock = lived()
    for _ in range(600):
        timeline.begin(TRIGGER, batch_id=NEXT)
        clock.now_ms += 60_000
        timeline.begin(SPARK, "planning", batch_id=NEXT)
        clock.now_ms += 90
        timeline.begin(ENGINE, batch_id=NEXT)
        clock.now_ms += 9
        timeline.changed_nothing()
    timeline.begin(TRIGGER, batch_id=NEXT)
    timeline.changed_nothing()
    assert timeline.open()[:-1] == (Segment("trigger", "", NEXT, 0, 600 * 60_099),)


def test_what_follows_a_batch_without_news_belongs_to_the_next() -> None:
    timeline, clock = lived()
    timeline.work_on(3)
    timeline.begin(ENGINE)
    clock.now_ms += 300
    timeline.begin(SPARK, "commit")
    timeline.changed_nothing()
    clock.now_ms += 300
    timeline.begin(ENGINE)
    clock.now_ms += 300
    timeline.work_on(4)
    assert {segment.batch_id for segment in timeline.open()} == {4}


def test_a_batch_without_news_takes_nothing_from_the_batch_before_it() -> None:
    """Batch 3 writes after its entry; then batch 4 changes nothing, and the stream waits."""
    timeline, clock = lived()
    timeline.work_on(3)
    timeline.begin(TARGET, "board")
    clock.now_ms = 300
    timeline.begin(TRIGGER, batch_id=NEXT)
    clock.now_ms = 60_300
    timeline.begin(BROKER, "orders", batch_id=NEXT)
    timeline.work_on(4)
    clock.now_ms = 60_390
    timeline.begin(TRIGGER, batch_id=NEXT)
    timeline.changed_nothing()
    clock.now_ms = 70_000
    assert timeline.open() == (
        Segment("target", "board", 3, 0, 300), Segment("trigger", "", NEXT, 300, 60_390),
        Segment("trigger", "", NEXT, 60_390, 70_000),
    )  # fmt: skip


def test_a_batch_without_news_that_hung_is_told() -> None:
    timeline, clock = lived((TRIGGER, "", 60_000), (BROKER, "orders", 72_000))
    clock.now_ms = 72_100
    timeline.begin(TRIGGER, batch_id=NEXT)
    timeline.changed_nothing()
    clock.now_ms = 90_000
    timeline.begin(ENGINE)
    timeline.changed_nothing()
    assert [each[0] for each in timeline.open()] == ["trigger", "broker", "trigger", "engine"]
