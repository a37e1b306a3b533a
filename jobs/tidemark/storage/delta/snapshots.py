"""Reads the files of a local Delta table.

Purpose: delta-rs and DuckDB's extension need 15 ms of CPU for a log of 60 commits, and DuckDB reads it twice for each
query; this needs 1.5 ms.
How it works: the newest checkpoint and the commits after it give the files. Tables that require more of their readers,
and damaged logs, have no snapshot: for those callers use delta-rs or DuckDB's extension.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from tidemark.selection import within
from tidemark.storage.object_path import ObjectPath

if TYPE_CHECKING:
    import pyarrow as pa

MOST_FILES = 200
"""For more files than this it is worth reading their bounds in the log, by which a reader leaves out files."""
VERSION_DIGITS = 20
COMMIT = re.compile(r"(\d{20})\.json")
CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")
LAST_CHECKPOINT = "_last_checkpoint"
OF_CATALOGS = frozenset({"catalogManaged", "catalogOwned-preview"})
"""Features of tables whose commits a catalog accepts; they are named as in the catalog."""
ACTIONS = ("add", "metaData", "protocol", "txn")
"""Actions of a checkpoint that a snapshot needs; only these are read."""
AT_ONCE = 1_000
"""Rows of a checkpoint that are looked at together."""
MALFORMED = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""Errors that changed bytes of a log may raise."""
Partition = tuple[tuple[str, str | None], ...]
"""The partition columns of a table, each with its value in a file; the file itself does not have these columns."""


class DataFileEntry(NamedTuple):
    """A file of a table: its `partition`, and when its youngest row was written, epoch ms."""

    partition: Partition
    written_ms: int


@dataclass(frozen=True)
class Snapshot:
    """A version of a table, as its log describes it.

    Attributes:
        path: the folder of the table.
        number: the version.
        schema: the columns, as Delta's JSON.
        properties: the properties of the table.
        partitioned_by: the partition columns.
        writer_version: Delta's version that a writer must support.
        writer_features: the features that a writer must support.
        columns: Delta's types by column.
        data_files: the files by name, relative to the folder.
        transactions: the newest batch of each application.
    """

    path: Path
    number: int
    schema: str
    properties: Mapping[str, str]
    partitioned_by: tuple[str, ...]
    writer_version: int
    writer_features: tuple[str, ...]
    columns: Mapping[str, Any]
    data_files: Mapping[str, DataFileEntry]
    transactions: Mapping[str, int]

    def version(self) -> int:
        """Returns the number of the newest commit, as delta-rs does."""
        return self.number

    def transaction_version(self, app_id: str) -> int | None:
        """Returns the newest batch of *app_id*, or None if it has committed none."""
        return self.transactions.get(app_id)

    @property
    def files(self) -> Mapping[Partition, Sequence[str]]:
        """The names of the files by partition."""
        names: dict[Partition, list[str]] = {}
        for name, file in self.data_files.items():
            names.setdefault(file.partition, []).append(name)
        return names


def snapshot_of(path: Path) -> Snapshot | None:
    """Returns the newest version of the table at *path*, or None if only delta-rs can read it."""
    if isinstance(path, ObjectPath):
        return None
    try:
        return _read(path)
    except (OSError, ValueError):  # delta-rs or `damage_of_log` has a better message for it
        return None


def damage_of_log(path: Path) -> DamagedLog | None:
    """Returns what is damaged in the log of the local table at *path*, or None if nothing is.

    Logs of a kind that `snapshot_of` does not read count as undamaged.
    """
    damage = _damage_of_log(path)
    # A writer may have made two commits while the folder was listed, so that the older one was missed.
    return damage if damage is not None and str(_damage_of_log(path)) == str(damage) else None


def _damage_of_log(path: Path) -> DamagedLog | None:
    hint = path / "_delta_log" / LAST_CHECKPOINT
    try:
        _read(path)
        version = json.loads(hint.read_bytes())["version"]
        if not any(hint.parent.glob(f"{version:020d}.checkpoint*")):
            return DamagedLog(hint, f"it names the checkpoint of version {version}, which is missing")
    except DamagedLog as damage:
        return damage
    except (*MALFORMED, OSError):  # without a readable hint, readers look for the checkpoint
        if not any(hint.parent.glob("*.json")) and any(path.glob("*.parquet")):
            return DamagedLog(hint.parent, "it has no commit, and the table has data files")
    return None


class DamagedLog(ValueError):
    """Raised for a damaged log: its `file` is missing, or no writer can have left it like this, as `found` says."""

    def __init__(self, file: Path, found: str) -> None:
        super().__init__(f"{file}: {found}")
        self.file, self.found = file, found


class AddedFiles(NamedTuple):
    """Files that commits added to a table, and their size (bytes)."""

    files: int
    size: int


