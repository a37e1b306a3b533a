"""Finds the record at which drivers are killed or fail, by bisection of a batch.

A record that expands to more than fits into the JVM leaves no error that names it, and an error seldom names the
record. Once two drivers in a row ended in the same way at the same batch, the next driver has other processes read the
offsets of that batch and run its operators (`stream/trying.py`); each try is a separate process. The record that alone
ends its reader in the same way is skipped, and quarantined as `kills_drivers` or `fails_drivers`.

A driver that fails in its own Python code names the record at once, for people (`blame`).
"""

from __future__ import annotations

import builtins
import logging
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import polars as pl

from tidemark.control.folder import KILLED, AcceptedRecord, Control, Heartbeat
from tidemark.errors import InvalidArgument, InvalidRow, InvalidSpec, InvalidTimestamp, TidemarkError
from tidemark.kernels.records.arrivals import ACCEPTED_LOSS, FAILS_DRIVERS, KILLS_DRIVERS
from tidemark.model.topology import SubTopology
from tidemark.semantics.progress import TopicPartition
from tidemark.storage.disk import trouble_of
from tidemark.stream.driver.reason import cause_line
from tidemark.stream.read.parts import Ranges, RecordsByTopic, SkippedRecord, first_read
from tidemark.stream.schemas.registry_client import RegistryRefused
from tidemark.stream.startup.unread import record_name, unread_ranges

log = logging.getLogger("tidemark.stream")

ENOUGH = 2
"""Failures in a row in the same way before the record is searched.

Anything can end a driver once.
"""
DEATH = ""
"""The cause if the driver, its JVM or an executor was killed, or ran out of memory: no error names a cause."""
_WITHOUT_JVM = ("ConnectionRefusedError", "ConnectionResetError", "BrokenPipeError", "Py4JNetworkError")
"""How the causes begin with which a driver fails when its JVM has ended."""
_WITHOUT_MEMORY = ("MemoryError", "java.lang.OutOfMemoryError")
_WITHOUT_EXECUTOR = (
    "ExecutorLostFailure",
    "java.util.concurrent.RejectedExecutionException: Task org.apache.spark.executor.",
)
"""How the causes begin with which a task fails when its executor ends.

One record shows itself in each of these ways, by turns: as the last error of a JVM without memory, as an executor that
Spark misses, and as a task that came to an executor on its way out.
"""
_MAY_NAME_A_RECORD = (InvalidArgument, InvalidRow, InvalidTimestamp)
"""Tidemark's own errors that a record may raise. All others say themselves what they are about."""
_NEVER_OF_A_RECORD = (OSError, InvalidSpec, RegistryRefused)
_LIBRARIES = frozenset({"confluent_kafka", "cimpl", "deltalake", "obstore"})
"""Python packages that talk to brokers and stores."""
_SURROUNDINGS = re.compile(
    r"(java\.(io|net|nio)|javax\.net|org\.apache\.(kafka|hadoop|spark\.sql\.delta)|io\.delta|software\.amazon)\."
)
"""How Java's causes begin that are about brokers, networks, disks, stores and tables."""
_RECORD = "tidemark_record"
"""The attribute of an error with the name of its record."""


class TryInconclusive(TidemarkError):
    """Raised when a try ended in a way that proves nothing about its records."""


@dataclass(frozen=True)
class FailedBatch:
    """A batch that drivers in a row did not decide.

    Attributes:
        batch_id: Spark's number of the batch.
        times: how many drivers in a row ended in the same way before anything of `ranges` was decided.
        cause: the error with which they failed, as `cause_of` has it, or DEATH if they were killed.
        ranges: the offsets, per topic and partition, that the batch has yet to read.
        passed_over: records of the batch that are skipped.
        record: the record at which it fails, as `tidemark trace --record` takes it, or empty if unknown.
    """

    batch_id: int = -1
    times: int = 0
    cause: str = DEATH
    ranges: Ranges = field(default_factory=dict)
    passed_over: RecordsByTopic = field(default_factory=dict)
    record: str = ""

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> FailedBatch:
        """Reads the failed batch that a control folder has *kept*."""
        ranges: dict[str, dict[int, tuple[int, int]]] = {}
        for topic, offsets in kept["ranges"].items():
            # JSON has texts for the numbers of partitions, and lists for tuples.
            ranges[topic] = {int(number): (start, end) for number, (start, end) in offsets.items()}
        passed_over: dict[str, dict[tuple[int, int], SkippedRecord]] = {}
        for topic, records in kept["passed_over"].items():
            passed_over[topic] = {(number, offset): _skipped(of) for number, offset, of in records}
        return cls(**{**kept, "ranges": ranges, "passed_over": passed_over})

    @property
    def as_kept(self) -> dict[str, Any]:
        """Returns what a control folder keeps, for `of`."""
        passed_over: dict[str, list[tuple[int, int, dict[str, str | None]]]] = {}
        for topic, records in self.passed_over.items():
            passed_over[topic] = [(*position, _as_json(record)) for position, record in records.items()]
        # `asdict` cannot copy mappings whose keys are tuples into JSON.
        return {**asdict(replace(self, passed_over={})), "passed_over": passed_over}

    def without(self, topic: str, position: tuple[int, int], record: SkippedRecord) -> FailedBatch:
        """Returns the batch without a *record*, whose *position* is its partition and offset.

        Failures count from 0 again: another record may end drivers, too.
        """
        of_topic = {**self.passed_over.get(topic, {}), position: record}
        return replace(self, times=0, record="", passed_over={**self.passed_over, topic: of_topic})


