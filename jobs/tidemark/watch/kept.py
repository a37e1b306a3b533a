"""What was read of tables, kept between runs in a folder with a file for each table.

A file has three lines of JSON, each after its checksum: which log it is about, its history, and the files with the
newest times. The last one is looked at only if there are new commits. A file that is damaged, or of another version of
Tidemark, counts as missing. Each is replaced as a whole, so of several processes the last one that read a table wins,
and each of their files is right.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from zlib import crc32

from tidemark.errors import TidemarkError
from tidemark.storage.delta.format import VERSION
from tidemark.storage.delta.snapshots import MALFORMED, NO_TABLE, LogFile
from tidemark.storage.location import replace_unsynced
from tidemark.storage.locks import own_folder
from tidemark.watch.commits import (
    Change,
    ChosenColumn,
    Clock,
    FileTimes,
    History,
    PastCommit,
    Span,
    TimeColumn,
    Writer,
)
from tidemark.watch.statistics import TimeColumnRequest
from tidemark.watch.visible import VisibleFiles

KEPT_FILES = 500
"""Files whose times are kept: so many with the greatest upper ends, and as many with the greatest lower ends."""
FORM = f"{VERSION}/1"
"""The form of these files; another number for files of other rules makes older ones count as missing."""


@dataclass(frozen=True)
class KeptTable:
    """What was read of a table, up to its `newest_file`.

    Attributes:
        newest_file: the newest file of the log.
        history: with all commits that were read.
        is_whole: the log had no older commits that a longer interval would need.
        files: makes the files of the newest version.
    """

    newest_file: LogFile
    history: History
    is_whole: bool
    files: Callable[[], VisibleFiles]


class KeptHistories:
    """Keeps what was read of tables in *folder*.

    If the folder cannot be written, nothing is kept, and `refused` says why.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.refused: str | None = None

    def has(self, path: Path, asked: TimeColumnRequest) -> bool:
        """Returns True if something is kept of the table at *path*."""
        return self._file(path, asked).exists()

    def of(self, path: Path, asked: TimeColumnRequest) -> KeptTable | None:
        """Returns what is kept of the table at *path*, or None."""
        try:
            about, history, files = map(_checked, self._file(path, asked).read_bytes().splitlines())
            form, *_, newest_file, is_whole = json.loads(about)
            if form != FORM:
                return None
            return KeptTable(
                LogFile(*newest_file),
                _history_from_json(path, json.loads(history)),
                is_whole,
                lambda: _files_from_json(json.loads(files)),
            )
        except (OSError, *MALFORMED):
            return None

    def keep(self, table: KeptTable, asked: TimeColumnRequest) -> None:
        """Keeps *table* for the next run."""
        if table.newest_file == NO_TABLE:
            return
        about = [FORM, *_key(table.history.path, asked), table.newest_file, table.is_whole]
        lines = (about, _history_for_json(table.history), _files_for_json(table.files()))
        texts = [json.dumps(line, separators=(",", ":")) for line in lines]
        try:
            own_folder(self._folder)
            content = "".join(f"{crc32(text.encode()):08x} {text}\n" for text in texts)
            replace_unsynced(self._file(table.history.path, asked), content)
        except (OSError, TidemarkError) as error:
            self.refused = str(error)

    def _file(self, path: Path, asked: TimeColumnRequest) -> Path:
        return self._folder / f"{sha256(json.dumps(_key(path, asked)).encode()).hexdigest()[:32]}.json"


def _key(path: Path, asked: TimeColumnRequest) -> Sequence[str | Sequence[str]]:
    return str(path.absolute()), asked.names, str(asked.zone)


def _checked(line: bytes) -> bytes:
    """Returns the JSON of a *line*; raises ValueError if its checksum is another one."""
    checksum, _, text = line.partition(b" ")
    if int(checksum, 16) != crc32(text):
        msg = "it is damaged"
        raise ValueError(msg)
    return text


def _history_for_json(history: History) -> Any:
    """Returns *history* for JSON, with each writer once."""
    writers = dict.fromkeys(_writer_for_json(commit.writer) for commit in history.commits)
    numbers = {writer: n for n, writer in enumerate(writers)}
    column = history.chosen.column
    return {
        "table_id": history.table_id,
        "version": history.version,
        "column": None if column is None else astuple(column),
        "candidates": history.chosen.candidates,
        "base_version": history.base_version,
        "newest": history.newest,
        "writers": [*writers],
        "commits": [
            (
                *(each.version, each.at_ms, each.clock, each.change, each.operation, each.rows, each.bytes),
                *(each.latency, numbers[_writer_for_json(each.writer)], each.newest_before),
            )
            for each in history.commits
        ],
    }


def _writer_for_json(writer: Writer) -> tuple[str | int | None, ...]:
    return writer.engine, writer.job, writer.query, writer.airflow, writer.run, writer.batch


def _history_from_json(path: Path, kept: Any) -> History:
    writers = [Writer(*each) for each in kept["writers"]]
    clocks, changes = {each.value: each for each in Clock}, {each.value: each for each in Change}
    commits = (
        PastCommit(
            version,
            at_ms,
            clocks[clock],
            changes[change],
            operation,
            rows,
            size,
            _span(latency),
            writers[writer],
            _span(newest_before),
        )
        for version, at_ms, clock, change, operation, rows, size, latency, writer, newest_before in kept["commits"]
    )
    column = None if kept["column"] is None else TimeColumn(*kept["column"])
    return History(
        path,
        kept["table_id"],
        kept["version"],
        ChosenColumn(column, tuple(kept["candidates"])),
        tuple(commits),
        kept["base_version"],
        _span(kept["newest"]),
    )


def _span(ends: Sequence[int | None] | None) -> Span | None:
    return None if ends is None else Span(*ends)


def _files_for_json(files: VisibleFiles) -> Any:
    kept = files if len(files.times) <= KEPT_FILES else files.with_newest_alone(KEPT_FILES)
    return {
        "times": {path: (times.oldest_ms, *times.newest) for path, times in kept.times.items()},
        "others": kept.others,
    }


def _files_from_json(kept: Any) -> VisibleFiles:
    times = {path: FileTimes(oldest_ms, Span(*newest)) for path, (oldest_ms, *newest) in kept["times"].items()}
    return VisibleFiles(times, _span(kept["others"]))
