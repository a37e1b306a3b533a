"""Finds Delta tables below folders, and reads their logs; no data file is opened.

How it works: the newest commits give who wrote what and when. A checkpoint before them gives the files of that version,
and the commits after it tell what became of these. Checkpoints may be single files, have several parts, or name further
files (`_sidecars`) as those of version 2 do. Of a table that was read before, only what came since is read (`kept`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemark.errors import UnreadableFile
from tidemark.storage.delta.snapshots import (
    COMMIT,
    MALFORMED,
    NO_TABLE,
    OF_CATALOGS,
    DamagedLog,
    LogFile,
    actions_of_commit,
    later_log_files,
    log_files_from,
    rows_of_checkpoint,
    versions_in_log,
)
from tidemark.storage.object_path import ObjectPath
from tidemark.watch.commits import (
    AddedFile,
    Clock,
    Commit,
    FileTimes,
    History,
    PastCommit,
    TimeColumn,
    Unreadable,
    Writer,
)
from tidemark.watch.kept import KeptHistories, KeptTable
from tidemark.watch.rules import past_commits
from tidemark.watch.statistics import ZONED, TimeColumnRequest, choose_column, file_times
from tidemark.watch.visible import ForgottenFilesError, VisibleFiles

if TYPE_CHECKING:
    import pyarrow as pa

LOG = "_delta_log"
LEAST, MOST = 100, 1_000
"""Commits that are read of a table: the newest LEAST, and those of the interval up to MOST."""
STATS, STATS_AS_COLUMNS = "stats", "stats_parsed"
"""Fields of a file in a checkpoint."""
REQUESTS = 16
"""Tables in an object store that are read at once: each commit is a request."""
CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10})|\.[0-9a-f-]{36})?\.(?:parquet|json)")
RESTORE = "restore the file, or the table, from a backup"
Action = Mapping[str, Any]


def watched(
    places: Sequence[Path], asked: TimeColumnRequest, since_ms: int, kept: KeptHistories | None = None
) -> list[History | Unreadable]:
    """Returns each table below *places* once, in their order, with its commits since *since_ms* at least.

    Of a table that is *kept*, only what came since it was read before is read. A place without a table is one that
    cannot be read: it is misspelt, or was emptied.
    """
    sweep = _Sweep(asked, since_ms, kept)
    found = dict.fromkeys(table for place in places for table in sweep.tables(place))
    # Python threads do not quicken what this machine's disk has.
    if not any(isinstance(place, ObjectPath) for place in places):
        read = [*map(sweep.read, found)]
    else:
        with ThreadPoolExecutor(REQUESTS) as threads:
            read = [*threads.map(sweep.read, found)]
    return [each for of_table in read for each in of_table]


def find_tables(place: Path, is_table: Callable[[Path], bool] | None = None) -> Iterator[Path | Unreadable]:
    """Yields the Delta tables at and below *place*, in the order of names; links inside it are not followed.

    A table has no other one inside it. A folder that *is_table* knows as one is not looked at.
    """
    try:
        if (is_table is not None and is_table(place)) or (place / LOG).is_dir():
            yield place
            return
        folders: list[Path] = (
            [*place.folders()]
            if isinstance(place, ObjectPath)
            else [path for path in place.iterdir() if path.is_dir() and not path.is_symlink()]
        )
    except OSError as error:
        yield _not_read(place, place, error)
        return
    for folder in sorted(folders):
        if not folder.name.startswith("."):
            yield from find_tables(folder, is_table)


@dataclass(frozen=True)
class _Sweep:
    """A look at all tables of some places."""

    asked: TimeColumnRequest
    since_ms: int
    kept: KeptHistories | None

    def tables(self, place: Path) -> list[Path | Unreadable]:
        without = Unreadable(place, str(place), "there is no Delta table at or below it", "correct the place")
        return [*find_tables(place, self._was_table)] or [without]

    def _was_table(self, path: Path) -> bool:
        # In an object store each look is a request, and that for new commits shows whether the table is still there.
        return isinstance(path, ObjectPath) and self.kept is not None and self.kept.has(path, self.asked)

    def read(self, found: Path | Unreadable) -> list[History | Unreadable]:
        """Returns the history of a table; if it is a table no more, those below it."""
        if isinstance(found, Unreadable):
            return [found]
        history = read_history(found, self.asked, self.since_ms, self.kept)
        if isinstance(history, Unreadable) and self._was_table(found) and not (found / LOG).is_dir():
            return [each for below in find_tables(found) for each in self.read(below)]
        return [history]


def read_history(
    path: Path, asked: TimeColumnRequest, since_ms: int, kept: KeptHistories | None = None
) -> History | Unreadable:
    """Returns the history of the table at *path*, with its commits since *since_ms* at least, up to MOST.

    It begins with what is *kept* of it, and what was read is kept.
    """
    read = _read_once(path, asked, since_ms, kept)
    # A writer may have made or removed commits while the log was listed, so that one of them seemed to be missing.
    return _read_once(path, asked, since_ms, kept) if isinstance(read, Unreadable) else read


def _read_once(path: Path, asked: TimeColumnRequest, since_ms: int, kept: KeptHistories | None) -> History | Unreadable:
    try:
        before = None if kept is None else kept.of(path, asked)
        table = None if before is None else _continued(path, before, asked, since_ms)
        table = table or _Log(path).read(asked, since_ms, is_kept=kept is not None)
    except UnreadableFile as refused:
        return Unreadable(path, str(refused.file), refused.found, refused.remedy)
    except DamagedLog as damage:
        return Unreadable(path, str(damage.file), damage.found, RESTORE)
    except OSError as error:
        return _not_read(path, path / LOG, error)
    except MALFORMED as error:
        return Unreadable(path, str(path / LOG), f"it is damaged ({type(error).__name__}: {error})", RESTORE)
    if kept is not None and table is not before:
        kept.keep(table, asked)
    return replace(table.history, commits=tuple(_within(table.history.commits, since_ms)))


def _continued(path: Path, before: KeptTable, asked: TimeColumnRequest, since_ms: int) -> KeptTable | None:
    """Returns the table with what came since *before*; None: the log has to be read anew.

    That is so if it is another log than it was, or lost a commit, if more commits than were read are asked for, if
    another column has the event times now, or if the newest event time depends on files that were forgotten.
    """
    if not before.is_whole and _number_asked_for(before.history.commits, since_ms) is None:
        return None
    later = _later_files(path, before.newest_file)
    if not later:
        return None if later is None else before
    history = before.history
    commits = [*history.commits]
    # What is damaged is found again where the whole log is read.
    with suppress(OSError, *MALFORMED, ForgottenFilesError):
        files = before.files()
        for file in later:
            read = _read_commit(path / LOG / file.name, file.version)
            if any("protocol" in action for action in read.actions):
                return None
            for metadata in (action["metaData"] for action in read.actions if "metaData" in action):
                if choose_column(metadata, asked) != history.chosen or metadata.get("id") != history.table_id:
                    return None
            commits += past_commits([read.commit(history.chosen.column, asked)], files, history.base_version)
        history = replace(history, version=later[-1].version, commits=tuple(commits[-MOST:]), newest=files.newest)
        return KeptTable(later[-1], history, before.is_whole, lambda: files)
    return None


def _later_files(path: Path, newest: LogFile) -> list[LogFile] | None:
    """Returns the files of commits after *newest*; None: the log is another one than it was, or lost a commit."""
    later = later_log_files(path, newest)
    if later is None or isinstance(path, ObjectPath):
        return later
    # On a disk only the next commit was looked for, so that it is not known if one after it is there.
    last = later[-1] if later else newest
    return later if max(versions_in_log(path), default=last.version) <= last.version else None


def _within(commits: Sequence[PastCommit], since_ms: int) -> Sequence[PastCommit]:
    """Returns those *commits* that are asked for."""
    n = _number_asked_for(commits, since_ms)
    return commits if n is None else commits[-n:]


def _number_asked_for(commits: Sequence[PastCommit], since_ms: int) -> int | None:
    """Returns how many of the newest *commits* are all that are asked for; None: there may be more than these."""
    numbers = range(LEAST, len(commits) + 1)
    return next((n for n in numbers if _are_all(n, commits[-n].at_ms, since_ms)), None)


def _are_all(n: int, at_ms: int, since_ms: int) -> bool:
    """Returns True if the newest *n* commits, of which the oldest was made at *at_ms*, are all that are asked for."""
    return n >= MOST or (n >= LEAST and at_ms < since_ms)


def _not_read(path: Path, file: Path, error: OSError) -> Unreadable:
    match error:
        case PermissionError():
            remedy = "give this user the right to read it"
        case FileNotFoundError() | NotADirectoryError():
            remedy = "correct the place, or make it again if it is missing"
        case _:
            remedy = "try again; of an object store check its address and credentials"
    return Unreadable(path, str(error.filename or file), error.strerror or str(error), remedy)


class _Log:
    """The files of the log of the table at *path*."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._commits: dict[int, Path] = {}
        self._checkpoints: dict[int, list[Path]] = {}
        parts: dict[tuple[int, int], list[Path]] = {}
        for file in (path / LOG).iterdir():
            if match := COMMIT.fullmatch(file.name):
                self._commits[int(match[1])] = file
            elif match := CHECKPOINT.fullmatch(file.name):
                parts.setdefault((int(match[1]), int(match[2] or 1)), []).append(file)
        for (version, n), files in parts.items():
            # Of a checkpoint in one file there may be several, which are equal.
            if len(files) >= n:
                self._checkpoints[version] = sorted(files)[:n]
        if not self._commits and not self._checkpoints:
            raise DamagedLog(path / LOG, "it has neither a commit nor a checkpoint")
        self._version = max([*self._commits, *self._checkpoints])

    def read(self, asked: TimeColumnRequest, since_ms: int, *, is_kept: bool) -> KeptTable:
        """Returns what the log says; raises DamagedLog, UnreadableFile or OSError."""
        # If another table takes the place of this one from here on, this file will not be found again.
        newest_file = self._newest_file() if is_kept else NO_TABLE
        stamped = [*self._newest(since_ms)]
        first = self._version + 1 - len(stamped)
        base = self._base(first)
        stamped += [self._read(version) for version in range(first - 1, base, -1)]
        checkpoint = _Checkpoint(self._path, self._checkpoints[base]) if base >= 0 else None
        metadata = self._metadata(stamped, checkpoint)
        chosen = choose_column(metadata, asked)
        files = VisibleFiles({} if checkpoint is None else checkpoint.files(chosen.column, asked))
        commits = [*past_commits((read.commit(chosen.column, asked) for read in reversed(stamped)), files, base)]
        oldest = self._version + 1 - len(stamped)
        history = History(
            self._path, metadata.get("id") or "", self._version, chosen, tuple(commits[-MOST:]), base, files.newest
        )
        return KeptTable(newest_file, history, oldest - 1 not in self._commits or len(stamped) >= MOST, lambda: files)

    def _newest_file(self) -> LogFile:
        """Returns the file of the newest version, NO_TABLE if it is gone."""
        file = self._commits.get(self._version) or self._checkpoints[self._version][0]
        return next(iter(log_files_from(self._path, file.name)), NO_TABLE)

    def _newest(self, since_ms: int) -> Iterator[_ReadCommit]:
        """Yields the newest commits, the newest first."""
        for n, version in enumerate(range(self._version, -1, -1), 1):
            if version not in self._commits:
                return
            read = self._read(version)
            yield read
            if _are_all(n, read.at_ms, since_ms):
                return

    def _read(self, version: int) -> _ReadCommit:
        return _read_commit(self._commits[version], version)

    def _base(self, first: int) -> int:
        """Returns the version of the checkpoint from which on all commits are there; -1: all from the first.

        It is the newest one before version *first*, the oldest commit that was read, if there is one.
        """
        if first == 0:
            return -1
        before = [each for each in self._checkpoints if each < first and self._has(each + 1, first)]
        after = [each for each in self._checkpoints if each >= first - 1]
        if before or after:
            return max(before) if before else min(after)
        if self._has(0, first):
            return -1
        missing = next(version for version in range(self._version, -1, -1) if version not in self._commits)
        file = self._path / LOG / f"{missing:020d}.json"
        raise DamagedLog(file, "it is missing, and no checkpoint has what it did")

    def _has(self, start: int, end: int) -> bool:
        return all(version in self._commits for version in range(start, end))

    def _metadata(self, newest_first: Sequence[_ReadCommit], checkpoint: _Checkpoint | None) -> Action:
        protocol = metadata = None
        for action in (action for read in newest_first for action in reversed(read.actions)):
            metadata, protocol = metadata or action.get("metaData"), protocol or action.get("protocol")
        if checkpoint is not None:
            metadata, protocol = metadata or checkpoint.newest("metaData"), protocol or checkpoint.newest("protocol")
        if metadata is None or protocol is None:
            raise DamagedLog(self._path / LOG, "it has no columns or no protocol")
        if of_catalog := OF_CATALOGS.intersection(protocol.get("readerFeatures") or ()):
            found = f"it requires {', '.join(of_catalog)}: a catalog may have commits that are not in the log yet"
            raise UnreadableFile(self._path / LOG, found, "ask the catalog for its newest commits")
        return dict(metadata)


