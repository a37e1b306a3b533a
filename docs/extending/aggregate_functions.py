"""The product of whole numbers."""

import polars as pl

from tidemark.kernels.aggregates.function import KEY, AggregateFunction
from tidemark.model.settings.aggregate_functions import AGGREGATE_FUNCTIONS, FunctionFacts


class Product(AggregateFunction):
    of_numbers = True

    @property
    def schema(self):
        return {self.state: pl.Int64()}

    def of_rows(self, rows):
        return {self.state: pl.col(self.column).cast(pl.Int64).fill_null(1)}

    def merged(self):
        return {self.state: pl.col(self.state).product()}

    def running(self, states):
        return states.select(pl.col(self.state).cum_prod().over(KEY)).to_series()


AGGREGATE_FUNCTIONS.register("product", FunctionFacts(calculation="my_package.product:Product", changes_often=True))
