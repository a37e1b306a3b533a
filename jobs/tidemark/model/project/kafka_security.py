"""Reads logins to a Kafka cluster, and makes settings of clients.

This is the only place where names of librdkafka's and of Java's settings are: the table _NAMES has those of a key.
Sources: librdkafka's CONFIGURATION.md (2.16), Kafka's consumer configuration (3.9), KIP-651 for PEM, KIP-768 for
OAUTHBEARER.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from tidemark.model.project.secrets import PlaceKind, SecretPlace, Value, read_value
from tidemark.model.settings.toml_keys import Keys

Settings = dict[str, str | int | float | bool]
"""Settings of a client of `confluent_kafka`."""
Text = Callable[[str, Value], str]
"""Returns the text of a value by its key and its place."""


class Protocol(StrEnum):
    """Names Kafka's protocols: SSL has TLS, SASL has a login."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        """True if connections are encrypted."""
        return self in {Protocol.SSL, Protocol.SASL_SSL}

    @property
    def has_login(self) -> bool:
        """True if clients log in by SASL."""
        return self in {Protocol.SASL_PLAINTEXT, Protocol.SASL_SSL}


class Mechanism(StrEnum):
    """Names the ways to log in."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"


_OF_PASSWORDS = ("username", "password")
_OF_TOKENS = ("token_url", "client_id", "client_secret", "scope")
_OF_TLS = ("ssl_ca", "ssl_certificate", "ssl_key", "ssl_key_password")
OPEN_KEYS = frozenset({"username", "token_url", "client_id", "scope", "ssl_ca", "ssl_certificate"})
"""Keys whose values may be in the file; other values are secret."""
_PEM = frozenset({"ssl_ca", "ssl_certificate", "ssl_key"})
"""Keys whose text is the path of a PEM file."""
_LOGINS = {"username": "login", "client_id": "login"}
"""Fields of Airflow's connections that are not `password`."""
_NAMES = {
    "username": ("sasl.username", ""),
    "password": ("sasl.password", ""),
    "token_url": ("sasl.oauthbearer.token.endpoint.url", "sasl.oauthbearer.token.endpoint.url"),
    "client_id": ("sasl.oauthbearer.client.id", ""),
    "client_secret": ("sasl.oauthbearer.client.secret", ""),
    "scope": ("sasl.oauthbearer.scope", ""),
    "ssl_ca": ("ssl.ca.pem", "ssl.truststore.certificates"),
    "ssl_certificate": ("ssl.certificate.pem", "ssl.keystore.certificate.chain"),
    "ssl_key": ("ssl.key.pem", "ssl.keystore.key"),
    "ssl_key_password": ("ssl.key.password", "ssl.key.password"),
}
"""By key, the names of librdkafka and of Java.

Java has those without a name in `sasl.jaas.config`.
"""
_EXAMPLES = {
    "username": '"tidemark"',
    "password": '{ env = "KAFKA_PASSWORD" }',
    "token_url": '"https://login.example.org/token"',
    "client_id": '"tidemark"',
    "client_secret": '{ env = "KAFKA_CLIENT_SECRET" }',
}
_LOGIN_MODULES = {
    Mechanism.PLAIN: "plain.PlainLoginModule",
    Mechanism.SCRAM_SHA_256: "scram.ScramLoginModule",
    Mechanism.SCRAM_SHA_512: "scram.ScramLoginModule",
    Mechanism.OAUTHBEARER: "oauthbearer.OAuthBearerLoginModule",
}
_JAAS = {
    "username": "username",
    "password": "password",
    "client_id": "clientId",
    "client_secret": "clientSecret",
    "scope": "scope",
}
"""By key, the options of Java's login modules."""
_PACKAGE = "org.apache.kafka.common.security"
_PKCS_1 = re.compile(r"-----BEGIN (RSA|EC|DSA) PRIVATE KEY-----")

