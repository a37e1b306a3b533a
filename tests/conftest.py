"""Provides the shared broker, and settings of all tests.

Hypothesis runs 25 examples, or 2,000 with `pytest --hypothesis-profile=proof`. The 25 are the same each time. JVMs
compile once: those of tests live for seconds, and what the second compiler saves comes later. Python seldom looks for
garbage, and never among the modules: that took a seventh of the CPU time.
"""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")  # this one goes before the command line
gc.set_threshold(100_000, 50, 50)
settings.register_profile(
    "unit", max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("proof", settings.get_profile("unit"), max_examples=2000, derandomize=False)
settings.load_profile("unit")

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.tcp_proxy import TcpProxy


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def proxy() -> Iterator[TcpProxy]:
    from support.tcp_proxy import TcpProxy
    from tidemark.control.process import free_port

    with TcpProxy(free_port()) as running:
        yield running


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory, proxy: TcpProxy) -> Iterator[str]:
    """Yields the address of a broker that test files share.

    Each test creates its own topics.
    """
    from support.shared_broker import one_broker

    with one_broker(tmp_path_factory.mktemp("broker"), proxy) as address:
        yield address
