"""The comparison of docs/results.md: store its results, and write its pages.

    python benchmarks/comparison.py missing           # configs that are still to be run
    python benchmarks/comparison.py collect FOLDER …  # store what was tuned and run
    python benchmarks/comparison.py page              # write tables and pictures anew
    python benchmarks/comparison.py controls FOLDER   # configs with swapped step sizes

`collect` takes folders of `pts-scott bench` and that of `pts-scott tune`, adds their
settings to the files in ``docs/results``, and leaves out settings with a run that is
missing or failed. Settings may come from different machines, the runs of one may not:
nothing is compared across settings. What ``equal_time.py`` and
``autogluon_equal_time.py`` have written to ``--libraries`` is stored alike. `page`
computes every number from what is stored.

`controls` writes configs that train the plain optimizer and `auto` with each other's step
size, where tuning chose different ones; `collect` stores their benchmark with
``--controls``.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd
from comparison_pages import Pages
from comparison_results import Results
from comparison_store import SWAPPED, Store, missing_controls

from pts_scott.experiments.config import Experiment
from pts_scott.experiments.config_files import load_experiment
from pts_scott.experiments.results import (
    SettingFolder,
    read_curves,
    read_runs,
    read_variance,
)

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
#: Tables of the store that settings are added to, and the digits of their numbers.
TABLES = {"runs": 8, "curves": 8, "variance": 5, "trials": 6}
CONTROL_TABLES = {"controls": 8, "control_curves": 8}
CHOSEN = ("learning_rate", "gamma", "anchor_batch_size", "inner_steps")  # by tuning


def missing(store: Store) -> dict[str, Path]:
    """Return the settings of the comparison whose results are not stored, with a config.

    It is the tuned config of a setting that has been tuned. What was tuned or run with
    another config than that of the comparison counts as missing.
    """
    stored, left = set(store.read("runs")["setting"]), {}
    for path in sorted((ROOT / "configs" / "comparison").glob("*.yaml")):
        experiment = load_experiment(path)
        setting = experiment.setting
        tuned = store.folder / "configs" / f"{setting}.yaml"
        current = tuned.exists() and is_tuned(load_experiment(tuned), experiment)
        if setting not in stored or not current:
            left[setting] = tuned if current else path
    return left


def is_tuned(experiment: Experiment, origin: Experiment) -> bool:
    """Return whether two experiments differ at most in what tuning chooses."""
    if set(experiment.optimizers) != set(origin.optimizers):
        return False
    optimizers = {
        name: dataclasses.replace(
            config, **{key: getattr(origin.optimizers[name], key) for key in CHOSEN}
        )
        for name, config in experiment.optimizers.items()
    }
    return dataclasses.replace(experiment, optimizers=optimizers) == origin


def collect(store: Store, benchmarks: Iterable[Path], tuned: Path) -> list[str]:
    """Add tuned settings and complete benchmarks to the store; return what was added.

    Parameters
    ----------
    store
        Where they are added.
    benchmarks
        Folders of `pts-scott bench`.
    tuned
        Folder of `pts-scott tune`.
    """
    found: dict[str, list[pd.DataFrame]] = {name: [] for name in TABLES}
    configs: dict[str, Path] = {}
    for folder in benchmarks:
        runs = read_runs(folder)
        curves = read_curves(folder, runs)
        for setting in SettingFolder.read_all(folder, runs):
            name, variance = setting.name, read_variance(setting.folder)
            own = runs[runs["setting"] == name]
            if name in configs:
                raise SystemExit(f"{name} is in {folder} and in another folder.")
            if not _is_complete(setting, own, variance is not None):
                continue
            assert variance is not None
            configs[name] = setting.folder / "config.yaml"
            found["runs"].append(own.drop(columns="folder"))
            found["curves"].append(curves[curves["setting"] == name])
            found["variance"].append(variance.assign(setting=name))
    added = [f"{name}: runs" for name in configs]
    run = {*configs, *store.read("runs")["setting"]}
    for best in sorted(tuned.glob("**/best.yaml")):
        name = best.parent.name
        if name in run and name not in configs:
            continue  # its runs, which are stored, have the config beside them
        configs.setdefault(name, best)
        trials = pd.read_csv(best.with_name("trials.csv"))
        found["trials"].append(trials.assign(setting=name))
        added.append(f"{name}: trials")
    for name, path in configs.items():
        target = store.folder / "configs" / f"{name}.yaml"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    for name, digits in TABLES.items():
        _add(store, name, found[name], digits)
    return added


def _is_complete(setting: SettingFolder, runs: pd.DataFrame, more: bool = True) -> bool:
    """Return whether all runs of a setting, and ``more``, are there; say so if not."""
    failed = (runs["status"] == "failed").any()
    complete = more and not setting.missing and not failed
    if not complete:
        print(f"{setting.name} is not complete, and left out", file=sys.stderr)
    return complete


def _add(store: Store, name: str, tables: Sequence[pd.DataFrame], digits: int) -> None:
    """Add settings to a table of the store, in place of older results."""
    if not tables:
        return
    new = pd.concat(tables, ignore_index=True)
    before = store.read(name)
    before = before[~before["setting"].isin(set(new["setting"]))]
    table = pd.concat([before, new], ignore_index=True)
    store.write(name, table.sort_values("setting", kind="stable"), digits)


def write_controls(store: Store, folder: Path) -> list[Path]:
    """Write configs that train plain and `auto` with each other's step size, too."""
    written, runs = [], store.read("runs")
    runs = runs[~runs["setting"].isin(set(missing(store)))]  # will be run again
    for setting, rules in missing_controls(runs, store.read("controls")).items():
        experiment = load_experiment(store.folder / "configs" / f"{setting}.yaml")
        optimizers = {
            name: dataclasses.replace(experiment.optimizers[own], learning_rate=rate)
            for rule in rules
            for name, (own, other) in SWAPPED[rule].items()
            for rate in [experiment.optimizers[other].learning_rate]
        }
        tuning = dataclasses.replace(experiment.tune, own={})  # for other optimizers
        control = dataclasses.replace(experiment, optimizers=optimizers, tune=tuning)
        written.append(folder / f"{setting}.yaml")
        folder.mkdir(parents=True, exist_ok=True)
        written[-1].write_text(control.dump(), encoding="utf-8")
    return written


