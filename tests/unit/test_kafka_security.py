"""Security of Kafka clusters: settings of both clients, and mistakes."""

from __future__ import annotations

import json
import pickle
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from unit.kafka_settings import ACCEPTED, OF_JAVA, OF_LIBRDKAFKA, REFUSED

from tidemark.errors import InvalidArgument, InvalidSpec
from tidemark.model.project.connections import Cluster, addressed_clusters, in_clear, read_clusters
from tidemark.model.project.secrets import Vault, read_given
from tidemark.stream.driver.reason import as_reason

HIDDEN = "hunter2-canary"
HIDDEN_NUMBER = 918273645
SCRAM = """
bootstrap = "b:9093"
security_protocol = "SASL_SSL"
sasl_mechanism = "SCRAM-SHA-512"
username = "ann"
password = { env = "KAFKA_PASSWORD" }
ssl_ca = "ca.pem"
"""
MTLS = """
bootstrap = "b:9094"
security_protocol = "SSL"
ssl_ca = "ca.pem"
ssl_certificate = "client.pem"
ssl_key = "client.key"
ssl_key_password = { file = "key.password" }
"""
TOKENS = """
bootstrap = "b:9095"
security_protocol = "SASL_SSL"
sasl_mechanism = "OAUTHBEARER"
token_url = "https://login.example.org/token"
client_id = "tidemark"
client_secret = { airflow = "kafka_eu" }
scope = "kafka"
"""
UNSAFE = "kafka.eu.token_url: begins with http://, so the client's secret would cross the network unencrypted; write h"
PEM = "-----BEGIN {0}-----\nAAAA\n-----END {0}-----"
CA, CERTIFICATE, KEY = PEM.format("CERTIFICATE"), PEM.format("CERTIFICATE") + "\n", PEM.format("PRIVATE KEY")


def cluster(toml: str, folder: Path, environ: dict[str, str] | None = None, **secrets: str) -> Cluster:
    """Returns the cluster `eu` of *toml* in a process with *environ*."""
    (folder / "ca.pem").write_text(CA + "\n")
    (folder / "client.pem").write_text(CERTIFICATE)
    (folder / "client.key").write_text(KEY + "\n")
    (folder / "key.password").write_text(HIDDEN + "\n")
    clusters = read_clusters("t.toml", {"eu": tomllib.loads(toml)}, folder)
    given = {f"eu.{key}": value for key, value in secrets.items()}
    return addressed_clusters(["eu"], clusters, [], environ or {}, secrets=given)["eu"]


def refusal(toml: str) -> str:
    with pytest.raises(InvalidSpec) as refused:
        read_clusters("t.toml", {"eu": tomllib.loads(toml)})
    return str(refused.value)


def test_scram_reaches_both_clients(tmp_path: Path) -> None:
    of = cluster(SCRAM, tmp_path, {"KAFKA_PASSWORD": 'a"b\\c'})
    assert of.client == {
        "bootstrap.servers": "b:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": "ann",
        "sasl.password": 'a"b\\c',
        "ssl.ca.pem": CA,
    }
    assert of.spark == {
        "kafka.bootstrap.servers": "b:9093",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="ann" password="a\\"b\\\\c";',
        "kafka.ssl.truststore.certificates": CA,
        "kafka.ssl.truststore.type": "PEM",
    }


def test_plain_has_another_login_module(tmp_path: Path) -> None:
    of = cluster(SCRAM.replace("SCRAM-SHA-512", "PLAIN"), tmp_path, {"KAFKA_PASSWORD": "p"})
    assert of.client["sasl.mechanisms"] == "PLAIN"
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    assert of.spark["kafka.sasl.jaas.config"] == f'{module} required username="ann" password="p";'


def test_a_client_certificate_reaches_both_clients(tmp_path: Path) -> None:
    of = cluster(MTLS, tmp_path)
    assert of.client == {
        "bootstrap.servers": "b:9094",
        "security.protocol": "SSL",
        "ssl.ca.pem": CA,
        "ssl.certificate.pem": CERTIFICATE.strip(),
        "ssl.key.pem": KEY,
        "ssl.key.password": HIDDEN,
    }
    assert of.spark == {
        "kafka.bootstrap.servers": "b:9094",
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": CA,
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.certificate.chain": CERTIFICATE.strip(),
        "kafka.ssl.keystore.key": KEY,
        "kafka.ssl.key.password": HIDDEN,
    }


