"""Launches and supervises each topology's streams."""

# Airflow imports its modules that a DAG file names once, and then forks a process for each parse of any file. Without
# this line each process would import the Spark provider: two thirds of the CPU time of a parse.
import airflow.providers.apache.spark.operators.spark_submit  # noqa: F401

from tidemark_airflow import topology_dags

topology_dags("streams")
