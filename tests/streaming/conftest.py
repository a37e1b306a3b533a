"""Starts one real broker and one Spark for all streaming tests."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from streaming.drivers import SharedDriver

from support.shared_spark import ignore_open_sockets, one_spark
from support.tcp_proxy import TcpProxy
from tidemark.control.process import free_port
from tidemark.embedded import broker as embedded

AUTHORIZER = """\
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.found=true
"""
SECOND_LISTENER = """\
listeners=PLAINTEXT://127.0.0.1:{{port}},FAR://127.0.0.1:{behind},CONTROLLER://127.0.0.1:{{controller_port}}
advertised.listeners=PLAINTEXT://127.0.0.1:{{port}},FAR://{proxy}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,FAR:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
"""
"""A listener whose clients reach the broker through a proxy."""


def pytest_configure(config: pytest.Config) -> None:
    ignore_open_sockets(config)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """For tests that read without a driver of their own."""
    with one_spark() as spark:
        yield spark


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedDriver]:
    """A driver's process for tests that neither kill nor stop it."""
    with SharedDriver(tmp_path_factory.mktemp("shared")) as driver:
        yield driver


@pytest.fixture(scope="session")
def proxy() -> Iterator[TcpProxy]:
    with TcpProxy(free_port()) as running:
        yield running


@pytest.fixture
def network(broker: str, proxy: TcpProxy) -> Iterator[TcpProxy]:
    """Yields a network to `broker` that a test may break."""
    yield proxy
    proxy.forward()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory, proxy: TcpProxy) -> Iterator[str]:
    """Yields the address of a Kafka broker for the session.

    Each test creates its own topics.

    Everyone may do everything with a topic, as at the broker of `tidemark up`, until the topic has an ACL.
    """
    home = tmp_path_factory.mktemp("broker")
    second = SECOND_LISTENER.format(behind=proxy.target, proxy=proxy.address)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(embedded, "SERVER_PROPERTIES", embedded.SERVER_PROPERTIES + second + AUTHORIZER)
            address = embedded.start(home).address
        yield address
    finally:
        embedded.stop(home)
