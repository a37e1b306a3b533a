"""Makes the secrets of docker/compose.yaml in FOLDER, each in a file of its own; those that are there stay.

The folder is its owner's alone. The files in it are readable by all, for in a container another user reads them.
"""

from __future__ import annotations

import base64
import json
import secrets
import sys
from pathlib import Path


def make_secrets(folder: Path) -> None:
    """Makes all secrets that containers look for under /run/secrets."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    database = _kept(folder / "postgres_password", secrets.token_urlsafe(24))
    _kept(folder / "airflow_database", f"postgresql+psycopg2://airflow:{database}@postgres/airflow")
    _kept(folder / "airflow_fernet_key", base64.urlsafe_b64encode(secrets.token_bytes(32)).decode())
    _kept(folder / "airflow_secret_key", secrets.token_urlsafe(32))
    _kept(folder / "airflow_jwt_secret", secrets.token_urlsafe(64))
    _kept(
        folder / "spark_secrets",
        f"spark.authenticate true\nspark.authenticate.secret {secrets.token_urlsafe(32)}\n",
    )
    _kept(folder / "airflow_passwords", json.dumps({"admin": secrets.token_urlsafe(12)}))


def _kept(file: Path, made: str) -> str:
    """Returns the content of *file*, which gets the text *made* if there is no such file."""
    if not file.exists():
        file.touch(mode=0o444)
        file.chmod(0o644)
        file.write_text(made, encoding="utf-8")
        file.chmod(0o444)
    return file.read_text(encoding="utf-8")


if __name__ == "__main__":
    make_secrets(Path(sys.argv[1]))
