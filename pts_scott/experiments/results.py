"""Read the results of a benchmark from its folder into tables.

Each setting has a folder with ``config.yaml``, ``variance.csv`` if the variance was
measured, and ``runs/<optimizer>-seed<k>/`` with ``run.json``, ``curve.csv`` and
``versions.json``.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import yaml

from pts_scott._utils.text import quote
from pts_scott.errors import ArgumentError, FileLayoutError, ScottError

#: Displayed names of the update rules, in the order of the tables.
RULE_NAMES = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "adagrad": "Adagrad"}


class OptimizerKind(NamedTuple):
    """The update rule of an optimizer and the method that estimates its gradients."""

    rule: str
    method: str


# By name: the paper's optimizers in its order, and stratified mini-batches.
PAPER_OPTIMIZERS = {
    "SGD": OptimizerKind("sgd", "plain"),
    "SCSG": OptimizerKind("sgd", "scsg"),
    "SCott": OptimizerKind("sgd", "scott"),
    "stratified SGD": OptimizerKind("sgd", "stratified"),
    "Adam": OptimizerKind("adam", "plain"),
    "S-Adam": OptimizerKind("adam", "scott"),
    "stratified Adam": OptimizerKind("adam", "stratified"),
    "Adagrad": OptimizerKind("adagrad", "plain"),
    "S-Adagrad": OptimizerKind("adagrad", "scott"),
    "stratified Adagrad": OptimizerKind("adagrad", "stratified"),
}

STATUSES = ("finished", "diverged", "failed")
LOSS_COLUMNS = {"training": "train_loss", "test": "test_loss"}
METRICS = ("CRPS", "MASE", "sMAPE", "ND", "NRMSE")
COST_COLUMNS = (
    *("steps", "gradients", "anchors", "seconds", "compile_seconds"),
    *("stratify_seconds", "evaluation_seconds"),
)

# Keys of run.json.
TEXT_KEYS = (
    *("setting", "model", "dataset", "loss", "optimizer", "method", "rule", "status"),
    "error",
)
NUMERIC_KEYS = (
    *("batch_size", "learning_rate", "gamma", "seed", "train_loss", "test_loss"),
    *(*COST_COLUMNS, *METRICS, "windows_train", "windows_test"),
    *("evaluated_train", "evaluated_test", "strata", "time_budget", "gradient_budget"),
    *("series", "values", "workers", "compiled"),
)
REQUIRED_KEYS = ("setting", "model", "dataset", "batch_size", "optimizer", "seed")

# Columns of the CSV files.
CURVE_COLUMNS = ("step", "gradients", "seconds", *LOSS_COLUMNS.values())
VARIANCE_COLUMNS = (
    *("seconds", "sampler", "stratifier", "strata", "variance", "standard_error"),
)
CSV_TEXT_COLUMNS = ("sampler", "stratifier", "note")  # all others are numeric


def sort_optimizers(
    names: Iterable[str], rules: Mapping[str, str] | None = None
) -> list[str]:
    """Return the distinct names by update rule; the paper's first, then all others.

    Parameters
    ----------
    names
        Names of optimizers.
    rules
        Their update rules, by name; None if only those of the paper are known.
    """
    families, paper = list(RULE_NAMES), list(PAPER_OPTIMIZERS)

    def rank(name: str) -> tuple[int, int, str]:
        known = PAPER_OPTIMIZERS.get(name, OptimizerKind("", ""))
        rule = (rules or {}).get(name) or known.rule
        family = families.index(rule) if rule in families else len(families)
        return family, paper.index(name) if name in paper else len(paper), name

    return sorted(set(names), key=rank)


def read_runs(folder: str | Path) -> pd.DataFrame:
    """Read all runs of a benchmark, one row per run.

    Parameters
    ----------
    folder
        The folder of the benchmark.

    Returns
    -------
    pandas.DataFrame
        The keys of ``run.json`` as columns; ``windows_per_step`` and ``replacement`` of
        the optimizer, from the setting's config; and ``folder``, the path of the run
        relative to the benchmark's folder. Numbers that a run lacks are NaN.

    Raises
    ------
    ArgumentError
        If there is no such folder.
    FileLayoutError
        If a ``run.json`` cannot be read, or two folders hold the same run.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ArgumentError(f"{folder} is not a folder: expected one with results.")
    rows = []
    configs: dict[Path, dict[str, Any]] = {}
    for path in folder.glob("*/runs/*/run.json"):
        if path.parent.suffix == ".part":  # still being written
            continue
        run, setting = _read_run(path), path.parents[2]
        if setting not in configs:
            configs[setting] = _read_config(setting)[1]
        own = configs[setting].get("optimizers", {}).get(run["optimizer"]) or {}
        windows = own.get("batch_size")
        own_windows = windows if isinstance(windows, int) else run["batch_size"]
        run["windows_per_step"] = own_windows
        run["replacement"] = own.get("replacement") is not False
        run["folder"] = path.parent.relative_to(folder).as_posix()
        rows.append(run)
    runs = pd.DataFrame(rows)
    own_keys = ["windows_per_step", "replacement"]
    first = [*TEXT_KEYS, *NUMERIC_KEYS, *own_keys, "warnings", "folder"]
    runs = runs.reindex(columns=[*first, *(c for c in runs.columns if c not in first)])
    # A run that failed early does not know its loss; other runs of the setting do.
    runs["loss"] = runs.groupby("setting")["loss"].transform("max")
    rules = dict(zip(runs["optimizer"], runs["rule"]))
    names = sort_optimizers(runs["optimizer"], rules)
    rank = {name: n for n, name in enumerate(names)}
    order = runs.assign(rank=runs["optimizer"].map(rank))
    order = order.sort_values(["setting", "rank", "seed", "folder"], kind="stable")
    runs = runs.loc[order.index].reset_index(drop=True)
    _raise_on_duplicates(runs, folder)
    return runs


