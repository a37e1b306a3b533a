"""The running services of docker/compose.yaml, and what is asked of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from containers.engine import Engine, run

from tidemark.control import process
from tidemark.local.airflow_api import AirflowApi

PROJECT = Path(__file__).resolve().parents[2]
FILE = "docker/compose.yaml"
NAME = "tidemark-check"
"""Not the name in the file: nobody's containers and volumes are touched."""
SERVICES: Mapping[str, Any] = yaml.safe_load((PROJECT / FILE).read_text())["services"]
ONCE = {name for name, service in SERVICES.items() if service["restart"] == "no"}
LASTING = SERVICES.keys() - ONCE
ASKED = "dag-processor"
"""The service in whose container commands are run: it is none of those that are killed."""
HEALTHY_WITHIN_S = 600.0
PATIENCE_S = 600.0
POLL_S = 2.0


@dataclass(frozen=True)
class Containers:
    """The services that *engine* runs, with *images* in place of the official ones.

    *volumes_before* were there before the services.
    """

    engine: Engine
    images: Mapping[str, str]
    volumes_before: set[str]

    def compose(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs Compose."""
        environment = {**self.engine.environment, **self.images}
        return run([*self.engine.compose, "-p", NAME, "-f", FILE, *words], environment, check=check)

    def inside(self, *command: str, service: str = ASKED, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs *command* in the container of *service*."""
        return self.compose("exec", "-T", service, *command, check=check)

    def inspected(self) -> dict[str, dict[str, Any]]:
        """Returns what Docker knows of each service's container."""
        ids = self.compose("ps", "--all", "--quiet").stdout.split()
        found = json.loads(self.engine.docker("inspect", *ids).stdout)
        return {each["Config"]["Labels"]["com.docker.compose.service"]: each for each in found}

    def unhealthy(self) -> set[str]:
        """Returns the services that do not run, are not healthy, or did not end well."""
        return {name for name, each in self.inspected().items() if not _is_well(name, each["State"])}

    def wait_until_healthy(self) -> None:
        process.wait_until(lambda: not self.unhealthy(), "healthy containers", HEALTHY_WITHIN_S, poll_s=POLL_S)

    def kill(self, service: str) -> None:
        """Kills the first process of the container of *service*, as the kernel does when memory runs out.

        After `docker kill` Docker would not start the container again.
        """
        os.kill(self.inspected()[service]["State"]["Pid"], signal.SIGKILL)

    def kill_processes(self, service: str, part: str) -> None:
        """Kills those processes of a container that have *part* in their command line."""
        listed = self.engine.docker("top", self.inspected()[service]["Id"], "-eo", "pid,args").stdout.splitlines()
        killed = [int(line.split()[0]) for line in listed[1:] if part in line]
        assert killed, listed
        for pid in killed:
            os.kill(pid, signal.SIGKILL)

    def restarts(self, service: str) -> int:
        return int(self.inspected()[service]["RestartCount"])

    def airflow(self) -> AirflowApi:
        passwords = json.loads((PROJECT / "docker" / "secrets" / "airflow_passwords").read_text())
        return AirflowApi("http://127.0.0.1:8080", "admin", passwords["admin"])

    def master(self) -> dict[str, Any]:
        """Returns what the page of Spark's master tells programs."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open("http://127.0.0.1:8081/json/", timeout=10) as answer:
            told: dict[str, Any] = json.load(answer)
        return told

    def streams(self) -> dict[str, dict[str, Any]]:
        """Returns what `tidemark status` tells of each stream; nothing while no command can be run."""
        told = self.inside("tidemark", "status", "--format", "json", check=False).stdout
        topologies = json.loads(told)["topologies"] if told else []
        return {stream["sub_topology"]: stream for model in topologies for stream in model["streams"]}

    def records(self) -> int:
        """Returns how many records the stream has read that reads from Kafka."""
        return int(self.streams().get("status", {"records_in": 0})["records_in"])

    def sql(self, query: str) -> list[dict[str, Any]]:
        answer = self.inside("tidemark", "sql", query, "--format", "json").stdout
        rows: list[dict[str, Any]] = json.loads(answer)
        return rows

    def committed_rows(self, table: str) -> int:
        """Returns how many rows *table* has in all streams, without those that wait in a journal."""
        lines = [line.split() for line in self.inside("tidemark", "tables").stdout.splitlines()]
        return sum(int(line[2].replace(",", "")) for line in lines if line[0] == table)

    def play(self, first: str, until: str) -> int:
        """Plays days of flights into Kafka, again until it acknowledges all; returns how many records that are."""
        command = ["python", "jobs/replay.py", "--bootstrap", "kafka:9092", "--from", first, "--to", until, "--at-once"]
        summaries: list[str] = []

        def is_acknowledged() -> bool:
            played = self.inside(*command, check=False)
            summaries.append(played.stdout)
            return played.returncode == 0

        process.wait_until(is_acknowledged, "a replay", PATIENCE_S, poll_s=POLL_S)
        return int(json.loads(summaries[-1])["records"])

    def wait_for_records(self, number: int, within_s: float = PATIENCE_S) -> None:
        """Returns when streams have read so many records."""
        process.wait_until(partial(self._have_read, number), f"{number} records", within_s, poll_s=POLL_S)

    def _have_read(self, number: int) -> bool:
        return self.records() >= number


def _is_well(service: str, state: Mapping[str, Any]) -> bool:
    if service in ONCE:
        return bool(state["Status"] == "exited" and state["ExitCode"] == 0)
    return bool(state["Status"] == "running" and state["Health"]["Status"] == "healthy")
