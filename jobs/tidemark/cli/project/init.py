"""`tidemark init`: creates a project.

A project is a folder of topologies and their expectations. With `--from-topic` the command also writes a topology for
a topic (cli/project/from_topic.py), into a new or an existing project.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from shlex import quote
from textwrap import wrap
from typing import Any

from tidemark.cli.project import from_topic
from tidemark.cli.shared.output import say_inert
from tidemark.errors import InvalidArgument
from tidemark.model.project.connections import CLUSTER
from tidemark.model.project.files import TESTS, Project, is_project
from tidemark.model.settings.declared_tables import Key, TableForm, TableKind
from tidemark.model.slas import channel_spec, sla_keys
from tidemark.sample.proposal import slug

TOPOLOGIES = """\
This folder has one TOML file per topology. The example reads a topic, counts records per sensor and minute, and writes
a Delta table:

```toml
# readings.toml
name = "readings"
window = "10 s"                  # streaming window: latencies of operators are compared per window
trigger = "1 s"
check_every = "1 min"            # how often a check of the SLAs is stored at least

[operators.readings]
kind = "source"
topic = "readings"
fields = "sensor string, temp_c double, event_time bigint"
timestamp = "event_time"         # epoch ms
bound = "5 s"                    # a record may come up to 5 s out of order in its partition
idle_after = "30 s"              # a partition that is silent for longer is idle

[operators.per_minute]
kind = "aggregate"
input = "readings"
key = ["sensor"]
window = { tumbling = "1 min" }
strategy = "on_window_close"
aggregates = { n = "count(*)", warmest_c = "max(temp_c)" }

[operators.sensor_minutes]
kind = "sink"
input = "per_minute"
table = "sensor_minutes"
```
"""
TESTS_OF_TOPOLOGIES = """\
This folder has tests of topologies: records that go in, and rows that must come out. `tidemark test` runs them in
memory, without Kafka and Spark. One for the example of ../README.md; lengths of time count from the start of the test:

