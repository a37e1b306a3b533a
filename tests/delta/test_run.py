"""`tidemark run` starts, drains and ends drivers, here small programs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.process_watch import watched
from support.topologies import map_of, repartition, sink, source, topology_of
from tidemark.control import process
from tidemark.control.folder import Control, StreamState
from tidemark.model.project.files import JARS_VARIABLE
from tidemark.model.project.jars import locked
from tidemark.model.project.layout import Layout

TOML = topology_of(
    {"window": "10 s", "trigger": "1 s"},
    events=source("id string", sub_topology="events", bound="3 s", max_ahead=None),
    spread=repartition(key=["id"], columns=["id"], partitions=2),
    board=sink("spread", sub_topology="board", topic="board"),
)
DRIVER = """
import argparse, os, sys, time
from pathlib import Path
from tidemark.control.folder import Control, Heartbeat, StreamState
from tidemark.control.driver_folder import DriverFolder
from tidemark.model.project.layout import Layout
from tidemark.model.topology import load, on_processing_time

def run(arguments):
    parser = argparse.ArgumentParser()
    for name in ("warehouse", "topology", "bootstrap", "time", "sub-topology", "launch-id", "launched-by"):
        parser.add_argument(f"--{name}", required=True)
    given = parser.parse_args(arguments)
    topology = load(Path(given.topology))
    topology = on_processing_time(topology) if given.time == "processing" else topology
    control = Control(Layout(Path(given.warehouse)).control(topology.name, given.sub_topology))
    epoch = control.acquire()
    def beat(state, reason=None):
        control.beat(Heartbeat(state=state, epoch=epoch, launch_id=given.launch_id, at_ms=time.time_ns() // 1_000_000,
                               pid=os.getpid(), batch_id=0, offsets={}, reason=reason))
    beat(StreamState.RUNNING)
    fault = os.environ.get("FAULT", "")
    if fault == f"{given.sub_topology} fails":
        beat(StreamState.FAILED, "DataLost: offsets are gone")
        return 1
    while fault == "deaf" or not control.drain_requested():
        time.sleep(0.05)
    beat(StreamState.DRAINED)
    return 0

