"""Hostile data: every wrong input ends in a typed error with a remedy, or trains right.

The table is the list of rows below: what is given, and what must come of it. A row goes
through a real training of each of its models.
"""

from __future__ import annotations

import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from gluonts.dataset.common import FileDataset, ListDataset
from helpers.training import quiet_trainer

from pts_scott import (
    ScottTrainer,
    SimpleFeedForwardEstimator,
    Stratifier,
    VAREstimator,
    with_scott,
)
from pts_scott.backends import backend
from pts_scott.errors import (
    ArgumentError,
    DataError,
    EmptyDatasetError,
    EmptyStratumError,
    FrequencyError,
    InfiniteValuesError,
    MixedFrequencyError,
    ModelError,
    ScottError,
    ScottWarning,
    ShortSeriesError,
    StratificationError,
    TooManyStrataError,
)

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
LONG = "é" * 100_000


# -- what rows are made of ----------------------------------------------------------


def at(moment: str, freq: str = HOURLY) -> Any:
    """A start as the stack's own datasets give it: a Period, or a Timestamp with freq."""
    entry = {"start": moment, "target": [0.0]}
    return next(iter(ListDataset([entry], freq=freq)))["start"]


def series(**changes: Any) -> dict[str, Any]:
    """A good hourly series but for the changes; ``...`` takes a field away."""
    entry = {"item_id": "a", "start": at("2021-03-01"), "target": WAVE, **changes}
    return {name: value for name, value in entry.items() if value is not ...}


def missing(where: Any) -> np.ndarray:
    """The wave with gaps."""
    values = WAVE.copy()
    values[where] = np.nan
    return values


def read_only(values: np.ndarray) -> np.ndarray:
    values = values.copy()
    values.setflags(write=False)
    return values


def read_before() -> Iterator[Any]:
    entries = (entry for entry in [series()])
    list(entries)
    return entries


def fails_in_the_middle() -> Iterator[Any]:
    yield series()
    raise OSError("disk gone")


def stops_in_the_middle() -> Iterator[Any]:
    yield series()
    next(iter([]))


class NoIterator:
    def __iter__(self) -> Any:
        return 5


def one_buffer() -> Iterator[Any]:
    """As a careful reader of large files does it: each series in the same memory."""
    buffer = np.empty(60, dtype=np.float32)
    for level in range(3):
        buffer[:] = WAVE + level
        yield series(item_id=str(level), target=buffer)


