"""The tables of docs/results.md that compare two optimizers in every setting."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pandas as pd
from comparison_results import LARGE, PAPER, Results, count_verdicts, format_loss
from comparison_store import SWAPPED, missing_controls
from equal_time_tables import TAIL

from pts_scott.experiments.report.curves import settled_losses
from pts_scott.experiments.report.formatting import format_share
from pts_scott.experiments.report.summary import summarize_runs
from pts_scott.experiments.report.tables import Row, Table
from pts_scott.experiments.report.welch import Difference, Sample
from pts_scott.experiments.results import LOSS_COLUMNS

PLACES = {"steps": "per step", "gradients": "gradient", "end": "second"}


def scott_table(results: Results) -> str:
    """Return SCott against SGD, per step, per gradient and per second."""
    rows = []
    for setting, cells in results.settings():
        row = [setting, *(format_loss(cells, n) for n in ("SGD", PAPER, LARGE))]
        for name in (PAPER, LARGE):
            found = [results.verdict(setting, name, "SGD", at) for at in PLACES]
            row.append(" / ".join(found))
        rows.append(Row.of(*row, results.share(setting, LARGE)))
    header = ["Setting", "SGD", "SCott", LARGE]
    header += [f"{name}: {' / '.join(PLACES.values())}" for name in (PAPER, "large")]
    caption = (
        f"Training loss at the end of {results.budget}; what SCott was against SGD at "
        "equal steps, gradients and time "
        "(Welch's test of the seeds, p < 0.05); and the share of SGD's time in which "
        "SCott with large anchors reached SGD's final training loss."
    )
    return Table([*header, "time to SGD's loss"], rows, caption, labels=1).markdown()


def auto_table(results: Results) -> str:
    """Return `auto` against plain mini-batches at equal time."""
    pairs = (("auto SGD", "SGD"), ("auto Adam", "Adam"))
    rows = []
    for setting, cells in results.settings():
        row = [setting]
        for pair in pairs:
            row += [format_loss(cells, name, "test_loss") for name in reversed(pair)]
            found = [results.verdict(setting, *pair, "end", n) for n in LOSS_COLUMNS]
            row.append(" / ".join(found))
        rows.append(Row.of(*row, results.share(setting, "auto Adam", "test")))
    header = ["Setting"]
    for challenger, baseline in pairs:
        header += [baseline, challenger, "by training / test loss"]
    caption = (
        f"Test loss at the end of {results.budget}, what auto was against uniform "
        "mini-batches with the same update rule, by both losses, and the share of "
        "Adam's time in which auto with Adam reached Adam's final test loss."
    )
    return Table([*header, "time to Adam's loss"], rows, caption, labels=1).markdown()


def step_size_table(results: Results) -> str:
    """Return `auto` against plain with either's step size, where tuning chose two.

    Below it stands how often `auto` was better, counted over these settings and those in
    which both had the same step size from the beginning.
    """
    runs = results.store.read("controls")
    left = missing_controls(results.runs, runs)
    names = ", ".join(f"`{name}` ({', '.join(left[name])})" for name in left)
    text = f"Not run yet: {names}." if left else ""
    if runs.empty:
        return text
    settled = settled_losses(runs, results.store.read("control_curves"), TAIL)
    summary, keys = summarize_runs(settled), ["setting", "optimizer"]
    both = summary.merge(results.summary, on=keys, suffixes=("", "_above"))
    steps = both["steps"] / both["steps_above"]
    controls = {
        (str(setting), rule): cells.set_index("optimizer")
        for setting, cells in summary.groupby("setting", sort=True)
        for rule in SWAPPED
        if rule in set(cells["optimizer"])
    }
    rows = [_step_size_row(*key, cells) for key, cells in controls.items()]
    pair = ["step size", "plain", "auto", "auto is"]
    caption = (
        f"Test loss at the end of {results.budget}: with the step size that tuning "
        "chose for the plain optimizer, then with that for auto. In the same time "
        f"these runs made {format_share(steps.min())} to {format_share(steps.max())} "
        "of the steps of those above, as the machines differ: their losses compare "
        "within a row."
    )
    header = ["Setting", "Update rule", *pair, *pair]
    table = Table(header, rows, caption, labels=2).markdown()
    counts = _step_size_counts(results, controls).markdown()
    return "\n".join([table, counts, text])


def _step_size_row(setting: str, rule: str, cells: pd.DataFrame) -> Row:
    row = [setting, rule]
    for pair in _pairs(rule):
        losses = [format_loss(cells, name, "test_loss") for name in pair]
        rate = f"{cells.loc[pair[0], 'learning_rate']:g}"
        row += [rate, *losses, _verdict_on_auto(cells, pair)]
    return Row.of(*row)


def _pairs(rule: str) -> list[tuple[str, str]]:
    """Return plain and `auto` with plain's step size, then with that of `auto`."""
    names = list(SWAPPED[rule])
    return list(zip(names[::2], names[1::2]))


def _verdict_on_auto(cells: pd.DataFrame, pair: tuple[str, str]) -> str:
    plain, auto = (Sample.of(cells.loc[name], "test_loss") for name in pair)
    return Difference(auto, plain).verdict


def _step_size_counts(
    results: Results, controls: Mapping[tuple[str, str], pd.DataFrame]
) -> Table:
    """Return how often `auto` was better with its own and with equal step sizes."""
    found: dict[str, list[tuple[str, str, str]]] = {rule: [] for rule in SWAPPED}
    for (setting, cells), rule in itertools.product(results.settings(), SWAPPED):
        own = results.verdict(setting, f"auto {rule}", rule, "end", "test")
        sizes = cells.loc[[rule, f"auto {rule}"], "learning_rate"]
        control = controls.get((setting, rule))
        if sizes.nunique() == 1:
            found[rule].append((own, own, own))
        elif control is not None:
            equal = [_verdict_on_auto(control, pair) for pair in _pairs(rule)]
            found[rule].append((own, *equal))
    rows = []
    for rule, verdicts in found.items():
        table = pd.DataFrame(verdicts)
        counts = [count_verdicts(table[column]) for column in table]
        rows.append(Row.of(rule, len(table), *counts))
    header = ["Update rule", "Settings", "each its own", "plain's", "auto's"]
    caption = (
        "The same, counted: auto was better / tied / worse than plain by test loss at "
        "equal time, with the step size that tuning chose for each, with plain's for "
        "both, and with auto's for both. Settings in which tuning chose one step size "
        "for both count in all three."
    )
    return Table(header, rows, caption, labels=1)


def control_table(results: Results) -> str:
    """Return stratified steps at M = 1 against plain ones of as many windows."""
    stratified, control = "stratified Adam", "Adam, B windows"
    rows = []
    for setting, cells in results.settings():
        if control not in cells.index:
            continue
        windows = int(cells.loc[control, "windows_per_step"])
        names = ("Adam", control, stratified)
        losses = [format_loss(cells, name, "test_loss") for name in names]
        found = [
            results.verdict(setting, stratified, other, "end", "test")
            for other in ("Adam", control)
        ]
        rows.append(Row.of(setting, windows, *losses, *found))
    header = ["Setting", "B", "Adam, M = 1", "Adam, M = B", "stratified, M = B"]
    header += ["stratified against M = 1", "stratified against M = B"]
    return Table(header, rows, "Test loss at equal time.", labels=1).markdown()
