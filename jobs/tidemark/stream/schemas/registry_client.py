"""Asks a schema registry over its HTTP interface.

Source: Confluent's Schema Registry API, of which two requests are used: `GET /schemas/ids/{id}` and
`GET /subjects/{subject}/versions/{version}`. Other registries have the same interface.
"""

from __future__ import annotations

import base64
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.parse import quote

from tidemark.errors import InvalidArgument, TidemarkError
from tidemark.model.project.registries import Registry

TIMEOUT_S = 10.0
MOST_BYTES = 16 * 1024 * 1024
"""Longest answer that is read."""
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"
_REFUSED, _FORBIDDEN, _MISSING = 401, 403, 404


class RegistryUnavailable(TidemarkError):
    """Raised when a registry gives no usable answer; it may later."""


class NotRegistered(TidemarkError):
    """Raised when a registry does not have what was asked for."""


class NotPermitted(InvalidArgument):
    """Raised when a registry does not permit the login to read something."""


class RegistryClient:
    """Asks one *registry*, for at most *timeout_s* each time."""

    def __init__(self, registry: Registry, *, timeout_s: float = TIMEOUT_S) -> None:
        self.registry, self._timeout_s = registry, timeout_s
        self._opener: urllib.request.OpenerDirector | None = None
        self._login: str | None = None

    def schema(self, id_: int) -> Mapping[str, Any]:
        """Returns the registry's answer about the schema *id_*."""
        return self._get(f"/schemas/ids/{id_}")

    def version(self, subject: str, version: int | str) -> Mapping[str, Any]:
        """Returns the answer about a *version* of *subject*, or the `latest`."""
        # The subject of a schema that Protobuf imports may be a path, with slashes.
        return self._get(f"/subjects/{quote(subject, safe='')}/versions/{version}")

    def _get(self, path: str) -> Mapping[str, Any]:
        """Returns the JSON object at *path*.

        Raises:
            NotRegistered: there is none.
            RegistryUnavailable: there is no usable answer.
            NotPermitted: the login lacks the right.
            InvalidArgument: the login is refused, or a secret cannot be looked up.
        """
        at = f"registry.{self.registry.name}"
        request = urllib.request.Request(self.registry.url + path, headers={"Accept": _ACCEPT})
        opener = self._connected()
        if self._login is not None:
            # Not sent again to another host to which an answer redirects.
            request.add_unredirected_header("Authorization", self._login)
        try:
            with opener.open(request, timeout=self._timeout_s) as answer:
                # One more byte shows that an answer is too long.
                content = answer.read(MOST_BYTES + 1)
        except urllib.error.HTTPError as error:
            # The error is the answer itself, and holds the connection until it is closed.
            with error:
                if error.code == _FORBIDDEN:
                    grant = "grant the login the right" if self._login else "write username and password"
                    msg = f"{at}: {self.registry.url} does not permit {path} (403); {grant}"
                    raise NotPermitted(msg) from None
                if error.code == _REFUSED:
                    keys = "correct username and password" if self._login else "write username and password"
                    msg = f"{at}: {self.registry.url} refuses the login (401); {keys}"
                    raise InvalidArgument(msg) from None
                # A proxy in front of the registry, or another server at its address, may answer 404, too.
                if error.code == _MISSING and _is_of_registry(error.read(MOST_BYTES)):
                    msg = f"{at}: {self.registry.url} has no {path}"
                    raise NotRegistered(msg) from None
                msg = f"{at}: {self.registry.url} answered {error.code} to {path}"
                raise RegistryUnavailable(msg) from None
        except (OSError, HTTPException) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            msg = f"{at}: {self.registry.url} does not answer: {reason}"
            raise RegistryUnavailable(msg) from None
        return self._parsed(path, content)

    def _parsed(self, path: str, content: bytes) -> Mapping[str, Any]:
        parsed: Any = None
        if len(content) <= MOST_BYTES:
            try:
                parsed = json.loads(content)
            except ValueError:
                parsed = None
        if not isinstance(parsed, dict) or not isinstance(parsed.get("schema"), str):
            msg = f"registry.{self.registry.name}: {self.registry.url} answered {path} without a schema in JSON"
            raise RegistryUnavailable(msg)
        return parsed

    def _connected(self) -> urllib.request.OpenerDirector:
        """Returns the opener; secrets are looked up for the first request."""
        if self._opener is None:
            user, password = self.registry.text("username"), self.registry.text("password")
            if password is not None:
                self._login = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
            handlers: list[urllib.request.BaseHandler] = []
            if (ca := self.registry.text("ssl_ca")) is not None:
                handlers.append(urllib.request.HTTPSHandler(context=self._trusting(ca)))
            self._opener = urllib.request.build_opener(*handlers)
        return self._opener

    def _trusting(self, ca: str) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cadata=ca)
        except ssl.SSLError:
            msg = f"registry.{self.registry.name}.ssl_ca: is not a PEM file with certificates; correct the path"
            raise InvalidArgument(msg) from None


def _is_of_registry(content: bytes) -> bool:
    """Returns True if *content* is a registry's own answer to a 404."""
    try:
        return isinstance(json.loads(content).get("error_code"), int)
    except (ValueError, AttributeError):
        return False
