"""What is written about the tables is what they are."""

from __future__ import annotations

from pathlib import Path

import duckdb

from tidemark.cli.docs import dictionary
from tidemark.cli.sql import Warehouse, attach_script
from tidemark.delta import create
from tidemark.kernels.rollups import Scope
from tidemark.kernels.schemas import arrow_schema
from tidemark.spec.checks import CHECKS
from tidemark.spec.layout import Layout
from tidemark.spec.tables import BATCHES, LATENCY_ROLLUP

DOCS = Path(__file__).parents[2] / "docs"


def test_the_data_dictionary_is_current():
    assert (DOCS / "tables.md").read_text(encoding="utf-8") == dictionary(), "run `tidemark docs`"


def test_the_scopes_that_a_rollup_may_have_are_all_there_are():
    listed = ", ".join(f"'{scope.value}'" for scope in Scope)
    assert CHECKS[LATENCY_ROLLUP.name]["tidemark_known_scope"].endswith(f"({listed})")


def test_the_script_makes_another_duckdb_one_over_the_same_tables_and_views(tmp_path):
    home = tmp_path / "it's here"
    create(Layout(home).stream_table("t", "s", BATCHES.name), arrow_schema(BATCHES))
    extension = Path(duckdb.__file__).parents[1] / "duckdb_extension_delta" / "extensions" / f"v{duckdb.__version__}"
    loaded = f"LOAD '{extension / 'delta.duckdb_extension'}'"
    script = attach_script(home).replace("INSTALL delta;\nLOAD delta", loaded)

    connection = duckdb.connect()
    connection.execute(script)

    names = "SELECT view_name, column_count FROM duckdb_views WHERE NOT internal ORDER BY 1"
    assert connection.execute(names).fetchall() == list(Warehouse(home).ask(names).rows)
    assert connection.execute("SELECT count(*) FROM batches").fetchall() == [(0,)]
