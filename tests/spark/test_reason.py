"""A driver's reason begins with the cause, however often Spark has wrapped it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from tidemark.errors import Contradiction
from tidemark.stream.driver.reason import MOST_OF_A_REASON, as_reason, in_short
from tidemark.stream.startup.soundness import Unsound


def ended(rows: DataFrame, folder: Path, each_batch=None) -> Exception:
    """Returns the error that ends a query over *rows*."""
    writer = rows.writeStream.trigger(availableNow=True).option("checkpointLocation", str(folder / "checkpoint"))
    writer = writer.foreachBatch(each_batch) if each_batch else writer.format("noop")
    query: StreamingQuery = writer.start()
    with pytest.raises(StreamingQueryException) as raised:
        query.awaitTermination()
    return raised.value


@pytest.fixture
def lines(spark: SparkSession, tmp_path: Path) -> DataFrame:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"a": 1}\n')
    return spark.readStream.schema("a int").json(str(tmp_path / "in"))


def test_the_last_cause_of_java_comes_first_then_the_record_then_frames(spark, tmp_path):
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 and no more")
    error = ended(spark.readStream.schema("a int").parquet(str(tmp_path)), tmp_path)
    error.add_note("the record: source events, partition 1, offset 4, key 'poison'")
    first, record, wrapper, *rest = as_reason(error).splitlines()
    assert first.startswith("java.lang.RuntimeException: ")
    assert "cut.parquet is not a Parquet file" in first
    assert record == "the record: source events, partition 1, offset 4, key 'poison'"
    assert "[FAILED_READ_FILE.NO_HINT]" in wrapper
    # The last frame is cut off in its middle.
    assert {line[:4] for line in rest[1:-1]} == {"\tat "}
    assert len(as_reason(error)) == MOST_OF_A_REASON


def test_an_error_of_a_python_worker_comes_first(lines, tmp_path):
    def refuse(batches):
        for _ in batches:
            msg = "13 is no amount\nin the second line, too"
            raise ValueError(msg)

    error = ended(lines.mapInArrow(refuse, "a int"), tmp_path)
    assert as_reason(error).splitlines()[:2] == ["ValueError: 13 is no amount", "in the second line, too"]
    assert in_short(str(error)).startswith("ValueError: 13 is no amount in the second line, too ")


def test_an_error_inside_a_batch_comes_first(lines, tmp_path):
    def refuse(rows, _batch_id):
        rows.selectExpr("assert_true(a = 2)").collect()

    error = ended(lines, tmp_path, refuse)
    first = as_reason(error).splitlines()[0]
    assert first.startswith(
        "pyspark.errors.exceptions.captured.SparkRuntimeException: [USER_RAISED_EXCEPTION] '(a = 2)'"
    )


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectionRefusedError("no JVM"), "ConnectionRefusedError: no JVM"),
        (ValueError(), "ValueError: "),
        (
            Contradiction("the table was replaced; restart\nCaused by: x"),
            "Contradiction: the table was replaced; restart; Caused by: x",
        ),
        (
            Unsound("two things (tidemark plan shop):\ngone: a\n  remedy: restore a\n  remedy: or b\nnew: c"),
            "Unsound: two things (tidemark plan shop): gone: a; remedy: restore a; remedy: or b; new: c",
        ),
    ],
)
def test_a_plain_error_is_its_own_reason(error, reason):
    assert as_reason(error) == reason


def test_a_short_reason_has_the_messages_and_no_frames():
    error = (
        "[STREAM_FAILED] Query terminated with exception: Job aborted\n\tat org.apache.spark.X.run(X.scala:1)\n"
        'Traceback (most recent call last):\n  File "/opt/job.py", line 7, in write\n    raise ValueError(msg)\n'
        "ValueError: 13 is no amount\n\n\t... 34 more\nValueError: 13 is no amount\n"
        "=== Streaming Query ===\nCurrent State: ACTIVE"
    )
    assert in_short(error) == (
        "ValueError: 13 is no amount [STREAM_FAILED] Query terminated with exception: Job aborted"
    )
