"""The report of a benchmark: its runs as tables, verdicts, pictures and one page.

The folder of a benchmark holds, for each setting, ``config.yaml``, ``variance.csv`` where
the variance was measured, and ``runs/<optimizer>-seed<k>/`` with ``run.json``,
``curve.csv`` and ``versions.json``. ``write_report`` makes the rest.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import pandas as pd
import yaml
from matplotlib.figure import Figure

from pts_scott.errors import ArgumentError, FileLayoutError
from pts_scott.experiments import figures

WORDS = ("setting", "model", "dataset", "loss", "optimizer", "method", "status", "error")
METRICS = ("CRPS", "MASE", "sMAPE", "ND", "NRMSE")
NUMBERS = (
    *("batch_size", "learning_rate", "gamma", "seed", "train_loss", "test_loss"),
    *("steps", "gradients", "anchors", "seconds", "compile_seconds"),
    *("stratify_seconds", "evaluation_seconds", *METRICS, "windows_train"),
    *("windows_test", "evaluated_train", "evaluated_test", "strata"),
    *("time_budget", "gradient_budget"),
)
REQUIRED = ("setting", "model", "dataset", "batch_size", "optimizer", "seed")
STATUSES = ("finished", "diverged", "failed")
CURVE = ("step", "gradients", "seconds", "train_loss", "test_loss")
VARIANCE = ("seconds", "sampler", "stratifier", "strata", "variance", "standard_error")
MEANS = (
    *("steps", "gradients", "anchors", "seconds", "compile_seconds"),
    *("stratify_seconds", "evaluation_seconds"),
)
LOSSES = {"training": "train_loss", "test": "test_loss"}

# -- reading ---------------------------------------------------------------------------


def read_runs(folder: str | Path) -> pd.DataFrame:
    """All runs of a benchmark, one row each.

    Parameters
    ----------
    folder
        The folder of the benchmark.

    Returns
    -------
    pandas.DataFrame
        The keys of ``run.json`` as columns, and ``folder``, where the run lies within
        the benchmark's folder. Numbers that a run does not have are NaN.

    Raises
    ------
    ArgumentError
        If there is no such folder.
    FileLayoutError
        If a ``run.json`` cannot be read.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ArgumentError(f"{folder} is not a folder: expected one with results.")
    rows = []
    for path in folder.glob("*/runs/*/run.json"):
        if path.parent.suffix == ".part":  # a run that is being written
            continue
        rows.append(
            {**_read_run(path), "folder": path.parent.relative_to(folder).as_posix()}
        )
    runs = pd.DataFrame(rows)
    first = [*WORDS, *NUMBERS, "warnings", "folder"]
    runs = runs.reindex(columns=[*first, *(c for c in runs.columns if c not in first)])
    # A run that failed early does not know the name of its loss; its neighbours do.
    runs["loss"] = runs.groupby("setting")["loss"].transform("max")
    rank = {name: n for n, name in enumerate(figures.in_order(list(runs["optimizer"])))}
    order = runs.assign(rank=runs["optimizer"].map(rank))
    order = order.sort_values(["setting", "rank", "seed", "folder"], kind="stable")
    return runs.loc[order.index].reset_index(drop=True)


def read_curves(folder: str | Path) -> pd.DataFrame:
    """The losses along training of all runs.

    Returns
    -------
    pandas.DataFrame
        Columns ``setting``, ``optimizer``, ``seed`` and ``status`` of the run, and those
        of ``curve.csv``. A run without a curve has no rows.

    Raises
    ------
    FileLayoutError
        If a ``curve.csv`` cannot be read.
    """
    keys = ["setting", "optimizer", "seed", "status"]
    curves = []
    for _, run in read_runs(folder).iterrows():
        path = Path(folder) / run["folder"] / "curve.csv"
        if path.exists():
            curve = _read_csv(path, CURVE if run["status"] != "failed" else ())
            if curve.empty:
                continue
            curves.append(curve.assign(**run[keys])[[*keys, *curve.columns]])
    if not curves:
        return pd.DataFrame(columns=[*keys, *CURVE])
    return pd.concat(curves, ignore_index=True)


