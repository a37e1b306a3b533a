"""Reads logins to a Kafka cluster, and makes settings of clients.

This is the only place where names of librdkafka's and of Java's settings are: CREDENTIALS have those of a key.
Sources: librdkafka's CONFIGURATION.md (2.16), Kafka's consumer configuration (3.9), KIP-651 for PEM, KIP-768 for
OAUTHBEARER.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from tidemark.model.project.secrets import PATH, SECRET, SecretPlace, Value, located, text_or_place
from tidemark.model.settings import value_types
from tidemark.model.settings.declared_tables import Key, MistakenKey, Values, defaulted, optional
from tidemark.model.settings.value_types import ADDRESS, UnfitValue, refuse

ClientSettings = dict[str, str | int | float | bool]
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


SECURITY_PROTOCOL = defaulted(
    "security_protocol",
    value_types.choice(Protocol),
    example='"SASL_SSL"',
    default="PLAINTEXT",
    meaning="`PLAINTEXT`, `SSL` (TLS), `SASL_SSL` (TLS and a login) or `SASL_PLAINTEXT` (a login without TLS)",
)
SASL_MECHANISM = optional(
    "sasl_mechanism",
    value_types.choice(Mechanism),
    example='"SCRAM-SHA-512"',
    without="required with `SASL_…`",
    meaning="`PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512` or `OAUTHBEARER`",
)
SETTINGS = optional(
    "settings",
    value_types.plain(dict),
    example='{ "client.id" = "tidemark" }',
    meaning="further settings of Kafka's clients, by Kafka's names",
)
_WITH_PASSWORD = frozenset({Mechanism.PLAIN, Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512})
_WITH_TOKEN = frozenset({Mechanism.OAUTHBEARER})
_BY_PASSWORD, _BY_TOKEN = "required with `PLAIN`, `SCRAM-…`", "required with `OAUTHBEARER`"


@dataclass(frozen=True, kw_only=True)
class Credential:
    """A key by which clients log in, or check a connection.

    Attributes:
        key: the declaration of the key.
        mechanisms: the logins that use it; empty if it belongs to TLS.
        is_needed: these logins do not work without it.
        is_open: its text is no secret.
        field: the field of an Airflow connection that usually has it.
        librdkafka: the name of librdkafka's setting.
        java: the name of the setting of Java's client; empty if the value is in `sasl.jaas.config`.
        option: the option of Java's login module in `sasl.jaas.config`; empty if there is none.
    """

    key: Key[Any]
    mechanisms: frozenset[Mechanism] = frozenset()
    is_needed: bool = False
    is_open: bool = False
    field: str = "password"
    librdkafka: str
    java: str = ""
    option: str = ""


def _token_url(url: str, *_: str) -> str:
    if problem := _unsafe_url(url):
        refuse(*problem.split("; ", 1))
    return url


SSL_CERTIFICATE = optional(
    "ssl_certificate",
    PATH,
    example='"certificates/tidemark.pem"',
    meaning="PEM file with the client's certificate, and after it those of intermediate CAs",
)
SSL_KEY = optional(
    "ssl_key",
    PATH,
    example='"/run/secrets/tidemark.key"',
    without="required with `ssl_certificate`",
    meaning="PEM file with the client's key, in the form PKCS#8 (`BEGIN PRIVATE KEY`)",
)
SSL_KEY_PASSWORD = optional(
    "ssl_key_password", SECRET, example='{ env = "KAFKA_SSL_KEY_PASSWORD" }', meaning="password of the key"
)
_CREDENTIALS = (
    Credential(
        key=optional(
            "username",
            text_or_place(value_types.text()),
            example='"tidemark"',
            without=_BY_PASSWORD,
            meaning="the user",
        ),
        mechanisms=_WITH_PASSWORD,
        is_needed=True,
        is_open=True,
        field="login",
        librdkafka="sasl.username",
        option="username",
    ),
    Credential(
        key=optional(
            "password",
            SECRET,
            example='{ env = "KAFKA_PASSWORD" }',
            without=_BY_PASSWORD,
            meaning="the user's password",
        ),
        mechanisms=_WITH_PASSWORD,
        is_needed=True,
        librdkafka="sasl.password",
        option="password",
    ),
    Credential(
        key=optional(
            "token_url",
            text_or_place(value_types.text(ADDRESS).then(_token_url)),
            example='"https://login.example.org/token"',
            without=_BY_TOKEN,
            meaning=(
                "token endpoint of the OIDC provider, for the grant of client credentials: `https://…`; `http://…` "
                "only on this machine"
            ),
        ),
        mechanisms=_WITH_TOKEN,
        is_needed=True,
        is_open=True,
        field="token_url",
        librdkafka="sasl.oauthbearer.token.endpoint.url",
        java="sasl.oauthbearer.token.endpoint.url",
    ),
    Credential(
        key=optional(
            "client_id",
            text_or_place(value_types.text()),
            example='"tidemark"',
            without=_BY_TOKEN,
            meaning="the client",
        ),
        mechanisms=_WITH_TOKEN,
        is_needed=True,
        is_open=True,
        field="login",
        librdkafka="sasl.oauthbearer.client.id",
        option="clientId",
    ),
    Credential(
        key=optional(
            "client_secret",
            SECRET,
            example='{ env = "KAFKA_CLIENT_SECRET" }',
            without=_BY_TOKEN,
            meaning="the client's secret",
        ),
        mechanisms=_WITH_TOKEN,
        is_needed=True,
        librdkafka="sasl.oauthbearer.client.secret",
        option="clientSecret",
    ),
    Credential(
        key=optional("scope", text_or_place(value_types.text()), example='"kafka"', meaning="scope of the token"),
        mechanisms=_WITH_TOKEN,
        is_open=True,
        field="scope",
        librdkafka="sasl.oauthbearer.scope",
        option="scope",
    ),
    Credential(
        key=optional(
            "ssl_ca",
            PATH,
            example='"certificates/eu-ca.pem"',
            without="CAs of the system and of Java",
            meaning="PEM file with the CAs that sign the brokers' certificates",
        ),
        is_open=True,
        field="ssl_ca",
        librdkafka="ssl.ca.pem",
        java="ssl.truststore.certificates",
    ),
    Credential(
        key=SSL_CERTIFICATE,
        is_open=True,
        field="ssl_certificate",
        librdkafka="ssl.certificate.pem",
        java="ssl.keystore.certificate.chain",
    ),
    Credential(key=SSL_KEY, field="ssl_key", librdkafka="ssl.key.pem", java="ssl.keystore.key"),
    Credential(key=SSL_KEY_PASSWORD, librdkafka="ssl.key.password", java="ssl.key.password"),
)
CREDENTIALS: Mapping[str, Credential] = MappingProxyType({each.key.name: each for each in _CREDENTIALS})
"""The keys of logins and of TLS by name."""
OPEN_KEYS = frozenset(name for name, credential in CREDENTIALS.items() if credential.is_open)
"""Keys whose values may be in the file; other values are secret."""
_LOGIN_MODULES = {
    Mechanism.PLAIN: "plain.PlainLoginModule",
    Mechanism.SCRAM_SHA_256: "scram.ScramLoginModule",
    Mechanism.SCRAM_SHA_512: "scram.ScramLoginModule",
    Mechanism.OAUTHBEARER: "oauthbearer.OAuthBearerLoginModule",
}
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
"""Settings that a file must not have, because streams depend on their values."""
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
"""Settings of a login that only librdkafka has, so that Java's client would log in in another way."""
_OF_TOKEN_LOGINS = re.compile(r"sasl\.(oauthbearer\..*|login\.(?!class).*)|https\..*")
_SECRET = re.compile(r".*(password|secret|passphrase|credential|jaas|\.pem).*", re.IGNORECASE)
_RENAMED = {
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "request.timeout.ms": "socket.timeout.ms",
}
"""librdkafka's name of a setting, by the name that Kafka gives it, if the two differ."""
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
"""The setting, in both clients, that says which records of transactions are read.

By default Java's client reads records of aborted transactions, and librdkafka does not. Here neither reads them.
"""
READ_COMMITTED, READ_UNCOMMITTED = "read_committed", "read_uncommitted"
_EXTENSIONS = "sasl.oauthbearer.extensions"
"""librdkafka's setting with the pairs that a client sends with its token (KIP-342).

Java's client has the pairs in `sasl.jaas.config`.
"""
# The name `auth` is reserved for the token itself (KIP-342).
_PAIR = re.compile(r"(?!auth=)[A-Za-z]+=[\x21-\x7e\t ]*")
_CHECKED_NAME = "ssl.endpoint.identification.algorithm"
"""A setting of both clients: what is `none` in librdkafka is an empty text in Java's client."""


