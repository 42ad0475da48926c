"""Columns of a table: which one holds the timestamps, the names and the targets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from pts_scott._utils.arguments import nearest
from pts_scott._utils.text import shorten
from pts_scott.errors import ArgumentError, FileLayoutError

TIMESTAMPS = ("timestamp", "date", "ds", "time")
ITEM_IDS = ("item_id", "unique_id")
TARGETS = ("target", "y", "value")


@dataclass(frozen=True)
class Columns:
    """Column names given by the user; None where the usual names are searched."""

    timestamp: str | None = None
    item_id: str | None = None
    target: str | None = None
    known: tuple[str, ...] = ()
    past: tuple[str, ...] = ()

    def reject(self, reason: str) -> None:
        """Raise if any column is named although there are no columns."""
        given = [name for name, value in vars(self).items() if value]
        if given:
            one = len(given) == 1
            names, it = ("names a column", "it") if one else ("name columns", "them")
            raise ArgumentError(
                f"{' and '.join(given)} {names} of a table, but {reason}; omit {it}."
            )


def find_column(
    argument: str,
    given: str | None,
    defaults: tuple[str, ...],
    known: list[str],
    table: str,
) -> str | None:
    """Return the given column, else the one with a usual name, if there is one.

    Raises
    ------
    FileLayoutError
        If the given column does not exist, or several have a usual name.
    """
    if given is None:
        by_lower_case = {name.lower(): name for name in reversed(known)}
        found = [by_lower_case[d] for d in defaults if d in by_lower_case]
        if len(found) > 1 and argument != "timestamp":
            raise FileLayoutError(
                f"{table} has columns {shorten(found)}, and each could be the "
                f"{argument}; name the right one with {argument}=."
            )
        return found[0] if found else None
    if given not in known:
        raise FileLayoutError(
            f"{argument}={given!r}: {table} has no such column. {nearest(given, known)}"
        )
    return given


def find_timestamps(given: str | None, frame: pd.DataFrame, table: str) -> str:
    """Return the column of the timestamps: by name, else by type, else the first."""
    known = list(frame.columns)
    found = find_column("timestamp", given, TIMESTAMPS, known, table)
    if found is None:
        dates = [name for name in known if _holds_dates(frame[name])]
        found = dates[0] if len(dates) == 1 else known[0]
    return found


def _holds_dates(column: pd.Series) -> bool:
    types = pd.DatetimeTZDtype, pd.PeriodDtype
    return column.dtype.kind == "M" or isinstance(column.dtype, types)


def has_name(column: str) -> bool:
    """Return whether a column has a name; the row numbers in a CSV file have none."""
    return not column.startswith("Unnamed: ")


def check_unique(names: list[str], table: str) -> None:
    """Raise if two columns have the same name."""
    repeated = repeated_names(names)
    if repeated:
        raise FileLayoutError(
            f"{table} has columns {shorten(repeated)} more than once; rename them."
        )


def repeated_names(names: Iterable[str]) -> list[str]:
    """Return the names that occur more than once."""
    index = pd.Index(list(names))
    return list(index[index.duplicated()].unique())
