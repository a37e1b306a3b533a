"""Starts one Spark and one driver's process for all streaming tests."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from streaming.drivers import SharedDriver

from support.shared_spark import ignore_open_sockets, one_spark
from support.tcp_proxy import TcpProxy


def pytest_configure(config: pytest.Config) -> None:
    ignore_open_sockets(config)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """For tests that read without a driver of their own."""
    with one_spark() as spark:
        yield spark


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedDriver]:
    """A driver's process for tests that do not kill it."""
    with SharedDriver(tmp_path_factory.mktemp("shared")) as driver:
        yield driver


@pytest.fixture
def network(broker: str, proxy: TcpProxy) -> Iterator[TcpProxy]:
    """Yields a network to `broker` that a test may break."""
    yield proxy
    proxy.forward()
