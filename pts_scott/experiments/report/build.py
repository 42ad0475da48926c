"""The report of a benchmark: its runs as tables, verdicts, pictures and one page."""

from __future__ import annotations

import base64
from html import escape
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from pts_scott.errors import ArgumentError
from pts_scott.experiments.report import figures, page
from pts_scott.experiments.report.tables import (
    backtest_markdown,
    backtest_table,
    loss_table,
    table_markdown,
)
from pts_scott.experiments.report.verdicts import summary, verdicts
from pts_scott.experiments.results import (
    SettingFolder,
    read_curves,
    read_runs,
    read_variance,
    read_versions,
    refuse_links,
)


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
        If a file of the results cannot be read, or two folders hold the same run.
    ScottError
        If a link in the folder leads out of it.
    """
    folder = Path(folder)
    refuse_links(folder, folder)
    runs = read_runs(folder)
    curves = read_curves(folder, runs)
    settings = SettingFolder.all(folder, runs)
    if not settings:
        raise ArgumentError(
            f"{folder} holds no results: expected <setting>/config.yaml and "
            "<setting>/runs/<optimizer>-seed<k>/run.json."
        )
    cells, verdict_rows = summary(runs), verdicts(runs)
    runs.to_csv(folder / "runs.csv", index=False)
    verdict_rows.to_csv(folder / "verdicts.csv", index=False)
    (folder / "table.md").write_text(table_markdown(cells), encoding="utf-8")
    (folder / "backtest.md").write_text(backtest_markdown(cells), encoding="utf-8")

    parts = [
        page.section("What was compared", page.compared(settings, runs)),
        page.section("Losses", loss_table(cells).html()),
        page.section("Verdicts", page.decisions(verdict_rows)),
        page.section("Settings", page.contents(settings)),
    ]
    for number, setting in enumerate(settings):
        mine = cells[cells["setting"] == setting.name]
        its_curves = curves[curves["setting"] == setting.name]
        parts.append(_setting_part(number, setting, mine, its_curves, folder / "figures"))
    parts += [
        page.section("Backtest", backtest_table(cells).html()),
        page.section("Diverged and failed runs", page.broken_runs(runs)),
        page.section("Warnings", page.warnings(runs)),
        page.section("Versions", page.versions(read_versions(folder, runs))),
    ]
    text = page.PAGE.substitute(missing=page.missing(settings), parts="\n".join(parts))
    path = folder / "report.html"
    path.write_text(text, encoding="utf-8")
    return path


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
    variance = read_variance(setting.folder)
    if variance is not None:
        pictures.append(_variance_picture(setting, variance, folder))
    parts = [f'<h3 id="setting-{number}">{escape(setting.name)}</h3>']
    if curves.empty:
        parts.append(page.paragraph("There are no curves yet."))
    parts.append(f'<div class="pictures">{"".join(pictures)}</div>')
    if len(cells):
        parts.append(page.details("Step sizes and what was spent", page.spent(cells)))
    if setting.config_text:
        config = f"<pre>{escape(setting.config_text)}</pre>"
        parts.append(page.details("Config", config))
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


def _variance_picture(setting: SettingFolder, table: pd.DataFrame, folder: Path) -> str:
    caption = (
        "Variance of one step's gradient under each sampler along training, at equal "
        "cost, ± one standard error."
    )
    if "loop_relative" in table:
        last = table[table["seconds"] == table["seconds"].max()].dropna(
            subset=["loop_relative"]
        )
        told = [
            f"{figures.sampler_label(row)} {row['loop_relative']:.2g}"
            for _, row in last[last["sampler"] != "uniform"].iterrows()
        ]
        if told:
            caption += (
                " The error of an anchor is the same in all steps that it serves and "
                "does not average out: the variance of the mean over these steps, at the "
                f"end of the run and over that of uniform sampling, is "
                f"{', '.join(told)}."
            )
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
