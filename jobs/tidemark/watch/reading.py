"""Finds Delta tables below folders, and reads their logs; no data file is opened.

How it works: the newest commits give who wrote what and when. A checkpoint before them gives the files of that version,
and the commits after it tell what became of these. Checkpoints may be single files, have several parts, or name further
files (`_sidecars`) as those of version 2 do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import Any

from tidemark.errors import UnreadableFile
from tidemark.storage.delta.snapshots import COMMIT, MALFORMED, DamagedLog, actions_of_commit
from tidemark.storage.object_path import ObjectPath
from tidemark.watch.commits import (
    AddedFile,
    Clock,
    Commit,
    FileTimes,
    History,
    TimeColumn,
    Unreadable,
    Writer,
)
from tidemark.watch.statistics import ZONED, Asked, choose_column, file_times

LOG = "_delta_log"
LEAST, MOST = 100, 1_000
"""Commits that are read of a table: the newest LEAST, and those of the interval up to MOST."""
AT_ONCE = 2_000
"""Rows of a checkpoint that are looked at together."""
REQUESTS = 16
"""Tables in an object store that are read at once: each commit is a request."""
CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10})|\.[0-9a-f-]{36})?\.(?:parquet|json)")
RESTORE = "restore the file, or the table, from a backup"
Action = Mapping[str, Any]


def watched(places: Sequence[Path], asked: Asked, since_ms: int) -> list[History | Unreadable]:
    """Returns each table below *places* once, in their order, with its commits since *since_ms* at least.

    A place without a table is one that cannot be read: it is misspelt, or was emptied.
    """

    def read(table: Path | Unreadable) -> History | Unreadable:
        return table if isinstance(table, Unreadable) else read_history(table, asked, since_ms)

    found = dict.fromkeys(table for place in places for table in [*find_tables(place)] or [_without_table(place)])
    # Python threads do not quicken what this machine's disk has.
    if not any(isinstance(place, ObjectPath) for place in places):
        return [*map(read, found)]
    with ThreadPoolExecutor(REQUESTS) as threads:
        return [*threads.map(read, found)]


def find_tables(place: Path) -> Iterator[Path | Unreadable]:
    """Yields the Delta tables at and below *place*, in the order of names; links inside it are not followed.

    A table has no other one inside it.
    """
    try:
        if (place / LOG).is_dir():
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
            yield from find_tables(folder)


def _without_table(place: Path) -> Unreadable:
    return Unreadable(place, str(place), "there is no Delta table at or below it", "correct the place")


def read_history(path: Path, asked: Asked, since_ms: int) -> History | Unreadable:
    """Returns the history of the table at *path*, with its commits since *since_ms* at least, up to MOST."""
    read = _read_once(path, asked, since_ms)
    # A writer may have made or removed commits while the log was listed, so that one of them seemed to be missing.
    return _read_once(path, asked, since_ms) if isinstance(read, Unreadable) else read


def _read_once(path: Path, asked: Asked, since_ms: int) -> History | Unreadable:
    try:
        return _Log(path).history(asked, since_ms)
    except UnreadableFile as refused:
        return Unreadable(path, str(refused.file), refused.found, refused.remedy)
    except DamagedLog as damage:
        return Unreadable(path, str(damage.file), damage.found, RESTORE)
    except OSError as error:
        return _not_read(path, path / LOG, error)
    except MALFORMED as error:
        return Unreadable(path, str(path / LOG), f"it is damaged ({type(error).__name__}: {error})", RESTORE)


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

    def history(self, asked: Asked, since_ms: int) -> History:
        """Returns what the log says; raises DamagedLog, UnreadableFile or OSError."""
        stamped = [*self._newest(since_ms)]
        first = self._version + 1 - len(stamped)
        base = self._base(first)
        stamped += [self._read(version) for version in range(first - 1, base, -1)]
        checkpoint = _Checkpoint(self._path, self._checkpoints[base]) if base >= 0 else None
        metadata = self._metadata(stamped, checkpoint)
        chosen = choose_column(metadata, asked)
        return History(
            self._path,
            self._version,
            chosen,
            tuple(read.commit(chosen.column, asked) for read in reversed(stamped)),
            base,
            {} if checkpoint is None else checkpoint.files(chosen.column, asked),
        )

    def _newest(self, since_ms: int) -> Iterator[_ReadCommit]:
        """Yields the newest commits, the newest first."""
        for n, version in enumerate(range(self._version, -1, -1)):
            if version not in self._commits or n == MOST:
                return
            read = self._read(version)
            yield read
            if n + 1 >= LEAST and read.at_ms < since_ms:
                return

    def _read(self, version: int) -> _ReadCommit:
        file = self._commits[version]
        actions = actions_of_commit(file)
        info: Action = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
        for key, clock in (("inCommitTimestamp", Clock.IN_COMMIT), ("timestamp", Clock.WRITER)):
            if info.get(key) is not None:
                return _ReadCommit(version, int(info[key]), clock, info, actions)
        return _ReadCommit(version, int(file.stat().st_mtime * 1_000), Clock.FILE, info, actions)

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
        if features := protocol.get("readerFeatures"):
            from tidemark.storage.delta.requirements import OF_CATALOGS

            if of_catalog := OF_CATALOGS.intersection(features):
                found = f"it requires {', '.join(of_catalog)}: a catalog may have commits that are not in the log yet"
                raise UnreadableFile(self._path / LOG, found, "ask the catalog for its newest commits")
        return dict(metadata)


@dataclass(frozen=True)
class _ReadCommit:
    """The actions of a commit, and its stamp."""

    version: int
    at_ms: int
    clock: Clock
    info: Action
    actions: Sequence[Action]

    def commit(self, column: TimeColumn | None, asked: Asked) -> Commit:
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
    try:
        noted = json.loads(info.get("userMetadata") or "{}")
    except ValueError:
        noted = {}
    of_airflow = noted if isinstance(noted, Mapping) and "dag_id" in noted else {}
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


class _Checkpoint:
    """The checkpoint in *files* of the table at *path*."""

    def __init__(self, path: Path, files: Sequence[Path]) -> None:
        self._files = [*files]
        for named in [*self._rows("sidecar", ("path",))]:
            self._files.append(path / LOG / "_sidecars" / named["path"])

    def newest(self, kind: str) -> Action | None:
        """Returns the action of this *kind*, of which a checkpoint has one; None: it is missing."""
        return next(self._rows(kind), None)

    def files(self, column: TimeColumn | None, asked: Asked) -> Mapping[str, FileTimes | None]:
        """Returns the times of the table's files in *column*, by path."""
        wanted = ["path", "stats", "deletionVector"]
        if column is not None and column.is_partition:
            wanted.append("partitionValues")
        times = {}
        for add in self._rows("add", wanted):
            stats = json.loads(add["stats"] or "{}") if "stats" in add else _of_struct(add.get("stats_parsed"), column)
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
    # Most logs have no checkpoint before their newest commits, and to import Arrow takes longer than to read them.
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with file.open("rb") as content:
            parquet, instead = pq.ParquetFile(content, coerce_int96_timestamp_unit="us"), {"stats": "stats_parsed"}
            if kind not in parquet.schema_arrow.names:
                return
            names = {field.name for field in parquet.schema_arrow.field(kind).type}
            # A checkpoint has statistics as JSON, as columns, or both; as JSON they take less memory.
            forms = (name if name in names else instead.get(name, name) for name in fields)
            wanted = [f"{kind}.{name}" for name in forms if name in names] or [kind]
            for rows in parquet.iter_batches(AT_ONCE, columns=wanted):
                yield from rows.column(0).drop_null().to_pylist()
    except FileNotFoundError:
        raise
    # Arrow raises OSError for changed bytes, too.
    except (*MALFORMED, pa.ArrowException, OSError) as error:
        first = next(iter(str(error).splitlines()), "")
        raise DamagedLog(file, f"it is damaged ({type(error).__name__}: {first})") from error
