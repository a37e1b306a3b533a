"""The official client of Unity Catalog has models of each request."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from packages.fresh import FreshEnvironment, python_of, uv

from support.command_line import tidemark
from support.unity_server import PREFIX, UnityServer
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import BATCHES

pytestmark = pytest.mark.long  # the client excludes versions that Airflow has, so it gets an environment of its own
CLIENT = """
import asyncio, json, sys
from unitycatalog.client import ApiClient, Configuration, CreateSchema, CreateTable, TablesApi
url, file = sys.argv[1:]
for body in json.load(open(file)):
    model = {"schemas": CreateSchema, "tables": CreateTable}[body.pop("kind")]
    assert model.from_dict(body).to_dict() == body  # no key is unknown, and no value has another type

async def tables():
    async with ApiClient(Configuration(host=url), "Authorization", "Bearer s3cret") as client:
        listed = await TablesApi(client).list_tables("unity", "tidemark", max_results=50)
        table = await TablesApi(client).get_table("unity.tidemark.batches")
        return [each.name for each in listed.tables], [[each.name, each.comment] for each in table.columns]

print(json.dumps(asyncio.run(tables())))
"""


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> FreshEnvironment:
    """An environment with the client alone."""
    folder = tmp_path_factory.mktemp("unity")
    uv("venv", "--quiet", "--no-project", "--python", python_of("3.11"), str(folder / "venv"))
    python = str(folder / "venv" / "bin" / "python")
    uv("pip", "install", "--quiet", "--python", python, "unitycatalog-client==0.7.0", folder=folder)
    return FreshEnvironment(folder)


def test_requests_have_the_form_of_the_official_client(
    official: FreshEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "warehouse"
    price = pa.array([None], pa.decimal128(10, 2))
    legs = pa.array([[{"gate": "A1"}]], pa.list_(pa.struct([("gate", pa.string())])))
    write_deltalake(Layout(home).stream_table("f", "s", "board"), pa.table({"price": price, "legs": legs}))
    token, bodies = tmp_path / "token", tmp_path / "bodies.json"
    token.write_text("s3cret", encoding="utf-8")
    with UnityServer("s3cret") as server:
        options = ("--server", server.url, "--token-file", str(token))
        done = tidemark(tmp_path, "--warehouse", str(home), "publish", "unity", *options)
        assert done.returncode == 0, done.stderr
        bodies.write_text(json.dumps(server.bodies), encoding="utf-8")
        names, columns = json.loads(official.answer("python", "-c", CLIENT, server.url + PREFIX, str(bodies)))
    assert len(names) == 3  # a page
    assert columns == [[column.name, column.comment] for column in BATCHES.columns]
