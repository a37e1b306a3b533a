"""What freshness is compared with: JSON from Kafka into a Delta table by Spark alone."""

from __future__ import annotations

import sys

from pyspark.sql import functions as F

from tidemark.spark import session

FIELDS = "id string, status string, amount bigint"


def main(address: str, topic: str, table: str, trigger: str) -> None:
    """Run until killed."""
    raw = session("plain").readStream.format("kafka").option("kafka.bootstrap.servers", address)
    raw = raw.option("subscribe", topic).option("startingOffsets", "earliest")
    value = F.from_json(F.col("value").cast("string"), FIELDS).alias("fields")
    parsed = raw.load().select("timestamp", value).select("timestamp", "fields.*")
    writing = parsed.writeStream.format("delta").trigger(processingTime=trigger)
    writing.option("checkpointLocation", f"{table}/_checkpoint").start(table).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
