"""What a topology may say of Spark, and how a wrong table is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tidemark.errors import InvalidSpec
from tidemark.spec.spark_settings import SparkSettings, driver_address, read_spark


def test_a_topology_that_says_nothing_leaves_everything_as_it_was() -> None:
    assert read_spark("x.toml", {}) == SparkSettings(master=None, properties={})


def test_every_key_becomes_the_properties_that_each_kind_of_cluster_goes_by() -> None:
    said = {"master": "yarn", "executors": 3, "cores": 2, "memory": "2g", "driver_memory": "512m"}
    read = read_spark("x.toml", {**said, "shuffle_partitions": 8, "conf": {"spark.task.cpus": "2"}})
    assert read.master == "yarn"
    assert read.properties == {
        "spark.executor.instances": "3",  # YARN and Kubernetes count executors,
        "spark.cores.max": "6",  # a standalone cluster the cores of all of them
        "spark.executor.cores": "2",
        "spark.executor.memory": "2g",
        "spark.driver.memory": "512m",
        "spark.sql.shuffle.partitions": "8",
        "spark.task.cpus": "2",
    }


def test_executors_have_one_core_unless_said_otherwise() -> None:
    properties = read_spark("x.toml", {"executors": 2}).properties
    assert (properties["spark.executor.cores"], properties["spark.cores.max"]) == ("1", "2")


@pytest.mark.parametrize(
    ("said", "refusal"),
    [
        ({"master": "mesos://here"}, "x.toml: spark.master: is 'mesos://here'; write master = \"spark://spark-master"),
        ({"memory": "2 GB"}, "x.toml: spark.memory: is '2 GB'; write memory = \"2g\""),
        ({"executors": 0}, "x.toml: spark.executors: is 0; write 1 or more"),
        ({"core": 2}, "x.toml: spark.core: is not a key of this place; did you mean cores?"),
        ({"conf": {"spark.jars": "a.jar"}}, 'x.toml: spark.conf."spark.jars": is Tidemark\'s own to set; leave it out'),
        ({"conf": {"spark": {"ui": "1"}}}, "x.toml: spark.conf.\"spark\": is {'ui': '1'}; write names in quotes"),
        ({"conf": {"cores": "2"}}, "x.toml: spark.conf.\"cores\": is '2'; write names in quotes, and strings"),
        (
            {"cores": 2, "conf": {"spark.executor.cores": "1"}},
            'x.toml: spark.conf."spark.executor.cores": is said by a key of this table too; keep one of them',
        ),
    ],
)
def test_a_wrong_table_is_refused_with_file_key_and_remedy(said: dict[str, Any], refusal: str) -> None:
    with pytest.raises(InvalidSpec) as raised:
        read_spark("x.toml", said)
    assert str(raised.value).startswith(refusal)


@pytest.mark.parametrize(
    ("master", "host"), [("local", "127.0.0.1"), ("local[2]", "127.0.0.1"), ("spark://a:7077", None)]
)
def test_a_driver_on_a_local_master_listens_on_loopback_alone(master: str, host: str | None) -> None:
    expected = {"spark.driver.host": host, "spark.driver.bindAddress": host} if host else {}
    assert driver_address(master) == expected
