"""Loads the classes that Spark needs for nearly everything: `make test` keeps them in an archive for JVMs to come."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from tidemark.spark import session

WRITTEN_WITHIN_S = 120

if __name__ == "__main__":
    with TemporaryDirectory() as folder, session("archiving") as spark:
        table, checkpoint = Path(folder) / "table", Path(folder) / "checkpoint"
        spark.range(10).selectExpr("id", "cast(id AS string) AS text").write.format("delta").save(str(table))
        stream = spark.readStream.format("delta").load(str(table)).writeStream.trigger(availableNow=True)
        stream = stream.option("checkpointLocation", str(checkpoint)).foreachBatch(lambda rows, _: rows.toArrow())
        stream.start().awaitTermination()
        gateway = spark.sparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()  # by which the JVM learns that it is to end
    gateway.proc.wait(WRITTEN_WITHIN_S)  # it writes the archive then
