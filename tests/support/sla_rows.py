"""The row of an SLA on the page of SLAs, as Airflow's API server shows it."""

from __future__ import annotations

import re
import urllib.request
from html import unescape

from tidemark.local.airflow_api import AirflowApi

ANSWER_WITHIN_S = 120.0


def row_of_page(api: AirflowApi, topology: str, sla: str) -> str:
    """Returns the text of the row; empty if there is none."""
    request = urllib.request.Request(f"{api.url}/tidemark/pages/{topology}/slas")
    request.add_header("Authorization", f"Bearer {api._login()}")
    with urllib.request.urlopen(request, timeout=ANSWER_WITHIN_S) as answer:
        page = answer.read().decode()
    row = page.partition(f'<tr id="{sla}">')[2].partition("</tr>")[0]
    return unescape(re.sub("<[^>]+>", "", row))