def test_client_credentials_reach_both_clients(tmp_path: Path) -> None:
    of = cluster(TOKENS, tmp_path, client_secret=HIDDEN)
    assert of.client == {
        "bootstrap.servers": "b:9095",
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": "https://login.example.org/token",
        "sasl.oauthbearer.client.id": "tidemark",
        "sasl.oauthbearer.client.secret": HIDDEN,
        "sasl.oauthbearer.scope": "kafka",
    }
    package = "org.apache.kafka.common.security.oauthbearer"
    assert of.spark == {
        "kafka.bootstrap.servers": "b:9095",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.jaas.config": f"{package}.OAuthBearerLoginModule required "
        f'clientId="tidemark" clientSecret="{HIDDEN}" scope="kafka";',
        "kafka.sasl.login.callback.handler.class": f"{package}.OAuthBearerLoginCallbackHandler",
        "kafka.sasl.oauthbearer.token.endpoint.url": "https://login.example.org/token",
    }


def test_settings_have_the_name_of_each_client(tmp_path: Path) -> None:
    """librdkafka refuses names that only Java has."""
    of = cluster(
        'bootstrap = "b:1"\nsecurity_protocol = "SSL"\n'
        '[settings]\n"client.rack" = "a"\n"request.timeout.ms" = 5000\n"check.crcs" = true\n'
        '"ssl.endpoint.identification.algorithm" = ""\n"broker.address.family" = "v4"\n'
        '"default.api.timeout.ms" = 9000\n',
        tmp_path,
    )
    assert of.client == {
        "bootstrap.servers": "b:1",
        "security.protocol": "SSL",
        "client.rack": "a",
        "socket.timeout.ms": 5000,
        "check.crcs": True,
        "ssl.endpoint.identification.algorithm": "none",
        "broker.address.family": "v4",
    }
    assert of.spark == {
        "kafka.bootstrap.servers": "b:1",
        "kafka.security.protocol": "SSL",
        "kafka.client.rack": "a",
        "kafka.request.timeout.ms": "5000",
        "kafka.check.crcs": "true",
        "kafka.ssl.endpoint.identification.algorithm": "",
        "kafka.default.api.timeout.ms": "9000",
    }


def test_without_security_only_the_address_is_set(tmp_path: Path) -> None:
    of = cluster('bootstrap = "b:1"', tmp_path)
    assert (of.client, of.spark) == ({"bootstrap.servers": "b:1"}, {"kafka.bootstrap.servers": "b:1"})