def _read_run(path: Path) -> dict[str, Any]:
    try:
        run = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileLayoutError(f"{path} cannot be read as JSON: {error}.") from None
    if not isinstance(run, dict):
        raise FileLayoutError(f"{path}: expected a dict of the run, got {run!r:.60}.")
    absent = [key for key in REQUIRED if run.get(key) is None]
    if absent:
        raise FileLayoutError(f"{path}: the run has no {', '.join(absent)}.")
    if run.get("status") not in STATUSES:
        raise FileLayoutError(
            f"{path}: status {run.get('status')!r}; expected {', '.join(STATUSES)}."
        )
    for key in NUMBERS:
        try:
            run[key] = math.nan if run.get(key) is None else float(run[key])
        except (TypeError, ValueError):
            raise FileLayoutError(f"{path}: {key} is no number: {run[key]!r}.") from None
    run.update({key: int(run[key]) for key in ("seed", "batch_size")})
    run.update({key: str(run[key]) if run.get(key) else "" for key in WORDS})
    run["warnings"] = "; ".join(map(str, run.get("warnings") or []))
    return run


def _read_csv(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    try:
        table = pd.read_csv(path)
    except (OSError, ValueError) as error:  # which pandas' own errors are too
        raise FileLayoutError(f"{path} cannot be read as CSV: {error}.") from None
    absent = [column for column in columns if column not in table]
    if absent:
        raise FileLayoutError(f"{path}: there is no column {', '.join(absent)}.")
    return table


# -- summary and verdicts --------------------------------------------------------------


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
    shared = ["setting", "model", "dataset", "loss", "batch_size", "optimizer"]
    rows = []
    for setting in runs["setting"].unique():
        of_setting = runs[runs["setting"] == setting]
        for optimizer in figures.in_order(list(of_setting["optimizer"])):
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
            row.update({key: finished[key].mean() for key in (*METRICS, *MEANS)})
            rows.append(row)
    losses = [f"{loss}_{part}" for loss in LOSSES.values() for part in ("mean", "std")]
    counts = ["learning_rate", "gamma", "seeds", *STATUSES, "outcome"]
    return pd.DataFrame(rows, columns=[*shared, *counts, *losses, *METRICS, *MEANS])


Pair = tuple[str, str]  # a challenger and its baseline
PAIRS: tuple[Pair, ...] = (
    ("SCott", "SGD"),
    ("SCott", "SCSG"),
    ("S-Adam", "Adam"),
    ("S-Adagrad", "Adagrad"),
)
STRATIFIED = ("the best stratified mini-batch optimizer", "the best of the others")
LEVEL = 2.0  # standard errors of the difference


def verdicts(runs: pd.DataFrame) -> pd.DataFrame:
    """Who ended lower, in each setting that has both of a pair.

    The difference of the means is measured in its standard error, √(s₁²/n₁ + s₂²/n₂)
    (Welch); below ``LEVEL`` of them two optimizers are level. One that diverged in any
    seed loses. It is undecided if both did, if a seed of either failed, or if there are
    too few seeds for a standard error.

    Parameters
    ----------
    runs
        As ``read_runs`` gives them.

    Returns
    -------
    pandas.DataFrame
        Columns ``setting``, ``loss`` ("training" or "test"), ``comparison``,
        ``challenger``, ``baseline``, their means, ``difference`` (challenger − baseline),
        ``standard_error``, ``errors`` (the one by the other), ``verdict`` ("below",
        "level", "above" or "undecided": where the challenger ended) and ``note``.
    """
    rows = []
    table = summary(runs)
    for setting in table["setting"].unique():
        cells = table[table["setting"] == setting].set_index("optimizer")
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
        *("baseline_mean", "difference", "standard_error", "errors", "verdict", "note"),
    )
    return pd.DataFrame(rows, columns=list(columns))


def verdict_sentences(verdicts: pd.DataFrame) -> str:
    """The verdicts counted, one sentence a line for each comparison and loss."""
    sentences: list[str] = []
    for names in (*PAIRS, STRATIFIED):
        same = verdicts[verdicts["comparison"] == " against ".join(names)]
        for loss in LOSSES:
            rows = same[same["loss"] == loss]
            if len(rows):
                explain = " (difference below two standard errors)" * (not sentences)
                sentences.append(_sentence(rows, loss, names, explain))
    return "\n".join(sentences)


def _sentence(rows: pd.DataFrame, loss: str, names: Pair, explain: str) -> str:
    count = rows["verdict"].value_counts()
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
    return sentence + "."


def _outcome(row: Mapping[str, Any]) -> str:
    """How many seeds did not finish, as "2 of 5 diverged"; empty if all did."""
    counts = [(row[status], status) for status in ("diverged", "failed")]
    return ", ".join(f"{n} of {row['seeds']} {status}" for n, status in counts if n)


