"""Compares the rows of a range with the rules of a Delta table, before the range is promised."""

from collections.abc import Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sparkwal.errors import PlanError, ReadError
from sparkwal.format.lifecycle_record import Target
from sparkwal.format.schema import quoted
from sparkwal.lifecycle.delta.row_rules import RowRule
from sparkwal.spark.keyed_rows import after_merge, same_keys
from sparkwal.spark.readable import is_sparkwal_error, one_line


def replacing_rows(
    winners: DataFrame, table: DataFrame, target: Target, lacking: Sequence[str]
) -> DataFrame:
    """The rows that a MERGE writes, without those that are older than the table's row of their key.

    A row that replaces another keeps the values of the columns that its record lacks.

    Args:
        winners: one row for each key, without deletes, with COLUMNS.
        table: the table's rows.
        target: how the rows go into the table.
        lacking: columns of the table that no record has.
    """
    rows = winners.alias("s").join(table.alias("t"), same_keys(target.keys), "left")
    if target.sequence_by:
        old, new = (F.col(f"{side}.{quoted(target.sequence_by)}") for side in "ts")
        rows = rows.where(old.isNull() | F.coalesce(new >= old, F.lit(False)))
    names = [*winners.columns, *lacking]
    after = after_merge(names, target.keys, winners.columns, table.columns)
    return rows.select(*(value.alias(name) for name, value in after.items()))


def check_rules(rows: DataFrame, rules: Sequence[RowRule], table: str, range_name: str) -> None:
    """Check that no row breaks a rule, with one read of the rows.

    Args:
        rows: the rows that the table would get.
        rules: the rules. One that names a column that the rows lack is left out.
        table: the table's URL, for messages.
        range_name: the range, for messages.

    Raises:
        PlanError: a row breaks a rule.
        ReadError: the log is unreadable.
    """
    evaluable = [rule for rule in rules if _is_evaluable(rows, rule)]
    if not evaluable:
        return
    counts = (F.count_if(F.expr(rule.broken)) for rule in evaluable)
    try:
        (counted,) = rows.agg(*counts).collect()
    except Exception as error:
        if is_sparkwal_error(error):
            raise ReadError(f"{range_name} cannot be read: {one_line(error)}") from error
        raise PlanError(f"the rules of {table} fail on {range_name}: {one_line(error)}") from error
    for rule, number in zip(evaluable, counted, strict=True):
        if number:
            raise PlanError(
                f"{table} refuses {number} rows of {range_name}, because {rule.text}: {rule.advice}"
            )


def _is_evaluable(rows: DataFrame, rule: RowRule) -> bool:
    """Whether the rows have each column that the rule names."""
    try:
        return bool(rows.select(F.expr(rule.broken)).columns)
    except AnalysisException:
        return False
