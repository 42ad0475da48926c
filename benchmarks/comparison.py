"""The comparison of docs/results.md: store its results, and write its pages.

    python benchmarks/comparison.py missing           # configs that are still to be run
    python benchmarks/comparison.py collect FOLDER …  # store what was tuned and run
    python benchmarks/comparison.py page              # write tables and pictures anew

`collect` takes folders of `pts-scott bench` and that of `pts-scott tune`, adds their
settings to the files in ``docs/results``, and leaves out settings with a run that is
missing or failed. Settings may come from different machines, the runs of one may not:
nothing is compared across settings. The files of ``equal_time.py`` and
``autogluon_equal_time.py`` in ``--libraries`` are stored, too. `page` computes every
number from what is stored.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd
from comparison_pages import Pages, Store

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


def missing(store: Store) -> list[Path]:
    """Return the configs of the comparison whose results are not stored.

    A setting that has been tuned is given by its tuned config, the others by their own.
    """
    stored, left = set(store.read("runs")["setting"]), []
    for path in sorted((ROOT / "configs" / "comparison").glob("*.yaml")):
        setting = load_experiment(path).setting
        tuned = store.folder / "configs" / f"{setting}.yaml"
        if setting not in stored:
            left.append(tuned if tuned.exists() else path)
    return left


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
    added = []
    (store.folder / "configs").mkdir(parents=True, exist_ok=True)
    for best in sorted(tuned.glob("**/best.yaml")):
        name = best.parent.name
        (store.folder / "configs" / f"{name}.yaml").write_bytes(best.read_bytes())
        trials = pd.read_csv(best.with_name("trials.csv"))
        found["trials"].append(trials.assign(setting=name))
        added.append(f"{name}: tuned")
    for folder in benchmarks:
        runs = read_runs(folder)
        curves = read_curves(folder, runs)
        for setting in SettingFolder.read_all(folder, runs):
            name, variance = setting.name, read_variance(setting.folder)
            own = runs[runs["setting"] == name]
            if setting.missing or (own["status"] == "failed").any() or variance is None:
                print(f"{name} is not complete, and left out", file=sys.stderr)
                continue
            found["runs"].append(own.drop(columns="folder"))
            found["curves"].append(curves[curves["setting"] == name])
            found["variance"].append(variance.assign(setting=name))
            added.append(f"{name}: {len(own)} runs")
    for name, digits in TABLES.items():
        _add(store, name, found[name], digits)
    return added


def _add(store: Store, name: str, tables: Sequence[pd.DataFrame], digits: int) -> None:
    """Add settings to a table of the store, in place of older results."""
    if not tables:
        return
    new = pd.concat(tables, ignore_index=True)
    before = store.read(name)
    before = before[~before["setting"].isin(set(new["setting"]))]
    table = pd.concat([before, new], ignore_index=True)
    store.write(name, table.sort_values("setting", kind="stable"), digits)


def collect_libraries(store: Store, folder: Path) -> list[str]:
    """Store what ``equal_time.py`` and ``autogluon_equal_time.py`` have measured."""
    added = []
    for path in sorted(folder.glob("equal_time-*.csv")):
        store.write(path.stem, pd.read_csv(path), digits=6)
        added.append(path.stem)
    return added


def main(arguments: list[str] | None = None) -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("missing", help="list the configs that are still to be run")
    collecting = commands.add_parser("collect", help="store the results of a benchmark")
    collecting.add_argument("benchmarks", nargs="*", type=Path)
    collecting.add_argument("--tuned", type=Path, default=Path("results/tune"))
    collecting.add_argument("--libraries", type=Path, default=Path("benchmark-results"))
    commands.add_parser("page", help="write the pages and pictures")
    options = parser.parse_args(arguments)
    store = Store(DOCS / "results")
    if options.command == "missing":
        print("\n".join(map(str, missing(store))))
    elif options.command == "collect":
        added = collect(store, options.benchmarks, options.tuned)
        print("\n".join(added + collect_libraries(store, options.libraries)))
    else:
        Pages(store, DOCS, [path.stem for path in missing(store)]).write()


if __name__ == "__main__":
    main()
