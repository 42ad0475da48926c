"""What has been run of the comparison: compressed tables, and tuned configs."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from pts_scott.experiments.results import TEXT_KEYS

#: By update rule, the optimizers of a control, and whose settings and whose tuned step
#: size they have.
SWAPPED = {
    rule: {
        rule: (rule, rule),
        f"auto {rule}, {rule}'s step size": (f"auto {rule}", rule),
        f"{rule}, auto's step size": (rule, f"auto {rule}"),
        f"auto {rule}": (f"auto {rule}", f"auto {rule}"),
    }
    for rule in ("SGD", "Adam")
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


def missing_controls(runs: pd.DataFrame, controls: pd.DataFrame) -> dict[str, list[str]]:
    """Return the settings that lack a control, with the update rules that need one.

    These are the rules for which tuning chose two step sizes, one for the plain optimizer
    and one for `auto`.

    Parameters
    ----------
    runs, controls
        Tables of the store.
    """
    missing = {}
    for setting, own in runs.groupby("setting"):
        rules = [rule for rule in SWAPPED if len(_sizes(own, rule)) > 1]
        known = controls[controls["setting"] == setting]
        if any(known.empty or _sizes(known, r) != _sizes(own, r) for r in rules):
            missing[str(setting)] = rules
    return missing


def _sizes(runs: pd.DataFrame, rule: str) -> set[float]:
    """Return the step sizes of the optimizers of a rule's control."""
    return set(runs.loc[runs["optimizer"].isin(list(SWAPPED[rule])), "learning_rate"])
