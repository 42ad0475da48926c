"""Tables of a benchmark, losses and backtest, as data and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import pandas as pd

from pts_scott.experiments.report.formatting import format_mean, format_number
from pts_scott.experiments.report.summary import lowest_rows, optimizer_group
from pts_scott.experiments.results import (
    LOSS_COLUMNS,
    METRICS,
    UPDATE_RULES,
    sort_optimizers,
)


@dataclass(frozen=True)
class Cell:
    """The text of a table cell, a note on it, and its marks."""

    text: str
    note: str = ""
    bold: bool = False
    star: bool = False


@dataclass(frozen=True)
class Row:
    """A row of a table; ``rule`` says what starts with it: a "block" or a "group"."""

    cells: Sequence[Cell]
    rule: str = ""

    @classmethod
    def of(cls, *values: object, rule: str = "block") -> Row:
        """Make a row of cells without notes or marks."""
        return cls([Cell(str(value)) for value in values], rule)


@dataclass(frozen=True)
class Table:
    """Rows under a header, with a caption; the first ``labels`` columns hold text."""

    header: Sequence[str]
    rows: Sequence[Row]
    caption: str = ""
    labels: int = 2

    def blocks(self) -> list[list[Row]]:
        """Return the rows by block; the rows of a block share their first cell."""
        blocks: list[list[Row]] = []
        for row in self.rows:
            if row.rule == "block" or not blocks:
                blocks.append([])
            blocks[-1].append(row)
        return blocks

    def markdown(self) -> str:
        """Return the table as Markdown, with the caption below."""
        lines = [
            " | ".join(map(_escape_markdown, self.header)),
            " | ".join(
                "---" if n < self.labels else "---:" for n in range(len(self.header))
            ),
        ]
        for row in self.rows:
            lines.append(" | ".join(map(self._markdown_cell, row.cells)))
        text = "\n".join(f"| {line} |" for line in lines)
        caption = f"\n{_escape_markdown(self.caption)}\n" if self.caption else ""
        return f"{text}\n{caption}"

    @staticmethod
    def _markdown_cell(cell: Cell) -> str:
        text = _escape_markdown(cell.text)
        text = f"**{text}**" if cell.bold else text
        text += " ★" if cell.star else ""
        return f"{text} ({_escape_markdown(cell.note)})" if cell.note else text


def table_markdown(summary: pd.DataFrame) -> str:
    """Return the loss table as Markdown."""
    return loss_table(summary).markdown()


def backtest_markdown(summary: pd.DataFrame) -> str:
    """Return the backtest table as Markdown."""
    return backtest_table(summary).markdown()


def loss_table(summary: pd.DataFrame) -> Table:
    """Return the paper's table: losses by model, M and optimizer, datasets in columns."""
    datasets = list(dict.fromkeys(summary["dataset"]))
    rows = []
    for label, block in _blocks(summary):
        cells = _loss_cells(block)
        group = ""
        for number, optimizer in enumerate(sort_optimizers(block["optimizer"])):
            new_group = number > 0 and optimizer_group(optimizer) != group
            group = optimizer_group(optimizer)
            row = [Cell(label), Cell(optimizer)]
            for dataset in datasets:
                for loss in LOSS_COLUMNS:
                    row.append(cells.get((dataset, optimizer, loss), Cell("")))
            rule = "block" if number == 0 else "group" if new_group else ""
            rows.append(Row(row, rule))
    header = [f"{dataset}, {loss}" for dataset in datasets for loss in LOSS_COLUMNS]
    caption = (
        "Loss after training, mean ± standard deviation over the seeds; lower is better. "
        "Bold: the lowest mean of a group (SGD, SCSG, SCott; Adam, S-Adam; Adagrad, "
        "S-Adagrad). ★: the lowest mean of all optimizers in that setting, including "
        "those outside the groups. If seeds diverged or failed, the cell shows how many, "
        "its mean is over the other seeds, and it is never marked as the lowest. No ±: "
        "one seed."
    )
    return Table(["Setting", "Optimizer", *header], rows, caption)


def backtest_table(summary: pd.DataFrame) -> Table:
    """Return the metrics of the GluonTS backtest by setting and optimizer."""
    rows = []
    for setting, cells in summary.groupby("setting", sort=False):
        cells = cells.set_index("optimizer")
        best = {m: lowest_rows(cells, m) if len(cells) > 1 else [] for m in METRICS}
        for number, (optimizer, row) in enumerate(cells.iterrows()):
            labels = [setting, optimizer, row["outcome"] or f"{row['finished']} finished"]
            values = [
                Cell(format_number(row[m]), bold=optimizer in best[m]) for m in METRICS
            ]
            rule = "block" if number == 0 else ""
            rows.append(Row([*map(Cell, labels), *values], rule))
    caption = (
        "Backtest on the test range, mean over the seeds that finished; lower is better. "
        "Bold: the lowest in the setting among optimizers whose seeds all finished."
    )
    return Table(["Setting", "Optimizer", "Seeds", *METRICS], rows, caption, labels=3)


def _blocks(summary: pd.DataFrame) -> Iterable[tuple[str, pd.DataFrame]]:
    """Yield the blocks of rows with their labels: one model, loss and M per block.

    Settings that agree in all of these and in the dataset, but differ e.g. in the budget,
    get separate blocks.
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
    """Return the cells of a block by dataset, optimizer and loss, the lowest marked."""
    cells = {}
    for dataset, rows in block.groupby("dataset", sort=False):
        rows = rows.set_index("optimizer")
        groups = rows.index.map(optimizer_group)
        for loss, column in LOSS_COLUMNS.items():
            mean = f"{column}_mean"
            bold = set()
            for update_rule in UPDATE_RULES:
                group = rows[groups == update_rule]
                bold |= set(lowest_rows(group, mean) if len(group) > 1 else [])
            star = set(lowest_rows(rows, mean) if len(rows) > 1 else [])
            for optimizer, row in rows.iterrows():
                text, note = _loss_text(row, column, rows["seeds"].max())
                marks = {"bold": optimizer in bold, "star": optimizer in star}
                cells[dataset, optimizer, loss] = Cell(text, note, **marks)
    return cells


def _loss_text(row: Mapping[str, Any], column: str, seeds: int) -> tuple[str, str]:
    """Return a loss with its deviation, and a note on its seeds."""
    if not row["finished"]:
        return str(row["outcome"]), ""
    text = format_mean(row[f"{column}_mean"], row[f"{column}_std"])
    fewer = "" if row["seeds"] == seeds else f"{row['seeds']} of {seeds} seeds"
    return text, str(row["outcome"] or fewer)


def _escape_markdown(text: str) -> str:
    """Escape characters that have a meaning in Markdown or HTML."""
    text = " ".join(escape(text, quote=False).split())
    for character in "\\|*`":
        text = text.replace(character, "\\" + character)
    return text
