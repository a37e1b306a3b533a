"""Judges small frames by great-expectations suites (ring 2, the only module that imports it, which costs 2 to 5 s).

Frames are pandas': a suite over a dozen rows takes 50 ms, on Spark some seconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import great_expectations as gx
import pandas as pd
from great_expectations.data_context.types.base import (
    DataContextConfig,
    InMemoryStoreBackendDefaults,
    ProgressBarsConfig,
)

from tidemark.spec.project import CHECKOUT

SUITES = CHECKOUT / "expectations"
PLACE = "place"
"""The column by which great-expectations tells rows apart."""


class Quality:
    """Suites, one JSON file each, run in a context that leaves nothing behind and tells nobody."""

    def __init__(self) -> None:
        settings = DataContextConfig(
            store_backend_defaults=InMemoryStoreBackendDefaults(),  # no Data Docs: they do not escape what they show
            analytics_enabled=False,
            progress_bars=ProgressBarsConfig(globally=False),
        )
        context = gx.get_context(mode="ephemeral", project_config=settings)
        self._frames = context.data_sources.add_pandas("frames")

    def check(self, suite: str, frame: pd.DataFrame, **parameters: object) -> list[dict[str, Any]]:
        """Rows of dq_results, one per expectation of *suite*, without the columns that say of which check.

        *parameters* take the places that the suite marks with `$PARAMETER`.
        """
        return [_row(suite, result) for result in self._results(suite, frame, expectation_parameters=parameters)]

    def check_each(self, suite: str, frame: pd.DataFrame) -> Iterator[tuple[int, dict[str, Any]]]:
        """As `check`, but each row of *frame* is judged by itself: its place in it, and a row of dq_results for it.

        Expectations are about one column of counts each; a row without a count there has no result.
        """
        if frame.empty:
            return
        located = frame.assign(**{PLACE: range(len(frame))})
        form = {"result_format": "COMPLETE", "unexpected_index_column_names": [PLACE]}
        for result in self._results(suite, located, result_format=form):
            row, column = _row(suite, result), result.expectation_config.kwargs["column"]
            raised = bool(_errors(result.exception_info or {}))
            broken = {int(at[PLACE]) for at in (result.result or {}).get("unexpected_index_list") or ()}
            for place, count in enumerate(frame.get(column, ())):
                if pd.notna(count):
                    is_broken = raised or place in broken
                    one = {"observed": str(int(count)), "unexpected_count": int(is_broken)}
                    yield place, {**row, **one, "success": not is_broken}

    def _results(self, suite: str, frame: pd.DataFrame, **how: Any) -> list[Any]:
        expectations = gx.ExpectationSuite(**json.loads((SUITES / f"{suite}.json").read_text(encoding="utf-8")))
        whole = self._frames.add_dataframe_asset(suite).add_batch_definition_whole_dataframe("whole")
        return list(whole.get_batch({"dataframe": frame}).validate(expectations, **how).results)


def _row(suite: str, result: Any) -> dict[str, Any]:
    expectation, seen = result.expectation_config, result.result or {}
    observed = seen.get("observed_value", seen.get("partial_unexpected_list"))
    if observed is None:
        observed = [error["exception_message"] for error in _errors(result.exception_info or {})]
    return {
        "suite": suite,
        "expectation": expectation.type,
        "column": _judged(expectation.kwargs),
        "severity": str(expectation.severity.value),
        "success": bool(result.success),
        "observed": json.dumps(observed, default=_plain),
        "unexpected_count": seen.get("unexpected_count"),
    }


def _judged(kwargs: Mapping[str, Any]) -> str | None:
    """The column or columns that an expectation is about; None: the frame."""
    names = [kwargs[key] for key in ("column", "column_A", "column_B") if key in kwargs] or kwargs.get(
        "column_list", []
    )
    return ", ".join(names) or None


def _errors(info: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What was raised, whether great-expectations tells it of the expectation or of each of its metrics."""
    found = [info] if "raised_exception" in info else list(info.values())
    return [error for error in found if error["raised_exception"]]


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's, anything else as text."""
    return value.item() if hasattr(value, "item") else str(value)
