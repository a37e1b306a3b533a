"""Counts orders by id with `transformWithStateInPandas`: arguments feed, output, checkpoint."""

import sys
from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

feed, out, checkpoint = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
spark.conf.set(
    "spark.sql.streaming.stateStore.providerClass",
    "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
)


class Counter(StatefulProcessor):
    """Keeps the number of orders of an id."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._n = handle.getValueState("n", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        n = (self._n.get()[0] if self._n.exists() else 0) + sum(len(part) for part in rows)
        self._n.update((n,))
        yield pd.DataFrame({"id": [key[0]], "n": [n]})

    def close(self) -> None:
        """Has nothing to close."""


orders = spark.readStream.schema("id long, at timestamp, amount long").option("maxFilesPerTrigger", 1).json(feed)
counts = orders.groupBy("id").transformWithStateInPandas(
    statefulProcessor=Counter(), outputStructType="id long, n long", outputMode="Update", timeMode="None"
)
writer = counts.writeStream.queryName("counts").outputMode("update").option("checkpointLocation", checkpoint)
writer.trigger(availableNow=True).foreachBatch(
    lambda rows, _: rows.write.format("delta").mode("append").save(out)
).start().awaitTermination()
