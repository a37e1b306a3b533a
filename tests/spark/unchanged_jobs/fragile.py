"""Copies orders, and fails for some: arguments feed, output, checkpoint."""

import sys

from pyspark.sql import DataFrame, SparkSession

feed, out, checkpoint = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()


def write(rows: DataFrame, batch_id: int) -> None:
    if rows.where("amount = 13").count():
        msg = "13 is no amount"
        raise ValueError(msg)
    once = {"txnAppId": "fragile", "txnVersion": str(batch_id)}
    rows.write.format("delta").options(**once).mode("append").save(out)


orders = spark.readStream.schema("id long, amount long").option("maxFilesPerTrigger", 1).option("mode", "FAILFAST")
query = orders.json(feed).writeStream.queryName("fragile").foreachBatch(write).option("checkpointLocation", checkpoint)
query.trigger(availableNow=True).start().awaitTermination()
