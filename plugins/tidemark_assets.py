"""Former place of assets, which DAGs of other teams import."""

from tidemark.airflow.tasks.assets import TableTrigger, stream_table, table_asset

__all__ = ["TableTrigger", "stream_table", "table_asset"]
