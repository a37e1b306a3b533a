"""Into which parts a planned batch is cut."""

from __future__ import annotations

import tomllib

from support.topologies import sink, source, topology_of
from tidemark.model.kinds.source import Source
from tidemark.model.topology import parse
from tidemark.semantics.progress import InputProgress, PartitionProgress, StreamProgress
from tidemark.stream.read.parts import BatchPart, SkippedRecord, first_read, parts

TOML = topology_of(
    {"name": "cut"},
    events=source(fields="id string, at bigint", timestamp="at", max_records=10, max_ahead=None),
    kept=sink("events", table="kept"),
)
(SUB,) = parse(tomllib.loads(TOML), file="cut.toml").sub_topologies


def earliest(_: Source, partitions: list[int]) -> dict[int, int]:
    return dict.fromkeys(partitions, 100)


def read_to(**offsets: int) -> StreamProgress:
    partitions = {int(name[1:]): PartitionProgress(until_offset=offset) for name, offset in offsets.items()}
    return StreamProgress(batch_id=3, inputs={"events": InputProgress(partitions=partitions)})


def cut(was: StreamProgress, *, is_begun: bool = False, **ends: int) -> list[BatchPart]:
    return parts(SUB, {"events": {int(name[1:]): end for name, end in ends.items()}}, was, earliest, is_begun=is_begun)


def test_sparks_rounding_up_per_partition_is_not_too_large() -> None:
    found = cut(read_to(p0=5, p1=0), p0=10, p1=7)
    assert found == [BatchPart({"events": {0: (5, 10), 1: (0, 7)}}, is_first=True, is_last=True)]


def test_a_part_has_its_share_of_every_partition() -> None:
    found = cut(read_to(p0=5, p1=0, p2=9), p0=26, p1=3, p2=9)  # 24 records: three parts
    assert found == [
        BatchPart({"events": {0: (5, 12), 1: (0, 1), 2: (9, 9)}}, is_first=True, is_last=False),
        BatchPart({"events": {0: (12, 19), 1: (1, 2), 2: (9, 9)}}, is_first=False, is_last=False),
        BatchPart({"events": {0: (19, 26), 1: (2, 3), 2: (9, 9)}}, is_first=False, is_last=True),
    ]


def test_the_rest_of_a_begun_batch_is_cut_anew_and_never_first() -> None:
    found = cut(read_to(p0=12, p1=1), p0=26, p1=3, is_begun=True)  # 16 records
    assert found == [
        BatchPart({"events": {0: (12, 19), 1: (1, 2)}}, is_first=False, is_last=False),
        BatchPart({"events": {0: (19, 26), 1: (2, 3)}}, is_first=False, is_last=True),
    ]
    assert cut(read_to(p0=26, p1=3), p0=26, p1=3, is_begun=True) == []


def test_an_unread_partition_begins_with_the_topics_first_record() -> None:
    assert cut(read_to(p0=5), p0=5, p1=111)[0].ranges == {"events": {0: (5, 5), 1: (100, 111)}}
    assert [part.ranges["events"][1] for part in cut(read_to(p0=5), p0=5, p1=112)] == [(100, 112)]
    assert [part.ranges["events"][1] for part in cut(read_to(p0=5), p0=5, p1=113)] == [(100, 106), (106, 113)]


def test_a_record_that_is_passed_over_begins_a_part() -> None:
    record = SkippedRecord("kills_drivers")
    places = {"events": dict.fromkeys([(0, 9), (1, 2), (0, 4), (0, 19)], record)}
    ends = {"events": {0: 19, 1: 4}}
    found = parts(SUB, ends, read_to(p0=5, p1=2), earliest, is_begun=False, passed_over=places)
    assert [(part.ranges["events"], part.passed_over) for part in found] == [
        ({0: (5, 9), 1: (2, 4)}, {"events": {1: record}}),
        ({0: (9, 19), 1: (4, 4)}, {"events": {0: record}}),
    ]
    assert {(part.one_by_one, part.is_whole) for part in found} == {(True, False)}


def test_a_driver_fails_before_the_next_record_that_is_passed_over() -> None:
    unread, record = {"events": {0: (5, 19), 1: (2, 4), 2: (7, 8)}}, SkippedRecord("kills_drivers")
    places = {"events": dict.fromkeys([(0, 9), (1, 2), (2, 7)], record)}
    assert first_read(unread, {}) == unread
    assert first_read(unread, places) == {"events": {0: (5, 9), 1: (3, 4)}}


def test_a_batch_read_record_by_record_differs_from_sparks_read() -> None:
    (part,) = parts(SUB, {"events": {0: 6}}, read_to(p0=5), earliest, is_begun=False, passed_over={})
    assert (part.one_by_one, part.is_whole, part.passed_over) == (True, False, {})


def test_a_topic_that_was_made_anew_is_read_whole() -> None:
    assert len(cut(read_to(p0=50, p1=0), p0=3, p1=99)) == 1
