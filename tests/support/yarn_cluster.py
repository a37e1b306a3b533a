"""Runs YARN as processes of this machine, all below one folder.

Each node has an address of its own on the loopback. They are Hadoop's own servers, from the jars of its mini cluster
(`make yarn`).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pyspark

from tidemark.control import process
from tidemark.model.project.files import CHECKOUT
from tidemark.selection import omit

JARS = CHECKOUT / ".jars-yarn"
SPARKS_JARS = Path(pyspark.__file__).parent / "jars"
HOST = "127.0.0.1"
MANAGER = "resource_manager"
MASTER = "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager"
WORKER = "org.apache.hadoop.yarn.server.nodemanager.NodeManager"
UP_WITHIN_S = 120.0
NODES = {"node_1": "127.0.0.2", "node_2": "127.0.0.3"}
NODE_MB = 4_096
LOST_AFTER_MS = 8_000
"""Time after which the ResourceManager gives up a silent node.

The default is ten minutes.
"""


@dataclass(frozen=True)
class YarnCluster:
    """A running cluster below *home*.

    *page* is the address of its manager's web page.
    """

    home: Path
    page: str

    @property
    def conf(self) -> Path:
        """The folder for `HADOOP_CONF_DIR` of its clients."""
        return self.home / MANAGER / "conf"

    def running_nodes(self) -> set[str]:
        """Returns the addresses of nodes that the manager counts as running."""
        nodes = self._answer("nodes").get("nodes") or []
        return {node["nodeId"].partition(":")[0] for node in nodes if node["state"] == "RUNNING"}

    def state(self, application: str) -> str:
        """Returns the state of an application."""
        # The manager's list of applications lacks states and ids in this version.
        return str(self._answer(f"apps/{application}/state").get("state"))

    def finished(self) -> int:
        """Returns the number of applications that have finished."""
        numbers = self._answer("appstatistics")["statItems"]
        return sum(int(number["count"]) for number in numbers if number["state"] == "FINISHED")

    def containers(self) -> Iterator[tuple[int, str, list[str]]]:
        """Yields pid, node and command line of each process in a container."""
        for entry in Path("/proc").iterdir():
            with suppress(OSError):  # no process, or it has ended
                place = (entry / "cwd").readlink()
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                if place.is_relative_to(self.home) and "container_" in place.name:
                    yield int(entry.name), place.relative_to(self.home).parts[0], words

    def node_of(self, pid: int) -> str:
        """Returns the node in one of whose containers *pid* runs."""
        return next(node for other, node, _ in self.containers() if other == pid)

    def kill_node(self, name: str) -> None:
        """Sends SIGKILL to a node's manager alone; its containers live on."""
        node = process.find(self.home, name)
        assert node is not None
        os.kill(node.pid, signal.SIGKILL)

    def end_containers(self) -> None:
        """Kills every process in a container."""
        for pid, _, _ in list(self.containers()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def launch_node(self, name: str) -> None:
        """Starts the node *name* if it does not run."""
        properties = {**_properties(self.home), **_of_node(self.home, name)}
        _launch(self.home, name, WORKER, properties)

    def wait_for_nodes(self) -> None:
        """Returns once all nodes can run containers."""
        servers = [server for name in (MANAGER, *NODES) if (server := process.find(self.home, name))]
        expected = set(NODES.values())
        process.wait_until(lambda: self.running_nodes() == expected, "the nodes of YARN", UP_WITHIN_S, by=servers)

    def _answer(self, what: str) -> dict[str, Any]:
        """Returns the manager's answer; an empty one if it has none."""
        # A proxy that the environment names cannot reach 127.0.0.1 of this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"{self.page}/ws/v1/cluster/{what}", timeout=10) as answer:
                return dict(json.load(answer))
        except OSError:
            return {}


def start(home: Path) -> YarnCluster:
    """Starts a manager and the nodes."""
    ports = [process.free_port() for _ in range(5)]
    home.mkdir(parents=True)
    (home / "ports.json").write_text(json.dumps(ports))
    cluster = YarnCluster(home, f"http://{HOST}:{ports[4]}")
    _launch(home, MANAGER, MASTER, _properties(home))
    for name in NODES:
        cluster.launch_node(name)
    cluster.wait_for_nodes()
    return cluster


def stop(home: Path) -> None:
    """Stops the cluster in *home* and all of its containers."""
    for name in (*NODES, MANAGER):
        process.stop(home, name, grace_s=0)
    # Those of a node that was killed have no parent by which they are found.
    YarnCluster(home, "").end_containers()


def _launch(home: Path, name: str, main: str, properties: Mapping[str, str]) -> None:
    conf = home / name / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    _write(conf / "core-site.xml", {"fs.defaultFS": "file:///"})
    _write(conf / "yarn-site.xml", properties)
    java = shutil.which("java")
    assert java is not None
    env = omit(process.without_airflow(os.environ), {"PYTHONPATH", "SPARK_HOME", "HADOOP_CONF_DIR"})
    env["JAVA_HOME"] = str(Path(java).resolve().parents[1])
    options = ["-Xmx300m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    # Hadoop's web pages define classes in a way that Java 17 allows only on request.
    options += ["--add-opens", "java.base/java.lang=ALL-UNNAMED"]
    class_path = os.pathsep.join([str(conf), f"{JARS}/*", f"{SPARKS_JARS}/*"])
    process.launch(name, [java, *options, "-cp", class_path, main], home=home, env=env)


def _properties(home: Path) -> dict[str, str]:
    """Returns the settings that servers and clients share."""
    uses = ("address", "scheduler.address", "resource-tracker.address", "admin.address", "webapp.address")
    ports = json.loads((home / "ports.json").read_text())
    return {
        "yarn.resourcemanager.hostname": HOST,
        **{f"yarn.resourcemanager.{use}": f"{HOST}:{port}" for use, port in zip(uses, ports, strict=True)},
        # It needs no file of queues.
        "yarn.resourcemanager.scheduler.class": f"{MASTER.rpartition('.')[0]}.scheduler.fifo.FifoScheduler",
        "yarn.scheduler.minimum-allocation-mb": "128",
        "yarn.nm.liveness-monitor.expiry-interval-ms": str(LOST_AFTER_MS),
    }


def _of_node(home: Path, name: str) -> dict[str, str]:
    folder, host = home / name, NODES[name]
    uses = ("address", "localizer.address", "webapp.address", "collector-service.address")
    return {
        "yarn.nodemanager.hostname": host,
        **{f"yarn.nodemanager.{use}": f"{host}:0" for use in uses},
        "yarn.nodemanager.local-dirs": str(folder / "local"),
        "yarn.nodemanager.log-dirs": str(folder / "logs"),
        "yarn.nodemanager.resource.memory-mb": str(NODE_MB),
        "yarn.nodemanager.resource.cpu-vcores": "8",
        # Java reserves far more addresses than it uses. The check of real memory is on, as by default.
        "yarn.nodemanager.vmem-check-enabled": "false",
        "yarn.nodemanager.disk-health-checker.enable": "false",
        # A node looks at its disk once at its start, even so.
        "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "99.9",
    }


def _write(file: Path, properties: Mapping[str, str]) -> None:
    lines = [
        f"<property><name>{name}</name><value>{escape(value)}</value></property>" for name, value in properties.items()
    ]
    file.write_text("\n".join(["<configuration>", *lines, "</configuration>"]))
