"""The window index: all windows of the series, gathered batch by batch.

A window is a series and a forecast start. The index knows how many windows each series
has, and stores nothing per window: the series are rows of one tensor on the training
device, and one indexing operation reads the context and prediction range of a batch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pts_scott._utils.arguments import one_of, whole_number
from pts_scott._utils.rng import draw_device, draw_integers
from pts_scott._utils.text import shorten
from pts_scott.data.series_store import SeriesStore
from pts_scott.errors import ArgumentError, ShortSeriesError

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


class WindowIndex:
    """The windows of all series: D in the paper.

    Windows are numbered from 0, series by series and in time order.

    Parameters
    ----------
    series
        The series.
    context_length
        Steps of a window before the forecast start.
    prediction_length
        Steps of a window from the forecast start on.
    stride
        Steps between the forecast starts of neighbouring windows.
    context
        "full": only windows whose whole context lies in the series. "padded":
        windows from the second step on, padded with zeros that count as missing.

    Raises
    ------
    ShortSeriesError
        If a series is too short for a single window.
    """

    #: Whether batches are made by tensor operations alone, which can be compiled.
    compiles = True
    #: Steps between the end of a context and the forecast start.
    lead_time = 0

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
        self._set_windows(room // self.stride + 1, torch.full_like(room, self.first))

    def _set_windows(self, counts: Tensor, firsts: Tensor) -> None:
        """Set the number of windows and the first forecast start of each series."""
        self.counts = counts
        self.firsts = firsts
        self._ends = counts.cumsum(0)
        self._size = int(self._ends[-1])
        # With one count for all series, a window is located by a division.
        self._count = int(counts[0]) if bool((counts == counts[0]).all()) else None
        self._set_constants()

    def _set_constants(self) -> None:
        """Create the small tensors that every gather uses, on the series' device."""
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
        # Padding helps series with at least one step before a prediction range.
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
        """Index the windows of a GluonTS dataset.

        Parameters
        ----------
        dataset
            Entries with ``start`` and ``target``.
        freq
            Frequency of the series, as a pandas alias.
        context_length, prediction_length, stride, context
            As for the class.
        dtype
            Type of the values in a batch.

        Examples
        --------
        >>> entry = {"start": "2024-01-01", "target": [1.0, 2.0, 4.0, 3.0, 5.0]}
        >>> windows = WindowIndex.from_dataset([entry], "D", 2, 1)
        >>> len(windows)
        3
        >>> windows.contexts(torch.tensor([0, 2]))
        tensor([[1., 2.],
                [4., 3.]])
        """
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
        """Device of the series and of the batches."""
        return self.series.values.device

    def to(self, device: torch.device | str) -> WindowIndex:
        """Return the same windows with the series on another device.

        Parameters
        ----------
        device
            The device.
        """
        moved = copy.copy(self)
        moved.series = self.series.to(device)
        moved.counts, moved.firsts = self.counts.to(device), self.firsts.to(device)
        moved._ends = self._ends.to(device)
        moved._set_constants()
        return moved

    def last(self) -> WindowIndex:
        """Return the last window of each series, on which GluonTS validates."""
        last = copy.copy(self)
        lengths = self.series.lengths
        last._set_windows(torch.ones_like(lengths), lengths - self.prediction_length)
        return last

    def locate(self, windows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the series, and the forecast start as a step of it, of each window.

        Parameters
        ----------
        windows
            Numbers of the windows.
        """
        if self._count is not None:
            series = windows.div(self._count, rounding_mode="floor")
            place = windows - series * self._count
        else:
            series = torch.searchsorted(self._ends, windows, right=True)
            place = windows - (self._ends[series] - self.counts[series])
        return series, self.firsts[series] + place * self.stride

    def draw(self, size: int, generator: torch.Generator) -> Tensor:
        """Draw windows uniformly and independently from all windows.

        Parameters
        ----------
        size
            How many.
        generator
            Source of the random numbers, on the CPU: all devices draw the same windows.

        Returns
        -------
        Tensor
            Their numbers.
        """
        if self._size > UNBIASED_BELOW:
            return draw_integers(self._size, (size,), generator, self.device)
        place = draw_device(self.device)
        drawn = torch.randint(self._size, (size,), generator=generator, device=place)
        return drawn.to(self.device)

    def contexts(self, windows: Tensor) -> Tensor:
        """Return the context of each window: (M, steps) or (M, steps, dimensions).

        Missing and padded values are zero.

        Parameters
        ----------
        windows
            Numbers of the windows.
        """
        return self.gather(windows, ["past_target"])["past_target"]

    def gather(self, windows: Tensor, fields: Sequence[str] | None = None) -> Batch:
        """Return the values of some windows, under GluonTS' names.

        Parameters
        ----------
        windows
            Numbers of the windows, of shape (M,).
        fields
            Names to return; None for all: past_target, future_target,
            past_observed_values, future_observed_values and past_is_pad.

        Returns
        -------
        dict of str to Tensor
            Values of shape (M, steps) or (M, steps, dimensions), by name.
        """
        series, starts = self.locate(windows)
        steps = starts[:, None] + self._steps
        rows = self.series.begins[series][:, None] + steps
        pad = None
        if self.context == "padded":
            pad = steps < 0
            rows = torch.where(pad, 0, rows)
        gathered = _GatheredWindows(self, rows, pad)
        makers: dict[str, Callable[[], Tensor]] = {
            "past_target": gathered.past_target,
            "future_target": gathered.future_target,
            "past_observed_values": gathered.past_observed,
            "future_observed_values": gathered.future_observed,
            "past_is_pad": gathered.past_is_pad,
        }
        return {name: makers[name]() for name in (fields or makers)}

    def begins(self) -> np.ndarray:
        """Return the row of the timeline's moments of each series' first window."""
        return self.series.timeline.origins + self.firsts.cpu().numpy()

    def starts(self) -> np.ndarray:
        """Return a mask of the timeline's moments that are a forecast start."""
        begins, counts = self.begins(), self.counts.cpu().numpy()
        # Mark the begin and end of each series, and sum along steps of the stride.
        length = -(-len(self.series.timeline.moments) // self.stride) + 1
        marks = np.zeros((self.stride, length), dtype=np.int64)
        np.add.at(marks, (begins % self.stride, begins // self.stride), 1)
        np.add.at(marks, (begins % self.stride, begins // self.stride + counts), -1)
        covered = marks.cumsum(axis=1) > 0
        return covered.T.reshape(-1)[: len(self.series.timeline.moments)]

    def steps_of(self, start: int) -> tuple[range, range]:
        """Return the steps of the context and of the prediction range of a window."""
        split = start - self.lead_time
        context = range(split - self.context_length, split)
        return context, range(start, start + self.prediction_length)

    def rows(self, windows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the series, and the row of the timeline's moments, of each window."""
        series, starts = self.locate(torch.from_numpy(windows).to(self.device))
        numbers = series.cpu().numpy()
        return numbers, self.series.timeline.origins[numbers] + starts.cpu().numpy()


def require_windows(windows: Any) -> WindowIndex:
    """Return ``windows`` if it is a window index; raise otherwise."""
    if not isinstance(windows, WindowIndex):
        raise ArgumentError(
            f"expected windows, got {type(windows).__name__}: create them with "
            "estimator.create_windows(dataset), or with WindowIndex.from_dataset("
            "dataset, freq, context_length, prediction_length)."
        )
    return windows


def mask_like(mask: Tensor, values: Tensor) -> Tensor:
    """Return a mask over steps with a last dimension if the values have one."""
    return mask if values.ndim == 2 else mask[..., None]


class _GatheredWindows:
    """The fields of one batch, each created only when a model asks for it."""

    def __init__(self, index: WindowIndex, rows: Tensor, pad: Tensor | None) -> None:
        self._one = index._one
        self._pad = pad
        self._split = index.context_length
        values = index.series.values[rows].to(index.series.dtype)
        self._missing = values.isnan() if index.series.missing else None
        if pad is not None:
            padded = mask_like(pad, values).expand(values.shape)
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
