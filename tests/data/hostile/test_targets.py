"""Hostile datasets: fields, and types and shapes of targets."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from helpers.hostile_data import (
    HOURS,
    NOT_NUMERIC,
    PIPELINE,
    WAVE,
    Case,
    both,
    cases,
    check_case,
    good,
    missing,
    series,
    start,
    target,
)

from pts_scott.errors import DataError, ShortSeriesError

SHAPE = r"has shape .*; expected \(steps,\) or \(dimensions, steps\)"


def read_only(values: np.ndarray) -> np.ndarray:
    values = values.copy()
    values.setflags(write=False)
    return values


TABLE = {
    "no start": Case(start(...), DataError, "no field 'start'; every entry .* needs"),
    "no target": Case(target(...), DataError, "no field 'target'; every entry .* needs"),
    "target None": Case(target(None), DataError, SHAPE),
    "target of words": Case(target(["a"] * 60), DataError, NOT_NUMERIC),
    "target of digits": Case(target(["1"] * 60), DataError, NOT_NUMERIC),
    "target of digits as objects": Case(
        target(np.array(["1"] * 60, dtype=object)), DataError, NOT_NUMERIC
    ),
    "target of objects": Case(
        target(np.array([object()] * 60)), DataError, NOT_NUMERIC, cause=TypeError
    ),
    "target of complex numbers": Case(target(WAVE * 1j), DataError, NOT_NUMERIC),
    "target of dates": Case(
        target(pd.date_range("2020", periods=60).to_numpy()), DataError, NOT_NUMERIC
    ),
    "target of durations": Case(
        target(pd.to_timedelta(HOURS, "h").to_numpy()), DataError, NOT_NUMERIC
    ),
    "target that is a dict": Case(target({1: 2.0}), DataError, NOT_NUMERIC),
    "target that is a generator": Case(target(v for v in WAVE), DataError, NOT_NUMERIC),
    "target of rows of unequal length": Case(
        target([[1.0, 2.0], [1.0]]), DataError, NOT_NUMERIC
    ),
    "target that requires a gradient": Case(
        target(torch.ones(60, requires_grad=True)), DataError, "use tensor.detach|detach"
    ),
    "target without a dimension": Case(target(3.0), DataError, SHAPE),
    "target of three dimensions": Case(target(np.ones((2, 2, 60))), DataError, SHAPE),
    "target with zero dimensions": Case(target(np.ones((0, 60))), DataError, SHAPE),
    "series of different dimensions": Case(
        lambda: [series(target=both(WAVE)), series(target=np.ones((3, 60)))],
        DataError,
        r"dimensions \(3,\), but 'a' has \(2,\); all series need the same",
        models="var",
    ),
    "univariate and multivariate series": Case(
        lambda: [series(), series(item_id="b", target=both(WAVE))],
        DataError,
        "all series need the same|pipeline failed on series 'b'",
    ),
    "two dimensions for a univariate model": Case(
        target(both(WAVE)), DataError, f"one entry for each dim|{PIPELINE}", "sff deepar"
    ),
    "a target with time first": Case(
        target(both(WAVE).T), ShortSeriesError, "of 8 steps: 'a'. Remove", models="var"
    ),
    "bools": Case(target(WAVE > 5), same_as=target((WAVE > 5) * 1.0)),
    "small integers": Case(target(HOURS.astype(np.uint8)), same_as=target(HOURS * 1.0)),
    "half precision": Case(
        target(WAVE.astype(np.float16)),
        same_as=target(WAVE.astype(np.float16).astype(np.float64)),
    ),
    "objects with None for a gap": Case(
        target(np.where(HOURS == 9, None, WAVE)), same_as=target(missing(9))
    ),
    "a masked array": Case(
        target(np.ma.masked_array(WAVE, HOURS == 9)), same_as=target(missing(9))
    ),
    "nullable integers of pandas": Case(
        target(pd.Series(HOURS, dtype="Int64").where(HOURS != 9)),
        same_as=target(np.where(HOURS == 9, np.nan, HOURS)),
    ),
    "a series of pandas": Case(target(pd.Series(WAVE)), same_as=good),
    "a tensor": Case(target(torch.tensor(WAVE)), same_as=good),
    "a list": Case(target(WAVE.tolist()), same_as=good),
    "read-only memory": Case(target(read_only(WAVE)), same_as=good),
    "every second value of an array": Case(target(np.repeat(WAVE, 2)[::2]), same_as=good),
    "an array backwards": Case(target(WAVE[::-1].copy()[::-1]), same_as=good),
    "big-endian numbers": Case(target(WAVE.astype(">f8")), same_as=good),
    "Fortran order": Case(
        target(np.asfortranarray(both(WAVE))), same_as=target(both(WAVE)), models="var"
    ),
}


@cases(TABLE)
def test_hostile_target_is_rejected_with_a_remedy_or_trains(model, case):
    check_case(model, case)
