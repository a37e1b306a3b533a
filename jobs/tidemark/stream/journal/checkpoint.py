"""Reads Spark's checkpoint of a stream: the plans of batches, and which batches are done.

Spark documents the format of neither, so both are parsed here. Samples of each supported version of Spark are in
`tests/unit/offset_logs`, and a test compares them with what the installed version writes.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tidemark.control.files import RESTORE
from tidemark.errors import UnreadableFile
from tidemark.storage.location import durable
from tidemark.storage.object_path import ObjectPath

FORMAT = "v1"
"""First line of each file: the only format that is read."""
COMPACT = ".compact"
NO_OFFSET = "-"
"""The line of a source that has no offset yet."""
CRC_HEAD = 8
"""Bytes at the start of a file of checksums: a mark, and how many bytes each checksum covers."""
_MALFORMED = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""The errors that reading raises if a file has another form, or values of other types."""
OTHER_FORMAT = re.compile(r"v\d+")
Ends = Mapping[str, Mapping[int, int]]
"""Per topic and partition an offset, exclusive."""


class UnknownCheckpointFormat(UnreadableFile):
    """Raised for a checkpoint that another version of Spark wrote.

    Its files are whole, so no command may remove them as torn.
    """


@dataclass(frozen=True)
class Plan:
    """Spark's plan of a batch: what it reads. A batch that is run again has the same plan.

    Attributes:
        ends: per topic and partition, the offset up to which Spark reads (exclusive).
        at_ms: when Spark planned the batch, epoch ms UTC.
        versions: per id of a Delta table, the version up to which the table is read (exclusive). A table of which
            Spark still reads the initial content is left out.
    """

    ends: Ends
    at_ms: int
    versions: Mapping[str, int] = field(default_factory=dict)


def rearranged(checkpoint: Path, former: Sequence[int | None], reads: Callable[[int, str], bool]) -> dict[str, bytes]:
    """Returns the files of a new checkpoint that goes on where *checkpoint* is, for a query with other sources.

    Args:
        checkpoint: the folder of the old checkpoint.
        former: for each source of the new query, in order, its number in the old one, or None if it is new: a new
            source begins with the batch after the newest plan. The first source is that of the ticks, 0 in both.
        reads: returns True if the source with this new number reads the topic. Offsets of other topics are left out.

    Returns:
        The content of the files that Spark reads at a start, by their path in the folder.

    Raises:
        UnreadableFile: a plan is torn.
    """
    files: dict[str, bytes] = {}
    metadata = checkpoint / "metadata"
    if metadata.is_file():
        files["metadata"] = metadata.read_bytes()
    committed, _ = newest_commit(checkpoint)
    if committed is not None:
        files[f"commits/{committed}"] = (checkpoint / "commits" / str(committed)).read_bytes()
    planned = _numbers(checkpoint / "offsets")
    first = min([*planned[-2:-1], *(number for number in planned if number == committed)], default=0)
    for batch_id in (number for number in planned if number >= first):
        try:
            batch_line, lines = _plan(checkpoint, batch_id)
            kept: list[str] = []
            for new, old in enumerate(former):
                kept.append(NO_OFFSET if old is None else _without_topics(lines[old], partial(reads, new)))
        except _MALFORMED as error:
            raise UnreadableFile(checkpoint / "offsets" / str(batch_id), str(error), RESTORE) from error
        files[f"offsets/{batch_id}"] = "\n".join([FORMAT, batch_line, *kept]).encode()
    for new, old in enumerate(former):
        folder = checkpoint / "sources" / str(old)
        for path in folder.rglob("*") if old is not None and folder.is_dir() else ():
            # Checksums are of a file's content, so they stay right.
            if path.is_file():
                files["/".join(["sources", str(new), *path.parts[len(folder.parts) :]])] = path.read_bytes()
    return files


def _without_topics(line: str, reads: Callable[[str], bool]) -> str:
    """Returns the *line* of a source in a plan without the offsets of topics for which *reads* returns False."""
    offset = None if line == NO_OFFSET else json.loads(line)
    # Offsets of topics are objects, by partition; those of other sources are numbers and texts.
    if not isinstance(offset, dict) or all(not isinstance(ends, dict) or reads(name) for name, ends in offset.items()):
        return line
    return json.dumps({topic: ends for topic, ends in offset.items() if reads(topic)})


