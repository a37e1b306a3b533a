"""Reads, in a separate process, records that may end their reader, and decides them as a batch.

It does what a driver does before it decides: Spark reads, Python parses, the sources take in, and the operators run on
the state after the newest decision, in one process also where the stream has shards. Nothing is written. If the
batch also reads tables, folders or hops, only its records of topics are read here.

    python -m tidemark.stream.trying < request.json

Standard output has the answer. Exit status: 0 there is an answer; 3 the JVM ended; 1 an error that is not about a
record, and proves nothing about the records. The process may be killed, too.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import polars as pl
from pyspark import SparkContext
from pyspark.sql import SparkSession

from tidemark.clock import wall_clock_ms
from tidemark.control.folder import Control
from tidemark.model.project.connections import Clusters, addressed_clusters
from tidemark.model.project.layout import Layout
from tidemark.model.project.registries import with_secrets
from tidemark.model.stream import Stream
from tidemark.model.topology import Time, load, on_processing_time
from tidemark.safe_text import log_to_stderr
from tidemark.spark_session import local_settings, session
from tidemark.storage.library import PACKAGE
from tidemark.storage.location import location
from tidemark.stream.decide.decision import Decider
from tidemark.stream.driver.ticks import Ticks
from tidemark.stream.engine import load_state
from tidemark.stream.journal.batch import MicroBatch
from tidemark.stream.journal.checkpoint import read_plan
from tidemark.stream.journal.entries import Journal
from tidemark.stream.kafka.broker import Answers
from tidemark.stream.kafka.client import KafkaBroker
from tidemark.stream.kafka.numbering import multi_topic_sources, number_ranges, with_topic_partitions
from tidemark.stream.operate.steps import Steps
from tidemark.stream.read.beyond_spark import BeyondSpark, overflows
from tidemark.stream.read.data_loss import LossCheck, nothing_to_reread
from tidemark.stream.read.joined_tables import Reference
from tidemark.stream.read.parts import BatchPart, Ranges
from tidemark.stream.read.sources import parsed_batch, rows_of_part, stream, with_numbers
from tidemark.stream.read.table_marks import TableMarks
from tidemark.stream.schemas.known_schemas import SchemaStore
from tidemark.stream.startup.fatal import DEATH, Tried, TryInconclusive, cause_of
from tidemark.stream.startup.unread import numbered_progress
from tidemark.stream.state.files import StateFiles

JVM_ENDED = 3
DEADLY = frozenset({signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL})
WITHIN_S = 600.0
"""The longest time of a try; a longer one proves nothing."""
POLL_S = 0.2
ENDS_WITHIN_S = 10.0
"""The longest time that a JVM out of memory may still answer."""
MOST_KEPT = 10_000_000
"""Most bytes of a record that are kept for `quarantine`."""


@dataclass(frozen=True, kw_only=True)
class TriedStream:
    """The stream whose records are tried, as its driver was told to run it.

    Attributes:
        topology: the file of the topology.
        sub_topology: the name of the sub-topology.
        warehouse: where its tables and control folders are.
        time: the record time to use.
        batch_id: Spark's number of the batch that has the records.
        bootstrap: addresses of clusters, by name.
        secrets: values of secrets of clusters, by their places.
    """

    topology: str
    sub_topology: str
    warehouse: str
    time: str
    batch_id: int
    bootstrap: list[tuple[str, str]]
    secrets: dict[str, str]


def try_apart(ranges: Ranges, tried: TriedStream, spark: SparkSession, check: Callable[[], None]) -> Tried:
    """Returns how a separate process ended that read *ranges* of a stream and ran its operators.

    Args:
        ranges: The offsets to read, by topic and partition. If there are none, only the registries are asked.
        tried: The stream.
        spark: The session whose jars and memory the JVM of the process gets. With more memory than the driver's the
            record might not kill the process.
        check: Called meanwhile; raises when there is no more time.

    Raises:
        TryInconclusive: The process ended otherwise, or took too long.
    """
    # With the driver's gateway the process would use the JVM of the driver.
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_GATEWAY")}
    # The package may be in an archive that only this process has on its path.
    paths = os.pathsep.join(filter(None, (str(PACKAGE.parent), own.get("PYTHONPATH"))))
    environ = {**own, "PYTHONPATH": paths, "PYSPARK_SUBMIT_ARGS": "pyspark-shell"}
    command = [sys.executable, "-m", "tidemark.stream.trying"]
    with TemporaryFile() as answer:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=answer, env=environ)
        try:
            assert process.stdin is not None
            # Secrets go by standard input, which no other user can read.
            request = {"stream": vars(tried), "ranges": ranges, "settings": local_settings(spark)}
            process.stdin.write(json.dumps(request).encode())
            process.stdin.close()
            status = _awaited(process, check)
        finally:
            # A drain ends the try, and must not leave its process behind.
            process.kill()
            process.wait()
        if status == JVM_ENDED or -status in DEADLY:
            return Tried(DEATH)
        if status == 0:
            answer.seek(0)
            return _answered(json.load(answer))
    msg = f"the process that read {ranges} ended with status {status}"
    raise TryInconclusive(msg)


def _awaited(process: subprocess.Popen[bytes], check: Callable[[], None]) -> int:
    """Returns the exit status of *process*."""
    ends_at = time.monotonic() + WITHIN_S
    while (status := process.poll()) is None:
        check()
        if time.monotonic() > ends_at:
            msg = f"the process that reads records took longer than {WITHIN_S:g} s"
            raise TryInconclusive(msg)
        time.sleep(POLL_S)
    return status


def _answered(answer: Mapping[str, str | None]) -> Tried:
    key, value = (None if answer[name] is None else b64decode(answer[name] or "") for name in ("key", "value"))
    return Tried(answer["cause"], key, value)


def main() -> int:
    """Reads the ranges that standard input names."""
    # What Spark and its JVM print must not come between.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    log_to_stderr()
    request = json.load(sys.stdin)
    ranges: dict[str, dict[int, tuple[int, int]]] = {}
    for topic, offsets in request["ranges"].items():
        ranges[topic] = {int(number): (start, end) for number, (start, end) in offsets.items()}
    spark = session("tidemark-trying", like=request["settings"])
    content: dict[str, str | None] = {"key": None, "value": None}
    cause = None
    try:
        _try_here(spark, TriedStream(**request["stream"]), ranges, content)
    # A panic of polars is no Exception.
    except BaseException as error:
        # Without a JVM, PySpark raises errors of its socket.
        if _has_jvm_ended():
            return JVM_ENDED
        if (cause := cause_of(error)) is None:
            raise
    json.dump({"cause": cause, **content}, answers)
    answers.close()
    with suppress(Exception):
        spark.stop()
    return 0


def _try_here(spark: SparkSession, tried: TriedStream, ranges: Ranges, content: dict[str, str | None]) -> None:
    """Reads *ranges*, and decides their records as a batch.

    If there is only one record, *content* gets its key and its value.
    """
    topology = load(Path(tried.topology))
    if tried.time == Time.PROCESSING:
        topology = on_processing_time(topology)
    sub = topology.sub_topology(tried.sub_topology)
    stream_of = Stream(topology, sub, Layout(location(tried.warehouse)))
    addresses = [(name, address) for name, address in tried.bootstrap]
    clusters = addressed_clusters(
        topology.clusters_used, topology.clusters, addresses, os.environ, secrets=tried.secrets
    )
    schemas = SchemaStore(with_secrets(topology.registries_used, os.environ, tried.secrets), None)
    raw = _raw(spark, stream_of, clusters, ranges)
    of_topics = raw.filter(pl.col("offset").is_not_null())
    if of_topics.is_empty():
        # A registry that is down must not look like a record that raises an error.
        schemas.require_answers()
    if of_topics.height == 1:
        content |= _kept(of_topics.row(0, named=True))
    rows = parsed_batch(raw, sub.operators, schemas.resolve(raw, sub.operators))
    broker = KafkaBroker(clusters, topology.name, sub.name, wall_clock_ms)
    decide_alone(stream_of, broker, rows, tried.batch_id)


def _raw(spark: SparkSession, stream_of: Stream, clusters: Clusters, ranges: Ranges) -> pl.DataFrame:
    """Returns the records in *ranges*, with the columns of all sources of the stream."""
    sub, layout = stream_of.sub, stream_of.layout
    was = numbered_progress(stream_of.control, sub)
    part = BatchPart(
        number_ranges(sub, ranges, was),
        is_first=False,
        is_last=True,
        one_by_one=True,
        places={
            source.name: with_topic_partitions(source, was).topic_partitions for source in multi_topic_sources(sub)
        },
    )
    columns = stream(spark, sub, layout, stream_of.topology.name, clusters, Ticks(spark, -1))
    nothing = with_numbers(spark.createDataFrame([], columns.schema), sub, was)
    try:
        return pl.DataFrame(rows_of_part(nothing, sub, clusters, part).toArrow())
    except Exception as error:
        if not overflows(error):
            raise
    # A driver reads such records in the same way.
    others = pl.DataFrame(rows_of_part(nothing, sub, clusters, part, topics_too=False).toArrow())
    return pl.concat([others, BeyondSpark(clusters).rows(sub.outside_sources, part)], how="diagonal")


def _kept(record: Mapping[str, Any]) -> dict[str, str | None]:
    """Returns key and value of a *record* in a form for JSON; none of one that is too large to be kept."""
    contents = {name: record[name] for name in ("key", "value")}
    if sum(len(each) for each in contents.values() if each is not None) > MOST_KEPT:
        return dict.fromkeys(contents)
    return {name: None if each is None else b64encode(each).decode() for name, each in contents.items()}


def decide_alone(stream_of: Stream, broker: Answers, rows: pl.DataFrame, planned_id: int) -> None:
    """Decides *rows* as the next batch of a stream, which Spark planned as *planned_id*, and forgets the decision."""
    topology, sub, control = stream_of.topology, stream_of.sub, Control(stream_of.control)
    journal, was = Journal(stream_of.control / "journal", "data"), numbered_progress(stream_of.control, sub)
    steps = Steps(topology, Reference(stream_of.layout.warehouse))
    load_state(steps, stream_of, journal, StateFiles(stream_of, journal), was)
    decider = Decider.of(
        stream_of,
        steps,
        broker,
        LossCheck(f"{topology.name} {sub.name}", control.accepted_loss, nothing_to_reread),
        TableMarks(stream_of.layout.warehouse),
        wall_clock_ms,
        slow_ms={},
    )
    now_ms = wall_clock_ms()
    # Without ends, progress goes by the rows, so a part of a batch is a shorter batch.
    batch = MicroBatch(
        batch_id=was.batch_id + 1,
        epoch=control.epoch(),
        decided_at_ms=was.decided_at(read_plan(stream_of.control / "checkpoint", planned_id).at_ms),
        started_at_ms=now_ms,
        read_at_ms=now_ms,
    )
    decider.decide_rows(rows, batch, was)


def _has_jvm_ended() -> bool:
    jvm = getattr(SparkContext._gateway, "proc", None)
    with suppress(subprocess.TimeoutExpired):
        return jvm is not None and jvm.wait(ENDS_WITHIN_S) is not None
    return False


if __name__ == "__main__":
    sys.exit(main())