def _pairs(cells: pd.DataFrame, column: str) -> list[tuple[Pair, Pair]]:
    """What is compared in a setting: names for the reader, and rows of the table."""
    pairs = [(pair, pair) for pair in PAIRS if set(pair) <= set(cells.index)]
    stratified = [name for name in cells.index if _group(name) == "stratified"]
    others = [name for name in cells.index if _group(name) != "stratified"]
    if stratified and others:
        one = _lowest_of(cells.loc[stratified], column)
        other = _lowest_of(cells.loc[others], column)
        pairs.append((STRATIFIED, (one, other)))
    return pairs


def _lowest_of(cells: pd.DataFrame, column: str) -> str:
    """The optimizer to be compared: the lowest mean of those that always finished."""
    lowest = _lowest(cells, f"{column}_mean")
    return str(lowest[0] if lowest else cells.index[0])


def _lowest(cells: pd.DataFrame, column: str) -> list[Any]:
    """Where the column is lowest, of the rows whose seeds have all finished."""
    values = cells.loc[cells["outcome"] == "", column]
    values = values[np.isfinite(values.astype(float))]
    return list(values.index[values == values.min()])


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
    elif abs(errors) < LEVEL:
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
        "verdict": verdict,
        "note": note,
    }


def _group(optimizer: str) -> str:
    """The paper's groups are by update rule; stratified mini-batches are one more."""
    base, method = figures.OPTIMIZERS.get(optimizer, ("", "other"))
    return base if method in ("plain", "scsg", "scott") else method


# -- tables ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """Text of a table with a note on it, and how it is marked."""

    text: str
    note: str = ""
    bold: bool = False
    star: bool = False


@dataclass(frozen=True)
class Row:
    """A row of a table; ``rule`` says what begins with it: a "block" or a "group"."""

    cells: Sequence[Cell]
    rule: str = ""


@dataclass(frozen=True)
class Table:
    """Rows under a header, with a caption; the first ``labels`` columns are words."""

    header: Sequence[str]
    rows: Sequence[Row]
    caption: str = ""
    labels: int = 2

    def markdown(self) -> str:
        """The table as Markdown, its caption beneath."""
        lines = [
            " | ".join(map(_md, self.header)),
            " | ".join(
                "---" if n < self.labels else "---:" for n in range(len(self.header))
            ),
        ]
        for row in self.rows:
            lines.append(" | ".join(map(self._markdown_cell, row.cells)))
        text = "\n".join(f"| {line} |" for line in lines)
        return f"{text}\n\n{_md(self.caption)}\n" if self.caption else f"{text}\n"

    def html(self) -> str:
        """The table as HTML; what blocks have in common stands once, at their left."""
        heads = "".join(
            f'<th scope="col"{self._kind(n)}>{escape(name)}</th>'
            for n, name in enumerate(self.header)
        )
        body = []
        for number, row in enumerate(self.rows):
            cells = [self._html_cell(c, n) for n, c in enumerate(row.cells)]
            if row.rule == "block" or number == 0:
                height = 1
                for below in self.rows[number + 1 :]:
                    if below.rule == "block":
                        break
                    height += 1
                cells[0] = (
                    f'<th scope="rowgroup" rowspan="{height}">'
                    f"{escape(row.cells[0].text)}</th>"
                )
            else:
                cells = cells[1:]
            body.append(f'<tr class="{row.rule}">{"".join(cells)}</tr>')
        caption = f"<p class='caption'>{escape(self.caption)}</p>" if self.caption else ""
        return (
            f'<div class="wide"><table><thead><tr>{heads}</tr></thead>\n<tbody>\n'
            + "\n".join(body)
            + f"\n</tbody></table></div>\n{caption}"
        )

    @staticmethod
    def _markdown_cell(cell: Cell) -> str:
        text = f"**{_md(cell.text)}**" if cell.bold else _md(cell.text)
        text += " ★" if cell.star else ""
        return f"{text} ({_md(cell.note)})" if cell.note else text

    def _html_cell(self, cell: Cell, column: int) -> str:
        text = f"<strong>{escape(cell.text)}</strong>" if cell.bold else escape(cell.text)
        text += " ★" if cell.star else ""
        text += f"<br><small>{escape(cell.note)}</small>" if cell.note else ""
        return f"<td{self._kind(column)}>{text}</td>"

    def _kind(self, column: int) -> str:
        return "" if column < self.labels else ' class="number"'


def table_markdown(summary: pd.DataFrame) -> str:
    """The paper's table: losses by model, M and optimizer, datasets beside each other."""
    return loss_table(summary).markdown()


