"""All errors of a topology file are reported together, by key.

Errors that follow from another one are left out.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemark.cli.project.check import check
from tidemark.errors import InvalidSpec
from tidemark.model.project.files import Project
from tidemark.model.topology import Topology, load_each

GOOD = (
    '[operators.a]\nkind = "source"\ntopic = "t"\nfields = "id string"\nbound = "1 s"\n'
    '[operators.out]\nkind = "sink"\ninput = "a"\ntable = "out"\n'
)
BAD = """
name = "Play"
windw = "10 s"
[spark]
memory = "much"
[retention]
fcts = "3 d"
[operators.behind]
kind = "sink"
input = "small"
table = "behind"
mode = "current"
key = ["nobody_knows_what_small_has"]
[operators.events]
kind = "source"
topic = "events"
fields = "id string, v integer, at datetime"
timestamp = "at"
bound = "three"
idle_afer = "5 s"
[operators.of_events]
kind = "table"
input = "events"
key = ["who_knows"]
[operators.reading]
kind = "source"
topic = "reading"
fields = "id string, v int"
bound = "1"
idle_afer = "5 s"
[operators.other]
kind = "source"
topc = "other"
fields = "id string, w int"
bound = "1 s"
[operators.small]
kind = "map"
input = "reading"
select = { id = "id", a = "w + 1", b = "v +", c = "_key" }
where = "nothing > 3"
[operators.newest]
kind = "table"
input = "reading"
key = ["ident"]
columns = ["v", "vv"]
strategy = "periodc"
interval = "10 s"
[operators.names]
kind = "table"
input = "reading"
key = ["id"]
history = "1 h"
[operators.named]
kind = "join"
input = "nowhere"
table = "names"
on = { id = "id" }
[operators.lost]
kind = "sink"
input = "no_where"
table = "lost"
[operators.batches]
kind = "sink"
input = "reading"
table = "x"
[operators.counts]
kind = "aggregate"
input = "reading"
key = ["id"]
aggregates = { n = "count(*)", s = "sum(id)", t = "sum(z)" }
[operators.sums]
kind = "aggregate"
input = "reading"
key = ["id"]
aggregates = { n = "count(*)" }
select = { m = "n + v" }
[operators.round]
kind = "map"
input = "about"
select = { v = "v" }
[operators.about]
kind = "map"
input = "round"
select = { v = "w +" }
"""
FOUND = [
    "name",
    "windw",
    "operators",
    "spark.memory",
    "retention.fcts",
    "operators.events.fields",
    "operators.events.bound",
    "operators.events.idle_afer",
    "operators.reading.bound",
    "operators.reading.idle_afer",
    "operators.other.topc",
    "operators.newest.strategy",
    "operators.newest.key",
    "operators.newest.columns",
    "operators.named",
    "operators.lost",
    "operators.batches",
    "operators.small.select.a",
    "operators.small.select.b",
    "operators.small.select.c",
    "operators.small.where",
    "operators.counts.aggregates.s",
    "operators.counts.aggregates.t",
    "operators.sums.select.m",
]


def told(folder: Path, toml: str) -> list[str]:
    """The lines with which a file is refused."""
    file = folder / "play.toml"
    file.write_text(toml)
    with pytest.raises(InvalidSpec) as refused:
        check([file], folder, Project(folder))
    return [line for line in str(refused.value).splitlines() if line.startswith("play.toml: ")]


def test_all_mistakes_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    lines = told(tmp_path, BAD)
    assert sorted(line.split(": ")[1] for line in lines) == sorted(FOUND)
    internal = ("_deleted", "_task", "_headers", "SELECT", "FROM")
    assert not any(word in line for line in lines for word in internal)


SOURCE = 'name = "play"\n[operators.a]\nkind = "source"\ntopic = "t"\nfields = "k string, v int"\nbound = "1 s"\n'
SHAPED = f"""{SOURCE}
[operators.n]
kind = "aggregate"
input = "a"
key = ["kk"]
aggregates = {{ n = "count(", s = "sum(k)", t = "sum(v)", u = "max(w)" }}
select = {{ x = "n + s + t + kk", y = "n + v" }}
[operators.m]
kind = "map"
input = "a"
key = ["k", "z"]
select = {{ k = "k", v = "v + ", x = "w" }}
strategy = "on_change"
identity = "v + x + y"
[operators.of_n]
kind = "table"
input = "n"
key = ["who_knows"]
[operators.newest]
kind = "table"
input = "a"
key = 1
columns = ["w"]
[operators.sent]
kind = "repartition"
input = "a"
id = "k"
key = ["w"]
columns = ["u"]
[operators.sums]
kind = "aggregate"
input = "newest"
key = ["who_knows"]
aggregates = {{ n = "count(*)" }}
[operators.by_updates]
kind = "aggregate"
input = "plain"
key = ["w"]
aggregates = {{ n = "count(*)" }}
[operators.plain]
kind = "table"
input = "a"
key = ["k"]
[operators.joined]
kind = "join"
input = "a"
table = "plain"
on = {{ kk = "ww" }}
"""


def test_a_wrong_shape_hides_no_mistake_of_its_operator(tmp_path: Path) -> None:
    keys = [line.split(": ")[1].removeprefix("operators.") for line in told(tmp_path, SHAPED)]
    assert sorted(keys) == [
        "by_updates.input", "by_updates.key", "joined.on", "joined.on", "m.identity", "m.key", "m.select.v",
        "m.select.x", "n.aggregates.n", "n.aggregates.s", "n.aggregates.u", "n.key", "newest.columns", "newest.key",
        "sent", "sent.columns", "sent.id", "sent.key",
    ]  # fmt: skip


def test_airflow_is_told_the_mistakes_of_keys_at_once(tmp_path: Path) -> None:
    (tmp_path / "play.toml").write_text(BAD)
    (error,) = load_each(tmp_path).values()
    keys = [line.split(": ")[1] for line in str(error).splitlines()]
    assert {"windw", "operators.events.fields", "operators.newest.strategy", "operators.lost"} <= {*keys}


def test_of_two_files_of_one_name_the_one_called_so_counts(tmp_path: Path) -> None:
    good = (
        'name = "play"\n[operators.a]\nkind = "source"\ntopic = "t"\nfields = "id string"\nbound = "1 s"\n'
        '[operators.out]\nkind = "sink"\ninput = "a"\ntable = "out"\n'
    )
    for name in ("copy", "play", "play_2"):
        (tmp_path / f"{name}.toml").write_text(good)
    found = {path.stem: each for path, each in load_each(tmp_path).items()}
    assert isinstance(found["play"], Topology)
    remedy = "give it another name, or remove one of the files"
    assert str(found["copy"]) == f"copy.toml: name: is 'play', which is already the name in play.toml; {remedy}"
    assert str(found["play_2"]) == f"play_2.toml: name: is 'play', which is already the name in play.toml; {remedy}"


def test_wrong_edges_are_all_told(tmp_path: Path) -> None:
    source = 'kind = "source"\ntopic = "{}"\nfields = "id string, v int"\nbound = "1 s"\n'
    toml = (
        f'name = "play"\n[operators.a]\n{source.format("t")}[operators.b]\n{source.format("t")}'
        '[operators.out]\nkind = "sink"\ninput = "a"\ntable = "out"\n'
        '[operators.again]\nkind = "sink"\ninput = "b"\ntable = "out"\n'
        '[operators.behind]\nkind = "sink"\ninput = "out"\ntable = "behind"\n'
        '[operators.lonely]\nkind = "repartition"\ninput = "b"\nkey = ["w"]\ncolumns = ["v"]\n'
        '[operators.n]\nkind = "aggregate"\ninput = "b"\naggregates = { n = "count(*)" }\n'
    )
    keys = ["again.table", "b.topic", "behind", "lonely", "lonely.key", "n.key"]
    assert sorted(line.split(": ")[1] for line in told(tmp_path, toml)) == [f"operators.{key}" for key in keys]


GROUPED = f"""{SOURCE}[operators.b]
kind = "table"
input = "a"
key = ["k"]
[operators.n]
kind = "aggregate"
input = "a"
key = ["v"]
aggregates = {{ n = "count(*)" }}
"""


def test_what_cannot_run_in_shards_is_told(tmp_path: Path) -> None:
    assert told(tmp_path, f"shards = {{ a = 2, c = 3 }}\n{GROUPED}") == [
        "play.toml: shards.c: is not a sub-topology; use one of a, or write a number for all of them"
    ]
    assert told(tmp_path, f"shards = {{ a = 0 }}\n{GROUPED}") == [
        "play.toml: shards: is {'a': 0}; write shards = 4, or shards = { NAME = 4 }"
    ]
    assert told(tmp_path, f"shards = 2\n{GROUPED}") == [
        "play.toml: shards: a cannot run in shards: n groups by v, but no column of a is part of this key and all keys "
        "before it; put a repartition before it; or leave out shards for it"
    ]
    assert told(tmp_path, f"shards = {{ a = 1 }}\n{GROUPED}") == []


def test_an_example_is_not_looked_at_in_place_of_a_key(tmp_path: Path) -> None:
    toml = (
        'name = "play"\n[operators.a]\nkind = "source"\ntopic = "t"\nfields = "k string, v int"\nbound = "1 s"\n'
        '[operators.small]\nkind = "map"\ninput = "a"\nkey = ["k"]\nselect = { k = "k", v = "v" }\nwhere = ""\n'
        'strategy = "on_change"\nidentity = ""\n'
    )
    keys = [line.split(": ")[1] for line in told(tmp_path, toml)]
    assert sorted(keys) == ["operators.small.identity", "operators.small.where"]


def test_topologies_that_name_one_driver_agree_on_spark(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.topologies.mkdir(parents=True)
    for name, driver, memory in (
        ("one", "small", "2g"), ("two", "small", "2g"), ("three", "small", "3g"), ("four", "other", "3g"),
        ("five", "own", "3g"), ("six", "own", "4g"),
    ):  # fmt: skip
        head = f'name = "{name}"\ndriver = "{driver}"\nspark = {{ driver_memory = "{memory}" }}\n'
        (project.topologies / f"{name}.toml").write_text(head + GOOD)
    with pytest.raises(InvalidSpec) as raised:
        check([], tmp_path / "warehouse", project)
    assert [line for line in str(raised.value).splitlines() if "driver" in line] == [
        "three.toml: driver: is 'small', as in one.toml, but [spark] differs there; "
        "write the same [spark] in both, or another driver"
    ]


def test_slas_under_the_name_of_a_file_are_no_topologys(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.topologies.mkdir(parents=True)
    toml = f'name = "clickstream"\n{GOOD}'
    sla = 'subject = "out"\nerror_after = "5 s"\nowner = "ann"\n'
    project.slas.parent.mkdir(parents=True, exist_ok=True)
    project.slas.write_text(f"[clicks.y]\n{sla}[clickstream.x]\n{sla}")
    # With a mistake the file is still known by the name in it.
    for text in (toml, f"{toml}colour = 1\n"):
        (project.topologies / "clicks.toml").write_text(text)
        with pytest.raises(InvalidSpec) as refused:
            check([], tmp_path / "warehouse", project)
        assert [line for line in str(refused.value).splitlines() if "not a topology" in line] == [
            "slas.toml: clicks: is not a topology; did you mean clickstream?"
        ]


EVERYWHERE = {
    "topologies/shop.toml": """