def collect_controls(store: Store, folder: Path) -> list[str]:
    """Store the runs of the configs of `write_controls`, setting by setting."""
    runs = read_runs(folder)
    tables = {"controls": runs.drop(columns="folder")}
    tables["control_curves"] = read_curves(folder, runs)
    complete = [
        setting.name
        for setting in SettingFolder.read_all(folder, runs)
        if _is_complete(setting, runs[runs["setting"] == setting.name])
    ]
    for name, table in tables.items() if complete else ():
        _add(store, name, [table[table["setting"].isin(complete)]], CONTROL_TABLES[name])
    return [f"{name}: control" for name in complete]


def collect_libraries(store: Store, folder: Path) -> list[str]:
    """Store what ``equal_time.py`` and ``autogluon_equal_time.py`` have measured."""
    added = []
    for path in sorted(folder.glob("equal_time-*.csv")):
        for setting, runs in pd.read_csv(path).groupby("setting", sort=True):
            seeds = runs.groupby("side")["seed"].nunique()
            if seeds.min() < max(seeds.max(), 2):  # the first seed may lack sides
                print(
                    f"{path.stem}: {setting} is not complete, and left out",
                    file=sys.stderr,
                )
                continue
            _add(store, path.stem, [runs], digits=6)
            added.append(f"{path.stem}: {setting}")
    return added


def main(arguments: list[str] | None = None) -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("missing", help="list the configs that are still to be run")
    collecting = commands.add_parser("collect", help="store the results of a benchmark")
    collecting.add_argument("benchmarks", nargs="*", type=Path)
    collecting.add_argument("--tuned", type=Path, default=Path("results/tune"))
    collecting.add_argument("--controls", type=Path, help="folder of their benchmark")
    collecting.add_argument("--libraries", type=Path, default=Path("benchmark-results"))
    commands.add_parser("page", help="write the pages and pictures")
    swapping = commands.add_parser("controls", help="write configs with swapped steps")
    swapping.add_argument("folder", type=Path)
    options = parser.parse_args(arguments)
    store = Store(DOCS / "results")
    if options.command == "missing":
        print("\n".join(map(str, missing(store).values())))
    elif options.command == "collect":
        added = collect(store, options.benchmarks, options.tuned)
        if options.controls is not None:
            added += collect_controls(store, options.controls)
        print("\n".join(added + collect_libraries(store, options.libraries)))
    elif options.command == "controls":
        print("\n".join(map(str, write_controls(store, options.folder))))
    else:
        Pages(Results(store, list(missing(store))), DOCS).write()


if __name__ == "__main__":
    main()
