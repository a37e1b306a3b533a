"""Copies a topic into a table.

Arguments are brokers, topic, output, checkpoint, and options of the source as JSON. It reads what there is; with an
option of the name `forever` it goes on until it is stopped.
"""

import json
import sys

from pyspark.sql import SparkSession

brokers, topic, out, checkpoint, more = sys.argv[1:]
options = {"kafka.bootstrap.servers": brokers, "subscribe": topic, "startingOffsets": "earliest", **json.loads(more)}
spark = SparkSession.builder.getOrCreate()
records = spark.readStream.format("kafka").options(**options).load()
orders = records.selectExpr("from_json(CAST(value AS STRING), 'id long, at timestamp, amount long') AS o").select("o.*")
writer = orders.withWatermark("at", "10 seconds").writeStream.option("checkpointLocation", checkpoint)
trigger = {"processingTime": "100 milliseconds"} if "forever" in options else {"availableNow": True}
writer.trigger(**trigger).option("queryName", "subscribe").format("delta").start(out).awaitTermination()