def read_curves(folder: str | Path, runs: pd.DataFrame) -> pd.DataFrame:
    """Read the loss curves of all runs.

    Parameters
    ----------
    folder
        The folder of the benchmark.
    runs
        Its runs, as returned by ``read_runs``.

    Returns
    -------
    pandas.DataFrame
        Columns ``setting``, ``optimizer``, ``method``, ``rule``, ``seed`` and ``status``
        of the run, and those of ``curve.csv``. A run without a curve has no rows.

    Raises
    ------
    FileLayoutError
        If a ``curve.csv`` cannot be read.
    """
    keys = ["setting", "optimizer", "method", "rule", "seed", "status"]
    curves = []
    for _, run in runs.iterrows():
        path = Path(folder) / run["folder"] / "curve.csv"
        if path.exists():
            curve = _read_csv(path, CURVE_COLUMNS if run["status"] != "failed" else ())
            if curve.empty:
                continue
            curves.append(curve.assign(**run[keys])[[*keys, *curve.columns]])
    if not curves:
        return pd.DataFrame(columns=[*keys, *CURVE_COLUMNS])
    return pd.concat(curves, ignore_index=True)


def read_variance(setting_folder: Path) -> pd.DataFrame | None:
    """Read the sampler variances of a setting; return None if they were not measured."""
    path = setting_folder / "variance.csv"
    return _read_csv(path, VARIANCE_COLUMNS) if path.exists() else None


