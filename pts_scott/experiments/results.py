"""The results of a benchmark, read from its folder into tables.

It holds, for each setting, ``config.yaml``, ``variance.csv`` where the variance was
measured, and ``runs/<optimizer>-seed<k>/`` with ``run.json``, ``curve.csv`` and
``versions.json``.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from pts_scott._utils.text import quote
from pts_scott.errors import ArgumentError, FileLayoutError, ScottError

# By its name in the paper, in the paper's order: the optimizer whose update rule it
# has, and how its gradients are made.
OPTIMIZERS: dict[str, tuple[str, str]] = {
    "SGD": ("SGD", "plain"),
    "SCSG": ("SGD", "scsg"),
    "SCott": ("SGD", "scott"),
    "Adam": ("Adam", "plain"),
    "S-Adam": ("Adam", "scott"),
    "Adagrad": ("Adagrad", "plain"),
    "S-Adagrad": ("Adagrad", "scott"),
    "stratified SGD": ("SGD", "stratified"),
    "stratified Adam": ("Adam", "stratified"),
    "stratified Adagrad": ("Adagrad", "stratified"),
}
GROUPS = tuple(dict.fromkeys(rule for rule, _ in OPTIMIZERS.values()))

WORDS = ("setting", "model", "dataset", "loss", "optimizer", "method", "status", "error")
METRICS = ("CRPS", "MASE", "sMAPE", "ND", "NRMSE")
SPENT = (
    *("steps", "gradients", "anchors", "seconds", "compile_seconds"),
    *("stratify_seconds", "evaluation_seconds"),
)
NUMBERS = (
    *("batch_size", "learning_rate", "gamma", "seed", "train_loss", "test_loss"),
    *(*SPENT, *METRICS, "windows_train", "windows_test"),
    *("evaluated_train", "evaluated_test", "strata", "time_budget", "gradient_budget"),
    *("series", "values", "workers", "compiled"),
)
REQUIRED = ("setting", "model", "dataset", "batch_size", "optimizer", "seed")
STATUSES = ("finished", "diverged", "failed")
LOSSES = {"training": "train_loss", "test": "test_loss"}
CURVE = ("step", "gradients", "seconds", *LOSSES.values())
VARIANCE = ("seconds", "sampler", "stratifier", "strata", "variance", "standard_error")
TEXTS = ("sampler", "stratifier", "note")  # columns of a CSV file that are no numbers


def in_order(optimizers: Iterable[str]) -> list[str]:
    """The optimizers, each once, in the paper's order; others after them by name."""
    given = set(optimizers)
    known = [name for name in OPTIMIZERS if name in given]
    return known + sorted(given - set(known))


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
        If a ``run.json`` cannot be read, or two are of the same run.
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
    rank = {name: n for n, name in enumerate(in_order(runs["optimizer"]))}
    order = runs.assign(rank=runs["optimizer"].map(rank))
    order = order.sort_values(["setting", "rank", "seed", "folder"], kind="stable")
    runs = runs.loc[order.index].reset_index(drop=True)
    _check_once(runs, folder)
    return runs


def read_curves(folder: str | Path, runs: pd.DataFrame) -> pd.DataFrame:
    """The losses along training of all runs.

    Parameters
    ----------
    folder
        The folder of the benchmark.
    runs
        Its runs, as ``read_runs`` gives them.

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
    for _, run in runs.iterrows():
        path = Path(folder) / run["folder"] / "curve.csv"
        if path.exists():
            curve = _read_csv(path, CURVE if run["status"] != "failed" else ())
            if curve.empty:
                continue
            curves.append(curve.assign(**run[keys])[[*keys, *curve.columns]])
    if not curves:
        return pd.DataFrame(columns=[*keys, *CURVE])
    return pd.concat(curves, ignore_index=True)


def read_variance(setting_folder: Path) -> pd.DataFrame | None:
    """The variance of the samplers of a setting; None where it was not measured."""
    path = setting_folder / "variance.csv"
    return _read_csv(path, VARIANCE) if path.exists() else None


def read_versions(folder: Path, runs: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """The versions of packages that runs have recorded, by the folder of the run."""
    paths = {run: folder / run / "versions.json" for run in runs["folder"]}
    return {run: read_json(path) for run, path in paths.items() if path.exists()}


@dataclass(frozen=True)
class SettingFolder:
    """A setting in the folder of a benchmark: its config, and what is missing."""

    name: str
    folder: Path
    config: dict[str, Any]
    config_text: str
    planned: int  # how many runs; 0 if the config does not tell
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
        try:
            text = path.read_text(encoding="utf-8") if path.exists() else ""
            config = yaml.safe_load(text) or {}
        except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
            raise FileLayoutError(f"{path} is not YAML: {error}.") from None
        config = config if isinstance(config, dict) else {}
        optimizers, seeds = config.get("optimizers") or {}, config.get("seeds") or []
        if not isinstance(optimizers, dict) or not isinstance(seeds, list):
            raise FileLayoutError(
                f"{path}: expected optimizers by name, and a list of seeds."
            )
        planned = [(str(optimizer), seed) for optimizer in optimizers for seed in seeds]
        found = list(zip(runs["optimizer"], runs["seed"]))
        missing = [f"{run[0]}, seed {run[1]}" for run in planned if run not in found]
        name = folder.name if runs.empty else str(runs["setting"].iloc[0])
        return cls(name, folder, config, text, len(planned), missing)


def _read_run(path: Path) -> dict[str, Any]:
    run = read_json(path)
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
        except (TypeError, ValueError, OverflowError):
            raise FileLayoutError(
                f"{path}: {key} is no number: {quote(run[key])}."
            ) from None
    for key in ("seed", "batch_size"):
        if not run[key].is_integer():
            raise FileLayoutError(f"{path}: {key} is no whole number: {run[key]}.")
        run[key] = int(run[key])
    run.update({key: str(run[key]) if run.get(key) else "" for key in WORDS})
    told = run.get("warnings") or []
    run["warnings"] = "; ".join(map(str, told if isinstance(told, list) else [told]))
    return run


def _check_once(runs: pd.DataFrame, folder: Path) -> None:
    """Refuse a run that is there twice: it would count as two seeds."""
    again = runs.duplicated(["setting", "optimizer", "seed"])
    if again.any():
        number = int(again.argmax())  # the runs are sorted, so its twin is just before it
        one, other = (folder / path for path in runs["folder"][number - 1 : number + 1])
        setting, optimizer, seed = runs.loc[number, ["setting", "optimizer", "seed"]]
        raise FileLayoutError(
            f"{one} and {other} hold the same run ({setting}, {optimizer}, seed {seed}): "
            "expected one folder for each run; move the other away."
        )


def read_json(path: Path) -> dict[str, Any]:
    """The dict in a JSON file, or what is wrong with it."""
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
    except (OSError, ValueError) as error:  # which pandas' own errors are too
        raise FileLayoutError(f"{path} cannot be read as CSV: {error}.") from None
    absent = [column for column in columns if column not in table]
    if absent:
        raise FileLayoutError(f"{path}: there is no column {', '.join(absent)}.")
    for column in table.columns.difference(TEXTS):
        if len(table) and not pd.api.types.is_numeric_dtype(table[column]):
            raise FileLayoutError(f"{path}: column {quote(column)} has no numbers alone.")
    return table


def refuse_links(folder: Path, within: Path) -> None:
    """Refuse links that lead out of a folder of results: what is written follows them.

    Parameters
    ----------
    folder
        Where it will be written, which may not be there yet.
    within
        What it has to stay in.
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
