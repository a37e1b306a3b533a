"""How Spark writes the files of checkpoints, as drivers have it, and which damages it does not read."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from tidemark.spark_session import have_checkpoints_written
from tidemark.stream.startup.damage import damaged_checkpoint_files, damaged_plans

CLASS = "spark.sql.streaming.checkpointFileManagerClass"


def managers(spark: SparkSession, folder: Path) -> Any:
    """A checkpoint's writer of files in *folder*, each time another one."""
    checkpointing = spark._jvm.org.apache.spark.sql.execution.streaming.checkpointing
    path = spark._jvm.org.apache.hadoop.fs.Path(str(folder))
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    while True:
        yield getattr(getattr(checkpointing, "CheckpointFileManager$"), "MODULE$").create(path, conf)


@pytest.mark.parametrize("is_usual", [True, False])
def test_of_two_drivers_that_write_one_plan_the_second_fails(
    spark: SparkSession, tmp_path: Path, *, is_usual: bool
) -> None:
    if not is_usual:
        have_checkpoints_written(spark, tmp_path)
    try:
        older, newer = (manager for manager, _ in zip(managers(spark, tmp_path), range(2), strict=False))
        plan = spark._jvm.org.apache.hadoop.fs.Path(str(tmp_path / "7"))
        overwrites = False
        files = [manager.createAtomic(plan, overwrites) for manager in (older, newer)]
        for file, text in zip(files, ("older", "newer"), strict=True):
            file.write(bytearray(text.encode()))
        assert not (tmp_path / "7").exists(), "a plan is whole or not there"
        files[1].close()
        with pytest.raises(Py4JJavaError, match="FileAlreadyExistsException"):
            files[0].close()
        assert (tmp_path / "7").read_text() == "newer"
    finally:
        spark.conf.unset(CLASS)


def test_a_file_is_written_as_spark_writes_it_and_no_process_is_started(spark: SparkSession, tmp_path: Path) -> None:
    made = {}
    jvm = Path(f"/proc/{spark._jvm.java.lang.ProcessHandle.current().pid()}/stat")
    for name in ("usual", "own"):
        (folder := tmp_path / name).mkdir()
        if name == "own":
            have_checkpoints_written(spark, folder)
        manager, overwrites = next(managers(spark, folder)), False
        plan = spark._jvm.org.apache.hadoop.fs.Path(str(folder / "7"))
        children = page_faults_of_children(jvm)
        file = manager.createAtomic(plan, overwrites)
        file.write(bytearray(b"x" * 600))  # two checksums
        file.close()
        made[name] = {path.name: (path.stat().st_mode, path.read_bytes()) for path in folder.iterdir()}
        assert (page_faults_of_children(jvm) > children) == (name == "usual"), name
    spark.conf.unset(CLASS)
    assert made["own"].keys() == {"7", ".7.crc"}
    assert made["own"] == made["usual"]


def page_faults_of_children(stat: Path) -> int:
    """Returns those of all processes that the process has started and that have ended, from its *stat* in /proc."""
    return int(stat.read_text().rpartition(")")[2].split()[8])


@pytest.fixture(scope="module")
def read_files(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Returns a folder with the checkpoint of a query that has read three files, each in a batch."""
    home = tmp_path_factory.mktemp("read_files")
    (home / "files").mkdir()
    have_checkpoints_written(spark, home)
    for number in range(3):
        (home / "files" / f"{number}.csv").write_text(f"{number}\n")
        run(spark, home / "files", home / "checkpoint")
    yield home
    spark.conf.unset(CLASS)


def run(spark: SparkSession, files: Path, checkpoint: Path) -> None:
    query = spark.readStream.schema("n int").csv(str(files)).writeStream.foreachBatch(lambda rows, batch_id: None)
    query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "flipped": lambda content: content[:-3] + bytes([content[-3] ^ 1]) + content[-2:],
    "another type": lambda content: b"[1]",
}
IN_CI = {
    *[("metadata", "flipped"), ("offsets/2", "cut"), ("offsets/1", "flipped"), ("offsets/0", "cut")],
    *[("commits/2", "empty"), ("commits/1", "cut"), ("sources/0/2", "another type")],
    *[("offsets/.2.crc", "flipped"), ("commits/.1.crc", "empty")],
}
FILES = (
    "metadata", *(f"{log}/{n}" for log in ("offsets", "commits", "sources/0") for n in range(3)), ".metadata.crc",
    *(f"{log}/.{n}.crc" for log in ("offsets", "commits", "sources/0") for n in range(3)),
)  # fmt: skip


@pytest.mark.parametrize(
    ("file", "way"),
    [
        pytest.param(file, way, marks=() if (file, way) in IN_CI else pytest.mark.long)
        for file in FILES
        for way in DAMAGES
    ],
)
def test_spark_starts_unless_a_file_of_its_checkpoint_counts_as_damaged(
    spark: SparkSession, read_files: Path, tmp_path: Path, file: str, way: str
) -> None:
    checkpoint = Path(shutil.copytree(read_files / "checkpoint", tmp_path / "checkpoint"))
    (checkpoint / file).write_bytes(DAMAGES[way]((checkpoint / file).read_bytes()))
    found = [*damaged_checkpoint_files(checkpoint), *damaged_plans(checkpoint)]
    try:
        run(spark, read_files / "files", checkpoint)
    except Exception:
        assert found, "Spark does not start"
    else:
        assert found == []