def backtest_markdown(summary: pd.DataFrame) -> str:
    """The metrics of the GluonTS backtest, by setting and optimizer."""
    return backtest_table(summary).markdown()


def loss_table(summary: pd.DataFrame) -> Table:
    """The table of ``table_markdown``, for either way of writing it."""
    datasets = list(dict.fromkeys(summary["dataset"]))
    rows = []
    for label, block in _blocks(summary):
        cells = _loss_cells(block)
        group = ""
        for number, optimizer in enumerate(figures.in_order(list(block["optimizer"]))):
            new_group = number > 0 and _group(optimizer) != group
            group = _group(optimizer)
            row = [Cell(label), Cell(optimizer)]
            for dataset in datasets:
                for loss in LOSSES:
                    row.append(cells.get((dataset, optimizer, loss), Cell("")))
            rule = "block" if number == 0 else "group" if new_group else ""
            rows.append(Row(row, rule))
    header = [f"{dataset}, {loss}" for dataset in datasets for loss in LOSSES]
    caption = (
        "Loss after training, mean ± standard deviation over the seeds; lower is better. "
        "Bold: the lowest mean of a group (SGD, SCSG, SCott; Adam, S-Adam; Adagrad, "
        "S-Adagrad). ★: the lowest mean of all optimizers of that setting, also those "
        "beneath the groups. Where seeds diverged or failed, their number stands in the "
        "cell, the mean is that of the other seeds, and the cell is never marked as the "
        "lowest. No ±: one seed."
    )
    return Table(["Setting", "Optimizer", *header], rows, caption)


def backtest_table(summary: pd.DataFrame) -> Table:
    """The table of ``backtest_markdown``, for either way of writing it."""
    rows = []
    for setting in summary["setting"].unique():
        cells = summary[summary["setting"] == setting].set_index("optimizer")
        best = {m: _lowest(cells, m) if len(cells) > 1 else [] for m in METRICS}
        for number, (optimizer, row) in enumerate(cells.iterrows()):
            words = [setting, optimizer, row["outcome"] or f"{row['finished']} finished"]
            values = [Cell(_number(row[m]), bold=optimizer in best[m]) for m in METRICS]
            rows.append(Row([*map(Cell, words), *values], "block" if number == 0 else ""))
    caption = (
        "Backtest on the test range, mean over the seeds that finished; lower is better. "
        "Bold: the lowest of the setting, of those whose seeds have all finished."
    )
    return Table(["Setting", "Optimizer", "Seeds", *METRICS], rows, caption, labels=3)


def _blocks(summary: pd.DataFrame) -> Iterable[tuple[str, pd.DataFrame]]:
    """The blocks of rows: a model with its loss and M, over datasets.

    Settings that differ in none of these but in the budget, say, get blocks of their own.
    """
    key = ["model", "loss", "batch_size"]
    settings = summary.drop_duplicates("setting")
    nth = settings.groupby([*key, "dataset"]).cumcount()
    nth = summary["setting"].map(dict(zip(settings["setting"], nth)))
    for model, loss, batch_size in (
        settings[key].drop_duplicates().itertuples(index=False)
    ):
        same = (summary[key] == [model, loss, batch_size]).all(axis=1)
        for number in sorted(nth[same].unique()):
            block = summary[same & (nth == number)]
            label = f"{model} ({loss}), M = {batch_size}"
            if nth[same].max() > 0:
                label += f": {', '.join(block['setting'].unique())}"
            yield label, block


def _loss_cells(block: pd.DataFrame) -> dict[tuple[str, str, str], Cell]:
    """The cells of a block by dataset, optimizer and loss, with the lowest marked."""
    cells = {}
    for dataset, rows in block.groupby("dataset", sort=False):
        rows = rows.set_index("optimizer")
        groups = rows.index.map(_group)
        for loss, column in LOSSES.items():
            mean = f"{column}_mean"
            bold = set()
            for group in figures.COLOURS:
                of_group = rows[groups == group]
                bold |= set(_lowest(of_group, mean) if len(of_group) > 1 else [])
            star = set(_lowest(rows, mean) if len(rows) > 1 else [])
            for optimizer, row in rows.iterrows():
                text, note = _loss_text(row, column, rows["seeds"].max())
                marks = {"bold": optimizer in bold, "star": optimizer in star}
                cells[dataset, optimizer, loss] = Cell(text, note, **marks)
    return cells


