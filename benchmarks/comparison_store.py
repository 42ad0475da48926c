"""What has been run of the comparison: compressed tables, and tuned configs."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from pts_scott.experiments.results import TEXT_KEYS

#: The optimizers of a control, and whose settings and whose tuned step size they have.
SWAPPED = {
    "Adam": ("Adam", "Adam"),
    "auto Adam, Adam's step size": ("auto Adam", "Adam"),
    "Adam, auto's step size": ("Adam", "auto Adam"),
    "auto Adam": ("auto Adam", "auto Adam"),
}


class Store:
    """The folder of what was run: compressed tables, and tuned configs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, name: str) -> pd.DataFrame:
        """Return a table; empty if nothing is stored yet."""
        path = self._path(name)
        if not path.exists():
            return pd.DataFrame({"setting": []})
        table = pd.read_csv(path)
        text = [column for column in (*TEXT_KEYS, "warnings", "note") if column in table]
        return table.fillna(dict.fromkeys(text, ""))

    def write(self, name: str, table: pd.DataFrame, digits: int) -> None:
        """Write a table; equal content gives an equal file."""
        self.folder.mkdir(parents=True, exist_ok=True)
        table.to_csv(
            self._path(name),
            index=False,
            float_format=f"%.{digits}g",
            compression={"method": "gzip", "mtime": 0},
        )

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.csv.gz"


def missing_controls(runs: pd.DataFrame, controls: pd.DataFrame) -> list[str]:
    """Return the settings with two tuned step sizes and no control with these two.

    Parameters
    ----------
    runs, controls
        Tables of the store.
    """
    if runs.empty:
        return []
    left = []
    for setting, own in runs[runs["optimizer"].isin(SWAPPED)].groupby("setting"):
        sizes = set(own["learning_rate"])
        known = controls[controls["setting"] == setting]
        if len(sizes) > 1 and (known.empty or set(known["learning_rate"]) != sizes):
            left.append(str(setting))
    return left
