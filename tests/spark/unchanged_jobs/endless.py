"""Copies orders until it is stopped: arguments feed, output, checkpoint."""

import sys

from pyspark.sql import SparkSession

feed, out, checkpoint = sys.argv[1:]
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
orders = spark.readStream.schema("id long, amount long").json(feed)
writer = orders.writeStream.queryName("copies").option("checkpointLocation", checkpoint)
writer.trigger(processingTime="1 second").format("json").start(out).awaitTermination()
