"""The table of datasets that are known by name, and the folder of their files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pts_scott.errors import DatasetNotFoundError

FOLDER_VARIABLE = "PTS_SCOTT_DATA"  # environment variable: the folder of the files


@dataclass(frozen=True)
class KnownDataset:
    """A dataset that is known by name."""

    name: str
    series: int
    steps: int
    freq: str
    start: str
    description: str
    download: bool = False  # whether GluonTS can download it

    @property
    def file(self) -> str:
        """Name of its file."""
        return f"{self.name}.txt.gz"

    @property
    def layout(self) -> str:
        """Expected layout of its file."""
        return (
            f"{self.steps} rows × {self.series} columns, comma separated, one row per "
            "step, one column per series, no header"
        )

    def find(self, folder: Path | None) -> Path | None:
        """Return its file in the folder, packed or not, if there is one."""
        if folder is None:
            return None
        paths = (folder / self.file, folder / f"{self.name}.txt")
        return next((path for path in paths if path.is_file()), None)

    def not_found(self, folder: Path | None, reason: str) -> DatasetNotFoundError:
        """Return the error that says where its file was expected."""
        if folder is None:
            where = f"the environment variable {FOLDER_VARIABLE} is not set"
            remedy = f"Put {self.file} into a folder and set {FOLDER_VARIABLE} to it"
        else:
            where = f"there is no {self.file} in {str(folder)!r}"
            remedy = (
                f"Put {self.file} there, or set {FOLDER_VARIABLE} to the folder that "
                "contains it"
            )
        return DatasetNotFoundError(
            f"dataset {self.name!r} was not found; {where}. {reason} {remedy} "
            f"({self.layout})."
        )


_TABLE = (
    KnownDataset("exchange_rate", 8, 7588, "B", "1990-01-01", "exchange rates", True),
    KnownDataset(
        "traffic", 862, 17544, "h", "2015-01-01", "road occupancy, 0 to 1", True
    ),
    KnownDataset(
        "electricity", 321, 26304, "h", "2012-01-01", "clients' consumption", True
    ),
    KnownDataset(
        "traffic-21x17544", 21, 17544, "h", "2015-01-01", "sensors 0-19 and 861"
    ),
    KnownDataset(
        "electricity-321x840", 321, 840, "h", "2014-11-27", "its last 840 hours"
    ),
    KnownDataset(
        "electricity-12x8760", 12, 8760, "h", "2014-01-01", "12 clients, mean kW"
    ),
    KnownDataset("electricity-2x26304", 2, 26304, "h", "2012-01-01", "clients 0 and 320"),
)
KNOWN = {known.name: known for known in _TABLE}


def data_folder(folder: str | Path | None) -> Path | None:
    """Return the given folder, else the one that the environment variable names."""
    named = folder if folder is not None else os.environ.get(FOLDER_VARIABLE)
    return Path(named).expanduser() if named else None
