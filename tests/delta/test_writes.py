"""A batch is a list of writes, each with the operators whose results it shows."""

from __future__ import annotations

from pathlib import Path

from support.play import Play, ms
from support.topologies import aggregate, repartition, sink, source, table, topology_of
from tidemark.stream.journal.entries import Journal
from tidemark.stream.write.open_windows import OpenWindows
from tidemark.stream.write.writes import BatchWrites, SendMark, SendRecords

SUB = "events"
TOPOLOGY = topology_of(
    events=source(idle_after="30 s"),
    newest=table(columns=["v"]),
    seen=sink("events", table="seen"),
    by_v=repartition("newest", id=["id"], key=["v"], columns=["id", "v"]),
    board=sink("newest", table="board", mode="current", key=["id"]),
    out=sink("newest", topic="out", marks=True),
    counts=aggregate("by_v", key=["v"], aggregates={"n": "count(*)"}),
    totals=table(columns=["v"]),
)


def listed(play: Play) -> list[tuple[str, str, tuple[str, ...]]]:
    """Each write of the newest batch: its kind, where it goes, and whose results it shows."""
    stream = play.stream(SUB)
    entry = Journal(stream.control / "journal", "data").newest()
    assert entry is not None
    found = []
    for write in BatchWrites(stream.sub, stream.home, "play/events", OpenWindows(stream.home)).of(entry):
        match write:
            case SendRecords():
                target = write.outgoing.sink.name
            case SendMark():
                target = write.sink.name
            case _:
                target = write.target
        found.append((type(write).__name__, target, write.shows))
    return found


def test_a_batch_writes_what_it_changes_and_each_write_shows_whose_results_it_has(tmp_path: Path) -> None:
    play = Play(TOPOLOGY, tmp_path)
    record = {"key": "a", "id": "a", "v": 1}
    play.batch([play.row("events", ms(1), **record)], at_ms=ms(1), sub=SUB)
    assert listed(play) == [
        # The table `totals` has no reader: its results are seen in `changes`. Those of `newest` are seen in sinks.
        ("AppendRows", "changes", ("totals",)),
        ("AppendAccepted", "seen", ("seen",)),
        ("AppendRows", "hop_by_v", ("by_v",)),
        ("AppendAccepted", "changes_of_board", ("board",)),
        ("SendRecords", "out", ("out",)),
        ("SendMark", "out", ()),
    ]
    # The value is repeated, so only the sink of all records has a row; it is too early for another mark. A hop tells
    # its readers the time in a row of its own.
    play.batch([play.row("events", ms(4), **record)], at_ms=ms(4), sub=SUB)
    assert listed(play) == [("AppendAccepted", "seen", ("seen",)), ("AppendRows", "hop_by_v", ("by_v",))]
    # The source is idle since it had no record for 30 s, which other readers learn from marks.
    play.batch(at_ms=ms(60), sub=SUB)
    assert listed(play) == [("CommitMark", "seen", ()), ("AppendRows", "hop_by_v", ("by_v",)), ("SendMark", "out", ())]
