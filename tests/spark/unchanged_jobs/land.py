"""Copies a feed into a table: arguments feed, output, checkpoint."""

import sys

from pyspark.sql import SparkSession

feed, out, checkpoint = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
orders = spark.readStream.schema("id long, at timestamp, amount long").option("maxFilesPerTrigger", 1).json(feed)
writer = orders.withWatermark("at", "10 seconds").writeStream.queryName("land")
writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
writer.format("delta").start(out).awaitTermination()
