"""The documentation of tables matches the tables."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import duckdb

from tidemark.cli.project.docs import dictionary
from tidemark.kernels.columns.schemas import arrow_schema
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import BATCHES, HOP, TABLES
from tidemark.query.attach import attach_script
from tidemark.query.sql import Warehouse
from tidemark.storage.delta.tables import create

DOCS = Path(__file__).parents[2] / "docs"


def test_the_data_dictionary_explains_each_column_and_is_short():
    text = dictionary()
    assert len(text.split()) <= 9_330
    sections = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL))
    (shared,) = re.findall(r"^## Columns of several tables\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    for table in (*TABLES.values(), HOP):
        (named,) = re.findall(r"^Shared: (.*)\.$", sections[table.name], re.MULTILINE) or [""]
        for column in table.columns:
            explained = shared if f"`{column.name}`" in named.split(", ") else sections[table.name]
            lines = [line for line in explained.splitlines() if line.endswith(f": {column.comment}")]
            assert any(f"`{column.name}`" in line.partition(":")[0] for line in lines), (table.name, column.name)


def test_the_type_of_each_column_stands_behind_its_name_or_follows_from_it():
    """The words behind names, and the endings that the page's head explains, give the types of the catalog."""
    sections = dict(re.findall(r"^##+ ([\w ]+)\n(.*?)(?=^##|\Z)", dictionary(), re.MULTILINE | re.DOTALL))

    def types(section: str) -> list[tuple[str, str]]:
        found = []
        for names, shown in re.findall(r"^\* ((?:`\w+`(?:, )?)+)(?: ([^:]*|array<.*>>?))?: ", section, re.MULTILINE):
            for name in re.findall(r"\w+", names):
                is_instant = name.endswith(("_at", "_start", "_end", "timestamp", "watermark"))
                implied = "timestamp" if is_instant else "bigint" if name.endswith("_ms") else "string"
                found.append((name, shown or implied))
        return found

    shared = types(sections["Columns of several tables"])
    assert len(dict(shared)) == len(shared), "a name has two meanings"
    for table in (*TABLES.values(), HOP):
        (named,) = re.findall(r"^Shared: (.*)\.$", sections[table.name], re.MULTILINE) or [""]
        of_many = {name: dict(shared)[name] for name in re.findall(r"\w+", named)}
        assert of_many | dict(types(sections[table.name])) == {c.name: c.type for c in table.columns}, table.name


def test_the_data_dictionary_names_the_columns_and_fields_that_are_not_negative():
    sections = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", dictionary(), re.MULTILINE | re.DOTALL))
    named = {
        name: re.findall(r"`([^`]*)`", text)
        for name, section in sections.items()
        for text in re.findall(r"^Holds: not negative: (.*?)[;.]?$", section.replace("; ", ";\n"), re.MULTILINE)
    }
    assert named["heartbeats"] == ["clock_offsets.error_ms", "clock_offsets.samples"]
    assert {"tasks.n", "tasks.idempotent_update_skip_rate", "disorder.n", "held_after"} <= {*named["operator_batches"]}
    for name, columns in named.items():
        table = HOP if name == HOP.name else TABLES[name]
        assert {column.partition(".")[0] for column in columns} <= {*table.names}, name


def warehouse(home: Path) -> Path:
    """A warehouse at *home* with one empty table."""
    create(Layout(home).stream_table("t", "s", BATCHES.name), arrow_schema(BATCHES))
    return home


def test_a_script_attaches_a_duckdb_without_a_download(tmp_path: Path) -> None:
    home = warehouse(tmp_path / "it's here")
    connection = duckdb.connect(config={"autoinstall_known_extensions": False})
    connection.execute(attach_script(home))

    names = "SELECT view_name, column_count FROM duckdb_views WHERE NOT internal ORDER BY 1"
    assert connection.execute(names).fetchall() == list(Warehouse(home).ask(names).rows)
    assert connection.execute("SELECT count(*) FROM batches").fetchall() == [(0,)]


def test_the_cookbooks_line_runs_in_any_folder(tmp_path: Path) -> None:
    """The printed line runs without a network and from other folders.

    It runs in a folder that was moved, too.
    """
    home, elsewhere = warehouse(tmp_path / "warehouse"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (home / "tidemark.sql").write_text(attach_script(home), encoding="utf-8")
    assert answered(home, cwd=elsewhere) == 0
    moved = home.rename(tmp_path / "moved")
    assert answered(moved, cwd=moved) == 0
    before = "SET VARIABLE warehouse = '{}';"
    assert answered(moved, cwd=elsewhere, before=before.format(moved)) == 0


def answered(home: Path, *, cwd: Path, before: str = "") -> int:
    """Returns the row count that the cookbook's line prints in *cwd*.

    *before*: SQL that comes before the script.
    """
    (line,) = re.findall(r'^python -c "(.*)"$', (DOCS / "cookbook.md").read_text(encoding="utf-8"), re.MULTILINE)
    program = line.replace("/srv/tidemark/warehouse", str(home)).replace("open(", f"{before!r} + open(")
    offline = ["unshare", "--map-root-user", "--net"]
    alone = offline if subprocess.run([*offline, "true"], check=False).returncode == 0 else []
    proxies = {f"{kind}_proxy": "http://127.0.0.1:9" for kind in ("http", "https", "HTTP", "HTTPS")}
    command = [*alone, sys.executable, "-c", program]
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **proxies, "HOME": str(cwd)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return int(re.findall(r"│\s+(\d+) │", done.stdout)[-1])