def test_an_address_from_elsewhere_keeps_the_security(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text(CA)
    clusters = read_clusters("t.toml", {"eu": tomllib.loads(SCRAM)}, tmp_path)
    of = addressed_clusters(["eu"], clusters, [("eu", "other:1")], {"KAFKA_PASSWORD": "p"})["eu"]
    assert (of.client["bootstrap.servers"], of.client["security.protocol"]) == ("other:1", "SASL_SSL")


def test_no_text_of_a_cluster_has_its_secret(tmp_path: Path) -> None:
    of = cluster(SCRAM, tmp_path, {"KAFKA_PASSWORD": HIDDEN})
    assert of.client["sasl.password"] == HIDDEN
    assert HIDDEN not in f"{of!r} {of} {vars(of)} {of.references}"
    assert HIDDEN.encode() not in pickle.dumps(of)


def test_an_error_that_quotes_a_secret_hides_it(tmp_path: Path) -> None:
    """Plans in errors of Spark have the options of sources."""
    lines = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC\nBKcwggSjAgEAAoIBAQDjHrK8ceTIPoPL"
    key = KEY.replace("AAAA", lines)
    scram = cluster(SCRAM, tmp_path, {"KAFKA_PASSWORD": 'hunter2\\"canary'})
    mtls = cluster(MTLS, tmp_path)
    (tmp_path / "client.key").write_text(key)
    options = [*scram.spark.values(), *mtls.spark.values()]
    plan = f"AnalysisException: no column x;\n~StreamingRelationV2 DataSource({', '.join(options)})"
    reason = as_reason(RuntimeError(f"{plan}\n{json.dumps(scram.client)}\n  {key.splitlines()[2]} ann"))
    for secret in ("hunter2", "canary", *key.splitlines()[1:3]):
        assert secret not in reason
    assert reason.endswith("  ***** ann")


def test_what_airflow_has_to_look_up_is_known_by_place(tmp_path: Path) -> None:
    of = cluster(TOKENS.replace('client_id = "tidemark"', 'client_id = { airflow = "kafka_eu" }'), tmp_path)
    kept = {place: (value.name, value.field) for place, value in of.references.items()}
    assert kept == {"eu.client_id": ("kafka_eu", "login"), "eu.client_secret": ("kafka_eu", "password")}
    with pytest.raises(InvalidArgument, match=r"kafka.eu.client_id: only Airflow reads Airflow's connection kafka_eu"):
        of.spark  # noqa: B018


@pytest.mark.parametrize(
    ("old", "new", "seen"),
    [
        ("", "x = 1", "t.toml: kafka.eu.x: is not a valid key here; known keys: bootstrap,"),
        ('"SASL_SSL"', '"TLS"', "kafka.eu.security_protocol: is 'TLS'; use one of PLAINTEXT, SSL, SASL_PLAINTEXT"),
        ('"SASL_SSL"', '"SSL"', "kafka.eu.sasl_mechanism: is 'SCRAM-SHA-512', but security_protocol is SSL, without"),
        ('sasl_mechanism = "SCRAM-SHA-512"', "", "kafka.eu.sasl_mechanism: is missing, and security_protocol is SASL_"),
        ('"SCRAM-SHA-512"', '"GSSAPI"', "sasl_mechanism: is 'GSSAPI'; use one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        (
            'username = "ann"',
            "",
            "kafka.eu.username: is missing, and sasl_mechanism is SCRAM-SHA-512; write username =",
        ),
        ("", 'token_url = "https://x"', "kafka.eu.token_url: is written, but sasl_mechanism is SCRAM-SHA-512; leave"),
        ("SASL_SSL", "SASL_PLAINTEXT", "ssl_ca: is written, but security_protocol is SASL_PLAINTEXT, without TLS;"),
        ("", 'ssl_key = "k.pem"', "kafka.eu.ssl_key: is written without ssl_certificate; write ssl_certificate, too"),
        ('{ env = "KAFKA_PASSWORD" }', '{ env = "A", file = "b" }', "kafka.eu.password: names env and file; write ex"),
        ('{ env = "KAFKA_PASSWORD" }', "{}", "kafka.eu.password: names no place; write exactly one of env, file, air"),
        ('{ env = "KAFKA_PASSWORD" }', '{ env = "A", x = 1 }', "kafka.eu.password.x: is not a valid key here"),
        (
            '{ env = "KAFKA_PASSWORD" }',
            '{ file = "A", field = "b" }',
            "kafka.eu.password.field: is set, but the place is",
        ),
        (
            "",
            '[settings]\n"sasl.username" = "u"',
            "settings.sasl.username: has a key of its own in [kafka.eu]; use that",
        ),
        ("", '[settings]\n"group.id" = "g"', "kafka.eu.settings.group.id: is set by Tidemark; leave it out"),
        (
            "",
            '[settings]\n"sasl.oauthbearer.extensions" = "a=b"',
            "kafka.eu.settings.sasl.oauthbearer.extensions: needs OAUTHBEARER; leave it out",
        ),
        (
            "",
            '[settings]\n"isolation.level" = "committed"',
            "settings.isolation.level: is 'committed'; use one of read_committed, read_uncommitted",
        ),
        ("", "settings = 5", "kafka.eu.settings: is 5; write settings ="),
    ],
)
def test_mistakes_name_key_and_remedy(old: str, new: str, seen: str) -> None:
    assert seen in refusal(SCRAM.replace(old, new) if old else f"{SCRAM}{new}\n")


@pytest.mark.parametrize(
    "written",
    [
        SCRAM.replace('{ env = "KAFKA_PASSWORD" }', f'"{HIDDEN}"'),
        SCRAM.replace('{ env = "KAFKA_PASSWORD" }', f'{{ env = "{HIDDEN}" }}'),
        SCRAM.replace('{ env = "KAFKA_PASSWORD" }', f'["{HIDDEN}"]'),
        f'{SCRAM}[settings]\n"x.password" = "{HIDDEN}"\n',
        f'{SCRAM}[settings]\n"x.secret" = {HIDDEN_NUMBER}\n',
        f'{SCRAM}colour = "{HIDDEN}"\n',
        MTLS.replace('"client.key"', f'"""-----BEGIN PRIVATE KEY-----\n{HIDDEN}"""'),
    ],
)
def test_a_secret_in_the_file_is_refused_unsaid(written: str) -> None:
    said = refusal(written)
    assert "t.toml: kafka.eu." in said
    assert HIDDEN not in said
    assert str(HIDDEN_NUMBER) not in said


def test_a_secret_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidArgument, match=r"kafka.eu.password: environment variable KAFKA_PASSWORD is not set; set"
    ):
        cluster(SCRAM, tmp_path).client  # noqa: B018
    with pytest.raises(InvalidArgument, match=r"kafka.eu.password: environment variable KAFKA_PASSWORD is empty"):
        cluster(SCRAM, tmp_path, {"KAFKA_PASSWORD": ""}).client  # noqa: B018
    without = cluster(MTLS, tmp_path)
    (tmp_path / "client.key").unlink()
    with pytest.raises(InvalidArgument, match=r"kafka.eu.ssl_key: file .*client.key: No such file or directory; corr"):
        without.client  # noqa: B018