def read_plan(checkpoint: Path, batch_id: int) -> Plan:
    """Returns the plan of batch *batch_id* in Spark's *checkpoint*.

    Raises:
        UnreadableFile: the file is torn or changed, or another version of Spark wrote it.
    """
    # Spark writes the plan before the batch runs, and finds it again after a crash.
    try:
        metadata, sources = _plan(checkpoint, batch_id)
        at_ms = json.loads(metadata).get("batchTimestampMs")
        if not isinstance(at_ms, int):
            msg = f"batchTimestampMs is missing, got {metadata!r}"
            raise ValueError(msg)
        return Plan(_ends(sources), at_ms, _versions(sources))
    except _MALFORMED as error:
        raise UnreadableFile(checkpoint / "offsets" / str(batch_id), str(error), RESTORE) from error


def make_plan_durable(checkpoint: Path, batch_id: int) -> None:
    """Makes the plan of batch *batch_id* in Spark's *checkpoint* survive a loss of power.

    Spark itself does not sync its files to the disk. If the plan were missing after the batch had been decided, Spark
    would plan the batch anew with other records, and these would count as the decided ones.
    """
    if not isinstance(checkpoint, ObjectPath):
        lists_of_files: list[Path] = []
        for source, line in enumerate(_plan(checkpoint, batch_id)[1]):
            for offset in _offsets([line]):
                # The lists of files are numbered by themselves: a batch without new files has none.
                lists_of_files += checkpoint.glob(f"sources/{source}/{offset.get('logOffset', 'none')}*")
        durable([checkpoint / "metadata", checkpoint / "offsets" / str(batch_id), *lists_of_files])


def _plan(checkpoint: Path, batch_id: int) -> tuple[str, list[str]]:
    """Returns the line about the batch in the plan of *batch_id*, and the lines about its sources.

    Raises:
        ValueError: the file is torn or changed.
        UnknownCheckpointFormat: another version of Spark wrote it.
    """
    path = checkpoint / "offsets" / str(batch_id)
    text = _text(path)
    _refuse_other_format(path, text)
    # Spark's format: a line "v1", a line of JSON about the batch, and a line for each source.
    version, metadata, *sources = text.splitlines() if text.count("\n") > 1 else ["", ""]
    if version != FORMAT:
        msg = f"a plan must begin with v1 and have a line per source, got {text!r}"
        raise ValueError(msg)
    if found := mismatch_of(path):
        raise ValueError(found)
    return metadata, sources


def planned_files(checkpoint: Path, batch_id: int, source: int) -> list[tuple[str, int]]:
    """Returns the URLs of the files that Spark planned for *batch_id*, each with its modification time (epoch ms).

    *source* is the number, among the sources of the query, of one that reads a folder.
    """
    first, end = (_files_planned_until(checkpoint, number, source) for number in (batch_id - 1, batch_id))
    files: list[tuple[str, int]] = []
    for number in range(first, end):
        for entry in _entries_of_files(checkpoint / "sources" / str(source), number):
            files.append((entry["path"], entry["timestamp"]))
    return files


def _files_planned_until(checkpoint: Path, batch_id: int, source: int) -> int:
    """Returns the number of the first list of files that *batch_id* and the batches before it do not read."""
    if batch_id < 0:
        return 0
    offset = next(_offsets(_plan(checkpoint, batch_id)[1][source : source + 1]), None)
    return 0 if offset is None else int(offset["logOffset"]) + 1


def _entries_of_files(folder: Path, number: int) -> list[dict[str, Any]]:
    """Returns the entries of the list of files with this *number* in the *folder* of a source.

    Raises:
        ValueError: the list is torn.
        FileNotFoundError: there is no such list.
    """
    # Every tenth list has the content of all before it, which Spark removes later.
    compact = sorted(int(path.stem) for path in folder.glob("*.compact") if path.stem.isdecimal())
    names = [str(number), *(f"{last}.compact" for last in compact if last >= number)]
    path = next((folder / name for name in names if (folder / name).exists()), folder / str(number))
    text = path.read_text()
    _refuse_other_format(path, text)
    version, *lines = text.splitlines() or [""]
    if version != FORMAT or not all(map(_is_json, lines)):
        msg = f"{path}: notes about files must begin with v1 and have an object per line, got {text[:200]!r}"
        raise ValueError(msg)
    return [entry for entry in map(json.loads, lines) if entry["batchId"] == number]