def columns_of(path: Path) -> Mapping[str, Any]:
    """Returns the columns of any table, with Delta's types (JSON)."""
    from deltalake import DeltaTable

    fields = json.loads(DeltaTable(str(path)).schema().to_json())["fields"]
    return {field["name"]: field["type"] for field in fields}


def added_files(path: Path, batches: Collection[int]) -> AddedFiles | None:
    """Returns which files the commits of *batches*, consecutive ones of its driver, added to the table at *path*.

    Files into which older rows were moved do not count. None if the log may have lost some of these commits, or is in
    an object store, where each commit is a request.
    """
    if not batches:
        return AddedFiles(0, 0)
    if isinstance(path, ObjectPath):
        return None
    files = size = 0
    wanted, oldest = frozenset(batches), min(batches)
    log = path / "_delta_log"
    try:
        for version in reversed(versions_in_log(path)):
            actions = [json.loads(line) for line in (log / f"{version:020d}.json").read_text().splitlines()]
            batch = next((action["txn"]["version"] for action in actions if "txn" in action), None)
            if batch in wanted:
                added = [action["add"]["size"] for action in actions if action.get("add", {}).get("dataChange")]
                files, size = files + len(added), size + sum(added)
            # No older commit can be one of theirs.
            if version == 0 or (batch is not None and batch < oldest):
                return AddedFiles(files, size)
    except OSError:  # the log was shortened meanwhile
        return None
    return None


def versions_in_log(path: Path) -> list[int]:
    """Returns the versions of the table at *path* whose commits its log has, ascending; none without a log."""
    names = (file.name for file in (path / "_delta_log").glob("*.json"))
    return sorted(int(match[1]) for name in names if (match := COMMIT.fullmatch(name)))


class LogFile(NamedTuple):
    """A file of a Delta log, told from the file of the same name in a log that was made anew.

    `inode` is 0 in object stores, and `written_ns` is epoch ns. `tag` is the store's for the content, and empty unless
    the file was seen in a listing.
    """

    name: str
    inode: int
    written_ns: int
    tag: str = ""

    @property
    def version(self) -> int:
        """The version whose commit or checkpoint it is."""
        return int(self.name[:VERSION_DIGITS])


NO_TABLE = LogFile("", 0, 0)


def name_of_commit(version: int) -> str:
    """Returns the name of the file of the commit of *version*."""
    return f"{version:0{VERSION_DIGITS}d}.json"


def newest_log_file(path: Path) -> LogFile:
    """Returns the file of the newest commit in the log of the table at *path*, or NO_TABLE if there is none."""
    try:
        names = [file.name for file in (path / "_delta_log").iterdir() if file.suffix == ".json"]
    except OSError:
        return NO_TABLE
    return log_file(path, max(names)) if names else NO_TABLE


def log_file(path: Path, name: str) -> LogFile:
    """Returns the file *name* of the log of the table at *path*, or NO_TABLE if it is gone."""
    try:
        status = (path / "_delta_log" / name).stat()
    except OSError:
        return NO_TABLE
    return LogFile(name, status.st_ino, status.st_mtime_ns)


def log_files_from(path: Path, name: str) -> list[LogFile]:
    """Returns the file *name* of the log of the table at *path*, and those of the commits after it; none if it is gone.

    In an object store this is one request, which also shows whether a commit is missing; there is none then, either.
    """
    if isinstance(path, ObjectPath):
        return _listed_log_files(path, name)
    # Log clean-up removes the oldest commits first, so that the next one is there if any later one is.
    found, file = list[LogFile](), log_file(path, name)
    while file != NO_TABLE:
        found.append(file)
        file = log_file(path, name_of_commit(file.version + 1))
    return found


def _listed_log_files(path: ObjectPath, name: str) -> list[LogFile]:
    found, expected = list[LogFile](), name
    # A name sorts after its beginning.
    for listed in (path / "_delta_log").objects_after(name[:-1]):
        if not listed.name[:1].isdigit():  # `_last_checkpoint` and folders come after all versions
            break
        if listed.name == expected:
            found.append(LogFile(listed.name, 0, listed.written_ns, listed.tag))
            expected = name_of_commit(found[-1].version + 1)
        elif COMMIT.fullmatch(listed.name) and listed.name > expected:
            return []
    return found


def later_log_files(path: Path, newest: LogFile) -> list[LogFile] | None:
    """Returns the commits that came into the log of the table at *path* after the file *newest*.

    *newest* was the log's newest file when the log was read before. Returns None if the log is another one now: it was
    shortened or rolled back, or another table is at *path*. Files of a log never change. So if *newest* still has the
    same name, inode and time, all files before it are the same, too.
    """
    found = log_files_from(path, newest.name)
    return found[1:] if found and found[0] == newest else None


