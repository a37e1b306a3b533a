"""Writes an archive of Spark's classes, from which the JVMs of drivers and jobs start; `make setup` runs it.

The argument is the file. The JVM writes it when it ends, after a small stream from one Delta table to Python, and after
it has loaded the classes of Kafka's source; it serves JVMs of the same build with the same class path. Needs no other
code of Tidemark: an image has none yet when it is made.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession  # noqa: TID253

WRITTEN_WITHIN_S = 120
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
CLASS_PATH = "spark.driver.extraClassPath"
PROJECT = Path(__file__).resolve().parents[1]
JARS = sorted((PROJECT / ".jars" / "spark").glob("*.jar"))
OF_KAFKA = ("org/apache/spark/sql/kafka010/", "org/apache/kafka/clients/", "org/apache/kafka/common/")
"""Classes of Kafka's source, which would need a broker to be loaded by use."""


def session(archive: str) -> SparkSession:
    """A session as drivers have it, whose JVM writes *archive*."""
    lines = (PROJECT / "docker" / "spark-defaults.conf").read_text(encoding="utf-8").splitlines()
    pairs = (line.strip().partition(" ") for line in lines if line.strip() and not line.startswith("#"))
    settings = {key: value.strip() for key, _, value in pairs}
    settings[JAVA_OPTIONS] += f" -XX:ArchiveClassesAtExit={archive}"
    settings[CLASS_PATH] = ":".join(map(str, JARS))
    address = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return SparkSession.builder.master("local[2]").config(map={**settings, **address}).getOrCreate()


def load_kafka(spark: SparkSession) -> None:
    """Loads all classes of OF_KAFKA; those that need others, which are not here, are left out."""
    loader = spark._jvm.java.lang.ClassLoader.getSystemClassLoader()
    for jar in JARS:
        with ZipFile(jar) as content:
            names = [name for name in content.namelist() if name.startswith(OF_KAFKA) and name.endswith(".class")]
        for name in names:
            with suppress(Py4JJavaError):
                loader.loadClass(name.removesuffix(".class").replace("/", "."))


if __name__ == "__main__":
    with TemporaryDirectory() as folder, session(sys.argv[1]) as spark:
        table, checkpoint = Path(folder) / "table", Path(folder) / "checkpoint"
        spark.range(10).selectExpr("id", "cast(id AS string) AS text").write.format("delta").save(str(table))
        stream = spark.readStream.format("delta").load(str(table)).writeStream.trigger(availableNow=True)
        stream = stream.option("checkpointLocation", str(checkpoint)).foreachBatch(lambda rows, _: rows.toArrow())
        stream.start().awaitTermination()
        load_kafka(spark)
        gateway = spark.sparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()  # by which the JVM learns that it is to end
    gateway.proc.wait(WRITTEN_WITHIN_S)  # it writes the archive then
