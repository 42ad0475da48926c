"""The command ``pts-scott diagnose``: would a better sampler help in this setting."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tqdm import tqdm

from pts_scott.diagnostics.diagnosis import Diagnosis
from pts_scott.experiments.config import Experiment
from pts_scott.experiments.folders import new_folder
from pts_scott.experiments.lightning_control import interruptible, silence_lightning
from pts_scott.experiments.progress import Meter
from pts_scott.experiments.report.figures import save_figure
from pts_scott.experiments.setting import Setting
from pts_scott.models.diagnose import diagnose


def diagnose_setting(
    setting: Setting,
    steps: int,
    windows: int,
    seed: int,
    say: Callable[[str], None] = tqdm.write,
) -> Diagnosis:
    """Diagnose the model of an experiment on its training windows.

    Parameters
    ----------
    setting
        The setting. Its stratifier is one of the candidates, and if it trains with Adam,
        the step size is that of the first optimizer that does.
    steps, windows, seed
        As for `diagnose`.
    say
        Where progress lines go.
    """
    silence_lightning()
    experiment = setting.experiment
    names = list(experiment.optimizers)
    adam = [n for n in names if experiment.optimizers[n].optimizer == "adam"]
    estimator = setting.estimator((adam or names)[0], seed)
    meter = Meter("diagnosis", steps, " steps", say)
    with meter, interruptible():
        return diagnose(
            estimator,
            setting.training,
            steps=steps,
            windows=windows,
            stratifier=experiment.stratifier(),
            seed=seed,
            progress=lambda step: meter.advance(step / steps),
        )


def write_diagnosis(diagnosis: Diagnosis, folder: Path) -> None:
    """Write the table and the figure."""
    diagnosis.table.to_csv(folder / "diagnosis.csv", index=False)
    save_figure(diagnosis.figure(), folder / "diagnosis.png")


def command(
    experiment: Experiment,
    steps: int,
    windows: int,
    seed: int,
    output: Path,
    say: Callable[[str], None] = tqdm.write,
) -> tuple[Diagnosis, Path]:
    """Diagnose, write and return the diagnosis and its folder."""
    setting = Setting(experiment)
    with new_folder(experiment, output) as folder:
        diagnosis = diagnose_setting(setting, steps, windows, seed, say)
        write_diagnosis(diagnosis, folder)
    return diagnosis, folder