def _loss_text(row: Mapping[str, Any], column: str, seeds: int) -> tuple[str, str]:
    """A loss with its deviation, and what is to be known about its seeds."""
    if not row["finished"]:
        return str(row["outcome"]), ""
    mean, std = row[f"{column}_mean"], row[f"{column}_std"]
    decimals = _decimals(mean, std)
    text = _number(mean, decimals)
    if math.isfinite(std):
        text += f" ± {_number(std, decimals)}"
    fewer = "" if row["seeds"] == seeds else f"{row['seeds']} of {seeds} seeds"
    return text, str(row["outcome"] or fewer)


def _decimals(value: float, spread: float = math.nan) -> int | None:
    """Three decimals, or as many as make four digits; None for powers of ten.

    With a spread, at least as many as show its first digit.
    """
    size = max(abs(value), spread if math.isfinite(spread) else 0.0)
    if not math.isfinite(size) or size >= 1e6 or 0 < size < 1e-4:
        return None
    decimals = 3
    if size and not 0.1 <= size < 10:
        decimals = max(3 - math.floor(math.log10(size)), 0)
    if spread > 0:
        decimals = max(decimals, math.ceil(-math.log10(spread)))
    return min(decimals, 7)


def _number(value: float, decimals: int | None = -1) -> str:
    if math.isnan(value):
        return "–"
    decimals = _decimals(value) if decimals == -1 else decimals
    return f"{value:.3e}" if decimals is None else f"{value:.{decimals}f}"


def _seconds(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.{1 if value >= 10 else 2}f}"


def _md(text: str) -> str:
    """Text that means nothing to Markdown but itself."""
    text = " ".join(escape(text, quote=False).split())
    for character in "\\|*`":
        text = text.replace(character, "\\" + character)
    return text


# -- the page --------------------------------------------------------------------------


@dataclass(frozen=True)
class SettingFolder:
    """A setting in the folder of a benchmark: its config, and what is missing."""

    name: str
    folder: Path
    config: dict[str, Any]
    config_text: str
    missing: list[str]

    @classmethod
    def all(cls, folder: Path, runs: pd.DataFrame) -> list[SettingFolder]:
        """The settings of a benchmark, also those that have no runs yet."""
        where = runs["folder"].astype(str).str.split("/").str[0]
        settings = []
        for path in sorted(folder.iterdir()):
            if (path / "config.yaml").exists() or (path / "runs").is_dir():
                settings.append(cls._read(path, runs[where == path.name]))
        return settings

    @classmethod
    def _read(cls, folder: Path, runs: pd.DataFrame) -> SettingFolder:
        path = folder / "config.yaml"
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        try:
            config = yaml.safe_load(text) or {}
        except yaml.YAMLError as error:
            raise FileLayoutError(f"{path} is not YAML: {error}.") from None
        config = config if isinstance(config, dict) else {}
        found = set(zip(runs["optimizer"], runs["seed"]))
        missing = [
            f"{optimizer}, seed {seed}"
            for optimizer in config.get("optimizers") or {}
            for seed in config.get("seeds") or []
            if (str(optimizer), seed) not in found
        ]
        name = folder.name if runs.empty else str(runs["setting"].iloc[0])
        return cls(name, folder, config, text, missing)


