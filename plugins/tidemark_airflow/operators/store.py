"""Finds the warehouse and the credentials of its object store.

Purpose: drivers, jobs and libraries take credentials from the environment. Airflow's connection `tidemark_store` may
keep them instead. Each process of Airflow that uses the warehouse calls `warehouse_at` first. Processes that it starts
inherit its environment; no argument and no log has credentials.

Known limitation: the triggerer and the API server open a store once, so they see a changed connection after a restart.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.log import mask_secret

from tidemark.storage.location import location
from tidemark.storage.object_path import ObjectPath

CONNECTION = "tidemark_store"


def warehouse_at(text: str, connect: Callable[[str], Any] = BaseHook.get_connection) -> Path:
    """Returns the folder *text*, and puts the credentials of its object store into the environment of this process.

    They come from the connection `tidemark_store`, if there is one.

    Args:
        text: a folder, or the URL of one.
        connect: returns a connection by its name. Default: the function for tasks, triggers and the API server.

    Raises:
        InvalidArgument: *text* is no path, or the connection is not one for this store.
    """
    folder = location(text)
    if isinstance(folder, ObjectPath):
        _use_connection(folder, connect)
    return folder


def _use_connection(warehouse: ObjectPath, connect: Callable[[str], Any]) -> None:
    try:
        connection = connect(CONNECTION)
    except AirflowNotFoundException:
        return
    # Parsers of DAGs import this module, and need no settings.
    from tidemark.storage.store_settings import SECRETS, store_variables

    columns = {"login": connection.login, "password": connection.password}
    fields = {**connection.extra_dejson, **{name: value for name, value in columns.items() if value}}
    for name in SECRETS & fields.keys():
        if fields[name]:
            mask_secret(str(fields[name]))
    for variable, value in store_variables(warehouse, CONNECTION, fields).items():
        if value is None:
            os.environ.pop(variable, None)
        else:
            os.environ[variable] = value
