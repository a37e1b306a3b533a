"""Notes of a journal entry have one form of JSON."""

from __future__ import annotations

import json

import pytest

from tidemark.semantics.event_time import PartitionReading
from tidemark.semantics.progress import InputProgress, PartitionProgress, SentMark, StreamProgress
from tidemark.semantics.schema_watch import FieldSeen, SourceFields, TypeSeen
from tidemark.stream.journal.batch import MicroBatch, QueueWait
from tidemark.stream.journal.notes import (
    DecisionNotes,
    EntryNotes,
    FactsNotes,
    MarkNotes,
    OperatorNotes,
    PartitionNotes,
)
from tidemark.stream.journal.state_runs import StateRun, StateRuns
from tidemark.stream.journal.streaming_windows import ClosedWindow
from tidemark.stream.journal.task_run import TaskRun

T = 1_770_033_600_000
BEFORE = (
    '{"batch_id": -1, "decided_at_ms": null, "inputs": {}, "watermark_ms": null, "held_by": null, "idle": false, '
    '"windows": [], "uncounted": [], "records": {}, "skipped": {}, "skipped_lately": {}, "marks": {}, "resets": {}, '
    '"stay_closed": {}, "forgotten": {}, "ended": {}, "reopened": {}, "ahead": 0, "complete": {}, "fields": {}}'
)
PROGRESS = (
    '{"batch_id": 0, "decided_at_ms": 1770033601000, "inputs": {"events": {"partitions": {"0": {"max_timestamp_ms": '
    '1770033600000, "watermark_ms": 1770033598999, "active_at_ms": 1770033601000, "until_offset": 1, '
    '"done_until_offset": 1, "activity": "active", "writers": {}, "told_idle": false, "newest_ms": 1770033600000, '
    '"set_back_from_ms": null, "topic_id": "OHJqyBA9Rk2oh5JIjSP9xw", "latest_offset": null}}, '
    '"watermark_ms": 1770033598999, "held_by": "0", "idle": false, "places": [], "idle_watermark_ms": null, '
    '"files": {}}}, '
    '"watermark_ms": 1770033598999, "held_by": "events", "idle": false, "windows": [1770033600000], "uncounted": [], '
    '"records": {"events": {"1770033600000": 1}}, "skipped": {"newest": {"0": 0, "1": 1}}, '
    '"skipped_lately": {"newest": [[1770033601000, 1, 1]]}, "marks": {"out": [1770033601000, 1770033598999, false]}, '
    '"resets": {}, "stay_closed": {}, "forgotten": {}, "ended": {}, "reopened": {}, "ahead": 0, "complete": {}, '
    '"fields": {"events": {"sampled": 1, "fields": {"v": [1770033601000, 1770033601000, 1, 0, 0, '
    '{"number": [1770033601000, 0]}, null]}}}}'
)
BATCH = (
    '{"batch_id": 0, "epoch": 1, "decided_at_ms": 1770033601000, "started_at_ms": 1770033601000, '
    '"read_at_ms": 1770033601200, "ends": {"events": {"0": 1}}, "versions": {}, "is_last": true, '
    '"queued": {"ms": 150, "behind": ["play/up"]}}'
)
OPERATORS = (
    '{"events": {"started_at_ms": 1770033601000, "finished_at_ms": 1770033601100, "queued_ms": 0, '
    '"counts": {"records_in": 1, "passed": 1}}}'
)
SOURCES = (
    '[{"source": "events", "partition": 0, "from_offset": 0, "until_offset": 1, "max_timestamp_ms": 1770033600000, '
    '"latest_offset": 1, "held_from": null, "lost": [3, 5], "told_idle": false, "newest_ms": 1770033600000, '
    '"went_back": false, "has_open_transaction": false}]'
)
STATE = (
    '[{"batch_id": 0, "runs": [{"name": "0-ab.run", "rows": 2}], "held": {"newest": 0}}, '
    '{"batch_id": -1, "runs": [], "held": {}}]'
)
TASKS = (
    '[{"operator": "events", "shard": null, "partition": 0, "host": "vm", "started_at_ms": 1770033601000, '
    '"finished_at_ms": 1770033601014, "records": 13, "hot_key": null, "hot_share": null, "skew_ms": 0, '
    '"skew_error_ms": 0}]'
)
DECIDED = (
    f'{{"marks": {{"out": {{"watermark_ms": 1770033598999, "idle": false}}}}, "batch": {BATCH}, '
    f'"progress": {PROGRESS}, "was": {BEFORE}, '
    '"closed": [{"start_ms": 1770033595000, "records": {"events": 2}}, {"start_ms": 1770033590000, "records": null}], '
    f'"sources": {SOURCES}, "operators": {OPERATORS}, "state": {STATE}, "tasks": {TASKS}, '
    '"facts": {"batch_id": null, "flushed": -1, "newest_batches": {"changes": 0}}}'
)
NOTES = EntryNotes(
    decided=DecisionNotes(
        batch=MicroBatch(
            batch_id=0,
            epoch=1,
            decided_at_ms=T + 1_000,
            started_at_ms=T + 1_000,
            read_at_ms=T + 1_200,
            ends={"events": {0: 1}},
            queued=QueueWait(150, ("play/up",)),
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
    ),
    facts=FactsNotes(batch_id=None, flushed=-1, newest_batches={"changes": 0}),
)
FILE_OF_FACTS = '{"newest_batches": {"changes": 0, "batches": 0}, "is_whole": true}'


def test_all_notes_are_written() -> None:
    assert json.dumps(NOTES.to_json()) == DECIDED


def test_notes_on_disk_are_read_as_typed_values() -> None:
    read = EntryNotes.from_json(json.loads(DECIDED))
    assert (read.decision, read.facts, read.newest_batches) == (NOTES.decided, NOTES.facts, None)


def test_a_file_of_facts_has_two_notes() -> None:
    notes = EntryNotes(newest_batches={"changes": 0, "batches": 0}, is_whole=True)
    assert json.dumps(notes.to_json()) == FILE_OF_FACTS
    assert EntryNotes.from_json(json.loads(FILE_OF_FACTS)) == notes


def test_an_entry_without_notes_has_an_empty_object() -> None:
    assert EntryNotes().to_json() == {}
    assert EntryNotes.from_json({}) == EntryNotes()


@pytest.mark.parametrize("text", [DECIDED, FILE_OF_FACTS, "{}"])
def test_a_rewritten_entry_gains_no_key(text: str) -> None:
    assert json.dumps(EntryNotes.from_json(json.loads(text)).to_json()) == text


def test_progress_and_state_are_read_without_other_notes() -> None:
    """Others need not be parsed; those of tasks may be many."""
    others_unreadable = json.loads(DECIDED) | {"tasks": [{}], "operators": {"events": {}}, "sources": [{}]}
    notes = EntryNotes.from_json(others_unreadable)
    assert notes.progress == NOTES.progress
    assert notes.states == NOTES.states
    assert notes.is_last
