"""`tidemark.api` and unchanged jobs with Kafka."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AclOperation, AdminClient
from deltalake import DeltaTable

import critical_path
from support.broker_rights import grant
from support.consumer_groups import group_offsets
from support.unchanged_jobs import JOBS, MINUTE, NOON, Shop, as_rows
from tidemark import api
from tidemark.api.groups import QueryGroup
from tidemark.clock import wall_clock_ms
from tidemark.control.process import wait_until
from tidemark.local.broker import create_topics
from tidemark.model.project.connections import Cluster
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval
from tidemark.sample.topic_sample import SampledCluster
from tidemark.storage.delta.tables import scan


def test_the_documented_hop_passes_a_topic_with_its_backlog(spark, broker, tmp_path):
    create_topics(broker, {"backlog": 1, "enriched": 1})
    producer = Producer({"bootstrap.servers": broker})
    for n in range(5):
        producer.produce("backlog", f"{n}", "key", headers=[("trace", b"7")])
    assert producer.flush(10) == 0
    text = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
    given = {"bootstrap": broker}
    exec(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[1], given)
    kafka = {"kafka.bootstrap.servers": broker, "startingOffsets": "earliest", "includeHeaders": "true"}
    orders = spark.readStream.format("kafka").options(**kafka, subscribe="backlog", maxOffsetsPerTrigger="2").load()

    began_ms = wall_clock_ms()
    with api.listen(spark, warehouse=tmp_path / "warehouse", topology="shop", consumer_groups="acme"):
        writer = orders.writeStream.queryName("enrichment").foreachBatch(given["forward"])
        checkpointed = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        checkpointed.trigger(availableNow=True).start().awaitTermination()

    assert group_offsets(broker, "acme-shop-enrichment") == {"backlog/0": 5}

    enriched = api.hops(spark.read.format("kafka").options(**kafka, subscribe="enriched").load()).collect()
    assert [[hop["name"] for hop in row["hops"]] for row in enriched] == [["enrichment"]] * 5
    assert all(began_ms <= row["hops"][0]["at_ms"] <= wall_clock_ms() for row in enriched)
    assert all(row["headers"][0]["key"] == "trace" for row in enriched)

    batches = DeltaTable(Layout(tmp_path / "warehouse").stream_table("shop", "enrichment", "partition_batches"))
    parts = [row for row in batches.to_pyarrow_table().to_pylist() if row["partition"] is not None]
    assert sorted((part["source"], part["until_offset"], part["latest_offset"]) for part in parts) == [
        ("enrichment:backlog", 2, 5),
        ("enrichment:backlog", 4, 5),
        ("enrichment:backlog", 5, 5),
    ]


def test_what_a_broker_refuses_is_logged_once_and_written_again(spark, broker, caplog):
    create_topics(broker, {"shown": 2})
    kafka = {"kafka.bootstrap.servers": broker, "subscribe": "shown"}
    one, other = (spark.readStream.format("kafka").options(**kafka).load() for _ in range(2))
    query = one.union(other).writeStream.format("noop").start()

    def ends(*of_sources):
        return {"sources": [{"endOffset": each} for each in of_sources]}

    def warnings():
        return [each for each in caplog.records if "UnknownTopicOrPartitionException" in each.getMessage()]

    try:
        wait_until(lambda: query.lastProgress is not None, "a batch", 60)
        group = QueryGroup(spark._jvm, "seen", spark._jsparkSession.streams().get(query.id).streamingQuery())
        group.note(ends({"unknown": {"0": 3}}, {"shown": {"0": 1}}))
        wait_until(lambda: group.write() or warnings(), "a refusal", 60)
        assert group_offsets(broker, "seen") == {"shown/0": 1}
        group.write()  # refused once more, before the next ends of that source are written
        group.note(ends({"shown": {"0": 9, "1": 5}}, {"shown": {"0": 7, "1": 6}}))
        wait_until(lambda: group.write() or group_offsets(broker, "seen") == {"shown/0": 7, "shown/1": 5}, "all", 60)
        group.note(ends({"shown": {"0": 11, "1": 6}}, {"shown": {"0": 10, "1": 6}}))
        group.end()
    finally:
        query.stop()
    assert group_offsets(broker, "seen") == {"shown/0": 10, "shown/1": 6}
    assert len(warnings()) == 1


@pytest.fixture
def shop(spark, tmp_path):
    return Shop(tmp_path)


def subscribe(shop, address, topic, **options):
    """Copies *topic* into a table by a job; returns its exit status."""
    places = [str(shop.home / place) for place in ("table", "checkpoint")]
    return shop.start(JOBS / "subscribe.py", address, topic, *places, json.dumps(options))


@pytest.mark.long  # two jobs; test_recorded_queries.py has chains without Spark
def test_jobs_that_share_only_a_topic_have_one_critical_path(shop, broker):
    create_topics(broker, {"handed_on": 1})
    for key in range(3):
        shop.feed("feed", (key, 2 * key * MINUTE, 5))
    publish = [str(shop.home / "feed"), broker, "handed_on", str(shop.home / "publish_checkpoint")]
    assert shop.start(JOBS / "publish.py", *publish) == 0
    assert subscribe(shop, broker, "handed_on", maxOffsetsPerTrigger="1") == 0

    critical_path.run(shop.layout, shop.topology, [], Interval(NOON, NOON + 10 * MINUTE))
    paths = scan(shop.layout.report_table("shop", "critical_paths")).sort("window_end").collect()
    operators = [re.sub(r" \(\d+ ms\)| = .*", "", path) for path in paths["path"]]
    # The record of 12:04 was read when the watermark was 10 s behind that of 12:02.
    assert paths["window_end"].dt.minute().to_list() == [1]
    assert operators == ["publish:feed → publish → subscribe:handed_on → subscribe"]


def test_a_job_without_a_right_names_it_and_goes_on(shop, broker):
    create_topics(broker, {"guarded": 1})
    producer, admin = Producer({"bootstrap.servers": broker}), AdminClient({"bootstrap.servers": broker})
    producer.produce("guarded", json.dumps(*as_rows((1, 0, 5))))
    assert producer.flush(10) == 0
    rights = SampledCluster(Cluster(broker)).rights
    grant(admin, "guarded", "User:ann", AclOperation.READ)
    wait_until(lambda: "READ" not in rights("guarded"), "the ACL", 30)
    assert subscribe(shop, broker, "guarded") == 1
    assert "TopicAuthorizationException" in shop.reason()
    assert "(it reads guarded)" in shop.reason()
    grant(admin, "guarded", "User:*", AclOperation.READ)
    wait_until(lambda: "READ" in rights("guarded"), "the ACL", 30)
    assert subscribe(shop, broker, "guarded") == 0
    assert shop.rows("table", "id") == [(1,)]
    assert group_offsets(broker, "tidemark-shop-subscribe") == {"guarded/0": 1}
