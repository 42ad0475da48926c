"""Tables of a benchmark, losses and backtest, as data and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import pandas as pd

from pts_scott.experiments.report.families import plain_partner
from pts_scott.experiments.report.formatting import format_mean, format_number
from pts_scott.experiments.report.summary import lowest_rows
from pts_scott.experiments.report.welch import SIGNIFICANCE_LEVEL, Difference, Sample
from pts_scott.experiments.results import LOSS_COLUMNS, METRICS, sort_optimizers

BOLD_CAPTION = (
    "Bold: better than the plain optimizer with the same update rule by Welch's test "
    f"(p < {SIGNIFICANCE_LEVEL:g}), with all seeds of both finished. ★: the lowest mean "
    "in the setting of those whose seeds all finished, whether or not a test confirms it."
)


@dataclass(frozen=True)
class Cell:
    """The text of a table cell, a note on it, its marks, and how it looks and sorts."""

    text: str
    note: str = ""
    bold: bool = False
    star: bool = False
    value: float | None = None  # what a numeric cell is sorted by
    tone: str = ""  # a verdict, shown as a colour


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

    @property
    def has_blocks(self) -> bool:
        """Whether some rows share their first cell."""
        return any(row.rule != "block" for row in self.rows)

    def blocks(self) -> list[list[Row]]:
        """Return the rows by block; the rows of a block share their first cell.

        A table without blocks, all of whose rows would start one, is one block.
        """
        if not self.has_blocks:
            return [list(self.rows)]
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
        rules = dict(zip(block["optimizer"], block["rule"]))
        previous = None
        for optimizer in sort_optimizers(block["optimizer"], rules):
            row = [Cell(label), Cell(optimizer)]
            for dataset in datasets:
                for loss in LOSS_COLUMNS:
                    row.append(cells.get((dataset, optimizer, loss), Cell("")))
            rule = "" if rules[optimizer] == previous else "group"
            rows.append(Row(row, "block" if previous is None else rule))
            previous = rules[optimizer]
    header = [f"{dataset}, {loss}" for dataset in datasets for loss in LOSS_COLUMNS]
    caption = (
        "Loss after training, mean ± standard deviation over the seeds; lower is better. "
        f"{BOLD_CAPTION} If seeds diverged or failed, the cell says how many, and its "
        "mean is over the others. A cell without ± has one seed."
    )
    return Table(["Setting", "Optimizer", *header], rows, caption)


def backtest_table(summary: pd.DataFrame) -> Table:
    """Return the metrics of the GluonTS backtest by setting and optimizer."""
    rows = []
    for setting, cells in summary.groupby("setting", sort=False):
        cells = cells.set_index("optimizer")
        for number, (optimizer, row) in enumerate(cells.iterrows()):
            labels = [setting, optimizer, row["outcome"] or f"{row['finished']} finished"]
            values = [
                Cell(
                    format_number(row[f"{metric}_mean"]),
                    bold=_is_better(cells, str(optimizer), metric),
                    star=_is_lowest(cells, str(optimizer), metric),
                    value=row[f"{metric}_mean"],
                )
                for metric in METRICS
            ]
            rule = "block" if number == 0 else ""
            rows.append(Row([*map(Cell, map(str, labels)), *values], rule))
    caption = (
        "Backtest on the test range, mean over the seeds that finished; lower is better. "
        f"{BOLD_CAPTION}"
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
    """Return the cells of a block by dataset, optimizer and loss, with their marks."""
    cells = {}
    for dataset, rows in block.groupby("dataset", sort=False):
        rows = rows.set_index("optimizer")
        for loss, column in LOSS_COLUMNS.items():
            for optimizer, row in rows.iterrows():
                name = str(optimizer)
                cells[dataset, optimizer, loss] = Cell(
                    *_loss_text(row, column, rows["seeds"].max()),
                    bold=_is_better(rows, name, column),
                    star=_is_lowest(rows, name, column),
                    value=row[f"{column}_mean"],
                )
    return cells


def _is_better(cells: pd.DataFrame, optimizer: str, column: str) -> bool:
    """Return whether a test finds an optimizer better than its plain partner."""
    partner = plain_partner(cells, optimizer)
    if partner is None or partner == optimizer:
        return False
    pair = (Sample.of(cells.loc[name], column) for name in (optimizer, partner))
    difference = Difference(*pair)
    return difference.distinguished and difference.value < 0


def _is_lowest(cells: pd.DataFrame, optimizer: str, column: str) -> bool:
    return len(cells) > 1 and optimizer in lowest_rows(cells, f"{column}_mean")


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