name = "shop"
windw = "10 s"
[kafka.eu]
bootstrp = "b:1"
colour = "red"
[registry.main]
url = "x"
colour = "red"
[spark.kubernetes]
image = 3
service_account = 3
colour = "red"
[operators.orders]
kind = "source"
topic = "orders"
kafka = "far"
fields = "id string, at bigint"
timestamp = "time"
bounds = "5 s"
[operators.out]
kind = "sinc"
input = "orders"
colour = "red"
""",
    "connections.toml": """
[kafka.us]
bootstrp = "b:1"
protocol = "NONE"
[kafka.cn]
colour = "red"
[registry.plant]
urls = "https://r"
[kafkas.x]
""",
    "expectations/slas.toml": """
[shop.fresh]
subject = "who_knows"
measure = "staleness"
error_after = "3 parsecs"
colour = "red"
[shop.second]
subject = "orders"
measure = "stalenes"
owner = 3
colour = "red"
""",
    "channels.toml": """
[mail]
kind = "emial"
to = 3
colour = "red"
[hook]
kind = "webhook"
connection = 3
colour = "red"
""",
}
FOUND_EVERYWHERE = {
    "shop.toml": [
        *("windw", "kafka.eu.bootstrp", "kafka.eu.colour", "registry.main.url", "registry.main.colour"),
        *("spark.kubernetes.image", "spark.kubernetes.service_account", "spark.kubernetes.colour"),
        *("operators.orders.timestamp", "operators.orders.bounds", "operators.out.kind", "operators.out.colour"),
    ],
    "connections.toml": [
        *("kafkas", "kafka.us.bootstrp", "kafka.us.protocol", "kafka.cn.bootstrap", "kafka.cn.colour"),
        "registry.plant.urls",
    ],
    # The subject of the first is not known while its topology has mistakes.
    "slas.toml": [
        *("shop.fresh.error_after", "shop.fresh.owner", "shop.fresh.colour"),
        *("shop.second.measure", "shop.second.owner", "shop.second.colour"),
    ],
    "channels.toml": ["mail.kind", "mail.to", "mail.colour", "hook.connection", "hook.colour"],
}


def test_mistakes_of_all_sections_and_files_are_told_at_once(tmp_path: Path) -> None:
    for name, text in EVERYWHERE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    with pytest.raises(InvalidSpec) as refused:
        check([], tmp_path / "w", Project(tmp_path))
    found: dict[str, list[str]] = {}
    for line in str(refused.value).splitlines():
        file, key, _ = line.split(": ", 2)
        found.setdefault(file, []).append(key)
    assert {file: sorted(keys) for file, keys in found.items()} == {
        file: sorted(keys) for file, keys in FOUND_EVERYWHERE.items()
    }