def _skipped(of: Mapping[str, str | None]) -> SkippedRecord:
    key, value = (None if of[name] is None else b64decode(of[name] or "") for name in ("key", "value"))
    return SkippedRecord(of["reason"] or "", of["detail"], key, value)


def _as_json(record: SkippedRecord) -> dict[str, str | None]:
    key, value = (None if each is None else b64encode(each).decode() for each in (record.key, record.value))
    return {"reason": record.reason, "detail": record.detail, "key": key, "value": value}


@dataclass(frozen=True)
class Tried:
    """How the process ended that tried to read records and to run the operators on them.

    Attributes:
        cause: the error, as `FailedBatch` has it, or None if there was none.
        key: the key of the record, if the process tried one alone and could read it.
        value: the bytes of that record.
    """

    cause: str | None = None
    key: bytes | None = None
    value: bytes | None = None


Try = Callable[[Ranges], Tried]
"""Tries to read offsets in a separate process, and to run the operators on their records.

Raises TryInconclusive if that proves nothing.
"""


def cause_of(error: BaseException) -> str | None:
    """Returns the type and the first line of the cause of *error*, for `is_same`.

    Returns:
        None if *error* cannot be about a record: it is one of a broker, a disk, a store, the lease, a registry or a
        setting. DEATH if a JVM ended, or memory did.
    """
    line = cause_line(error)
    if line.startswith((*_WITHOUT_JVM, *_WITHOUT_MEMORY, *_WITHOUT_EXECUTOR)):
        return DEATH
    if isinstance(error, _NEVER_OF_A_RECORD) or type(error).__module__.partition(".")[0] in _LIBRARIES:
        return None
    if isinstance(error, TidemarkError) and not isinstance(error, _MAY_NAME_A_RECORD):
        return None
    if trouble_of(error) or _SURROUNDINGS.match(line) or _is_of_executor(line):
        return None
    return line


def _is_of_executor(cause: str) -> bool:
    """Returns True if *cause* names an error of Python that is never of a record; Spark has only the text of one.

    Such an error was raised on an executor.
    """
    module, _, name = cause.partition(":")[0].rpartition(".")
    kind = getattr(builtins, name, None)
    is_of_system = isinstance(kind, type) and issubclass(kind, OSError)
    return is_of_system or (
        module.startswith("tidemark.") and name not in {each.__name__ for each in _MAY_NAME_A_RECORD}
    )


def is_same(one: str | None, other: str | None) -> bool:
    """Returns True if two causes are of one error, wherever it was raised.

    A traceback names the module of a type, and a message may count the rows of a batch, so both are left out.
    """
    return one == other or (one is not None and other is not None and _comparable(one) == _comparable(other))


def _comparable(cause: str) -> str:
    without_module = re.sub(r"^(?:\w+\.)+(?=\w+(?::|$))", "", cause)
    return re.sub(r"0x[0-9a-f]+|\d+", "#", without_module)


def count_kill(control: Control, sub: SubTopology, before: Heartbeat | None) -> FailedBatch:
    """Returns the newest batch of *sub* with its failures, for a driver that starts.

    If the last driver, whose heartbeat is *before*, was killed, that counts as a failure, which *control* keeps.
    """
    kept = control.failed_batch(FailedBatch.of) or FailedBatch()
    # A driver that was killed between batches read no record then.
    was_killed = before is not None and before.state in KILLED and before.is_in_batch
    if not was_killed and not kept.times and not kept.passed_over and not control.accepted_records():
        return kept
    return _counted(control, sub, kept, cause=DEATH if was_killed else None)


def count_error(control: Control, sub: SubTopology, error: Exception) -> FailedBatch:
    """Counts the *error* with which a driver failed in a batch of *sub*, and keeps the count in *control*.

    Returns:
        The failed batch, or one without a number if *error* cannot be about a record.
    """
    cause = cause_of(error)
    if cause is None:
        return FailedBatch()
    kept = control.failed_batch(FailedBatch.of) or FailedBatch()
    return _counted(control, sub, kept, cause, getattr(error, _RECORD, ""))


