"""Windows sorted by stratum: which window is at which position of the order.

Drawing from a stratum means drawing a position among its windows. If strata depend only
on moments and series, the window at a position is computed from arrays as long as the
timeline and the series; otherwise the windows are listed one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from pts_scott.data.window_index import WindowIndex
from pts_scott.strata.codes import Codes

CHUNK = 2**20  # windows whose codes are held at once


class WindowOrder(Protocol):
    """All windows, sorted by stratum."""

    def windows(self, places: Tensor) -> Tensor:
        """Return the windows at some positions of the order."""
        ...

    def to(self, device: torch.device | str) -> WindowOrder:
        """Return the same order with its tensors on another device."""
        ...


@dataclass(frozen=True)
class SortedWindows:
    """Windows sorted by code: the distinct codes, windows per code, and the order."""

    codes: np.ndarray
    sizes: np.ndarray
    order: WindowOrder


def sort_windows(codes: Codes, windows: WindowIndex) -> SortedWindows:
    """Sort all windows of an index by their codes."""
    if codes.windows is None:
        return _sort_by_blocks(codes, windows)
    return _sort_into_list(codes, windows)


@dataclass(frozen=True)
class ListOrder:
    """An order stored as a list of all windows, of four or eight bytes each."""

    numbers: Tensor

    def windows(self, places: Tensor) -> Tensor:
        return self.numbers[places].long()

    def to(self, device: torch.device | str) -> ListOrder:
        return ListOrder(self.numbers.to(device))


@dataclass(frozen=True)
class WholeOrder:
    """The order of windows that are all in one stratum: their own."""

    def windows(self, places: Tensor) -> Tensor:
        return places

    def to(self, device: torch.device | str) -> WholeOrder:
        return self


@dataclass(frozen=True)
class BlockOrder:
    """An order computed from blocks of series × moments.

    A block holds the windows of series with equal forecast starts and equal series
    code, at the moments of one code: every series in a slice of ``members`` with every
    row in a slice of ``rows``. Blocks are sorted by stratum, so the block of a position
    is found by bisection, and the window inside it by a division.

    Parameters
    ----------
    ends
        Position at which each block ends, of shape (blocks,).
    first_row, width
        Begin and length of each block's slice of ``rows``.
    first_member
        Begin of each block's slice of ``members``.
    rows
        Rows of the timeline, sorted by the code of their moment.
    members
        Numbers of the series, sorted by code and forecast starts.
    begins, numbers
        For each series, the row and the number of its first window.
    stride
        Stride of the windows.
    """

    ends: Tensor
    first_row: Tensor
    width: Tensor
    first_member: Tensor
    rows: Tensor
    members: Tensor
    begins: Tensor
    numbers: Tensor
    stride: int

    def windows(self, places: Tensor) -> Tensor:
        block = torch.searchsorted(self.ends, places, right=True)
        width = self.width[block]
        # Counted from the end of the block, so that its size need not be stored.
        back = self.ends[block] - 1 - places
        member = back.div(width, rounding_mode="floor")
        row = self.rows[self.first_row[block] + back - member * width]
        series = self.members[self.first_member[block] + member]
        step = row - self.begins[series]
        if self.stride > 1:
            step = step.div(self.stride, rounding_mode="floor")
        return self.numbers[series] + step

    def to(self, device: torch.device | str) -> BlockOrder:
        tensors = {k: v.to(device) for k, v in vars(self).items() if k != "stride"}
        return BlockOrder(**tensors, stride=self.stride)


def _sort_into_list(codes: Codes, windows: WindowIndex) -> SortedWindows:
    """Sort windows one by one, in chunks: only the result is as long as the index."""

    def chunks() -> Iterator[tuple[int, np.ndarray]]:
        for begin in range(0, len(windows), CHUNK):
            end = min(begin + CHUNK, len(windows))
            yield begin, codes.expand(windows, begin, end)

    counted = [np.unique(own, return_counts=True) for _, own in chunks()]
    found = np.unique(np.concatenate([own for own, _ in counted]))
    sizes = np.zeros(len(found), dtype=np.int64)
    for own, counts in counted:
        sizes[np.searchsorted(found, own)] += counts

    kind = np.int32 if len(windows) < 2**31 else np.int64
    numbers = np.empty(len(windows), dtype=kind)
    free = sizes.cumsum() - sizes  # the next position of each stratum
    for (begin, own), (there, counts) in zip(chunks(), counted, strict=True):
        by_code = np.argsort(own, kind="stable")
        strata = np.searchsorted(found, there)
        # The k-th window of a stratum in this chunk follows those of earlier chunks.
        shift = free[strata] - (counts.cumsum() - counts)
        places = np.arange(len(own)) + np.repeat(shift, counts)
        numbers[places] = begin + by_code
        free[strata] += counts
    return SortedWindows(
        found, sizes, ListOrder(torch.from_numpy(numbers).to(windows.device))
    )


def _sort_by_blocks(codes: Codes, windows: WindowIndex) -> SortedWindows:
    """Sort windows whose codes depend only on moments and series."""
    counts, begins = windows.counts.cpu().numpy(), windows.begins()
    # Series with the same forecast starts have the same rows of every moment code.
    spans, span_of = np.unique(np.stack([begins, counts]), axis=1, return_inverse=True)
    moments = _MomentSlices.build(codes.moments, windows, spans)
    cells = _SeriesCells.build(codes.series, windows, spans, span_of.reshape(-1))

    # Blocks: cells × moment codes that hold a window, sorted by stratum.
    cell, moment = np.nonzero(moments.width[cells.span] > 0)
    block_codes = moments.codes[moment] + cells.codes[cell]
    found, stratum = np.unique(block_codes, return_inverse=True)
    stratum = stratum.reshape(-1)
    by_stratum = np.argsort(stratum, kind="stable")
    cell, moment = cell[by_stratum], moment[by_stratum]
    width = moments.width[cells.span[cell], moment]
    block_sizes = width * cells.size[cell]
    sizes = np.zeros(len(found), dtype=np.int64)
    np.add.at(sizes, stratum[by_stratum], block_sizes)

    def tensor(array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(windows.device)

    def compact(array: np.ndarray) -> Tensor:
        """Return a tensor of half the bytes where possible: strata may be millions."""
        fits = len(array) == 0 or array.max() < 2**31
        return tensor(array.astype(np.int32) if fits else array)

    order = BlockOrder(
        ends=tensor(block_sizes.cumsum()),
        first_row=compact(moments.begin[cells.span[cell], moment]),
        width=compact(width),
        first_member=compact(cells.begin[cell]),
        rows=compact(moments.rows),
        members=compact(cells.members),
        begins=tensor(begins),
        numbers=tensor(counts.cumsum() - counts),
        stride=windows.stride,
    )
    return SortedWindows(found, sizes, order)


@dataclass(frozen=True)
class _MomentSlices:
    """Rows of the timeline sorted by moment code, and where each span finds its rows.

    ``codes`` are the distinct moment codes; ``begin`` and ``width``, of shape (spans,
    codes), are the slice of ``rows`` with the forecast starts of a span.
    """

    codes: np.ndarray
    rows: np.ndarray
    begin: np.ndarray
    width: np.ndarray

    @classmethod
    def build(
        cls, codes: np.ndarray | None, windows: WindowIndex, spans: np.ndarray
    ) -> _MomentSlices:
        count, stride = len(windows.series.timeline.moments), windows.stride
        found, member = _distinct(codes, count)
        # Sorted by phase within the stride first: the rows of a span, which are
        # ``stride`` apart, are then contiguous for each code.
        group = np.arange(count) % stride * len(found) + member
        rows = np.argsort(group, kind="stable")
        keys = group[rows] * (count + 1) + rows
        wanted = (spans[0] % stride * len(found))[:, None] + np.arange(len(found))
        last = spans[0] + (spans[1] - 1) * stride
        begin = np.searchsorted(keys, wanted * (count + 1) + spans[0][:, None])
        end = np.searchsorted(keys, wanted * (count + 1) + last[:, None], "right")
        return cls(found, rows, begin, end - begin)


@dataclass(frozen=True)
class _SeriesCells:
    """Cells: the series with one code and one span, as slices of ``members``.

    ``codes``, ``span``, ``begin`` and ``size`` have one entry per cell.
    """

    codes: np.ndarray
    span: np.ndarray
    begin: np.ndarray
    size: np.ndarray
    members: np.ndarray

    @classmethod
    def build(
        cls,
        codes: np.ndarray | None,
        windows: WindowIndex,
        spans: np.ndarray,
        span_of: np.ndarray,
    ) -> _SeriesCells:
        found, member = _distinct(codes, len(windows.series.item_ids))
        cell_of = member * spans.shape[1] + span_of
        members = np.argsort(cell_of, kind="stable")
        cells, begin, size = np.unique(
            cell_of[members], return_index=True, return_counts=True
        )
        code, span = np.divmod(cells, spans.shape[1])
        return cls(found[code], span, begin, size, members)


def _distinct(codes: np.ndarray | None, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct codes, and the index of each position's code among them."""
    if codes is None:
        return np.zeros(1, dtype=np.int64), np.zeros(size, dtype=np.int64)
    found, member = np.unique(codes, return_inverse=True)
    return found, member.reshape(-1)
