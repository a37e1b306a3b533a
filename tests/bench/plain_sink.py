"""Writes JSON from Kafka to Delta with Spark alone, for comparison."""

from __future__ import annotations

import sys

from pyspark.sql import functions as F

from tidemark.spark_session import session

FIELDS = "id string, status string, amount bigint"


def main(address: str, trigger: str, *places: str) -> None:
    """Run a query for each of *places*, TOPIC=TABLE, until killed."""
    spark = session("plain")
    for topic, _, table in (place.partition("=") for place in places):
        raw = spark.readStream.format("kafka").option("kafka.bootstrap.servers", address)
        raw = raw.option("subscribe", topic).option("startingOffsets", "earliest")
        value = F.from_json(F.col("value").cast("string"), FIELDS).alias("fields")
        parsed = raw.load().select("timestamp", value).select("timestamp", "fields.*")
        writing = parsed.writeStream.format("delta").trigger(processingTime=trigger)
        writing.option("checkpointLocation", f"{table}/_checkpoint").start(table)
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