@dataclass(frozen=True, kw_only=True)
class Security:
    """How clients log in to a cluster, and further settings of these clients.

    Attributes:
        protocol: Kafka's `security.protocol`.
        mechanism: the way to log in, if clients log in by SASL.
        values: the text, or the place of the secret, by key of the cluster's table.
        settings: further settings of clients, by Kafka's names.
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

    def for_librdkafka(self, text: Text) -> ClientSettings:
        """Returns the settings of a client of `confluent_kafka`."""
        if self.protocol is Protocol.PLAINTEXT and not self.settings:
            return {}
        settings: ClientSettings = {"security.protocol": self.protocol.value}
        if self.mechanism is not None:
            settings["sasl.mechanisms"] = self.mechanism.value
        if self.mechanism is Mechanism.OAUTHBEARER:
            # By default librdkafka gets tokens from a function of the program.
            settings["sasl.oauthbearer.method"] = "oidc"
        settings |= {CREDENTIALS[key].librdkafka: text(key, value) for key, value in self.values.items()}
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
        settings |= {CREDENTIALS[key].java: value for key, value in texts.items() if CREDENTIALS[key].java}
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

    def _settings(self, text: Text) -> ClientSettings:
        texts: dict[str, str | int | float | bool] = {}
        for name, value in self.settings.items():
            texts[name] = text(f"settings.{name}", value) if isinstance(value, str | SecretPlace) else value
        return texts


OPEN = Security()
"""No encryption and no login, as at the broker of `tidemark up`."""


def unusable(key: str, text: str) -> str | None:
    """Returns why the *text* of *key* is not usable, or None. The reason quotes nothing of the text."""
    if key == "token_url":
        return _unsafe_url(text)
    if key == f"settings.{_EXTENSIONS}" and not all(map(_PAIR.fullmatch, text.split(","))):
        return "is not a list of pairs; write NAME=VALUE with commas between them; a NAME has only letters"
    if key == "ssl_key" and _PKCS_1.search(text):
        convert = "`openssl pkcs8 -topk8 -nocrypt -in OLD -out NEW`"
        return f"Java cannot read a key of the form PKCS#1; convert it with {convert}"
    if key in CREDENTIALS and CREDENTIALS[key].key.of_type is PATH and "-----BEGIN " not in text:
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
    return {CREDENTIALS[key].option: value for key, value in texts.items() if CREDENTIALS[key].option}


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


def security_of(values: Values, folder: Path | None) -> Security:
    """Returns the security of a cluster by the *values* of its table.

    Relative paths of files start in *folder*.
    """
    written = {name: values[credential.key] for name, credential in CREDENTIALS.items()}
    texts = {
        name: located(value, folder, CREDENTIALS[name].field) if isinstance(value, SecretPlace) else value
        for name, value in written.items()
        if value is not None
    }
    settings: dict[str, Value | int | float | bool] = {}
    for name, value in (values[SETTINGS] or {}).items():
        setting = _setting(values.at, name, value)
        settings[name] = located(setting, folder, "password") if isinstance(setting, SecretPlace) else setting
    mechanism = values[SASL_MECHANISM]
    return Security(protocol=values[SECURITY_PROTOCOL], mechanism=mechanism, values=texts, settings=settings)


def _refuse_mechanism(values: Values) -> None:
    """Refuses a mechanism in a cluster without a login, and a login without a mechanism."""
    protocol, mechanism = values[SECURITY_PROTOCOL], values[SASL_MECHANISM]
    if mechanism is None and protocol.has_login:
        words = ", ".join(Mechanism)
        values.fail(SASL_MECHANISM, f"is missing, and security_protocol is {protocol}", f"write one of {words}")
    if mechanism is not None and not protocol.has_login:
        problem = f"is {mechanism.value!r}, but security_protocol is {protocol}, without a login"
        values.fail(SASL_MECHANISM, problem, 'write security_protocol = "SASL_SSL"')


def _refuse_unfitting(values: Values, credential: Credential) -> None:
    """Refuses a key that the cluster does not use: of another login, or of TLS without TLS."""
    key, protocol = credential.key, values[SECURITY_PROTOCOL]
    is_written = values[key] is not None
    if not credential.mechanisms:
        if is_written and not protocol.has_tls:
            problem = f"is written, but security_protocol is {protocol}, without TLS"
            remedy = f'write security_protocol = "{"SASL_SSL" if protocol.has_login else "SSL"}", or leave it out'
            values.fail(key, problem, remedy)
        return
    mechanism = values[SASL_MECHANISM]
    if mechanism is None and protocol.has_login:
        return  # which login is meant is not known
    if mechanism not in credential.mechanisms and is_written:
        login = f"sasl_mechanism is {mechanism}" if mechanism else "there is no sasl_mechanism"
        values.fail(key, f"is written, but {login}", "leave it out, or correct the mechanism")
    if mechanism in credential.mechanisms and credential.is_needed and not is_written:
        values.fail(key, f"is missing, and sasl_mechanism is {mechanism}", f"write {key.name} = {key.example}")


def refuse_alone(values: Values, key: Key[Any], other: Key[Any]) -> None:
    """Refuses *key* without the *other* one."""
    if values[key] is not None and values[other] is None:
        values.fail(key, f"is written without {other.name}", f"write {other.name}, too")


def _refuse_settings(values: Values) -> None:
    """Notes a mistake for each setting that clients must not have, or that would have no effect."""
    for name, value in (values[SETTINGS] or {}).items():
        try:
            _setting(values.at, name, value)
            _refuse_unused(values, name)
        except UnfitValue as unfit:
            values.note(".".join(filter(None, (SETTINGS.name, name, unfit.part))), unfit.problem, unfit.remedy)
        except MistakenKey:
            continue


def _setting(at: str, name: str, value: object) -> Value | int | float | bool:
    """Reads the setting *name* of the cluster *at*.

    Raises UnfitValue if it is not one that clients may have.
    """
    if _HAS_A_KEY.fullmatch(name):
        refuse(f"has a key of its own in [{at}]", "use that; docs/connections.md has the keys")
    if _OF_TIDEMARK.fullmatch(name):
        refuse("is set by Tidemark", "leave it out")
    for reason, names in _WITHOUT_EFFECT.items():
        if names.fullmatch(name):
            refuse(f"has no effect: {reason}", "leave it out")
    if _ONE_SIDED.fullmatch(name):
        problem = "would be a setting of librdkafka alone, and Spark's Java client logs in, too"
        refuse(problem, f"leave it out, and use the keys of [{at}]")
    if name == ISOLATION:
        return value_types.word((READ_COMMITTED, READ_UNCOMMITTED)).read(value, name, f'"{READ_COMMITTED}"')
    if _SECRET.fullmatch(name) or not isinstance(value, str | int | float):
        return SECRET.read(value, f'"{name}"', f'{{ env = "KAFKA_{name.rpartition(".")[2].upper()}" }}')
    if wrong := unusable(f"{SETTINGS.name}.{name}", str(value)):
        refuse(*wrong.split("; ", 1))
    return value


def _refuse_unused(values: Values, name: str) -> None:
    """Refuses a setting of a login, or of TLS, that the cluster does not have.

    Raises:
        UnfitValue: it has no effect.
    """
    protocol, mechanism = values[SECURITY_PROTOCOL], values[SASL_MECHANISM]
    is_known = mechanism is not None or not protocol.has_login
    if _OF_TOKEN_LOGINS.fullmatch(name) and mechanism is not Mechanism.OAUTHBEARER and is_known:
        needed, remedy = "OAUTHBEARER", 'write sasl_mechanism = "OAUTHBEARER"'
    elif name.startswith("sasl.") and not protocol.has_login:
        needed, remedy = "a login", 'write security_protocol = "SASL_SSL"'
    elif name.startswith("ssl.") and not protocol.has_tls:
        needed, remedy = "TLS", 'write security_protocol = "SSL" or "SASL_SSL"'
    else:
        return
    refuse(f"needs {needed}", f"leave it out, or {remedy}")


KEYS = (SECURITY_PROTOCOL, SASL_MECHANISM, *(credential.key for credential in _CREDENTIALS), SETTINGS)
"""The keys of a cluster that are about its security."""
RULES: tuple[Callable[[Values], object], ...] = (
    _refuse_mechanism,
    *(partial(_refuse_unfitting, credential=credential) for credential in _CREDENTIALS),
    partial(refuse_alone, key=SSL_CERTIFICATE, other=SSL_KEY),
    partial(refuse_alone, key=SSL_KEY, other=SSL_CERTIFICATE),
    partial(refuse_alone, key=SSL_KEY_PASSWORD, other=SSL_KEY),
    _refuse_settings,
)
"""Refuse keys that do not fit each other."""


def in_the_clear(security: Security) -> str | None:
    """Returns a warning if a secret crosses the network unencrypted, or None."""
    sends_secret = security.mechanism in {Mechanism.PLAIN, Mechanism.OAUTHBEARER}
    if security.protocol is not Protocol.SASL_PLAINTEXT or not sends_secret:
        return None
    what = "the password" if security.mechanism is Mechanism.PLAIN else "the token"
    return f"{security.mechanism} over SASL_PLAINTEXT sends {what} unencrypted; use SASL_SSL"
