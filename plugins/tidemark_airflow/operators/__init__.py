"""Tasks of DAGs: drivers, batch jobs, alerts, and assets."""