def write_report(folder: str | Path) -> Path:
    """Write tables, verdicts, pictures and a page about all runs in a folder.

    Writes ``runs.csv``, ``table.md``, ``backtest.md``, ``verdicts.csv``,
    ``figures/*.png`` and ``report.html``, which holds all of it in one file and needs
    no network. A benchmark that is not complete gives a report that says what is missing.

    Parameters
    ----------
    folder
        The folder of the benchmark.

    Returns
    -------
    Path
        Of ``report.html``.

    Raises
    ------
    ArgumentError
        If the folder holds no results.
    FileLayoutError
        If a file of the results cannot be read.
    """
    folder = Path(folder)
    runs, curves = read_runs(folder), read_curves(folder)
    settings = SettingFolder.all(folder, runs)
    if not settings:
        raise ArgumentError(
            f"{folder} holds no results: expected <setting>/config.yaml and "
            "<setting>/runs/<optimizer>-seed<k>/run.json."
        )
    cells, decisions = summary(runs), verdicts(runs)
    runs.to_csv(folder / "runs.csv", index=False)
    decisions.to_csv(folder / "verdicts.csv", index=False)
    (folder / "table.md").write_text(table_markdown(cells), encoding="utf-8")
    (folder / "backtest.md").write_text(backtest_markdown(cells), encoding="utf-8")

    parts = [
        _section("What was compared", _compared(settings, runs)),
        _section("Losses", loss_table(cells).html()),
        _section("Verdicts", _verdict_part(decisions)),
        _section("Settings", _contents(settings)),
    ]
    for number, setting in enumerate(settings):
        mine = cells[cells["setting"] == setting.name]
        its_curves = curves[curves["setting"] == setting.name]
        parts.append(_setting_part(number, setting, mine, its_curves, folder / "figures"))
    parts += [
        _section("Backtest", backtest_table(cells).html()),
        _section("Diverged and failed runs", _broken_runs(runs)),
        _section("Warnings", _warnings(runs)),
        _section("Versions", _versions(folder, runs)),
    ]
    page = PAGE.substitute(missing=_missing(settings), parts="\n".join(parts))
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def _missing(settings: Sequence[SettingFolder]) -> str:
    """A box at the top of the page, if the benchmark is not complete."""
    absent = {s.name: s.missing for s in settings if s.missing}
    planned = sum(
        len(s.config.get("optimizers") or {}) * len(s.config.get("seeds") or [])
        for s in settings
    )
    unknown = [
        s.name
        for s in settings
        if not (s.config.get("optimizers") and s.config.get("seeds"))
    ]
    lines = [f"{name}: {'; '.join(runs)}" for name, runs in absent.items()]
    text = ""
    if absent:
        count = sum(map(len, absent.values()))
        text += _p(f"Incomplete: {count} of {planned} runs are missing.") + _list(lines)
    if unknown:
        text += _p(
            "Not known whether complete, for want of optimizers and seeds in "
            f"config.yaml: {', '.join(unknown)}."
        )
    return f'<div class="missing">{text}</div>' if text else ""


def _compared(settings: Sequence[SettingFolder], runs: pd.DataFrame) -> str:
    """What was compared and how, in numbers of the runs."""
    count = runs["status"].value_counts()
    optimizers = figures.in_order(list(runs["optimizer"]))
    text = _p(
        f"Settings: {len(settings)}; optimizers: {len(optimizers)} "
        f"({', '.join(optimizers)}); runs: {len(runs)}, of which "
        + ", ".join(f"{count.get(status, 0)} {status}" for status in STATUSES)
        + "."
    )
    budgets = runs.groupby("setting")["time_budget"].nunique()
    uneven = list(budgets.index[budgets > 1])
    finished = runs[runs["status"] == "finished"]
    used = (finished["seconds"] / finished["time_budget"]).dropna()
    if uneven:
        text += _p(f"The time budgets differ within {', '.join(uneven)}.")
    elif len(used):
        text += _p(
            "All optimizers of a setting train for the same seconds, in one engine."
        )
    if len(used):
        text += _p(
            "Seconds of training hold sampling, anchors, gradients and updates; "
            "stratification, compilation and evaluation are timed apart. Runs that "
            f"finished took {used.min():.0%} to {used.max():.0%} of their budget."
        )
    header = (
        *("Setting", "Budget", "Seeds", "Training, s", "Windows, training"),
        *("Windows, test", "Compilation, s", "Stratification, s", "Evaluation, s"),
    )
    rows = [
        Row(_setting_facts(s, runs[runs["setting"] == s.name]), "block") for s in settings
    ]
    caption = (
        "Seconds are those of a run: the range over all runs that finished for training, "
        "means for the rest. Windows: on how many the losses of the table were "
        "measured, of how many."
    )
    return text + Table(header, rows, caption, labels=1).html()


def _setting_facts(setting: SettingFolder, runs: pd.DataFrame) -> list[Cell]:
    finished = runs[runs["status"] == "finished"]
    gradients = setting.config.get("gradient_budget")
    budget = [f"{seconds:g} s" for seconds in runs["time_budget"].dropna().unique()]
    budget += [f"{gradients} gradients"] if gradients else []
    windows = [
        " of ".join(
            " / ".join(f"{n:.0f}" for n in runs[f"{count}_{part}"].dropna().unique())
            for count in ("evaluated", "windows")
        )
        if runs[f"windows_{part}"].notna().any()
        else "–"
        for part in ("train", "test")
    ]
    means = [
        _seconds(finished[f"{part}_seconds"].mean())
        for part in ("compile", "stratify", "evaluation")
    ]
    seconds = finished["seconds"]
    span = " to ".join(_seconds(t) for t in (seconds.min(), seconds.max()))
    facts = (setting.name, ", ".join(budget), runs["seed"].nunique(), span)
    return [Cell(str(fact)) for fact in (*facts, *windows, *means)]


