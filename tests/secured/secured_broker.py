"""Starts a Kafka broker with TLS, logins and ACLs.

Certificates, passwords and keys are made for the test. The listener LOGIN takes logins over TLS, CERT takes client
certificates, and INTERNAL, where everyone is a super user, serves the test itself.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclOperation,
    AdminClient,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID

from support import broker_rights
from tidemark.control import process
from tidemark.local import broker as embedded

NAME = "guarded"
TOPICS = ("readings", "by_token", "forbidden", "copies", "closed", "hidden", "direct", "certified")
READER, WRITER, SERVICE = "ann", "writer", "tidemark"
"""Users: one logs in by password, one by certificate, one by token."""
SECURITY = "org.apache.kafka.common.security"
PROPERTIES = """\
process.roles=broker,controller
node.id=1
listeners=INTERNAL://127.0.0.1:{internal},LOGIN://127.0.0.1:{login},CERT://127.0.0.1:{cert},CONTROLLER://127.0.0.1:{control}
advertised.listeners=INTERNAL://127.0.0.1:{internal},LOGIN://127.0.0.1:{login},CERT://127.0.0.1:{cert}
listener.security.protocol.map=INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT,LOGIN:SASL_SSL,CERT:SSL
inter.broker.listener.name=INTERNAL
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers=127.0.0.1:{control}
log.dirs={home}/data
auto.create.topics.enable=false
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
log.retention.ms=-1
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
ssl.keystore.type=PEM
ssl.keystore.location={home}/server.pem
ssl.truststore.type=PEM
ssl.truststore.location={home}/ca.pem
listener.name.cert.ssl.client.auth=required
listener.name.cert.ssl.principal.mapping.rules=RULE:^CN=([^,]+).*$/$1/
listener.name.login.sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512,PLAIN,OAUTHBEARER
listener.name.login.scram-sha-256.sasl.jaas.config={security}.scram.ScramLoginModule required;
listener.name.login.scram-sha-512.sasl.jaas.config={security}.scram.ScramLoginModule required;
listener.name.login.plain.sasl.jaas.config={security}.plain.PlainLoginModule required user_{reader}="{password}";
listener.name.login.oauthbearer.sasl.jaas.config={security}.oauthbearer.OAuthBearerLoginModule required;
listener.name.login.oauthbearer.sasl.server.callback.handler.class={security}.oauthbearer.OAuthBearerValidatorCallbackHandler
sasl.oauthbearer.jwks.endpoint.url=file://{home}/jwks.json
sasl.oauthbearer.expected.audience=kafka
sasl.oauthbearer.expected.issuer=test
"""


@dataclass(frozen=True)
class SecuredBroker:
    """A running broker.

    *home* has the files that it and clients use, *password* is that of READER, *client_secret* that of SERVICE.
    """

    home: Path
    internal: str
    login: str
    cert: str
    password: str
    client_secret: str
    token_url: str

    @property
    def toml(self) -> str:
        """The clusters of a topology: the same broker by four logins.

        `login` has the password in KAFKA_TEST_PASSWORD, `cert` a certificate, `token` a secret that Airflow keeps.
        """
        return "\n".join(
            [
                self._table("login", "SCRAM-SHA-512", 'password = { env = "KAFKA_TEST_PASSWORD" }'),
                self._table("plain", "PLAIN", 'password = { env = "KAFKA_TEST_PASSWORD" }'),
                self._table("wrong", "SCRAM-SHA-256", 'password = { env = "KAFKA_TEST_WRONG" }'),
                f'[kafka.token]\nbootstrap = "{self.login}"\nsecurity_protocol = "SASL_SSL"\n'
                f'sasl_mechanism = "OAUTHBEARER"\ntoken_url = "{self.token_url}"\nclient_id = "{SERVICE}"\n'
                f'client_secret = {{ airflow = "kafka_token" }}\nscope = "kafka"\nssl_ca = "{self.home}/ca.pem"\n',
                f'[kafka.cert]\nbootstrap = "{self.cert}"\nsecurity_protocol = "SSL"\nssl_ca = "{self.home}/ca.pem"\n'
                f'ssl_certificate = "{self.home}/writer.pem"\nssl_key = "{self.home}/writer.key"\n',
            ]
        )

    def _table(self, name: str, mechanism: str, password: str) -> str:
        return (
            f'[kafka.{name}]\nbootstrap = "{self.login}"\nsecurity_protocol = "SASL_SSL"\n'
            f'sasl_mechanism = "{mechanism}"\nusername = "{READER}"\n{password}\nssl_ca = "{self.home}/ca.pem"\n'
        )

    def grant(self, user: str, name: str, operation: AclOperation, kind: ResourceType = ResourceType.TOPIC) -> None:
        """Grants *user* an *operation* on the topic *name*, or on something else of a *kind*."""
        broker_rights.grant(AdminClient({"bootstrap.servers": self.internal}), name, f"User:{user}", operation, kind)


@contextmanager
def granted(home: Path) -> Iterator[SecuredBroker]:
    """Runs the broker with TOPICS and a few rights of users."""
    with secured_broker(home) as broker:
        embedded.create_topics(broker.internal, dict.fromkeys(TOPICS, 1))
        for user, topic, operation in (
            (READER, "readings", AclOperation.READ),
            (SERVICE, "by_token", AclOperation.READ),
            (READER, "forbidden", AclOperation.DESCRIBE),
            (WRITER, "certified", AclOperation.READ),
            (WRITER, "copies", AclOperation.WRITE),
            (WRITER, "direct", AclOperation.WRITE),
            (WRITER, "closed", AclOperation.DESCRIBE),
        ):
            broker.grant(user, topic, operation)
        broker.grant(SERVICE, "tidemark-secured-tokens", AclOperation.READ, ResourceType.GROUP)
        yield broker


@contextmanager
def secured_broker(home: Path) -> Iterator[SecuredBroker]:
    """Runs the broker with its files in *home*."""
    # Characters that JAAS, TOML and JSON would each take for their own.
    password, client_secret = f'p"\\;= {secrets.token_hex(16)}', secrets.token_hex(16)
    signing = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    certificates(home)
    (home / "jwks.json").write_text(json.dumps({"keys": [jwk(signing)]}))
    ports: dict[str, int] = {}
    while len({*ports.values()}) < 4:
        ports = {name: process.free_port() for name in ("internal", "login", "cert", "control")}
    told = password.replace("\\", "\\\\").replace('"', '\\"')  # JAAS
    properties = PROPERTIES.format(
        **ports, home=home, security=SECURITY, reader=READER, password=told.replace("\\", "\\\\")
    )
    (home / "server.properties").write_text(properties)
    (home / "log4j2.properties").write_text(embedded.LOG4J2_PROPERTIES)
    subprocess.run(
        embedded.format_command(embedded.JARS, home, "dGlkZW1hcmtzZWN1cmVk"), check=True, capture_output=True
    )
    options = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.files={home}/jwks.json"
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=file://{home}/jwks.json"
    java_options = f"{os.environ.get('_JAVA_OPTIONS', '')} {options} {allowed}"
    environment = {**process.without_airflow(os.environ), "_JAVA_OPTIONS": java_options}
    server = ThreadingHTTPServer(("127.0.0.1", 0), token_endpoint(signing, client_secret))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        launched = process.launch(NAME, embedded.server_command(embedded.JARS, home), home=home, env=environment)
        addresses = {name: f"127.0.0.1:{ports[name]}" for name in ("internal", "login", "cert")}
        admin = AdminClient({"bootstrap.servers": addresses["internal"], "log_level": 0})
        process.wait_until(lambda: answers(admin), "the broker", 180, by=[launched])
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            info = ScramCredentialInfo(mechanism, 4096)
            upsert = UserScramCredentialUpsertion(READER, info, password.encode())
            for done in admin.alter_user_scram_credentials([upsert]).values():
                done.result(30)
        url = f"http://127.0.0.1:{server.server_port}/token"
        yield SecuredBroker(home, **addresses, password=password, client_secret=client_secret, token_url=url)
    finally:
        process.stop(home, NAME)
        server.shutdown()
        thread.join()
        server.server_close()


def answers(admin: AdminClient) -> bool:
    try:
        return bool(admin.list_topics(timeout=1).brokers)
    except KafkaException:
        return False


def certificates(home: Path) -> None:
    """Writes a CA, and keys with certificates of broker and WRITER.

    WRITER's certificate is signed by an intermediate CA that the broker does not know; its file has both.
    """
    ca_key, ca = signed("test ca", None)
    middle_key, middle = signed("test middle", (ca_key, ca), is_ca=True)
    server_key, server = signed("127.0.0.1", (ca_key, ca))
    writer_key, writer = signed(WRITER, (middle_key, middle))
    (home / "ca.pem").write_bytes(pem(ca))
    (home / "server.pem").write_bytes(private(server_key) + pem(server))
    (home / "writer.pem").write_bytes(pem(writer) + pem(middle))
    (home / "writer.key").write_bytes(private(writer_key))
    (home / "writer.key").chmod(0o600)


Signer = tuple[rsa.RSAPrivateKey, x509.Certificate]


def signed(name: str, by: Signer | None, *, is_ca: bool = False) -> Signer:
    """Returns a key and its certificate, a CA if nothing signs it."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer = subject if by is None else by[1].subject
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=is_ca or by is None, path_length=None), critical=True)
    )
    if name == "127.0.0.1":
        builder = builder.add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(IPv4Address(name)), x509.DNSName("localhost")]), critical=False
        )
    return key, builder.sign(key if by is None else by[0], hashes.SHA256())


def pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def private(key: rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def jwk(key: rsa.RSAPrivateKey) -> dict[str, str]:
    """Returns the public half of *key* as RFC 7517 has it."""
    numbers = key.public_key().public_numbers()
    n, e = (base64url(value.to_bytes((value.bit_length() + 7) // 8, "big")) for value in (numbers.n, numbers.e))
    return {"kty": "RSA", "kid": "k1", "use": "sig", "alg": "RS256", "n": n, "e": e}


def token(key: rsa.RSAPrivateKey) -> str:
    """Returns a signed token of SERVICE for an hour (RFC 7519)."""
    now = int(time.time())
    claims = {"iss": "test", "sub": SERVICE, "aud": "kafka", "iat": now, "exp": now + 3_600, "scope": "kafka"}
    head = {"alg": "RS256", "typ": "JWT", "kid": "k1"}
    body = ".".join(base64url(json.dumps(part).encode()) for part in (head, claims))
    return f"{body}.{base64url(key.sign(body.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


def token_endpoint(key: rsa.RSAPrivateKey, client_secret: str) -> type[BaseHTTPRequestHandler]:
    """Returns a handler that grants tokens to SERVICE (RFC 6749, client credentials)."""
    wanted = "Basic " + base64.b64encode(f"{SERVICE}:{client_secret}".encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            is_known = self.headers.get("Authorization") == wanted and "grant_type=client_credentials" in body
            answer = {"access_token": token(key), "token_type": "Bearer", "expires_in": 3600} if is_known else {}
            text = json.dumps(answer).encode()
            self.send_response(200 if is_known else 401)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    return Handler
