"""A Spark standalone cluster on this machine, all under one folder.

Its master and workers are processes on 127.0.0.1. Master, workers and drivers share a secret, in the properties file
`secrets.conf` of that folder: only the user who started the cluster can read the secret, use the cluster and stop it.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from tidemark.bounded_http import NoAnswer, ask
from tidemark.control import process
from tidemark.control.private_file import write_private
from tidemark.control.process import Process
from tidemark.control.spark_files import with_spark_folder
from tidemark.selection import omit

HOST = "127.0.0.1"
MASTER = "master"
UP_WITHIN_S = 60.0


@dataclass(frozen=True)
class LocalCluster:
    """A running cluster.

    Attributes:
        address: of its master.
        page: address of its web page.
        secrets: the properties file with its secret.
        workers: its workers.
    """

    address: str
    page: str
    secrets: Path
    workers: tuple[Process, ...]

    def living(self) -> int:
        """Returns the number of live workers, 0 without the master's answer."""
        # A proxy that the environment names cannot reach 127.0.0.1 of this machine.
        request = urllib.request.Request(f"{self.page}/json/")
        try:
            answer = ask(request, urllib.request.ProxyHandler({}), silent_for_s=5)
        except NoAnswer:
            return 0
        return int(json.loads(answer.content)["aliveworkers"]) if answer.status == 200 else 0


def master_command(*, host: str, port: int, page_port: int, properties: str) -> list[str]:
    """Returns the command of a master that listens on *host*.

    All processes of a cluster share the file *properties*.
    """
    listens = ["--host", host, "--port", str(port), "--webui-port", str(page_port), "--properties-file", properties]
    return ["spark-class", "org.apache.spark.deploy.master.Master", *listens]


def worker_command(
    master: str, *, host: str, page_port: int, cores: int, memory: str, work: str, properties: str
) -> list[str]:
    """Returns the command of a worker for executors of *master*.

    Args:
        master: address of the master.
        host: the worker listens here.
        page_port: port of its web page; 0: any free one.
        cores: cores for its executors.
        memory: memory for its executors, such as `2g`.
        work: folder for the files of executors.
        properties: file that all processes of a cluster share.
    """
    listens = ["--host", host, "--webui-port", str(page_port)]
    gives = ["--cores", str(cores), "--memory", memory, "--work-dir", work, "--properties-file", properties]
    return ["spark-class", "org.apache.spark.deploy.worker.Worker", *listens, *gives, master]


def start(home: Path, *, workers: int = 2, cores: int, memory: str) -> LocalCluster:
    """Starts so many *workers*, each with *cores* and *memory* such as `2g`."""
    port, page_port = process.free_port(), process.free_port()
    address, env = f"spark://{HOST}:{port}", with_spark_folder(home, _environment())
    shared = _secrets(home)
    command = master_command(host=HOST, port=port, page_port=page_port, properties=str(shared))
    master = process.launch(MASTER, command, home=home, env=env)
    launched = []
    for name in _workers(workers):
        command = worker_command(
            address,
            host=HOST,
            page_port=0,
            cores=cores,
            memory=memory,
            work=str(home / name),
            properties=str(shared),
        )
        launched.append(process.launch(name, command, home=home, env=env))
    cluster = LocalCluster(address, f"http://{HOST}:{page_port}", shared, tuple(launched))
    process.wait_until(lambda: cluster.living() == workers, "a Spark cluster", UP_WITHIN_S, by=[master, *launched])
    return cluster


def stop(home: Path, *, workers: int = 2) -> None:
    """Stops the cluster in *home* and its executors."""
    for name in (*_workers(workers), MASTER):
        process.stop(home, name, grace_s=0)


def _secrets(home: Path) -> Path:
    """Writes a new file of secrets, readable by its owner alone."""
    home.mkdir(parents=True, exist_ok=True)
    file = home / "secrets.conf"
    write_private(file, f"spark.authenticate true\nspark.authenticate.secret {secrets.token_urlsafe(32)}\n")
    return file


def _workers(number: int) -> list[str]:
    return [f"worker_{place}" for place in range(number)]


def _environment() -> dict[str, str]:
    """Returns the environment of this process without its import paths.

    Executors have to use the code that is shipped to them.
    """
    environment = process.without_airflow(os.environ)
    inherited = omit(environment, {"PYTHONPATH", "SPARK_HOME"})
    binaries = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    daemons = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
    return {**inherited, **daemons, "PATH": binaries, "SPARK_LOCAL_IP": HOST}
