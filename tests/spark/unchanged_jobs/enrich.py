"""Writes each batch by `foreachBatch`: arguments feed, output, checkpoint."""

import sys

from pyspark.sql import DataFrame, SparkSession

feed, out, checkpoint = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()


def write(rows: DataFrame, batch_id: int) -> None:
    rows.withColumn("batch", rows.id * 0 + batch_id).write.format("delta").mode("append").save(out)


orders = spark.readStream.schema("id long, at timestamp, amount long").option("maxFilesPerTrigger", 1).json(feed)
query = orders.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint).trigger(availableNow=True)
query.start().awaitTermination()
