"""Presents Tidemark to Airflow as a provider."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from tidemark.model.project.extras import DISTRIBUTION


def get_provider_info() -> dict[str, Any]:
    """Returns what `airflow providers list` shows."""
    return {
        "package-name": DISTRIBUTION,
        "name": "Tidemark",
        "description": "Measures the latency of streams, and launches, supervises and reports on them.",
        "versions": [version(DISTRIBUTION)],
    }
