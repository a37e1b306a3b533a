"""A checkpoint follows the sources of the topology file, also if it is interrupted at any step."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from support.crashes import Crash, crash_at
from support.play import Play, ms
from support.topologies import map_of, sink, source, topology_of
from tidemark.cli.project.plan import with_amounts
from tidemark.control import folder
from tidemark.control.folder import Control, ListedSource
from tidemark.model.project.layout import Layout
from tidemark.model.stream import Stream
from tidemark.model.topology import SubTopology, parse
from tidemark.semantics.progress import InputProgress, PartitionProgress, StreamProgress
from tidemark.storage.warehouse import is_table
from tidemark.stream.kafka.client import KafkaBroker
from tidemark.stream.startup import source_list
from tidemark.stream.startup.changes import changes_of
from tidemark.stream.startup.evidence import evidence
from tidemark.stream.startup.soundness import findings
from tidemark.stream.startup.source_list import Fate, changes, continued, follow, settle

BATCH = '{"batchWatermarkMs":0,"batchTimestampMs":1400000000000}'


def reading(**keys: dict[str, Any]) -> SubTopology:
    """Returns a stream with the sources *keys*."""
    sources = {name: source(sub_topology="all", **more) for name, more in keys.items()}
    both = map_of("both", select={"id": "id"})
    toml = topology_of(**sources, both={"kind": "union", "inputs": list(sources)}, mapped=both)
    return parse(tomllib.loads(toml), file="play.toml").sub_topologies[0]


BEFORE = reading(a={"topic": "a"}, files={"topic": None, "files": "/srv/in"}, b={"topic": "b"})
NOW = reading(
    c={"topic": "c"}, renamed={"topic": "b", "was": "b"}, files={"topic": None, "files": "/srv/in"}, a={"topic": "z"}
)
"""Of BEFORE `b` has another name and place, `files` goes on, and `a` would read another topic."""
TOLD = reading(
    c={"topic": "c"},
    renamed={"topic": "b", "was": "b"},
    files={"topic": None, "files": "/srv/in"},
    a={"topic": "z", "starting_offsets": "earliest"},
)


def stream(home: Path) -> Control:
    """Returns a stream that has decided batch 7, and planned batch 8."""
    control, checkpoint = Control(home), home / "checkpoint"
    home.mkdir(parents=True)
    assert follow(control, BEFORE, -1) == []
    for name in ("offsets", "commits", "sources/2"):
        (checkpoint / name).mkdir(parents=True)
    (checkpoint / "metadata").write_text('{"id":"q"}')
    for batch_id in (6, 7, 8):
        lines = [str(batch_id), json.dumps({"a": {"0": batch_id}}), '{"logOffset":1}', json.dumps({"b": {"0": 2}})]
        (checkpoint / "offsets" / str(batch_id)).write_text("\n".join(["v1", BATCH, *lines]))
    (checkpoint / "commits" / "7").write_text('v1\n{"nextBatchWatermarkMs":0}')
    (checkpoint / "sources" / "2" / "1").write_text('v1\n{"path":"file:///srv/in/x"}')
    return control


def content(control: Control) -> dict[str, str]:
    files = [path for path in sorted(control.home.rglob("*")) if path.is_file()]
    return {path.relative_to(control.home).as_posix(): path.read_text() for path in files}


def test_a_checkpoint_follows_the_names_of_its_sources(tmp_path: Path) -> None:
    control = stream(tmp_path / "control")
    assert {change.name: change.fate for change in changes(control.sources(), NOW)} == {
        "c": Fate.BEGINS, "renamed": Fate.GOES_ON, "files": Fate.GOES_ON, "a": Fate.REFUSED,
    }  # fmt: skip
    assert [change.line for change in follow(control, TOLD, 7)] == [
        "the source c begins with topic c", "the source renamed goes on where b was",
        "the source a begins with topic z",
    ]  # fmt: skip
    now = content(control)
    assert now["checkpoint/offsets/8"].splitlines() == [
        "v1",
        BATCH,
        "8",
        "-",
        '{"b": {"0": 2}}',
        '{"logOffset":1}',
        "-",
    ]
    assert now["checkpoint/offsets/7"].splitlines()[2] == "7"
    assert now["checkpoint/commits/7"] == 'v1\n{"nextBatchWatermarkMs":0}'
    assert now["checkpoint/sources/3/1"] == 'v1\n{"path":"file:///srv/in/x"}'
    assert "checkpoint/sources/2/1" not in now
    assert control.sources() == [
        ListedSource(name="c", place="topic c", topic="c", after=7, read_by=("both", "mapped")),
        ListedSource(name="renamed", place="topic b", topic="b", formerly=("b",), read_by=("both", "mapped")),
        ListedSource(name="files", place="folder /srv/in", read_by=("both", "mapped")),
        ListedSource(name="a", place="topic z", topic="z", after=7, read_by=("both", "mapped")),
    ]
    assert [(each.name, each.after) for each in control.source_changes()] == [("c", 7), ("renamed", 7), ("a", 7)]
    # What batch 7 knows of a is of the former topic; batch 8 may have read the new one.
    inputs = {name: InputProgress(partitions={0: PartitionProgress(until_offset=2)}) for name in ("a", "b", "files")}
    before, after = (StreamProgress(batch_id=number, inputs=inputs) for number in (7, 8))
    assert [*continued(before, control.sources(), TOLD).inputs] == ["renamed", "files"]
    assert [*continued(after, control.sources(), TOLD).inputs] == ["renamed", "files", "a"]


def steps(monkeypatch: pytest.MonkeyPatch, at: int) -> Iterator[int]:
    """Ends the process, so to speak, before the write number *at*."""
    number = count()

    def interrupted(really: Callable[..., Any]) -> Callable[..., Any]:
        def write(*given: Any, **more: Any) -> Any:
            if next(number) == at:
                raise KeyboardInterrupt
            return really(*given, **more)

        return write

    for module, name in ((source_list, "put_once"), (source_list, "remove_folder"), (folder, "replace")):
        monkeypatch.setattr(module, name, interrupted(getattr(module, name)))
    for name in ("write_bytes", "unlink"):
        monkeypatch.setattr(Path, name, interrupted(getattr(Path, name)))
    return number


def test_a_driver_finishes_what_the_one_before_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = stream(tmp_path / "whole")
    follow(expected, TOLD, 7)
    for at in count():
        control = stream(tmp_path / str(at))
        with monkeypatch.context() as patched:
            number = steps(patched, at)
            try:
                follow(control, TOLD, 7)
            except KeyboardInterrupt:
                done = False
            else:
                done = next(number) <= at
        settle(control)
        follow(control, TOLD, 7)
        now = {name: text for name, text in content(control).items() if not name.endswith(".json")}
        assert now == {name: text for name, text in content(expected).items() if not name.endswith(".json")}, at
        assert control.sources() == expected.sources()
        assert control.source_changes() == expected.source_changes()
        if done:
            break
    assert at > 8


def sources_of(**keys: dict[str, Any]) -> str:
    """Returns a stream with the sources *keys*, which sends nothing on."""
    sources = {name: source(sub_topology="all", **more) for name, more in keys.items()}
    return topology_of(**sources, both={"kind": "union", "inputs": list(keys)}, log=sink("both", table="log"))


@pytest.mark.parametrize("step", ["decided", "committed topology_changes", "committed batches"])
def test_the_first_batch_behind_changes_of_sources_records_each_once(tmp_path: Path, step: str) -> None:
    """Two drivers are killed before a batch, each on another file, and a third one in its first batch."""
    play = Play(sources_of(a={"topic": "a"}, b={"topic": "b"}), tmp_path)
    play.start()
    follow(play.control, play.topology.sub_topologies[0], -1)
    play.batch([play.row("a", ms(0), id="x", v=0)], at_ms=ms(0.1))
    assert not is_table(play.table("topology_changes"))
    for toml in (
        sources_of(a={"topic": "a"}, c={"topic": "c"}),
        sources_of(renamed={"topic": "a", "was": "a"}, c={"topic": "c"}),
        sources_of(c={"topic": "c"}, renamed={"topic": "a"}),
    ):
        later = Play(toml, tmp_path)
        assert later.topology.sub_topologies[0].name == "all"
        follow(later.control, later.topology.sub_topologies[0], 0)
        later.start()
    later.resume({"all": 2}, {("renamed", 0): 1})
    later.start(reached=crash_at(step))
    rows = [later.row("renamed", ms(1), id="x", v=1)]
    with pytest.raises(Crash):
        later.process(1, rows, at_ms=ms(1.1))
    later.start(epoch=2)
    later.process(1, rows, at_ms=ms(1.1), now_ms=ms(1.5))
    later.batch([later.row("renamed", ms(2), id="x", v=2)], at_ms=ms(2.1))
    columns = ("batch_id", "operator", "begins", "told")
    assert [tuple(row[name] for name in columns) for row in later.rows("topology_changes")] == [
        (1, "c", True, "the source c begins with topic c"),
        (1, "b", False, "the source b ends"),
        (1, "renamed", False, "the source renamed goes on where a was"),
    ]
    # The next driver finds nothing to record.
    last = Play(later.toml, tmp_path)
    last.resume({"all": 3}, {("renamed", 0): 3})
    last.batch([last.row("renamed", ms(3), id="x", v=3)], at_ms=ms(3.1))
    assert len(last.rows("topology_changes")) == 3


DRIFTING = 'max_drift = "1 s"\n' + topology_of(events=source(idle_after="1 min"), log=sink("events", table="log"))


def test_records_that_wait_keep_the_name_of_their_source_and_are_counted_when_it_ends(tmp_path: Path) -> None:
    play = Play(DRIFTING, tmp_path, partitions=2)
    play.batch([play.row("events", ms(0), id="a", v=0, partition=n) for n in (0, 1)], at_ms=ms(0.1))
    # Partition 1 is behind, so what follows the first of these records waits.
    play.batch([play.row("events", ms(n), id="a", v=n) for n in (10, 20, 30)], at_ms=ms(1))
    follow(play.control, play.topology.sub_topologies[0], -1)

    renamed = play_of(
        play, DRIFTING.replace("[operators.events]", '[operators.moved]\nsub_topology = "events"\nwas = "events"')
    )
    (of_source,) = [each for each in changes_of(renamed) if each.operator == "moved"]
    assert (of_source.fate, of_source.why) == (
        Fate.REFUSED,
        "2 records wait for other partitions under the name events",
    )
    (refused,) = evidence(renamed).refused
    assert refused.waiting == 2
    other = DRIFTING.replace("[operators.events]", '[operators.others]\nsub_topology = "events"').replace(
        'topic = "events"', 'topic = "others"'
    )
    fates = {each.operator: (each.fate, each.held) for each in changes_of(play_of(play, other))}
    assert fates == {"others": (Fate.BEGINS, 0), "log": (Fate.GOES_ON, 0), "events": (Fate.ENDS, 2)}
    assert [change.line for change in follow(play.control, play_of(play, other).sub, 1)] == [
        "the source others begins with topic others",
        "the source events ends; 2 waiting records are dropped",
    ]


def test_a_plan_counts_the_rows_of_a_table_that_begins(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "upstream", pa.table({"id": ["a", "b"], "v": [1, 2], "event_time": [0, 0]}))
    write_deltalake(tmp_path / "upstream", pa.table({"id": ["c"], "v": [3], "event_time": [0]}), mode="append")
    play = Play(topology_of(events=source(topic=None, delta="upstream"), log=sink("events", table="log")), tmp_path)
    layout, broker = Layout(tmp_path), cast("KafkaBroker", None)  # a table is asked for without it
    found = with_amounts(changes_of(play.stream("events")), play.topology, layout, broker)
    assert {change.operator: change.to_read for change in found} == {"events": 3, "log": None}


def test_a_batch_that_was_planned_before_a_source_began_is_no_damage(tmp_path: Path) -> None:
    """The driver was killed with batch 1 planned, and the next one decided it by that plan."""
    both = topology_of(
        a=source(topic="a", sub_topology="all"),
        b=source(topic="b"),
        log=sink("a", table="log"),
        more=sink("b", table="b"),
    )
    play = Play(both, tmp_path)
    play.batch([play.row("a", ms(0), id="x", v=0)], at_ms=ms(0.1))
    play.batch([play.row("a", ms(1), id="x", v=1)], at_ms=ms(1.1))
    play.control.keep_sources(
        [ListedSource(name="a", place="topic a"), ListedSource(name="b", place="topic b", after=0)]
    )
    plans = play.control.home / "checkpoint" / "offsets"
    plans.mkdir(parents=True)
    for batch_id in (0, 1):
        (plans / str(batch_id)).write_text("\n".join(["v1", BATCH, "0", json.dumps({"a": {"0": batch_id + 1}}), "-"]))
    assert findings(evidence(play.stream("all"))) == []


def play_of(play: Play, toml: str) -> Stream:
    return Play(toml.replace('input = "events"', f'input = "{first_name(toml)}"'), play.home, partitions=2).stream(
        "events"
    )


def first_name(toml: str) -> str:
    return toml.partition("[operators.")[2].partition("]")[0]
