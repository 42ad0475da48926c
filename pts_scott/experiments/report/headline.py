"""The answer of a benchmark in a few sentences, whichever way its numbers fall."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pandas as pd

from pts_scott.experiments.report.comparison_tables import EQUAL_TIME
from pts_scott.experiments.report.formatting import format_mean, format_share
from pts_scott.experiments.report.reach import NOT_REACHED, median_share
from pts_scott.experiments.report.summary import lowest_rows
from pts_scott.experiments.report.verdicts import END, ONE_SEED, count_verdicts
from pts_scott.experiments.report.welch import SIGNIFICANCE_LEVEL
from pts_scott.experiments.results import LOSS_COLUMNS

MOST_OPTIMIZERS = 4
NEARLY_ALL = 0.95  # of its time: a plain optimizer needs it for its own final loss
# Whom a reader asks about first: the default of the trainer, then the paper's method.
FIRST = (
    *(("auto", "adam"), ("auto", "sgd"), ("scott", "sgd"), ("scott", "adam")),
    *(("stratified", "adam"), ("stratified", "sgd")),
)


def equal_budget(runs: pd.DataFrame) -> str:
    """Return what all runs of a setting had in common, e.g. "equal training time"."""
    same = runs.groupby("setting")[["time_budget", "gradient_budget"]]
    counts = same.agg(["count", "nunique"])
    for column, words in (
        ("time_budget", EQUAL_TIME),
        ("gradient_budget", "equal gradients"),
    ):
        every = counts[column]["count"] == same.size()
        if len(runs) and (every & (counts[column]["nunique"] == 1)).all():
            return words
    return "the end of training"


def headline(
    runs: pd.DataFrame,
    summary: pd.DataFrame,
    verdicts: pd.DataFrame,
    reach: pd.DataFrame,
) -> list[str]:
    """Return the answer: verdicts on the most important optimizers, and their speed.

    Parameters
    ----------
    runs, summary
        As returned by ``read_runs`` and ``summarize_runs``.
    verdicts, reach
        As returned by ``compute_verdicts`` and ``compute_reach``.

    Returns
    -------
    list of str
        Sentences. Without a pair to compare, they say which loss was lowest.
    """
    if not summary["finished"].any():
        return ["No run has finished yet."]
    ends = verdicts[verdicts["at"] == END]
    only_training = _decided(ends, "training") and not _decided(ends, "test")
    loss = "training" if only_training else "test"
    plain = reach[["optimizer", "baseline"]].drop_duplicates()
    plain = plain.rename(columns={"optimizer": "challenger"})
    own = ends[ends["loss"] == loss].merge(plain, on=["challenger", "baseline"])
    if own.empty:
        return _lowest(summary)
    kinds = summary.drop_duplicates("optimizer").set_index("optimizer")

    def rank(name: str) -> int:
        kind = (kinds.loc[name, "method"], kinds.loc[name, "rule"])
        return FIRST.index(kind) if kind in FIRST else len(FIRST)

    chosen = sorted(dict.fromkeys(own["challenger"]), key=rank)[:MOST_OPTIMIZERS]
    opening = f"At {equal_budget(runs)}, by {loss} loss, "
    test = f" (Welch's test at p\u00a0<\u00a0{SIGNIFICANCE_LEVEL:g})"
    sentences = []
    for challenger in chosen:
        for baseline, rows in own[own["challenger"] == challenger].groupby("baseline"):
            text = _untested(rows) or count_verdicts(rows) + test
            pair = (reach["optimizer"] == challenger) & (reach["baseline"] == baseline)
            by_loss = reach["loss"] == loss
            itself = (reach["optimizer"] == baseline) & (reach["baseline"] == baseline)
            speed = _speed(reach[pair & by_loss], reach[itself & by_loss])
            if opening:
                sentences.append(f"{opening}{text}.")
                sentences += [f"{challenger} {speed}."] if speed else []
            else:
                sentences.append(f"{text}; it {speed}." if speed else f"{text}.")
            opening = test = ""
    return sentences


def _decided(verdicts: pd.DataFrame, loss: str) -> bool:
    return bool(verdicts.loc[verdicts["loss"] == loss, "difference"].notna().any())


def _untested(rows: pd.DataFrame) -> str:
    """Return which means were lower, if single seeds leave nothing to test; else ""."""
    known = (
        rows["difference"].notna() & rows["p_value"].isna() & (rows["note"] == ONE_SEED)
    )
    if not known.all():
        return ""
    challenger, baseline = rows["challenger"].iloc[0], rows["baseline"].iloc[0]
    lower, settings = int((rows["difference"] < 0).sum()), len(rows)
    where = f" in {lower} of {settings} settings" if settings > 1 else ""
    word = "lower" if lower or settings > 1 else "higher"
    return (
        f"{challenger} ended {word} than {baseline}{where}, but one seed is too few to "
        "tell whether by chance"
    )


def _speed(rows: pd.DataFrame, plain: pd.DataFrame) -> str:
    """Return how soon an optimizer reached its plain partner's final loss.

    If the plain one had reached it itself before its end, this is added.
    """
    rows = rows[rows["target"].notna()]
    if rows.empty:
        return ""
    baseline, settings = rows["baseline"].iloc[0], len(rows)
    target = f"{baseline}'s final {rows['loss'].iloc[0]} loss"
    missed = int(rows["seconds_share"].isna().sum())
    middle = median_share(rows["seconds_share"])
    if math.isinf(middle):
        where = f" in {missed} of {settings} settings" if settings > 1 else ""
        return f"did not reach {target}{where}"
    text = f"reached {target} in {format_share(middle)} of {baseline}'s training time"
    notes = [f"median of {settings} settings"] if settings > 1 else []
    notes += [f"{NOT_REACHED} in {missed}"] if missed else []
    shares = plain.loc[plain["setting"].isin(rows["setting"]), "seconds_share"]
    if median_share(shares) < NEARLY_ALL:
        notes.append(f"{baseline} itself: {format_share(median_share(shares))}")
    return f"{text} ({'; '.join(notes)})" if notes else text


def _lowest(summary: pd.DataFrame) -> list[str]:
    """Return which optimizer was lowest, where none has a plain partner."""
    loss = "test" if summary["test_loss_mean"].notna().any() else "training"
    column = f"{LOSS_COLUMNS[loss]}_mean"
    names = summary["optimizer"].unique()
    settings = [cells for _, cells in summary.groupby("setting", sort=False)]
    if len(settings) == 1:
        cells = settings[0].set_index("optimizer")
        best = [*lowest_rows(cells, column), *cells.index[cells["finished"] > 0]][0]
        row = cells.loc[best]
        value = format_mean(row[column], row[f"{LOSS_COLUMNS[loss]}_std"])
        what = f"a {loss} {row['loss'] or 'loss'} of {value}"
        if len(names) == 1:
            return [f"{best} ended at {what}; there is nothing to compare it with."]
        return [f"{best} had the lowest mean of {len(names)} optimizers, {what}."]
    if len(names) == 1:
        ended = f"{names[0]} finished in {len(settings)} settings"
        return [f"{ended}; there is nothing to compare it with."]
    winners = pd.Series(
        [n for c in settings for n in lowest_rows(c.set_index("optimizer"), column)[:1]],
        dtype=object,
    )
    if winners.empty:
        return ["No optimizer finished all of its seeds in any setting."]
    counts = [f"{name} in {n}" for name, n in winners.value_counts().items()]
    return [
        f"The lowest mean {loss} loss of {len(settings)} settings: {_listed(counts)}. No "
        "optimizer has a plain one of the same update rule to be compared with."
    ]


def _listed(items: Iterable[str]) -> str:
    *first, last = items
    return f"{', '.join(first)} and {last}" if first else last
