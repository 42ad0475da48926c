"""Cases of hostile data: each ends in a typed error with a remedy, or trains correctly.

A case goes through a real training of each of its models. The tables of cases are in
``tests/data/hostile``.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from gluonts.dataset.common import ListDataset

from helpers.training import quiet_trainer
from pts_scott import (
    ScottTrainer,
    SimpleFeedForwardEstimator,
    Stratifier,
    VAREstimator,
    with_scott,
)
from pts_scott.backends import backend
from pts_scott.errors import ScottError, ScottWarning

if backend.NAME == "gluonts":
    from gluonts.torch.model.deepar import DeepAREstimator

    HOURLY, SIZES = "h", {"hidden_size": 4}
else:
    from pts.model.deepar import DeepAREstimator

    HOURLY, SIZES = "H", {"num_cells": 4, "input_size": 10}

STEPS = 5  # of training
CONTEXT, PREDICTION = 6, 2
HOURS = np.arange(60)
WAVE = 5 + np.sin(HOURS / 3)

NOT_A_DATASET = "is not a dataset: .* e.g. gluonts.dataset.common.ListDataset"
NOT_NUMERIC = "target of series 'a' is not numeric: .* Give an array of numbers"
NO_DATE = "series 'a': start=.* is not a date.* Write e.g. start='2024-01-31'"
PIPELINE = "pipeline failed on series 'a': .* Check that start, target and features"


@dataclass
class Case:
    """One dataset and its expected outcome.

    ``given`` creates the dataset. With ``error``, training must raise it, with a message
    that matches ``match``. Otherwise it must train: with the same result as ``same_as``
    if that is given, with a warning that matches ``warns`` if that is given, and so that
    ``check`` passes. ``learns`` is False where there is nothing to learn, and the warning
    says so.
    """

    given: Callable[[], Any]
    error: type[ScottError] | None = None
    match: str = ""
    models: str = "var deepar"
    freq: Any = HOURLY
    stratifier: Any = None
    validation: Callable[[], Any] | None = None
    cause: type[Exception] | None = None
    same_as: Callable[[], Any] | None = None
    warns: str | None = None
    learns: bool = True
    check: Callable[[ScottTrainer], None] | None = None


def cases(table: dict[str, Case]) -> Any:
    """Parametrize a test by the cases of a table and their models."""
    return pytest.mark.parametrize(
        ("model", "case"),
        [
            pytest.param(model, case, id=f"{name}-{model}")
            for name, case in table.items()
            for model in case.models.split()
        ],
    )


# -- datasets -----------------------------------------------------------------------


def at(moment: str, freq: str = HOURLY) -> Any:
    """Return a start from the library's datasets: a Period, or a Timestamp with freq."""
    entry = {"start": moment, "target": [0.0]}
    return next(iter(ListDataset([entry], freq=freq)))["start"]


def series(**changes: Any) -> dict[str, Any]:
    """Return a valid hourly series with some changes; ``...`` removes a field."""
    entry = {"item_id": "a", "start": at("2021-03-01"), "target": WAVE, **changes}
    return {name: value for name, value in entry.items() if value is not ...}


def missing(where: Any) -> np.ndarray:
    """Return the wave with gaps."""
    values = WAVE.copy()
    values[where] = np.nan
    return values


def good() -> Any:
    return [series()]


def target(values: Any) -> Callable[[], Any]:
    return lambda: [series(target=values)]


def start(value: Any) -> Callable[[], Any]:
    return lambda: [series(start=value)]


def ids(*names: Any) -> Callable[[], Any]:
    return lambda: [series(item_id=name) for name in names]


def both(rows: Any) -> np.ndarray:
    return np.stack([rows, rows + 1])


def days(freq: str, first: str) -> Callable[[], Any]:
    return lambda: [series(start=at(first, freq))]


# -- stratifiers --------------------------------------------------------------------


def by(function: Callable[..., Any]) -> Stratifier:
    return Stratifier.custom(function)


def unknown_client(*_: Any) -> Any:
    raise KeyError("no such client")


def strata(count: int) -> Callable[[ScottTrainer], None]:
    """Check the number of strata."""

    def check(trainer: ScottTrainer) -> None:
        assert len(trainer.strata) == count

    return check


# -- running a case -----------------------------------------------------------------


def estimator(model: str, case: Case) -> Any:
    trainer = quiet_trainer(
        num_batches_per_epoch=STEPS, batch_size=4, stratifier=case.stratifier
    )
    common = {
        "freq": case.freq,
        "prediction_length": PREDICTION,
        "context_length": CONTEXT,
        "trainer": trainer,
    }
    if model == "var":
        return VAREstimator(**common)
    if model == "sff":
        return SimpleFeedForwardEstimator(**common, hidden_dimensions=[4])
    return with_scott(DeepAREstimator)(
        **common, **SIZES, lags_seq=[1, 2], num_parallel_samples=3
    )


def train(model: str, case: Case, given: Callable[[], Any]) -> tuple[Any, ScottTrainer]:
    made = estimator(model, case)
    validation = None if case.validation is None else case.validation()
    return made.train(given(), validation_data=validation), made.trainer


def run(model: str, case: Case) -> tuple[Any, ScottTrainer]:
    """Train, and check that there are no other warnings than the expected one."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", category=ScottWarning)
        try:
            return train(model, case, case.given)
        finally:
            ours = [w for w in caught if issubclass(w.category, ScottWarning)]
            texts = [str(w.message) for w in ours]
            assert bool(texts) == (case.warns is not None), texts
            assert all(re.search(case.warns, text) for text in texts), texts


def forecasts(predictor: Any, given: Callable[[], Any]) -> Iterator[np.ndarray]:
    """Return forecasts for the same data, with the frequency that GluonTS needs."""
    entries = list(given())
    for entry in entries:
        if isinstance(entry["start"], str):
            entry["start"] = at(entry["start"])
    made = list(predictor.predict(entries))
    assert len(made) == len(entries)
    return (getattr(forecast, "samples", forecast.mean) for forecast in made)


def check_case(model: str, case: Case) -> None:
    """Train, and check the expected outcome."""
    if case.error is not None:
        with pytest.raises(case.error, match=case.match) as caught:
            run(model, case)
        assert type(caught.value) is case.error
        assert len(str(caught.value)) < 700, "messages must be short"
        if case.cause is not None:
            assert isinstance(caught.value.__cause__, case.cause)
        return
    predictor, trainer = run(model, case)
    history = trainer.history
    assert history["step"].iloc[-1] == STEPS
    if case.check is not None:
        case.check(trainer)
    if case.learns:
        assert np.isfinite(history["train_loss"]).all()
    state = predictor.prediction_net.state_dict()
    assert all(bool(values.isfinite().all()) for values in state.values())
    if case.same_as is not None:
        other, trainer = train(model, case, case.same_as)
        assert history["train_loss"].tolist() == trainer.history["train_loss"].tolist()
        for name, values in other.prediction_net.state_dict().items():
            assert torch.equal(values, state[name]), name
    for samples in forecasts(predictor, case.same_as or case.given):
        assert np.isfinite(samples).all()