def _counted(control: Control, sub: SubTopology, kept: FailedBatch, cause: str | None, record: str = "") -> FailedBatch:
    """Returns the failures of the newest batch of *sub*, and counts the failure with *cause* if there was one.

    Args:
        control: keeps the result.
        sub: the sub-topology.
        kept: what *control* has kept.
        cause: the error, or None if there was none.
        record: the record at which the driver failed, or empty if unknown.
    """
    batch_id, ranges = unread_ranges(control.home, sub)
    # Without unread records no record can have ended the driver.
    if not ranges:
        return FailedBatch()
    # A driver that decided a part of the batch made progress: failures count from 0 again.
    is_at_same = (kept.batch_id, kept.ranges) == (batch_id, ranges)
    is_again = is_at_same and (cause is None or is_same(cause, kept.cause))
    now = FailedBatch(
        batch_id,
        (kept.times if is_again else 0) + (cause is not None),
        kept.cause if cause is None else cause,
        ranges,
        kept.passed_over if kept.batch_id == batch_id else {},
        record or (kept.record if is_again else ""),
    )
    control.keep_failed_batch(now.as_kept)
    return now


def records_to_skip(control: Control, sub: SubTopology, failed: FailedBatch, tried: Try) -> RecordsByTopic | None:
    """Returns the records of a *failed* batch of *sub* to skip, or None if the batch is read like any other.

    Records that a person gave up are skipped. After ENOUGH failures the record that ends its reader is searched, and is
    skipped, too. *control* keeps both.
    """
    failed = _without_accepted(control, failed, tried)
    # After ENOUGH failures records are read one by one even if none is found, because Kafka's client also unpacks
    # records after those that it is to read.
    if failed.times < ENOUGH:
        return failed.passed_over or None
    how = f"failed with {failed.cause}" if failed.cause else "were killed"
    log.warning("%s drivers %s in batch %s: searching for the record", failed.times, how, failed.batch_id)
    try:
        failed = _without_found(control, sub, failed, tried)
    except TryInconclusive as error:
        log.warning("cannot search for the record that ends drivers: %s", error)
    control.keep_failed_batch(failed.as_kept)
    return failed.passed_over


def _without_accepted(control: Control, failed: FailedBatch, tried: Try) -> FailedBatch:
    """Returns the *failed* batch without the records that a person gave up."""
    for accepted in control.accepted_records():
        topic, position = accepted.topic, (accepted.partition, accepted.offset)
        start, end = failed.ranges.get(topic, {}).get(accepted.partition, (0, 0))
        is_known = position in failed.passed_over.get(topic, {})
        if accepted.batch_id != failed.batch_id or is_known or not start <= accepted.offset < end:
            continue
        log.warning("topic %r, partition %s, offset %s is skipped: %s", topic, *position, _acceptance(accepted))
        failed = failed.without(topic, position, _skipped_by_person(accepted, tried))
        control.keep_failed_batch(failed.as_kept)
    return failed


def _skipped_by_person(accepted: AcceptedRecord, tried: Try) -> SkippedRecord:
    """Returns the record that a person *accepted* to lose, with key and value if another process can read them."""
    try:
        read = tried({accepted.topic: {accepted.partition: (accepted.offset, accepted.offset + 1)}})
    except TryInconclusive:
        read = Tried()
    return SkippedRecord(ACCEPTED_LOSS, _acceptance(accepted), read.key, read.value)


def _acceptance(accepted: AcceptedRecord) -> str:
    return f"given up by {accepted.by}: {accepted.reason}"


def _without_found(control: Control, sub: SubTopology, failed: FailedBatch, tried: Try) -> FailedBatch:
    """Searches the record at which the *failed* batch fails.

    Returns:
        The batch without the record. If it is not certain that the record is the reason, the batch keeps it, and
            `record` names it.
    """
    known: dict[str, bool] = {}

    def fails(ranges: Ranges) -> bool:
        # A try takes seconds, and the search comes to the same records by several ways.
        name = repr(ranges)
        if name not in known:
            known[name] = is_same(tried(ranges).cause, failed.cause)
        return known[name]

    ranges = first_read(failed.ranges, failed.passed_over)
    found = fatal_record(ranges, fails)
    if found is None:
        log.warning("no single record ends its reader; the batch may be too large for the driver's memory")
        return failed
    topic, number, offset = found
    name = record_name(control.home, sub, TopicPartition(topic, number), offset)
    is_proven = all(not fails(others) for others in neighbours_of(ranges, found, is_death=failed.cause == DEATH))
    # It is tried again after its neighbours, because what has disappeared meanwhile was no fault of the record.
    again = tried(_alone(found))
    if not is_proven or not is_same(again.cause, failed.cause):
        log.warning("%s ends its reader, but not it alone: it is not skipped", name)
        return replace(failed, record=name)
    log.error("topic %r, partition %s, offset %s ends its reader: skipping it", topic, number, offset)
    reason = FAILS_DRIVERS if failed.cause else KILLS_DRIVERS
    skipped = SkippedRecord(reason, again.cause or None, again.key, again.value)
    return failed.without(topic, (number, offset), skipped)