_HAS_A_KEY = re.compile(
    r"bootstrap\.servers|metadata\.broker\.list|security\.protocol|sasl\.(mechanisms?|username|password|jaas\.config)|"
    r"sasl\.oauthbearer\.(method|token\.endpoint\.url|client\..*|scope)|sasl\.login\.callback.*|"
    r"ssl\.(ca|certificate|key|truststore|keystore)\..*"
)
_OF_TIDEMARK = re.compile(
    r"group\.id|group\.instance\.id|enable\.auto\.commit|auto\.offset\.reset|(key|value)\.deserializer|"
    r"(request\.required\.)?acks|enable\.idempotence|enable\.gapless\.guarantee|transactional\.id|interceptor\.classes|"
    r"message\.max\.bytes|batch\.size|linger\.ms|queue\.buffering\.max\.ms|delivery\.report\.only\.error|"
    r"max\.poll\.records|enable\.partition\.eof|debug|.*_cb"
)
"""Settings on whose values streams depend."""
_WITHOUT_EFFECT = {
    "Tidemark joins no consumer group": re.compile(
        r"group\..*|heartbeat\.interval\.ms|session\.timeout\.ms|max\.poll\.interval\.ms|coordinator\..*|share\..*|"
        r"partition\.assignment\.strategy|auto\.commit\..*|enable\.auto\.offset\.store|offset\.store\..*|topic\.blacklist"
    ),
    "Tidemark sends without transactions": re.compile(r"transaction\.timeout\.ms"),
    "a sink places its records by its own key `partitioner`": re.compile(
        r"partitioner|msg_order_cmp|sticky\.partitioning\.linger\.ms"
    ),
    "nothing receives what it asks for": re.compile(
        r"statistics\..*|enabled_events|log\.queue|consume\.callback\..*|produce\.offset\.report"
    ),
    "librdkafka does not use it any more": re.compile(
        r"reconnect\.backoff\.jitter\.ms|socket\.blocking\.max\.ms|topic\.metadata\.refresh\.fast\.cnt"
    ),
    "Spark never finds internal topics by a pattern": re.compile(r"exclude\.internal\.topics"),
    "clients do not log in with Kerberos": re.compile(r"sasl\.kerberos\..*"),
    "brokers check tokens, and not clients": re.compile(
        r"sasl\.oauthbearer\.(clock\.skew\.seconds|expected\..*|jwks\..*)"
    ),
}
"""Settings that would change nothing, by the reason."""
_ONE_SIDED = re.compile(
    r"sasl\.oauthbearer\.(config|assertion.*|grant\.type|metadata\..*)|enable\.sasl\.oauthbearer\.unsecure\.jwt|"
    r"enable\.ssl\.certificate\.verification"
)
"""Settings of a login that librdkafka would do in another way than Java's client, which does not have them."""
_OF_TOKEN_LOGINS = re.compile(r"sasl\.(oauthbearer\..*|login\.(?!class).*)|https\..*")
_SECRET = re.compile(r".*(password|secret|passphrase|credential|jaas|\.pem).*", re.IGNORECASE)
_RENAMED = {
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "request.timeout.ms": "socket.timeout.ms",
}
"""By Kafka's name, that of librdkafka where it differs."""
_JAVA_ALONE = re.compile(
    r"ssl\.(protocol|provider|enabled\.protocols|keymanager\.algorithm|trustmanager\.algorithm|"
    r"secure\.random\.implementation|engine\.factory\.class)|security\.providers|metric\.reporters|metrics\..*|"
    r"auto\.include\.jmx\.reporter|default\.api\.timeout\.ms|"
    r"socket\.connection\.setup\.timeout\.max\.ms|sasl\.login\..*|sasl\.client\.callback\.handler\.class|"
    r"sasl\.oauthbearer\.(header\.urlencode|scope\.claim\.name)"
)
_LIBRDKAFKA_ALONE = re.compile(
    # of all clients
    r"builtin\.features|(message\.copy|receive\.message)\.max\.bytes|max\.in\.flight.*|topic\..*|"
    r"metadata\.recovery\.rebootstrap\..*|"
    r"socket\.(timeout|send|receive|keepalive|nagle|max)\..*|broker\..*|"
    r"log\..*|log_level|enable\.random\.seed|internal\..*|api\..*|plugin\..*|"
    r"https\..*|ssl\.(curves\.list|sigalgs\.list|crl\.location|providers|engine\.(location|id))|"
    r"sasl\.oauthbearer\.extensions|"
    # of consumers
    r"queued\..*|fetch\.wait\.max\.ms|fetch\.(queue|error)\.backoff\.ms|fetch\.message\.max\.bytes|"
    # of producers
    r"queue\..*|queuing\..*|message\.(send|timeout)\..*|retries|compression\..*|batch\.num\.messages|delivery\..*"
)
ISOLATION = "isolation.level"
"""Which records of transactions are read; both clients have the setting.

By default Java's client reads those of aborted transactions and librdkafka does not. Tidemark does not, in both.
"""
READ_COMMITTED, READ_UNCOMMITTED = "read_committed", "read_uncommitted"
_EXTENSIONS = "sasl.oauthbearer.extensions"
"""Pairs that a client sends with its token (KIP-342).

librdkafka has them in this setting, Java in `sasl.jaas.config`.
"""
# The name `auth` is reserved for the token itself (KIP-342).
_PAIR = re.compile(r"(?!auth=)[A-Za-z]+=[\x21-\x7e\t ]*")
_CHECKED_NAME = "ssl.endpoint.identification.algorithm"
"""Java has an empty text where librdkafka has `none`."""


