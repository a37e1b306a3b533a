"""Lists the files of a stream's control folder, and reads those that are JSON.

Purpose: a disk, an editor or a copy may damage any file. A driver that cannot do without a file does not start, and
`tidemark doctor` names the file and the remedy. Any other damaged file counts as missing.
How it works: `FILES` says of each file which of the two it is. `read` follows it, and so does
`stream/startup/damage.py`, which checks all files of a stream. Some files would do harm if a digit in them changed,
because they tell a driver to skip records, or to set time back. These are written `sealed`, with a checksum and the
path of the file, so that a changed digit is found, and also a file of another stream.
"""

from __future__ import annotations

import json
import logging
import re
import types
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from tidemark.errors import UnreadableFile
from tidemark.storage.object_path import ObjectPath

log = logging.getLogger(__name__)

T = TypeVar("T")

RESTORE = (
    "restore the control folder and the stream's tables from a backup of one instant at which the stream was stopped, "
    "or give the topology another `name`, under which it reads everything again"
)
REMOVE_TORN = "remove it, and the file .crc of that name, while no driver runs"
_ASK_AGAIN = "remove it, and ask for it again ({}), unless it is carried out already"
FOLDERS = ("journal", "state", "checkpoint", "checkpoint/offsets", "checkpoint/commits", "checkpoint/sources")
"""The folders in which drivers write."""


@dataclass(frozen=True)
class ControlFile:
    """A file of a control folder.

    Attributes:
        name: its path in the folder. N stands for a number, and ID for any text.
        written_by: who writes it.
        says: what it says.
        remedy: what a person does if it is damaged, or empty if a driver starts without it.
    """

    name: str
    written_by: str
    says: str
    remedy: str = ""


