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
