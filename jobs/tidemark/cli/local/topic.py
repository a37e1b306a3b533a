"""`tidemark topic`: makes and lists topics of this machine's broker."""

from __future__ import annotations

import argparse
import sys

from tidemark.cli.shared.local import Home, broker
from tidemark.cli.shared.output import say, say_inert
from tidemark.errors import InvalidArgument
from tidemark.model.project.connections import PARTITIONS, topic_command
from tidemark.query.text_table import format_table

ACTIONS = {
    "create": "create a topic, and start the broker if it does not run",
    "list": "list the topics with their partitions, and start the broker if it does not run",
    "address": "print only the broker's address, HOST:PORT, and start the broker if it does not run",
}
"""Actions of the command, with their help."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    parsers = {name: actions.add_parser(name, help=text, description=text) for name, text in ACTIONS.items()}
    create = parsers["create"]
    create.add_argument("name", metavar="NAME", help="name of the new topic")
    create.add_argument("--partitions", type=int, metavar="N", help=f"number of partitions (default: {PARTITIONS})")


def command(options: argparse.Namespace) -> int:
    """Creates a topic, lists all topics, or prints the broker's address.

    It starts the broker if that does not run.
    """
    home = Home(options.home.resolve())
    if options.action == "create" and options.partitions is not None and options.partitions < 1:
        msg = f"--partitions: must be 1 or more, got {options.partitions}"
        raise InvalidArgument(msg)
    if broker.NAME not in {place.rpartition("/")[2] for place in home.running()}:
        say("▸ starting Kafka …", sys.stderr)
    address = broker.start(home.broker).address
    if options.action == "address":
        say_inert(address)
        return 0
    if options.action == "list":
        say_inert(format_table(("topic", "partitions"), sorted(broker.topics(address).items())))
        return 0
    existing = broker.topics(address).get(options.name)
    partitions = options.partitions or existing or PARTITIONS
    broker.create_topics(address, {options.name: partitions})
    result = "was created" if existing is None else "already exists"
    say_inert(f"topic {options.name} {result} at {address}, partitions: {partitions}; `tidemark down` stops the broker")
    return 0


def missing_topics_message(topics: dict[str, int], address: str) -> str:
    """Returns the message about *topics* that do not exist at *address*.

    *topics* has the number of partitions that each is to have.
    """
    commands = " && ".join(topic_command(name, n) for name, n in topics.items())
    return f"its topic {', '.join(topics)} is not at {address}; run `{commands}`"
