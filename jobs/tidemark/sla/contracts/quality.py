"""Judges small frames by great-expectations suites.

No other module imports great-expectations, which takes 2 to 5 s. Frames are pandas': a suite over a dozen rows takes
50 ms, and on Spark several seconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pandas as pd

from tidemark.sla.contracts.hidden_packages import hidden
from tidemark.sla.contracts.verdicts import read_suite

# Frames need neither Spark nor a database: without these its import takes 47 MB and 0.5 s less.
with hidden("pyspark", "sqlalchemy"):
    import great_expectations as gx
    from great_expectations.core.batch_definition import BatchDefinition
    from great_expectations.data_context.types.base import (
        DataContextConfig,
        InMemoryStoreBackendDefaults,
        ProgressBarsConfig,
    )

POSITION = "position"
"""The column by which great-expectations identifies rows."""


@cache
def _whole_frame() -> BatchDefinition[None]:
    """Returns the definition by which a frame becomes a batch of great-expectations.

    Its context stores nothing and sends no analytics. A process judges one frame at a time: all have the same batch id.
    """
    settings = DataContextConfig(
        # These defaults have no Data Docs, which do not escape what they show.
        store_backend_defaults=InMemoryStoreBackendDefaults(),
        analytics_enabled=False,
        progress_bars=ProgressBarsConfig(globally=False),
    )
    context = gx.get_context(mode="ephemeral", project_config=settings)
    frames = context.data_sources.add_pandas("frames").add_dataframe_asset("frame")
    return frames.add_batch_definition_whole_dataframe("whole")


class Quality:
    """Runs suites, which are one JSON file each."""

    def check(self, suite: str, frame: pd.DataFrame, **parameters: object) -> list[dict[str, Any]]:
        """Returns a row of expectation_results for each expectation of *suite*.

        The columns that identify the check are left out. *parameters* replace `$PARAMETER` in the suite.
        """
        return [_row(suite, result) for result in self._results(suite, frame, expectation_parameters=parameters)]

    def check_each(self, suite: str, frame: pd.DataFrame) -> Iterator[tuple[int, dict[str, Any]]]:
        """Judges each row of *frame* separately.

        Expectations are about one column of counts each. A row without a count there has no result.

        Yields:
            The position of a row in *frame*, and the row of expectation_results for it and one expectation.
        """
        if frame.empty:
            return
        located = frame.assign(**{POSITION: range(len(frame))})
        form = {"result_format": "COMPLETE", "unexpected_index_column_names": [POSITION]}
        for result in self._results(suite, located, result_format=form):
            row, column = _row(suite, result), result.expectation_config.kwargs["column"]
            # An expectation that raised an error is broken for every row.
            raised = bool(_errors(result.exception_info or {}))
            broken = {int(at[POSITION]) for at in (result.result or {}).get("unexpected_index_list") or ()}
            for position, count in enumerate(frame.get(column, ())):
                if pd.notna(count):
                    is_broken = raised or position in broken
                    counted = {"observed": str(int(count)), "unexpected_count": int(is_broken)}
                    yield position, {**row, **counted, "success": not is_broken}

    def _results(self, suite: str, frame: pd.DataFrame, **how: Any) -> list[Any]:
        expectations = gx.ExpectationSuite(**read_suite(suite))
        return list(_whole_frame().get_batch({"dataframe": frame}).validate(expectations, **how).results)


def _row(suite: str, result: Any) -> dict[str, Any]:
    expectation, details = result.expectation_config, result.result or {}
    # Expectations about whole columns have a value, and those about rows a list of broken ones.
    observed = details.get("observed_value", details.get("partial_unexpected_list"))
    if observed is None:
        observed = [error["exception_message"] for error in _errors(result.exception_info or {})]
    return {
        "suite": suite,
        "expectation": expectation.type,
        "column": _judged_columns(expectation.kwargs),
        "severity": str(expectation.severity.value),
        "success": bool(result.success),
        "observed": json.dumps(observed, default=_plain),
        "unexpected_count": details.get("unexpected_count"),
    }


def _judged_columns(kwargs: Mapping[str, Any]) -> str | None:
    """Returns the columns that an expectation is about, separated by commas; None if it is about the whole frame."""
    singles = [kwargs[key] for key in ("column", "column_A", "column_B") if key in kwargs]
    names = singles or kwargs.get("column_list", [])
    return ", ".join(names) or None


def _errors(info: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the errors that an expectation raised."""
    # great-expectations reports errors either for the expectation or for each of its metrics.
    entries = [info] if "raised_exception" in info else list(info.values())
    return [error for error in entries if error["raised_exception"]]


def _plain(value: Any) -> Any:
    """Converts NumPy's numbers to Python's, and anything else to text."""
    return value.item() if hasattr(value, "item") else str(value)
