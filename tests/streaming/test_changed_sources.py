"""While a stream is stopped, its sources are added, removed, reordered, renamed and given other topics.

Here brokers and Spark are real. `tests/delta/test_changing.py` makes more kinds of changes without them.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from streaming.drivers import OnlyDriver, SharedDriver
from streaming.laws import check_accounting
from streaming.sending import send_numbers, source_of_numbers

from support.command_line import tidemark
from tidemark.local import broker as embedded

PARTITIONS = 2
HEAD = """
name = "{name}"
window = "5 s"
trigger = "1 s"
shards = {shards}
"""
UNION = """
[operators.all]
kind = "union"
inputs = [{inputs}]
"""
REST = """
[operators.kept]
kind = "sink"
input = "{input}"
table = "kept"

[operators.tens]
kind = "map"
input = "{input}"
select = {{ ten = "n // 10", n = "n" }}

[operators.by_ten]
kind = "repartition"
input = "tens"
key = ["ten"]
columns = ["n"]

[operators.per_ten]
kind = "aggregate"
sub_topology = "tens"
input = "by_ten"
aggregates = {{ records = "count(*)", total = "sum(n)" }}
"""
BELOW = """
name = "{name}_below"
trigger = "1 s"

[operators.rows]
kind = "source"
delta = "streams/{name}/all/kept"
written_by = "{name}/all"
fields = "n bigint, at bigint"
timestamp = "at"
bound = "1 min"

