"""Linters accept docker/, its commands are those that tests run, and it has no secret.

Images are built and containers run by `make containers`: tests/containers.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tidemark.local import broker, spark_cluster
from tidemark.local.airflow import COMPONENTS, MIGRATE, Secrets, environment
from tidemark.model.project.spark_settings import read_spark

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).resolve().parents[2]
DOCKER = PROJECT / "docker"
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
IN_IMAGE = Path("/opt/tidemark")
ONCE = {"kafka-format", "kafka-topics", "airflow-migrate", "airflow-passwords"}
MASTER = "spark://spark-master:7077"
SECRETS = "/run/secrets/spark_secrets"
BINARIES = Path(sys.executable).parent
WORKER = {"page_port": 8081, "cores": 2, "memory": "2g", "work": "/tmp/spark", "properties": SECRETS}
JARS, KAFKA = IN_IMAGE / ".jars", IN_IMAGE / "docker" / "kafka"


DOCKERFILE = (DOCKER / "Dockerfile").read_text()
COPIED = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, flags=re.MULTILINE)
"""The sources of each line that copies from the checkout."""
WAREHOUSE = "/data/warehouse"


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)


def test_the_compose_file_follows_the_compose_specification() -> None:
    schema = ["--builtin-schema", "vendor.compose-spec"]
    checked = run(str(BINARIES / "check-jsonschema"), *schema, str(DOCKER / "compose.yaml"))
    assert checked.returncode == 0, checked.stdout


def lint(dockerfile: Path) -> tuple[int, str]:
    linted = run(str(BINARIES / "hadolint"), str(dockerfile))
    return linted.returncode, linted.stdout


def test_a_linter_has_nothing_to_say_of_the_dockerfile() -> None:
    assert lint(DOCKER / "Dockerfile") == (0, "")


def test_what_the_page_on_kubernetes_shows_can_be_read(tmp_path: Path) -> None:
    page = (PROJECT / "docs" / "kubernetes.md").read_text()
    blocks = dict(re.findall(r"^```(\w+)\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE))
    assert blocks.keys() == {"dockerfile", "toml", "yaml"}
    (tmp_path / "Dockerfile").write_text(blocks["dockerfile"])
    assert lint(tmp_path / "Dockerfile") == (0, "")
    assert read_spark("x.toml", tomllib.loads(blocks["toml"])["spark"]).properties["spark.cores.max"] == "2"
    values = yaml.safe_load(blocks["yaml"])
    told = {variable["name"]: variable["value"] for variable in values["env"]}
    assert json.loads(told["AIRFLOW_CONN_SPARK_DEFAULT"])["extra"] == {"deploy-mode": "client"}
    assert values["volumeMounts"][0]["mountPath"] == told["AIRFLOW_VAR_TIDEMARK_WAREHOUSE"]


def is_sent(path: str, patterns: list[str]) -> bool:
    """Returns true if builders get *path*: the last of *patterns* decides that matches it or a folder of it."""
    parts = path.split("/")
    prefixes = ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
    sent = True
    for pattern in patterns:
        expression = re.escape(pattern.removeprefix("!")).replace(r"\*\*/", "(.*/)?").replace(r"\*", "[^/]*")
        if any(re.fullmatch(expression, prefix) for prefix in prefixes):
            sent = pattern.startswith("!")
    return sent


def test_whatever_the_image_copies_is_sent_to_the_builder() -> None:
    patterns = [line for line in (PROJECT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert is_sent("docker/secrets/spark_secrets", patterns) is False
    sources = " ".join(COPIED).split()
    assert {"setup.py", "jobs", "docker/ivy.xml"} <= {*sources}
    for source in sources:
        files = run("git", "ls-files", "--", source).stdout.split()
        assert files, source
        assert [file for file in files if not is_sent(file, patterns)] == [], source


def test_what_the_first_stage_copies_is_all_that_its_rules_need(tmp_path: Path) -> None:
    (rules,) = re.findall(r"&& make PYTHON=python3.11 (.+)$", DOCKERFILE, flags=re.MULTILINE)
    for source in COPIED[0].split() + COPIED[1].split():
        (tmp_path / source).parent.mkdir(exist_ok=True)
        shutil.copy(PROJECT / source, tmp_path / source)
    # What `make test` itself was told is not for this one.
    env = {name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL"}}
    command = ["make", "--dry-run", *rules.split()]
    made = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (made.returncode, made.stderr) == (0, "")
    # A broker of Tidemark's own makes that archive, and its code is not copied yet.
    assert ".jars/broker.jsa" not in made.stdout


def test_one_service_builds_the_image_of_all() -> None:
    assert [name for name, service in SERVICES.items() if "build" in service] == ["kafka-format"]
    first = SERVICES["kafka-format"]
    assert (first["image"], first.get("depends_on")) == ("tidemark:local", None)
    assert (DOCKER / first["build"]["context"] / first["build"]["dockerfile"]).resolve() == DOCKER / "Dockerfile"


def test_every_volume_has_a_name_and_none_of_temporary_files_two_containers() -> None:
    mounts: dict[str, list[str]] = {}
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            name, _, folder = volume.partition(":")
            mounts.setdefault(name, []).append(folder)
    assert mounts.keys() == COMPOSE["volumes"].keys()
    assert all(len(folders) == 1 for folders in mounts.values() if "/tmp" in folders)
    made = re.search(r"install -d -o tidemark -g tidemark (.+)$", DOCKERFILE, flags=re.MULTILINE)
    assert made is not None
    # A new volume gets its owner from the folder of the image.
    folders = {folder for all_ in mounts.values() for folder in all_} - {"/tmp", "/var/lib/postgresql/data"}
    assert folders == {*made[1].split()}


def test_executors_connect_to_a_name_that_one_container_has() -> None:
    (told,) = {*re.findall(r"'SPARK_LOCAL_HOSTNAME': '([^']*)'", str(SERVICES))}
    assert SERVICES["scheduler"]["environment"]["SPARK_LOCAL_HOSTNAME"] == told
    assert [name for name, service in SERVICES.items() if told in (name, service.get("hostname"))] == ["scheduler"]
    assert not any("networks" in service or "container_name" in service for service in SERVICES.values())


def test_no_container_needs_the_processes_of_another_or_the_socket_of_docker() -> None:
    assert not any({"pid", "ipc", "network_mode"} & service.keys() for service in SERVICES.values())
    assert "docker.sock" not in (DOCKER / "compose.yaml").read_text()


def test_commands_in_a_container_find_the_warehouse_and_project_of_its_airflow() -> None:
    image = dict(re.findall(r"(TIDEMARK_\w+)=(\S+)", DOCKERFILE))
    assert image == {"TIDEMARK_PROJECT": str(IN_IMAGE), "TIDEMARK_WAREHOUSE": WAREHOUSE}
    told = SERVICES["scheduler"]["environment"]
    assert told["AIRFLOW_VAR_TIDEMARK_WAREHOUSE"] == WAREHOUSE
    assert told["TIDEMARK_KAFKA_DEFAULT"] == "kafka:9092"


def test_a_database_that_is_initialised_is_not_healthy() -> None:
    check = SERVICES["postgres"]["healthcheck"]["test"]
    assert check[check.index("--host") + 1] == "127.0.0.1"


@pytest.mark.parametrize("name", COMPONENTS)
def test_the_parts_of_airflow_are_started_as_on_one_machine(name: str) -> None:
    assert SERVICES[name]["command"] == ["airflow", *COMPONENTS[name]]


def test_the_other_commands_are_those_that_tests_run() -> None:
    cluster_id = "dGlkZW1hcmtpbmRvY2tlcg"
    expected = {
        "airflow-migrate": ["airflow", *MIGRATE],
        "kafka-format": broker.format_command(JARS, KAFKA, cluster_id),
        "kafka": broker.server_command(JARS, KAFKA),
        "spark-master": spark_cluster.master_command(
            host="spark-master", port=7077, page_port=8081, properties=SECRETS
        ),
        "spark-worker-1": spark_cluster.worker_command(MASTER, host="spark-worker-1", **WORKER),
        "spark-worker-2": spark_cluster.worker_command(MASTER, host="spark-worker-2", **WORKER),
        "kafka-topics": ["python", "-m", "tidemark.local.topics", "kafka:9092", "jobs/topologies/flights.toml"],
        "airflow-passwords": ["install", "--mode=600", "/run/secrets/airflow_passwords", "/opt/airflow/passwords.json"],
    }
    others = SERVICES.keys() - COMPONENTS.keys() - {"postgres"}  # whose image has a command of its own
    assert {name: SERVICES[name]["command"] for name in others} == expected


def test_airflow_is_configured_as_on_one_machine() -> None:
    made = Secrets(since="", port=8080, password="", fernet_key="", jwt_secret="", secret_key="")
    here = environment(Path("/opt/airflow"), made, root=IN_IMAGE, variables={})
    there = SERVICES["scheduler"]["environment"]
    names = {name for name in here if name.startswith("AIRFLOW__")}
    assert {name.removesuffix("_CMD") for name in there if name.startswith("AIRFLOW__")} == names
    of_places = {"API__HOST", "CORE__EXECUTION_API_SERVER_URL", "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"}
    for name in names & there.keys() - {f"AIRFLOW__{place}" for place in of_places}:
        assert there[name] == here[name], name


def test_kafka_is_told_the_same_as_on_one_machine_but_for_places() -> None:
    def properties(text: str) -> dict[str, str]:
        return dict(re.findall(r"^([a-z.]+)=(.*)$", text, flags=re.MULTILINE))

    of_places = {"listeners", "advertised.listeners", "controller.quorum.bootstrap.servers", "log.dirs"}
    here = properties(broker.SERVER_PROPERTIES)
    there = properties((DOCKER / "kafka" / "server.properties").read_text())
    assert {name: there[name] for name in there.keys() - of_places} == {
        name: here[name] for name in here.keys() - of_places
    }
    assert (DOCKER / "kafka" / "log4j2.properties").read_text() == broker.LOG4J2_PROPERTIES


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_limited_hardened_and_has_a_health_check(name: str) -> None:
    service = SERVICES[name]
    assert re.fullmatch(r"\d+[mg]", service["mem_limit"])
    assert service["init"] is True
    assert service["pids_limit"] > 0
    assert (service["cap_drop"], service["security_opt"]) == (["ALL"], ["no-new-privileges:true"])
    assert service["healthcheck"] == {"disable": True} if name in ONCE else "test" in service["healthcheck"]
    assert (service["restart"] == "no") is (name in ONCE)
    assert service.get("privileged") is None
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def test_no_container_runs_as_root() -> None:
    users = re.findall(r"^USER (.*)$", DOCKERFILE, flags=re.MULTILINE)
    assert users == ["50000"]
    assert {service["user"] for name, service in SERVICES.items() if name != "postgres"} == {"50000:50000"}
    assert SERVICES["postgres"]["user"] == "postgres"


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_writes_only_to_volumes_and_tmp(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    volumes = [volume.rpartition(":")[2] for volume in service.get("volumes", [])]
    folders = [mount.partition(":")[0] for mount in service["tmpfs"]]
    assert (volumes + folders).count("/tmp") == 1
    allowed = {"/tmp", "/home/tidemark", "/var/run/postgresql", "/opt/airflow", "/var/lib/postgresql/data"}
    assert {*volumes, *folders} <= allowed | {WAREHOUSE, "/data/kafka", "/data/spark-master"}
    # A tmpfs is memory, and what Spark or DuckDB spills may be more than that.
    assert ("/tmp" in volumes) is (name in {"scheduler", "api-server", "spark-worker-1", "spark-worker-2"})


def test_images_of_others_can_be_pinned_by_digest(tmp_path: Path) -> None:
    """The registry is a script here: no image was pulled."""
    digest = f"sha256:{'ab' * 32}"
    docker = tmp_path / "docker"
    docker.write_text(f'#!/bin/sh\n[ "$1 $2 $3" = "buildx imagetools inspect" ] && echo {digest}\n')
    docker.chmod(0o755)
    file = tmp_path / ".env"
    command = [sys.executable, str(DOCKER / "pin_images.py"), str(file)]
    subprocess.run(command, check=True, env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"})
    python, postgres = f"python:3.11-slim-bookworm@{digest}", f"postgres:17-bookworm@{digest}"
    assert file.read_text() == f"POSTGRES_IMAGE={postgres}\nPYTHON_IMAGE={python}\n"
    images = {service["image"] for service in SERVICES.values()}
    assert images == {"tidemark:local", "${POSTGRES_IMAGE:-postgres:17-bookworm}"}
    assert "ARG PYTHON_IMAGE=python:3.11-slim-bookworm\nFROM ${PYTHON_IMAGE} AS base\n" in DOCKERFILE
    assert {service["build"]["args"]["PYTHON_IMAGE"] for service in SERVICES.values() if "build" in service} == {
        "${PYTHON_IMAGE:-python:3.11-slim-bookworm}"
    }


def made_secrets(folder: Path) -> dict[str, str]:
    assert run(sys.executable, str(DOCKER / "make_secrets.py"), str(folder)).returncode == 0
    return {file.name: file.read_text() for file in folder.iterdir()}


def test_secrets_are_made_once_and_readable_by_their_owner(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    made, again = (made_secrets(folder), made_secrets(folder))
    assert made == again
    assert folder.stat().st_mode & 0o777 == 0o700
    assert COMPOSE["secrets"] == {name: {"file": f"secrets/{name}"} for name in made}
    assert made["airflow_database"] == f"postgresql+psycopg2://airflow:{made['postgres_password']}@postgres/airflow"
    assert list(json.loads(made["airflow_passwords"])) == ["admin"]
    assert min(map(len, made.values())) >= 24


def test_no_secret_is_in_a_file_that_images_are_made_of() -> None:
    told = [value for service in SERVICES.values() for value in service.get("environment", {}).items()]
    secret = re.compile(r"PASSWORD|SECRET|KEY|SQL_ALCHEMY")
    named = {name: value for name, value in told if secret.search(name) and "PASSWORDS_FILE" not in name}
    assert named
    assert all("/run/secrets/" in value for value in named.values())
    assert "docker/secrets" in (PROJECT / ".dockerignore").read_text().splitlines()
    assert "/docker/secrets/" in (PROJECT / ".gitignore").read_text().splitlines()
    assert not re.search(r"^(ARG|ENV).*(PASS|SECRET|KEY)", DOCKERFILE, flags=re.MULTILINE)


@pytest.fixture
def url() -> Iterator[str]:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"scheduler": {"status": "healthy"}, "triggerer": {"status": null}}')

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(("part", "status"), [("scheduler", 0), ("triggerer", 1), ("no_such_part", 1)])
def test_a_part_is_well_when_airflow_says_so(url: str, part: str, status: int) -> None:
    assert run(sys.executable, str(DOCKER / "healthy.py"), url, f"{part}.status", "healthy").returncode == status
