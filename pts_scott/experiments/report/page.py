"""The parts of a report's page as HTML: what was compared, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from string import Template
from typing import Any

import pandas as pd

from pts_scott.experiments.report.tables import (
    Row,
    Table,
    known,
    number_text,
    seconds_text,
)
from pts_scott.experiments.report.verdicts import GUIDE, STRATIFIED, verdict_sentences
from pts_scott.experiments.results import STATUSES, SettingFolder, in_order


def section(title: str, content: str) -> str:
    """Content under a heading."""
    return f"<section><h2>{escape(title)}</h2>\n{content}</section>"


def details(title: str, content: str) -> str:
    """Content that the reader opens."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def paragraph(text: str) -> str:
    """Plain text."""
    return f"<p>{escape(text)}</p>"


def bullets(items: Sequence[str]) -> str:
    """A list of plain text; empty if there is nothing to list."""
    lines = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f"<ul>{lines}</ul>" if items else ""


def missing(settings: Sequence[SettingFolder]) -> str:
    """A box for the top of the page, if the benchmark is not complete."""
    absent = {s.name: s.missing for s in settings if s.missing}
    unknown = [s.name for s in settings if not s.planned]
    text = ""
    if absent:
        count = sum(map(len, absent.values()))
        planned = sum(s.planned for s in settings)
        text += paragraph(f"Incomplete: {count} of {planned} runs are missing.")
        text += bullets([f"{name}: {'; '.join(runs)}" for name, runs in absent.items()])
    if unknown:
        text += paragraph(
            "Not known whether complete, for want of optimizers and seeds in "
            f"config.yaml: {', '.join(unknown)}."
        )
    return f'<div class="missing">{text}</div>' if text else ""


def compared(settings: Sequence[SettingFolder], runs: pd.DataFrame) -> str:
    """What was compared and how, in numbers of the runs."""
    count = runs["status"].value_counts()
    optimizers = in_order(runs["optimizer"])
    text = paragraph(
        f"Settings: {len(settings)}; optimizers: {len(optimizers)} "
        f"({', '.join(optimizers)}); runs: {len(runs)}, of which "
        + ", ".join(f"{count.get(status, 0)} {status}" for status in STATUSES)
        + "."
    )
    budgets = runs.groupby("setting")["time_budget"].nunique()
    uneven = list(budgets.index[budgets > 1])
    finished = runs[runs["status"] == "finished"]
    used = (finished["seconds"] / finished["time_budget"]).dropna()
    engines = finished.groupby("setting")["compiled"].nunique()
    unlike = list(engines.index[engines > 1])
    if uneven:
        text += paragraph(f"The time budgets differ within {', '.join(uneven)}.")
    if unlike:
        text += paragraph(
            "Compiled and eager runs are mixed, so that seconds cannot be compared, "
            f"within {', '.join(unlike)}."
        )
    if len(used) and not uneven and not unlike:
        text += paragraph(
            "All optimizers of a setting train for the same seconds, in one engine."
        )
    workers = runs.groupby("setting")["workers"].nunique(dropna=False)
    mixed = list(workers.index[workers > 1])
    if mixed:
        text += paragraph(
            "Not all runs had as many others beside them (--workers), which changes what "
            f"a second is worth, within {', '.join(mixed)}."
        )
    if len(used):
        text += paragraph(
            "Seconds of training hold sampling, anchors, gradients and updates; "
            "stratification, compilation and evaluation are timed apart. Runs that "
            f"finished took {used.min():.0%} to {used.max():.0%} of their budget."
        )
    header = (
        *("Setting", "Budget", "Seeds", "Training, s", "Windows, training"),
        *("Windows, test", "Compilation, s", "Stratification, s", "Evaluation, s"),
    )
    rows = [_setting_facts(s, runs[runs["setting"] == s.name]) for s in settings]
    caption = (
        "Seconds are those of a run: the range over all runs that finished for training, "
        "means for the rest. Windows: on how many the losses of the table were "
        "measured, of how many."
    )
    return text + Table(header, rows, caption, labels=1).html()


