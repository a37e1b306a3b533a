"""Where the jobs of a topology run, and with what: the table `spark` of its TOML file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidemark.spec.toml_keys import Keys

LOOPBACK = "127.0.0.1"
WITHOUT_SPARK = "TIDEMARK_WITHOUT_SPARK"
"""A variable that, set, makes a batch job end with SPARK_NEEDED where it would start a session."""
SPARK_NEEDED = 77
"""The exit status of a batch job that has more to read than one process should."""
TIDEMARKS_OWN = frozenset(
    {
        "spark.authenticate",
        "spark.authenticate.secret",
        "spark.driver.extraJavaOptions",
        "spark.executor.extraJavaOptions",
        "spark.jars",
        "spark.master",
        "spark.sql.catalog.spark_catalog",
        "spark.sql.extensions",
        "spark.sql.session.timeZone",
        "spark.submit.pyFiles",
    }
)
"""Properties without which tables would be wrong, jobs would not find their code, or anybody could stop them."""
_MASTER = re.compile(r"local(\[.+\])?|yarn|(spark|k8s)://.+")
_MEMORY = re.compile(r"\d+[mg]")


@dataclass(frozen=True, kw_only=True)
class SparkSettings:
    """The *master*, None where Airflow's connection says it, and Spark's *properties* by name."""

    master: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict, hash=False)


def jars(project: Path) -> list[str]:
    """The jars that jobs of the checkout *project* need; those for object stores only after `make object-store`."""
    return sorted(str(jar) for folder in ("spark", "s3") for jar in (project / ".jars" / folder).glob("*.jar"))


def is_local(master: str) -> bool:
    """Whether executors are threads of the driver, which has the code and the address that they need."""
    return master.startswith("local")


def driver_address(master: str) -> dict[str, str]:
    """The properties that keep a driver on a local *master* off the network.

    Of any other Spark finds out how executors reach it: by SPARK_LOCAL_HOSTNAME, SPARK_LOCAL_IP or the host's name.
    """
    return {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK} if is_local(master) else {}


def read_spark(file: str, content: Mapping[str, Any]) -> SparkSettings:
    """What *content*, the table `spark` of *file*, says; raises InvalidSpec."""
    keys = Keys(file, "spark", content)
    master = _matching(keys, "master", "spark://spark-master:7077", _MASTER)
    executors = keys.count("executors", "2", None)
    cores = keys.count("cores", "1", executors and 1)
    said = {
        "spark.executor.instances": executors,
        "spark.executor.cores": cores,
        "spark.cores.max": executors and executors * cores,  # how a standalone cluster counts executors
        "spark.executor.memory": _matching(keys, "memory", "2g", _MEMORY),
        "spark.driver.memory": _matching(keys, "driver_memory", "2g", _MEMORY),
        "spark.sql.shuffle.partitions": keys.count("shuffle_partitions", "8", None),
    }
    conf = keys.get("conf", dict, '{ "spark.executor.memoryOverhead" = "1g" }', {})
    keys.done()
    known = {name: str(value) for name, value in said.items() if value is not None}
    for name, value in conf.items():
        _check_property(keys, name, value, known)
    return SparkSettings(master=master, properties={**known, **conf})


def _matching(keys: Keys, key: str, example: str, form: re.Pattern[str]) -> str | None:
    value: str | None = keys.text(key, example, None)
    if value is not None and not form.fullmatch(value):
        keys.fail(key, f"is {value!r}", f'write {key} = "{example}", or another in such a form')
    return value


def _check_property(keys: Keys, name: str, value: object, known: Mapping[str, str]) -> None:
    """Raise InvalidSpec unless `conf` may set the property *name* to *value*; keys of their own set those *known*."""
    key = f'conf."{name}"'
    if not name.startswith("spark.") or not isinstance(value, str):
        keys.fail(key, f"is {value!r}", 'write names in quotes, and strings: "spark.executor.memoryOverhead" = "1g"')
    if name in TIDEMARKS_OWN:
        keys.fail(key, "is Tidemark's own to set", "leave it out")
    if name in known:
        keys.fail(key, "is said by a key of this table too", "keep one of them")
