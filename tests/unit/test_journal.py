"""The journal: whole or not at all, and once."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidemark.errors import Contradiction
from tidemark.stream.journal.entries import KEPT, Entry, Journal
from tidemark.stream.journal.notes import EntryNotes


def entry(batch_id: int) -> Entry:
    return Entry(
        batch_id, {"changes": pa.table({"key": ["a", None], "n": [1, 2]})}, EntryNotes(newest_batches={"changes": 17})
    )


def test_what_was_written_is_read_back(tmp_path):
    Journal(tmp_path, "data").write(entry(4))
    read = Journal(tmp_path, "data").read(4)
    assert read is not None
    assert read.tables["changes"].to_pylist() == [{"key": "a", "n": 1}, {"key": None, "n": 2}]
    assert read.notes == EntryNotes(newest_batches={"changes": 17})


def test_a_batch_is_decided_once(tmp_path):
    Journal(tmp_path, "data").write(entry(4))
    with pytest.raises(Contradiction, match="another driver already decided this batch"):
        Journal(tmp_path, "data").write(entry(4))


def test_data_and_facts_of_one_batch_do_not_meet(tmp_path):
    Journal(tmp_path, "data").write(entry(4))
    assert Journal(tmp_path, "facts").read(4) is None


def test_the_newest_entry_is_that_of_the_highest_batch(tmp_path):
    journal = Journal(tmp_path, "data")
    assert journal.newest() is None
    for batch_id in (2, 10, 9):
        journal.write(entry(batch_id))
    newest = journal.newest()
    assert newest is not None
    assert newest.batch_id == 10


def test_a_file_that_was_not_finished_is_no_entry(tmp_path):
    journal = Journal(tmp_path, "data")
    journal.write(entry(1))
    (tmp_path / f"{2:020d}.data.77.partial").write_bytes(b"torn")
    newest = journal.newest()
    assert newest is not None
    assert newest.batch_id == 1


def test_only_the_newest_entries_are_kept(tmp_path):
    journal = Journal(tmp_path, "data")
    for batch_id in range(0, 40, 2):
        journal.write(entry(batch_id))
    assert len(list(tmp_path.glob("*.zip"))) == KEPT
    assert journal.read(38) is not None
