"""The table of `autogluon_equal_time.py`."""

from __future__ import annotations

from typing import Any

import pandas as pd

METRICS = ("WQL", "MASE")


def summarise_fits(fits: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a row per setting and side, with means over the seeds."""
    rows = []
    keys = ["setting", "seconds", "side"]
    for (name, seconds, side), own in fits.groupby(keys, sort=False):
        row: dict[str, Any] = {"setting": name, "limit, s": seconds, "side": side}
        row["seeds"] = len(own)
        row |= {"fit, s": own["fit"].mean(), "steps": own["steps"].mean()}
        for metric in METRICS:
            mean, deviation = own[metric].mean(), own[metric].std(ddof=1)
            row[metric] = f"{mean:.3f} ± {deviation:.3f}"
        rows.append(row)
    return rows


AUTOGLUON_COLUMNS = {
    **{
        "setting": "{}",
        "limit, s": "{:.0f}",
        "side": "{}",
        "fit, s": "{:.0f}",
        "steps": "{:,.0f}",
    },
    **{"WQL": "{}", "MASE": "{}", "seeds": "{}"},
}