```toml
# readings.toml
[[test]]
name = "a minute is written when it is over"

[[test.given]]
source = "readings"
records = [
  { timestamp = "10 s", value = { sensor = "a", temp_c = 20.5 } },
  { timestamp = "50 s", value = { sensor = "a", temp_c = 21.5 } },
  { timestamp = "65 s", value = { sensor = "a", temp_c = 19.0 } },     # the bound of 5 s has passed, too
]

[[test.expect]]
operator = "sensor_minutes"
rows = [{ sensor = "a", n = 2, warmest_c = 21.5 }]
```
"""
SLAS = """\
# SLAs of the topologies: a table [TOPOLOGY.NAME] per SLA. By default a topology has one SLA: no record is lost.
#
{keys}
#
# [readings]
# maintenance = ["Sun 02:00-04:00 Europe/Berlin"]     # times in which no incident of its SLAs changes
#
# [readings.fresh]
# subject = "sensor_minutes"
# measure = "staleness"
# warn_after = "2 min"
# error_after = "5 min"
# owner = "sensor team"
# severity = "warning"
# runbook = "https://wiki.example.org/late-sensors"
# resolve_after = "1 min"
# ignore_when_idle = true
# while_catching_up = "excuse"
# calendar = { zone = "Europe/Berlin", days = ["Mon", "Tue", "Wed", "Thu", "Fri"], from = "07:00", to = "19:00" }
#
# [readings.in_time]               # an objective: three SLAs of its burn rate, and an error budget
# subject = "sensor_minutes"
# objective = { latency = "2 min", target = 0.99, window = "28 d", min_records = 100 }
# owner = "sensor team"
"""
CHANNELS = """\
# Channels for alerts: a table [NAME] each. The log of the task check_sla always receives them.
# To acknowledge, silence or snooze an incident: tidemark incidents TOPOLOGY --help.
#
{keys}
#
# [sensor_team]
# kind = "mail"
# to = ["sensors@example.org"]
# from = "tidemark@example.org"
# owners = ["sensor team"]
# renotify_after = "30 min"
# escalate_after = "15 min"
# escalate_to = ["lead"]
#
# [lead]
# kind = "slack"
"""
CONNECTIONS = """\
# Kafka clusters: a table [kafka.NAME] each. A source or Kafka sink uses the cluster with kafka = "NAME".
# The default is [kafka.default] or, without it, the broker that `tidemark up` starts on this machine.
#
{keys}
#
# [kafka.default]
# bootstrap = "broker-1.example.org:9092"
"""
KEYS = "{keys}"
"""The place of the keys in a template."""
IGNORED = ".tidemark/"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="folder of the project (default: the current one)",
    )
    from_topic.add_options(parser)


def command(options: argparse.Namespace) -> int:
    """Makes the project, and prints the next commands."""
    if options.from_topic is not None:
        return _from_topic(options)
    if options.bootstrap or options.key:
        msg = "--bootstrap and --key need --from-topic TOPIC; add it, or leave them out"
        raise InvalidArgument(msg)
    project = init(options.folder)
    say_inert(f"created a project in {project.folder}: topologies/, expectations/slas.toml, channels.toml,")
    say_inert("connections.toml; its state will be in .tidemark/, which git ignores\n")
    say_inert(next_commands(options.folder))
    return 0


def explained(form: TableForm) -> str:
    """Returns the keys of *form* as comments of a file, each with what it does."""
    lines = ["Keys:", *_lines(form.keys, 2)]
    alike: dict[tuple[Key[Any], ...], list[TableKind]] = {}
    for kind in form.kinds:
        alike.setdefault(kind.keys, []).append(kind)
    for keys, kinds in alike.items():
        if keys:
            lines += [_head(kinds), *_lines(keys, 2)]
    return "\n".join(f"# {line}" for line in lines)


def _head(kinds: Sequence[TableKind]) -> str:
    """Returns the line above the keys of *kinds*, which are told from others by one key."""
    words = [kind.word for kind in kinds if kind.word]
    return f"Keys of {kinds[0].key} {', '.join(words)}:" if words else f"Keys of tables with {kinds[0].key}:"


def _lines(keys: Iterable[Key[Any]], indent: int) -> Iterator[str]:
    """Yields the lines of *keys*, and below each those of the keys of its table."""
    for key in keys:
        first = "required: " if key.is_required else ""
        default = f" (default {key.default_text})" if key.default_text else ""
        text = f"{' ' * indent}{key.name:20}{first}{key.meaning}{default}"
        yield from wrap(text, 118, subsequent_indent=" " * (indent + 20))
        yield from _lines(key.inner.keys if key.inner else (), indent + 2)


def _from_topic(options: argparse.Namespace) -> int:
    """Writes a topology for a topic; changes nothing if that is impossible."""
    project = Project(options.folder.resolve())
    is_there = is_project(project.folder)
    if not is_there:
        _refuse_what_is_there(project)
    from_topic.refuse_what_is_there(project, slug(options.from_topic))
    proposed = from_topic.proposal(options, project)
    if not is_there:
        init(options.folder)
    from_topic.write(project, proposed)
    say_inert(from_topic.next_commands(options.folder, proposed))
    return 0


def init(folder: Path) -> Project:
    """Makes a new project in *folder*.

    Raises InvalidArgument, and changes nothing, if the folder has such files already.
    """
    project = Project(folder.resolve())
    files = {
        project.topologies / "README.md": TOPOLOGIES,
        project.topologies / TESTS / "README.md": TESTS_OF_TOPOLOGIES,
        project.slas: SLAS.replace(KEYS, explained(sla_keys.form())),
        project.channels: CHANNELS.replace(KEYS, explained(channel_spec.FORM)),
        project.connections: CONNECTIONS.replace(KEYS, explained(CLUSTER)),
    }
    _refuse_what_is_there(project)
    for file, text in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    ignore = project.folder / ".gitignore"
    lines = ignore.read_text(encoding="utf-8").splitlines() if ignore.exists() else []
    if IGNORED not in lines:
        ignore.write_text("\n".join([*lines, IGNORED, ""]), encoding="utf-8")
    return project


def next_commands(folder: Path) -> str:
    """Returns the commands that come next, with their purposes."""
    enter = "" if folder.resolve() == Path.cwd() else f"  cd {quote(str(folder))}\n"
    steps = {
        "tidemark check": "check that it can run, before it does",
        "tidemark test": "run its tests in topologies/tests/, if it has some",
        "tidemark topic create TOPIC --partitions 3": "if its topic is to be at the broker of this machine",
        "tidemark up": "start it, and wait for its first result",
    }
    lines = "\n".join(f"  {step:44}{meaning}" for step, meaning in steps.items())
    first = "write a topology into topologies/NAME.toml (topologies/README.md has one to begin with), then:"
    return f"{first}\n{enter}{lines}"


def _refuse_what_is_there(project: Project) -> None:
    if project.folder.exists() and not project.folder.is_dir():
        msg = f"{project.folder}: a project must be a folder, but this is a file; name another one"
        raise InvalidArgument(msg)
    kept = (project.topologies, project.expectations, project.channels, project.connections, project.state)
    there = [path.name for path in kept if path.exists()]
    if project.is_checkout or there:
        files = ", ".join(there) or "jobs/topologies, as a checkout of Tidemark"
        msg = f"{project.folder}: init changes no file, but the folder has {files}; name another one"
        raise InvalidArgument(msg)