def _setting_facts(setting: SettingFolder, runs: pd.DataFrame) -> Row:
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
        seconds_text(finished[f"{part}_seconds"].mean())
        for part in ("compile", "stratify", "evaluation")
    ]
    ends = (finished["seconds"].min(), finished["seconds"].max())
    span = " to ".join(map(seconds_text, ends))
    facts = (setting.name, ", ".join(budget), runs["seed"].nunique(), span)
    return Row.of(*facts, *windows, *means)


def decisions(verdicts: pd.DataFrame) -> str:
    """The sentences about the verdicts, and the verdicts that they count."""
    if verdicts.empty:
        return paragraph("There are no pairs to compare yet.")
    rows = []
    again = verdicts["setting"].duplicated()
    for (_, row), follows in zip(verdicts.iterrows(), again):
        words = (f"{row['challenger']} against {row['baseline']}", row["loss"])
        numbers = (number_text(row[key]) for key in ("difference", "errors", "p_value"))
        texts = (row["setting"], *words, row["verdict"], row["note"], *numbers)
        rows.append(Row.of(*texts, rule="" if follows else "block"))
    header = (
        *("Setting", "Optimizers", "Loss", "Ended", "Note", "Difference", "In errors"),
        "p",
    )
    caption = (
        "Difference of the means, negative if the first ended lower, and the same in "
        "standard errors; p of Welch's test of equal means."
    )
    if (verdicts["comparison"] == " against ".join(STRATIFIED)).any():
        caption += f" Where the first is a stratified mini-batch optimizer, {GUIDE}."
    table = Table(header, rows, caption, labels=5).html()
    sentences = bullets(verdict_sentences(verdicts).splitlines())
    return sentences + details("Setting by setting", table)


def contents(settings: Sequence[SettingFolder]) -> str:
    """Links to the settings, by their number."""
    links = (
        f'<li><a href="#setting-{number}">{escape(setting.name)}</a></li>'
        for number, setting in enumerate(settings)
    )
    return f"<ul>{''.join(links)}</ul>"


def spent(cells: pd.DataFrame) -> str:
    """Step sizes of the optimizers of a setting, and what they spent."""
    rows = []
    for _, row in cells.iterrows():
        rates = [known(row[k], "g") for k in ("learning_rate", "gamma")]
        counts = [
            known(row[k], ",.0f").replace(",", "\u202f")
            for k in ("steps", "gradients", "anchors")
        ]
        rows.append(
            Row.of(row["optimizer"], *rates, *counts, seconds_text(row["seconds"]))
        )
    header = ("Optimizer", "Step size", "γ", "Steps", "Gradients", "Anchors", "Seconds")
    return Table(header, rows, "Means over the seeds that finished.", labels=1).html()


def broken_runs(runs: pd.DataFrame) -> str:
    """The runs that diverged or failed, and why."""
    broken = runs[runs["status"] != "finished"]
    if broken.empty:
        return paragraph("None.")
    rows = []
    for _, run in broken.iterrows():
        steps = "" if math.isnan(run["steps"]) else f"after {run['steps']:.0f} steps"
        words = run[["setting", "optimizer", "seed", "status"]]
        rows.append(Row.of(*words, run["error"] or steps))
    header = ("Setting", "Optimizer", "Seed", "Status", "Message")
    return Table(header, rows, labels=len(header)).html()


def warnings(runs: pd.DataFrame) -> str:
    """What the runs warned of, each once, with the number of runs."""
    count = runs.loc[runs["warnings"] != "", ["setting", "warnings"]].value_counts()
    lines = [
        f"{setting}, {number} run{'s' * (number > 1)}: {text}"
        for (setting, text), number in count.items()
    ]
    return bullets(lines) or paragraph("None.")


def versions(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Versions of the first run that has them, and where others differ."""
    if not found:
        return paragraph("No run has recorded them.")
    first, expected = next(iter(found.items()))
    rows = [Row.of(*item) for item in expected.items()]
    text = Table(("Package", "Version"), rows, f"Of {first}.").html()
    lines = []
    for run, its in found.items():
        other = [k for k in {**expected, **its} if its.get(k) != expected.get(k)]
        if other:
            lines.append(f"{run}: {', '.join(f'{k} {its.get(k)}' for k in other)}")
    if not lines:
        return text + paragraph(f"The same in all {len(found)} runs that recorded them.")
    return text + paragraph(f"{len(lines)} of {len(found)} runs differ:") + bullets(lines)


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