FILES = (
    ControlFile("driver.lock", "the driver", "there is a driver: it holds flock(2) on it as long as it lives"),
    ControlFile(
        "acquire.lock", "a process that starts a driver", "one process acquires the lease at a time (flock(2))"
    ),
    ControlFile("epoch", "the driver that got the lock", "how many drivers there have been: the newest lease"),
    ControlFile("epoch.claim.N", "the same, before", "who gets epoch N, also where no lock is seen: made only once"),
    ControlFile("epochs/N", "a driver in an object store", "its last sign of life, and if it has given the lease back"),
    ControlFile("news", "who asks for something in an object store", "drivers must look at the requests"),
    ControlFile("heartbeat.json", "the driver, every second and at its end", "state, epoch, batch, offsets, when"),
    ControlFile("manager.json", "a driver in cluster mode, and its killer", "its cluster manager, and its name there"),
    ControlFile("drain.json", "the process that wants the stream to stop", "who asked, and when"),
    ControlFile("adopted.json", "a task of Airflow", "which task supervises which launch"),
    ControlFile("killed.json", "the process that kills a driver", "which launch, and the stream that hung"),
    ControlFile("launch.json", "a task of Airflow", "the newest launch: when, on which host, of which file"),
    ControlFile("failures.json", "a task of Airflow", "how often in a row drivers failed in the same way"),
    ControlFile("drain.told", "a task of Airflow", "a task has succeeded on the requested drain"),
    ControlFile("driver.pid.json", "the process that starts a driver", "the driver's process on this host"),
    ControlFile("running.json", "the driver", "its launches, also of other streams of its process"),
    ControlFile("start_ID.json", "the process that starts a driver", "a launch that the driver's process is to run"),
    ControlFile("command.txt", "the process that starts a driver", "the command of the driver's process"),
    ControlFile("asking.lock", "the process that starts a driver", "which process may ask the driver for a launch"),
    ControlFile("secrets_ID.json", "the process that starts a driver", "secrets, until the driver has read them"),
    ControlFile(
        "meanings.json",
        "the driver, when it starts",
        "the meanings of what it keeps (`stream/startup/state_compatibility.py`)",
        "restore it from a backup; or, if the topology file still means the same as when the last driver started, "
        "remove it: the next driver writes it",
    ),
    ControlFile(
        "sources.json",
        "the driver, when it starts",
        "its sources in the order of the checkpoint (`stream/startup/source_list.py`)",
        "restore it from a backup; or, if the topology file has the same sources in the same order as when the last "
        "driver started, remove it: the next driver writes it",
    ),
    ControlFile(
        "source_changes.json",
        "the driver, when its sources changed",
        "changes of sources, until a batch has recorded them in `topology_changes`",
    ),
    ControlFile(
        "begun.json",
        "`tidemark begin`",
        "operators that began without their former states",
        _ASK_AGAIN.format("begin"),
    ),
    ControlFile(
        "checkpoint.next", "the driver, when its sources changed", "the checkpoint that replaces the former", RESTORE
    ),
    ControlFile("failed_batch.json", "the driver", "how many ended in one way with one batch, and records to skip"),
    ControlFile("lineage.json", "`serve-metrics --lineage`, `publish lineage --runs`", "the last event that was sent"),
    ControlFile("schemas.json", "the driver", "schemas of a registry, by their ids"),
    ControlFile("query.json", "a listener in a team's own job", "the query that the job runs (`recorded_jobs/`)"),
    ControlFile("job.json", "a listener in a team's own job", "the last launch of the job"),
    ControlFile(
        "time_resets.json",
        "`tidemark reset-time`",
        "partitions whose time goes back: to when, who asked, and why",
        _ASK_AGAIN.format("reset-time"),
    ),
    ControlFile(
        "reopen_ID.json",
        "`tidemark requeue --late --reopen`",
        "late records that an aggregate takes in again",
        _ASK_AGAIN.format("requeue --late --reopen"),
    ),
    ControlFile("reopen_ID.written", "the same", "the records of the request are in `requeued`"),
    ControlFile(
        "loss.json",
        "`tidemark accept-loss`",
        "offsets that may be skipped: who gave them up, and why",
        _ASK_AGAIN.format("accept-loss"),
    ),
    ControlFile(
        "accepted_records.json",
        "`tidemark accept-loss --record`",
        "present records to skip: who gave them up, and why",
        _ASK_AGAIN.format("accept-loss --record"),
    ),
    ControlFile("journal/N.data.zip", "the driver", "what a batch decided (`stream/journal/entries.py`)", RESTORE),
    ControlFile(
        "journal/N.facts.zip", "the driver", "measurements of a batch (`stream/journal/unflushed.py`)", RESTORE
    ),
    ControlFile("journal/carried_out", "the driver", "the newest batch that was carried out"),
    ControlFile("state/N/N/ID.run", "the driver", "states of keys (`stream/state/runs.py`)", RESTORE),
    ControlFile(
        "measured/ID/N.facts.zip", "`api.measured` in a team's own job", "what of a batch was measured", RESTORE
    ),
    ControlFile("changed/ID/journal/N.data.zip", "`api.changed` in the same", "what a batch changed", RESTORE),
    ControlFile("changed/ID/state/N/N/ID.run", "the same", "the values of keys", RESTORE),
    ControlFile("changed/ID/left_out/ID", "the same, in shards", "which rows a batch left out", RESTORE),
    ControlFile("state/resharded.json", "`tidemark reshard`", "the states of the new shards"),
    ControlFile("checkpoint/metadata", "Spark", "an id of the query, which is made anew without it", REMOVE_TORN),
    ControlFile("checkpoint/offsets/N", "Spark", "the offsets up to which batch N reads", RESTORE),
    ControlFile("checkpoint/commits/N", "Spark", "batch N is done; without it the batch runs again", REMOVE_TORN),
    ControlFile("checkpoint/sources/N/ID", "Spark", "where a source began, or the files that it has read", RESTORE),
)


def listed(home: Path, path: Path) -> ControlFile | None:
    """Returns what FILES says of *path* in the control folder *home*, or None if it says nothing."""
    name = "/".join(path.parts[len(home.parts) :])
    return next((file for file in FILES if _pattern(file.name).fullmatch(name)), None)


@cache
def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\bN\b", r"\\d+", re.escape(name)).replace("ID", "[^/]+"))


def not_files(home: Path) -> Iterator[UnreadableFile]:
    """Yields an error for each folder in *home* that has the name of a file, and for each file with that of a folder.

    Nothing can be written there. An object store has no folders.
    """
    if isinstance(home, ObjectPath) or not home.is_dir():
        return
    for folder in FOLDERS:
        if (home / folder).exists() and not (home / folder).is_dir():
            yield UnreadableFile(home / folder, "it is a file, and must be a folder", "move it elsewhere")
    for path in sorted(path for path in home.rglob("*") if path.is_dir()):
        if listed(home, path) is not None and "/".join(path.parts[len(home.parts) :]) not in FOLDERS:
            yield _folder(home, path)


def _folder(home: Path, path: Path) -> UnreadableFile:
    file = listed(home, path)
    remedy = (file and file.remedy) or "a driver starts without it"
    return UnreadableFile(path, "it is a folder, and must be a file", f"move it elsewhere; then: {remedy}")


