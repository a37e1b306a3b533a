"""The search for a fatal record works where a driver has neither a checkout nor jars of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster.submitting import spark_table, submit_command
from streaming.test_fatal import FAILING, faulty_archive, is_passed_over, send

from tidemark.local import broker as embedded
from tidemark.local.spark_cluster import LocalCluster


@pytest.mark.long
def test_a_driver_of_a_cluster_searches_from_its_archive(
    tmp_path: Path, broker: str, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded.create_topics(broker, {"failing_events": 1})
    send(broker, "failing_events", range(1, 3))
    toml = FAILING.replace("trigger", "shards = 2\ntrigger", 1) + spark_table(cluster.address, tmp_path)
    (tmp_path / "fatal.toml").write_text(toml)
    program = submit_command(tmp_path / "fatal.toml", tmp_path / "airflow")
    archive = faulty_archive(tmp_path, monkeypatch)
    program[program.index("--py-files") + 1] = str(archive)
    is_passed_over(tmp_path, broker, program, toml)
