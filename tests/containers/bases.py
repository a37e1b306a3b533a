"""Makes the images that docker/ begins with, where they cannot be pulled.

Debian's own packages stand in for the official images of Python and PostgreSQL. Where this machine's certificates are
needed to reach package registries, as SSL_CERT_FILE says, an image gets them, pulled or not.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from containers.engine import Engine

PROJECT = Path(__file__).resolve().parents[2]
DEBIAN = "tidemark-base/debian:bookworm"
SUITE = "bookworm"
WITH_CERTIFICATES = "tidemark-base/with-certificates:bookworm"
IMAGE = re.compile(r"\$\{(\w+_IMAGE):-([^}]+)\}")
"""A variable of the compose file, and the image that it has by default."""
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\n?", re.DOTALL)
CERTIFICATE_VARIABLES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")

PYTHON = f"""\
FROM {DEBIAN}
# The packages of Java need a folder that slim images of Debian do not have.
RUN mkdir -p /usr/share/man/man1 && apt-get update \\
    && apt-get install -y --no-install-recommends python3.11 python3.11-venv
"""
POSTGRES = f"""\
FROM {DEBIAN}
RUN apt-get update && apt-get install -y --no-install-recommends postgresql-15 && rm -rf /var/lib/postgresql/* \\
    && install -d -o postgres -g postgres -m 700 /var/lib/postgresql/data \\
    && install -d -o postgres -g postgres -m 3777 /run/postgresql
COPY entrypoint /entrypoint
ENV PATH=/usr/lib/postgresql/15/bin:/usr/bin:/bin PGDATA=/var/lib/postgresql/data LANG=C.UTF-8
VOLUME /var/lib/postgresql/data
ENTRYPOINT ["/entrypoint"]
"""
POSTGRES_ENTRYPOINT = """\
#!/bin/sh
set -eu
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    initdb --username "$POSTGRES_USER" --pwfile "$POSTGRES_PASSWORD_FILE" --auth-host scram-sha-256 --auth-local trust
    echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
    # As in the official image, the server of the initialisation listens on no address.
    pg_ctl --wait -o "-c listen_addresses=''" start
    [ "$POSTGRES_DB" = postgres ] || createdb --username "$POSTGRES_USER" --maintenance-db postgres "$POSTGRES_DB"
    pg_ctl --wait stop
fi
exec postgres -c listen_addresses='*'
"""


def base_images(engine: Engine, folder: Path) -> Mapping[str, str]:
    """Returns the images for the variables of the compose file, such as PYTHON_IMAGE.

    *folder* is for files on the way.
    """
    named = dict(IMAGE.findall((PROJECT / "docker" / "compose.yaml").read_text()))
    images: dict[str, str] = {}
    for name, image in sorted(named.items()):
        if not _can_be_had(engine, image):
            image = _made(engine, name, folder)
        images[name] = image
    # Packages are installed in this one alone.
    images["PYTHON_IMAGE"] = _with_certificates(engine, images["PYTHON_IMAGE"], folder)
    return images


def _can_be_had(engine: Engine, image: str) -> bool:
    here = engine.docker("image", "inspect", image, check=False).returncode == 0
    return here or engine.docker("pull", "--quiet", image, check=False).returncode == 0


def _made(engine: Engine, name: str, folder: Path) -> str:
    if engine.docker("image", "inspect", DEBIAN, check=False).returncode:
        root = folder / "debian"
        command = ["debootstrap", "--variant=minbase", "--include=ca-certificates", SUITE, str(root)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        archive = folder / "debian.tar"
        subprocess.run(["tar", "-C", str(root), "-cf", str(archive), "."], check=True)
        engine.docker("import", str(archive), DEBIAN)
        archive.unlink()
        _remove(root)
    context = folder / name.lower()
    context.mkdir(exist_ok=True)
    image = f"tidemark-base/{name.lower()}:{SUITE}"
    (context / "entrypoint").write_text(POSTGRES_ENTRYPOINT)
    (context / "entrypoint").chmod(0o755)
    (context / "Dockerfile").write_text({"PYTHON_IMAGE": PYTHON, "POSTGRES_IMAGE": POSTGRES}[name])
    engine.docker("build", "--tag", image, str(context))
    return image


def _with_certificates(engine: Engine, image: str, folder: Path) -> str:
    """Returns *image* with the certificates that this machine believes in, if it names a file of them."""
    if not (named := os.environ.get("SSL_CERT_FILE")):
        return image
    context = folder / "with_certificates"
    (context / "certificates").mkdir(parents=True, exist_ok=True)
    # Java's package reads one certificate from each file.
    for place, certificate in enumerate(CERTIFICATE.findall(Path(named).read_text())):
        (context / "certificates" / f"{place:03}.crt").write_text(certificate)
    variables = " ".join(f"{variable}={CERTIFICATES}" for variable in CERTIFICATE_VARIABLES)
    (context / "Dockerfile").write_text(
        f"FROM {image}\nCOPY certificates /usr/local/share/ca-certificates\n"
        f"USER root\nRUN update-ca-certificates\nENV {variables}\n"
    )
    engine.docker("build", "--tag", WITH_CERTIFICATES, str(context))
    return WITH_CERTIFICATES


def _remove(root: Path) -> None:
    # No file system may be mounted there any more: what is removed would be that of this machine.
    subprocess.run(["rm", "--recursive", "--one-file-system", str(root)], check=True)
