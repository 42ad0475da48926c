"""The table of `autogluon_equal_time.py`."""

from __future__ import annotations

from typing import Any

import pandas as pd

METRICS = ("WQL", "MASE")


def summarise_fits(fits: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a row per setting and side, with means over the seeds."""
    rows = []
    for (name, side), own in fits.groupby(["setting", "side"], sort=False):
        row: dict[str, Any] = {"setting": name, "side": side, "seeds": len(own)}
        row |= {"fit, s": own["fit"].mean(), "steps": own["steps"].mean()}
        for metric in METRICS:
            mean, deviation = own[metric].mean(), own[metric].std(ddof=1)
            row[metric] = f"{mean:.3f} ± {deviation:.3f}"
        rows.append(row)
    return rows


AUTOGLUON_COLUMNS = {
    **{"setting": "{}", "side": "{}", "fit, s": "{:.0f}", "steps": "{:,.0f}"},
    **{"WQL": "{}", "MASE": "{}", "seeds": "{}"},
}