def refuse_folder(home: Path, *names: str) -> None:
    """Raises UnreadableFile if one of the files *names* in *home* is a folder."""
    for name in names:
        if not isinstance(home, ObjectPath) and (home / name).is_dir():
            raise _folder(home, home / name)


def unreadable(home: Path, path: Path, found: str) -> UnreadableFile:
    """Returns the error for the file at *path*, with the remedy of FILES."""
    file = listed(home, path)
    return UnreadableFile(path, found, (file and file.remedy) or "remove it")


def read(home: Path, name: str, parse: Callable[[Any], T]) -> T | None:
    """Returns what *parse* makes of the JSON in the file *name* of the control folder *home*.

    The result is None if there is no such file, or if it is damaged and a driver starts without it. Each such damage is
    logged once by a process.

    Raises:
        UnreadableFile: the file is damaged, and no driver starts without it.
    """
    path = home / name
    try:
        return parse(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (
        IsADirectoryError,
        NotADirectoryError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        RecursionError,
    ) as error:
        damage = unreadable(home, path, f"it is damaged ({type(error).__name__}: {error})")
        if (file := listed(home, path)) is not None and file.remedy:
            raise damage from error
        _warn_once(f"{path}: {damage.found}; it counts as missing")
        return None


@lru_cache(maxsize=1_000)
def _warn_once(problem: str) -> None:
    # A driver reads some files every second.
    log.warning("%s", problem)


def sealed(home: Path, name: str, content: Any) -> str:
    """Returns the text of the file *name* in *home*: *content*, which is JSON, with a checksum and the file's path."""
    path = _path_in_warehouse(home, name)
    return json.dumps({"file": path, "crc32": _checksum(path, content), "content": content})


def unsealed(home: Path, name: str, parse: Callable[[Any], T]) -> T | None:
    """Returns what *parse* makes of the content that `sealed` wrote; otherwise as `read`."""

    def opened(outer: Any) -> T:
        path, content = outer["file"], outer["content"]
        if outer["crc32"] != _checksum(path, content):
            msg = "its content does not match its checksum"
            raise ValueError(msg)
        if path != _path_in_warehouse(home, name):
            msg = f"it is the file {path}"
            raise ValueError(msg)
        return parse(content)

    return read(home, name, opened)


def _path_in_warehouse(home: Path, name: str) -> str:
    # A warehouse may be moved, so the path begins with the topology.
    return "/".join((*home.parts[-2:], name))


def _checksum(path: str, content: Any) -> int:
    return zlib.crc32(json.dumps([path, content]).encode())


def parsed(cls: type[T], content: Mapping[str, Any]) -> T:
    """Returns a *cls*, a dataclass, with the fields in *content*, an object of JSON.

    Keys that *cls* does not have are left out: a newer version, whose deploy was rolled back, may have written them.
    Raises TypeError or ValueError if a value does not have the type of its field.
    """
    types_of_fields = _types(cls)  # type: ignore[arg-type]
    names = [item.name for item in fields(cls) if item.name in content]  # type: ignore[arg-type]
    return cls(**{name: _valued(types_of_fields[name], content[name]) for name in names})


@cache
def _types(cls: type[Any]) -> dict[str, Any]:
    return get_type_hints(cls)


def _valued(kind: Any, value: Any) -> Any:
    """Returns *value*, from JSON, as the type *kind* of a field."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in {Union, types.UnionType}:
        if value is None and type(None) in arguments:
            return None
        (kind,) = (argument for argument in arguments if argument is not type(None))
        return _valued(kind, value)
    if origin is tuple and isinstance(value, list):
        return tuple(_valued(item_kind, item) for item_kind, item in _typed_items(arguments, value))
    if origin is not None and issubclass(origin, Mapping) and isinstance(value, dict):
        return {_valued(arguments[0], key): _valued(arguments[1], item) for key, item in value.items()}
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields") and isinstance(value, list):
        return kind(*(_valued(item_kind, item) for item_kind, item in zip(_types(kind).values(), value, strict=True)))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    # True is an int in Python, and not in JSON.
    if isinstance(kind, type) and isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    msg = f"must be {getattr(kind, '__name__', kind)}, got {value!r:.100}"
    raise TypeError(msg)


def _typed_items(arguments: tuple[Any, ...], value: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Returns the items of a tuple, each with its type; *arguments* are those of the type `tuple[…]`."""
    if arguments[-1:] == (...,):
        return zip([arguments[0]] * len(value), value, strict=True)
    return zip(arguments, value, strict=True)
