"""Collect the facts of the report's page as plain data for its template."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from pts_scott.experiments.report.formatting import DASH, format_known, format_seconds
from pts_scott.experiments.report.tables import Cell, Row, Table
from pts_scott.experiments.results import STATUSES, SettingFolder, sort_optimizers

COSTS = {
    "learning_rate": "g",
    "gamma": "g",
    "windows_per_step": ".0f",
    "steps": ",.0f",
    "gradients": ",.0f",
    "anchors": ",.0f",
}


@dataclass(frozen=True)
class Completeness:
    """The missing runs by setting, and the settings that do not list their runs."""

    planned: int
    missing: Mapping[str, Sequence[str]]
    unknown: Sequence[str]

    @property
    def missing_count(self) -> int:
        """Number of missing runs."""
        return sum(map(len, self.missing.values()))


@dataclass(frozen=True)
class Comparison:
    """What was compared: notes in sentences, and a table of the settings."""

    notes: Sequence[str]
    table: Table


@dataclass(frozen=True)
class FigureImage:
    """A figure as an SVG element, with its caption."""

    svg: str
    caption: str


@dataclass(frozen=True)
class Overview:
    """The comparison with plain optimizers over all settings; empty without any pair."""

    counts: Table | None
    matrix: Table | None
    figures: Sequence[FigureImage]


@dataclass(frozen=True)
class SettingPart:
    """The part of the page about one setting; ``tables`` by what they show."""

    name: str
    has_curves: bool
    figures: Sequence[FigureImage]
    tables: Mapping[str, Table]
    config_text: str


@dataclass(frozen=True)
class Versions:
    """Package versions of the first run that recorded them, and deviations of others."""

    table: Table | None
    run_count: int
    differences: Sequence[str]


@dataclass(frozen=True)
class ReportPage:
    """All facts of the page, in the order in which it shows them."""

    headline: Sequence[str]
    completeness: Completeness
    overview: Overview
    losses: Table
    settings: Sequence[SettingPart]
    comparison: Comparison
    backtest: Table
    unfinished_runs: Table | None
    warnings: Sequence[str]
    versions: Versions


def collect_completeness(settings: Sequence[SettingFolder]) -> Completeness:
    """Return which runs are missing."""
    return Completeness(
        planned=sum(s.planned for s in settings),
        missing={s.name: s.missing for s in settings if s.missing},
        unknown=[s.name for s in settings if not s.planned],
    )


def collect_comparison(
    settings: Sequence[SettingFolder], runs: pd.DataFrame
) -> Comparison:
    """Return what was compared and under which conditions."""
    header = (
        *("Setting", "Budget", "Seeds", "Training, s", "Windows, training"),
        *("Windows, test", "Compilation, s", "Stratification, s", "Evaluation, s"),
    )
    rows = [_setting_row(s, runs[runs["setting"] == s.name]) for s in settings]
    caption = (
        "Seconds are per run: the range over all finished runs for training, and means "
        "for the rest. The windows are those on which the losses of the table were "
        "measured, out of all."
    )
    table = Table(header, rows, caption, labels=1)
    return Comparison(_comparison_notes(settings, runs), table)


def _comparison_notes(settings: Sequence[SettingFolder], runs: pd.DataFrame) -> list[str]:
    finished = runs[runs["status"] == "finished"]
    budget_shares = (finished["seconds"] / finished["time_budget"]).dropna()
    mixed_budgets = _mixed_settings(runs, "time_budget")
    mixed_engines = _mixed_settings(finished, "compiled")
    mixed_workers = _mixed_settings(runs, "workers", dropna=False)

    count = runs["status"].value_counts()
    rules = dict(zip(runs["optimizer"], runs["rule"]))
    optimizers = sort_optimizers(runs["optimizer"], rules)
    notes = [
        f"Settings: {len(settings)}; optimizers: {len(optimizers)} "
        f"({'; '.join(optimizers)}); runs: {len(runs)}, of which "
        + ", ".join(f"{count.get(status, 0)} {status}" for status in STATUSES)
        + "."
    ]
    if mixed_budgets:
        notes.append(f"The time budgets differ within {', '.join(mixed_budgets)}.")
    if mixed_engines:
        notes.append(
            "Compiled and eager runs are mixed, so their seconds are not comparable, "
            f"within {', '.join(mixed_engines)}."
        )
    if len(budget_shares) and not mixed_budgets and not mixed_engines:
        notes.append(
            "All optimizers of a setting train for the same number of seconds, in the "
            "same engine."
        )
    if mixed_workers:
        notes.append(
            "The number of runs executed in parallel (--workers) differs, which changes "
            f"what a second is worth, within {', '.join(mixed_workers)}."
        )
    if len(budget_shares):
        notes.append(
            "Training seconds include sampling, anchors, gradients and updates; "
            "stratification, compilation and evaluation are timed separately. Finished "
            f"runs took {budget_shares.min():.0%} to {budget_shares.max():.0%} of their "
            "budget."
        )
    return notes


def _mixed_settings(runs: pd.DataFrame, column: str, dropna: bool = True) -> list[str]:
    """Return the settings whose runs differ in a column."""
    distinct = runs.groupby("setting")[column].nunique(dropna=dropna)
    return list(distinct.index[distinct > 1])


def _setting_row(setting: SettingFolder, runs: pd.DataFrame) -> Row:
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
        else DASH
        for part in ("train", "test")
    ]
    means = [
        format_seconds(finished[f"{part}_seconds"].mean())
        for part in ("compile", "stratify", "evaluation")
    ]
    seconds = finished["seconds"]
    span = " to ".join(map(format_seconds, (seconds.min(), seconds.max())))
    facts = (setting.name, ", ".join(budget), runs["seed"].nunique(), span)
    return Row.of(*facts, *windows, *means)


def cost_table(cells: pd.DataFrame) -> Table:
    """Return the step sizes and the costs of the optimizers of a setting."""
    rows = []
    for _, row in cells.iterrows():
        numbers = [
            (format_known(row[key], spec).replace(",", "\u202f"), row[key])
            for key, spec in COSTS.items()
        ]
        numbers.append((format_seconds(row["seconds"]), row["seconds"]))
        cells = [Cell(text, value=value) for text, value in numbers]
        rows.append(Row([Cell(row["optimizer"]), *cells], "block"))
    header = (
        *("Optimizer", "Step size", "γ", "Windows per step", "Steps", "Gradients"),
        *("Anchors", "Seconds"),
    )
    caption = (
        "Counts and seconds are means over the finished seeds. Windows per step are M of "
        "the optimizer; an anchor's are not included."
    )
    return Table(header, rows, caption, labels=1)


def unfinished_runs_table(runs: pd.DataFrame) -> Table | None:
    """Return the runs that diverged or failed, with the reason; None if all finished."""
    unfinished = runs[runs["status"] != "finished"]
    if unfinished.empty:
        return None
    rows = []
    for _, run in unfinished.iterrows():
        steps = "" if math.isnan(run["steps"]) else f"after {run['steps']:.0f} steps"
        labels = run[["setting", "optimizer", "seed", "status"]]
        rows.append(Row.of(*labels, run["error"] or steps))
    header = ("Setting", "Optimizer", "Seed", "Status", "Message")
    return Table(header, rows, labels=len(header))


def collect_warnings(runs: pd.DataFrame) -> list[str]:
    """Return each distinct warning of a setting once, with the number of runs."""
    count = runs.loc[runs["warnings"] != "", ["setting", "warnings"]].value_counts()
    return [
        f"{setting}, {number} run{'s' * (number > 1)}: {text}"
        for (setting, text), number in count.items()
    ]


def collect_versions(found: Mapping[str, Mapping[str, Any]]) -> Versions:
    """Return the versions of the first run that has them, and the runs that differ."""
    if not found:
        return Versions(None, 0, [])
    first, expected = next(iter(found.items()))
    rows = [Row.of(*item) for item in expected.items()]
    differences = []
    for run, versions in found.items():
        packages = {**expected, **versions}
        other = [p for p in packages if versions.get(p) != expected.get(p)]
        if other:
            listed = ", ".join(f"{p} {versions.get(p)}" for p in other)
            differences.append(f"{run}: {listed}")
    table = Table(("Package", "Version"), rows, f"From {first}.")
    return Versions(table, len(found), differences)
