"""Has Spark plan a batch in silence, by a source without rows whose offset goes up.

A tick has no time: the time of a batch is that of its plan.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from tidemark.spark_session import streaming_package


class Ticks:
    """The source of ticks, for one query after the other.

    *last* is the offset of the source in the newest plan of the queries' checkpoint.

    How it works: the source is Spark's MemoryStream, of which only the offset is ever set. So there is nothing to read,
    before a crash or after it. A new query finds the offset beyond *last*, and so plans its first batch at once.
    Considered (decision 70): files, whose names Spark never forgets, and a source in Python, which needs another
    process.
    """

    def __init__(self, spark: SparkSession, last: int) -> None:
        jvm = spark._jvm
        assert jvm is not None
        self._runtime = getattr(jvm, streaming_package(spark, "runtime"))
        strings = jvm.org.apache.spark.sql.Encoders.STRING()
        self._source = self._runtime.MemoryStream.apply(strings, spark._jsparkSession.sqlContext())
        self._offset = last
        self.rows = DataFrame(self._source.toDF(), spark)
        # Without a new offset Spark would plan no batch before the first record.
        self.tick()

    def tick(self) -> None:
        """Has Spark plan a batch with its next trigger."""
        self._offset += 1
        # This is the name of Scala's setter in byte code.
        getattr(self._source, "currentOffset_$eq")(self._runtime.LongOffset(self._offset))