def _read_commit(file: Path, version: int) -> _ReadCommit:
    actions = actions_of_commit(file)
    info: Action = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    for key, clock in (("inCommitTimestamp", Clock.IN_COMMIT), ("timestamp", Clock.WRITER)):
        if info.get(key) is not None:
            return _ReadCommit(version, int(info[key]), clock, info, actions)
    return _ReadCommit(version, int(file.stat().st_mtime * 1_000), Clock.FILE, info, actions)


@dataclass(frozen=True)
class _ReadCommit:
    """The actions of a commit, and its stamp."""

    version: int
    at_ms: int
    clock: Clock
    info: Action
    actions: Sequence[Action]

    def commit(self, column: TimeColumn | None, asked: TimeColumnRequest) -> Commit:
        """Returns the commit with the times of its files in *column*."""
        added, removed, removes_data = list[AddedFile](), list[str](), False
        app_id = batch = None
        for action in self.actions:
            if add := action.get("add"):
                stats = json.loads(add.get("stats") or "{}")
                rows, times = file_times(add, stats, column, asked.zone)
                added.append(AddedFile(add["path"], add["size"], rows, add["dataChange"], times))
            elif remove := action.get("remove"):
                removed.append(remove["path"])
                removes_data |= remove.get("dataChange", True)
            elif txn := action.get("txn"):
                app_id, batch = app_id or txn["appId"], txn["version"]
        return Commit(
            self.version,
            self.at_ms,
            self.clock,
            self.info.get("operation") or "",
            _writer(self.info, app_id, batch),
            tuple(added),
            tuple(removed),
            removes_data,
        )