@dataclass(frozen=True)
class ReadLog:
    """A log up to its file `newest`, with the `snapshot` after it, or None if delta-rs has to read the table."""

    newest: LogFile
    snapshot: Snapshot | None = None
    actions: _Actions | None = None


def read_log(path: Path, before: ReadLog | None = None) -> ReadLog:
    """Reads the log of the table at *path*; of a log that was read *before*, only newer commits are read."""
    if before is not None and before.actions is not None:
        later = later_log_files(path, before.newest)
        # A damaged commit is found again below.
        with suppress(OSError, ValueError):
            if later is not None:
                return _with_later_commits(path, before, before.actions, later)
    newest = newest_log_file(path)
    if before is not None and newest == before.newest:
        return before
    if isinstance(path, ObjectPath) or newest == NO_TABLE:
        return ReadLog(newest)
    try:
        actions = _actions_of(path)
        # A commit that came after the look at the newest one is among them.
        return ReadLog(newest, _snapshot(actions, path), actions)
    except (OSError, ValueError):  # delta-rs or `damage_of_log` has a better message for it
        return ReadLog(newest)


def _with_later_commits(path: Path, before: ReadLog, known: _Actions, later: Sequence[LogFile]) -> ReadLog:
    """Reads the commits *later* than *before*, whose actions are *known*; raises DamagedLog or OSError."""
    # A commit that came after the look at the newest file may have been read before.
    new = [each for each in later if each.version > known.number]
    if not new:
        return before
    actions = known.copy()
    for each in new:
        file = path / "_delta_log" / each.name
        _apply(actions, file, each.version, actions_of_commit(file))
    return ReadLog(new[-1], _snapshot(actions, path), actions)


@dataclass
class _Actions:
    """Applies the actions of a log in their order. Some of its `files` may lie `elsewhere`, outside of its folder."""

    number: int = -1
    files: dict[str, DataFileEntry] = field(default_factory=dict)
    elsewhere: set[str] = field(default_factory=set)
    transactions: dict[str, int] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    protocol: Mapping[str, Any] = field(default_factory=dict)

    def apply(self, action: Mapping[str, Any]) -> None:
        """Applies *action*, a line of a commit or row of a checkpoint."""
        for kind, content in action.items():
            if content is None:  # a row of a checkpoint has a column for each kind
                continue
            match kind:
                case "add":
                    # The log has URL-encoded names.
                    name = unquote(content["path"])
                    # A commit has an object of values, and Arrow reads a map of a checkpoint as a list of pairs.
                    partition = tuple(sorted(dict(content["partitionValues"]).items()))
                    self.files[name] = DataFileEntry(partition, content["modificationTime"])
                    if not is_below(content["path"]):
                        self.elsewhere.add(name)
                case "remove":
                    name = unquote(content["path"])
                    self.files.pop(name, None)
                    self.elsewhere.discard(name)
                case "metaData":
                    self.metadata = content
                case "protocol":
                    self.protocol = content
                case "txn":
                    self.transactions[content["appId"]] = content["version"]

    def copy(self) -> _Actions:
        """Returns a copy, to which further actions can be applied."""
        transactions = dict(self.transactions)
        return replace(self, files=dict(self.files), elsewhere={*self.elsewhere}, transactions=transactions)

    def snapshot(self, path: Path) -> Snapshot | None:
        """Returns the table at *path* after all actions, or None if a reader of it needs more than a list of files."""
        schema, columns = _columns(self.metadata["schemaString"])
        # A log has values of partitions as text; values of other types would have to be converted.
        partitioned_by = tuple(self.metadata["partitionColumns"])
        partition_types = {columns[name] for name in partitioned_by}
        # Reader version 2 and later may rename columns, or delete rows without writing their file anew.
        has_plain_files = self.protocol["minReaderVersion"] == 1 and not self.elsewhere
        if not has_plain_files or not partition_types <= {"string"}:
            return None
        return Snapshot(
            path=path,
            number=self.number,
            schema=schema,
            # Arrow reads a map of a checkpoint as a list of pairs.
            properties=dict(self.metadata["configuration"]),
            partitioned_by=partitioned_by,
            writer_version=self.protocol["minWriterVersion"],
            writer_features=tuple(self.protocol.get("writerFeatures") or ()),
            columns=columns,
            data_files=self.files,
            transactions=self.transactions,
        )


@lru_cache(maxsize=256)
def _columns(schema: str) -> tuple[str, Mapping[str, Any]]:
    """Returns *schema*, and its columns' types by name. Tables of the same kind share both."""
    return schema, {each["name"]: each["type"] for each in json.loads(schema)["fields"]}


def _read(path: Path) -> Snapshot | None:
    """Returns the newest version of the local table at *path*, or None if its readers need more than a list of files.

    Raises DamagedLog, or ValueError or OSError if this module cannot read such a log.
    """
    return _snapshot(_actions_of(path), path)


