"""Notes of a journal entry have one form of JSON."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from tidemark.kernels.sql.constraints import Constraint
from tidemark.semantics.event_time import PartitionReading
from tidemark.semantics.progress import InputProgress, LeftBehind, PartitionProgress, SentMark, StreamProgress
from tidemark.semantics.schema_watch import FieldSeen, SourceFields, TypeSeen
from tidemark.semantics.segments import Segment
from tidemark.stream.journal.batch import MicroBatch, QueueWait
from tidemark.stream.journal.notes import (
    DecisionNotes,
    EntryNotes,
    FactsNotes,
    JudgedNotes,
    MarkNotes,
    OperatorNotes,
    PartitionNotes,
)
from tidemark.stream.journal.state_runs import StateRun, StateRuns
from tidemark.stream.journal.streaming_windows import ClosedWindow
from tidemark.stream.journal.task_run import TaskRun

T = 1_770_033_600_000
BEFORE = {
    "batch_id": -1,
    "decided_at_ms": None,
    "inputs": {},
    "watermark_ms": None,
    "held_by": None,
    "idle": False,
    "windows": [],
    "uncounted": [],
    "records": {},
    "skipped": {},
    "skipped_lately": {},
    "marks": {},
    "resets": {},
    "stay_closed": {},
    "forgotten": {},
    "ended": {},
    "reopened": {},
    "ahead": 0,
    "complete": {},
    "fields": {},
    "reads": 0,
}
PARTITION = {
    "max_timestamp_ms": T,
    "watermark_ms": T - 1_001,
    "active_at_ms": T + 1_000,
    "until_offset": 1,
    "done_until_offset": 1,
    "activity": "active",
    "writers": {},
    "told_idle": False,
    "newest_ms": T,
    "set_back_from_ms": None,
    "topic_id": "OHJqyBA9Rk2oh5JIjSP9xw",
    "latest_offset": None,
    "left_behind": [[9, 0]],
}
PROGRESS = BEFORE | {
    "batch_id": 0,
    "decided_at_ms": T + 1_000,
    "inputs": {
        "events": {
            "partitions": {"0": PARTITION},
            "watermark_ms": T - 1_001,
            "held_by": "0",
            "idle": False,
            "places": [],
            "idle_watermark_ms": None,
            "files": {},
        }
    },
    "watermark_ms": T - 1_001,
    "held_by": "events",
    "windows": [T],
    "records": {"events": {str(T): 1}},
    "skipped": {"newest": {"0": 0, "1": 1}},
    "skipped_lately": {"newest": [[T + 1_000, 1, 1]]},
    "marks": {"out": [T + 1_000, T - 1_001, False]},
    "fields": {"events": [1, {"v": [T + 1_000, T + 1_000, 1, 0, 0, {"number": [T + 1_000, 0]}, None]}]},
}
BATCH = {
    "batch_id": 0,
    "epoch": 1,
    "decided_at_ms": T + 1_000,
    "started_at_ms": T + 1_000,
    "started_boot_ms": 8_000,
    "looked_boot_ms": 7_900,
    "excluded_boot_ms": 6_800,
    "read_at_ms": T + 1_200,
    "ends": {"events": {"0": 1}},
    "versions": {},
    "files": {},
    "is_last": True,
    "queued": {"ms": 150, "behind": ["play/up"]},
    "constraints": {"board": [{"kind": "constraint", "name": "positive", "text": "n > 0", "columns": [["n", "long"]]}]},
    "refused": {"board": ["a"]},
}
SEEN = {
    "from_offset": 0,
    "until_offset": 1,
    "max_timestamp_ms": T,
    "latest_offset": 1,
    "held_from": None,
    "lost": [3, 5],
    "told_idle": False,
    "newest_ms": T,
    "went_back": False,
    "traces": [],
    "has_open_transaction": False,
    "left_offset": 9,
}
TASK = {
    "operator": "events",
    "shard": None,
    "partition": 0,
    "host": "vm",
    "started_at_ms": T + 1_000,
    "finished_at_ms": T + 1_014,
    "records": 13,
    "hot_key": None,
    "hot_share": None,
    "skew_ms": 0,
    "skew_error_ms": 0,
}
RUNS = {"batch_id": 0, "runs": [{"name": "0-ab.run", "rows": 2}], "held": {"newest": 0}}
DECIDED = {
    "batch": BATCH,
    "progress": PROGRESS,
    "was": BEFORE,
    "marks": {"out": {"watermark_ms": T - 1_001, "idle": False}},
    "closed": [{"start_ms": T - 5_000, "records": {"events": 2}}, {"start_ms": T - 10_000, "records": None}],
    "sources": [{"source": "events", "partition": 0, "seen": SEEN}],
    "operators": {
        "events": {
            "started_at_ms": T + 1_000,
            "finished_at_ms": T + 1_100,
            "queued_ms": 0,
            "counts": {"records_in": 1, "passed": 1},
        }
    },
    "dropped": {"ended": 3},
    "states": [RUNS, {"batch_id": -1, "runs": [], "held": {}}],
    "tasks": [TASK],
    "segments": [["trigger", "", 0, 6_900, 7_880], ["operator", "events", 0, 7_880, 8_100]],
}
WRITTEN = {"decided": DECIDED, "facts": {"batch_id": None, "flushed": -1, "newest_batches": {"changes": 0}}}
NOTES = EntryNotes(
    decided=DecisionNotes(
        batch=MicroBatch(
            batch_id=0,
            epoch=1,
            decided_at_ms=T + 1_000,
            started_at_ms=T + 1_000,
            started_boot_ms=8_000,
            looked_boot_ms=7_900,
            excluded_boot_ms=6_800,
            read_at_ms=T + 1_200,
            ends={"events": {0: 1}},
            queued=QueueWait(150, ("play/up",)),
            constraints={"board": (Constraint("constraint", "positive", "n > 0", (("n", "long"),)),)},
            refused={"board": ("a",)},
        ),
        progress=StreamProgress(
            batch_id=0,
            decided_at_ms=T + 1_000,
            inputs={
                "events": InputProgress(
                    partitions={
                        0: PartitionProgress(
                            max_timestamp_ms=T,
                            watermark_ms=T - 1_001,
                            active_at_ms=T + 1_000,
                            until_offset=1,
                            done_until_offset=1,
                            newest_ms=T,
                            topic_id="OHJqyBA9Rk2oh5JIjSP9xw",
                            left_behind=(LeftBehind(9, 0),),
                        )
                    },
                    watermark_ms=T - 1_001,
                    held_by="0",
                )
            },
            watermark_ms=T - 1_001,
            held_by="events",
            windows=(T,),
            records={"events": {T: 1}},
            skipped={"newest": {0: 0, 1: 1}},
            skipped_lately={"newest": ((T + 1_000, 1, 1),)},
            marks={"out": SentMark(T + 1_000, T - 1_001, idle=False)},
            fields={
                "events": SourceFields(
                    1, {"v": FieldSeen(T + 1_000, T + 1_000, 1, 0, 0, {"number": TypeSeen(T + 1_000)})}
                )
            },
        ),
        was=StreamProgress(),
        marks={"out": MarkNotes(watermark_ms=T - 1_001, idle=False)},
        closed=(ClosedWindow(T - 5_000, {"events": 2}), ClosedWindow(T - 10_000, None)),
        sources=(
            PartitionNotes(
                source="events",
                partition=0,
                seen=PartitionReading(
                    from_offset=0,
                    until_offset=1,
                    max_timestamp_ms=T,
                    latest_offset=1,
                    lost=(3, 5),
                    told_idle=False,
                    newest_ms=T,
                    left_offset=9,
                ),
            ),
        ),
        operators={
            "events": OperatorNotes(
                started_at_ms=T + 1_000,
                finished_at_ms=T + 1_100,
                queued_ms=0,
                counts={"records_in": 1, "passed": 1},
            )
        },
        dropped={"ended": 3},
        states=(StateRuns(0, (StateRun("0-ab.run", 2),), {"newest": 0}), StateRuns()),
        tasks=(
            TaskRun(
                operator="events",
                partition=0,
                host="vm",
                started_at_ms=T + 1_000,
                finished_at_ms=T + 1_014,
                records=13,
                skew_ms=0,
                skew_error_ms=0,
            ),
        ),
        segments=(Segment("trigger", "", 0, 6_900, 7_880), Segment("operator", "events", 0, 7_880, 8_100)),
    ),
    facts=FactsNotes(batch_id=None, flushed=-1, newest_batches={"changes": 0}),
)
OF_FACTS = EntryNotes(newest_batches={"changes": 0, "batches": 0}, is_whole=True)
JUDGED = EntryNotes(judged=JudgedNotes(digest="d", counts={"emitted": 1}, states=(StateRuns(),)))


def test_all_notes_are_written() -> None:
    assert json.loads(NOTES.content) == WRITTEN


def test_notes_on_disk_are_read_as_typed_values() -> None:
    read = EntryNotes.of(json.dumps(WRITTEN).encode())
    assert (read.decision, read.facts, read.newest_batches) == (NOTES.decided, NOTES.facts, None)


@pytest.mark.parametrize(
    ("notes", "written"),
    [
        (OF_FACTS, {"newest_batches": {"changes": 0, "batches": 0}, "is_whole": True}),
        (
            JUDGED,
            {
                "judged": {
                    "digest": "d",
                    "counts": {"emitted": 1},
                    "states": [{"batch_id": -1, "runs": [], "held": {}}],
                }
            },
        ),
        (EntryNotes(), {}),
    ],
)
def test_other_files_have_only_their_own_notes(notes: EntryNotes, written: dict[str, Any]) -> None:
    assert json.loads(notes.content) == written
    assert EntryNotes.of(notes.content) == notes


@pytest.mark.parametrize("notes", [NOTES, OF_FACTS, JUDGED, EntryNotes()])
def test_a_rewritten_entry_has_the_same_bytes(notes: EntryNotes) -> None:
    assert EntryNotes.of(notes.content).content == notes.content


def test_progress_and_state_are_read_without_other_notes() -> None:
    """Others need not be parsed; those of tasks may be many."""
    others_unreadable = DECIDED | {"tasks": [{}], "operators": {"events": {}}, "sources": [{}]}
    notes = EntryNotes.of(json.dumps({"decided": others_unreadable}).encode())
    assert notes.progress == NOTES.progress
    assert notes.states == NOTES.states
    with pytest.raises(msgspec.ValidationError, match=r"required field `\w+`"):
        _ = notes.decision
