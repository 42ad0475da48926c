"""Tables of a benchmark: losses and backtest, as Markdown and as HTML."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import takewhile
from typing import Any

import pandas as pd

from pts_scott.experiments.report.verdicts import group_of, lowest
from pts_scott.experiments.results import GROUPS, LOSSES, METRICS, in_order


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

    @classmethod
    def of(cls, *words: object, rule: str = "block") -> Row:
        """A row of plain cells."""
        return cls([Cell(str(word)) for word in words], rule)


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
                below = takewhile(lambda r: r.rule != "block", self.rows[number + 1 :])
                height = 1 + len(list(below))
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
        for number, optimizer in enumerate(in_order(block["optimizer"])):
            new_group = number > 0 and group_of(optimizer) != group
            group = group_of(optimizer)
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
    for setting, cells in summary.groupby("setting", sort=False):
        cells = cells.set_index("optimizer")
        best = {m: lowest(cells, m) if len(cells) > 1 else [] for m in METRICS}
        for number, (optimizer, row) in enumerate(cells.iterrows()):
            words = [setting, optimizer, row["outcome"] or f"{row['finished']} finished"]
            values = [
                Cell(number_text(row[m]), bold=optimizer in best[m]) for m in METRICS
            ]
            rows.append(Row([*map(Cell, words), *values], "block" if number == 0 else ""))
    caption = (
        "Backtest on the test range, mean over the seeds that finished; lower is better. "
        "Bold: the lowest of the setting, of those whose seeds have all finished."
    )
    return Table(["Setting", "Optimizer", "Seeds", *METRICS], rows, caption, labels=3)


def number_text(value: float, decimals: int | None = -1) -> str:
    """A loss or a metric; by default with the decimals that its size asks for."""
    decimals = _decimals(value) if decimals == -1 else decimals
    return known(value, ".3e" if decimals is None else f".{decimals}f")


def seconds_text(value: float) -> str:
    """Seconds, to a tenth from ten on."""
    return known(value, ".1f" if value >= 10 else ".2f")


def known(value: float, form: str) -> str:
    """The number in the given form; a dash where there is none."""
    return "–" if math.isnan(value) else format(value, form)


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
        groups = rows.index.map(group_of)
        for loss, column in LOSSES.items():
            mean = f"{column}_mean"
            bold = set()
            for group in GROUPS:
                of_group = rows[groups == group]
                bold |= set(lowest(of_group, mean) if len(of_group) > 1 else [])
            star = set(lowest(rows, mean) if len(rows) > 1 else [])
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
    text = number_text(mean, decimals)
    if math.isfinite(std):
        text += f" ± {number_text(std, decimals)}"
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


def _md(text: str) -> str:
    """Text that means nothing to Markdown but itself."""
    text = " ".join(escape(text, quote=False).split())
    for character in "\\|*`":
        text = text.replace(character, "\\" + character)
    return text
