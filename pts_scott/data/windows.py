"""Windows: an index over series, from which a batch is one gather.

A window is a series and a forecast start. The index knows how many windows each
series has, and nothing is stored for a window itself: the series lie one behind
the other in one tensor on the training device, and the context and prediction
range of a whole batch are read from it in one indexing operation.
"""

from __future__ import annotations

import copy
import itertools
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from pts_scott._utils.arguments import one_of, whole_number
from pts_scott._utils.rng import draw_device, draw_integers
from pts_scott.data.timeline import Timeline
from pts_scott.data.validation import (
    Unobserved,
    check_scale,
    entries_of,
    name_of,
    read_field,
    read_target,
)
from pts_scott.errors import (
    ArgumentError,
    DataError,
    EmptyDatasetError,
    InfiniteValuesError,
    ShortSeriesError,
    quote,
    shorten,
)

Batch = dict[str, Tensor]

CONTEXTS = ("full", "padded")

# torch.randint takes the remainder of 32 bits: up to this limit no window is more likely
# than another by more than a factor of 1 + 2^-16. Beyond it, more bits are drawn.
UNBIASED_BELOW = 2**16

WINDOW_FIELDS = (
    "past_target",
    "future_target",
    "past_observed_values",
    "future_observed_values",
    "past_is_pad",
)


@dataclass(frozen=True)
class SeriesStore:
    """All series of a dataset in one tensor.

    Parameters
    ----------
    values
        Targets, of shape (rows,) or (rows, dimensions); NaN where missing. The series
        lie in it one by one, perhaps with something between them.
    begins, lengths
        Row of ``values`` at which each series begins, and its number of steps.
    item_ids
        Name of each series: its ``item_id``, or its place in the dataset.
    timeline
        The moments of the steps.
    missing
        Whether any target is missing.
    dtype
        Floating point type of the windows.
    """

    values: Tensor
    begins: Tensor
    lengths: Tensor
    item_ids: tuple[str, ...]
    timeline: Timeline
    missing: bool
    dtype: torch.dtype

    @classmethod
    def from_dataset(
        cls,
        dataset: Iterable[Mapping[str, Any]],
        freq: Any,
        dtype: torch.dtype = torch.float32,
        warns: bool = True,
    ) -> SeriesStore:
        """Read a GluonTS dataset, once and in its order.

        A dataset that has a ``series_store(freq, dtype)`` of its own, as `ArrowDataset`
        does, is asked for it and not read.

        Parameters
        ----------
        dataset
            Entries with ``start`` and ``target`` (and ``item_id``).
        freq
            Frequency of the series, as pandas spells it.
        dtype
            Floating point type of the stored targets.
        warns
            Whether to warn of series that have no value at all.

        Raises
        ------
        EmptyDatasetError, InfiniteValuesError, MixedFrequencyError, DataError
        """
        if dtype not in (torch.float16, torch.float32, torch.float64):
            raise ArgumentError(
                f"dtype={dtype}: windows are held in torch.float32, float64 or float16."
            )
        if hasattr(dataset, "series_store"):
            return dataset.series_store(freq, dtype)  # type: ignore[no-any-return]
        values = GrowingArray(dtype)
        lengths = array("q")
        starts: list[Any] = []
        item_ids: list[str] = []
        unobserved = Unobserved()
        for position, entry in enumerate(entries_of(dataset)):
            item_id = name_of(entry, position)
            target = read_target(entry, item_id)
            unobserved.see(target, item_id)
            target = target if target.ndim == 1 else target.T
            if values.shape not in (None, target.shape[1:]):
                raise DataError(
                    f"series {quote(item_id)} has target dimensions {target.shape[1:]}, "
                    f"but {quote(item_ids[0])} has {values.shape}; all series need the "
                    "same."
                )
            check_scale(target, values.append(target), item_id)
            lengths.append(len(target))
            starts.append(read_field(entry, "start", item_id))
            item_ids.append(item_id)
        if not item_ids:
            raise EmptyDatasetError(
                "the dataset has no series; a generator that was read before is empty: "
                "pass a list or a GluonTS dataset."
            )
        if warns:
            unobserved.warn(len(item_ids))
        timeline = Timeline.build(starts, lengths, freq, item_ids)
        steps = torch.from_numpy(np.array(lengths))
        begins = steps.cumsum(0) - steps
        return cls(
            values.tensor(), begins, steps, tuple(item_ids), timeline, False, dtype
        ).checked()

    def checked(self) -> SeriesStore:
        """The same series, looked through piece by piece for what cannot be trained on.

        Raises
        ------
        InfiniteValuesError
            If a value is infinite in the type of the windows.
        EmptyDatasetError
            If all values are missing.
        """
        observed = int(self.lengths.sum()) == 0  # empty series are too short, not missing
        missing = False
        for begin, values in self._pieces():
            infinite = values.to(self.dtype).isinf()
            if bool(infinite.any()):
                row = begin + int(infinite.nonzero()[0, 0])
                item_id, moment = self.place(row)
                raise InfiniteValuesError(
                    f"series {quote(item_id)} is infinite at {moment} in {self.dtype}; "
                    "replace the value, or mark it as missing with NaN."
                )
            here = values.isnan()
            missing = missing or bool(here.any())
            observed = observed or not bool(here.all())
        if not observed:
            raise EmptyDatasetError(
                "no series has a value: all targets are missing. See how they were read: "
                "what cannot be parsed, or finds no match, often becomes NaN."
            )
        return replace(self, missing=missing)

    def _pieces(self, rows: int = 2**22) -> Iterator[tuple[int, Tensor]]:
        """The values of all series in pieces, with the row at which each begins."""
        ends = self.begins + self.lengths
        # Series that lie one behind the other are one stretch of values.
        breaks = (self.begins[1:] != ends[:-1]).nonzero().flatten() + 1
        edges = [0, *breaks.tolist(), len(self.begins)]
        for first, last in itertools.pairwise(edges):
            end = int(ends[last - 1])
            for begin in range(int(self.begins[first]), end, rows):
                yield begin, self.values[begin : min(begin + rows, end)]

    @property
    def dimensions(self) -> int | None:
        """Dimensions of a multivariate target; None for univariate series."""
        return self.values.shape[1] if self.values.ndim == 2 else None

    def place(self, row: int) -> tuple[str, pd.Timestamp]:
        """Series and moment of a row of ``values``, to name it in a message."""
        inside = (self.begins <= row) & (row < self.begins + self.lengths)
        series = int(inside.nonzero()[0, 0])
        step = row - int(self.begins[series])
        return self.item_ids[series], self.timeline.moments[
            int(self.timeline.origins[series]) + step
        ]

    def first_missing(self) -> tuple[str, pd.Timestamp] | None:
        """Series and moment of the first missing target."""
        if not self.missing:
            return None
        for begin, values in self._pieces():
            missing = values.isnan()
            if bool(missing.any()):
                return self.place(begin + int(missing.nonzero()[0, 0]))
        return None

    def to(self, device: torch.device | str) -> SeriesStore:
        """The same series on another device."""
        return replace(
            self,
            values=self.values.to(device),
            begins=self.begins.to(device),
            lengths=self.lengths.to(device),
        )


