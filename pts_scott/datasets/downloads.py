"""Known datasets from GluonTS' dataset repository."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pts_scott.data.offsets import moment_of
from pts_scott.datasets.known import FOLDER_VARIABLE, KnownDataset
from pts_scott.datasets.raw_series import RawSeries
from pts_scott.datasets.series_data import SeriesData


def download(known: KnownDataset, folder: Path | None) -> SeriesData:
    """Download a dataset, or read it from GluonTS' cache.

    Parameters
    ----------
    known
        Which dataset.
    folder
        Where its file was expected, for the error message.

    Raises
    ------
    DatasetNotFoundError
        If there is no download, or it failed.
    """
    if not known.download:
        reason = "It is a part of a dataset and has no download."
        raise known.not_found(folder, reason)
    try:
        longest = _longest_entries(known.name)
        targets = [np.asarray(e["target"], dtype=np.float64) for e in longest.values()]
        starts = [moment_of(entry["start"]) for entry in longest.values()]
    except Exception as error:
        reason = f"Its download by GluonTS failed ({type(error).__name__}: {error})."
        raise known.not_found(folder, reason) from error
    series, steps = len(targets), max(map(len, targets), default=0)
    raw = RawSeries(known.freq, list(longest), starts, targets)
    if (series, steps) == (known.series, known.steps):
        return SeriesData.from_raw(known.name, raw)
    return SeriesData.from_raw(
        f"{known.name}-{series}x{steps}",  # only the complete dataset has the plain name
        raw,
        f"GluonTS' copy of {known.name} ends after {steps} of {known.steps} steps; for "
        f"all of them put {known.file} into the folder that {FOLDER_VARIABLE} names.",
    )


def _longest_entries(name: str) -> dict[str, Mapping[str, Any]]:
    """Return the longest test entry of each series; there is one per rolling window."""
    from gluonts.dataset.repository import datasets as repository

    # A failed download leaves a folder without "test", which must not be reused.
    complete = (repository.default_dataset_path / name / "test").exists()
    longest: dict[str, Mapping[str, Any]] = {}
    with warnings.catch_warnings():  # from pandas, about GluonTS' business days
        warnings.simplefilter("ignore", FutureWarning)
        for entry in repository.get_dataset(name, regenerate=not complete).test:
            item_id = str(entry["item_id"])
            kept = longest.setdefault(item_id, entry)
            if len(entry["target"]) > len(kept["target"]):
                longest[item_id] = entry
    return longest
