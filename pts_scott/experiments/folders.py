"""The folders of settings in a folder of results."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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


@contextmanager
def new_folder(experiment: Experiment, output: Path) -> Iterator[Path]:
    """Create the folder of a setting; remove it again if nothing is written into it.

    So a folder that cannot be written is reported before the work, and an error or an
    interrupt during the work leaves nothing behind.
    """
    folder = output / experiment.setting
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    make_folders([experiment], output)
    try:
        yield folder
    except BaseException:
        if folder in new and not any((folder / "runs").iterdir()):
            shutil.rmtree(folder)
            for parent in new[1:]:
                parent.rmdir()
        raise