@dataclass(frozen=True, kw_only=True)
class Security:
    """How clients log in to a cluster, and further settings of theirs.

    Attributes:
        protocol: Kafka's `security.protocol`.
        mechanism: the way to log in, if clients log in by SASL.
        values: by key of the TOML table, texts and places of secrets.
        settings: further settings of clients by Kafka's names.
    """

    protocol: Protocol = Protocol.PLAINTEXT
    mechanism: Mechanism | None = None
    values: Mapping[str, Value] = field(default_factory=dict)
    settings: Mapping[str, Value | int | float | bool] = field(default_factory=dict)

    @property
    def references(self) -> dict[str, SecretPlace]:
        """The places of all secrets, by key of the cluster's table."""
        all_values = {**self.values, **{f"settings.{name}": value for name, value in self.settings.items()}}
        return {key: value for key, value in all_values.items() if isinstance(value, SecretPlace)}

    @property
    def user(self) -> str:
        """The name of the user or client, if the file has it."""
        name = self.values.get("username") or self.values.get("client_id")
        return name if isinstance(name, str) else ""

    def for_librdkafka(self, text: Text) -> Settings:
        """Returns the settings of a client of `confluent_kafka`."""
        if self.protocol is Protocol.PLAINTEXT and not self.settings:
            return {}
        settings: Settings = {"security.protocol": self.protocol.value}
        if self.mechanism is not None:
            settings["sasl.mechanisms"] = self.mechanism.value
        if self.mechanism is Mechanism.OAUTHBEARER:
            # By default librdkafka gets tokens from a function of the program.
            settings["sasl.oauthbearer.method"] = "oidc"
        settings |= {_NAMES[key][0]: text(key, value) for key, value in self.values.items()}
        for name, value in self._settings(text).items():
            if not _JAVA_ALONE.fullmatch(name):
                settings[_RENAMED.get(name, name)] = value
        if settings.get(_CHECKED_NAME) == "":
            settings[_CHECKED_NAME] = "none"
        return settings

    def for_spark(self, text: Text) -> dict[str, str]:
        """Returns the options of Spark's Kafka source, which are Java's settings."""
        if self.protocol is Protocol.PLAINTEXT and not self.settings:
            return {}
        settings = {"security.protocol": self.protocol.value}
        texts = {key: text(key, value) for key, value in self.values.items()}
        if self.mechanism is not None:
            extensions = _pairs(str(self._settings(text).get(_EXTENSIONS, "")))
            jaas = _jaas(self.mechanism, {**_options(texts), **extensions})
            settings |= {"sasl.mechanism": self.mechanism.value, "sasl.jaas.config": jaas}
        if self.mechanism is Mechanism.OAUTHBEARER:
            # By default Java makes tokens without a signature, for development.
            settings["sasl.login.callback.handler.class"] = f"{_PACKAGE}.oauthbearer.OAuthBearerLoginCallbackHandler"
        settings |= {_NAMES[key][1]: value for key, value in texts.items() if _NAMES[key][1]}
        # By default Java's stores are files of its own form. PEM can be in the setting itself (KIP-651).
        stores = {"ssl_ca": "ssl.truststore.type", "ssl_key": "ssl.keystore.type"}
        settings |= {name: "PEM" for key, name in stores.items() if key in texts}
        for name, value in self._settings(text).items():
            if not _LIBRDKAFKA_ALONE.fullmatch(name):
                settings[name] = str(value).lower() if isinstance(value, bool) else str(value)
        if settings.get(_CHECKED_NAME) == "none":
            settings[_CHECKED_NAME] = ""
        # Spark passes only options with this prefix on to its clients.
        return {f"kafka.{name}": value for name, value in settings.items()}

    def _settings(self, text: Text) -> Settings:
        texts: dict[str, str | int | float | bool] = {}
        for name, value in self.settings.items():
            texts[name] = text(f"settings.{name}", value) if isinstance(value, str | SecretPlace) else value
        return texts


OPEN = Security()
"""No encryption and no login, as at the broker of `tidemark up`."""