def test_a_file_of_another_form_is_refused_unsaid(tmp_path: Path) -> None:
    of = cluster(MTLS, tmp_path)
    (tmp_path / "client.key").write_text(f"-----BEGIN RSA PRIVATE KEY-----\n{HIDDEN}")
    with pytest.raises(InvalidArgument, match=r"kafka.eu.ssl_key: Java cannot read .*openssl pkcs8 -topk8") as refused:
        of.client  # noqa: B018
    (tmp_path / "client.key").write_text(HIDDEN)
    with pytest.raises(InvalidArgument, match=r"kafka.eu.ssl_key: is not PEM") as other:
        of.client  # noqa: B018
    assert HIDDEN not in f"{refused.value}{other.value}"


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        ("http://login.example.org/token", UNSAFE),
        ("http://127.0.0.1.example.org/token", UNSAFE),
        ("HTTP://login.example.org/token", UNSAFE),
        ("https://login.example.org/token", None),
        ("http://127.0.0.1:8080/token", None),
        ("http://[::1]:8080/token", None),
        ("http://localhost/token", None),
    ],
)
def test_tokens_come_by_https_or_the_loopback(url: str, seen: str | None, tmp_path: Path) -> None:
    written = TOKENS.replace("https://login.example.org/token", url)
    placed = TOKENS.replace('"https://login.example.org/token"', '{ env = "URL" }')
    of = cluster(placed, tmp_path, {"URL": url}, client_secret="s")
    if seen:
        assert seen in refusal(written)
        for settings in ("client", "spark"):
            with pytest.raises(InvalidArgument, match=re.escape(seen)):
                getattr(of, settings)
    else:
        assert of.client == cluster(written, tmp_path, client_secret="s").client


@pytest.mark.parametrize(
    "url", ["login.example.org/token", "file:///etc/token", "https:///token", "https://[::1/token"]
)
def test_a_token_url_is_an_address(url: str) -> None:
    seen = "kafka.eu.token_url: is not an address of a token endpoint; write https://HOST/PATH"
    assert seen in refusal(TOKENS.replace("https://login.example.org/token", url))


def test_a_token_url_has_no_login() -> None:
    said = refusal(TOKENS.replace("https://login", f"https://ann:{HIDDEN}@login"))
    assert "kafka.eu.token_url: has a login, which messages would show; write client_id and client_secret" in said
    assert HIDDEN not in said


