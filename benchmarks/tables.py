"""Results of the benchmarks as tables for the documentation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd


def markdown(rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str]) -> str:
    """Return rows as a Markdown table, with a dash where a value is missing.

    Parameters
    ----------
    rows
        Values by column.
    columns
        The columns, and how their cells are written, e.g. ``"{:.2f}"``.
    """
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for row in rows:
        cells = [
            "–" if pd.isna(row.get(name)) else form.format(row[name])
            for name, form in columns.items()
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
