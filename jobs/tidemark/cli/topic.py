"""`tidemark topic`: make topics at the broker of this machine, and list them."""

from __future__ import annotations

import argparse
import sys

from tidemark.cli.local import Home, broker
from tidemark.cli.output import say, say_inert
from tidemark.cli.text_table import aligned
from tidemark.errors import InvalidArgument
from tidemark.spec.connections import PARTITIONS, topic_command


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    create = actions.add_parser("create", help="make a topic, and start the broker if it does not run")
    create.add_argument("name", metavar="NAME")
    create.add_argument("--partitions", type=int, metavar="N", help=f"of a new topic ({PARTITIONS})")
    actions.add_parser("list", help="list the topics with their partitions")
    actions.add_parser("address", help="print the broker's address, HOST:PORT, and nothing else")


def command(options: argparse.Namespace) -> int:
    """Make one, list them, or say where the broker is; it is started where it does not run."""
    home = Home(options.home.resolve())
    if options.action == "create" and options.partitions is not None and options.partitions < 1:
        msg = f"--partitions: a topic has 1 or more, got {options.partitions}"
        raise InvalidArgument(msg)
    if broker.NAME not in {place.rpartition("/")[2] for place in home.running()}:
        say("▸ starting Kafka …", sys.stderr)
    address = broker.start(home.broker).address
    if options.action == "address":
        say_inert(address)
        return 0
    if options.action == "list":
        say_inert(aligned(("topic", "partitions"), sorted(broker.topics(address).items())))
        return 0
    existing = broker.topics(address).get(options.name)
    partitions = options.partitions or existing or PARTITIONS
    broker.create_topics(address, {options.name: partitions})
    result = "was made" if existing is None else "is there already"
    say_inert(f"topic {options.name} {result} at {address}, partitions: {partitions}; `tidemark down` stops the broker")
    return 0


def missing(topics: dict[str, int], address: str) -> str:
    """What is to be said of *topics*, with the partitions that each is to have, which are not there at *address*."""
    commands = " && ".join(topic_command(name, n) for name, n in topics.items())
    return f"its topic {', '.join(topics)} is not at {address}; run `{commands}`"