[operators.copied]
kind = "sink"
input = "rows"
table = "copied"
"""


@dataclass
class Reading:
    """A source as the file has it, and what the stream must have read of its topic."""

    name: str
    topic: str
    was: str | None = None
    starting: str | None = None


@dataclass
class Model:
    """Says, by what a person wrote into the file, which numbers the table must have."""

    name: str
    address: str
    chance: random.Random
    sources: list[Reading] = field(default_factory=list)
    topics: int = 0
    numbers: int = 0
    sent: dict[str, list[int]] = field(default_factory=dict)
    expected: Counter[int] = field(default_factory=Counter)
    names: int = 0
    shards: int = 1

    def new_topic(self) -> str:
        topic = f"{self.name}_{self.topics}"
        self.topics += 1
        embedded.create_topics(self.address, {topic: PARTITIONS})
        self.sent[topic] = []
        return topic

    def new_name(self) -> str:
        self.names += 1
        return f"source_{self.names}"

    def send(self) -> None:
        """Sends numbers to every topic. Those of topics that the file has will be read."""
        for topic in self.sent:
            for partition in range(PARTITIONS):
                few = range(self.numbers, self.numbers + self.chance.randint(0, 3))
                self.numbers = few.stop
                send_numbers(self.address, topic, *few, partition=partition)
                self.sent[topic] += few
                if any(source.topic == topic for source in self.sources):
                    self.expected.update(few)

    def begin(self, source: Reading) -> None:
        """Counts what the topic of a source that begins has already."""
        if source.starting != "latest":
            self.expected.update(self.sent[source.topic])

    def change(self, *, has_unread: bool) -> str:
        """Changes the file. If topics of it have unread records (*has_unread*), all sources stay."""
        kinds = ["add", "add", "reorder", "rename", "again"]
        if not has_unread:
            kinds += ["other topic", *(["remove"] * 2 if len(self.sources) > 1 else [])]
        kind = self.chance.choice(kinds)
        for source in self.sources:
            source.was = source.starting = None
        chosen = self.chance.choice(self.sources)
        match kind:
            case "add" | "again":
                left = sorted({*self.sent} - {source.topic for source in self.sources})
                topic = self.chance.choice(left) if kind == "again" and left else self.new_topic()
                added = Reading(self.new_name(), topic, starting=self.chance.choice([None, "earliest", "latest"]))
                self.begin(added)
                self.sources.insert(self.chance.randint(0, len(self.sources)), added)
            case "remove":
                self.sources.remove(chosen)
            case "reorder":
                self.chance.shuffle(self.sources)
            case "rename":
                chosen.was, chosen.name = chosen.name, self.new_name()
            case "other topic":
                chosen.topic, chosen.starting = self.new_topic(), self.chance.choice(["earliest", "latest"])
                self.begin(chosen)
        return kind

    def toml(self) -> str:
        parts = [HEAD.format(name=self.name, shards=self.shards)]
        for source in self.sources:
            parts.append(f'{source_of_numbers(source.name, source.topic)}idle_after = "1 s"\n')
            parts += [f'was = "{source.was}"\n'] if source.was else []
            parts += [f'starting_offsets = "{source.starting}"\n'] if source.starting else []
        names = ", ".join(f'"{source.name}"' for source in self.sources)
        is_one = len(self.sources) == 1
        parts += [] if is_one else [UNION.format(inputs=names)]
        return "".join([*parts, REST.format(input=self.sources[0].name if is_one else "all")])


def reads(driver: OnlyDriver, ends: set[str]) -> bool:
    return ends <= driver.offsets().keys()


def check_behind(home: Path, model: Model, shared: SharedDriver) -> None:
    """Runs the stream behind the repartition, and the topology below, until they have the same numbers."""
    records, totals = Counter[str](), Counter[str]()
    for n, times in model.expected.items():
        records[str(n // 10)] += times
        totals[str(n // 10)] += n * times
    expected = {ten: {"records": records[ten], "total": totals[ten]} for ten in records}
    with OnlyDriver(home, model.toml(), model.address, stream="tens", shared=shared) as driver:
        driver.wait(lambda: newest_of(driver, "per_ten") == expected, f"the sums {expected}")
        assert driver.drain() == 0
        check_accounting(driver.rows("operator_batches"))
    with OnlyDriver(home, BELOW.format(name=model.name), model.address, shared=shared) as driver:
        copied = driver.wait_for("copied", model.expected.total())
        assert Counter(row["n"] for row in copied) == model.expected
        assert driver.drain() == 0


def newest_of(driver: OnlyDriver, operator: str) -> dict[str, dict[str, int]]:
    """Returns the newest value of each key."""
    return {row["key"]: json.loads(row["value"]) for row in driver.rows("changes") if row["operator"] == operator}


@pytest.mark.parametrize(
    ("seed", "changes", "killed"), [(1, 5, 0.0), pytest.param(2, 100, 0.2, marks=pytest.mark.long)]
)
def test_what_goes_on_is_read_once_whatever_changes_beside_it(
    tmp_path: Path, broker: str, shared: SharedDriver, seed: int, changes: int, killed: float
) -> None:
    """A share of the drivers is *killed*, which have processes of their own, and the others are drained."""
    model = Model(f"changing_{seed}", broker, random.Random(seed))
    model.sources = [Reading(model.new_name(), model.new_topic()) for _ in range(2)]
    watermark_ms, is_killed = None, False
    for number in range(changes + 1):
        done = model.change(has_unread=is_killed) if number else "start"
        told = f"change {number}: {done}: {[(s.name, s.topic, s.was, s.starting) for s in model.sources]}"
        if model.chance.random() < 0.5 and not any(source.starting == "latest" for source in model.sources):
            model.send()  # while no driver runs
        is_killed = number < changes and model.chance.random() < killed
        model.shards = model.chance.choice([1, 1, 3])
        with OnlyDriver(tmp_path, model.toml(), broker, stream="all", shared=None if is_killed else shared) as driver:
            ends = {f"{s.name}/{n}" for s in model.sources for n in range(PARTITIONS)}
            driver.wait(partial(reads, driver, ends), told)
            model.send()
            if is_killed:
                # Somewhere in a batch, or between two.
                driver.kill_when(lambda: True, told)
                continue
            kept = driver.wait_for("kept", model.expected.total())
            assert Counter(row["n"] for row in kept) == model.expected, told
            assert driver.drain() == 0
            batches, outcomes = driver.rows("batches"), driver.rows("operator_batches")
        reached = [row["watermark"] for row in batches if row["watermark"] is not None]
        assert reached == sorted(reached), told
        assert watermark_ms is None or reached[-1] >= watermark_ms, told
        watermark_ms = reached[-1] if reached else None
        check_accounting(outcomes)
        if number == changes or number % 20 == 10:
            check_behind(tmp_path, model, shared)

    # What the next change would read is told before.
    more = [Reading(model.new_name(), model.new_topic(), starting=starting) for starting in (None, "latest")]
    for source in more:
        send_numbers(broker, source.topic, 1, 2, 3)
    model.sources += more
    (tmp_path / f"{model.name}.toml").write_text(model.toml())
    place = ("--warehouse", str(tmp_path / "warehouse"))
    done = tidemark(tmp_path, *place, "plan", f"{model.name}.toml", "--bootstrap", broker, "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["status"]) == (3, 3)
    assert told["read_per_s"] > 0
    assert {each["operator"]: each["to_read"] for each in told["operators"] if each["fate"] == "begins"} == {
        more[0].name: 3, more[1].name: 0, **({"all": None} if len(model.sources) == 3 else {}),
    }  # fmt: skip