def _actions_of(path: Path) -> _Actions:
    """Returns all actions of the log of the local table at *path*; raises as `_read` does."""
    state = _Actions()
    for file, number, actions in _commits(path / "_delta_log"):
        _apply(state, file, number, actions)
    return state


def _apply(state: _Actions, file: Path, number: int, actions: Iterable[Mapping[str, Any]]) -> None:
    """Applies the *actions* of *file* to *state*, which then is the version *number*."""
    state.number = number
    try:
        for action in actions:
            state.apply(action)
    except MALFORMED as error:
        raise DamagedLog(file, _malformed(error)) from error


def _snapshot(state: _Actions, path: Path) -> Snapshot | None:
    try:
        return state.snapshot(path)
    except MALFORMED as error:
        found = f"what it says of the columns of the table is missing or damaged ({type(error).__name__}: {error})"
        raise DamagedLog(path / "_delta_log", found) from error


def is_below(name: str) -> bool:
    """Returns True if the file *name* is in its table's folder."""
    first, *_ = name.split("/", 1)  # "file:" where it is a URL, empty where it is absolute
    return first != "" and ":" not in first and ".." not in unquote(name).split("/")


def _commits(log: Path) -> Iterator[tuple[Path, int, Iterable[Mapping[str, Any]]]]:
    """Yields file, number and actions of *log*'s newest checkpoint, and later commits.

    Raises DamagedLog, or ValueError if the checkpoint is of an unknown kind.
    """
    checkpoints, versions, unknown = [], [], []
    for file in log.iterdir():
        if match := CHECKPOINT.fullmatch(file.name):
            checkpoints.append(int(match[1]))
        elif match := COMMIT.fullmatch(file.name):
            versions.append(int(match[1]))
        elif ".checkpoint." in file.name:  # in several parts, or of Delta's version 2
            unknown.append(file.name)
    since = max(checkpoints, default=-1)
    # Commits before the checkpoint may stay in the log until its next clean-up.
    commits = sorted(version for version in versions if version > since)
    if unknown or (since < 0 and not commits):
        msg = f"{log}: it has {unknown or commits} after the checkpoint of version {since}"
        raise ValueError(msg)
    for expected, version in enumerate(commits, since + 1):
        if version != expected:
            raise DamagedLog(log / f"{expected:020d}.json", "it is missing, and later commits are there")
    if since >= 0:
        file = log / f"{since:020d}.checkpoint.parquet"
        yield file, since, _of_checkpoint(file)
    for version in commits:
        file = log / f"{version:020d}.json"
        yield file, version, actions_of_commit(file)


def actions_of_commit(file: Path) -> list[dict[str, Any]]:
    """Returns the actions of the commit in *file*; raises DamagedLog or OSError."""
    content = file.read_bytes()
    try:
        actions: list[dict[str, Any]] = json.loads(b"[%s]" % b",".join(filter(None, content.splitlines())))
        is_batch = any("batch_id" in action["commitInfo"] for action in actions if "commitInfo" in action)
        is_whole = not is_batch or any("txn" in action for action in actions)
    except MALFORMED as error:
        raise DamagedLog(file, _malformed(error)) from error
    if not actions:
        raise DamagedLog(file, "it is empty")
    if not is_whole:
        raise DamagedLog(file, "it is cut: it has no transaction of its batch")
    return actions


def _of_checkpoint(file: Path) -> list[dict[str, Any]]:
    """Returns the actions of the checkpoint in *file*; raises DamagedLog or OSError."""
    return [*rows_of_checkpoint(file, lambda schema: within(ACTIONS, schema.names))]


def rows_of_checkpoint(file: Path, wanted: Callable[[pa.Schema], Sequence[str]]) -> Iterator[dict[str, Any]]:
    """Yields the rows of the checkpoint in *file* with the columns of its schema that are *wanted*.

    Raises DamagedLog, or FileNotFoundError.
    """
    # Short logs have no checkpoint, and to import Arrow takes longer than to read them.
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        source = file.open("rb") if isinstance(file, ObjectPath) else file
        with pq.ParquetFile(source, coerce_int96_timestamp_unit="us") as content:
            columns = wanted(content.schema_arrow)
            for rows in content.iter_batches(AT_ONCE, columns=columns) if columns else ():
                # Most rows may be those of replaced files. They lie together, and have none of these actions.
                if any(column.null_count < len(column) for column in rows.columns):
                    yield from rows.to_pylist()
    except FileNotFoundError:
        raise
    # Arrow raises OSError for changed bytes, too.
    except (*MALFORMED, pa.ArrowException, OSError) as error:
        raise DamagedLog(file, _malformed(error)) from error


def _malformed(error: Exception) -> str:
    return f"it is damaged ({type(error).__name__}: {next(iter(str(error).splitlines()), '')})"
