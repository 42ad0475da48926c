"""Compare the losses of pairs of optimizers, and count the verdicts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from pts_scott.experiments.report import welch
from pts_scott.experiments.report.curves import tail_mean
from pts_scott.experiments.report.families import Pair, find_pairs
from pts_scott.experiments.report.summary import summarize_runs
from pts_scott.experiments.report.welch import UNDECIDED, VERDICTS, Difference, Sample
from pts_scott.experiments.results import LOSS_COLUMNS

END = "end"  # of the budget
ONE_SEED = "one seed has no standard error"
#: Where losses are compared: at the end of the budget, or at equal costs (the column).
PLACES = {END: "", "steps": "step", "gradients": "gradients"}
# Between the first measurements of a curve, a line is far above the loss.
FEWEST_MEASUREMENTS = 2  # after the first, within the range that is compared
COLUMNS = (
    *("setting", "loss", "at", "comparison", "challenger", "baseline"),
    *("challenger_mean", "baseline_mean", "difference", "standard_error", "errors"),
    *("p_value", "verdict", "note"),
)


def compute_verdicts(
    runs: pd.DataFrame, curves: pd.DataFrame | None = None, tail: float = 0.0
) -> pd.DataFrame:
    """Compare each pair of optimizers in every setting that has both.

    The means over the seeds are tied unless Welch's t-test, which accounts for the small
    number of seeds, distinguishes them at the level of 0.05. Among many comparisons
    between equals, that share is still not called tied. An optimizer that diverged in any
    seed loses. The verdict is undecided if both diverged, if a seed of either failed, or
    if there are too few seeds for a standard error.

    Parameters
    ----------
    runs
        As returned by ``read_runs``.
    curves
        As returned by ``read_curves``. With them, the losses are also compared at equal
        numbers of steps and of gradients: the largest that every seed of both reached.
    tail
        Compare the means over the last share of these, instead of single measurements;
        ``settled_losses`` does the same for the end.

    Returns
    -------
    pandas.DataFrame
        Columns ``setting``, ``loss`` ("training" or "test"), ``at`` ("end" of the
        budget, equal "steps", equal "gradients"), ``comparison``, ``challenger``,
        ``baseline``, their means, ``difference`` (challenger − baseline),
        ``standard_error``, ``errors`` (the difference divided by it), ``p_value``,
        ``verdict`` (what the challenger was: "better", "tied", "worse" or "undecided")
        and ``note``.
    """
    rows = []
    for setting, cells in summarize_runs(runs).groupby("setting", sort=False):
        cells = cells.set_index("optimizer")
        own = None if curves is None else curves[curves["setting"] == setting]
        for pair in find_pairs(cells):
            for loss, column in LOSS_COLUMNS.items():
                key = {"setting": setting, "loss": loss}
                ends = [Sample.of(cells.loc[name], column) for name in pair]
                rows.append({**key, "at": END, **_verdict(pair, ends, "no loss")})
                for at, cost in PLACES.items():
                    if own is not None and at != END:
                        columns = cost, column
                        samples = _samples_at_equal_cost(own, pair, ends, columns, tail)
                        verdict = _verdict(pair, samples, "too few measurements")
                        rows.append({**key, "at": at, **verdict})
    return pd.DataFrame(rows, columns=list(COLUMNS))


def comparison_name(pair: Pair) -> str:
    """Return the name of a comparison, e.g. "SCott against SGD"."""
    return " against ".join(pair)


def verdict_sentences(verdicts: pd.DataFrame) -> str:
    """Count the verdicts at the end: a line with a sentence per comparison and loss."""
    # Only the first sentence with the word explains what "tied" means.
    explanation = f" (p ≥ {welch.SIGNIFICANCE_LEVEL:g} in Welch's test)"
    sentences = []
    ends = verdicts[verdicts["at"] == END]
    for _, same in ends.groupby("comparison", sort=False):
        for loss, rows in same.groupby("loss", sort=False):
            counts = count_verdicts(rows, explanation)
            sentences.append(f"By {loss} loss, {counts}.")
            if explanation in counts:
                explanation = ""
    return "\n".join(sentences)


def count_verdicts(rows: pd.DataFrame, explanation: str = "") -> str:
    """Return how one comparison went in all of its settings.

    Parameters
    ----------
    rows
        The verdicts of one comparison, by one loss, one row per setting.
    explanation
        Follows the first mention of "tied".
    """
    challenger, baseline = rows["challenger"].iloc[0], rows["baseline"].iloc[0]
    count = rows["verdict"].value_counts()
    if len(rows) == 1 and UNDECIDED not in count:
        (verdict,) = count.index
        note = f" ({rows['note'].iloc[0]})" if rows["note"].iloc[0] else ""
        if verdict == "tied":
            return f"{challenger} tied with {baseline}{explanation}{note}"
        return f"{challenger} ended {verdict} than {baseline}{note}"
    better, tied, worse = (count.get(verdict, 0) for verdict in VERDICTS)
    diverged = int(rows["note"].str.contains("diverged").sum())
    if len(count) == 1 and UNDECIDED not in count and not diverged:
        every = f"in {'both' if len(rows) == 2 else f'all {len(rows)}'} settings"
        if tied:
            return f"{challenger} tied with {baseline} {every}{explanation}"
        return f"{challenger} ended {count.index[0]} than {baseline} {every}"
    text = (
        f"{challenger} ended better than {baseline} in {better} of {len(rows)} "
        f"setting{'s' * (len(rows) > 1)}, tied in {tied}{explanation}, worse in {worse}"
    )
    undecided = rows[rows["verdict"] == UNDECIDED]
    if len(undecided):
        reasons = "; ".join(dict.fromkeys(undecided["note"]))
        text += f", undecided in {len(undecided)} ({reasons})"
    decided = rows[rows["verdict"] != UNDECIDED]
    diverged = int(decided["note"].str.contains("diverged").sum())
    return text + (f"; {diverged} of these by divergence" if diverged else "")


def _verdict(pair: Pair, samples: Sequence[Sample], unknown: str) -> dict[str, Any]:
    """Return a verdict as a row of the table; ``unknown`` is the note without a loss."""
    challenger, baseline = samples
    difference = Difference(challenger, baseline)
    outcomes = zip(pair, (challenger.outcome, baseline.outcome), strict=True)
    note = ", ".join(f"{name}: {outcome}" for name, outcome in outcomes if outcome)
    if not note and difference.verdict == UNDECIDED:
        note = unknown if math.isnan(difference.value) else ONE_SEED
    return {
        "comparison": comparison_name(pair),
        "challenger": pair[0],
        "baseline": pair[1],
        "challenger_mean": challenger.mean,
        "baseline_mean": baseline.mean,
        "difference": difference.value,
        "standard_error": difference.standard_error,
        "errors": difference.errors,
        "p_value": difference.p_value,
        "verdict": difference.verdict,
        "note": note,
    }


def _samples_at_equal_cost(
    curves: pd.DataFrame,
    pair: Pair,
    ends: Iterable[Sample],
    columns: tuple[str, str],
    tail: float,
) -> list[Sample]:
    """Return the losses of a pair where all of their seeds have spent the same.

    The columns are those of the cost and of the loss.
    """
    cost, column = columns
    finished = curves[(curves["status"] == "finished") & curves[column].notna()]
    seeds = [
        [
            curve[[cost, column]].to_numpy(float)
            for _, curve in finished[finished["optimizer"] == name].groupby("seed")
        ]
        for name in pair
    ]
    both = [points for one in seeds for points in one]
    common = min((points[-1, 0] for points in both), default=0.0)
    measured = min(((points[1:, 0] <= common).sum() for points in both), default=0)
    samples = []
    for one, end in zip(seeds, ends, strict=True):
        values = np.array([tail_mean(points, common, tail) for points in one])
        if not len(values) or measured < FEWEST_MEASUREMENTS:
            values = np.full(2, np.nan)
        std = values.std(ddof=1) if len(values) > 1 else np.nan
        counts = (len(one), end.diverged, end.failed)
        samples.append(Sample(values.mean(), std, *counts, end.outcome))
    return samples