def _writer(info: Action, app_id: str | None, batch: int | None) -> Writer:
    """Returns who wrote a commit with this `commitInfo`.

    Airflow's run is known by `userMetadata` that is a JSON object with `dag_id`, `task_id` and `run_id`.
    """
    job = info.get("job") or {}
    of_airflow = _noted_run(info["userMetadata"]) if info.get("userMetadata") else {}
    task = [str(of_airflow[key]) for key in ("dag_id", "task_id") if key in of_airflow]
    run = of_airflow.get("run_id") or job.get("runId") or job.get("jobRunId")
    return Writer(
        engine=info.get("engineInfo") or info.get("clientVersion"),
        job=job.get("jobName") or job.get("jobId"),
        query=app_id,
        airflow=".".join(task) or None,
        run=None if run is None else str(run),
        batch=batch,
    )


def _noted_run(note: str) -> Action:
    try:
        noted = json.loads(note)
    except ValueError:
        return {}
    return noted if isinstance(noted, Mapping) and "dag_id" in noted else {}


class _Checkpoint:
    """The checkpoint in *files* of the table at *path*."""

    def __init__(self, path: Path, files: Sequence[Path]) -> None:
        self._files = [*files]
        for named in [*self._rows("sidecar", ("path",))]:
            self._files.append(path / LOG / "_sidecars" / named["path"])

    def newest(self, kind: str) -> Action | None:
        """Returns the action of this *kind*, of which a checkpoint has one; None: it is missing."""
        return next(self._rows(kind), None)

    def files(self, column: TimeColumn | None, asked: TimeColumnRequest) -> Mapping[str, FileTimes | None]:
        """Returns the times of the table's files in *column*, by path."""
        wanted = ["path", STATS, "deletionVector"]
        if column is not None and column.is_partition:
            wanted.append("partitionValues")
        times = {}
        for add in self._rows("add", wanted):
            stats = json.loads(add[STATS] or "{}") if STATS in add else _of_struct(add.get(STATS_AS_COLUMNS), column)
            times[add["path"]] = file_times(add, stats, column, asked.zone)[1]
        return times

    def _rows(self, kind: str, fields: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
        """Yields the actions of a *kind*, of Parquet files only with their *fields* (none: all)."""
        for file in self._files:
            try:
                yield from _of_json(file, kind) if file.suffix == ".json" else _of_parquet(file, kind, fields)
            except FileNotFoundError as error:
                raise DamagedLog(file, "it is missing, and the checkpoint needs it") from error


def _of_json(file: Path, kind: str) -> Iterator[dict[str, Any]]:
    yield from (action[kind] for action in actions_of_commit(file) if action.get(kind))


def _of_struct(stats: Action | None, column: TimeColumn | None) -> Action:
    """Returns statistics that a checkpoint has as columns; there timestamps are in UTC, and do not say so."""
    if not stats or column is None or column.kind != ZONED:
        return stats or {}
    bounds = {
        key: {
            name: value.replace(tzinfo=UTC) for name, value in stats[key].items() if name == column.physical and value
        }
        for key in ("minValues", "maxValues")
        if stats.get(key)
    }
    return {**stats, **bounds}


def _of_parquet(file: Path, kind: str, fields: Sequence[str]) -> Iterator[dict[str, Any]]:
    def wanted(schema: pa.Schema) -> Sequence[str]:
        if kind not in schema.names:
            return ()
        names = {field.name for field in schema.field(kind).type}
        # A checkpoint has statistics as JSON, as columns, or both; as JSON they take less memory.
        forms = (STATS_AS_COLUMNS if name == STATS and name not in names else name for name in fields)
        return [f"{kind}.{name}" for name in forms if name in names] or [kind]

    yield from (row[kind] for row in rows_of_checkpoint(file, wanted) if row[kind])
