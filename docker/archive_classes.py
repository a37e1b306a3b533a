"""Writes an archive of Spark's classes, from which the JVMs of drivers and jobs start; `make setup` runs it.

The argument is the file. The JVM writes it when it ends, after a small stream from one Delta table to Python; it serves
JVMs of the same build with the same class path. Needs no other code of Tidemark: an image has none yet when it is made.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession  # noqa: TID253

WRITTEN_WITHIN_S = 120
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
PROJECT = Path(__file__).resolve().parents[1]


def session(archive: str) -> SparkSession:
    """Returns a session like that of a driver, whose JVM writes *archive*."""
    lines = (PROJECT / "docker" / "spark-defaults.conf").read_text(encoding="utf-8").splitlines()
    pairs = (line.strip().partition(" ") for line in lines if line.strip() and not line.startswith("#"))
    settings = {key: value.strip() for key, _, value in pairs}
    settings[JAVA_OPTIONS] += f" -XX:ArchiveClassesAtExit={archive}"
    jars = ",".join(sorted(map(str, (PROJECT / ".jars" / "spark").glob("*.jar"))))
    address = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return SparkSession.builder.master("local[2]").config(map={**settings, **address, "spark.jars": jars}).getOrCreate()


if __name__ == "__main__":
    with TemporaryDirectory() as folder, session(sys.argv[1]) as spark:
        table, checkpoint = Path(folder) / "table", Path(folder) / "checkpoint"
        spark.range(10).selectExpr("id", "cast(id AS string) AS text").write.format("delta").save(str(table))
        stream = spark.readStream.format("delta").load(str(table)).writeStream.trigger(availableNow=True)
        stream = stream.option("checkpointLocation", str(checkpoint)).foreachBatch(lambda rows, _: rows.toArrow())
        stream.start().awaitTermination()
        gateway = spark.sparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()  # by which the JVM learns that it is to end
    gateway.proc.wait(WRITTEN_WITHIN_S)  # it writes the archive then
