"""Sums a table by minute: arguments input, output, checkpoint."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

source, out, checkpoint = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(source).withWatermark("at", "10 seconds")
totals = rows.groupBy(F.window("at", "1 minute")).agg(F.sum("amount").alias("amount")).select("window.end", "amount")
writer = totals.writeStream.queryName("total").option("checkpointLocation", checkpoint)
writer.trigger(availableNow=True).format("delta").start(out).awaitTermination()
