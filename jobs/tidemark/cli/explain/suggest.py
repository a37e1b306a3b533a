"""`tidemark suggest`: proposes SLAs, from past checks or from a contract."""

from __future__ import annotations

import argparse
from pathlib import Path
from zoneinfo import ZoneInfo

from tidemark.cli.outside.contracts import ODCS, OPENSLO, imported
from tidemark.cli.shared.options import add_topology, existing_warehouse
from tidemark.cli.shared.output import say_inert
from tidemark.cli.shared.streams import topology_with_file
from tidemark.clock import wall_clock_ms
from tidemark.errors import InvalidArgument
from tidemark.escaping import one_line
from tidemark.model.project.extras import require
from tidemark.model.project.files import Project
from tidemark.model.settings.maintenance_windows import zone_named
from tidemark.model.settings.toml_keys import read_toml
from tidemark.model.sla_spec import DEFAULT_SLAS, Slas, parse, usable_slas
from tidemark.model.topology import Topology
from tidemark.query.sql import Warehouse
from tidemark.sla.suggestion import as_toml, in_toml, suggest


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("subject", choices=("slas",), metavar="slas", help="proposes limits of SLAs")
    add_topology(parser)
    contract = "read a data contract (ODCS) or SLOs (OpenSLO) from this YAML file in place of past checks"
    parser.add_argument("--from", dest="contract", type=Path, metavar="FILE", help=contract)
    parser.add_argument("--zone", default="UTC", help="time zone of the hours, such as Europe/Berlin (default: UTC)")


def command(options: argparse.Namespace) -> int:
    """Prints the proposal; fails if there is none."""
    if options.contract is not None:
        return _from_contract(options.contract, topology_with_file(options))
    zone, topology, file = _zone(options.zone), topology_with_file(options), Project.here().slas
    content = read_toml(file) if file.exists() else {}
    specs, now_ms = parse(content, topology, file=file.name), wall_clock_ms()
    tables = Warehouse(existing_warehouse(options), topology=topology.name)
    of_topology = content.get(topology.name, DEFAULT_SLAS)
    suggestions = suggest(tables, topology, specs, of_topology, zone=zone, now_ms=now_ms)
    say_inert(as_toml(suggestions, topology, zone=zone, now_ms=now_ms))
    return 0 if any(each.limits for each in suggestions) else 1


def _from_contract(file: Path, topology: Topology) -> int:
    """Prints the SLAs of a contract; returns 1 after a refusal."""
    require("yaml")
    import yaml  # type: ignore[import-untyped]

    try:
        documents = [each for each in yaml.safe_load_all(file.read_text(encoding="utf-8")) if each]
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        msg = f"--from {file}: {one_line(str(error))}; give a YAML file"
        raise InvalidArgument(msg) from error
    if not documents or not all(isinstance(each, dict) for each in documents):
        msg = f"--from {file}: has no document; give a data contract (ODCS) or SLOs (OpenSLO)"
        raise InvalidArgument(msg)
    kind = ODCS if documents[0].get("kind") == "DataContract" else OPENSLO
    tables, refused = imported(kind, documents, file=file.name)
    usable = usable_slas({topology.name: tables}, topology, file=file.name) if tables else Slas(specs=(), errors={})
    for refusal in (*refused, *usable.errors.values()):
        say_inert(f"# Left out: {one_line(str(refusal))}")
    for name, table in tables.items():
        if name not in usable.errors:
            lines = [f"{key} = {in_toml(value)}" for key, value in table.items()]
            say_inert("\n".join([f"\n[{topology.name}.{name}]", *lines]))
    return 1 if refused or usable.errors or not tables else 0


def _zone(name: str) -> ZoneInfo:
    if (zone := zone_named(name)) is None:
        msg = f"{name!r} is no time zone; write a name such as --zone Europe/Berlin"
        raise InvalidArgument(msg)
    return zone