def test_extensions_reach_both_clients(tmp_path: Path) -> None:
    table = '[settings]\n"sasl.oauthbearer.extensions" = '
    of = cluster(f'{TOKENS}{table}"logicalCluster=lkc-1,poolId=a=b"', tmp_path, client_secret="s")
    assert of.client["sasl.oauthbearer.extensions"] == "logicalCluster=lkc-1,poolId=a=b"
    assert of.spark["kafka.sasl.jaas.config"].endswith(
        ' scope="kafka" extension_logicalCluster="lkc-1" extension_poolId="a=b";'
    )
    assert "kafka.sasl.oauthbearer.extensions" not in of.spark
    seen = "settings.sasl.oauthbearer.extensions: is not a list of pairs; write NAME=VALUE with commas between them"
    for text in ('"a"', '"a=b,"', '"auth=x"', '"a-b=c"', "5"):
        assert seen in refusal(f"{TOKENS}{table}{text}")
    placed = cluster(f'{TOKENS}{table}{{ env = "PAIRS" }}', tmp_path, {"PAIRS": "no pair"}, client_secret="s")
    with pytest.raises(InvalidArgument, match=f"kafka.eu.{seen}"):
        placed.spark  # noqa: B018


@pytest.mark.parametrize(("reason", "names"), REFUSED.items())
def test_a_setting_without_effect_is_refused_with_its_reason(reason: str, names: frozenset[str]) -> None:
    for name in names:
        assert f"t.toml: kafka.eu.settings.{name}: " in (said := refusal(f'{TOKENS}[settings]\n"{name}" = "1"\n'))
        assert reason in said


def test_a_setting_of_a_login_that_is_not_there_is_refused() -> None:
    for name, needed in (
        ("sasl.login.connect.timeout.ms", "OAUTHBEARER"),
        ("sasl.oauthbearer.sub.claim.name", "OAUTHBEARER"),
        ("https.ca.pem", "OAUTHBEARER"),
        ("sasl.login.class", "a login"),
        ("ssl.cipher.suites", "TLS"),
    ):
        said = refusal(f'bootstrap = "b:1"\n[settings]\n"{name}" = {{ env = "X" }}\n')
        assert f"t.toml: kafka.eu.settings.{name}: needs {needed}; leave it out, or write" in said


def settings_of(names: Iterable[str], folder: Path) -> Cluster:
    """Returns a cluster that has each of *names* as a setting, with a value that hardly any takes."""
    settings = "\n".join(f'"{name}" = {{ env = "X" }}' for name in names if name != "isolation.level")
    return cluster(f"{TOKENS}[settings]\n{settings}\n", folder, {"X": "a=1"}, client_secret="s")


def test_librdkafka_knows_each_setting_that_it_gets(tmp_path: Path) -> None:
    seen = []
    for name in sorted(ACCEPTED & OF_JAVA):
        given = {key: value for key, value in settings_of([name], tmp_path).client.items() if value == "a=1"}
        try:
            Producer({"bootstrap.servers": "b:1", **given, "log_level": 0})
        except KafkaException as error:
            seen.append(error.args[0].str())
    assert any("Invalid value" in words for words in seen)
    assert [words for words in seen if "No such configuration property" in words] == []


def test_java_gets_only_settings_that_it_knows(tmp_path: Path) -> None:
    given = {name.removeprefix("kafka.") for name in settings_of(sorted(ACCEPTED), tmp_path).spark}
    assert given & OF_LIBRDKAFKA <= OF_JAVA


def test_a_login_in_the_clear_is_a_warning(tmp_path: Path) -> None:
    open_ = SCRAM.replace("SASL_SSL", "SASL_PLAINTEXT").replace('ssl_ca = "ca.pem"', "")
    plain = cluster(open_.replace("SCRAM-SHA-512", "PLAIN"), tmp_path)
    assert in_clear({"eu": plain, "us": cluster(open_, tmp_path), "default": Cluster("b:1")}) == [
        "kafka.eu.security_protocol: warning: PLAIN over SASL_PLAINTEXT sends the password unencrypted; use SASL_SSL"
    ]


def test_the_file_of_secrets_is_json_and_unsaid(tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    file.write_text(json.dumps({"eu.password": HIDDEN}))
    assert read_given(file) == {"eu.password": HIDDEN}
    for text in (HIDDEN, f'["{HIDDEN}"]', '{"eu.password": 5}'):
        file.write_text(text)
        with pytest.raises(InvalidArgument, match=r"s.json: is not a JSON object of strings") as refused:
            read_given(file)
        assert HIDDEN not in str(refused.value)
    with pytest.raises(InvalidArgument, match=r"--secrets .*: No such file"):
        read_given(tmp_path / "gone.json")


def test_a_vault_shows_nothing() -> None:
    assert HIDDEN not in repr(Vault({"A": HIDDEN}, {"b": HIDDEN}))
