"""Asks a schema registry over its HTTP interface.

Source: Confluent's Schema Registry API, of which two requests are used: `GET /schemas/ids/{id}` and
`GET /subjects/{subject}/versions/{version}`. Other registries have the same interface.
"""

from __future__ import annotations

import base64
import ssl
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from tidemark.bounded_http import MOST_BYTES, WITHIN_S, NoAnswer, ask, json_of
from tidemark.errors import InvalidArgument, TidemarkError
from tidemark.model.project.registries import Registry

_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"
_FOUND, _REFUSED, _FORBIDDEN, _MISSING = 200, 401, 403, 404


class RegistryUnavailable(TidemarkError):
    """Raised when a registry gives no usable answer; it may later."""


class NotRegistered(TidemarkError):
    """Raised when a registry does not have what was asked for."""


class RegistryRefused(InvalidArgument):
    """Raised when a registry refuses a login, or when there is none that could be sent."""


class NotPermitted(RegistryRefused):
    """Raised when a registry does not permit the login to read something."""


class RegistryClient:
    """Asks one *registry*, for at most *within_s* each time."""

    def __init__(self, registry: Registry, *, within_s: float = WITHIN_S) -> None:
        self.registry, self._within_s = registry, within_s
        self._login: str | None = None
        self._trusted: ssl.SSLContext | None = None
        self._has_secrets = False

    def schema(self, id_: int) -> Mapping[str, Any]:
        """Returns the registry's answer about the schema *id_*."""
        return self._get(f"/schemas/ids/{id_}")

    def version(self, subject: str, version: int | str) -> Mapping[str, Any]:
        """Returns the answer about a *version* of *subject*, or the `latest`."""
        # The subject of a schema that Protobuf imports may be a path, with slashes. A registry names both.
        return self._get(f"/subjects/{quote(subject, safe='')}/versions/{quote(str(version), safe='')}")

    def answers(self) -> None:
        """Raises an error unless the registry answers, whatever schemas it has."""
        with suppress(NotRegistered):
            self.schema(1)

    def _get(self, path: str) -> Mapping[str, Any]:
        """Returns the JSON object at *path*.

        Raises:
            NotRegistered: there is none.
            RegistryUnavailable: there is no usable answer.
            NotPermitted: the login lacks the right.
            RegistryRefused: the login is refused, or a secret cannot be looked up.
        """
        at, url = f"registry.{self.registry.name}", self.registry.url
        self._look_secrets_up()
        request = urllib.request.Request(url + path, headers={"Accept": _ACCEPT})
        if self._login is not None:
            # Not sent again to another host to which an answer redirects.
            request.add_unredirected_header("Authorization", self._login)
        try:
            answer = ask(request, trusted=self._trusted, within_s=self._within_s)
        except NoAnswer as error:
            msg = f"{at}: {url} does not answer: {error}"
            raise RegistryUnavailable(msg) from None
        if answer.status == _FORBIDDEN:
            grant = "grant the login the right" if self._login else "write username and password"
            msg = f"{at}: {url} does not permit {path} (403); {grant}"
            raise NotPermitted(msg)
        if answer.status == _REFUSED:
            keys = "correct username and password" if self._login else "write username and password"
            msg = f"{at}: {url} refuses the login (401); {keys}"
            raise RegistryRefused(msg)
        # A proxy in front of the registry, or another server at its address, may answer 404, too.
        if answer.status == _MISSING and _is_of_registry(answer.content):
            msg = f"{at}: {url} has no {path}"
            raise NotRegistered(msg)
        if answer.status != _FOUND:
            msg = f"{at}: {url} answered {answer.status} to {path}"
            raise RegistryUnavailable(msg)
        return self._parsed(path, answer.content)

    def _parsed(self, path: str, content: bytes) -> Mapping[str, Any]:
        at = f"registry.{self.registry.name}: {self.registry.url} answered {path}"
        if len(content) > MOST_BYTES:
            msg = f"{at} with more than {MOST_BYTES:,} bytes"
            raise RegistryUnavailable(msg)
        try:
            parsed = json_of(content)
        except ValueError as error:
            msg = f"{at} with JSON that cannot be read: {error}"
            raise RegistryUnavailable(msg) from None
        if not isinstance(parsed, dict) or not isinstance(parsed.get("schema"), str):
            msg = f"{at} without a schema in JSON"
            raise RegistryUnavailable(msg)
        return parsed

    def _look_secrets_up(self) -> None:
        """Looks the login and the certificate up, once, for the first request."""
        if self._has_secrets:
            return
        try:
            user, password, ca = (self.registry.text(name) for name in ("username", "password", "ssl_ca"))
        except InvalidArgument as error:
            raise RegistryRefused(str(error)) from error
        if password is not None:
            self._login = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        if ca is not None:
            self._trusted = self._trusting(ca)
        self._has_secrets = True

    def _trusting(self, ca: str) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cadata=ca)
        except ssl.SSLError:
            msg = f"registry.{self.registry.name}.ssl_ca: is not a PEM file with certificates; correct the path"
            raise RegistryRefused(msg) from None


def _is_of_registry(content: bytes) -> bool:
    """Returns True if *content* is a registry's own answer to a 404."""
    try:
        return isinstance(json_of(content).get("error_code"), int)
    except (ValueError, AttributeError):
        return False
