"""`tidemark init --from-topic`: a topology for a topic that is there, derived from a sample of its records."""

from __future__ import annotations

import argparse
import sys
import tomllib
from pathlib import Path
from shlex import quote

from tidemark.cli.local import running_broker
from tidemark.cli.output import say
from tidemark.clock import wall_clock_ms
from tidemark.errors import InvalidArgument
from tidemark.inert import inert
from tidemark.sampling.proposal import Proposal, propose
from tidemark.sampling.topic_sample import SampledCluster
from tidemark.spec.connections import Cluster, named_address, topic_command
from tidemark.spec.project import Project


def add_options(parser: argparse.ArgumentParser) -> None:
    """What is asked for beside the folder."""
    parser.add_argument("--from-topic", metavar="TOPIC", help="write a topology for it, by a sample of its records")
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="its broker (the one that `up` started)")
    parser.add_argument("--key", metavar="FIELD", help="the field by which newest rows are kept (Kafka's key)")


def proposal(options: argparse.Namespace, project: Project) -> Proposal:
    """The topology for the topic of *options*; raises InvalidArgument where none can be derived."""
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
    """Raise InvalidArgument where the topology *name*, or an SLA of it, is in *project*."""
    file = project.topologies / f"{name}.toml"
    if file.exists():
        msg = f"{file} is there already, and init changes no file; rename it, or remove it"
        raise InvalidArgument(msg)
    if project.slas.exists() and name in tomllib.loads(project.slas.read_text(encoding="utf-8")):
        msg = f"{project.slas}: has SLAs of {name} already, and init changes none; remove [{name}.…] from it"
        raise InvalidArgument(msg)


def write(project: Project, found: Proposal) -> None:
    """Add the topology *found*, and its SLAs, to *project*."""
    (project.topologies / f"{found.name}.toml").write_text(inert(found.topology), encoding="utf-8")
    with project.slas.open("a", encoding="utf-8") as slas:
        slas.write(inert(found.slas))


def next_commands(folder: Path, found: Proposal) -> str:
    """What was written, what was seen, and what to type next."""
    enter = "" if folder.resolve() == Path.cwd() else f"  cd {quote(str(folder))}\n"
    notes = "\n".join(f"  {note}" for note in found.notes)
    return (
        f"wrote topologies/{found.name}.toml, and SLAs {found.name}.in_time and {found.name}.fresh\n{notes}\n\n"
        f"read them, then:\n{enter}"
        f"  {'tidemark check --live':44}whether it can run, and what a sample of its records says\n"
        f"  {'tidemark up':44}start it, and wait for its first result\n"
        f"  {f'tidemark why {found.name}':44}what it waits for, if results are missing"
    )
