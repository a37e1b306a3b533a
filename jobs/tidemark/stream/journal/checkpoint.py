"""Reads Spark's checkpoint of a stream: planned batches and done batches.

Spark documents the format of neither, so both are parsed here. Samples of each supported version of Spark are in
`tests/unit/offset_logs`, and a test compares them with what the installed version writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidemark.errors import Contradiction
from tidemark.storage.location import durable
from tidemark.storage.object_path import ObjectPath

FORMAT = "v1"
"""First line of each file: the only format that is read."""
OTHER_FORMAT = re.compile(r"v\d+")
Ends = Mapping[str, Mapping[int, int]]
"""Per topic and partition an offset, exclusive."""


class UnknownCheckpointFormat(Contradiction):
    """Raised for a checkpoint that another version of Spark wrote.

    Its files are whole, so no command may remove them as torn.
    """


@dataclass(frozen=True)
class Plan:
    """A batch before it is read.

    A batch that is run again has the same plan.

    Attributes:
        ends: per topic and partition, the offset up to which Spark reads.
        at_ms: when Spark planned the batch, epoch ms UTC.
        versions: per id of a Delta table, the version before which the table is read completely. A table of which
            Spark still reads the initial content has none.
    """

    ends: Ends
    at_ms: int
    versions: Mapping[str, int] = field(default_factory=dict)


def read_plan(checkpoint: Path, batch_id: int) -> Plan:
    """Returns the plan of batch *batch_id* in Spark's *checkpoint*.

    Raises:
        ValueError: the file is torn.
        UnknownCheckpointFormat: another version of Spark wrote it.
    """
    # Spark writes the plan before the batch runs, and finds it again after a crash.
    metadata, sources = _plan(checkpoint, batch_id)
    at_ms = json.loads(metadata).get("batchTimestampMs")
    if not isinstance(at_ms, int):
        msg = f"{checkpoint}/offsets/{batch_id}: batchTimestampMs is missing, got {metadata!r}; restore the file"
        raise ValueError(msg)
    return Plan(_ends(sources), at_ms, _versions(sources))


def make_plan_durable(checkpoint: Path, batch_id: int) -> None:
    """Makes the plan of batch *batch_id* in Spark's *checkpoint* survive a loss of power.

    Spark syncs nothing. After a decision the plan must not be missing: Spark would plan the batch anew, with other
    records, and they would count as those of the decision.
    """
    if not isinstance(checkpoint, ObjectPath):
        lists_of_files: list[Path] = []
        for source, line in enumerate(_plan(checkpoint, batch_id)[1]):
            for offset in _offsets([line]):
                # Notes about files have a number of their own: a batch without new files has none.
                lists_of_files += checkpoint.glob(f"sources/{source}/{offset.get('logOffset', 'none')}*")
        durable([checkpoint / "metadata", checkpoint / "offsets" / str(batch_id), *lists_of_files])


def _plan(checkpoint: Path, batch_id: int) -> tuple[str, list[str]]:
    """Returns the lines of a plan: the batch's, then each source's.

    Raises:
        ValueError: the file is torn.
        UnknownCheckpointFormat: another version of Spark wrote it.
    """
    path = checkpoint / "offsets" / str(batch_id)
    text = path.read_text()
    _refuse_other_format(path, text)
    # Spark's format: a line "v1", a line of JSON about the batch, and a line for each source.
    version, metadata, *sources = text.splitlines() if text.count("\n") > 1 else ["", ""]
    if version != FORMAT:
        msg = f"{checkpoint}/offsets/{batch_id}: a plan must begin with v1 and have a line per source, got {text!r}"
        raise ValueError(msg)
    return metadata, sources


def planned_files(checkpoint: Path, batch_id: int, source: int) -> list[tuple[str, int]]:
    """Returns the files that Spark planned for *batch_id*, each with its modification time (epoch ms).

    They are of the *source* with this place among the query's, which reads a folder. Files are URLs.
    """
    first, end = (_files_planned_until(checkpoint, number, source) for number in (batch_id - 1, batch_id))
    files: list[tuple[str, int]] = []
    for number in range(first, end):
        for entry in _entries_of_files(checkpoint / "sources" / str(source), number):
            files.append((entry["path"], entry["timestamp"]))
    return files


def _files_planned_until(checkpoint: Path, batch_id: int, source: int) -> int:
    """Returns the number of the first note of files that is not planned by *batch_id*."""
    if batch_id < 0:
        return 0
    offset = next(_offsets(_plan(checkpoint, batch_id)[1][source : source + 1]), None)
    return 0 if offset is None else int(offset["logOffset"]) + 1


def _entries_of_files(folder: Path, number: int) -> list[dict[str, Any]]:
    """Returns what Spark noted about files under *number* in the *folder* of a source.

    Raises:
        ValueError: the notes are torn.
        FileNotFoundError: there are none.
    """
    # Every tenth file has the content of all before it, which Spark removes later.
    compact = sorted(int(path.stem) for path in folder.glob("*.compact") if path.stem.isdecimal())
    names = [str(number), *(f"{of}.compact" for of in compact if of >= number)]
    path = next((folder / name for name in names if (folder / name).exists()), folder / str(number))
    text = path.read_text()
    _refuse_other_format(path, text)
    version, *lines = text.splitlines() or [""]
    if version != FORMAT or not all(map(_is_json, lines)):
        msg = f"{path}: notes about files must begin with v1 and have an object per line, got {text[:200]!r}"
        raise ValueError(msg)
    return [entry for entry in map(json.loads, lines) if entry["batchId"] == number]


def last_tick(checkpoint: Path) -> int:
    """Returns the offset of the source of ticks in the newest plan.

    -1 before the first plan.
    """
    numbers = _numbers(checkpoint / "offsets")
    # The source of ticks is the first source of every query.
    return int(_plan(checkpoint, numbers[-1])[1][0]) if numbers else -1


def _ends(sources: Iterable[str]) -> Ends:
    ends: dict[str, Mapping[int, int]] = {}
    for offsets in _offsets(sources):
        # A topic has an object of its partitions; other sources have numbers and texts.
        for topic, partitions in offsets.items():
            if isinstance(partitions, dict):
                ends[topic] = {int(number): end for number, end in partitions.items()}
    return ends


def _offsets(sources: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yields the offsets in lines of a plan that are JSON objects."""
    for line in sources:
        # Spark writes "-" for a source that has no offset yet.
        offset = None if line == "-" else json.loads(line)
        if isinstance(offset, dict):
            yield offset


