"""Write the report of a benchmark: tables, verdicts, figures and one HTML page."""

from __future__ import annotations

import base64
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from pts_scott.errors import ArgumentError
from pts_scott.experiments.report import figures, page
from pts_scott.experiments.report.render import render_page
from pts_scott.experiments.report.summary import summarize_runs
from pts_scott.experiments.report.tables import (
    backtest_markdown,
    backtest_table,
    loss_table,
    table_markdown,
)
from pts_scott.experiments.report.verdicts import compute_verdicts
from pts_scott.experiments.results import (
    SettingFolder,
    read_curves,
    read_runs,
    read_variance,
    read_versions,
    refuse_links,
)


def write_report(folder: str | Path) -> Path:
    """Write tables, verdicts, figures and a page about all runs in a folder.

    Writes ``runs.csv``, ``table.md``, ``backtest.md``, ``verdicts.csv``,
    ``figures/*.png`` and ``report.html``, a self-contained page with all of it that needs
    no network. The report of an incomplete benchmark lists the missing runs.

    Parameters
    ----------
    folder
        The folder of the benchmark.

    Returns
    -------
    Path
        The path of ``report.html``.

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
    settings = SettingFolder.read_all(folder, runs)
    if not settings:
        raise ArgumentError(
            f"{folder} holds no results: expected <setting>/config.yaml and "
            "<setting>/runs/<optimizer>-seed<k>/run.json."
        )
    summary, verdicts = summarize_runs(runs), compute_verdicts(runs)
    runs.to_csv(folder / "runs.csv", index=False)
    verdicts.to_csv(folder / "verdicts.csv", index=False)
    (folder / "table.md").write_text(table_markdown(summary), encoding="utf-8")
    (folder / "backtest.md").write_text(backtest_markdown(summary), encoding="utf-8")

    setting_parts = [
        _setting_part(
            setting,
            summary[summary["setting"] == setting.name],
            curves[curves["setting"] == setting.name],
            folder / "figures",
        )
        for setting in settings
    ]
    facts = page.ReportPage(
        completeness=page.collect_completeness(settings),
        comparison=page.collect_comparison(settings, runs),
        losses=loss_table(summary),
        verdicts=page.collect_verdicts(verdicts),
        settings=setting_parts,
        backtest=backtest_table(summary),
        unfinished_runs=page.unfinished_runs_table(runs),
        warnings=page.collect_warnings(runs),
        versions=page.collect_versions(read_versions(folder, runs)),
    )
    path = folder / "report.html"
    path.write_text(render_page(facts), encoding="utf-8")
    return path


def _setting_part(
    setting: SettingFolder, cells: pd.DataFrame, curves: pd.DataFrame, folder: Path
) -> page.SettingPart:
    """Draw the figures of a setting and collect its part of the page."""
    curves = curves[curves["status"] != "failed"]
    images = _loss_images(setting, cells, curves, folder) if len(curves) else []
    variance = read_variance(setting.folder)
    if variance is not None:
        path = folder / f"{setting.folder.name}-variance.png"
        figure = figures.variance_figure(variance)
        images.append(_image(figure, path, _variance_caption(variance)))
    return page.SettingPart(
        name=setting.name,
        has_curves=len(curves) > 0,
        figures=images,
        costs=page.cost_table(cells) if len(cells) else None,
        config_text=setting.config_text,
    )


def _loss_images(
    setting: SettingFolder, cells: pd.DataFrame, curves: pd.DataFrame, folder: Path
) -> list[page.FigureImage]:
    loss = cells["loss"].iloc[0]
    notes = dict(zip(cells["optimizer"], cells["outcome"]))
    windows = setting.config.get("curve_windows")
    drawn = {"training": figures.training_figure(curves, loss, notes)}
    if curves["test_loss"].notna().any():
        drawn["test"] = figures.held_out_figure(curves, loss, notes)
    images = []
    for name, figure in drawn.items():
        path = folder / f"{setting.folder.name}-{name}.png"
        caption = (
            f"{loss} on {f'up to {windows} ' if windows else ''}{name} windows. Mean "
            "over the seeds, band: ± one standard deviation. A curve ends where the "
            "first of its seeds ends."
        )
        images.append(_image(figure, path, caption))
    return images


def _variance_caption(variance: pd.DataFrame) -> str:
    caption = (
        "Variance of the gradient of one step under each sampler during training, at "
        "equal cost, ± one standard error."
    )
    if "loop_relative" in variance:
        at_end = variance["seconds"] == variance["seconds"].max()
        last = variance[at_end].dropna(subset=["loop_relative"])
        ratios = [
            f"{figures.sampler_label(row)} {row['loop_relative']:.2g}"
            for _, row in last[last["sampler"] != "uniform"].iterrows()
        ]
        if ratios:
            caption += (
                " The error of an anchor is shared by all steps that use it and does not "
                "average out: the variance of the mean over these steps, at the end of "
                f"the run and relative to uniform sampling, is {', '.join(ratios)}."
            )
    if "note" in variance:
        caption += "".join(f" * {note}." for note in variance["note"].dropna().unique())
    return caption


def _image(figure: Figure, path: Path, caption: str) -> page.FigureImage:
    """Save a figure and return it with its caption, which names cut-off curves."""
    cut_off = figures.cut_off_curves(figure)
    if cut_off:
        curves = "; ".join(f"{name}, up to {top:.3g}" for name, top in cut_off.items())
        caption += f" Cut off at the upper edge: {curves}."
    png = base64.b64encode(figures.save_figure(figure, path).read_bytes()).decode()
    return page.FigureImage(png, caption)
