"""The folders of settings in a folder of results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pts_scott.errors import ScottError
from pts_scott.experiments.config import Experiment
from pts_scott.experiments.results import refuse_links


def make_folders(experiments: Sequence[Experiment], output: Path) -> None:
    """Create the folder of each setting, with its config.

    Raises
    ------
    ScottError
        If a folder cannot be written, or is a link to outside of ``output``.
    """
    for experiment in experiments:
        folder = output / experiment.setting
        refuse_links(folder, output)
        try:
            (folder / "runs").mkdir(parents=True, exist_ok=True)
            (folder / "config.yaml").write_text(experiment.dump(), encoding="utf-8")
        except OSError as error:
            raise ScottError(
                f"results cannot be written to {folder}: {error.strerror}. Choose "
                "another folder with --output."
            ) from None
