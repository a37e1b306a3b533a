"""`tidemark init`: lay out a project, which is a folder of topologies and what is expected of them.

With `--from-topic` a topology for a topic is written into it (cli/from_topic.py), or into a project that is there.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from shlex import quote

from tidemark.cli import from_topic
from tidemark.cli.output import say_inert
from tidemark.errors import InvalidArgument
from tidemark.sampling.proposal import slug
from tidemark.spec.project import Project, is_project

TOPOLOGIES = """\
One TOML file per topology lies here. This one reads a topic, counts per sensor and minute, and writes a Delta table:

```toml
# readings.toml
name = "readings"
window = "10 s"                  # streaming window: by it operators are compared
trigger = "1 s"
check_every = "1 min"            # how often its SLAs are checked

[operators.readings]
kind = "source"
topic = "readings"
fields = "sensor string, temp_c double, event_time bigint"
timestamp = "event_time"         # epoch ms
bound = "5 s"                    # so much later than newer records of its partition a record may come
idle_after = "30 s"

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
SLAS = """\
# What each topology promises: a table [TOPOLOGY.NAME] per SLA. A topology that has none here promises that nothing gets
# lost. subject is a table, an operator or a source; owner answers for it.
#
# [readings.fresh]
# subject = "sensor_minutes"
# measure = "staleness"            # or watermark_lag, latency_p99, records, completeness, burn_rate, contract
# warn_after = "2 min"
# error_after = "5 min"
# owner = "sensor team"
# resolve_after = "1 min"
# ignore_when_idle = true          # not stale while its sources have nothing to send
"""
CHANNELS = """\
# Whom to tell of incidents: a table [NAME] each. The log of the task tell_log is told always.
#
# [sensor_team]
# kind = "mail"                    # or slack, or notifier: any notifier of Airflow
# to = ["sensors@example.org"]
# from = "tidemark@example.org"
# owners = ["sensor team"]         # only of these; likewise topologies, severities, changes
"""
CONNECTIONS = """\
# Kafka clusters: a table [kafka.NAME] each, which a source or a Kafka sink reaches by kafka = "NAME".
# Those that name none use [kafka.default]; without it, the broker that `tidemark up` starts on this machine.
#
# [kafka.default]
# bootstrap = "broker-1.example.org:9092"
"""
IGNORED = ".tidemark/"


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("folder", nargs="?", type=Path, default=Path(), metavar="DIR", help="its folder (this one)")
    from_topic.add_options(parser)


def command(options: argparse.Namespace) -> int:
    """Lay it out, and say what comes next."""
    if options.from_topic is not None:
        return _from_topic(options)
    if options.bootstrap or options.key:
        msg = "--bootstrap and --key say how to read the topic of --from-topic TOPIC; add that, or leave them out"
        raise InvalidArgument(msg)
    project = init(options.folder)
    say_inert(f"laid out a project in {project.folder}: topologies/, expectations/slas.toml, channels.toml,")
    say_inert("connections.toml; state goes to .tidemark/, which git ignores\n")
    say_inert(next_commands(options.folder))
    return 0


def _from_topic(options: argparse.Namespace) -> int:
    """Write a topology for a topic; nothing is laid out or changed where that cannot be done."""
    project = Project(options.folder.resolve())
    is_there = is_project(project.folder)
    if not is_there:
        _refuse_what_is_there(project)
    from_topic.refuse_what_is_there(project, slug(options.from_topic))
    found = from_topic.proposal(options, project)
    if not is_there:
        init(options.folder)
    from_topic.write(project, found)
    say_inert(from_topic.next_commands(options.folder, found))
    return 0


def init(folder: Path) -> Project:
    """The new project in *folder*; raises InvalidArgument where such files are there, and changes nothing."""
    project = Project(folder.resolve())
    files = {
        project.topologies / "README.md": TOPOLOGIES,
        project.slas: SLAS,
        project.channels: CHANNELS,
        project.connections: CONNECTIONS,
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
    """What to type next, and why."""
    enter = "" if folder.resolve() == Path.cwd() else f"  cd {quote(str(folder))}\n"
    steps = {
        "tidemark check": "whether it can run, before it does",
        "tidemark topic create TOPIC --partitions 3": "if its topic is to be at the broker of this machine",
        "tidemark up": "start it, and wait for its first result",
    }
    lines = "\n".join(f"  {step:44}{meaning}" for step, meaning in steps.items())
    first = "write a topology into topologies/NAME.toml (topologies/README.md has one to begin with), then:"
    return f"{first}\n{enter}{lines}"


def _refuse_what_is_there(project: Project) -> None:
    if project.folder.exists() and not project.folder.is_dir():
        msg = f"{project.folder}: a project is a folder, and this is a file; name another one"
        raise InvalidArgument(msg)
    kept = (project.topologies, project.expectations, project.channels, project.connections, project.state)
    there = [path.name for path in kept if path.exists()]
    if project.is_checkout or there:
        found = ", ".join(there) or "jobs/topologies, as a checkout of Tidemark"
        msg = f"{project.folder}: init changes no file, and it has {found}; name another folder, or go on with that one"
        raise InvalidArgument(msg)
