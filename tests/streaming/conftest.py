"""Starts one real broker and one Spark for all streaming tests."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from support.shared_spark import ignore_open_sockets, one_spark
from tidemark.embedded import broker as embedded

AUTHORIZER = """\
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.found=true
"""


def pytest_configure(config: pytest.Config) -> None:
    ignore_open_sockets(config)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """For tests that read without a driver of their own."""
    with one_spark() as spark:
        yield spark


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yields the address of a Kafka broker for the session.

    Each test creates its own topics.

    Everyone may do everything with a topic, as at the broker of `tidemark up`, until the topic has an ACL.
    """
    home = tmp_path_factory.mktemp("broker")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(embedded, "SERVER_PROPERTIES", embedded.SERVER_PROPERTIES + AUTHORIZER)
            address = embedded.start(home).address
        yield address
    finally:
        embedded.stop(home)
