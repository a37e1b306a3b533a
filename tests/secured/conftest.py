"""Starts one broker with TLS, logins and ACLs for all tests here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation
from secured.secured_broker import READER, SERVICE, WRITER, SecuredBroker, secured_broker

from tidemark.embedded import broker as embedded

TOPICS = ("readings", "by_token", "forbidden", "copies", "closed", "hidden", "direct")


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    """Yields the broker, with topics, rights, and passwords in the environment."""
    home: Path = tmp_path_factory.mktemp("secured")
    with secured_broker(home) as broker, pytest.MonkeyPatch.context() as environment:
        environment.setenv("KAFKA_TEST_PASSWORD", broker.password)
        environment.setenv("KAFKA_TEST_WRONG", "wrong-" + broker.password)
        embedded.create_topics(broker.internal, dict.fromkeys(TOPICS, 1))
        for user, topic, operation in (
            (READER, "readings", AclOperation.READ),
            (SERVICE, "by_token", AclOperation.READ),
            (READER, "forbidden", AclOperation.DESCRIBE),
            (WRITER, "copies", AclOperation.WRITE),
            (WRITER, "direct", AclOperation.WRITE),
            (WRITER, "closed", AclOperation.DESCRIBE),
        ):
            broker.grant(user, topic, operation)
        yield broker