Found = tuple[str, int, int]
"""Topic, partition and offset of a record."""


def fatal_record(ranges: Ranges, fails: Callable[[Ranges], bool]) -> Found | None:
    """Finds the record in *ranges* whose reader *fails* alone, in at most 2 + log2 n tries for n records.

    If there are several such records, the first is returned; if there is none, None.
    """
    # All records are tried first, then halves.
    if not ranges or not fails(ranges):
        return None
    count = sum(stop - start for offsets in ranges.values() for start, stop in offsets.values())
    at = _bisected(count, lambda first, end: fails(_within(ranges, first, end)))
    ((topic, offsets),) = _within(ranges, at, at + 1).items()
    ((number, (offset, _)),) = offsets.items()
    found = (topic, number, offset)
    # A batch of one record was tried alone.
    return found if count == 1 or fails(_alone(found)) else None


def neighbours_of(ranges: Ranges, found: Found, *, is_death: bool) -> list[Ranges]:
    """Returns what readers must be able to read if the record *found* in *ranges* is to blame, and not all records.

    These are the record's neighbours in the topic. If it has none, that is nothing: then a try that only asks the
    registries must not fail. The record after one that kills its reader (*is_death*) is left out, because both may be
    compressed together.
    """
    topic, _, _ = found
    of_topic = ranges[topic].items()
    records = [(topic, number, offset) for number, (start, end) in of_topic for offset in range(start, end)]
    at = records.index(found)
    neighbours = records[max(at - 1, 0) : at] + ([] if is_death else records[at + 1 : at + 2])
    return [_alone(neighbour) for neighbour in neighbours] or [{}]


def _alone(found: Found) -> Ranges:
    topic, number, offset = found
    return {topic: {number: (offset, offset + 1)}}


def _bisected(count: int, fails: Callable[[int, int], bool]) -> int:
    """Returns the number of the first of *count* records that fails, if there is such a record.

    *fails* gets a first number (inclusive) and an end (exclusive), and returns True if a record between them fails.
    """
    first, end = 0, count
    while end - first > 1:
        middle = (first + end) // 2
        first, end = (first, middle) if fails(first, middle) else (middle, end)
    return first


def _within(ranges: Ranges, first: int, end: int) -> Ranges:
    """Returns the part of *ranges* with the records *first* until *end*.

    Records count from 0 in the order of *ranges*; *end* is exclusive.
    """
    within: dict[str, dict[int, tuple[int, int]]] = {}
    before = 0
    for topic, offsets in ranges.items():
        for number, (start, stop) in offsets.items():
            low, high = (min(max(start + at - before, start), stop) for at in (first, end))
            before += stop - start
            if low < high:
                within.setdefault(topic, {})[number] = (low, high)
    return within


def blame(error: Exception, read: Callable[[], pl.DataFrame], again: Callable[[pl.DataFrame], object]) -> None:
    """Adds a note to *error* that names the row that causes it.

    *read* returns the parsed rows over which *again* raised the error. To find the row, *again* is called with more or
    fewer of the first rows, because what a row does may depend on those before it. Nothing is added if the error is not
    about a record, or if the rows cannot be read again.
    """
    cause = cause_of(error)
    if not cause:
        return
    try:
        rows = read()
    except Exception:
        log.warning("the record that causes the error is not known: its batch cannot be read again", exc_info=True)
        return
    if rows.is_empty():
        return

    def fails(count: int) -> bool:
        try:
            again(rows.head(count))
        except Exception as raised:
            return is_same(cause_of(raised), cause)
        return False

    at = _bisected(rows.height, lambda _, end: fails(end))
    # An error that does not depend on the rows, or that does not come again, is of no record.
    if fails(at) or not fails(at + 1):
        return
    row = rows.row(at, named=True)
    key = None if row["key"] is None else row["key"].decode(errors="replace")
    source, partition, offset = row["source"], row["partition"], row["offset"]
    error.add_note(f"the record: source {source}, partition {partition}, offset {offset}, key {key!r}")
    # Rows of files and tables have no offset of their own.
    if offset is not None:
        setattr(error, _RECORD, f"{source}/{partition}/{offset}")