def read_versions(folder: Path, runs: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Read the recorded package versions, keyed by the folder of the run."""
    paths = {run: folder / run / "versions.json" for run in runs["folder"]}
    return {run: read_json(path) for run, path in paths.items() if path.exists()}


@dataclass(frozen=True)
class SettingFolder:
    """The folder of one setting in a benchmark: its config and its missing runs."""

    name: str
    folder: Path
    config: dict[str, Any]
    config_text: str
    planned: int  # number of runs; 0 if the config does not list them
    missing: list[str]

    @classmethod
    def read_all(cls, folder: Path, runs: pd.DataFrame) -> list[SettingFolder]:
        """Read the settings of a benchmark, including those without runs."""
        names = runs["folder"].astype(str).str.split("/").str[0]
        settings = []
        for path in sorted(folder.iterdir()):
            if (path / "config.yaml").exists() or (path / "runs").is_dir():
                settings.append(cls._read(path, runs[names == path.name]))
        return settings

    @classmethod
    def _read(cls, folder: Path, runs: pd.DataFrame) -> SettingFolder:
        text, config = _read_config(folder)
        planned = [
            (str(name), seed) for name in config["optimizers"] for seed in config["seeds"]
        ]
        found = list(zip(runs["optimizer"], runs["seed"]))
        missing = [f"{run[0]}, seed {run[1]}" for run in planned if run not in found]
        name = folder.name if runs.empty else str(runs["setting"].iloc[0])
        return cls(name, folder, config, text, len(planned), missing)


def _read_config(setting_folder: Path) -> tuple[str, dict[str, Any]]:
    """Return the config of a setting as text and as a dict; empty if it has none."""
    path = setting_folder / "config.yaml"
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        config = yaml.safe_load(text) or {}
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise FileLayoutError(f"{path} is not valid YAML: {error}.") from None
    config = config if isinstance(config, dict) else {}
    optimizers, seeds = config.get("optimizers") or {}, config.get("seeds") or []
    if not isinstance(optimizers, dict) or not isinstance(seeds, list):
        raise FileLayoutError(
            f"{path}: expected a mapping of optimizers by name and a list of seeds."
        )
    for name, own in optimizers.items():
        if not isinstance(own, dict | None):
            raise FileLayoutError(f"{path}: expected a mapping under {quote(name)}.")
    return text, {**config, "optimizers": optimizers, "seeds": seeds}


def _read_run(path: Path) -> dict[str, Any]:
    run = read_json(path)
    absent = [key for key in REQUIRED_KEYS if run.get(key) is None]
    if absent:
        raise FileLayoutError(f"{path}: the run has no {', '.join(absent)}.")
    if run.get("status") not in STATUSES:
        raise FileLayoutError(
            f"{path}: status {run.get('status')!r}; expected {', '.join(STATUSES)}."
        )
    for key in NUMERIC_KEYS:
        try:
            run[key] = math.nan if run.get(key) is None else float(run[key])
        except (TypeError, ValueError, OverflowError):
            raise FileLayoutError(
                f"{path}: {key} is not a number: {quote(run[key])}."
            ) from None
    for key in ("seed", "batch_size"):
        if not run[key].is_integer():
            raise FileLayoutError(f"{path}: {key} is not an integer: {run[key]}.")
        run[key] = int(run[key])
    run.update({key: str(run[key]) if run.get(key) else "" for key in TEXT_KEYS})
    known = PAPER_OPTIMIZERS.get(run["optimizer"], OptimizerKind("", ""))
    run.update(method=run["method"] or known.method, rule=run["rule"] or known.rule)
    warnings = run.get("warnings") or []
    warnings = warnings if isinstance(warnings, list) else [warnings]
    run["warnings"] = "; ".join(map(str, warnings))
    return run


def _raise_on_duplicates(runs: pd.DataFrame, folder: Path) -> None:
    """Raise if two folders hold the same run, which would count as two seeds."""
    duplicated = runs.duplicated(["setting", "optimizer", "seed"])
    if duplicated.any():
        number = int(duplicated.argmax())  # runs are sorted: its duplicate precedes it
        first, second = (
            folder / path for path in runs["folder"][number - 1 : number + 1]
        )
        setting, optimizer, seed = runs.loc[number, ["setting", "optimizer", "seed"]]
        raise FileLayoutError(
            f"{first} and {second} hold the same run ({setting}, {optimizer}, seed "
            f"{seed}): expected one folder per run; move one of them away."
        )


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds a dict; raise ``FileLayoutError`` otherwise."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FileLayoutError(f"{path} cannot be read as JSON: {error}.") from None
    if not isinstance(content, dict):
        raise FileLayoutError(f"{path}: expected a dict, got {quote(content)}.")
    return content


def _read_csv(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    try:
        table = pd.read_csv(path)
    except (OSError, ValueError) as error:  # pandas' parser errors are ValueErrors
        raise FileLayoutError(f"{path} cannot be read as CSV: {error}.") from None
    absent = [column for column in columns if column not in table]
    if absent:
        raise FileLayoutError(f"{path}: missing column {', '.join(absent)}.")
    for column in table.columns.difference(CSV_TEXT_COLUMNS):
        if len(table) and not pd.api.types.is_numeric_dtype(table[column]):
            raise FileLayoutError(
                f"{path}: column {quote(column)} contains values that are not numbers."
            )
    return table


def refuse_links(folder: Path, within: Path) -> None:
    """Raise if a link leads out of a results folder, where writing would follow it.

    Parameters
    ----------
    folder
        The folder to be written to, which need not exist yet.
    within
        The folder that must contain everything written.
    """
    root = os.path.realpath(within)
    found = [Path(p, n) for p, dirs, files in os.walk(folder) for n in (*dirs, *files)]
    for path in (folder, *filter(Path.is_symlink, found)):
        target = os.path.realpath(path)
        if not Path(target).is_relative_to(root):
            raise ScottError(
                f"{path} is a link to {target}, outside of {within}, where nothing may "
                "be written. Remove the link, or choose another folder with --output."
            )
