"""Presents Tidemark to Airflow as a provider."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any


def get_provider_info() -> dict[str, Any]:
    """Returns what `airflow providers list` shows."""
    return {
        "package-name": "tidemark",
        "name": "Tidemark",
        "description": "Measures the latency of streams, and launches, supervises and reports on them.",
        "versions": [version("tidemark")],
    }
