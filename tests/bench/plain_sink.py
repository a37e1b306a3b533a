"""What freshness is compared with: JSON from Kafka into a Delta table by Spark alone."""

import sys

from pyspark.sql import functions as F

from tidemark.spark import session

address, topic, table, trigger = sys.argv[1:]
spark = session("plain")
raw = spark.readStream.format("kafka").option("kafka.bootstrap.servers", address).option("subscribe", topic)
parsed = (
    raw.option("startingOffsets", "earliest")
    .load()
    .select(
        "timestamp",
        F.from_json(F.col("value").cast("string"), "id string, status string, amount bigint").alias("fields"),
    )
)
writing = parsed.select("timestamp", "fields.*").writeStream.format("delta").trigger(processingTime=trigger)
writing.option("checkpointLocation", f"{table}/_checkpoint").start(table).awaitTermination()
