"""Reads consumer groups as a lag exporter does."""

from __future__ import annotations

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient


def group_offsets(address: str, group: str) -> dict[str, int]:
    """Returns the offsets of *group* per `topic/partition`; none for an unknown group."""
    admin = AdminClient({"bootstrap.servers": address})  # it must live until the answer comes
    answer = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(30)
    return {f"{each.topic}/{each.partition}": each.offset for each in answer.topic_partitions or []}


def groups(address: str) -> set[str]:
    """Returns the names of all groups."""
    admin = AdminClient({"bootstrap.servers": address})
    return {each.group_id for each in admin.list_consumer_groups().result(30).valid}