def _verdict_part(verdicts: pd.DataFrame) -> str:
    """The sentences, and the verdicts that they count."""
    if verdicts.empty:
        return _p("There are no pairs to compare yet.")
    rows = []
    for number, row in verdicts.iterrows():
        words = (f"{row['challenger']} against {row['baseline']}", row["loss"])
        numbers = (_number(row["difference"]), _number(row["errors"]))
        texts = (row["setting"], *words, row["verdict"], row["note"], *numbers)
        new = number == 0 or row["setting"] != verdicts["setting"][number - 1]
        rows.append(Row([Cell(text) for text in texts], "block" if new else ""))
    header = ("Setting", "Optimizers", "Loss", "Ended", "Note", "Difference", "In errors")
    caption = (
        "Difference of the means, negative if the first ended lower, and the same in "
        "standard errors (Welch)."
    )
    table = Table(header, rows, caption, labels=5).html()
    sentences = _list(verdict_sentences(verdicts).splitlines())
    return sentences + _details("Setting by setting", table)


def _contents(settings: Sequence[SettingFolder]) -> str:
    links = (
        f'<li><a href="#setting-{number}">{escape(setting.name)}</a></li>'
        for number, setting in enumerate(settings)
    )
    return f"<ul>{''.join(links)}</ul>"


def _setting_part(
    number: int,
    setting: SettingFolder,
    cells: pd.DataFrame,
    curves: pd.DataFrame,
    folder: Path,
) -> str:
    """Pictures of a setting, what its optimizers spent, and its config."""
    curves = curves[curves["status"] != "failed"]
    pictures = _loss_pictures(setting, cells, curves, folder) if len(curves) else []
    if (setting.folder / "variance.csv").exists():
        pictures.append(_variance_picture(setting, folder))
    parts = [f'<h3 id="setting-{number}">{escape(setting.name)}</h3>']
    if curves.empty:
        parts.append(_p("There are no curves yet."))
    parts.append(f'<div class="pictures">{"".join(pictures)}</div>')
    if len(cells):
        parts.append(_details("Step sizes and what was spent", _spent(cells).html()))
    if setting.config_text:
        config = f"<pre>{escape(setting.config_text)}</pre>"
        parts.append(_details("Config", config))
    return f"<section>{''.join(parts)}</section>"


def _loss_pictures(
    setting: SettingFolder, cells: pd.DataFrame, curves: pd.DataFrame, folder: Path
) -> list[str]:
    loss = cells["loss"].iloc[0]
    notes = dict(zip(cells["optimizer"], cells["outcome"]))
    windows = setting.config.get("curve_windows")
    drawn = {"training": figures.training_figure(curves, loss, notes)}
    if curves["test_loss"].notna().any():
        drawn["test"] = figures.held_out_figure(curves, loss, notes)
    pictures = []
    for name, figure in drawn.items():
        path = folder / f"{setting.folder.name}-{name}.png"
        caption = (
            f"{loss} on {f'up to {windows} ' if windows else ''}{name} windows. Mean "
            "over the seeds, band: ± one standard deviation. A curve goes as far as all "
            "of its seeds."
        )
        pictures.append(_picture(figure, path, caption))
    return pictures


def _variance_picture(setting: SettingFolder, folder: Path) -> str:
    table = _read_csv(setting.folder / "variance.csv", VARIANCE)
    caption = "Variance of the gradient samplers along training, ± one standard error."
    if "note" in table:
        caption += "".join(f" * {note}." for note in table["note"].dropna().unique())
    path = folder / f"{setting.folder.name}-variance.png"
    return _picture(figures.variance_figure(table), path, caption)


def _picture(figure: Figure, path: Path, caption: str) -> str:
    cut = figures.cut_off(figure)
    if cut:
        curves = "; ".join(f"{name}, up to {top:.3g}" for name, top in cut.items())
        caption += f" Cut off at the upper edge: {curves}."
    data = base64.b64encode(figures.save(figure, path).read_bytes()).decode()
    return (
        f'<figure><div class="wide"><img src="data:image/png;base64,{data}" '
        f'alt="{escape(caption)}"></div><figcaption>{escape(caption)}</figcaption></figure>'
    )


def _spent(cells: pd.DataFrame) -> Table:
    """Step sizes of the optimizers, and what they spent."""
    rows = []
    for _, row in cells.iterrows():
        rates = [
            "–" if math.isnan(row[k]) else f"{row[k]:g}"
            for k in ("learning_rate", "gamma")
        ]
        counts = [
            "–" if math.isnan(row[k]) else f"{row[k]:,.0f}".replace(",", "\u202f")
            for k in ("steps", "gradients", "anchors")
        ]
        words = (row["optimizer"], *rates, *counts, _seconds(row["seconds"]))
        rows.append(Row([Cell(word) for word in words], "block"))
    header = ("Optimizer", "Step size", "γ", "Steps", "Gradients", "Anchors", "Seconds")
    return Table(header, rows, "Means over the seeds that finished.", labels=1)


