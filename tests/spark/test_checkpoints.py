"""How Spark writes the files of checkpoints, as drivers have it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from tidemark.spark_session import have_checkpoints_written

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
