"""Runs that are on disk already: which are done, and which do not belong together."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pts_scott.errors import ConfigError
from pts_scott.experiments.config import Experiment
from pts_scott.experiments.config_files import parse_tree, read_config
from pts_scott.experiments.results import read_json
from pts_scott.experiments.run_files import read_record, run_config
from pts_scott.experiments.setting import Setting
from pts_scott.experiments.tasks import Task

# Keys that do not affect a run, and keys that may differ between the runs of a setting.
IRRELEVANT_KEYS = ("name", "tune", "variance")
PER_RUN_KEYS = ("optimizers", "seeds")


def is_done(task: Task) -> bool:
    """Return whether the run is on disk; a failed run does not count.

    Raises
    ------
    ConfigError
        If the folder holds a run of another configuration.
    """
    record = read_record(task.folder)
    if record is None or record["status"] == "failed":
        return False
    here = dataclasses.asdict(run_config(task.experiment, task.optimizer, task.seed))
    _check_same_config(task.folder / "config.yaml", here)
    return True


def finished_beside(task: Task) -> Iterator[dict[str, Any]]:
    """Yield the records of the finished runs of the same setting on disk."""
    for path in sorted(task.folder.parent.glob("*/run.json")):
        record = read_record(path.parent)
        if path.parent != task.folder and record and record["status"] == "finished":
            yield record


def with_existing(experiment: Experiment, folder: Path) -> Experiment:
    """Return the experiment with the optimizers and seeds of a folder added to its own.

    Raises
    ------
    ConfigError
        If the folder holds runs of another configuration, which must not share a table.
    """
    here = dataclasses.asdict(experiment)
    for path in sorted(folder.glob("runs/*/config.yaml")):
        if (path.parent / "run.json").exists():
            _check_same_config(path, here, PER_RUN_KEYS)
    path = folder / "config.yaml"
    if not path.exists():
        return experiment
    there = read_config(path)
    if any(_differences(there, here, (*IRRELEVANT_KEYS, *PER_RUN_KEYS))):
        return experiment  # the folder has no runs: the loop above would have raised
    known = parse_tree(there, str(path))
    return dataclasses.replace(
        experiment,
        optimizers=known.optimizers | experiment.optimizers,
        seeds=list(dict.fromkeys([*known.seeds, *experiment.seeds])),
    )


def check_same_data(setting: Setting, folder: Path) -> None:
    """Raise if the runs on disk were trained on other series than the current ones."""
    here = setting.data_identity
    for path in sorted(folder.glob("runs/*/run.json")):
        record = read_json(path)
        known = [key for key in here if key in record]  # older runs have no digest
        if "values" in known and any(record[key] != here[key] for key in known):
            there = ", ".join(f"{key} {record[key]}" for key in known)
            raise ConfigError(
                f"{path.parent} was trained on other data ({there}) than the current "
                f"({', '.join(f'{k} {v}' for k, v in here.items())}). Choose another "
                "folder with --output, or remove this one."
            )


def _check_same_config(
    path: Path, here: dict[str, Any], ignored: Sequence[str] = ()
) -> None:
    there = read_config(path)
    for difference in _differences(there, here, (*IRRELEVANT_KEYS, *ignored)):
        raise ConfigError(
            f"{path.parent} holds a run with other settings ({difference}). Choose "
            "another folder with --output, or remove this one."
        )


def _differences(
    there: Any, here: Any, ignored: Sequence[str] = (), path: str = ""
) -> Iterator[str]:
    if isinstance(there, dict) and isinstance(here, dict):
        for key in sorted((there.keys() | here.keys()) - set(ignored)):
            inner = f"{path}.{key}" if path else str(key)
            yield from _differences(there.get(key), here.get(key), (), inner)
    elif there != here:
        yield f"{path} is {there!r} there and {here!r} here"