def file_dataset(text: str | None) -> Any:
    """A dataset of GluonTS over a file with this text; None for a file that is gone."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.json"
        path.write_text(text or '{"start": "2021-03-01", "target": [1, 2]}\n')
        data = FileDataset(Path(folder), freq=HOURLY)
        if text is None:
            path.unlink()
            return data
        try:  # while the folder is there
            return Held(list(data))
        except Exception as error:
            return Held([], error)


@dataclass
class Held:
    """What reading a dataset gave before, again."""

    entries: list[Any]
    error: Exception | None = None

    def __iter__(self) -> Iterator[Any]:
        yield from self.entries
        if self.error is not None:
            raise self.error


def by(function: Callable[..., Any]) -> Stratifier:
    return Stratifier.custom(function)


def unknown_client(*_: Any) -> Any:
    raise KeyError("no such client")


def erases(item_id: str, start: pd.Timestamp, instance: Any) -> int:
    for values in instance.values():
        if isinstance(values, np.ndarray):
            values[...] = 0
    return start.hour % 2


# -- what must come of them ---------------------------------------------------------


def strata(count: int) -> Callable[[ScottTrainer], None]:
    def check(trainer: ScottTrainer) -> None:
        assert len(trainer.strata) == count

    return check


def counted(part: Callable[[pd.Timestamp], int], moments: Any) -> Callable[..., None]:
    """Strata hold as many windows as forecast starts of a list have each part."""

    def check(trainer: ScottTrainer) -> None:
        starts = list(moments)[CONTEXT : len(moments) - PREDICTION + 1]
        expected = sorted(Counter(part(moment) for moment in starts).values())
        assert sorted(trainer.strata.sizes.tolist()) == expected

    return check


def learned(trainer: ScottTrainer) -> None:
    """The loss is not that of windows in which nothing is observed."""
    assert trainer.history["train_loss"].iloc[-1] > 0.1


def validated(trainer: ScottTrainer) -> None:
    assert np.isfinite(trainer.history["val_loss"].iloc[-1])


@dataclass
class Row:
    """One line of the table.

    ``given`` makes the dataset; ``error`` and ``match`` are what it must end in. With
    no error it must train: as ``like`` does, where that is given, with a warning that
    matches ``warns``, and so that ``then`` holds. ``learns`` is False where there is
    nothing to learn, and the warning says so.
    """

    given: Callable[[], Any]
    error: type[ScottError] | None = None
    match: str = ""
    models: str = "var deepar"
    freq: Any = HOURLY
    stratifier: Any = None
    validation: Callable[[], Any] | None = None
    cause: type[Exception] | None = None
    like: Callable[[], Any] | None = None
    warns: str | None = None
    learns: bool = True
    then: Callable[[ScottTrainer], None] | None = None


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


NOT_A_DATASET = "is not a dataset: .* e.g. gluonts.dataset.common.ListDataset"
NOT_NUMERIC = "target of series 'a' is not numeric: .* Give an array of numbers"
SHAPE = r"has shape .*; expected \(steps,\) or \(dimensions, steps\)"
NO_DATE = "series 'a': start=.* is not a date.* Write e.g. start='2024-01-31'"
BOUNDS = "beyond the dates .* 1677-09-21 to 2262-04-11; move the starts"
PIPELINE = "pipeline failed on series 'a': .* See that start, target and features"
LABEL = "'a' at 2021-03-01 0.:00:00: .* must return a number, a string, a date or"

TABLE = {
    # The dataset as a whole.
    "no dataset": Row(lambda: None, DataError, NOT_A_DATASET),
    "one entry in place of a list": Row(series, DataError, NOT_A_DATASET),
    "a data frame": Row(lambda: pd.DataFrame({"a": [1]}), DataError, NOT_A_DATASET),
    "the path of a file": Row(lambda: "data.csv", DataError, NOT_A_DATASET),
    "a number": Row(lambda: 5, DataError, NOT_A_DATASET),
    "entries that are text": Row(lambda: ["a"], DataError, "holds a str; .*'target'"),
    "entries that are arrays": Row(lambda: [WAVE], DataError, "ndarray; .*'target'"),
    "None between entries": Row(
        lambda: [series(), None], DataError, "holds a NoneType; .*'target'"
    ),
    "no entries": Row(list, EmptyDatasetError, "no series; .* pass a list"),
    "a generator, read once": Row(lambda: (e for e in good()), like=good),
    "a generator that was read before": Row(
        read_before, EmptyDatasetError, "generator that was read before .* pass a list"
    ),
    "an iterator that fails in the middle": Row(
        fails_in_the_middle,
        DataError,
        r"series number 1 \(.*OSError: disk gone\. .* leave it out",
        cause=OSError,
    ),
    "a generator that raises StopIteration": Row(
        stops_in_the_middle,
        DataError,
        "series number 1 .*RuntimeError: generator raised StopIteration",
        cause=RuntimeError,
    ),
    "an iterable that is none": Row(
        NoIterator, DataError, "series number 0 .* non-iterator", cause=TypeError
    ),
    "a file that is gone": Row(
        lambda: file_dataset(None), DataError, "See that its source can be read"
    ),
    "a file with a broken line": Row(
        lambda: file_dataset("{'start'\n"), DataError, "repair that series or leave it"
    ),
    "series in one buffer, read one by one": Row(
        one_buffer,
        like=lambda: [{**e, "target": e["target"].copy()} for e in one_buffer()],
    ),
    # Fields and types.
    "no start": Row(start(...), DataError, "no field 'start'; every entry .* needs"),
    "no target": Row(target(...), DataError, "no field 'target'; every entry .* needs"),
    "target None": Row(target(None), DataError, SHAPE),
    "target of words": Row(target(["a"] * 60), DataError, NOT_NUMERIC),
    "target of digits": Row(target(["1"] * 60), DataError, NOT_NUMERIC),
    "target of digits as objects": Row(
        target(np.array(["1"] * 60, dtype=object)), DataError, NOT_NUMERIC
    ),
    "target of objects": Row(
        target(np.array([object()] * 60)), DataError, NOT_NUMERIC, cause=TypeError
    ),
    "target of complex numbers": Row(target(WAVE * 1j), DataError, NOT_NUMERIC),
    "target of dates": Row(
        target(pd.date_range("2020", periods=60).to_numpy()), DataError, NOT_NUMERIC
    ),
    "target of durations": Row(
        target(pd.to_timedelta(HOURS, "h").to_numpy()), DataError, NOT_NUMERIC
    ),
    "target that is a dict": Row(target({1: 2.0}), DataError, NOT_NUMERIC),
    "target that is a generator": Row(target(v for v in WAVE), DataError, NOT_NUMERIC),
    "target of rows of unequal length": Row(
        target([[1.0, 2.0], [1.0]]), DataError, NOT_NUMERIC
    ),
    "target that wants a gradient": Row(
        target(torch.ones(60, requires_grad=True)), DataError, "use tensor.detach|detach"
    ),
    "target without a dimension": Row(target(3.0), DataError, SHAPE),
    "target of three dimensions": Row(target(np.ones((2, 2, 60))), DataError, SHAPE),
    "target of no series": Row(target(np.ones((0, 60))), DataError, SHAPE),
    "series of different dimensions": Row(
        lambda: [series(target=both(WAVE)), series(target=np.ones((3, 60)))],
        DataError,
        r"dimensions \(3,\), but 'a' has \(2,\); all series need the same",
        models="var",
    ),
    "univariate and multivariate series": Row(
        lambda: [series(), series(item_id="b", target=both(WAVE))],
        DataError,
        "all series need the same|pipeline failed on series 'b'",
    ),
    "two dimensions for a univariate model": Row(
        target(both(WAVE)), DataError, f"one entry for each dim|{PIPELINE}", "sff deepar"
    ),
    "a target with time first": Row(
        target(both(WAVE).T), ShortSeriesError, "of 8 steps: 'a'. Remove", models="var"
    ),
    "bools": Row(target(WAVE > 5), like=target((WAVE > 5) * 1.0)),
    "small integers": Row(target(HOURS.astype(np.uint8)), like=target(HOURS * 1.0)),
    "half precision": Row(
        target(WAVE.astype(np.float16)),
        like=target(WAVE.astype(np.float16).astype(np.float64)),
    ),
    "objects with None for a gap": Row(
        target(np.where(HOURS == 9, None, WAVE)), like=target(missing(9))
    ),
    "a masked array": Row(
        target(np.ma.masked_array(WAVE, HOURS == 9)), like=target(missing(9))
    ),
    "nullable integers of pandas": Row(
        target(pd.Series(HOURS, dtype="Int64").where(HOURS != 9)),
        like=target(np.where(HOURS == 9, np.nan, HOURS)),
    ),
    "a series of pandas": Row(target(pd.Series(WAVE)), like=good),
    "a tensor": Row(target(torch.tensor(WAVE)), like=good),
    "a list": Row(target(WAVE.tolist()), like=good),
    "read-only memory": Row(target(read_only(WAVE)), like=good),
    "every second value of an array": Row(target(np.repeat(WAVE, 2)[::2]), like=good),
    "an array backwards": Row(target(WAVE[::-1].copy()[::-1]), like=good),
    "big-endian numbers": Row(target(WAVE.astype(">f8")), like=good),
    "Fortran's order": Row(
        target(np.asfortranarray(both(WAVE))), like=target(both(WAVE)), models="var"
    ),
    # Dates and frequencies.
    "start NaT": Row(start(pd.NaT), DataError, NO_DATE),
    "start None": Row(start(None), DataError, NO_DATE),
    "start that is no date": Row(start("yesterday-ish"), DataError, NO_DATE),
    "start that is a long text": Row(start("x" * 100_000), DataError, NO_DATE),
    "start that is a number": Row(start(20210301), DataError, NO_DATE),
    "a time zone": Row(
        start(pd.Timestamp("2021-03-01", tz="Europe/Berlin")),
        DataError,
        r"series 'a': .* has a time zone; drop it with start.tz_localize\(None\)",
    ),
    "a text with an offset of UTC": Row(
        start("2021-03-01T00:00+01:00"), DataError, "has a time zone; drop it"
    ),
    "a start without frequency": Row(
        start("2021-03-01"),
        FrequencyError,
        r"'a' starts at '2021-03-01'.*ListDataset\(entries, freq='h'\)",
        models="deepar",
    ),
    "a start of numpy": Row(
        start(np.datetime64("2021-03-01")), like=start("2021-03-01"), models="var"
    ),
    "before the dates of pandas": Row(
        start("1600-01-01"), DataError, BOUNDS, models="var"
    ),
    "after the dates of pandas": Row(start("9999-01-01"), DataError, BOUNDS, "var"),
    "months before the dates of pandas": Row(
        start("1600-01-01"), DataError, BOUNDS, "var", freq="MS"
    ),
    "up to the end of the dates of pandas": Row(
        lambda: [series(start=at("2262-04-11 00:00"))], DataError, f"{BOUNDS}|{PIPELINE}"
    ),
    "from the begin of the dates of pandas on": Row(
        lambda: [series(start=at("1677-09-23"))], models="var"
    ),
    "series centuries apart": Row(
        lambda: [series(start=at("1700-01-01")), series(start=at("2200-01-01"))],
        models="var",
    ),
    "starts of two kinds": Row(
        lambda: [
            series(start=pd.Period("2021-03-01", HOURLY)),
            series(start=pd.Timestamp("2021-03-01")),
        ],
        MixedFrequencyError,
        "a pandas Period and some at a Timestamp; use one kind",
        models="var",
    ),
    "series of two frequencies": Row(
        lambda: [series(), series(start=at("2021-03-01", "D"))],
        MixedFrequencyError,
        "frequencies 'D', '[hH]'; train one model for each",
    ),
    "another frequency than the model's": Row(
        days("D", "2021-03-01"), MixedFrequencyError, "'D', but .* give the frequency"
    ),
    "freq None": Row(good, FrequencyError, "freq is missing; give", freq=None),
    "freq that is none": Row(
        good,
        FrequencyError,
        "not a frequency that pandas knows; write e.g.",
        freq="often",
    ),
    "freq that is a number": Row(
        good, FrequencyError, "not a frequency that pandas knows; write e.g.", freq=3
    ),
    "freq backwards": Row(good, FrequencyError, "go forward .* write e.g.", freq="-1h"),
    "freq of no time": Row(good, FrequencyError, "go forward .* write e.g.", freq="0h"),
    "hours over a change to summer time": Row(
        lambda: [series(start=at("2021-03-27 12:00"))],
        stratifier=Stratifier.calendar("hour"),
        models="var",
        then=counted(
            lambda m: m.hour, pd.date_range("2021-03-27 12:00", periods=60, freq="h")
        ),
    ),
    "hours off the hour": Row(
        lambda: [series(start="2021-03-01 00:30")],
        stratifier=Stratifier.calendar("hour"),
        models="var",
        like=lambda: [series(start="2021-03-01")],
    ),
    "days over a leap day": Row(
        days("D", "2024-02-01"),
        freq="D",
        models="var",
        stratifier=Stratifier.calendar("month", "day"),
        then=counted(
            lambda m: (m.month, m.day), pd.date_range("2024-02-01", periods=60, freq="D")
        ),
    ),
    "business days over a leap day": Row(
        days("B", "2024-02-01"),
        freq="B",
        models="var",
        stratifier=Stratifier.calendar("weekday"),
        then=counted(
            lambda m: m.weekday(), pd.date_range("2024-02-01", periods=60, freq="B")
        ),
    ),
    "weeks over a leap day": Row(
        days("W-THU", "2024-02-01"),
        freq="W-THU",
        models="var",
        stratifier=Stratifier.calendar("year"),
    ),
    "months from a leap day on": Row(
        days("M", "2024-02-29"),
        freq="M",
        models="var",
        stratifier=Stratifier.calendar("month"),
        then=counted(
            lambda m: m.month, pd.date_range("2024-02-01", periods=60, freq="MS")
        ),
    ),
    # Names.
    "two series of one name": Row(ids("a", "a")),
    "two series of one name, by series: one stratum": Row(
        ids("a", "a"), stratifier=Stratifier.series(), then=strata(1)
    ),
    "two series of one name, in the finest strata": Row(
        ids("a", "a"),
        StratificationError,
        "2 are the same; give each series its own item_id",
        stratifier=Stratifier.finest(),
    ),
    "names None": Row(ids(None, None), stratifier=Stratifier.series(), then=strata(2)),
    "no names": Row(ids(..., ...), stratifier=Stratifier.series(), then=strata(2)),
    "names NaN, as a join leaves them": Row(
        ids(np.nan, np.nan), stratifier=Stratifier.series(), then=strata(2)
    ),
    "names that are numbers": Row(
        ids(1, 2), stratifier=Stratifier.series(), then=strata(2)
    ),
    "names of any characters": Row(
        ids("売上 ☃", "\u202e\x00", "\ud800", ""),
        stratifier=Stratifier.series(),
        then=strata(4),
    ),
    "a very long name": Row(
        ids(LONG, LONG + "!"), stratifier=Stratifier.series(), then=strata(2)
    ),
    "a very long name of a short series": Row(
        lambda: [series(item_id=LONG, target=[1.0])],
        ShortSeriesError,
        "'é+… .100002 characters.. Remove",
        models="var",
    ),
    "a very long name of an infinite series": Row(
        lambda: [series(item_id=LONG, target=np.append(WAVE, np.inf))],
        InfiniteValuesError,
        "mark it as missing",
    ),
    "a very long name of a series of words": Row(
        lambda: [series(item_id=LONG, target=["a"])], DataError, "Give an array"
    ),
    "a very long name where a stratifier fails": Row(
        ids(LONG), StratificationError, "no such client", stratifier=by(unknown_client)
    ),
    # Values.
    "a constant series": Row(target(np.full(60, 3.0)), models="var sff deepar"),
    "a series of zeros": Row(target(np.zeros(60)), models="var sff deepar"),
    "a series without a value among others": Row(
        lambda: [series(target=missing(HOURS >= 0)), series(item_id="b")],
        models="var sff deepar",
        warns="1 of 2 series have no value at all.*'a'",
    ),
    "no series with a value": Row(
        lambda: [series(target=missing(HOURS >= 0))] * 2,
        EmptyDatasetError,
        "See how they were read|Fill the gaps",
        models="var sff deepar",
    ),
    "every second value missing": Row(
        target(missing(HOURS % 2 == 0)), models="var sff deepar"
    ),
    "a context without a value": Row(
        target(missing(slice(0, CONTEXT))[:8]), models="var sff deepar"
    ),
    "nothing to forecast in any window": Row(
        target(missing(HOURS >= 2)),
        EmptyDatasetError,
        "none of 53 windows has a value in its prediction range.* Fill the gaps",
        models="var sff",
    ),
    "infinity": Row(
        target(np.append(WAVE, np.inf)),
        InfiniteValuesError,
        "'a' is infinite at 2021-03-03 12:00:00 .* mark it as missing with NaN",
        models="var sff deepar",
    ),
    "minus infinity": Row(
        target(np.append(WAVE, -np.inf)), InfiniteValuesError, "replace the value, or"
    ),
    "more than single precision holds": Row(
        target(WAVE * 1e39), InfiniteValuesError, "in torch.float32; replace the value"
    ),
    "huge values": Row(target(WAVE * 1e30), models="var sff deepar"),
    "the largest values of single precision": Row(
        target(WAVE * 5e37), ModelError, "finite losses. Divide the series", "deepar"
    ),
    "denormal values": Row(target(WAVE * 1e-40), models="var sff deepar"),
    "values that vanish in single precision": Row(
        target(WAVE * 1e-300),
        DataError,
        "'a' are so small that all become zero in float32; multiply them, .* 1e300",
        models="var sff deepar",
    ),
    "jumps by many orders of magnitude": Row(
        target(np.where(HOURS % 9, 1.0, 1e30)),
        models="var sff deepar",
        warns="training diverges|loss or gradient is not finite",
        learns=False,
    ),
    # Lengths.
    "a series without steps": Row(
        target([]),
        EmptyDatasetError,
        "take longer series",
        "deepar",
        warns="left out: 'a'",
    ),
    "one short series among others, which must be removed": Row(
        lambda: [series(), series(item_id="b", target=WAVE[:2])],
        ShortSeriesError,
        "1 of 2 series are shorter than a window of 8 steps: 'b'. Remove",
        models="var sff",
    ),
    "one short series among others, which is left out": Row(
        lambda: [series(), series(item_id="b", target=WAVE[:2])],
        models="deepar",
        warns="1 of 2 series are shorter than 3 steps and are left out: 'b'",
        like=good,
    ),
    "short series only": Row(
        lambda: [series(target=WAVE[:7])] * 9,
        ShortSeriesError,
        r"9 of 9 series .* \(9 in all\). Remove",
        models="var sff",
    ),
    "one window": Row(target(WAVE[:8]), models="var sff", then=strata(1)),
    # Stratifiers.
    "a stratifier that raises": Row(
        good,
        StratificationError,
        "'a' at 2021-03-01 0.:00:00: KeyError: 'no such client'. It must",
        stratifier=by(unknown_client),
        cause=KeyError,
    ),
    "a stratifier of one argument": Row(
        good, StratificationError, LABEL, stratifier=by(lambda item_id: 1)
    ),
    "a stratifier that returns a list": Row(
        good, StratificationError, f"unhashable|{LABEL}", stratifier=by(lambda *_: [1])
    ),
    "a stratifier that returns a dict": Row(
        good, StratificationError, LABEL, stratifier=by(lambda *_: {})
    ),
    "a stratifier that returns an array": Row(
        good, StratificationError, LABEL, stratifier=by(lambda *_: np.ones(2))
    ),
    "a stratifier that returns a list in a tuple": Row(
        good, StratificationError, LABEL, stratifier=by(lambda *_: (1, [2]))
    ),
    "a stratifier that returns NaN": Row(
        good,
        StratificationError,
        f"returned nan|{LABEL}",
        stratifier=by(lambda *_: np.nan),
    ),
    "a stratifier that returns NaN in a tuple": Row(
        good, StratificationError, LABEL, stratifier=by(lambda *_: (1, (np.nan,)))
    ),
    "a stratifier that returns NaT": Row(
        good, StratificationError, LABEL, stratifier=by(lambda *_: pd.NaT)
    ),
    "a stratifier that returns pandas.NA": Row(
        good, StratificationError, LABEL, stratifier=by(lambda *_: pd.NA)
    ),
    "a stratifier that returns None": Row(
        good, StratificationError, LABEL, stratifier=by(lambda *_: None)
    ),
    "a stratifier that returns objects, known by address": Row(
        good, StratificationError, LABEL, stratifier=by(lambda *_: object())
    ),
    "a stratifier that returns sets, of no fixed order": Row(
        good, StratificationError, LABEL, stratifier=by(lambda *_: frozenset("ab"))
    ),
    "a stratifier that returns numbers and text": Row(
        good, stratifier=by(lambda i, m, _: 1 if m.hour % 2 else "1"), then=strata(2)
    ),
    "a stratifier that returns dates": Row(
        good, stratifier=by(lambda i, m, _: m.normalize()), then=strata(3)
    ),
    "a stratifier that writes into its instance": Row(
        good, stratifier=by(erases), then=learned
    ),
    "a stratifier that is a word": Row(
        good, ArgumentError, "expected a policy, e.g.", stratifier="weekday"
    ),
    "more strata than windows": Row(
        good,
        TooManyStrataError,
        "only 5. windows; ask for fewer",
        stratifier=Stratifier.random(1000),
    ),
    "clusters of windows that are all the same": Row(
        target(np.full(60, 3.0)),
        EmptyStratumError,
        "no window falls into number .* ask for fewer",
        models="var",
        stratifier=Stratifier.kmeans(4),
    ),
    "clusters of huge values": Row(
        target(WAVE * 1e30), stratifier=Stratifier.kmeans(3), then=strata(3)
    ),
    "features that raise": Row(
        good,
        StratificationError,
        "KeyError: 'no such client'. It must return finite numbers of shape",
        stratifier=Stratifier.kmeans(3, features=unknown_client),
        cause=KeyError,
    ),
    "features that are NaN": Row(
        good,
        StratificationError,
        "NaN or infinity. It must return finite numbers of shape",
        stratifier=Stratifier.kmeans(3, features=lambda contexts: contexts * np.nan),
    ),
    "features of a wrong shape": Row(
        good,
        StratificationError,
        "cannot reshape .* It must return finite numbers of shape",
        stratifier=Stratifier.kmeans(3, features=lambda contexts: np.ones(7)),
    ),
    # Validation data.
    "no validation series": Row(
        good, EmptyDatasetError, "no series; .* pass a list", validation=list
    ),
    "validation data that is none": Row(
        good, DataError, NOT_A_DATASET, validation=lambda: "data.csv"
    ),
    "validation data of another frequency": Row(
        good,
        MixedFrequencyError,
        "'D', but .* give the frequency",
        validation=days("D", "2021-03-01"),
    ),
    "validation data of other dimensions": Row(
        good,
        DataError,
        f"validation targets 2 .* make both alike|{PIPELINE}",
        validation=target(both(WAVE)),
    ),
    "short validation series": Row(
        good,
        ShortSeriesError,
        "window of 8 steps: 'a'. Remove",
        models="var sff",
        validation=target(WAVE[:7]),
    ),
    "validation series without a value": Row(
        good,
        EmptyDatasetError,
        "See how they were read|Fill the gaps",
        validation=target(missing(HOURS >= 0)),
    ),
    "validation series without a value at their end": Row(
        good,
        EmptyDatasetError,
        "none of 1 windows has a value .* Fill the gaps",
        validation=target(missing(HOURS >= 40)),
    ),
    "infinite validation data": Row(
        good,
        InfiniteValuesError,
        "replace the value",
        validation=target(np.append(WAVE, np.inf)),
    ),
    "a generator of validation data": Row(
        good, validation=lambda: (entry for entry in good()), then=validated
    ),
}


# -- how a row is run ---------------------------------------------------------------


def estimator(model: str, row: Row) -> Any:
    trainer = quiet_trainer(
        num_batches_per_epoch=STEPS, batch_size=4, stratifier=row.stratifier
    )
    common = {
        "freq": row.freq,
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


def train(model: str, row: Row, given: Callable[[], Any]) -> tuple[Any, ScottTrainer]:
    made = estimator(model, row)
    validation = None if row.validation is None else row.validation()
    return made.train(given(), validation_data=validation), made.trainer


def run(model: str, row: Row) -> tuple[Any, ScottTrainer]:
    """Train, and see that it warns of what the row says, and of nothing else."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", category=ScottWarning)
        try:
            return train(model, row, row.given)
        finally:
            ours = [w for w in caught if issubclass(w.category, ScottWarning)]
            texts = [str(w.message) for w in ours]
            assert bool(texts) == (row.warns is not None), texts
            assert all(re.search(row.warns, text) for text in texts), texts


