"""Series in memory: what is in them, and how they are split by time."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from gluonts.dataset.common import ListDataset
from pandas.tseries.offsets import Tick

from pts_scott._utils.arguments import real_number, whole_number
from pts_scott._utils.text import quote, shorten
from pts_scott.data.offsets import nanoseconds, parse_offset
from pts_scott.data.timeline import Timeline
from pts_scott.errors import ScottWarning, SplitError

OFTEN = 0.2  # a series that is zero more often than that is named in a report


@dataclass(frozen=True, eq=False, repr=False)
class SeriesData:
    """Series in memory, of one frequency.

    Parameters
    ----------
    name
        What the data are called in reports and results.
    freq
        Frequency of the series, as pandas spells it.
    item_ids, starts, targets
        Name, first step and values of each series; NaN where a value is missing.
    dropped
        Names of the constant series that were left out.
    note
        What a reader of the report has to know about where the data come from.
    """

    name: str
    freq: str
    item_ids: tuple[str, ...]
    starts: tuple[pd.Timestamp, ...]
    targets: tuple[np.ndarray, ...]
    dropped: tuple[str, ...] = ()
    note: str = ""

    def __len__(self) -> int:
        """The number of series."""
        return len(self.targets)

    def __repr__(self) -> str:
        return f"SeriesData({self.name!r}, freq={self.freq!r}, {_size(self.targets)})"

    def entries(self) -> list[dict[str, Any]]:
        """The series as GluonTS entries, with a Timestamp as start."""
        return [
            {"item_id": item_id, "start": start, "target": target}
            for item_id, start, target in zip(self.item_ids, self.starts, self.targets)
        ]

    def dataset(self) -> Any:
        """The series as a GluonTS dataset, for estimators and predictors."""
        return ListDataset(self.entries(), freq=_dataset_frequency(self.freq))

    def pick(self, rows: Sequence[int]) -> SeriesData:
        """Some of the series, by their places."""
        return replace(
            self,
            item_ids=tuple(self.item_ids[row] for row in rows),
            starts=tuple(self.starts[row] for row in rows),
            targets=tuple(self.targets[row] for row in rows),
        )

    def timeline(self) -> Timeline:
        """The moments of all steps."""
        return Timeline.build(self.starts, [len(t) for t in self.targets], self.freq)

    def report(self) -> DataReport:
        """What is missing, and what is zero."""
        return _report(self)

    def split(
        self,
        context_length: int,
        prediction_length: int,
        train: float = 0.8,
        tune: float = 0.1,
    ) -> TimeSplit:
        """Split by time.

        Parameters
        ----------
        context_length, prediction_length
            Of the windows that every part must have.
        train
            Share of all steps, from the first on, that is for training.
        tune
            Share of the training range, at its end, on which tuning measures.

        Raises
        ------
        SplitError
            If a part has no window, with what it has and what a window needs.
        """
        return _split(
            self,
            whole_number("context_length", context_length),
            whole_number("prediction_length", prediction_length),
            real_number("train", train, 0, 1, exclusive=True),
            real_number("tune", tune, 0, 1, exclusive=True),
        )


@dataclass(frozen=True, eq=False, repr=False)
class TimeSplit:
    """One dataset split by time, with a line through all series at the same moment.

    Parameters
    ----------
    name
        Of the dataset.
    context_length, prediction_length
        Of the windows.
    train
        Values before ``train_end``.
    test
        Values from ``train_end`` on, so that a window of it has nothing of training.
    fit
        What tuning trains on: values before ``tune_begin``.
    tuning
        Values from ``tune_begin`` to ``train_end``, with a context before them: a window
        with full context predicts steps of the last part of the training range only.
    backtest
        The whole series, if they have a window in ``test``: their last
        ``prediction_length`` steps are to be forecast.
    tune_begin, train_end
        The moments at which the parts meet.
    left_out
        By part, the names of the series that have no window there.
    """

    name: str
    context_length: int
    prediction_length: int
    train: SeriesData
    test: SeriesData
    fit: SeriesData
    tuning: SeriesData
    backtest: SeriesData
    tune_begin: pd.Timestamp
    train_end: pd.Timestamp
    left_out: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def left_out_sentence(self) -> str:
        """Name the series that are left out of a part."""
        parts = (f"{part}: {shorten(names)}" for part, names in self.left_out.items())
        return (
            f"series of {self.name} without a window of {self._need} steps in a part are "
            f"left out of it ({'; '.join(parts)})."
        )

    def windows(self, part: SeriesData) -> int:
        """How many windows with full context a part has."""
        return sum(len(target) - self._need + 1 for target in part.targets)

    @property
    def _need(self) -> int:
        return self.context_length + self.prediction_length

    def __str__(self) -> str:
        lines = [
            f"{self.name}, split by time for windows of {self.context_length} + "
            f"{self.prediction_length} steps; training ends before "
            f"{_show(self.train_end)}, tuning measures from {_show(self.tune_begin)} on:"
        ]
        for name in ("train", "fit", "tuning", "test"):
            part = getattr(self, name)
            begin, end = map(_show, _span(part))
            lines.append(
                f"  {name:<6}  {begin:<16} to {end:<16}  {len(part)} series  "
                f"{self.windows(part):,} windows"
            )
        if self.left_out:
            lines.append(f"  {self.left_out_sentence()}")
        return "\n".join(lines)

    __repr__ = __str__


@dataclass(frozen=True)
class Stretch:
    """Steps of one series, one behind the other."""

    item_id: str
    steps: int
    begin: pd.Timestamp
    end: pd.Timestamp

    def __str__(self) -> str:
        span = f"{_show(self.begin)} to {_show(self.end)}"
        return f"{_steps(self.steps)} of series {quote(self.item_id)}, {span}"


@dataclass(frozen=True, eq=False, repr=False)
class DataReport:
    """What is missing and what is zero in a dataset; ``print`` it.

    Parameters
    ----------
    data
        The series.
    table
        A row for each series: item_id, start, steps, missing, longest_missing, zeros
        and longest_zeros, all counted in steps.
    longest_missing, longest_zeros
        The longest stretch of either kind, if there is one.
    all_zero
        Steps at which every series that has a value is zero, where there are several.
    """

    data: SeriesData
    table: pd.DataFrame
    longest_missing: Stretch | None
    longest_zeros: Stretch | None
    all_zero: pd.DatetimeIndex

    def __str__(self) -> str:
        return "\n".join(
            part
            for part in (self._size(), self._missing(), self._zeros(), self._remarks())
            if part
        )

    __repr__ = __str__

    def _size(self) -> str:
        begin, end = map(_show, _span(self.data))
        return (
            f"{self.data.name}: {_size(self.data.targets)} of freq={self.data.freq!r}, "
            f"{begin} to {end}."
        )

    def _missing(self) -> str:
        if self.longest_missing is None:
            return "No value is missing."
        missing, steps = self.table["missing"], self.table["steps"].sum()
        return (
            f"{missing.sum():,} values ({missing.sum() / steps:.2%}) are missing, in "
            f"{(missing > 0).sum()} series; the longest stretch is "
            f"{self.longest_missing}."
        )

    def _zeros(self) -> str:
        if self.longest_zeros is None:
            return "No value is zero."
        zeros, steps = self.table["zeros"], self.table["steps"]
        text = (
            f"{zeros.sum():,} values ({zeros.sum() / steps.sum():.2%}) are zero; the "
            f"longest stretch is {self.longest_zeros}."
        )
        often = self.table["item_id"][zeros > OFTEN * steps].tolist()
        if often:
            text += (
                f" Zero more than {OFTEN:.0%} of the time: {len(often)} series, "
                f"{shorten(often)}."
            )
        if len(self.all_zero):
            moments = shorten([_show(moment) for moment in self.all_zero], 3)
            text += f" All series are zero at {_steps(len(self.all_zero))}: {moments}."
        return text

    def _remarks(self) -> str:
        dropped = self.data.dropped
        text = f"Constant series left out: {shorten(dropped)}." if dropped else ""
        return "\n".join(part for part in (text, self.data.note) if part)


def _dataset_frequency(freq: str) -> str:
    """The frequency as GluonTS' datasets of this release want it.

    From 0.10 on they make periods, which are named otherwise: 'MS' is 'M' there.
    """
    sample = ListDataset([{"start": "1970-01-01", "target": [0.0]}], freq="D")
    if not isinstance(next(iter(sample))["start"], pd.Period):
        return freq
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        try:
            steps = pd.date_range("1970-01-01", periods=1, freq=parse_offset(freq))
            return str(steps.to_period().freq.freqstr)
        except (ValueError, AttributeError):  # no period: GluonTS says so
            return freq


def _split(
    data: SeriesData, context: int, prediction: int, train: float, tune: float
) -> TimeSplit:
    calendar = _Calendar.of(data)
    train_steps = _share(train, calendar.steps)
    tune_steps = _share(tune, train_steps)
    tune_begin = calendar.moment(train_steps - tune_steps)
    context_begin = calendar.moment(max(train_steps - tune_steps - context, 0))
    train_end = calendar.moment(train_steps)
    ranges: dict[str, tuple[pd.Timestamp | None, pd.Timestamp | None]] = {
        "train": (None, train_end),
        "test": (train_end, None),
        "fit": (None, tune_begin),
        "tuning": (context_begin, train_end),
    }
    parts = {}
    left_out: dict[str, tuple[str, ...]] = {}
    for name, (begin, end) in ranges.items():
        part, rows = calendar.cut(begin, end, context + prediction)
        gone = set(range(len(data))) - set(rows)
        if gone:
            left_out[name] = tuple(data.item_ids[row] for row in sorted(gone))
        if not rows:
            steps = {
                "train": train_steps,
                "test": calendar.steps - train_steps,
                "fit": train_steps - tune_steps,
                "tuning": min(tune_steps + context, train_steps),
            }[name]
            raise _too_short(data, name, steps, calendar.steps, context, prediction)
        parts[name] = part
        if name == "test":
            parts["backtest"] = data.pick(rows)
    split = TimeSplit(
        data.name,
        context,
        prediction,
        **parts,
        tune_begin=tune_begin,
        train_end=train_end,
        left_out=left_out,
    )
    if left_out:
        warnings.warn(split.left_out_sentence(), ScottWarning, stacklevel=3)
    return split


def _share(share: float, steps: int) -> int:
    return math.floor(share * steps + 1e-9)  # 0.29 * 100 are 29


def _too_short(
    data: SeriesData, part: str, steps: int, all_steps: int, context: int, prediction: int
) -> SplitError:
    before = f", {context} of them as context from before it," if part == "tuning" else ""
    return SplitError(
        f"{data.name} cannot be split: the {part} part has {steps} of the {all_steps} "
        f"steps{before} and no series has a window there, which needs "
        f"{context + prediction} (context_length={context} + "
        f"prediction_length={prediction}). Take longer series, shorten the window, or "
        "change the shares train= and tune=."
    )


@dataclass(frozen=True)
class _Calendar:
    """The steps from the first moment of any series to the last."""

    data: SeriesData
    timeline: Timeline
    stamps: np.ndarray  # the timeline's moments as numbers
    first: pd.Timestamp
    steps: int

    @classmethod
    def of(cls, data: SeriesData) -> _Calendar:
        timeline = data.timeline()
        first, last = _span(data, timeline)
        offset = timeline.offset
        if isinstance(offset, Tick):
            later = (last - first) // pd.Timedelta(offset.nanos, "ns")
        else:
            later = len(pd.date_range(first + offset, last, freq=offset))
        return cls(data, timeline, nanoseconds(timeline.moments), first, int(later) + 1)

    def moment(self, step: int) -> pd.Timestamp:
        return self.first + step * self.timeline.offset if step else self.first

    def cut(
        self, begin: pd.Timestamp | None, end: pd.Timestamp | None, need: int
    ) -> tuple[SeriesData, list[int]]:
        """The values from ``begin`` to before ``end``, of series with enough of them."""
        rows, starts, targets = [], [], []
        low_end, high_end = (_nanoseconds(moment) for moment in (begin, end))
        for row, target in enumerate(self.data.targets):
            origin = int(self.timeline.origins[row])
            stamps = self.stamps[origin : origin + len(target)]
            low = 0 if low_end is None else int(stamps.searchsorted(low_end))
            high = len(target) if high_end is None else int(stamps.searchsorted(high_end))
            if high - low >= need:
                rows.append(row)
                starts.append(self.timeline.moments[origin + low])
                targets.append(target[low:high])
        part = replace(self.data.pick(rows), starts=tuple(starts), targets=tuple(targets))
        return part, rows


def _nanoseconds(moment: pd.Timestamp | None) -> int | None:
    return None if moment is None else int(nanoseconds(pd.DatetimeIndex([moment]))[0])


def _span(
    data: SeriesData, timeline: Timeline | None = None
) -> tuple[pd.Timestamp, pd.Timestamp]:
    """First and last moment of all series."""
    timeline = timeline or data.timeline()
    return timeline.moments.min(), timeline.moments.max()


def _show(moment: pd.Timestamp) -> str:
    """A moment without the zeros that say nothing."""
    return str(moment).removesuffix(" 00:00:00").removesuffix(":00")


def _steps(number: int) -> str:
    return "1 step" if number == 1 else f"{number:,} steps"


def _size(targets: tuple[np.ndarray, ...]) -> str:
    """Number of series and steps, in words."""
    lengths = [len(target) for target in targets]
    low, high = min(lengths, default=0), max(lengths, default=0)
    steps = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return f"{len(targets)} series of {steps} steps"


def _report(data: SeriesData) -> DataReport:
    timeline = data.timeline()
    zeros = np.zeros(len(timeline.moments), dtype=np.int64)  # series, for each moment
    observed = np.zeros_like(zeros)
    rows = []
    longest: dict[str, tuple[int, int, int]] = {"missing": (0, 0, 0), "zero": (0, 0, 0)}
    for number, target in enumerate(data.targets):
        here = slice(origin := int(timeline.origins[number]), origin + len(target))
        masks = {"missing": np.isnan(target), "zero": target == 0}
        zeros[here] += masks["zero"]
        observed[here] += ~masks["missing"]
        counts: list[int] = []
        for kind, mask in masks.items():
            steps, begin = _longest_stretch(mask)
            counts += [int(mask.sum()), steps]
            if steps > longest[kind][0]:
                longest[kind] = steps, number, origin + begin
        rows.append((data.item_ids[number], data.starts[number], len(target), *counts))
    names = ["item_id", "start", "steps"]
    names += ["missing", "longest_missing", "zeros", "longest_zeros"]

    def stretch(kind: str) -> Stretch | None:
        steps, number, begin = longest[kind]
        if not steps:
            return None
        ends = timeline.moments[[begin, begin + steps - 1]]
        return Stretch(data.item_ids[number], steps, *ends)

    everywhere = (zeros == observed) & (observed > 0) & (len(data) > 1)
    return DataReport(
        data,
        pd.DataFrame(rows, columns=names),
        stretch("missing"),
        stretch("zero"),
        timeline.moments[everywhere],
    )


def _longest_stretch(mask: np.ndarray) -> tuple[int, int]:
    """Length and begin of the longest run of True."""
    padded = np.concatenate([[False], mask, [False]])
    edges = np.flatnonzero(padded[1:] != padded[:-1])
    if not edges.size:
        return 0, 0
    lengths = edges[1::2] - edges[::2]
    place = int(lengths.argmax())
    return int(lengths[place]), int(edges[2 * place])
