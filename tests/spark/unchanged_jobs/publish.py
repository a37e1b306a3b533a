"""Copies a feed into a topic: arguments feed, brokers, topic, checkpoint."""

import sys

from pyspark.sql import SparkSession

feed, brokers, topic, checkpoint = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
orders = spark.readStream.schema("id long, at timestamp, amount long").option("maxFilesPerTrigger", 1).json(feed)
rows = orders.withWatermark("at", "10 seconds").selectExpr("to_json(struct(*)) AS value")
writer = rows.writeStream.queryName("publish").option("checkpointLocation", checkpoint).trigger(availableNow=True)
kafka = {"kafka.bootstrap.servers": brokers, "topic": topic}
writer.format("kafka").options(**kafka).start().awaitTermination()
