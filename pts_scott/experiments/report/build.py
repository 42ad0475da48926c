"""Write the report of a benchmark: tables, verdicts, figures and one HTML page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from pts_scott.errors import ArgumentError
from pts_scott.experiments.report import captions, comparison_tables, figures, page
from pts_scott.experiments.report.curves import average_measurements
from pts_scott.experiments.report.headline import equal_budget, headline
from pts_scott.experiments.report.reach import compute_reach
from pts_scott.experiments.report.render import render_page
from pts_scott.experiments.report.summary import summarize_runs
from pts_scott.experiments.report.tables import (
    Table,
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

    Writes ``report.html``, a self-contained page with everything that needs no network,
    and what it is made of: ``runs.csv``, ``summary.csv`` (means over the seeds),
    ``verdicts.csv``, ``reach.csv`` (costs of the plain optimizer's final loss),
    ``curves.csv`` (mean curves), ``variance.csv`` if it was measured, the tables
    ``table.md``, ``backtest.md`` and ``verdicts.md``, and ``figures/*.png``. The report
    of an incomplete benchmark lists the missing runs.

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
    results = Results.read(folder)
    if not results.settings:
        raise ArgumentError(
            f"{folder} holds no results: expected <setting>/config.yaml and "
            "<setting>/runs/<optimizer>-seed<k>/run.json."
        )
    results.write_tables(folder)
    images = Images(folder / "figures")
    runs, summary, settings = results.runs, results.summary, results.settings
    facts = page.ReportPage(
        headline=headline(runs, summary, results.verdicts, results.reach),
        completeness=page.collect_completeness(settings),
        overview=results.overview(images),
        losses=loss_table(summary),
        settings=[results.setting_part(setting, images) for setting in settings],
        comparison=page.collect_comparison(settings, runs),
        backtest=backtest_table(summary),
        unfinished_runs=page.unfinished_runs_table(runs),
        warnings=page.collect_warnings(runs),
        versions=page.collect_versions(read_versions(folder, runs)),
    )
    path = folder / "report.html"
    path.write_text(render_page(facts), encoding="utf-8")
    return path


@dataclass(frozen=True)
class Images:
    """Writes figures into a folder, and returns them for the page."""

    folder: Path

    def add(self, name: str, figure: Figure, caption: str) -> page.FigureImage:
        """Write a figure as PNG, and return it as SVG with its caption."""
        svg = figures.figure_svg(figure, name)
        figures.save_figure(figure, self.folder / f"{name}.png")
        return page.FigureImage(svg, caption)


@dataclass(frozen=True)
class Results:
    """The runs of a benchmark and the tables computed from them."""

    runs: pd.DataFrame
    curves: pd.DataFrame
    settings: list[SettingFolder]
    summary: pd.DataFrame
    verdicts: pd.DataFrame
    reach: pd.DataFrame

    @classmethod
    def read(cls, folder: Path) -> Results:
        """Read a folder."""
        runs = read_runs(folder)
        curves = read_curves(folder, runs)
        summary = summarize_runs(runs)
        return cls(
            runs,
            curves,
            SettingFolder.read_all(folder, runs),
            summary,
            compute_verdicts(runs, curves),
            compute_reach(summary, curves),
        )

    def write_tables(self, folder: Path) -> None:
        """Write the CSV and Markdown files."""
        variance = {s.name: read_variance(s.folder) for s in self.settings}
        measured = [v.assign(setting=n) for n, v in variance.items() if v is not None]
        tables = {
            "runs": self.runs,
            "summary": self.summary,
            "verdicts": self.verdicts,
            "reach": self.reach,
            "curves": average_measurements(self.curves),
            **({"variance": pd.concat(measured)} if measured else {}),
        }
        for name, table in tables.items():
            table.to_csv(folder / f"{name}.csv", index=False)
        texts = {
            "table": table_markdown(self.summary),
            "backtest": backtest_markdown(self.summary),
            "verdicts": "\n".join(t.markdown() for t in self._verdict_tables()),
        }
        for name, text in texts.items():
            (folder / f"{name}.md").write_text(text, encoding="utf-8")

    def overview(self, images: Images) -> page.Overview:
        """Return the comparison with plain optimizers over all settings."""
        if self.verdicts.empty:
            return page.Overview(None, None, [])
        counts, matrix = self._verdict_tables()
        drawn: list[page.FigureImage] = []
        for loss in ("test", "training"):
            rows = self.reach[(self.reach["loss"] == loss) & self.reach["target"].notna()]
            if len(rows) and not drawn:
                figure = figures.reach_figure(rows)
                drawn.append(images.add("reach", figure, captions.reach_caption(loss)))
        return page.Overview(counts, matrix, drawn)

    def setting_part(self, setting: SettingFolder, images: Images) -> page.SettingPart:
        """Draw the figures of a setting and collect its part of the page."""
        cells, verdicts, reach, curves = (
            table[table["setting"] == setting.name]
            for table in (self.summary, self.verdicts, self.reach, self.curves)
        )
        curves = curves[curves["status"] != "failed"]
        tables: dict[str, Table] = {}
        if len(verdicts):
            equal = equal_budget(self.runs[self.runs["setting"] == setting.name])
            table = comparison_tables.setting_verdict_table(verdicts, equal)
            tables["Verdicts"] = table
        if len(reach):
            table = comparison_tables.reach_table(reach)
            tables["What it takes to reach the plain optimizer's final loss"] = table
        if len(cells):
            tables["Step sizes and costs"] = page.cost_table(cells)
        drawn = self._loss_figures(setting, cells, curves, images) if len(curves) else []
        variance = read_variance(setting.folder)
        if variance is not None:
            figure = figures.variance_figure(variance)
            caption = captions.variance_caption(variance)
            drawn.append(images.add(f"{setting.folder.name}-variance", figure, caption))
        return page.SettingPart(
            setting.name, len(curves) > 0, drawn, tables, setting.config_text
        )

    def _verdict_tables(self) -> tuple[Table, Table]:
        equal = equal_budget(self.runs)
        counts = comparison_tables.count_table(
            self.summary, self.verdicts, self.reach, equal
        )
        return counts, comparison_tables.verdict_matrix(self.verdicts, equal)

    @staticmethod
    def _loss_figures(
        setting: SettingFolder,
        cells: pd.DataFrame,
        curves: pd.DataFrame,
        images: Images,
    ) -> list[page.FigureImage]:
        loss = cells["loss"].iloc[0]
        notes = dict(zip(cells["optimizer"], cells["outcome"]))
        drawn = {"training": figures.training_figure(curves, loss, notes)}
        if curves["test_loss"].notna().any():
            drawn["test"] = figures.held_out_figure(curves, loss, notes)
        windows = setting.config.get("curve_windows")
        return [
            images.add(
                f"{setting.folder.name}-{part}",
                figure,
                captions.loss_caption(loss, part, windows)
                + captions.cut_off_sentence(figures.cut_off_curves(figure)),
            )
            for part, figure in drawn.items()
        ]