class GrowingArray:
    """Series written one behind the other, in the type they stay, and held once."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = torch.empty(0, dtype=dtype).numpy().dtype
        self._rows = 0
        self.shape: tuple[int, ...] | None = None  # of one step

    def append(self, target: np.ndarray) -> np.ndarray:
        """Add the steps of one series, and see them as they are stored."""
        if self.shape is None:
            self.shape = target.shape[1:]
            self._array = np.empty(target.shape, self._dtype)
        end = self._rows + len(target)
        if end > len(self._array):
            # Large blocks of memory grow by moving pages, not by copying values.
            self._array.resize((end + end // 4, *self.shape), refcheck=False)
        with np.errstate(over="ignore"):  # a value that overflows is refused later
            self._array[self._rows : end] = target
        stored = self._array[self._rows : end]
        self._rows = end
        return stored

    def widen(self, dtype: np.dtype) -> None:
        """Hold values of another type, too."""
        self._dtype = np.result_type(self._dtype, dtype)
        if self.shape is not None and self._array.dtype != self._dtype:
            self._array = self._array.astype(self._dtype)

    def tensor(self) -> Tensor:
        """The series as a tensor, without the room for more."""
        self._array.resize((self._rows, *self._array.shape[1:]), refcheck=False)
        return torch.from_numpy(self._array)


class WindowIndex:
    """The windows of all series: D, in the paper's words.

    Windows are numbered from 0, series by series and in the order of time.

    Parameters
    ----------
    series
        The series to look into.
    context_length
        Steps before the forecast start that a window holds.
    prediction_length
        Steps from the forecast start on that a window holds.
    stride
        Steps between the forecast starts of neighbouring windows.
    context
        "full": only windows whose whole context lies in the series. "padded":
        windows from the second step on, padded with zeros that count as missing.

    Raises
    ------
    ShortSeriesError
        If a series has no window at all.
    """

    #: Whether batches are made by tensor operations alone, which can be compiled.
    compiles = True

    def __init__(
        self,
        series: SeriesStore,
        context_length: int,
        prediction_length: int,
        *,
        stride: int = 1,
        context: str = "full",
    ) -> None:
        self.series = series
        self.context_length = whole_number("context_length", context_length)
        self.prediction_length = whole_number("prediction_length", prediction_length)
        self.stride = whole_number("stride", stride)
        self.context = one_of("context", context, CONTEXTS)

        self.first = self.context_length if self.context == "full" else 1
        room = series.lengths - self.first - self.prediction_length
        self._check_lengths(room)
        self._finish(room // self.stride + 1, torch.full_like(room, self.first))

    def _finish(self, counts: Tensor, firsts: Tensor) -> None:
        self.counts = counts
        self.firsts = firsts
        self._ends = counts.cumsum(0)
        self._size = int(self._ends[-1])
        self._count = int(counts[0]) if bool((counts == counts[0]).all()) else None
        self._place()

    def _place(self) -> None:
        """Small tensors that every gather uses, on the device of the series."""
        values = self.series.values
        steps = torch.arange(-self.context_length, self.prediction_length)
        self._steps = steps.to(values.device)
        self._one = torch.ones((), dtype=self.series.dtype, device=values.device)

    def _check_lengths(self, room: Tensor) -> None:
        short = (room < 0).nonzero().flatten().tolist()
        if not short:
            return
        names = shorten([self.series.item_ids[i] for i in short])
        need = self.first + self.prediction_length
        # Padding helps those that have a step of context before a prediction range.
        paddable = bool((self.series.lengths[short] > self.prediction_length).all())
        remedy = "Remove them or shorten prediction_length."
        if self.context == "full" and paddable:
            remedy = "Remove them, shorten context_length, or pass context='padded'."
        raise ShortSeriesError(
            f"{len(short)} of {len(self.series.item_ids)} series are shorter than a "
            f"window of {need} steps: {names}. {remedy}"
        )

    @classmethod
    def from_dataset(
        cls,
        dataset: Iterable[Mapping[str, Any]],
        freq: Any,
        context_length: int,
        prediction_length: int,
        *,
        stride: int = 1,
        context: str = "full",
        dtype: torch.dtype = torch.float32,
    ) -> WindowIndex:
        """Index the windows of a GluonTS dataset."""
        return cls(
            SeriesStore.from_dataset(dataset, freq, dtype),
            context_length,
            prediction_length,
            stride=stride,
            context=context,
        )

    def __len__(self) -> int:
        return self._size

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields in a batch."""
        return WINDOW_FIELDS

    @property
    def device(self) -> torch.device:
        """Where the series lie and batches are made."""
        return self.series.values.device

    def to(self, device: torch.device | str) -> WindowIndex:
        """The same windows with the series on another device."""
        moved = copy.copy(self)
        moved.series = self.series.to(device)
        moved.counts, moved.firsts = self.counts.to(device), self.firsts.to(device)
        moved._ends = self._ends.to(device)
        moved._place()
        return moved

    def last(self) -> WindowIndex:
        """The last window of each series, on which GluonTS validates."""
        last = copy.copy(self)
        lengths = self.series.lengths
        last._finish(torch.ones_like(lengths), lengths - self.prediction_length)
        return last

    def locate(self, windows: Tensor) -> tuple[Tensor, Tensor]:
        """Series and forecast start, as a step of that series, of each window."""
        if self._count is not None:
            series = windows.div(self._count, rounding_mode="floor")
            place = windows - series * self._count
        else:
            series = torch.searchsorted(self._ends, windows, right=True)
            place = windows - (self._ends[series] - self.counts[series])
        return series, self.firsts[series] + place * self.stride

    def draw(self, size: int, generator: torch.Generator) -> Tensor:
        """Draw windows uniformly and independently from all windows."""
        if self._size > UNBIASED_BELOW:
            return draw_integers(self._size, (size,), generator, self.device)
        place = draw_device(self.device)
        drawn = torch.randint(self._size, (size,), generator=generator, device=place)
        return drawn.to(self.device)

    def contexts(self, windows: Tensor) -> Tensor:
        """The target before the forecast start of some windows, steps before dimensions.

        Missing and padded values are zero.
        """
        return self.gather(windows, ["past_target"])["past_target"]

    def gather(self, windows: Tensor, fields: Sequence[str] | None = None) -> Batch:
        """The values of some windows, under the names that GluonTS gives them.

        Parameters
        ----------
        windows
            Numbers of the windows, of shape (M,).
        fields
            Names to return; None for all: past_target, future_target,
            past_observed_values, future_observed_values and past_is_pad, of shape
            (M, steps) or (M, steps, dimensions).
        """
        series, starts = self.locate(windows)
        steps = starts[:, None] + self._steps
        rows = self.series.begins[series][:, None] + steps
        pad = None
        if self.context == "padded":
            pad = steps < 0
            rows = torch.where(pad, 0, rows)
        gathered = _Gathered(self, rows, pad)
        makers: dict[str, Callable[[], Tensor]] = {
            "past_target": gathered.past_target,
            "future_target": gathered.future_target,
            "past_observed_values": gathered.past_observed,
            "future_observed_values": gathered.future_observed,
            "past_is_pad": gathered.past_is_pad,
        }
        return {name: makers[name]() for name in (fields or makers)}

    def begins(self) -> np.ndarray:
        """For each series, the row of the timeline's moments of its first window."""
        return self.series.timeline.origins + self.firsts.cpu().numpy()

    def starts(self) -> np.ndarray:
        """Which rows of the timeline's moments are a forecast start, as a mask."""
        begins, counts = self.begins(), self.counts.cpu().numpy()
        # Marks at begin and end of each series, summed along steps of the stride.
        length = -(-len(self.series.timeline.moments) // self.stride) + 1
        marks = np.zeros((self.stride, length), dtype=np.int64)
        np.add.at(marks, (begins % self.stride, begins // self.stride), 1)
        np.add.at(marks, (begins % self.stride, begins // self.stride + counts), -1)
        covered = marks.cumsum(axis=1) > 0
        return covered.T.reshape(-1)[: len(self.series.timeline.moments)]

    def rows(self, windows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Series, and row of the timeline's moments, of each window (in numpy)."""
        series, starts = self.locate(torch.from_numpy(windows).to(self.device))
        numbers = series.cpu().numpy()
        return numbers, self.series.timeline.origins[numbers] + starts.cpu().numpy()


def require_windows(windows: Any) -> WindowIndex:
    """``windows`` if it is a window index, or how to make one."""
    if not isinstance(windows, WindowIndex):
        raise ArgumentError(
            f"expected windows, not a {type(windows).__name__}: make them with "
            "estimator.create_windows(dataset), or with WindowIndex.from_dataset("
            "dataset, freq, context_length, prediction_length)."
        )
    return windows


class _Gathered:
    """The pieces of one batch, each made only when a model asks for it."""

    def __init__(self, index: WindowIndex, rows: Tensor, pad: Tensor | None) -> None:
        self._one = index._one
        self._pad = pad
        self._split = index.context_length
        values = index.series.values[rows].to(index.series.dtype)
        self._missing = values.isnan() if index.series.missing else None
        if pad is not None:
            padded = _like(pad, values).expand(values.shape)
            self._missing = padded if self._missing is None else self._missing | padded
        if self._missing is not None:
            values = values.masked_fill(self._missing, 0.0)
        self._values = values

    def past_target(self) -> Tensor:
        return self._values[:, : self._split]

    def future_target(self) -> Tensor:
        return self._values[:, self._split :]

    def past_observed(self) -> Tensor:
        return self._observed(slice(None, self._split))

    def future_observed(self) -> Tensor:
        return self._observed(slice(self._split, None))

    def past_is_pad(self) -> Tensor:
        if self._pad is None:
            return (self._one - self._one).expand(len(self._values), self._split)
        return self._pad[:, : self._split].to(self._one.dtype)

    def _observed(self, part: slice) -> Tensor:
        if self._missing is None:
            return self._one.expand(self._values[:, part].shape)
        return (~self._missing[:, part]).to(self._one.dtype)


def _like(pad: Tensor, values: Tensor) -> Tensor:
    """A mask over steps, with a last dimension where the target has one."""
    return pad if values.ndim == 2 else pad[..., None]