sys.exit(DriverFolder(Path(sys.argv[2])).drive(run))
"""
COMMAND = """
import sys
from pathlib import Path
from tidemark.cli import main
from tidemark.cli.local import run
run.JOB, run.DRAINED_WITHIN_S, run.ANSWER_WITHIN_S = Path(sys.argv[1]), float(sys.argv[2]), 0.1
sys.argv = ["tidemark", *sys.argv[3:]]
sys.exit(main.main())
"""
PATIENCE_S = 60
SUBS = ("events", "board")


class Play:
    """A topology of two drivers in *home*, and its `tidemark run`."""

    def __init__(self, home: Path) -> None:
        self.home = home
        (home / "play.toml").write_text(TOML)
        (home / "driver.py").write_text(DRIVER)
        for path in locked("jars"):  # which the command looks for, and the driver above does not need
            (home / "jars" / path).parent.mkdir(parents=True, exist_ok=True)
            (home / "jars" / path).touch()
        self.running: list[subprocess.Popen[str]] = []

    def run(self, *arguments: str, fault: str = "", drained_within_s: float = PATIENCE_S) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", COMMAND, str(self.home / "driver.py"), str(drained_within_s)]
        command += ["--home", str(self.home), "run", *(arguments or (str(self.home / "play.toml"),))]
        started = subprocess.Popen(
            [*command, "--bootstrap", "127.0.0.1:1"],
            env={**os.environ, "FAULT": fault, JARS_VARIABLE: str(self.home / "jars")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.running.append(started)
        return started

    def control(self, sub_topology: str, name: str = "play") -> Control:
        return Control(Layout(self.home / "warehouse").control(name, sub_topology))

    def wait_until_running(self, name: str = "play") -> None:
        def run() -> bool:
            command = self.running[-1]
            assert command.poll() is None, command.communicate()[0]
            return self.states(name) == [StreamState.RUNNING] * 2

        process.wait_until(run, "two running drivers", PATIENCE_S)

    def states(self, name: str = "play") -> list[StreamState | None]:
        beats = [self.control(sub, name).heartbeat() for sub in SUBS]
        return [beat.state if beat else None for beat in beats]

    def lives(self) -> list[str]:
        """Returns drivers that hold a lock or have a living pid."""
        controls = [Control(folder) for folder in (self.home / "warehouse").glob("control/[!.]*/[!.]*/")]
        held = [str(control.home) for control in controls if control.is_held()]
        return held + [str(home) for home in folders(self.home) if process.find(home, "run")]


def folders(home: Path) -> list[Path]:
    """Returns the folders of the processes of `tidemark run`."""
    return list((home / "warehouse").glob("control/*/.driver/run/"))


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Play]:
    made = Play(tmp_path)
    yield made
    for running in made.running:
        running.kill()
        running.wait()
        assert running.stdout is not None
        running.stdout.close()
    for folder in folders(tmp_path):
        process.stop(folder, "run", grace_s=0)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_signal_drains_every_driver(play: Play, number: signal.Signals) -> None:
    command = play.run()
    play.wait_until_running()
    command.send_signal(number)
    said, _ = command.communicate(timeout=PATIENCE_S)
    assert (command.returncode, play.states(), play.lives()) == (0, [StreamState.DRAINED] * 2, [])
    assert said.splitlines()[-1] == "play: all streams have ended"


def test_processing_time_is_a_stream_of_its_own(play: Play) -> None:
    name = "play_on_processing_time"
    command = play.run(str(play.home / "play.toml"), "--time", "processing")
    play.wait_until_running(name)
    assert play.states() == [None, None]
    command.terminate()
    said, _ = command.communicate(timeout=PATIENCE_S)
    assert (command.returncode, play.states(name), play.lives()) == (0, [StreamState.DRAINED] * 2, [])
    assert f"{name} runs on processing time" in said


def test_both_times_run_beside_each_other(play: Play) -> None:
    event = play.run()
    play.wait_until_running()
    processing = play.run(str(play.home / "play.toml"), "--time", "processing")
    play.wait_until_running("play_on_processing_time")
    for command in (event, processing):
        command.terminate()
        command.communicate(timeout=PATIENCE_S)
    assert (event.returncode, processing.returncode, play.lives()) == (0, 0, [])


def test_a_driver_that_fails_drains_the_others(play: Play) -> None:
    command = play.run(fault="board fails")
    said, _ = command.communicate(timeout=PATIENCE_S)
    assert (command.returncode, play.lives()) == (1, [])
    assert "tidemark run: board failed: DataLost: offsets are gone; its log is" in said


def test_a_driver_that_does_not_drain_is_killed(play: Play) -> None:
    command = play.run(fault="deaf", drained_within_s=0.5)
    play.wait_until_running()
    command.terminate()
    command.communicate(timeout=PATIENCE_S)
    assert (command.returncode, play.lives()) == (0, [])


def test_a_second_signal_does_not_wait(play: Play) -> None:
    command = play.run(fault="deaf")
    play.wait_until_running()
    command.terminate()
    drains = [play.control(sub) for sub in SUBS]
    process.wait_until(lambda: all(c.drain_requested() for c in drains), "drain requests", PATIENCE_S)
    command.send_signal(signal.SIGINT)
    command.communicate(timeout=PATIENCE_S / 2)
    assert play.lives() == []


def test_drained_from_outside_it_ends(play: Play) -> None:
    command = play.run()
    play.wait_until_running()
    for sub in SUBS:
        play.control(sub).request_drain(by="test", now_ms=0)
    command.communicate(timeout=PATIENCE_S)
    assert (command.returncode, play.lives()) == (0, [])


def test_a_second_run_is_refused(play: Play) -> None:
    first = play.run()
    play.wait_until_running()
    second = play.run()
    said, _ = second.communicate(timeout=PATIENCE_S)
    assert (second.returncode, first.poll()) == (1, None)
    assert re.search(r"play: another `tidemark .*run` runs it in", said)


def test_a_stream_that_has_a_driver_is_refused(play: Play) -> None:
    elsewhere = play.control("board")
    elsewhere.acquire()
    said, _ = play.run().communicate(timeout=PATIENCE_S)
    assert "play/board: a driver runs already" in said
    assert folders(play.home) == []
    assert json.loads((elsewhere.home / "epoch").read_text()) == 1


def test_a_broker_that_does_not_answer_is_named_and_waited_for(play: Play) -> None:
    command = play.run()
    play.wait_until_running()
    command.terminate()
    said, _ = command.communicate(timeout=PATIENCE_S)
    assert said.startswith("play: 127.0.0.1:1: no Kafka broker answered within 0.1 s")
    assert "its topics are not checked, and the streams wait for it\nplay runs" in said
    assert command.returncode == 0


WRONG_COLUMN = topology_of(
    events=source("id string", sub_topology="events"),
    mapped=map_of(select={"id": "id", "n": "quantity"}),
    board=sink("mapped", topic="board"),
)
TWO_MISTAKES = TOML.replace('"3 s"', '"3 ells"').replace('"board"\n', '"board"\ncolour = "red"\n', 1)


@pytest.mark.parametrize(
    ("toml", "jar", "said"),
    [
        (TWO_MISTAKES, "", ["play.toml: operators.events.bound: is '3 ells'", "colour: is not a valid key here"]),
        # Only its columns show that it cannot run.
        (WRONG_COLUMN, "", ["play.toml: operators.mapped.select", "quantity"]),
        (TOML, "spark/kafka-clients-3.9.2.jar", ["lacks spark/kafka-clients-3.9.2.jar; run `make setup`"]),
        (TOML, "spark/*.jar", ["has no jars for spark; run `make setup`"]),
    ],
    ids=["keys", "columns", "a jar", "all jars"],
)
def test_what_cannot_run_is_refused_before_a_process_starts(play: Play, toml: str, jar: str, said: list[str]) -> None:
    (play.home / "play.toml").write_text(toml)
    for path in (play.home / "jars").glob(jar or "nothing"):
        path.unlink()
    commands: set[bytes] = set()
    with watched(commands):
        refused = play.run()
        printed, _ = refused.communicate(timeout=PATIENCE_S)
    assert refused.returncode == 1
    assert [text for text in said if text not in printed] == []
    # The driver's process would make its folder first, and name it in its command line.
    assert not (play.home / "warehouse").exists()
    assert [command for command in commands if f"{play.home}/warehouse".encode() in command] == []


def test_an_unknown_topology_is_refused(play: Play) -> None:
    said, _ = play.run("nothing").communicate(timeout=PATIENCE_S)
    assert "there is no topology 'nothing' in " in said
    assert "flights" in said
