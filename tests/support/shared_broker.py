"""Provides one real broker for all test files of a process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.tcp_proxy import TcpProxy
from tidemark.local import broker as embedded

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


@contextmanager
def one_broker(home: Path, proxy: TcpProxy) -> Iterator[str]:
    """Yields its address; it ends with the block.

    Everyone may do everything with a topic, as at the broker of `tidemark up`, until the topic has an ACL.
    """
    second = SECOND_LISTENER.format(behind=proxy.target, proxy=proxy.address)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(embedded, "SERVER_PROPERTIES", embedded.SERVER_PROPERTIES + second + AUTHORIZER)
            address = embedded.start(home).address
        yield address
    finally:
        embedded.stop(home)
