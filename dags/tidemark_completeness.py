"""Publishes complete intervals of each topology's tables."""

from tidemark_airflow import topology_dags

topology_dags("completeness")
