"""Hostile validation data."""

from __future__ import annotations

import numpy as np
from helpers.hostile_data import (
    HOURS,
    NOT_A_DATASET,
    PIPELINE,
    WAVE,
    Case,
    both,
    cases,
    check_case,
    days,
    good,
    missing,
    target,
)

from pts_scott import ScottTrainer
from pts_scott.errors import (
    DataError,
    EmptyDatasetError,
    InfiniteValuesError,
    MixedFrequencyError,
    ShortSeriesError,
)


def validated(trainer: ScottTrainer) -> None:
    assert np.isfinite(trainer.history["val_loss"].iloc[-1])


TABLE = {
    "no validation series": Case(
        good, EmptyDatasetError, "no series; .* pass a list", validation=list
    ),
    "validation data that is not a dataset": Case(
        good, DataError, NOT_A_DATASET, validation=lambda: "data.csv"
    ),
    "validation data of another frequency": Case(
        good,
        MixedFrequencyError,
        "'D', but .* give the frequency",
        validation=days("D", "2021-03-01"),
    ),
    "validation data of other dimensions": Case(
        good,
        DataError,
        f"validation targets 2 .* make both alike|{PIPELINE}",
        validation=target(both(WAVE)),
    ),
    "short validation series": Case(
        good,
        ShortSeriesError,
        "window of 8 steps: 'a'. Remove",
        models="var sff",
        validation=target(WAVE[:7]),
    ),
    "validation series without a value": Case(
        good,
        EmptyDatasetError,
        "Check how they were read|Fill the gaps",
        validation=target(missing(HOURS >= 0)),
    ),
    "validation series without a value at their end": Case(
        good,
        EmptyDatasetError,
        "none of 1 windows has a value .* Fill the gaps",
        validation=target(missing(HOURS >= 40)),
    ),
    "infinite validation data": Case(
        good,
        InfiniteValuesError,
        "replace the value",
        validation=target(np.append(WAVE, np.inf)),
    ),
    "a generator of validation data": Case(
        good, validation=lambda: (entry for entry in good()), check=validated
    ),
}


@cases(TABLE)
def test_hostile_validation_data_is_rejected_with_a_remedy_or_trains(model, case):
    check_case(model, case)
