"""Fields of a connection become variables of an object store's programs."""

from __future__ import annotations

import pytest

from tidemark.errors import InvalidArgument
from tidemark.storage.location import location
from tidemark.storage.object_path import ObjectPath
from tidemark.storage.store_settings import store_variables

SECRET = "canary-of-a-store"
KEYS = {"login": "ann", "password": SECRET}


def place(text: str) -> ObjectPath:
    found = location(text)
    assert isinstance(found, ObjectPath)
    return found


def test_every_field_of_s3_has_its_variable() -> None:
    more = {"aws_session_token": "t", "region_name": "eu-west-1", "endpoint_url": "https://store:9000"}
    assert store_variables(place("s3://bucket/wh"), "tidemark_store", {**KEYS, **more}) == {
        "AWS_ACCESS_KEY_ID": "ann",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_SESSION_TOKEN": "t",
        "AWS_REGION": "eu-west-1",
        "AWS_ENDPOINT_URL": "https://store:9000",
    }


def test_an_address_without_tls_allows_http() -> None:
    variables = store_variables(place("s3://bucket"), "c", {**KEYS, "endpoint_url": "http://127.0.0.1:9"})
    assert variables["AWS_ALLOW_HTTP"] == "true"


def test_a_token_of_the_environment_is_not_mixed_with_keys() -> None:
    assert store_variables(place("s3://bucket"), "c", KEYS)["AWS_SESSION_TOKEN"] is None
    assert "AWS_REGION" not in store_variables(place("s3://bucket"), "c", KEYS)


@pytest.mark.parametrize(
    ("fields", "seen"),
    [
        ({"login": "ann"}, "connection c: password is missing; a store s3a:// needs it"),
        ({"password": SECRET}, "connection c: login is missing; a store s3a:// needs it"),
        ({**KEYS, "role_arn": "arn"}, "connection c: unknown field role_arn; known: aws_session_token, endpoint_url"),
    ],
)
def test_what_a_store_cannot_use_is_refused(fields: dict[str, str], seen: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        store_variables(place("s3://bucket/wh"), "c", fields)
    assert seen in str(refused.value)
    assert SECRET not in str(refused.value)


def test_googles_store_needs_the_path_of_a_key() -> None:
    store = place("gs://bucket/wh")
    assert store_variables(store, "c", {"key_path": "/run/key.json"}) == {
        "GOOGLE_APPLICATION_CREDENTIALS": "/run/key.json"
    }
    with pytest.raises(InvalidArgument, match="connection c: unknown field keyfile_dict; known: key_path"):
        store_variables(store, "c", {"keyfile_dict": SECRET})
    with pytest.raises(InvalidArgument, match="connection c: key_path is missing; a store gs:// needs it"):
        store_variables(store, "c", {})


def test_azures_store_needs_a_client_of_a_tenant() -> None:
    store = place("abfss://lake@acme.dfs.core.windows.net/wh")
    assert store_variables(store, "c", {**KEYS, "tenant_id": "t"}) == {
        "AZURE_STORAGE_CLIENT_ID": "ann",
        "AZURE_STORAGE_CLIENT_SECRET": SECRET,
        "AZURE_STORAGE_TENANT_ID": "t",
    }
    with pytest.raises(InvalidArgument, match="connection c: tenant_id is missing; a store abfss:// needs it"):
        store_variables(store, "c", KEYS)


@pytest.mark.parametrize("text", ["gs://bucket/wh", "abfss://lake@acme.dfs.core.windows.net/wh", "s3a://bucket/wh"])
def test_a_place_in_a_store_keeps_its_url(text: str) -> None:
    assert str(place(text)) == text
    assert str(place(text) / "streams" / "a=1") == f"{text}/streams/a=1"
    assert str(place(text).parent) == text.removesuffix("/wh")


@pytest.mark.parametrize(
    "text",
    [
        "abfss://lake/wh",
        "abfss://lake@acme/wh",
        "abfss://lake@acme.blob.core.windows.net/wh",
        "gs://",
        "gs://lake@acme/wh",
        "az://lake/wh",
    ],
)
def test_a_url_that_names_no_bucket_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="a location is a path of this machine"):
        location(text)


def test_each_place_has_the_client_of_its_store(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AZURE_STORAGE_CLIENT_ID", "AZURE_STORAGE_CLIENT_SECRET", "AZURE_STORAGE_TENANT_ID"):
        monkeypatch.setenv(name, "one")
    assert type(place("s3://bucket")._store).__name__ == "S3Store"
    assert type(place("gs://bucket")._store).__name__ == "GCSStore"
    azure = place("abfss://lake@acme.dfs.core.windows.net/wh")._store
    assert type(azure).__name__ == "AzureStore"
    assert (azure.config["container_name"], azure.config["account_name"]) == ("lake", "acme")
