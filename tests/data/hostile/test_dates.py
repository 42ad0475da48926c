"""Hostile datasets: starts and frequencies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from helpers.hostile_data import (
    CONTEXT,
    HOURLY,
    NO_DATE,
    PIPELINE,
    PREDICTION,
    Case,
    at,
    cases,
    check_case,
    days,
    good,
    series,
    start,
)

from pts_scott import ScottTrainer, Stratifier
from pts_scott.errors import DataError, FrequencyError, MixedFrequencyError

BOUNDS = "beyond the dates .* 1677-09-21 to 2262-04-11; move the starts"


def counted(part: Callable[[pd.Timestamp], int], moments: Any) -> Callable[..., None]:
    """Check that stratum sizes are the counts of a calendar part of the starts."""

    def check(trainer: ScottTrainer) -> None:
        starts = list(moments)[CONTEXT : len(moments) - PREDICTION + 1]
        expected = sorted(Counter(part(moment) for moment in starts).values())
        assert sorted(trainer.strata.sizes.tolist()) == expected

    return check


TABLE = {
    "start NaT": Case(start(pd.NaT), DataError, NO_DATE),
    "start None": Case(start(None), DataError, NO_DATE),
    "start that is not a date": Case(start("yesterday-ish"), DataError, NO_DATE),
    "start that is a long text": Case(start("x" * 100_000), DataError, NO_DATE),
    "start that is a number": Case(start(20210301), DataError, NO_DATE),
    "a time zone": Case(
        start(pd.Timestamp("2021-03-01", tz="Europe/Berlin")),
        DataError,
        r"series 'a': .* has a time zone; drop it with start.tz_localize\(None\)",
    ),
    "a string with a UTC offset": Case(
        start("2021-03-01T00:00+01:00"), DataError, "has a time zone; drop it"
    ),
    "a start without frequency": Case(
        start("2021-03-01"),
        FrequencyError,
        r"'a' starts at '2021-03-01'.*ListDataset\(entries, freq='h'\)",
        models="deepar",
    ),
    "a start of numpy": Case(
        start(np.datetime64("2021-03-01")), same_as=start("2021-03-01"), models="var"
    ),
    "before the dates of pandas": Case(
        start("1600-01-01"), DataError, BOUNDS, models="var"
    ),
    "after the dates of pandas": Case(start("9999-01-01"), DataError, BOUNDS, "var"),
    "months before the dates of pandas": Case(
        start("1600-01-01"), DataError, BOUNDS, "var", freq="MS"
    ),
    "beyond the end of the dates of pandas": Case(
        lambda: [series(start=at("2262-04-11 00:00"))], DataError, f"{BOUNDS}|{PIPELINE}"
    ),
    "from the beginning of the dates of pandas": Case(
        lambda: [series(start=at("1677-09-23"))], models="var"
    ),
    "series centuries apart": Case(
        lambda: [series(start=at("1700-01-01")), series(start=at("2200-01-01"))],
        models="var",
    ),
    "starts of two kinds": Case(
        lambda: [
            series(start=pd.Period("2021-03-01", HOURLY)),
            series(start=pd.Timestamp("2021-03-01")),
        ],
        MixedFrequencyError,
        "a pandas Period and some at a Timestamp; use one kind",
        models="var",
    ),
    "series of two frequencies": Case(
        lambda: [series(), series(start=at("2021-03-01", "D"))],
        MixedFrequencyError,
        "frequencies 'D', '[hH]'; train one model per frequency",
    ),
    "another frequency than the model's": Case(
        days("D", "2021-03-01"), MixedFrequencyError, "'D', but .* give the frequency"
    ),
    "freq None": Case(good, FrequencyError, "freq is missing; give", freq=None),
    "unknown freq": Case(
        good,
        FrequencyError,
        "not a frequency that pandas knows; write e.g.",
        freq="often",
    ),
    "freq that is a number": Case(
        good, FrequencyError, "not a frequency that pandas knows; write e.g.", freq=3
    ),
    "negative freq": Case(good, FrequencyError, "go forward .* write e.g.", freq="-1h"),
    "zero freq": Case(good, FrequencyError, "go forward .* write e.g.", freq="0h"),
    "hours across a change to daylight saving time": Case(
        lambda: [series(start=at("2021-03-27 12:00"))],
        stratifier=Stratifier.calendar("hour"),
        models="var",
        check=counted(
            lambda m: m.hour, pd.date_range("2021-03-27 12:00", periods=60, freq="h")
        ),
    ),
    "hours that start at half past": Case(
        lambda: [series(start="2021-03-01 00:30")],
        stratifier=Stratifier.calendar("hour"),
        models="var",
        same_as=lambda: [series(start="2021-03-01")],
    ),
    "days across a leap day": Case(
        days("D", "2024-02-01"),
        freq="D",
        models="var",
        stratifier=Stratifier.calendar("month", "day"),
        check=counted(
            lambda m: (m.month, m.day), pd.date_range("2024-02-01", periods=60, freq="D")
        ),
    ),
    "business days across a leap day": Case(
        days("B", "2024-02-01"),
        freq="B",
        models="var",
        stratifier=Stratifier.calendar("weekday"),
        check=counted(
            lambda m: m.weekday(), pd.date_range("2024-02-01", periods=60, freq="B")
        ),
    ),
    "weeks across a leap day": Case(
        days("W-THU", "2024-02-01"),
        freq="W-THU",
        models="var",
        stratifier=Stratifier.calendar("year"),
    ),
    "months from a leap day": Case(
        days("M", "2024-02-29"),
        freq="M",
        models="var",
        stratifier=Stratifier.calendar("month"),
        check=counted(
            lambda m: m.month, pd.date_range("2024-02-01", periods=60, freq="MS")
        ),
    ),
}


@cases(TABLE)
def test_hostile_dates_are_rejected_with_a_remedy_or_train(model, case):
    check_case(model, case)