def unusable(key: str, text: str) -> str | None:
    """Returns why the *text* of *key* is not usable, or None.

    The result has nothing of the text.
    """
    if key == "token_url":
        return _unsafe_url(text)
    if key == f"settings.{_EXTENSIONS}" and not all(map(_PAIR.fullmatch, text.split(","))):
        return "is not a list of pairs; write NAME=VALUE with commas between them; a NAME has only letters"
    if key == "ssl_key" and _PKCS_1.search(text):
        convert = "`openssl pkcs8 -topk8 -nocrypt -in OLD -out NEW`"
        return f"Java cannot read a key of the form PKCS#1; convert it with {convert}"
    if key in _PEM and "-----BEGIN " not in text:
        return "is not PEM, which has a line -----BEGIN …-----; correct the path, or convert the file"
    return None


def _unsafe_url(text: str) -> str | None:
    """Returns why no secret may be sent to *text*, or None."""
    try:
        parts = urlsplit(text)
    except ValueError:  # half a pair of brackets
        parts = urlsplit("")
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        return "is not an address of a token endpoint; write https://HOST/PATH"
    if "@" in parts.netloc:
        return "has a login, which messages would show; write client_id and client_secret as keys of their own"
    if parts.scheme == "http" and not _is_loopback(parts.hostname):
        return "begins with http://, so the client's secret would cross the network unencrypted; write https://"
    return None


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:  # a name
        return False


def _options(texts: Mapping[str, str]) -> dict[str, str]:
    """Returns the options of a login module for the login in *texts*."""
    return {_JAAS[key]: value for key, value in texts.items() if key in _JAAS}


def _pairs(extensions: str) -> dict[str, str]:
    """Returns the options of a login module for *extensions*.

    >>> _pairs("logicalCluster=lkc-1,poolId=a=b")
    {'extension_logicalCluster': 'lkc-1', 'extension_poolId': 'a=b'}
    """
    pairs = (pair.split("=", 1) for pair in extensions.split(",") if pair)
    return {f"extension_{name}": value for name, value in pairs}


def _jaas(mechanism: Mechanism, options: Mapping[str, str]) -> str:
    """Returns Java's `sasl.jaas.config` with *options* of the login module."""
    words = "".join(f' {name}="{_escaped(value)}"' for name, value in options.items())
    return f"{_PACKAGE}.{_LOGIN_MODULES[mechanism]} required{words};"


