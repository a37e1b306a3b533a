"""Tidemark in Airflow: `topology_dags()` in a DAG file makes all DAGs.

| name | gives |
|---|---|
| `topology_dags` | the DAGs of all topologies of the project |
| `refuse_mistakes` | an import error that shows mistakes of topologies, SLAs and channels |
| `stream_table`, `table_asset` | tables as assets, on which other DAGs can be scheduled |
| `complete_table` | complete intervals of a table as an asset, for partitioned schedules |
| `OneRunPerInterval` | the first task of a DAG whose run is cleared when its interval is reopened |
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_MODULES = {
    "OneRunPerInterval": "operators.assets",
    "complete_table": "operators.assets",
    "refuse_mistakes": "dags.mistakes",
    "stream_table": "operators.assets",
    "table_asset": "operators.assets",
    "topology_dags": "dags.factory",
}


def __getattr__(name: str) -> Any:
    """Imports *name* from its module."""
    if name not in _MODULES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    # Only when it is used: every part of Airflow imports this package for its plugins.
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
