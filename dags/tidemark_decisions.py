"""Asks people about repairs of each topology's streams."""

from tidemark.airflow import topology_dags

topology_dags("decisions")