def forecasts(predictor: Any, given: Callable[[], Any]) -> Iterator[np.ndarray]:
    """Forecasts for the same data, which GluonTS asks to start with a frequency."""
    entries = list(given())
    for entry in entries:
        if isinstance(entry["start"], str):
            entry["start"] = at(entry["start"])
    made = list(predictor.predict(entries))
    assert len(made) == len(entries)
    return (getattr(forecast, "samples", forecast.mean) for forecast in made)


@pytest.mark.parametrize(
    ("model", "row"),
    [
        pytest.param(model, row, id=f"{name}-{model}")
        for name, row in TABLE.items()
        for model in row.models.split()
    ],
)
def test_what_is_given_is_refused_with_a_remedy_or_trains(model, row):
    if row.error is not None:
        with pytest.raises(row.error, match=row.match) as caught:
            run(model, row)
        assert type(caught.value) is row.error
        assert len(str(caught.value)) < 700, "a message is to be read"
        if row.cause is not None:
            assert isinstance(caught.value.__cause__, row.cause)
        return
    predictor, trainer = run(model, row)
    history = trainer.history
    assert history["step"].iloc[-1] == STEPS
    if row.then is not None:
        row.then(trainer)
    if row.learns:
        assert np.isfinite(history["train_loss"]).all()
    state = predictor.prediction_net.state_dict()
    assert all(bool(values.isfinite().all()) for values in state.values())
    if row.like is not None:
        other, trainer = train(model, row, row.like)
        assert history["train_loss"].tolist() == trainer.history["train_loss"].tolist()
        for name, values in other.prediction_net.state_dict().items():
            assert torch.equal(values, state[name]), name
    for samples in forecasts(predictor, row.like or row.given):
        assert np.isfinite(samples).all()


@pytest.mark.skipif(
    backend.NAME == "gluonts", reason="GluonTS' estimators take no trainer"
)
@pytest.mark.parametrize(
    "name", ["target of digits", "start that is a number", "None between entries"]
)
def test_an_estimator_of_pytorchts_that_was_left_as_it_is_refuses_the_same(name):
    untouched = DeepAREstimator(
        freq=HOURLY,
        prediction_length=PREDICTION,
        context_length=CONTEXT,
        lags_seq=[1, 2],
        trainer=quiet_trainer(),
        **SIZES,
    )
    row = TABLE[name]
    with pytest.raises(row.error, match=row.match):
        untouched.train(row.given(), num_workers=0, prefetch_factor=None)
