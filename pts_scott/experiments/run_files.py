"""The folder of a run: its config, versions, history, curve and record."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

from pts_scott._utils.text import quote
from pts_scott.errors import FileLayoutError
from pts_scott.experiments.config import Experiment
from pts_scott.experiments.names import run_name
from pts_scott.experiments.results import STATUSES, read_json, refuse_links
from pts_scott.experiments.run import Run
from pts_scott.experiments.setting import choose

LIBRARIES = (
    "pts-scott",
    "torch",
    "lightning",
    "gluonts",
    "pytorchts",
    "numpy",
    "pandas",
)


def run_folder(setting_folder: Path, optimizer: str, seed: int) -> Path:
    """Return the folder of a run of a setting."""
    return setting_folder / "runs" / run_name(optimizer, seed)


def run_config(experiment: Experiment, optimizer: str, seed: int) -> Experiment:
    """Return the experiment reduced to one run, as stored in the run's folder."""
    return dataclasses.replace(
        experiment,
        optimizers={optimizer: choose(experiment, optimizer)},
        seeds=[seed],
    )


def write_run(folder: Path, experiment: Experiment, run: Run) -> None:
    """Write the folder of a run.

    A folder with ``run.json`` is always complete: the files are written to a temporary
    folder, which is then renamed.

    Raises
    ------
    ScottError
        If one of the two folders is, or contains, a link to outside of the results.
    """
    part = folder.with_name(folder.name + ".part")
    for path in (part, folder):
        refuse_links(path, folder.parent)
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    record = run.record
    config = run_config(experiment, record["optimizer"], record["seed"])
    (part / "config.yaml").write_text(config.dump(), encoding="utf-8")
    (part / "versions.json").write_text(json.dumps(versions(), indent=1))
    run.history.to_csv(part / "history.csv", index=False)
    run.curve.to_csv(part / "curve.csv", index=False)
    plain = {key: _nan_to_null(value) for key, value in record.items()}
    (part / "run.json").write_text(json.dumps(plain, indent=1, allow_nan=False))
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(part, folder)


def read_record(folder: Path) -> dict[str, Any] | None:
    """Return the record of a run; None if the folder does not hold a complete run."""
    path = folder / "run.json"
    if not path.exists():
        return None
    record = read_json(path)
    if record.get("status") not in STATUSES:
        raise FileLayoutError(
            f"{path} has status {quote(record.get('status'))}, expected "
            f"{', '.join(STATUSES)}; remove {folder} to repeat the run."
        )
    return record


def versions() -> dict[str, str]:
    """Return the versions of everything that a run depends on."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _nan_to_null(value: Any) -> Any:
    """Return None for a non-finite number, which JSON cannot represent."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