def last_tick(checkpoint: Path) -> int:
    """Returns the offset of the source of ticks in the newest plan, or -1 before the first plan."""
    numbers = _numbers(checkpoint / "offsets")
    try:
        # The source of ticks is the first source of every query.
        return int(_plan(checkpoint, numbers[-1])[1][0]) if numbers else -1
    except _MALFORMED as error:
        raise UnreadableFile(checkpoint / "offsets" / str(numbers[-1]), str(error), RESTORE) from error


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
        offset = None if line == NO_OFFSET else json.loads(line)
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


@dataclass(frozen=True)
class TablePosition:
    """How far a stream has read a Delta table.

    Attributes:
        table_id: the id of the table.
        version: the first version yet to be read.
        first_look: the version of the table when the stream first looked at it. None once all rows that the table had
            then are read.
    """

    table_id: str
    version: int
    first_look: int | None


def positions_of_tables(checkpoint: Path) -> dict[int, TablePosition]:
    """Returns how far Delta tables are read, by the number of the source in the query.

    A source that the stream with *checkpoint* has not begun to read is left out. The result is empty if a file is torn.
    """
    committed, _ = newest_commit(checkpoint)
    # A plan that is not done counts as not read: Spark reads it again.
    numbers = [number for number in _numbers(checkpoint / "offsets") if committed is None or number >= committed]
    positions: dict[int, TablePosition] = {}
    with suppress(FileNotFoundError, *_MALFORMED):  # a running driver deletes old plans
        for number, line in enumerate(_plan(checkpoint, numbers[0])[1] if numbers else []):
            for offset in _offsets([line]):
                if "reservoirId" in offset:
                    version, first_look = int(offset["reservoirVersion"]), None
                    if offset.get("isStartingVersion"):
                        first_look = version
                    elif committed is None:
                        first_look = version - 1  # the plan of the first batch has only the end of what it reads
                    positions[number] = TablePosition(offset["reservoirId"], version, first_look)
    return positions


def version_read(checkpoint: Path, table_id: str) -> int | None:
    """Returns the first version of the Delta table *table_id* that the stream with *checkpoint* has yet to read.

    The result is None if the stream has not begun to read the table, or if a file is torn.
    """
    positions = positions_of_tables(checkpoint).values()
    return min((position.version for position in positions if position.table_id == table_id), default=None)


def plans(checkpoint: Path, *, without: Container[int] = ()) -> dict[int, Ends | None]:
    """Returns the offsets up to which each batch in *checkpoint* reads topics, oldest first.

    A plan that is torn is None. Sources with the numbers *without* are left out.
    """
    ends: dict[int, Ends | None] = {}
    most_lines = 0
    for number in _numbers(checkpoint / "offsets"):
        with suppress(FileNotFoundError):  # a running driver deletes old plans
            lines = len(_text(checkpoint / "offsets" / str(number)).splitlines())
            # All plans of a checkpoint have a line per source, so one with fewer than an earlier one is torn.
            ends[number] = None if lines < most_lines else _ends_or_none(checkpoint, number, without)
            most_lines = max(most_lines, lines)
    return ends


def newest_commit(checkpoint: Path) -> tuple[int | None, bool]:
    """Returns the newest batch that Spark recorded as done.

    Returns:
        The number of the batch, or None if no batch is done yet; and True if its file is torn.

    Raises:
        UnknownCheckpointFormat: another version of Spark wrote the file.
    """
    numbers = _numbers(checkpoint / "commits")
    if not numbers:
        return None, False
    path = checkpoint / "commits" / str(numbers[-1])
    text = _text(path)
    _refuse_other_format(path, text)
    version, *lines = text.splitlines() or [""]
    has_form = version == FORMAT and bool(lines) and all(_is_object(line) for line in lines)
    return numbers[-1], not has_form or bool(mismatch_of(path))


def committed_at_ms(checkpoint: Path, batch_id: int) -> int | None:
    """Returns when Spark recorded *batch_id* as done, epoch ms, or None if it has not."""
    with suppress(FileNotFoundError):
        # The file of a commit has no time in it, so its time of writing counts, by the file system's clock.
        return (checkpoint / "commits" / str(batch_id)).stat().st_mtime_ns // 1_000_000
    return None


def without_offset(checkpoint: Path, batch_id: int) -> set[int]:
    """Returns the numbers of the sources without an offset in the plan of *batch_id*; empty if the plan is torn."""
    with suppress(FileNotFoundError, *_MALFORMED):
        return {number for number, line in enumerate(_plan(checkpoint, batch_id)[1]) if line == NO_OFFSET}
    return set()


def _ends_or_none(checkpoint: Path, number: int, without: Container[int]) -> Ends | None:
    try:
        metadata, sources = _plan(checkpoint, number)
        sources = [line for source, line in enumerate(sources) if source not in without]
        return _ends(sources) if _is_object(metadata) else None
    except _MALFORMED:
        return None


