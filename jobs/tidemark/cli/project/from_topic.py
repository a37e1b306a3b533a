"""`tidemark init --from-topic`: derives a topology from a topic's records.

The topic exists, and a sample of its records is read.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from pathlib import Path
from shlex import quote

from tidemark.cli.project.test import accept, run_file
from tidemark.cli.shared.local import running_broker
from tidemark.cli.shared.output import say
from tidemark.clock import wall_clock_ms
from tidemark.errors import InvalidArgument
from tidemark.model.project.connections import Cluster, named_address, topic_command
from tidemark.model.project.files import TESTS, Project
from tidemark.safe_text import inert
from tidemark.sample.proposal import Proposal, propose
from tidemark.sample.topic_sample import SampledCluster


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command, beside the folder."""
    parser.add_argument(
        "--from-topic", metavar="TOPIC", help="write a topology for this topic, from a sample of its records"
    )
    parser.add_argument(
        "--bootstrap", metavar="HOST:PORT", help="broker of the topic (default: the one that `up` started)"
    )
    parser.add_argument(
        "--key",
        metavar="FIELD",
        help="key field of the table of newest rows, or kafka_key for Kafka's key (default: a key that repeats)",
    )


def proposal(options: argparse.Namespace, project: Project) -> Proposal:
    """Derives the topology for the topic of *options*.

    Raises InvalidArgument if there is no broker or no such topic, or its records do not allow it.
    """
    topic: str = options.from_topic
    local = running_broker(options.home or project.state)
    address = named_address(options.bootstrap)[1] if options.bootstrap else local
    if address is None:
        start = "start one with `tidemark topic create NAME`"
        msg = f"--from-topic: no broker runs here; give --bootstrap HOST:PORT, or {start}"
        raise InvalidArgument(msg)
    say(f"reading a sample of {inert(topic)} at {address} …", sys.stderr)
    cluster = SampledCluster(Cluster(address))
    if topic not in cluster.partitions:
        remedy = (
            f"create it with `{topic_command(topic)}`" if address == local else "correct its name, or create it there"
        )
        msg = f"--from-topic: topic {topic} is not at {address}; {remedy}"
        raise InvalidArgument(msg)
    sample = cluster.sample(topic)
    return propose(sample, address, wall_clock_ms(), key=options.key, own_cluster=address != local)


def refuse_what_is_there(project: Project, name: str) -> None:
    """Raises InvalidArgument if *project* has the topology *name*, or SLAs of it."""
    for folder in (project.topologies, project.topologies / TESTS):
        if (file := folder / f"{name}.toml").exists():
            msg = f"{file} already exists, and init changes no file; rename or remove it"
            raise InvalidArgument(msg)
    if project.slas.exists() and name in tomllib.loads(project.slas.read_text(encoding="utf-8")):
        msg = f"{project.slas}: has SLAs of {name} already, and init changes none; remove [{name}.…] from it"
        raise InvalidArgument(msg)


def write(project: Project, proposed: Proposal) -> None:
    """Adds the *proposed* topology with its test and its SLAs to *project*."""
    (project.topologies / f"{proposed.name}.toml").write_text(inert(proposed.topology), encoding="utf-8")
    tests = project.topologies / TESTS / f"{proposed.name}.toml"
    tests.parent.mkdir(exist_ok=True)
    tests.write_text(inert(proposed.test), encoding="utf-8")
    accept(tests, run_file(tests)[1])
    with project.slas.open("a", encoding="utf-8") as slas:
        slas.write(inert(proposed.slas))


def next_commands(folder: Path, proposed: Proposal) -> str:
    """Returns the files and the observations, and the commands that come next."""
    enter = "" if folder.resolve() == Path.cwd() else f"  cd {quote(str(folder))}\n"
    notes = "\n".join(f"  {note}" for note in proposed.notes)
    name = proposed.name
    return (
        f"wrote topologies/{name}.toml, topologies/{TESTS}/{name}.toml, and SLAs {name}.in_time and {name}.fresh\n"
        f"{notes}\n\n"
        f"read them, then:\n{enter}"
        f"  {'tidemark check --live':44}check that it can run, with a sample of its records\n"
        f"  {f'tidemark test {name}':44}run its test, which expects what came of some records of the sample\n"
        f"  {'tidemark up':44}start it, and wait for its first result\n"
        f"  {f'tidemark why {name}':44}show what it waits for, if results are missing"
    )
