"""Recorded trajectories that every later version must reproduce.

``golden.json`` was recorded before the package was split into layers. To record it again,
only after a deliberate change of the numbers, run from the root::

    PYTHONPATH=.:tests python tests/training/test_golden.py

To record another version with the same public interface, put its folder in place of
``.``. Runs are eager, on the CPU and in float64.
"""

from __future__ import annotations

import json
import math
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.faults import FaultyNetwork
from helpers.runs import run

import pts_scott

FILE = Path(__file__).with_name("golden.json")

# All versions compute the same operations in the same order, but BLAS builds and
# processors with other vector instructions order their sums differently. Changing the
# initial parameters by one unit in the last place changes these results by less than
# 1e-12; a wrong coefficient, weight or draw changes their first digits.
RTOL = 1e-9
ATOL = 1e-12  # for sums that nearly cancel

OPTIMIZERS = ("sgd", "adam", "adagrad")
FAULTY: dict[str, Any] = {"network": "faulty", "skip_limit": 99, "gamma": None}
#: Two windows of each of the three series in every step.
EQUAL: dict[str, Any] = {"method": "stratified", "allocation": "equal", "batch_size": 6}
METHODS: dict[str, dict[str, Any]] = {
    "scott": {"method": "scott"},
    "scsg": {"method": "scsg"},
    "svrg": {"method": "svrg"},
    "stratified": EQUAL,
    "plain": {"method": "plain"},
}

#: Arguments of ScottTrainer per case; "network" and "crash" are for `trajectory`.
CASES: dict[str, dict[str, Any]] = {
    **{
        f"{name}-{optimizer}": {**method, "optimizer": optimizer, "gamma": None}
        for name, method in METHODS.items()
        for optimizer in OPTIMIZERS
    },
    "scott-gamma": {"gamma": 0.7, "inner_steps": 9},
    "svrg-gamma": {"method": "svrg", "gamma": 0.9, "optimizer": "adam"},
    "scott-clipped": {"clip_gradient": 0.05, "gamma": 0.125},
    "plain-clipped": {"method": "plain", "clip_gradient": 0.05, "optimizer": "adagrad"},
    "scott-geometric": {"inner_length": "geometric", "gamma": None},
    "scott-linear": {"coefficient": "linear", "gamma": None},
    "scott-sampled": {"output": "sampled"},
    "scott-best": {"output": "best", "learning_rate": 0.05},
    "scott-budget": {"epochs": None, "gradient_budget": 700},
    "scott-nonfinite": {**FAULTY},
    "plain-nonfinite": {**FAULTY, "method": "plain", "optimizer": "adam"},
    "stratified-nonfinite": {**FAULTY, **EQUAL},
    "scott-adam-resumed": {"crash": 30, "optimizer": "adam", "gamma": None},
    "svrg-adagrad-resumed": {
        "crash": 18,
        "method": "svrg",
        "optimizer": "adagrad",
        "gamma": None,
    },
}


def trajectory(folder: Path, case: dict[str, Any]) -> dict[str, Any]:
    """Run a case and return a summary of it.

    Parameters
    ----------
    folder
        An empty folder for checkpoints.
    case
        Arguments of ScottTrainer; "network" names the network, "crash" is the step at
        which the run is interrupted before it is resumed.
    """
    settings = dict(case)
    crash, kind = settings.pop("crash", None), settings.pop("network", "tiny")
    place = None if crash is None else folder

    def attempt(crash: float) -> tuple[torch.nn.Module, Any]:
        network = FaultyNetwork("gradient") if kind == "faulty" else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of non-finite steps
            return run(place, crash, network=network, **settings)

    if crash is not None:
        attempt(crash)
    network, trainer = attempt(math.inf)
    history = trainer.history
    last = history.iloc[-1]
    return {
        "parameters": {
            name: [float(p.sum()), float(p.norm())]
            for name, p in network.state_dict().items()
        },
        "train_loss": [float(x) for x in history["train_loss"].dropna().iloc[[0, -1]]],
        "val_loss": float(history["val_loss"].dropna().iloc[-1]),
        "update_norm": float(history["update_norm"].dropna().iloc[-1]),
        "rows": len(history),
        "steps": int(last["step"]),
        "gradients": int(last["gradients"]),
        "anchors": int(last["anchors"]),
        "skipped": int(last["skipped"]),
    }


def record() -> None:
    """Write the summaries of all cases to ``golden.json``."""
    found = {}
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            found[name] = trajectory(Path(folder), case)
    FILE.write_text(json.dumps(found, indent=1) + "\n")
    print(f"recorded {len(found)} cases of {pts_scott.__file__}")


def numbers(value: Any) -> list[float]:
    """Return the numbers in nested dicts and lists, in order."""
    if isinstance(value, dict):
        return [x for name in sorted(value) for x in numbers(value[name])]
    if isinstance(value, list):
        return [x for part in value for x in numbers(part)]
    return [value]


def test_every_case_is_recorded():
    assert json.loads(FILE.read_text()).keys() == CASES.keys()


@pytest.mark.parametrize("name", CASES)
def test_trajectory_is_reproduced(name, tmp_path):
    expected = json.loads(FILE.read_text())[name]
    found = trajectory(tmp_path, CASES[name])
    for entry in ("rows", "steps", "gradients", "anchors", "skipped"):
        assert found[entry] == expected[entry], entry
    assert found["parameters"].keys() == expected["parameters"].keys()
    for entry in ("parameters", "train_loss", "val_loss", "update_norm"):
        assert numbers(found[entry]) == pytest.approx(
            numbers(expected[entry]), rel=RTOL, abs=ATOL
        ), entry


def test_cases_differ_unless_only_one_of_them_is_resumed():
    """A setting without any effect would not be tested by its case."""
    sums: dict[str, float] = {}
    for name, case in json.loads(FILE.read_text()).items():
        total = round(sum(numbers(case["parameters"])), 9)
        if name.endswith("-resumed"):
            assert total == sums[name.removesuffix("-resumed")]
        else:
            assert total not in sums.values(), name
            sums[name] = total


def test_nonfinite_cases_skip_some_steps_but_not_all():
    for name, case in json.loads(FILE.read_text()).items():
        assert (0 < case["skipped"] < case["steps"]) == name.endswith("nonfinite"), name


if __name__ == "__main__":
    record()
