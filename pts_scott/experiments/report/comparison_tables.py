"""Tables of the comparison with plain optimizers: verdicts, and costs of their loss."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from pts_scott.experiments.report.formatting import DASH, format_number, format_share
from pts_scott.experiments.report.reach import COSTS, median_share
from pts_scott.experiments.report.tables import Cell, Row, Table
from pts_scott.experiments.report.verdicts import END, PLACES
from pts_scott.experiments.report.welch import SIGNIFICANCE_LEVEL, UNDECIDED, VERDICTS
from pts_scott.experiments.results import LOSS_COLUMNS

EQUAL_TIME = "equal training time"
TEST = f"Welch's test of the seeds, p < {SIGNIFICANCE_LEVEL:g}"


def reach_caption(tail: float) -> str:
    """Return when a loss counts as reached, given the share that targets average over."""
    target = f"the mean of the last {format_share(tail)}" if tail else "the last point"
    return (
        "An optimizer has reached the loss at the first point from which its mean curve "
        f"over the seeds is at or below {target} of the plain optimizer's mean curve, "
        "and stays there on average. A plain optimizer's own share shows how early it "
        "was at its final loss."
    )


def count_table(
    summary: pd.DataFrame,
    verdicts: pd.DataFrame,
    reach: pd.DataFrame,
    equal: str,
    tail: float = 0.0,
) -> Table:
    """Return how often each optimizer was better, tied and worse, by M.

    Parameters
    ----------
    summary, verdicts, reach
        As returned by ``summarize_runs``, ``compute_verdicts`` and ``compute_reach``.
    equal
        What the runs had in common, e.g. "equal training time".
    tail
        As given to ``compute_reach``.
    """
    sizes = dict(zip(summary["setting"], summary["batch_size"]))
    end = "equal time" if equal == EQUAL_TIME else "at the end"
    places = {END: end, "steps": "equal steps", "gradients": "equal gradients"}
    columns = [
        (at, loss, f"{loss.capitalize()}, {places[at]}")
        for at in PLACES
        for loss in LOSS_COLUMNS
        if ((verdicts["at"] == at) & (verdicts["loss"] == loss)).any()
    ]
    shares = {"seconds": "Time", "gradients": "Gradients"}
    rows = []
    for size in sorted(set(sizes.values())):
        first = True
        same = verdicts[verdicts["setting"].map(sizes) == size]
        for (challenger, baseline), pair in same.groupby(
            ["challenger", "baseline"], sort=False
        ):
            cells = [
                _count_cell(pair[(pair["at"] == at) & (pair["loss"] == loss)])
                for at, loss, _ in columns
            ]
            own = reach[
                (reach["setting"].map(sizes) == size)
                & (reach["optimizer"] == challenger)
                & (reach["baseline"] == baseline)
                & (reach["loss"] == "test")
                & reach["target"].notna()
            ]
            cells += [_share_cell(median_share(own[f"{cost}_share"])) for cost in shares]
            labels = [f"M = {size}", challenger, baseline]
            rows.append(Row([*map(Cell, labels), *cells], "block" if first else ""))
            first = False
    header = (
        *("M", "Optimizer", "Against", *(label for *_, label in columns)),
        *(f"{name} to the plain test loss" for name in shares.values()),
    )
    caption = (
        "Number of settings in which the loss of the optimizer was better / tied / worse "
        f"({TEST}). At equal steps or gradients, the curves are compared at the largest "
        "number that every seed of both reached. The last columns say which share of the "
        "plain optimizer's training time and gradients is needed to reach its final test "
        f"loss, as medians over the settings. {reach_caption(tail)}"
    )
    return Table(header, rows, caption, labels=3)


def verdict_matrix(verdicts: pd.DataFrame, equal: str) -> Table:
    """Return the verdicts at the end of the budget, settings × comparisons."""
    ends = verdicts[verdicts["at"] == END]
    comparisons = list(dict.fromkeys(ends["comparison"]))
    rows = []
    for setting, own in ends.groupby("setting", sort=False):
        cells = [Cell(str(setting))]
        for comparison in comparisons:
            pair = own[own["comparison"] == comparison].set_index("loss")["verdict"]
            cells.append(_verdict_cell(pair) if len(pair) else Cell(""))
        rows.append(Row(cells, "block"))
    caption = (
        f"How the first ended, compared with the second, at {equal} ({TEST}); training / "
        "test loss where they differ. The colour shows the test loss."
    )
    return Table(["Setting", *comparisons], rows, caption, labels=len(comparisons) + 1)


def setting_verdict_table(verdicts: pd.DataFrame, equal: str) -> Table:
    """Return the verdicts of one setting, with differences and p-values."""
    places = [at for at in PLACES if (verdicts["at"] == at).any()]
    words = {END: equal, "steps": "equal steps", "gradients": "equal gradients"}
    rows: list[Row] = []
    previous = None
    for (pair, loss), own in verdicts.groupby(["comparison", "loss"], sort=False):
        cells = [Cell(str(pair)), Cell(str(loss))]
        by_place = own.set_index("at")
        for at in places:
            row = by_place.loc[at]
            verdict = str(row["verdict"])
            cells.append(Cell(verdict, str(row["note"]), tone=verdict))
            cells += [_number(row[key]) for key in ("difference", "p_value")]
        rows.append(Row(cells, "" if pair == previous else "block"))
        previous = pair
    header = ["Optimizers", "Loss"]
    for at in places:
        where = f"at {words[at]}"
        header += [f"Verdict {where}", f"Difference {where}", "p"]
    caption = (
        "Difference of the means, negative if the first was lower, and the p-value of "
        "Welch's test of equal means."
    )
    return Table(header, rows, caption)


def reach_table(reach: pd.DataFrame, tail: float = 0.0) -> Table:
    """Return what each optimizer of one setting needs for its plain partner's loss.

    The arguments are the result of ``compute_reach``, and the share given to it.
    """
    rows = []
    for optimizer, own in reach.groupby("optimizer", sort=False):
        by_loss = own.set_index("loss")
        baseline = own["baseline"].iloc[0]
        labels = [str(optimizer), "itself" if baseline == optimizer else baseline]
        cells = []
        for cost in COSTS:
            for loss in LOSS_COLUMNS:
                row = by_loss.loc[loss]
                share = row[f"{cost}_share"]
                if math.isnan(share):
                    cells.append(Cell(row["note"] or DASH, value=math.inf))
                else:
                    cells.append(_share_cell(share))
        rows.append(Row([*map(Cell, labels), *cells], "block"))
    names = {"seconds": "Time", "gradients": "Gradients", "steps": "Steps"}
    header = [f"{names[cost]}, {loss} loss" for cost in COSTS for loss in LOSS_COLUMNS]
    caption = (
        "The share of all that the plain optimizer spent which an optimizer needs to "
        f"reach the same loss. {reach_caption(tail)}"
    )
    return Table(["Optimizer", "Plain optimizer", *header], rows, caption)


def _count_cell(rows: pd.DataFrame) -> Cell:
    count = rows["verdict"].value_counts()
    better, tied, worse = (int(count.get(verdict, 0)) for verdict in VERDICTS)
    undecided = int(count.get(UNDECIDED, 0))
    note = f"{undecided} undecided" if undecided else ""
    tone = "better" if better > worse else "worse" if worse > better else ""
    return Cell(f"{better} / {tied} / {worse}", note, value=better - worse, tone=tone)


def _verdict_cell(verdicts: pd.Series) -> Cell:
    known = list(dict.fromkeys(verdicts))
    return Cell(" / ".join(known), tone=verdicts.iloc[-1])


def _share_cell(share: float) -> Cell:
    if math.isnan(share):
        return Cell(DASH, value=math.inf)
    return Cell("not reached" if math.isinf(share) else format_share(share), value=share)


def _number(value: Any) -> Cell:
    return Cell(format_number(value), value=value)
