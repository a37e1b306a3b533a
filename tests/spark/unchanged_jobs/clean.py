"""Filters a table into another one: arguments input, output, checkpoint."""

import sys

from pyspark.sql import SparkSession

source, out, checkpoint = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(source).where("amount > 0")
writer = rows.withWatermark("at", "10 seconds").writeStream.queryName("clean").option("checkpointLocation", checkpoint)
writer.trigger(availableNow=True).format("delta").start(out).awaitTermination()
