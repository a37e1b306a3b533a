"""Pages and JSON in Airflow's API server."""
