"""Airflow on this machine: four processes on 127.0.0.1, state in one folder.

It has SQLite and the LocalExecutor. Environment variables set everything, so that no `airflow.cfg` has to be edited.
Keys, password and port are generated at the first start and kept, readable by their owner alone, in
`<home>/secrets.json`.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType

from tidemark.control import process
from tidemark.control.private_file import write_private
from tidemark.errors import TidemarkError
from tidemark.local.airflow_api import AirflowApi
from tidemark.model.project.files import VARIABLE, Project

COMPONENTS = {
    "api-server": ("api-server",),
    "scheduler": ("scheduler", "--skip-serve-logs"),  # its log server would listen on every interface
    "dag-processor": ("dag-processor",),
    "triggerer": ("triggerer", "--skip-serve-logs"),
}
MIGRATE = ("db", "migrate")
SQL_ALCHEMY_CONN = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"
USER = "admin"
HEALTHY_WITHIN_S = 180.0
NO_MORE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class Secrets:
    """Port and secrets of a home, and the time of its setup.

    *since* is that time (ISO 8601): its schedules request nothing before.
    """

    since: str
    port: int
    password: str
    fernet_key: str
    jwt_secret: str
    secret_key: str


def start(
    home: Path,
    *,
    root: Path,
    project: Project | None = None,
    variables: Mapping[str, str],
    settings: Mapping[str, str] = NO_MORE,
    components: Collection[str] = COMPONENTS.keys(),
) -> list[process.Process]:
    """Starts the processes of Airflow that do not run; `wait_until_healthy` comes next.

    Args:
        home: its folder.
        root: the checkout.
        project: its topologies are scheduled; None: those of the current project.
        variables: become Airflow variables of the same names in lower case.
        settings: by SECTION__KEY; they override the settings that are made here.
        components: the processes to start; without all of them it never is healthy.
    """
    home.mkdir(parents=True, exist_ok=True)
    is_running = runs(home)
    secrets_of_home = _secrets(home) if is_running else _with_free_port(home)
    env = environment(home, secrets_of_home, root=root, project=project, variables=variables, settings=settings)
    if not is_running:
        write_private(home / "passwords.json", json.dumps({USER: secrets_of_home.password}))
        _migrate(home, env)
    return [process.launch(name, ["airflow", *COMPONENTS[name]], home=home, env=env) for name in components]


def wait_until_healthy(home: Path, parts: Sequence[process.Process]) -> AirflowApi:
    """Returns the API of the Airflow with *home*, once it is healthy.

    Raises:
        TidemarkError: one of its *parts* does not come up.
    """
    client = api(home)
    process.wait_until(client.is_healthy, "a healthy Airflow", HEALTHY_WITHIN_S, by=parts)
    return client


def api(home: Path) -> AirflowApi:
    """Returns the API of the Airflow with *home*.

    Raises:
        TidemarkError: it was never started.
    """
    if not (home / "secrets.json").exists():
        msg = f"Airflow was never started in {home}; run `tidemark up`"
        raise TidemarkError(msg)
    made = _secrets(home)
    return AirflowApi(f"http://127.0.0.1:{made.port}", USER, made.password)


def runs(home: Path) -> bool:
    """Returns True if any of its processes lives."""
    return any(process.find(home, name) is not None for name in COMPONENTS)


def stop(home: Path) -> None:
    """Stops its processes and the tasks that they run, all at once."""
    with ThreadPoolExecutor(len(COMPONENTS)) as pool:
        list(pool.map(lambda name: process.stop(home, name), COMPONENTS))


def environment(
    home: Path,
    secrets_of_home: Secrets,
    *,
    root: Path,
    project: Project | None = None,
    variables: Mapping[str, str],
    settings: Mapping[str, str] = NO_MORE,
) -> dict[str, str]:
    """Returns the whole environment of Airflow's processes.

    Jobs that they submit inherit the part of it that is not Airflow's. Arguments are those of `start`;
    *secrets_of_home* are the port and keys of *home*.
    """
    url = f"http://127.0.0.1:{secrets_of_home.port}"
    binaries = Path(sys.executable).parent
    inherited = process.without_airflow(os.environ)
    # A caller's own modules or Spark would come before those of this installation.
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "SPARK_HOME"):
        inherited.pop(name, None)
    env = {
        **inherited,
        "PATH": f"{binaries}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TZ": "UTC",
        "TIDEMARK_SINCE": secrets_of_home.since,
        VARIABLE: str((project or Project.here()).folder),
        "AIRFLOW_HOME": str(home),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(
            {"conn_type": "spark", "host": "local[2]", "extra": {"deploy-mode": "client"}}
        ),
    }
    # Airflow takes variables from its environment before its database, and settings before its file.
    for name, value in variables.items():
        env[f"AIRFLOW_VAR_{name.upper()}"] = value
    for name, value in {**_settings(home, secrets_of_home, root, url), **settings}.items():
        env[f"AIRFLOW__{name}"] = value
    return env


def _settings(home: Path, secrets_of_home: Secrets, root: Path, url: str) -> dict[str, str]:
    return {
        "API__BASE_URL": url,
        "API__HOST": "127.0.0.1",
        "API__PORT": str(secrets_of_home.port),
        "API__SECRET_KEY": secrets_of_home.secret_key,
        "API_AUTH__JWT_SECRET": secrets_of_home.jwt_secret,
        "CORE__DAGS_FOLDER": str(root / "dags"),
        "CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "CORE__EXECUTOR": "LocalExecutor",
        "CORE__FERNET_KEY": secrets_of_home.fernet_key,
        "CORE__HOSTNAME_CALLABLE": "socket.gethostname",  # the default asks the name service
        "CORE__LOAD_EXAMPLES": "False",
        "CORE__PARALLELISM": "4",
        "CORE__PLUGINS_FOLDER": str(root / "plugins"),
        "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home / "passwords.json"),
        "CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
        "DATABASE__SQL_ALCHEMY_CONN": _sqlite(home / "airflow.db"),
        "LOGGING__BASE_LOG_FOLDER": str(home / "logs"),
        "USAGE_DATA_COLLECTION__ENABLED": "False",
        "WORKERS__EXECUTION_API_TIMEOUT": "60",  # a task may be started before the API server is
    }


def _secrets(home: Path) -> Secrets:
    """Returns the secrets of *home*, generated now if it has none."""
    file = home / "secrets.json"
    if not file.exists():
        generated = Secrets(
            since=datetime.now(UTC).isoformat(timespec="seconds"),
            port=process.free_port(),
            password=secrets.token_urlsafe(12),
            fernet_key=base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
            jwt_secret=secrets.token_urlsafe(64),
            secret_key=secrets.token_urlsafe(32),
        )
        write_private(file, json.dumps(asdict(generated)))
    return Secrets(**json.loads(file.read_text()))


def _with_free_port(home: Path) -> Secrets:
    """Returns the secrets of *home*, with a port that is free."""
    secrets_of_home = _secrets(home)
    with socket.socket() as probe:
        # As servers do: connections of the one before, which linger, do not occupy its port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", secrets_of_home.port))
        except OSError:
            secrets_of_home = replace(secrets_of_home, port=process.free_port())
            write_private(home / "secrets.json", json.dumps(asdict(secrets_of_home)))
    return secrets_of_home


def _migrate(home: Path, env: Mapping[str, str]) -> None:
    """Creates or upgrades the database."""
    # A migration takes seconds, and an empty database of a version of Airflow is the same everywhere. So a new one is a
    # copy of the first that this installation has made.
    database, log = home / "airflow.db", home / "migrate.log"
    first = Path(sys.prefix) / f"airflow-{version('apache-airflow')}.db"
    is_new = env[SQL_ALCHEMY_CONN] == _sqlite(database) and not database.exists()
    if is_new and first.exists():
        shutil.copyfile(first, database)
        return
    with log.open("a") as output:
        command = ["airflow", *MIGRATE]
        ended = subprocess.run(command, env=dict(env), stdout=output, stderr=subprocess.STDOUT, check=False)
    if ended.returncode:
        msg = f"Airflow cannot start, because `airflow db migrate` failed; see {log}"
        raise TidemarkError(msg)
    if is_new:
        with suppress(OSError):  # others may own the installation
            partial = shutil.copyfile(database, first.with_suffix(f".{os.getpid()}"))
            partial.replace(first)


def _sqlite(database: Path) -> str:
    return f"sqlite:///{database}"
