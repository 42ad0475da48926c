"""Small benchmark results, as files and as tables, for the tests of the report."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pandas as pd
import yaml

from pts_scott.experiments.results import PAPER_OPTIMIZERS

OPTIMIZER_NAMES = ("SGD", "SCSG", "SCott", "stratified SGD")  # in order
SEEDS = (0, 1, 2)
VERSIONS = {"python": "3.11.9", "torch": "2.13.0"}


def run_record(
    optimizer="SGD", seed=0, train=1.0, test=2.0, status="finished", **changes
):
    """Return the content of a ``run.json``."""
    finished = status == "finished"
    rule, method = PAPER_OPTIMIZERS.get(optimizer, ("", ""))
    run = {
        "setting": "mlp-traffic-M1",
        "model": "MLP",
        "dataset": "traffic",
        "loss": "NLL",
        "batch_size": 1,
        "optimizer": optimizer,
        "method": method,
        "rule": rule,
        "learning_rate": 0.005,
        "gamma": None,
        "seed": seed,
        "status": status,
        "error": "",
        "train_loss": train if finished else None,
        "test_loss": test if finished else None,
        "steps": 1000 + seed,
        "gradients": 2000,
        "anchors": 0,
        "seconds": 30.0,
        "compile_seconds": 4.0,
        "stratify_seconds": 0.5,
        "evaluation_seconds": 2.0,
        **dict.fromkeys(("CRPS", "MASE", "sMAPE", "ND", "NRMSE"), test),
        "windows_train": 5000,
        "windows_test": 1000,
        "evaluated_train": 4096,
        "evaluated_test": 512,
        "time_budget": 30.0,
        "gradient_budget": None,
    }
    return {**run, **changes}


def loss_curve(start=3.0, end=1.0, points=7):
    """Return the content of a ``curve.csv`` whose losses decay exponentially."""
    share = np.linspace(0, 1, points)
    loss = end + (start - end) * np.exp(-5 * share)
    return pd.DataFrame(
        {
            "step": (1000 * share).astype(int),
            "gradients": (2000 * share).astype(int),
            "seconds": 30 * share,
            "train_loss": loss,
            "test_loss": loss + 0.2,
        }
    )


def write_run(folder, run, curve=None, versions=VERSIONS):
    """Write the folder of one run as the benchmark does, and return its path."""
    name = re.sub(r"[^\w.+-]+", "-", run["optimizer"])
    path = folder / run["setting"] / "runs" / f"{name}-seed{run['seed']}"
    path.mkdir(parents=True)
    (path / "run.json").write_text(json.dumps(run))
    (path / "versions.json").write_text(json.dumps(versions))
    if curve is not None:
        curve.to_csv(path / "curve.csv", index=False)
    return path


def write_config(folder, setting, optimizers=OPTIMIZER_NAMES, seeds=SEEDS, **more):
    """Write the config of a setting."""
    (folder / setting).mkdir(parents=True, exist_ok=True)
    config = {"optimizers": {n: {} for n in optimizers}, "seeds": list(seeds), **more}
    (folder / setting / "config.yaml").write_text(yaml.safe_dump(config))


def write_results(folder):
    """Write two settings with diverged, failed and missing runs and special names."""
    generator = np.random.default_rng(0)
    for setting, dataset in (("mlp-traffic-M1", "traffic"), ("mlp-a<b>&c-M1", "a<b>&c")):
        incomplete = dataset == "a<b>&c"
        note = "resolved <config> & more"
        write_config(folder, setting, note=note, curve_windows=1024)
        for number, optimizer in enumerate(OPTIMIZER_NAMES):
            for seed in SEEDS:
                end = number / 10 - 3 + 0.05 * generator.standard_normal()
                curve, run = loss_curve(end + 1, end), {"train": end, "test": end + 0.2}
                if incomplete:
                    curve["test_loss"] = np.nan
                    if (optimizer, seed) == ("SCSG", 2):
                        continue  # missing
                    if optimizer == "SGD" and seed < 2:
                        run["status"] = "diverged"
                        curve.loc[3:, "train_loss"] = [1e7, np.nan, np.nan, np.nan]
                    if (optimizer, seed) == ("stratified SGD", 1):
                        run.update(status="failed", error="out of <memory> & luck")
                        curve = pd.DataFrame(columns=["step", "gradients", "seconds"])
                elif optimizer == "SGD":
                    curve.loc[1:2, "train_loss"] = 1e5
                keys = {"setting": setting, "dataset": dataset}
                write_run(folder, run_record(optimizer, seed, **run, **keys), curve)
    rows = [
        {
            "seconds": 5.0 * point,
            "sampler": sampler,
            "stratifier": stratifier,
            "strata": strata,
            "variance": size * math.exp(-point / 3),
            "standard_error": 0.1 * size * math.exp(-point / 3),
            "note": "too <small>" if strata == 42 else None,
        }
        for point in range(3)
        for sampler, stratifier, strata, size in (
            ("uniform", None, 1, 1.0),
            ("stratified", "series() * calendar('weekend')", 42, 0.5),
        )
    ]
    pd.DataFrame(rows).to_csv(folder / "mlp-traffic-M1" / "variance.csv", index=False)
    return folder


def runs_frame(*records):
    """Return runs as ``read_runs`` does, without files."""
    runs = pd.DataFrame(
        [{"windows_per_step": r["batch_size"], "replacement": True, **r} for r in records]
    )
    return runs.assign(gamma=math.nan).astype({"train_loss": float, "test_loss": float})


def seed_records(optimizer, losses, **changes):
    """Return one record per training loss, with test losses one higher."""
    return [run_record(optimizer, n, x, x + 1, **changes) for n, x in enumerate(losses)]


def markdown_rows(markdown):
    """Return the rows of a Markdown table as lists of cells."""
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line[1:-1].split(" | ")] for line in lines]