def _escaped(text: str) -> str:
    """Escapes *text* as Java's StreamTokenizer reads it between quotes."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")


def read_security(keys: Keys, folder: Path | None) -> Security:
    """Reads the keys of a cluster that are about its security.

    Relative paths of files start in *folder*.

    Raises:
        InvalidSpec: a key is not valid, or does not fit the others.
    """
    protocol = keys.choice("security_protocol", Protocol, Protocol.PLAINTEXT)
    mechanism = _mechanism(keys, protocol)
    values = {key: value for key in _NAMES if (value := _value(keys, key, folder)) is not None}
    _refuse_unfitting(keys, protocol, mechanism, values)
    settings = _read_settings(keys, folder)
    _refuse_unused(keys, protocol, mechanism, settings)
    written = {**values, **{f"settings.{name}": setting for name, setting in settings.items()}}
    for key, text in written.items():
        if not isinstance(text, SecretPlace) and (problem := unusable(key, str(text))):
            keys.fail(key, *problem.split("; ", 1))
    return Security(protocol=protocol, mechanism=mechanism, values=values, settings=settings)


def _mechanism(keys: Keys, protocol: Protocol) -> Mechanism | None:
    mechanism = keys.choice_if_set("sasl_mechanism", Mechanism)
    if mechanism is None:
        if protocol.has_login:
            words = ", ".join(Mechanism)
            keys.fail("sasl_mechanism", f"is missing, and security_protocol is {protocol}", f"write one of {words}")
        return None
    if not protocol.has_login:
        problem = f"is {mechanism.value!r}, but security_protocol is {protocol}, without a login"
        keys.fail("sasl_mechanism", problem, 'write security_protocol = "SASL_SSL"', beside="security_protocol")
    return mechanism


def _value(keys: Keys, key: str, folder: Path | None) -> Value | None:
    # The path of a key is no secret; what the file has is.
    is_secret = key not in OPEN_KEYS and key not in _PEM
    value = read_value(keys, key, folder, secret=is_secret, field=_LOGINS.get(key, "" if is_secret else key))
    if key in _PEM and isinstance(value, str):
        if "-----BEGIN" in value:
            keys.fail(key, "has a text in PEM", f'write the path of a file, {key} = "client.pem"')
        return _file(value, folder)
    return value


def _file(path: str, folder: Path | None) -> SecretPlace:
    return SecretPlace(PlaceKind.FILE, str((folder or Path()).resolve() / path))


def _refuse_unfitting(keys: Keys, protocol: Protocol, mechanism: Mechanism | None, values: Mapping[str, Value]) -> None:
    """Raises InvalidSpec for keys that do not fit each other."""
    is_token = mechanism is Mechanism.OAUTHBEARER
    wanted = _OF_TOKENS[:3] if is_token else _OF_PASSWORDS if mechanism else ()
    for key in wanted:
        if key not in values:
            problem = f"is missing, and sasl_mechanism is {mechanism}"
            keys.fail(key, problem, f"write {key} = {_EXAMPLES[key]}", beside="sasl_mechanism")
    unfitting: tuple[str, ...] = _OF_PASSWORDS if is_token or not mechanism else ()
    unfitting += () if is_token else _OF_TOKENS
    for key in unfitting:
        if key in values:
            login = f"sasl_mechanism is {mechanism}" if mechanism else "there is no sasl_mechanism"
            keys.fail(
                key, f"is written, but {login}", "leave it out, or correct the mechanism", beside="sasl_mechanism"
            )
    for key in _OF_TLS:
        if key in values and not protocol.has_tls:
            problem = f"is written, but security_protocol is {protocol}, without TLS"
            remedy = f'write security_protocol = "{"SASL_SSL" if protocol.has_login else "SSL"}", or leave it out'
            keys.fail(key, problem, remedy, beside="security_protocol")
    for key, other in (
        ("ssl_certificate", "ssl_key"),
        ("ssl_key", "ssl_certificate"),
        ("ssl_key_password", "ssl_key"),
    ):
        if key in values and other not in values:
            keys.fail(key, f"is written without {other}", f"write {other}, too", beside=other)


def _read_settings(keys: Keys, folder: Path | None) -> Mapping[str, Value | int | float | bool]:
    table = keys.get("settings", dict, '{ "client.id" = "tidemark" }', {})
    inner = Keys(keys.file, f"{keys.at}.settings", table)
    settings: dict[str, Value | int | float | bool] = {}
    for name, value in table.items():
        if _HAS_A_KEY.fullmatch(name):
            inner.fail(name, f"has a key of its own in [{keys.at}]", "use that; docs/connections.md has the keys")
        if _OF_TIDEMARK.fullmatch(name):
            inner.fail(name, "is set by Tidemark", "leave it out")
        for reason, names in _WITHOUT_EFFECT.items():
            if names.fullmatch(name):
                inner.fail(name, f"has no effect: {reason}", "leave it out")
        if _ONE_SIDED.fullmatch(name):
            problem = "would be a setting of librdkafka alone, and Spark's Java client logs in, too"
            inner.fail(name, problem, f"leave it out, and use the keys of [{keys.at}]")
        if name == ISOLATION:
            inner.word(name, (READ_COMMITTED, READ_UNCOMMITTED), READ_COMMITTED)
        if isinstance(value, str | int | float) and not _SECRET.fullmatch(name):
            settings[name] = value
        elif (place := read_value(inner, name, folder)) is not None:
            settings[name] = place
    return settings


def _refuse_unused(keys: Keys, protocol: Protocol, mechanism: Mechanism | None, settings: Mapping[str, object]) -> None:
    """Raises InvalidSpec for a setting of a login, or of TLS, that the cluster does not have."""
    for name in settings:
        if _OF_TOKEN_LOGINS.fullmatch(name) and mechanism is not Mechanism.OAUTHBEARER:
            needed, remedy = "OAUTHBEARER", 'write sasl_mechanism = "OAUTHBEARER"'
        elif name.startswith("sasl.") and not protocol.has_login:
            needed, remedy = "a login", 'write security_protocol = "SASL_SSL"'
        elif name.startswith("ssl.") and not protocol.has_tls:
            needed, remedy = "TLS", 'write security_protocol = "SSL" or "SASL_SSL"'
        else:
            continue
        keys.fail(f"settings.{name}", f"needs {needed}", f"leave it out, or {remedy}", beside="settings")


def in_the_clear(security: Security) -> str | None:
    """Returns a warning if a secret crosses the network unencrypted; else None."""
    sends_secret = security.mechanism in {Mechanism.PLAIN, Mechanism.OAUTHBEARER}
    if security.protocol is not Protocol.SASL_PLAINTEXT or not sends_secret:
        return None
    what = "the password" if security.mechanism is Mechanism.PLAIN else "the token"
    return f"{security.mechanism} over SASL_PLAINTEXT sends {what} unencrypted; use SASL_SSL"
