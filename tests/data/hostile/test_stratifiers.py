"""Hostile stratifiers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from helpers.hostile_data import (
    WAVE,
    Case,
    by,
    cases,
    check_case,
    good,
    strata,
    target,
    unknown_client,
)

from pts_scott import ScottTrainer, Stratifier
from pts_scott.errors import (
    ArgumentError,
    EmptyStratumError,
    StratificationError,
    TooManyStrataError,
)

LABEL = "'a' at 2021-03-01 0.:00:00: .* must return a number, a string, a date or"


def erases(item_id: str, start: pd.Timestamp, instance: Any) -> int:
    for values in instance.values():
        if isinstance(values, np.ndarray):
            values[...] = 0
    return start.hour % 2


def learned(trainer: ScottTrainer) -> None:
    """Check that the loss is not that of windows without an observed value."""
    assert trainer.history["train_loss"].iloc[-1] > 0.1


TABLE = {
    "a stratifier that raises": Case(
        good,
        StratificationError,
        "'a' at 2021-03-01 0.:00:00: KeyError: 'no such client'. It must",
        stratifier=by(unknown_client),
        cause=KeyError,
    ),
    "a stratifier of one argument": Case(
        good, StratificationError, LABEL, stratifier=by(lambda item_id: 1)
    ),
    "a stratifier that returns a list": Case(
        good, StratificationError, f"unhashable|{LABEL}", stratifier=by(lambda *_: [1])
    ),
    "a stratifier that returns a dict": Case(
        good, StratificationError, LABEL, stratifier=by(lambda *_: {})
    ),
    "a stratifier that returns an array": Case(
        good, StratificationError, LABEL, stratifier=by(lambda *_: np.ones(2))
    ),
    "a stratifier that returns a list in a tuple": Case(
        good, StratificationError, LABEL, stratifier=by(lambda *_: (1, [2]))
    ),
    "a stratifier that returns NaN": Case(
        good,
        StratificationError,
        f"returned nan|{LABEL}",
        stratifier=by(lambda *_: np.nan),
    ),
    "a stratifier that returns NaN in a tuple": Case(
        good, StratificationError, LABEL, stratifier=by(lambda *_: (1, (np.nan,)))
    ),
    "a stratifier that returns NaT": Case(
        good, StratificationError, LABEL, stratifier=by(lambda *_: pd.NaT)
    ),
    "a stratifier that returns pandas.NA": Case(
        good, StratificationError, LABEL, stratifier=by(lambda *_: pd.NA)
    ),
    "a stratifier that returns None": Case(
        good, StratificationError, LABEL, stratifier=by(lambda *_: None)
    ),
    "a stratifier that returns objects without equality": Case(
        good, StratificationError, LABEL, stratifier=by(lambda *_: object())
    ),
    "a stratifier that returns unordered sets": Case(
        good, StratificationError, LABEL, stratifier=by(lambda *_: frozenset("ab"))
    ),
    "a stratifier that returns numbers and strings": Case(
        good, stratifier=by(lambda i, m, _: 1 if m.hour % 2 else "1"), check=strata(2)
    ),
    "a stratifier that returns dates": Case(
        good, stratifier=by(lambda i, m, _: m.normalize()), check=strata(3)
    ),
    "a stratifier that modifies its instance": Case(
        good, stratifier=by(erases), check=learned
    ),
    "a stratifier that is a string": Case(
        good, ArgumentError, "expected a policy, e.g.", stratifier="weekday"
    ),
    "more strata than windows": Case(
        good,
        TooManyStrataError,
        "only 5. windows; ask for fewer",
        stratifier=Stratifier.random(1000),
    ),
    "clusters of identical windows": Case(
        target(np.full(60, 3.0)),
        EmptyStratumError,
        "no window falls into number .* ask for fewer",
        models="var",
        stratifier=Stratifier.kmeans(4),
    ),
    "clusters of huge values": Case(
        target(WAVE * 1e30), stratifier=Stratifier.kmeans(3), check=strata(3)
    ),
    "features that raise": Case(
        good,
        StratificationError,
        "KeyError: 'no such client'. It must return finite numbers of shape",
        stratifier=Stratifier.kmeans(3, features=unknown_client),
        cause=KeyError,
    ),
    "features that are NaN": Case(
        good,
        StratificationError,
        "NaN or infinity. It must return finite numbers of shape",
        stratifier=Stratifier.kmeans(3, features=lambda contexts: contexts * np.nan),
    ),
    "features of a wrong shape": Case(
        good,
        StratificationError,
        "cannot reshape .* It must return finite numbers of shape",
        stratifier=Stratifier.kmeans(3, features=lambda contexts: np.ones(7)),
    ),
}


@cases(TABLE)
def test_hostile_stratifier_is_rejected_with_a_remedy_or_trains(model, case):
    check_case(model, case)
