"""Who ended lower: the seeds of each optimizer summed up, compared, and counted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import scipy.stats

from pts_scott.experiments.results import (
    LOSSES,
    METRICS,
    OPTIMIZERS,
    SPENT,
    STATUSES,
    in_order,
)

Pair = tuple[str, str]  # a challenger and its baseline
PAIRS: tuple[Pair, ...] = (
    ("SCott", "SGD"),
    ("SCott", "SCSG"),
    ("S-Adam", "Adam"),
    ("S-Adagrad", "Adagrad"),
)
STRATIFIED = ("the best stratified mini-batch optimizer", "the best of the others")
GUIDE = "both are the lowest of several, so the test is a guide only"
LEVEL = 0.05  # of Welch's test


def summary(runs: pd.DataFrame) -> pd.DataFrame:
    """What the seeds of each setting and optimizer have in common.

    Parameters
    ----------
    runs
        As ``read_runs`` gives them.

    Returns
    -------
    pandas.DataFrame
        One row for each setting and optimizer, in the paper's order: how many ``seeds``
        there are, how many ``finished``, ``diverged`` and ``failed``; ``outcome``, that
        in words, empty if all have finished; and over the seeds that finished the mean
        and the standard deviation (n − 1) of the losses and the means of the metrics and
        of what was spent.
    """
    shared = ["setting", "model", "dataset", "loss", "batch_size", "optimizer", "method"]
    rows = []
    for _, of_setting in runs.groupby("setting", sort=False):
        for optimizer in in_order(of_setting["optimizer"]):
            seeds = of_setting[of_setting["optimizer"] == optimizer]
            row = {key: seeds[key].iloc[0] for key in [*shared, "learning_rate", "gamma"]}
            row["seeds"] = len(seeds)
            row.update(
                {status: int((seeds["status"] == status).sum()) for status in STATUSES}
            )
            row["outcome"] = _outcome(row)
            finished = seeds[seeds["status"] == "finished"]
            for loss in LOSSES.values():
                row[f"{loss}_mean"] = finished[loss].mean(skipna=False)
                row[f"{loss}_std"] = finished[loss].std(ddof=1, skipna=False)
            row.update({key: finished[key].mean() for key in (*METRICS, *SPENT)})
            rows.append(row)
    losses = [f"{loss}_{part}" for loss in LOSSES.values() for part in ("mean", "std")]
    counts = ["learning_rate", "gamma", "seeds", *STATUSES, "outcome"]
    return pd.DataFrame(rows, columns=[*shared, *counts, *losses, *METRICS, *SPENT])


def verdicts(runs: pd.DataFrame) -> pd.DataFrame:
    """Who ended lower, in each setting that has both of a pair.

    The difference of the means is measured in its standard error, √(s₁²/n₁ + s₂²/n₂),
    and by Welch's t-test, which minds how few seeds there are: the two are level unless
    its p-value is below ``LEVEL``. Of many comparisons between equals, that share is
    still not called level. One that diverged in any seed loses. It is undecided if both
    did, if a seed of either failed, or if there are too few seeds for a standard error.
    The two of ``STRATIFIED`` are chosen by the losses that are compared, so that the
    test is a guide only.

    Parameters
    ----------
    runs
        As ``read_runs`` gives them.

    Returns
    -------
    pandas.DataFrame
        Columns ``setting``, ``loss`` ("training" or "test"), ``comparison``,
        ``challenger``, ``baseline``, their means, ``difference`` (challenger − baseline),
        ``standard_error``, ``errors`` (the one by the other), ``p_value``, ``verdict``
        ("below", "level", "above" or "undecided": where the challenger ended) and
        ``note``.
    """
    rows = []
    for setting, cells in summary(runs).groupby("setting", sort=False):
        cells = cells.set_index("optimizer")
        for loss, column in LOSSES.items():
            for names, (one, other) in _pairs(cells, column):
                row = {
                    "setting": setting,
                    "loss": loss,
                    "comparison": " against ".join(names),
                }
                rows.append({**row, **_compare(cells, one, other, column)})
    columns = (
        *("setting", "loss", "comparison", "challenger", "baseline", "challenger_mean"),
        *("baseline_mean", "difference", "standard_error", "errors", "p_value"),
        *("verdict", "note"),
    )
    return pd.DataFrame(rows, columns=list(columns))


def verdict_sentences(verdicts: pd.DataFrame) -> str:
    """The verdicts counted, one sentence a line for each comparison and loss."""
    explain = f" (p ≥ {LEVEL:g} in Welch's test)"  # where it is first said
    sentences = []
    for names in (*PAIRS, STRATIFIED):
        same = verdicts[verdicts["comparison"] == " against ".join(names)]
        for loss in LOSSES:
            rows = same[same["loss"] == loss]
            if len(rows):
                sentences.append(_sentence(rows, loss, names, explain))
                explain = ""
    return "\n".join(sentences)


def group_of(optimizer: str, method: str = "") -> str:
    """The paper's groups are by update rule; stratified mini-batches are one more.

    Parameters
    ----------
    optimizer
        Its name.
    method
        How its gradients are made, as its runs record it; "" to tell by the name.
    """
    base, known = OPTIMIZERS.get(optimizer, ("", "other"))
    if method == "stratified":
        return method
    return base if known in ("plain", "scsg", "scott") else known


def lowest(cells: pd.DataFrame, column: str) -> list[Any]:
    """Where the column is lowest, of the rows whose seeds have all finished."""
    values = cells.loc[cells["outcome"] == "", column]
    values = values[np.isfinite(values.astype(float))]
    return list(values.index[values == values.min()])


def _sentence(rows: pd.DataFrame, loss: str, names: Pair, explain: str) -> str:
    count = rows["verdict"].value_counts()
    if len(rows) == 1 and "undecided" not in count:
        (verdict,) = count.index
        place, why = ("level with", explain) if verdict == "level" else (verdict, "")
        note = f" ({rows['note'].iloc[0]})" if rows["note"].iloc[0] else ""
        ending = f"; {GUIDE}." if names == STRATIFIED else "."
        return f"By {loss} loss, {names[0]} ended {place} {names[1]}{why}{note}{ending}"
    sentence = (
        f"By {loss} loss, {names[0]} ended below {names[1]} in {count.get('below', 0)} "
        f"of {len(rows)} setting{'s' * (len(rows) > 1)}, level in {count.get('level', 0)}"
        f"{explain}, above in {count.get('above', 0)}"
    )
    undecided = rows[rows["verdict"] == "undecided"]
    if len(undecided):
        why = "; ".join(dict.fromkeys(undecided["note"]))
        sentence += f", undecided in {len(undecided)} ({why})"
    decided = rows[rows["verdict"] != "undecided"]
    diverged = int(decided["note"].str.contains("diverged").sum())
    if diverged:
        sentence += f"; {diverged} of these by divergence"
    return f"{sentence}; {GUIDE}." if names == STRATIFIED else f"{sentence}."


def _outcome(row: Mapping[str, Any]) -> str:
    """How many seeds did not finish, as "2 of 5 diverged"; empty if all did."""
    counts = [(row[status], status) for status in ("diverged", "failed")]
    return ", ".join(f"{n} of {row['seeds']} {status}" for n, status in counts if n)


def _pairs(cells: pd.DataFrame, column: str) -> list[tuple[Pair, Pair]]:
    """What is compared in a setting: names for the reader, and rows of the table."""
    pairs = [(pair, pair) for pair in PAIRS if set(pair) <= set(cells.index)]
    groups = {name: group_of(name, cells.loc[name, "method"]) for name in cells.index}
    stratified = [name for name, group in groups.items() if group == "stratified"]
    others = [name for name in groups if name not in stratified]
    if stratified and others:
        one = _lowest_of(cells.loc[stratified], column)
        other = _lowest_of(cells.loc[others], column)
        pairs.append((STRATIFIED, (one, other)))
    return pairs


def _lowest_of(cells: pd.DataFrame, column: str) -> str:
    """The optimizer to be compared: the lowest mean of those that always finished."""
    return str([*lowest(cells, f"{column}_mean"), *cells.index][0])


def _compare(cells: pd.DataFrame, one: str, other: str, column: str) -> dict[str, Any]:
    """One verdict: the challenger ``one`` against the baseline ``other``."""
    a, b = cells.loc[one], cells.loc[other]
    difference = a[f"{column}_mean"] - b[f"{column}_mean"]
    error = math.sqrt(
        sum(row[f"{column}_std"] ** 2 / max(row["finished"], 1) for row in (a, b))
    )
    if error > 0 or math.isnan(error):
        errors = difference / error
    else:
        errors = math.copysign(math.inf, difference) if difference else 0.0
    p_value = _p_value(a, b, column, errors)
    notes = [
        f"{n}: {row['outcome']}" for n, row in ((one, a), (other, b)) if row["outcome"]
    ]
    note = ", ".join(notes)
    if a["failed"] or b["failed"] or (a["diverged"] and b["diverged"]):
        verdict = "undecided"
    elif a["diverged"] or b["diverged"]:
        verdict = "above" if a["diverged"] else "below"
    elif math.isnan(errors):
        verdict = "undecided"
        note = "no loss" if math.isnan(difference) else "one seed has no standard error"
    elif p_value >= LEVEL:
        verdict = "level"
    else:
        verdict = "below" if errors < 0 else "above"
    return {
        "challenger": one,
        "baseline": other,
        "challenger_mean": a[f"{column}_mean"],
        "baseline_mean": b[f"{column}_mean"],
        "difference": difference,
        "standard_error": error,
        "errors": errors,
        "p_value": p_value,
        "verdict": verdict,
        "note": note,
    }


def _p_value(a: pd.Series, b: pd.Series, column: str, errors: float) -> float:
    """Welch's two-sided test of equal means; certain where seeds do not differ."""
    if math.isinf(errors) or errors == 0:
        return 0.0 if errors else 1.0
    if math.isnan(errors):
        return math.nan
    parts = [row[f"{column}_std"] ** 2 / row["finished"] for row in (a, b)]
    free = sum(
        part**2 / (row["finished"] - 1)
        for part, row in zip(parts, (a, b), strict=True)
        if part > 0
    )
    return float(2 * scipy.stats.t.sf(abs(errors), sum(parts) ** 2 / free))
