"""Removes duplicates within a watermark: arguments feed, output, checkpoint."""

import sys

from pyspark.sql import SparkSession

feed, out, checkpoint = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
orders = spark.readStream.schema("id long, at timestamp, amount long").option("maxFilesPerTrigger", 1).json(feed)
firsts = orders.withWatermark("at", "1 minute").dropDuplicatesWithinWatermark(["id"])
writer = firsts.writeStream.queryName("firsts").option("checkpointLocation", checkpoint)
writer.trigger(availableNow=True).format("delta").start(out).awaitTermination()
