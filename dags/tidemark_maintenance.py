"""Keeps each topology's tables small, by a daily DAG per topology."""

from tidemark.airflow import topology_dags

topology_dags("maintenance")
