"""diagnose: finds what is planted, finds nothing elsewhere, and changes nothing."""

from __future__ import annotations

import logging
import signal
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from helpers.paper_models import make
from helpers.planted import noisy_rows
from helpers.series import dataset
from helpers.training import QUIET, quiet_trainer

import pts_scott
from pts_scott import (
    LSTMEstimator,
    SimpleFeedForwardEstimator,
    Stratifier,
    VAREstimator,
    with_scott,
)
from pts_scott.backends import backend
from pts_scott.diagnostics.diagnosis import Diagnosis
from pts_scott.diagnostics.diagnosis_probe import DiagnosisProbe
from pts_scott.errors import ArgumentError, DataError, DivergenceError, ScottError
from pts_scott.models.diagnose import diagnose

FREQ = "H" if backend.NAME == "pytorchts" else "h"
if backend.NAME == "gluonts":
    from gluonts.torch.model.deepar import DeepAREstimator

    DEEPAR: dict[str, Any] = {"hidden_size": 8}
else:
    from pts.model.deepar import DeepAREstimator

    DEEPAR = {"num_cells": 8, "input_size": 10}

SPREADS = (0.1, 0.1, 0.1, 0.1, 0.1, 3.0)
SHORT = {"steps": 40, "windows": 512}


def planted() -> Any:
    return dataset(noisy_rows(SPREADS), FREQ)


def homogeneous() -> Any:
    return dataset(noisy_rows((0.5,) * 6), FREQ)


def estimator(cls: type = VAREstimator, **trainer: Any) -> Any:
    settings = {"method": "auto", "optimizer": "adam", "batch_size": 8, **trainer}
    return make(cls, freq=FREQ, trainer=quiet_trainer(**settings))


def deepar(**trainer: Any) -> Any:
    lags = {"lags_seq": [1, 2], "prediction_length": 4, "context_length": 12}
    own = quiet_trainer(**{"method": "auto", "batch_size": 8, **trainer})
    return with_scott(DeepAREstimator)(freq=FREQ, **lags, **DEEPAR, trainer=own)


@pytest.mark.parametrize("cls", [VAREstimator, SimpleFeedForwardEstimator])
def test_planted_heterogeneity_is_found_and_recommended(cls):
    found = diagnose(estimator(cls, learning_rate=1e-2), planted(), steps=200)
    # One of six series has nearly all of the variance: drawing its windows alone would
    # leave 1/6 of it, and the tenth that is drawn in proportion adds little.
    rows = found.table.query("step == 200 and sampler == 'stratified'")
    variances = rows.set_index(["strata", "allocation"])["variance"]
    assert variances["series()", "spread"] < 0.4
    assert found.advice.startswith(("Draw from series()", "Draw from learned("))
    assert "then have 0." in found.advice


def test_homogeneous_data_leave_nothing_to_gain():
    found = diagnose(estimator(), homogeneous(), steps=40)
    assert "to gain from strata" in found.advice
    assert found.advice.startswith(("Nothing", "Hardly anything"))
    fixed = found.table[found.table["strata"] == "series()"]
    # Standard errors are about 0.03, so three of them.
    assert fixed["variance"].between(0.9, 1.1).all()


def test_estimators_of_the_library_are_diagnosed():
    found = diagnose(deepar(), planted(), **SHORT)
    assert list(found.table["step"].unique()) == [0, 4, 40]
    assert np.isfinite(found.table["variance"]).all()
    assert np.isfinite(found.noise_scale)
    # Its windows begin before their series, too, so series have more of them.
    assert found.points[-1].windows == 512


@pytest.mark.parametrize("make_estimator", [estimator, deepar])
def test_estimator_and_trainer_stay_as_they_are(make_estimator):
    data = planted()
    untouched, diagnosed = (make_estimator(seed=3) for _ in range(2))
    trainer = diagnosed.trainer
    before = repr(diagnosed), dict(trainer.given_arguments), set(vars(diagnosed))
    diagnose(diagnosed, data, **SHORT)
    assert diagnosed.trainer is trainer
    assert before == (
        repr(diagnosed),
        trainer.given_arguments,
        set(vars(diagnosed)),
    )
    assert trainer.history.empty
    assert trainer.lightning is None
    first, second = (e.train(data).prediction_net for e in (untouched, diagnosed))
    for x, y in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(x, y)


def test_global_random_state_and_log_level_stay_as_they_are():
    logger = logging.getLogger("lightning.pytorch")
    torch.manual_seed(5)
    state, level = torch.get_rng_state(), logger.level
    diagnose(estimator(), planted(), **SHORT)
    assert torch.equal(torch.get_rng_state(), state)
    assert logger.level == level