def _broken_runs(runs: pd.DataFrame) -> str:
    broken = runs[runs["status"] != "finished"]
    if broken.empty:
        return _p("None.")
    rows = []
    for _, run in broken.iterrows():
        steps = "" if math.isnan(run["steps"]) else f"after {run['steps']:.0f} steps"
        words = (run["optimizer"], run["seed"], run["status"], run["error"] or steps)
        rows.append(Row([Cell(str(word)) for word in (run["setting"], *words)], "block"))
    header = ("Setting", "Optimizer", "Seed", "Status", "Message")
    return Table(header, rows, labels=len(header)).html()


def _warnings(runs: pd.DataFrame) -> str:
    """What the runs warned of, each once, with the number of runs."""
    count = runs.loc[runs["warnings"] != "", ["setting", "warnings"]].value_counts()
    lines = [
        f"{setting}, {number} run{'s' * (number > 1)}: {text}"
        for (setting, text), number in count.items()
    ]
    return _list(lines) or _p("None.")


def _versions(folder: Path, runs: pd.DataFrame) -> str:
    """Versions of the first run that has them, and where others differ."""
    found: dict[str, dict[str, Any]] = {}
    for run in runs["folder"]:
        path = folder / run / "versions.json"
        if path.exists():
            try:
                found[run] = dict(json.loads(path.read_text(encoding="utf-8")))
            except (OSError, TypeError, ValueError) as error:
                raise FileLayoutError(f"{path} cannot be read: {error}.") from None
    if not found:
        return _p("No run has recorded them.")
    first, versions = next(iter(found.items()))
    rows = [Row([Cell(str(k)), Cell(str(v))], "block") for k, v in versions.items()]
    text = Table(("Package", "Version"), rows, f"Of {first}.").html()
    others = [run for run, its in found.items() if its != versions]
    if not others:
        return text + _p(f"The same in all {len(found)} runs that recorded them.")
    lines = []
    for run in others:
        its = found[run]
        keys = [k for k in {**versions, **its} if its.get(k) != versions.get(k)]
        lines.append(f"{run}: {', '.join(f'{k} {its.get(k)}' for k in keys)}")
    return text + _p(f"{len(others)} of {len(found)} runs differ:") + _list(lines)


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>\n{content}</section>"


def _details(title: str, content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def _p(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def _list(items: Sequence[str]) -> str:
    lines = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f"<ul>{lines}</ul>" if items else ""


PAGE = Template("""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Benchmark of optimizers</title>
<style>
:root { color-scheme: light dark; --line: #8886; --soft: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: auto;
  padding: 0 1rem 3rem; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); }
h3 { margin-top: 2.5rem; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; }
th, td { padding: .2rem .6rem; text-align: left; vertical-align: top; }
thead th { border-bottom: 2px solid var(--line); vertical-align: bottom; }
tr.block > * { border-top: 1px solid var(--line); }
tr.group > td { border-top: 1px dotted var(--line); }
tbody th { min-width: 6.5rem; }
td:nth-child(-n+2) { white-space: nowrap; }
.number { text-align: right; }
td.number { white-space: nowrap; font-variant-numeric: tabular-nums; }
.caption, figcaption { font-size: .85rem; opacity: .8; }
.pictures { display: flex; flex-wrap: wrap; gap: 1rem 2rem; }
figure { margin: 0; flex: 0 1 31rem; min-width: 0; }
figure:first-child { flex-basis: 100%; }
figure img { width: 100%; min-width: 22rem; background: white; }
figure:first-child img { min-width: 44rem; }
details { margin: .6rem 0; }
pre { background: var(--soft); padding: .8rem; overflow-x: auto; font-size: .8rem; }
.missing { border: 2px solid #d55e00; padding: 0 1rem; margin: 1rem 0; }
@media print {
  body { max-width: none; font-size: 11px; }
  .wide { overflow: visible; }
  table, .caption, figcaption { font-size: 8px; }
  figure img, figure:first-child img { min-width: 0; }
  figure, tr { break-inside: avoid; }
}
</style>
</head>
<body>
<h1>Benchmark of optimizers</h1>
$missing
$parts
</body>
</html>
""")