def _versions(sources: Iterable[str]) -> dict[str, int]:
    versions: dict[str, int] = {}
    for offset in _offsets(sources):
        if "reservoirVersion" in offset:
            # While Spark reads a table's initial content, no version was read completely.
            version = -1 if offset.get("isStartingVersion") else offset["reservoirVersion"]
            table = offset["reservoirId"]
            # If two sources read one table, the slower one counts.
            versions[table] = min(version, versions.get(table, version))
    return {table: version for table, version in versions.items() if version >= 0}


def version_read(checkpoint: Path, table_id: str) -> int | None:
    """Returns the first version of a Delta table yet to be read.

    None: the stream with *checkpoint* has not begun to read the table *table_id*, or the file is torn.
    """
    committed, _ = newest_commit(checkpoint)
    # A plan that is not done counts as not read: Spark reads it again.
    numbers = [number for number in _numbers(checkpoint / "offsets") if committed is None or number >= committed]
    with suppress(ValueError, FileNotFoundError):  # a running driver deletes old plans
        lines = _plan(checkpoint, numbers[0])[1] if numbers else []
        offsets = [offset for offset in _offsets(lines) if offset.get("reservoirId") == table_id]
        return min((int(offset["reservoirVersion"]) for offset in offsets), default=None)
    return None


def plans(checkpoint: Path) -> dict[int, Ends | None]:
    """Returns the ends of every batch in *checkpoint*, oldest first.

    None for a plan that is torn.
    """
    ends: dict[int, Ends | None] = {}
    most = 0
    for number in _numbers(checkpoint / "offsets"):
        with suppress(FileNotFoundError):  # a running driver deletes old plans
            lines = len((checkpoint / "offsets" / str(number)).read_text().splitlines())
            # A query never changes its sources, so a plan with fewer lines than an earlier one is torn.
            ends[number] = None if lines < most else _ends_or_none(checkpoint, number)
            most = max(most, lines)
    return ends


def newest_commit(checkpoint: Path) -> tuple[int | None, bool]:
    """Returns the newest batch that Spark recorded as done.

    Returns:
        The batch's number, None before the first; and True if its file is torn.

    Raises:
        UnknownCheckpointFormat: another version of Spark wrote the file.
    """
    numbers = _numbers(checkpoint / "commits")
    if not numbers:
        return None, False
    path = checkpoint / "commits" / str(numbers[-1])
    text = path.read_text()
    _refuse_other_format(path, text)
    version, *lines = text.splitlines() or [""]
    return numbers[-1], version != FORMAT or not lines or not all(_is_json(line) for line in lines)


def committed_at_ms(checkpoint: Path, batch_id: int) -> int | None:
    """Returns when Spark recorded *batch_id* as done, epoch ms.

    None if the checkpoint has no record.
    """
    with suppress(FileNotFoundError):
        # The file of a commit has no time in it, so its time of writing counts, by the file system's clock.
        return (checkpoint / "commits" / str(batch_id)).stat().st_mtime_ns // 1_000_000
    return None


def _ends_or_none(checkpoint: Path, number: int) -> Ends | None:
    try:
        return _ends(_plan(checkpoint, number)[1])
    except ValueError:
        return None


def _refuse_other_format(path: Path, text: str) -> None:
    """Raises UnknownCheckpointFormat unless *text* may be of FORMAT.

    A torn file may be, because its first line may be incomplete.
    """
    first, ended, _ = text.partition("\n")
    if ended and first != FORMAT and OTHER_FORMAT.fullmatch(first):
        msg = (
            f"{path}: the format of this file must be {FORMAT}, got {first}, of another version of Spark; "
            "run the stream with a version of pyspark that this version of Tidemark supports (docs/upgrades.md)"
        )
        raise UnknownCheckpointFormat(msg)


def _numbers(folder: Path) -> list[int]:
    return sorted(int(file.name) for file in folder.glob("[0-9]*") if file.name.isdecimal())


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
