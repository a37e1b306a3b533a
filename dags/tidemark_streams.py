"""Launches and supervises each topology's streams."""

from tidemark.airflow import topology_dags

topology_dags("streams")
