"""Submits jobs to a cluster as Airflow does.

The executors do not have the library.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pyspark

PLUGINS = Path(__file__).resolve().parents[2] / "plugins"
COMMAND = """
import json, sys
from pathlib import Path
from tidemark.model.topology import load
from tidemark_airflow.operators.spark import DriverHook
hook = DriverHook(spark=load(Path(sys.argv[1])).spark, conn_id="spark_default", name="tests")
print(json.dumps(hook.command("APPLICATION")[:-1]))
"""


def spark_table(master: str, home: Path, **conf: str) -> str:
    """Returns the `spark` table for jobs of *master* with *conf*.

    Each job has two executors.
    """
    properties = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # a start takes less CPU
        "spark.pyspark.driver.python": sys.executable,
        "spark.pyspark.python": str(python_without_the_library(home / "python")),
        **conf,
    }
    lines = (f'"{name}" = "{value}"' for name, value in properties.items())
    table = f'[spark]\nmaster = "{master}"\nexecutors = 2\nmemory = "600m"\n\n[spark.conf]\n'
    return "\n" + table + "\n".join(lines) + "\n"


def submit_command(topology: Path, home: Path) -> list[str]:
    """Returns the plugin's command before the application of a job.

    The job is one of *topology*; its own state is in *home*.
    """
    local = json.dumps({"conn_type": "spark", "host": "local[2]", "extra": {"deploy-mode": "client"}})
    code = os.pathsep.join([str(PLUGINS), os.environ.get("PYTHONPATH", "")])
    airflow = {"AIRFLOW_HOME": str(home), "AIRFLOW_CONN_SPARK_DEFAULT": local, "PYTHONPATH": code}
    ran = subprocess.run(
        [sys.executable, "-c", COMMAND, str(topology)],
        env={**os.environ, **airflow},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    program, *options = json.loads(ran.stdout.splitlines()[-1])
    return [str(Path(pyspark.__file__).parent / "bin" / program), *options]


def python_without_the_library(home: Path) -> Path:
    """Creates a Python in *home* with all packages but Tidemark.

    Other machines have such a one.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    packages = Path(sysconfig.get_path("purelib"))
    for package in packages.iterdir():
        if "tidemark" not in package.name:
            (home / "lib" / packages.parent.name / packages.name / package.name).symlink_to(package)
    python = home / "bin" / "python"
    find = "import importlib.util as u; print(u.find_spec('tidemark'), u.find_spec('polars') is not None)"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run([str(python), "-c", find], cwd=home, env=env, capture_output=True, text=True, check=True)
    assert ran.stdout == "None True\n"
    return python
