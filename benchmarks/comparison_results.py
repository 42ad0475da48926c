"""What the comparison has found: summaries, verdicts, and the cells of its tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property

import equal_time_tables
import pandas as pd
from comparison_store import Store
from equal_time_tables import TAIL
from regime_tables import measure_fall

from pts_scott.experiments.report.curves import settled_losses
from pts_scott.experiments.report.formatting import DASH, format_mean, format_share
from pts_scott.experiments.report.reach import NOT_REACHED, compute_reach, median_share
from pts_scott.experiments.report.summary import summarize_runs
from pts_scott.experiments.report.verdicts import compute_verdicts
from pts_scott.experiments.report.welch import UNDECIDED, VERDICTS

#: Optimizers by name.
PAPER, LARGE = "SCott", "SCott, large anchors"
#: Where two optimizers are compared, in words.
PER = {
    "steps": "at equal steps",
    "gradients": "at equal gradients",
    "end": "at equal time",
}
LIBRARIES = {"gluonts": "GluonTS", "pytorchts": "PyTorchTS"}


class Results:
    """What is stored, without the settings that are to be run again.

    Parameters
    ----------
    store
        What was run.
    missing
        Names of the settings that were not run, or not with the comparison's config.
    """

    def __init__(self, store: Store, missing: Sequence[str]) -> None:
        self.store, self.missing = store, missing
        runs, self.curves, self.variance = (
            table[~table["setting"].isin(missing)].reset_index(drop=True)
            for table in map(store.read, ("runs", "curves", "variance"))
        )
        self.runs = settled_losses(runs, self.curves, TAIL)
        self.summary = summarize_runs(self.runs)

    @cached_property
    def verdicts(self) -> pd.DataFrame:
        """The verdicts on every pair of optimizers."""
        return compute_verdicts(self.runs, self.curves, TAIL)

    @cached_property
    def reach(self) -> pd.DataFrame:
        """What each optimizer needs to reach the plain optimizer's final loss."""
        return compute_reach(self.summary, self.curves, TAIL)

    @cached_property
    def falls(self) -> pd.DataFrame:
        """How the training loss of each setting's best plain optimizer fell."""
        return measure_fall(self.summary, self.curves, TAIL)

    @cached_property
    def equal_time(self) -> dict[str, list[dict[str, object]]]:
        """The rows of the tables against the libraries' own training, by library."""
        found = {}
        for backend, name in LIBRARIES.items():
            curves = self.store.read(f"equal_time-{backend}")
            if len(curves):
                found[name] = equal_time_tables.summarise(curves, goal_of=name)
        return found

    @property
    def budget(self) -> str:
        """Training time and seeds of the runs, in words."""
        seconds = " or ".join(f"{n:g}" for n in sorted(set(self.runs["time_budget"])))
        seeds = " or ".join(map(str, sorted(set(self.summary["seeds"]))))
        return f"{seconds} s of training, mean ± standard deviation over {seeds} seeds"

    def settings(self) -> Iterable[tuple[str, pd.DataFrame]]:
        """Yield the name of each setting, and its summary by optimizer."""
        order = ["batch_size", "model", "dataset"]
        for _, cells in self.summary.groupby(order, sort=True):
            yield str(cells["setting"].iloc[0]), cells.set_index("optimizer")

    def verdict(
        self, setting: str, name: str, against: str, at: str, loss: str = "training"
    ) -> str:
        """Return what one optimizer was against another one in a setting."""
        rows = where(
            self.verdicts,
            **{"setting": setting, "challenger": name, "baseline": against},
            **{"at": at, "loss": loss},
        )
        return str(rows["verdict"].item())

    def share(self, setting: str, name: str, loss: str = "training") -> str:
        """Return in which share of the plain optimizer's time its loss was reached."""
        rows = where(self.reach, setting=setting, optimizer=name, loss=loss)
        if rows["target"].isna().any():
            return DASH
        share = median_share(rows["seconds_share"])
        return NOT_REACHED if math.isinf(share) else format_share(share)


def format_loss(cells: pd.DataFrame, name: str, column: str = "train_loss") -> str:
    """Return the mean loss of an optimizer in a setting, and how its runs ended."""
    row = cells.loc[name]
    text = format_mean(row[f"{column}_mean"], row[f"{column}_std"])
    return f"{text} ({row['outcome']})" if row["outcome"] else text


def where(rows: pd.DataFrame, **values: object) -> pd.DataFrame:
    """Return the rows with these values."""
    for column, value in values.items():
        rows = rows[rows[column] == value]
    return rows


def count_verdicts(verdicts: pd.Series[str]) -> str:
    """Return how often a verdict was better / tied / worse, and undecided if any was."""
    count = verdicts.value_counts()
    text = " / ".join(str(count.get(verdict, 0)) for verdict in VERDICTS)
    return text + (f" ({count[UNDECIDED]} undecided)" if UNDECIDED in count else "")
