"""A warehouse of a test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.report_warehouse import TestWarehouse
from tidemark.model.project.layout import Layout


@pytest.fixture
def warehouse(tmp_path: Path) -> TestWarehouse:
    return TestWarehouse(Layout(tmp_path))
