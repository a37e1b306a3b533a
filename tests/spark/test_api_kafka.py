"""`tidemark.api` with Kafka: hops through a topic, and a query's backlog."""

from __future__ import annotations

import re
from pathlib import Path

from confluent_kafka import Producer
from deltalake import DeltaTable
from streaming.conftest import broker, proxy  # noqa: F401 - fixtures

from tidemark import api
from tidemark.clock import wall_clock_ms
from tidemark.embedded.broker import create_topics
from tidemark.model.project.layout import Layout


def test_the_documented_hop_passes_a_topic_with_its_backlog(spark, broker, tmp_path):  # noqa: F811
    create_topics(broker, {"orders": 1, "enriched": 1})
    producer = Producer({"bootstrap.servers": broker})
    for n in range(5):
        producer.produce("orders", f"{n}", "key", headers=[("trace", b"7")])
    assert producer.flush(10) == 0
    text = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
    given = {"bootstrap": broker}
    exec(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[1], given)
    kafka = {"kafka.bootstrap.servers": broker, "startingOffsets": "earliest", "includeHeaders": "true"}
    orders = spark.readStream.format("kafka").options(**kafka, subscribe="orders", maxOffsetsPerTrigger="2").load()

    began_ms = wall_clock_ms()
    with api.listen(spark, warehouse=tmp_path / "warehouse", topology="shop"):
        writer = orders.writeStream.queryName("enrichment").foreachBatch(given["forward"])
        checkpointed = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        checkpointed.trigger(availableNow=True).start().awaitTermination()

    enriched = api.hops(spark.read.format("kafka").options(**kafka, subscribe="enriched").load()).collect()
    assert [[hop["name"] for hop in row["hops"]] for row in enriched] == [["enrichment"]] * 5
    assert all(began_ms <= row["hops"][0]["at_ms"] <= wall_clock_ms() for row in enriched)
    assert all(row["headers"][0]["key"] == "trace" for row in enriched)

    batches = DeltaTable(Layout(tmp_path / "warehouse").stream_table("shop", "enrichment", "batches"))
    parts = [part for row in batches.to_pyarrow_table().to_pylist() for part in row["sources"]]
    assert sorted((part["source"], part["until_offset"], part["latest_offset"]) for part in parts) == [
        ("enrichment:orders", 2, 5),
        ("enrichment:orders", 4, 5),
        ("enrichment:orders", 5, 5),
    ]
