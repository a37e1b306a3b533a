"""Without its secret no client can use a driver's executor port."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tidemark import spark_session
from tidemark.errors import InvalidArgument

RPC_REQUEST = 3
"""Spark's number of a message that wants an answer, see `org.apache.spark.network.protocol.Message`."""


def answer_to(body: bytes, *, port: int) -> bytes:
    """Returns the server's answer at *port* to an unauthenticated *body*."""
    message = struct.pack(">bqi", RPC_REQUEST, 1, len(body)) + body
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(struct.pack(">q", 8 + len(message)) + message)
        return connection.recv(65_536)


def test_a_driver_rejects_a_client_without_its_secret(spark: SparkSession) -> None:
    conf = spark.sparkContext.getConf()
    assert conf.get("spark.authenticate") == "true"
    port = int(conf.get("spark.driver.port") or 0)
    assert b"Expected SaslMessage" in answer_to(b"stop, please", port=port)


def test_the_secret_of_a_driver_is_in_no_arguments(spark: SparkSession) -> None:
    secret = spark.sparkContext._jvm.org.apache.spark.SparkEnv.get().securityManager().getSecretKey()
    assert len(secret) >= 64
    for process in Path("/proc").glob("[0-9]*"):
        try:
            assert secret.encode() not in (process / "cmdline").read_bytes()
        except OSError:  # it has ended
            continue


def test_a_clusters_secret_is_read_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "secrets.conf"
    file.write_text("spark.authenticate true\nspark.authenticate.secret s3cret\n")
    monkeypatch.setenv(spark_session.SECRETS, str(file))
    assert spark_session._secret("spark://there:7077") == {"spark.authenticate.secret": "s3cret"}
    # For these Spark makes the secret itself.
    for master in ("local[2]", "yarn", "k8s://https://there:6443"):
        assert spark_session._secret(master) == {}


@pytest.mark.parametrize("content", [None, "spark.authenticate true\n"])
def test_a_cluster_without_a_secret_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    file = tmp_path / "secrets.conf"
    if content is not None:
        file.write_text(content)
        monkeypatch.setenv(spark_session.SECRETS, str(file))
    with pytest.raises(
        InvalidArgument, match=r"TIDEMARK_SPARK_SECRETS must name a properties file .* spark://there:7077"
    ):
        spark_session._secret("spark://there:7077")