def _refuse_other_format(path: Path, text: str) -> None:
    """Raises UnknownCheckpointFormat if *text* begins with another format than FORMAT.

    The first line of a torn file may be incomplete, and says nothing.
    """
    first, ended, _ = text.partition("\n")
    if ended and first != FORMAT and OTHER_FORMAT.fullmatch(first):
        found = f"the format of this file must be {FORMAT}, got {first}, of another version of Spark"
        remedy = "run the stream with a version of pyspark that this version of Tidemark supports (docs/upgrades.md)"
        raise UnknownCheckpointFormat(path, found, remedy)


def _numbers(folder: Path) -> list[int]:
    # Spark writes no folder with a number as its name, and no number with leading zeros.
    names = [file.name for file in folder.glob("[0-9]*") if file.name.isdecimal() and not file.is_dir()]
    return sorted(int(name) for name in names if name == str(int(name)))


def _text(path: Path) -> str:
    return path.read_bytes().decode(errors="replace")


def mismatch_of(path: Path) -> str:
    """Returns how the file at *path* differs from the checksums beside it, or empty if it does not, or has none.

    Hadoop's local file system keeps a CRC-32 for each block of bytes, and refuses a file that does not match.
    """
    checksums = path.with_name(f".{path.name}.crc")
    if isinstance(path, ObjectPath) or not checksums.is_file():
        return ""
    sums = checksums.read_bytes()
    # Hadoop ignores a file of checksums without this head, too.
    if len(sums) < CRC_HEAD or not sums.startswith(b"crc\0"):
        return ""
    block, content = int.from_bytes(sums[4:CRC_HEAD], "big"), path.read_bytes()
    for number, start in enumerate(range(0, len(content), max(block, 1))):
        position = CRC_HEAD + 4 * number
        if sums[position : position + 4] != zlib.crc32(content[start : start + block]).to_bytes(4, "big"):
            return f"it does not match the checksums in {checksums.name}"
    return ""


def damaged_sources(checkpoint: Path) -> Iterator[tuple[Path, str]]:
    """Yields the damaged files below `sources/` of *checkpoint*, each with what is wrong with it.

    A source of files keeps lists of all files that it has read there. From the newest compacted list on, no number may
    be missing up to the list that the newest plan names. Spark reads what other sources keep there only before the
    first plan.
    """
    has_plan, read_to = bool(_numbers(checkpoint / "offsets")), dict(enumerate(_logs_read_to(checkpoint)))
    for folder in sorted((checkpoint / "sources").glob("[0-9]*")):
        newest = read_to.get(int(folder.name)) if folder.name.isdecimal() else None
        if not folder.is_dir() or (has_plan and newest is None):
            continue
        files = {file.name.removesuffix(COMPACT): file for file in folder.iterdir() if not file.is_dir()}
        logs = {int(number): file for number, file in files.items() if number.isdecimal()}
        first = max((number for number, file in logs.items() if file.name.endswith(COMPACT)), default=0)
        for number, file in sorted(logs.items()):
            if number >= first and (found := _damage_of_log(file)):
                yield file, found
        for number in range(first, -1 if newest is None else newest + 1):
            if number not in logs:
                yield folder / str(number), "it is missing, and the source reads it at a start"


def _logs_read_to(checkpoint: Path) -> list[int | None]:
    """Returns, by source, the number of the newest list of files that the newest plan names; None for other sources."""
    numbers = _numbers(checkpoint / "offsets")
    logs: list[int | None] = []
    with suppress(FileNotFoundError, UnreadableFile, *_MALFORMED):
        for line in _plan(checkpoint, numbers[-1])[1] if numbers else []:
            offset = None if line == NO_OFFSET else json.loads(line)
            log = offset.get("logOffset") if isinstance(offset, dict) else None
            logs.append(log if isinstance(log, int) else None)
    return logs


def _damage_of_log(file: Path) -> str:
    text = _text(file).lstrip("\0")
    version, *lines = text.splitlines() or [""]
    if not OTHER_FORMAT.fullmatch(version) or not all(map(_is_json, lines)):
        return "it is incomplete or changed"
    return mismatch_of(file)


def _is_object(line: str) -> bool:
    return _is_json(line, dict)


def _is_json(line: str, kind: type = object) -> bool:
    try:
        return isinstance(json.loads(line), kind)
    except (ValueError, RecursionError):
        return False