def test_one_seed_gives_one_diagnosis():
    first, again, other = (
        diagnose(estimator(), planted(), seed=seed, **SHORT) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_own_policy_and_batch_size_are_used():
    policy = Stratifier.periodic(5)
    found = diagnose(
        estimator(), planted(), batch_size=4, stratifier=policy, steps=10, windows=256
    )
    assert found.batch_size == 4
    assert "periodic(5)" in set(found.table["strata"])
    of_trainer = diagnose(
        estimator(stratifier=policy, batch_size=16), planted(), steps=10, windows=256
    )
    assert of_trainer.batch_size == 16
    assert "periodic(5)" in set(of_trainer.table["strata"])


def test_trainer_of_another_method_and_optimizer_is_diagnosed_alike():
    data = planted()
    auto = diagnose(estimator(), data, **SHORT)
    scott = estimator(
        method="scott",
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        anchor_batch_size=4,
        epochs=7,
        time_budget=1e-3,
        checkpoint="nowhere",
        trainer_kwargs={**QUIET, "callbacks": [pl.callbacks.Timer()]},
    )
    assert diagnose(scott, data, **SHORT).table.equals(auto.table)
    assert not Path("nowhere").exists()


def test_windows_of_the_estimator_can_be_given():
    own, data = estimator(), planted()
    by_windows = diagnose(own, own.create_windows(data), **SHORT)
    assert by_windows == diagnose(own, data, **SHORT)


def test_control_variate_is_measured_against_the_parameters_a_loop_ago():
    # With a loop of one step, parameters hardly differ; with 40 steps they do.
    near, far = (
        diagnose(estimator(inner_steps=k), planted(), **SHORT).points[-1].change.value
        for k in (1, 40)
    )
    assert near < 0.2 * far


def test_recurrent_network_is_diagnosed():
    found = diagnose(estimator(LSTMEstimator), planted(), steps=5, windows=64)
    assert isinstance(found, Diagnosis)
    assert found.points[-1].step == 5


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_very_short_runs_are_measured_once_per_step(steps):
    found = diagnose(estimator(), planted(), steps=steps, windows=64)
    assert [p.step for p in found.points] == sorted({0, 1, steps})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (VAREstimator, "the class VAREstimator, not an instance"),
        (DeepAREstimator, "the class DeepAREstimator"),
        ("mlp", "estimator is 'mlp'; expected an estimator"),
        (None, "estimator is None"),
    ],
)
def test_wrong_estimator_is_refused(wrong, message):
    with pytest.raises(ArgumentError, match=message):
        diagnose(wrong, planted())


@pytest.mark.skipif(backend.NAME != "gluonts", reason="needs GluonTS' constructor")
def test_estimator_without_scott_is_refused_with_the_remedy():
    with pytest.raises(ArgumentError, match=r"with_scott\(DeepAREstimator\)\(\.\.\.\)"):
        diagnose(DeepAREstimator(freq="h", prediction_length=4), planted())


@pytest.mark.parametrize("wrong", [None, 3, "electricity", b"x"])
def test_wrong_dataset_is_refused(wrong):
    with pytest.raises(ArgumentError, match="expected entries with start and target"):
        diagnose(estimator(), wrong)


def test_windows_of_another_estimator_are_refused():
    windows = estimator().create_windows(planted())
    with pytest.raises(ArgumentError, match="those of another estimator"):
        diagnose(deepar(), windows)


@pytest.mark.parametrize(
    "wrong",
    [{"steps": 0}, {"windows": 63}, {"batch_size": 0}, {"seed": -1}, {"stratifier": 5}],
)
def test_wrong_numbers_are_refused(wrong):
    (name,) = wrong
    with pytest.raises(ArgumentError, match=f"{name}="):
        diagnose(estimator(), planted(), **wrong)


@pytest.mark.parametrize("entries", [[], [{"start": "2024-01-01"}], [5]])
def test_unusable_data_are_refused(entries):
    with pytest.raises(ScottError):
        diagnose(estimator(), entries)


def test_too_few_windows_are_refused():
    with pytest.raises(DataError, match="needs at least 64"):
        diagnose(estimator(), dataset(noisy_rows((1.0,), 40), FREQ))


@pytest.mark.filterwarnings("ignore:.*diverges:pts_scott.errors.ScottWarning")
@pytest.mark.filterwarnings("ignore:.*was skipped:pts_scott.errors.FaultWarning")
@pytest.mark.filterwarnings("ignore:training ends:pts_scott.errors.ScottWarning")
@pytest.mark.parametrize("cls", [VAREstimator, SimpleFeedForwardEstimator])
def test_divergence_is_an_error(cls):
    with pytest.raises(DivergenceError, match="training diverged"):
        diagnose(estimator(cls, learning_rate=1e30), planted(), **SHORT)


def test_ctrl_c_ends_it_without_a_diagnosis(monkeypatch):
    seen = []

    def interrupt(probe, step, earlier):
        seen.append(step)
        if step:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(DiagnosisProbe, "measure", interrupt)
    # Programs that were started in the background ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            diagnose(estimator(), planted(), **SHORT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [0, 4]  # 40 is not reached


def test_it_is_a_public_name():
    assert pts_scott.diagnose is diagnose
    assert "diagnose" in pts_scott.__all__


def test_small_model_is_diagnosed_in_seconds():
    began = time.perf_counter()
    diagnose(estimator(SimpleFeedForwardEstimator), planted())
    # It takes about five seconds; the limit is the promise, on a slow machine, too.
    assert time.perf_counter() - began < 60
