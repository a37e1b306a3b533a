"""Joins two streams within a minute: arguments orders, payments, output, checkpoint."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

orders_feed, payments_feed, out, checkpoint = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
schema = "id long, at timestamp, amount long"
orders = spark.readStream.schema(schema).json(orders_feed).withWatermark("at", "10 seconds").alias("o")
payments = spark.readStream.schema(schema).json(payments_feed).withWatermark("at", "10 seconds").alias("p")
soon = F.expr("o.id = p.id AND p.at BETWEEN o.at AND o.at + INTERVAL 1 MINUTE")
pairs = orders.join(payments, soon).select("o.id", F.col("p.at").alias("paid_at"))
writer = pairs.writeStream.queryName("pairs").option("checkpointLocation", checkpoint)
writer.trigger(availableNow=True).format("delta").start(out).awaitTermination()
