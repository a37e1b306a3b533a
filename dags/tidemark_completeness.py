"""Publishes complete intervals of each topology's tables."""

from tidemark.airflow import topology_dags

topology_dags("completeness")
