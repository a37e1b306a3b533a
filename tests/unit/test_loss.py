"""Lost unread records stop a stream; missing records do not."""

from __future__ import annotations

import polars as pl
import pytest

from tidemark.kernels.records.loss import lost, with_gaps
from tidemark.model.kinds.source import Source
from tidemark.semantics.progress import InputProgress, PartitionProgress
from tidemark.stream.journal.batch import MicroBatch
from tidemark.stream.kafka.broker import TopicState
from tidemark.stream.read.data_loss import CheckedRows, DataLost, LossCheck, Offsets

EVENTS = Source(name="events", topic="topic", fields={"id": "string"}, timestamp_range_ms=(0, 1), bound_ms=0)


def rows(*offsets: int, partition: int = 0) -> pl.DataFrame:
    return pl.DataFrame(
        {"partition": [partition] * len(offsets), "offset": offsets}, schema={"partition": pl.Int32, "offset": pl.Int64}
    )


def check(
    read: pl.DataFrame,
    offsets: tuple[int, int],
    *,
    accepted: dict[tuple[str, int, int], int] | None = None,
    end: int | None = None,
    reread: list[Offsets] | None = None,
):
    """Checks a batch of partition 0 that was read to offset 10.

    The broker has *offsets*, Spark planned until *end*.
    """

    def again(_: Source, unread: Offsets) -> pl.DataFrame:
        if reread is not None:
            reread.append(unread)
        return rows(*range(*unread[0]))

    ends = {} if end is None else {"topic": {0: end}}
    batch = MicroBatch(batch_id=1, epoch=1, decided_at_ms=0, started_at_ms=0, read_at_ms=0, ends=ends)
    intact = LossCheck("t s", lambda: accepted or {}, again)
    return intact.check(EVENTS, read, {0: 10}, {0: offsets}, batch)


def test_partitions_that_do_not_go_on_where_they_were_have_gaps():
    both = pl.concat([rows(10, 11, 13), rows(5, 6, partition=1), rows(7, partition=2)])
    assert with_gaps(both, {0: 10, 1: 5, 2: 6}) == [0, 2]
    assert with_gaps(rows(7), {}) == []


@pytest.mark.parametrize(
    ("offsets", "earliest", "expected"),
    [
        ((15, 16), 15, (10, 15)),  # the beginning is gone
        ((10, 11, 15), 15, (12, 15)),  # gone while it was being read
        ((), 12, (10, 12)),
        ((10, 11, 15), 10, None),  # a compacted topic
        ((12, 13), 0, None),
        ((10, 11, 12), 13, None),  # all was read before it was deleted
    ],
)
def test_unread_offsets_before_the_earliest_one_are_lost(offsets, earliest, expected):
    assert lost(rows(*offsets), 0, read_to=10, earliest=earliest) == expected


def test_a_loss_names_topic_partition_offsets_and_the_command():
    with pytest.raises(DataLost) as told:
        check(rows(15, 16), (15, 17))
    assert str(told.value) == (
        "topic 'topic', partition 0: offsets 10 until 15 were lost unread; records are never skipped silently: "
        "restore them, or accept the loss and continue from offset 15: "
        "tidemark accept-loss t s --source events --partition 0 --until 15 --by NAME --reason TEXT"
    )


def test_an_accepted_loss_is_passed_over_and_a_further_one_not():
    accepted = {("events", 0, 10): 15}
    checked = check(rows(15, 16), (15, 17), accepted=accepted)
    assert (checked.read_to, checked.losses) == ({0: 15}, {0: (10, 15)})
    with pytest.raises(DataLost, match="offsets 10 until 16 were lost"):
        check(rows(16), (16, 17), accepted=accepted)


def test_a_recreated_topic_is_read_from_the_accepted_offset():
    with pytest.raises(DataLost, match=r"truncated: it ends at offset 3, but 10 was the next to read.* --until 0 "):
        check(rows(), (0, 5), end=3)
    reread: list[Offsets] = []
    checked = check(rows(), (0, 5), end=3, accepted={("events", 0, 10): 1}, reread=reread)
    assert reread == [{0: (1, 3)}]
    assert (checked.rows["offset"].to_list(), checked.read_to, checked.losses) == ([1, 2], {0: 1}, {0: (10, 1)})


