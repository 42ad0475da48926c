"""Compare the final losses of pairs of optimizers, and count the verdicts."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import scipy.stats

from pts_scott.experiments.report.summary import (
    lowest_rows,
    optimizer_group,
    summarize_runs,
)
from pts_scott.experiments.results import LOSS_COLUMNS, STRATIFIED_GROUP

Pair = tuple[str, str]  # a challenger and its baseline
PAIRS: tuple[Pair, ...] = (
    ("SCott", "SGD"),
    ("SCott", "SCSG"),
    ("S-Adam", "Adam"),
    ("S-Adagrad", "Adagrad"),
)
STRATIFIED_PAIR = ("the best stratified mini-batch optimizer", "the best of the others")
SELECTION_CAVEAT = "both are the lowest of several, so the test is only indicative"
SIGNIFICANCE_LEVEL = 0.05  # of Welch's test


def comparison_name(pair: Pair) -> str:
    """Return the name of a comparison, e.g. "SCott against SGD"."""
    return " against ".join(pair)


def compute_verdicts(runs: pd.DataFrame) -> pd.DataFrame:
    """Compare each pair of optimizers in every setting that has both.

    The difference of the means is expressed in its standard error, √(s₁²/n₁ + s₂²/n₂),
    and tested by Welch's t-test, which accounts for the small number of seeds: the two
    are level unless the p-value is below ``SIGNIFICANCE_LEVEL``. Among many comparisons
    between equals, that share is still not called level. An optimizer that diverged in
    any seed loses. The verdict is undecided if both diverged, if a seed of either
    failed, or if there are too few seeds for a standard error. The two optimizers of
    ``STRATIFIED_PAIR`` are selected by the losses being compared, so for them the test
    is only indicative.

    Parameters
    ----------
    runs
        As returned by ``read_runs``.

    Returns
    -------
    pandas.DataFrame
        Columns ``setting``, ``loss`` ("training" or "test"), ``comparison``,
        ``challenger``, ``baseline``, their means, ``difference`` (challenger − baseline),
        ``standard_error``, ``errors`` (the difference divided by it), ``p_value``,
        ``verdict`` (where the challenger ended: "below", "level", "above" or
        "undecided") and ``note``.
    """
    rows = []
    for setting, cells in summarize_runs(runs).groupby("setting", sort=False):
        cells = cells.set_index("optimizer")
        for loss, column in LOSS_COLUMNS.items():
            for pair, (challenger, baseline) in _pairs_in(cells, column):
                row = {
                    "setting": setting,
                    "loss": loss,
                    "comparison": comparison_name(pair),
                }
                rows.append({**row, **_compare(cells, challenger, baseline, column)})
    columns = (
        *("setting", "loss", "comparison", "challenger", "baseline", "challenger_mean"),
        *("baseline_mean", "difference", "standard_error", "errors", "p_value"),
        *("verdict", "note"),
    )
    return pd.DataFrame(rows, columns=list(columns))


def verdict_sentences(verdicts: pd.DataFrame) -> str:
    """Count the verdicts: one line with one sentence per comparison and loss."""
    # Only the first sentence explains what "level" means.
    explanation = f" (p ≥ {SIGNIFICANCE_LEVEL:g} in Welch's test)"
    sentences = []
    for pair in (*PAIRS, STRATIFIED_PAIR):
        same = verdicts[verdicts["comparison"] == comparison_name(pair)]
        for loss in LOSS_COLUMNS:
            rows = same[same["loss"] == loss]
            if len(rows):
                sentences.append(_sentence(rows, loss, pair, explanation))
                explanation = ""
    return "\n".join(sentences)


def _sentence(rows: pd.DataFrame, loss: str, pair: Pair, explanation: str) -> str:
    ending = f"; {SELECTION_CAVEAT}." if pair == STRATIFIED_PAIR else "."
    count = rows["verdict"].value_counts()
    if len(rows) == 1 and "undecided" not in count:
        (verdict,) = count.index
        if verdict == "level":
            position = f"level with {pair[1]}{explanation}"
        else:
            position = f"{verdict} {pair[1]}"
        note = f" ({rows['note'].iloc[0]})" if rows["note"].iloc[0] else ""
        return f"By {loss} loss, {pair[0]} ended {position}{note}{ending}"
    sentence = (
        f"By {loss} loss, {pair[0]} ended below {pair[1]} in {count.get('below', 0)} "
        f"of {len(rows)} setting{'s' * (len(rows) > 1)}, level in {count.get('level', 0)}"
        f"{explanation}, above in {count.get('above', 0)}"
    )
    undecided = rows[rows["verdict"] == "undecided"]
    if len(undecided):
        reasons = "; ".join(dict.fromkeys(undecided["note"]))
        sentence += f", undecided in {len(undecided)} ({reasons})"
    decided = rows[rows["verdict"] != "undecided"]
    diverged = int(decided["note"].str.contains("diverged").sum())
    if diverged:
        sentence += f"; {diverged} of these by divergence"
    return sentence + ending


def _pairs_in(cells: pd.DataFrame, column: str) -> list[tuple[Pair, Pair]]:
    """Return the comparisons of a setting: displayed names, and names in the table."""
    pairs = [(pair, pair) for pair in PAIRS if set(pair) <= set(cells.index)]
    groups = {
        name: optimizer_group(name, cells.loc[name, "method"]) for name in cells.index
    }
    stratified = [name for name, group in groups.items() if group == STRATIFIED_GROUP]
    others = [name for name in groups if name not in stratified]
    if stratified and others:
        challenger = _best_of(cells.loc[stratified], column)
        baseline = _best_of(cells.loc[others], column)
        pairs.append((STRATIFIED_PAIR, (challenger, baseline)))
    return pairs


def _best_of(cells: pd.DataFrame, column: str) -> str:
    """Return the lowest optimizer of those that always finished, or else the first."""
    return str([*lowest_rows(cells, f"{column}_mean"), *cells.index][0])


def _compare(
    cells: pd.DataFrame, challenger: str, baseline: str, column: str
) -> dict[str, Any]:
    """Return the verdict on a challenger and its baseline as a row of the table."""
    a, b = cells.loc[challenger], cells.loc[baseline]
    difference = a[f"{column}_mean"] - b[f"{column}_mean"]
    standard_error = math.sqrt(
        sum(row[f"{column}_std"] ** 2 / max(row["finished"], 1) for row in (a, b))
    )
    if standard_error > 0 or math.isnan(standard_error):
        errors = difference / standard_error
    else:
        errors = math.copysign(math.inf, difference) if difference else 0.0
    p_value = _p_value(a, b, column, errors)
    outcomes = ((challenger, a["outcome"]), (baseline, b["outcome"]))
    note = ", ".join(f"{name}: {outcome}" for name, outcome in outcomes if outcome)
    if a["failed"] or b["failed"] or (a["diverged"] and b["diverged"]):
        verdict = "undecided"
    elif a["diverged"] or b["diverged"]:
        verdict = "above" if a["diverged"] else "below"
    elif math.isnan(errors):
        verdict = "undecided"
        note = "no loss" if math.isnan(difference) else "one seed has no standard error"
    elif p_value >= SIGNIFICANCE_LEVEL:
        verdict = "level"
    else:
        verdict = "below" if errors < 0 else "above"
    return {
        "challenger": challenger,
        "baseline": baseline,
        "challenger_mean": a[f"{column}_mean"],
        "baseline_mean": b[f"{column}_mean"],
        "difference": difference,
        "standard_error": standard_error,
        "errors": errors,
        "p_value": p_value,
        "verdict": verdict,
        "note": note,
    }


def _p_value(a: pd.Series, b: pd.Series, column: str, errors: float) -> float:
    """Return the p-value of Welch's two-sided test; 0 or 1 if the seeds do not vary."""
    if math.isinf(errors) or errors == 0:
        return 0.0 if errors else 1.0
    if math.isnan(errors):
        return math.nan
    parts = [row[f"{column}_std"] ** 2 / row["finished"] for row in (a, b)]
    denominator = sum(
        part**2 / (row["finished"] - 1)
        for part, row in zip(parts, (a, b), strict=True)
        if part > 0
    )
    degrees_of_freedom = sum(parts) ** 2 / denominator
    return float(2 * scipy.stats.t.sf(abs(errors), degrees_of_freedom))
