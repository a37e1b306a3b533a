"""Shortens the Delta log of a hop (a table between two streams) to what its readers need.

Purpose: Spark reads a hop commit by commit, so a reader that was stopped needs all commits since then. But delta-rs
lists the whole `_delta_log` before each commit, 2 ms of CPU for 1,000 files, so a long log makes every commit more
expensive.

How it works: when a checkpoint is due, commits that every reader of the topology has read are removed. Commits that
only stopped readers need move to the folder `_kept_log` beside the log, for seven days at most. A reader that starts
moves the commits that it needs back. How far a reader has come is in its checkpoint, which Spark writes. In an object
store a listing can begin at a version, so a long log costs nothing there, and no commit is moved.

Known limitation: readers outside the topology's file are unknown. Such a reader may be stopped for LIVE_MS at most.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from deltalake import DeltaTable

from tidemark.clock import Clock
from tidemark.control.liveness import liveness_of
from tidemark.model.kinds.repartition import HopSource
from tidemark.model.settings.retention import DAY_MS
from tidemark.model.stream import Stream
from tidemark.semantics.liveness import HAS_DRIVER
from tidemark.storage.locks import LockHeld, locked
from tidemark.storage.object_path import ObjectPath
from tidemark.stream.journal.checkpoint import version_read

log = logging.getLogger(__name__)

LIVE_MS = 600_000
"""A commit stays in the log for so long, even without readers."""
KEPT_MS = 7 * DAY_MS
"""A commit that a stopped reader needs is kept for so long."""
KEPT = "_kept_log"
WAITS_S = 60.0
"""Longest wait for the lock. Moving the commits of a week back takes some seconds."""
_DIGITS = 20
"""Digits with which the name of each file of a log begins."""


def readers(stream: Stream, repartition: str) -> list[tuple[Stream, HopSource]]:
    """Returns the streams of the topology that read the hop that *repartition* of *stream* writes.

    Each comes with the source by which it reads the hop.
    """
    readers: list[tuple[Stream, HopSource]] = []
    for sub in stream.topology.sub_topologies:
        for source in sub.hops_read:
            if source.repartition == repartition:
                readers.append((Stream(stream.topology, sub, stream.layout), source))
    return readers


def trimmers(stream: Stream, clock: Clock) -> dict[str, Callable[[DeltaTable], None]]:
    """Returns, by the name of each hop that *stream* writes, a function that shortens its log. *clock* is epoch ms."""

    def trimmer(repartition: str) -> Callable[[DeltaTable], None]:
        path = stream.layout.hop(stream.topology.name, stream.sub.name, repartition)
        # A stream may read a hop in several operators.
        controls = list(dict.fromkeys(reader.control for reader, _ in readers(stream, repartition)))
        return lambda table: trim(path, table, controls, now_ms=clock())

    return {o.hop_table: trimmer(o.name) for o in stream.sub.operators if o.hop_table}


def trim(path: Path, table: DeltaTable, controls: Sequence[Path], *, now_ms: int) -> None:
    """Shortens the log of a hop to what its readers need.

    Args:
        path: folder of the hop.
        table: the hop's table.
        controls: control folders of its readers.
        now_ms: the clock, epoch ms.
    """
    # delta-rs removes commits older than the table's own property.
    table.cleanup_metadata()
    try:
        with _lock(path):
            _trim(path, str(table.metadata().id), controls, now_ms=now_ms)
    # The log is shortened with the next checkpoint.
    except (OSError, LockHeld) as error:
        log.warning("%s: cannot shorten its log for now: %s", path, error)


def put_back(path: Path, control: Path) -> None:
    """Moves the commits that the reader with the folder *control* needs back into the log of the hop at *path*."""
    kept = path / KEPT
    if isinstance(path, ObjectPath) or not kept.is_dir() or (needed := _position(path, control)) is None:
        return
    with _lock(path):
        # The newest first: a crash in between leaves a log without a gap.
        files = sorted(_files(kept), reverse=True)
        first = _checkpoint_before(needed, (file for _, file in files))
        for version, file in files:
            if version >= first:
                file.rename(path / "_delta_log" / file.name)


def is_cut(path: Path, control: Path) -> bool:
    """Returns True if the log of the hop at *path* lacks commits that the reader with the folder *control* needs."""
    position = _position(path, control)
    return position is not None and _first_commit(path)[0] > position


def begins_at(path: Path, control: Path) -> int:
    """Returns the first batch in the log of the hop at *path*, if the reader needs earlier ones, and 0 otherwise.

    *control* is the control folder of the reader.
    """
    if not is_cut(path, control):
        return 0
    for _, file in sorted(_commits(path)):
        actions = [json.loads(line) for line in file.read_text().splitlines()]
        batches = [action["commitInfo"].get("batch_id") for action in actions if "commitInfo" in action]
        if batches and batches[0] is not None:
            return int(batches[0])
    return 0


def _trim(path: Path, table_id: str, controls: Sequence[Path], *, now_ms: int) -> None:
    """Removes commits that nobody needs, and moves those that only stopped readers need; arguments as for `trim`."""
    live = list(_files(path / "_delta_log"))
    kept = [] if isinstance(path, ObjectPath) else list(_files(path / KEPT))
    until = _newest_checkpoint(live, written_before_ms=now_ms - LIVE_MS)
    needed = needed_live = until
    for control in controls:
        version = version_read(control / "checkpoint", table_id)
        if version is not None:
            needed = min(needed, version)
            # In an object store no commit is moved, so stopped readers need theirs in the log, too.
            if isinstance(path, ObjectPath) or liveness_of(control, now_ms) in HAS_DRIVER:
                needed_live = min(needed_live, version)
    checkpoints = [file for _, file in (*live, *kept)]
    slowest, first_live = _checkpoint_before(needed, checkpoints), _checkpoint_before(needed_live, checkpoints)
    # Commits before `slowest` have no reader left; those before `first_live` have only stopped ones.
    for number, file in live:
        if number < slowest:
            file.unlink(missing_ok=True)
        elif number < first_live:
            file.rename(path / KEPT / file.name)
    too_old = _newest_checkpoint(kept, written_before_ms=now_ms - KEPT_MS)
    for number, file in kept:
        if number < max(slowest, too_old):
            file.unlink(missing_ok=True)


def _position(path: Path, control: Path) -> int | None:
    return version_read(control / "checkpoint", str(DeltaTable(str(path)).metadata().id))


def _lock(path: Path) -> AbstractContextManager[None]:
    """Locks the log of the hop at *path* until the context ends."""
    # No commits are moved in an object store.
    if isinstance(path, ObjectPath):
        return nullcontext()
    (path / KEPT).mkdir(exist_ok=True)
    # No driver may move commits away while a reader moves them back.
    return locked(path / KEPT / ".lock", within_s=WAITS_S)


def _files(folder: Path) -> Iterator[tuple[int, Path]]:
    """Yields the commits and checkpoints in *folder*, each with its version."""
    for file in folder.iterdir() if folder.is_dir() else ():
        if file.name[:_DIGITS].isdecimal():
            yield int(file.name[:_DIGITS]), file


def _commits(path: Path) -> list[tuple[int, Path]]:
    return [(version, file) for version, file in _files(path / "_delta_log") if file.name[_DIGITS:] == ".json"]


def _first_commit(path: Path) -> tuple[int, Path]:
    return min(_commits(path))


def _is_checkpoint(file: Path) -> bool:
    return ".checkpoint." in file.name


def _newest_checkpoint(files: Iterable[tuple[int, Path]], *, written_before_ms: int) -> int:
    """Returns the version of the newest checkpoint *written_before_ms*, or 0."""
    checkpoints = [(version, file) for version, file in files if _is_checkpoint(file)]
    old = (version for version, file in checkpoints if file.stat().st_mtime * 1_000 < written_before_ms)
    return max(old, default=0)


def _checkpoint_before(version: int, files: Iterable[Path]) -> int:
    """Returns the version of the newest checkpoint among *files* that is at most *version*, or 0 without one."""
    versions = (int(file.name[:_DIGITS]) for file in files if _is_checkpoint(file))
    # A reader of *version* reads the log from this checkpoint on.
    return max((number for number in versions if number <= version), default=0)