def read_anew(
    offsets: Offsets,
    *,
    end: int,
    accepted: dict[tuple[str, int, int | str], int] | None = None,
    topic: TopicState | None = None,
) -> tuple[CheckedRows, list[Offsets]]:
    """Reads a batch until *end* of a recreated topic.

    Partitions 0 and 1 of the topic `old` were read until offset 10. The topic `new` has *offsets*.
    """
    reread: list[Offsets] = []

    def again(_: Source, unread: Offsets) -> pl.DataFrame:
        reread.append(unread)
        return pl.concat([rows(*range(*places), partition=number) for number, places in unread.items()])

    was = InputProgress(partitions={number: PartitionProgress(until_offset=10, topic_id="old") for number in (0, 1)})
    batch = MicroBatch(
        batch_id=1, epoch=1, decided_at_ms=0, started_at_ms=0, read_at_ms=0, ends={"topic": dict.fromkeys(offsets, end)}
    )
    intact = LossCheck("t s", lambda: accepted or {}, again)
    read = pl.concat([rows(*range(10, end), partition=number) for number in offsets])
    return intact.read_anew(EVENTS, read, was, topic or TopicState("new", 2), offsets, batch), reread


def test_a_topic_recreated_beyond_the_position_is_refused():
    with pytest.raises(DataLost) as told:
        read_anew({0: (0, 12), 1: (0, 13)}, end=12)
    assert str(told.value) == (
        "topic 'topic' was recreated: its id was old and is new; partition 0 was read until offset 10, partition 1 was "
        "read until offset 10 of the earlier topic; the new one has offsets 0 until 12, 0 until 13; records are never "
        "skipped silently: restore the earlier topic, or accept the loss of its unread records and read the new one "
        "from its beginning: tidemark accept-loss t s --source events --topic-id new --until 0 --by NAME --reason TEXT"
    )


def test_partitions_with_other_beginnings_get_a_command_each():
    with pytest.raises(DataLost, match=r"--partition 0 --until 0 --by .*; tidemark .* --partition 1 --until 3 --by"):
        read_anew({0: (0, 12), 1: (3, 13)}, end=12)


def test_an_accepted_new_topic_is_read_from_its_beginning():
    accepted = {("events", 0, "new"): 0, ("events", 1, "new"): 11}
    checked, reread = read_anew({0: (0, 12), 1: (0, 13)}, end=12, accepted=accepted)
    assert reread == [{0: (0, 12), 1: (11, 12)}]
    assert checked.rows.rows() == [*((0, offset) for offset in range(12)), (1, 11)]
    assert (checked.read_to, checked.losses) == ({0: 0, 1: 11}, {0: (10, 0), 1: (10, 11)})


def test_a_loss_accepted_for_one_topic_is_not_one_of_the_next():
    with pytest.raises(DataLost, match="its id was old and is newer"):
        read_anew({0: (0, 12)}, end=12, accepted={("events", 0, "new"): 0}, topic=TopicState("newer", 1))


def test_the_unread_beginning_of_a_new_topic_is_no_accepted_loss():
    with pytest.raises(DataLost, match="--until 2 "):
        read_anew({0: (2, 12)}, end=12, accepted={("events", 0, "new"): 0})


def test_a_batch_planned_by_the_earlier_topic_reads_nothing():
    checked, reread = read_anew({0: (0, 12)}, end=14, accepted={("events", 0, "new"): 0})
    assert (checked.rows.height, reread) == (0, [])
    assert (checked.read_to, checked.losses, checked.topic_ids) == ({0: 14}, {0: (10, 14)}, {0: "old"})


def test_a_topic_with_the_same_or_no_id_is_not_recreated():
    for topic in (TopicState("old", 2), TopicState(None, 2)):
        checked, reread = read_anew({0: (0, 12), 1: (0, 12)}, end=12, topic=topic)
        assert (checked.rows["offset"].to_list(), reread) == ([10, 11, 10, 11], [])
        assert (checked.read_to, checked.losses) == ({0: 10, 1: 10}, {})


def test_silence_up_to_the_planned_end_is_no_loss():
    # The end of a transaction has an offset and no record.
    assert check(rows(), (0, 11), end=11).losses == {}


def test_a_loss_before_the_read_rows_is_found_despite_later_loss():
    assert lost(rows(*range(15, 21)), 0, read_to=10, earliest=18) == (10, 15)
    assert lost(rows(*range(15, 21)), 0, read_to=10, earliest=10) is None, "a gap is no loss"
