"""Finds the journal of a stream, and tells if it has facts that the stream's tables lack.

Most queries of the command line open tables that have all facts. Importing the code that reads entries would take
longer than such a query, so this module reads the names and notes of entries by itself.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from tidemark.model.tables.catalog import BATCHES, CHANGES, DEAD_LETTERS, HEARTBEATS, TABLES
from tidemark.semantics.dead_letters import DeadLetterKind
from tidemark.storage.delta.snapshots import Snapshot, snapshot_of

NOTES = "notes.json"
"""The file in an entry with all that is not rows."""
FACTS_TABLES = frozenset(table.name for table in TABLES.values() if table.written_by == "stream") - {
    CHANGES.name,
    HEARTBEATS.name,
}
"""Tables whose rows may wait in a journal until a flush moves them to the table."""
COMMITTED_WITH_BATCH = f"{DeadLetterKind.UNDELIVERABLE}/{DEAD_LETTERS.name}"
"""The name, in an entry and of a transaction, of rows of `dead_letters` that are committed with their batch.

These are records that a topic or a table refused, which is known only after the entry was written. The other rows of
`dead_letters` wait for a flush, under the name of the table. If both had one name, the newest committed batch of the
table would include waiting rows of this batch and earlier ones, and the rows would be lost.
"""
_NAME = re.compile(r"(\d{20})\.(data|facts)\.zip")


class OpenTable(Protocol):
    """A Delta table as delta-rs or `snapshots` opens it."""

    def transaction_version(self, app_id: str, /) -> int | None:
        """Returns the number of the newest transaction of *app_id*, or None if there is none."""


def entry_path(journal: Path, kind: str, batch_id: int) -> Path:
    """Returns the path of an entry of a *kind*: data or facts."""
    return journal / f"{batch_id:020d}.{kind}.zip"


def batches_in(journal: Path, kind: str) -> list[int]:
    """Returns the batches with an entry of *kind*, oldest first."""
    # A journal that is a file has none; `tidemark doctor` names it.
    files = journal.iterdir() if journal.is_dir() else ()
    matches = (_NAME.fullmatch(file.name) for file in files)
    return sorted(int(match[1]) for match in matches if match and match[2] == kind)


def journal_of(home: Path) -> Path:
    """Returns the journal of the stream whose tables lie in *home*."""
    return home.parent.parent.parent / "control" / home.parent.name / home.name / "journal"


def journal_with_facts(home: Path, opened: Callable[[Path], Snapshot | None] = snapshot_of) -> Path | None:
    """Returns the journal of the stream whose tables lie in *home*, if the tables may lack facts that it has.

    The result is None if they lack none, or if this user may not read the control folder. *opened* opens a table as
    `snapshot_of` does.
    """
    journal = journal_of(home)
    with suppress(PermissionError):
        if journal.is_dir() and not _is_at_rest(journal, home / BATCHES.name, opened):
            return journal
    return None


def table_of(name: str) -> str:
    """Returns the table of the rows called *name* in an entry."""
    return DEAD_LETTERS.name if name == COMMITTED_WITH_BATCH else name


def transactions_of(table: str) -> tuple[str, ...]:
    """Returns the names under which a driver commits rows to *table*."""
    return (table, COMMITTED_WITH_BATCH) if table == DEAD_LETTERS.name else (table,)


def not_waiting(table: str, flushed: int) -> str:
    """Returns the SQL condition for rows of *table* that do not wait in the journal after the batch *flushed*."""
    condition = f"batch_id <= {flushed}"
    return f"{condition} OR kind = '{DeadLetterKind.UNDELIVERABLE}'" if table == DEAD_LETTERS.name else condition


def newest_batch(path: Path, table: OpenTable) -> int:
    """Returns the newest batch that a driver committed to the *table* at *path*, or -1 if there is none."""
    newest = table.transaction_version("/".join(path.parts[-3:]))
    return -1 if newest is None else int(newest)


def _is_at_rest(journal: Path, batches: Path, opened: Callable[[Path], Snapshot | None]) -> bool:
    """Returns True if all tables have the newest batch of the *journal*.

    The table at *batches* is the last that gets a batch, so it is the one that is asked.
    """
    newest = batches_in(journal, "data")[-1:]
    if not newest:
        return True
    if batches_in(journal, "facts")[-1:] != newest:
        return False
    try:
        content = entry_path(journal, "facts", newest[0]).read_bytes()
    except FileNotFoundError:  # the driver has flushed it since, and forgotten it
        return False
    except IsADirectoryError:
        return False
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            is_whole = json.loads(archive.read(NOTES))["is_whole"]
    # The file is damaged: whoever reads it next leaves its facts out.
    except Exception:
        return False
    # A flush may have moved the facts of some tables only.
    return is_whole and newest_batch_at(batches, opened(batches)) >= newest[0]


def newest_batch_at(path: Path, snapshot: Snapshot | None) -> int:
    """Returns the newest batch that a driver committed to the table at *path*, or -1 without a batch or a table.

    *snapshot* is the table if it is open already.
    """
    if snapshot is not None:
        return newest_batch(path, snapshot)
    from deltalake import DeltaTable

    return newest_batch(path, DeltaTable(str(path))) if DeltaTable.is_deltatable(str(path)) else -1
