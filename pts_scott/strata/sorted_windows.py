"""Windows sorted by stratum: the place of a window in that order, and back.

Drawing from a stratum means drawing a place among its windows. Where strata come from
moments and series alone, the window at a place is computed from lists as long as the
timeline and the series; only otherwise are the windows listed one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from pts_scott.data.window_index import WindowIndex
from pts_scott.strata.stratifier import Codes


class Order(Protocol):
    """All windows, sorted by stratum."""

    def windows(self, places: Tensor) -> Tensor:
        """The windows at some places of the order."""
        ...

    def to(self, device: torch.device | str) -> Order:
        """The same order with its tensors on another device."""
        ...


@dataclass(frozen=True)
class Sorted:
    """Windows sorted by code: the codes that occur, how often, and the order."""

    codes: np.ndarray
    sizes: np.ndarray
    order: Order


def sort_windows(codes: Codes, windows: WindowIndex) -> Sorted:
    """Sort all windows of an index by their codes."""
    if codes.windows is None:
        return _sort_by_parts(codes, windows)
    found, member, sizes = np.unique(
        codes.expand(windows), return_inverse=True, return_counts=True
    )
    numbers = np.argsort(member.reshape(-1), kind="stable")
    order = ListedOrder(torch.from_numpy(numbers).to(windows.device))
    return Sorted(found, sizes, order)


@dataclass(frozen=True)
class ListedOrder:
    """An order kept as a list of all windows."""

    numbers: Tensor

    def windows(self, places: Tensor) -> Tensor:
        return self.numbers[places]

    def to(self, device: torch.device | str) -> ListedOrder:
        return ListedOrder(self.numbers.to(device))


@dataclass(frozen=True)
class PartedOrder:
    """An order computed from blocks of series × moments.

    A block holds the windows of series that have the same forecast starts and lie in one
    stratum, at the moments of one class: every series of ``members`` in a stretch, with
    every row of ``rows`` in a stretch. Blocks are sorted by stratum, so the block of a
    place is found by bisection, and the window inside it by a division.

    Parameters
    ----------
    ends
        Place at which each block ends, of shape (blocks,).
    first_row, width
        The stretch of ``rows`` of each block, and its length.
    first_member
        Where the stretch of ``members`` of each block begins.
    rows
        Rows of the timeline, sorted by class of moment.
    members
        Numbers of the series, sorted by stratum and forecast starts.
    begins, numbers
        For each series, the row and the number of its first window.
    stride
        Of the windows.
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
        # Counted from the end of its block, whose size need not be kept.
        back = self.ends[block] - 1 - places
        member = back.div(width, rounding_mode="floor")
        row = self.rows[self.first_row[block] + back - member * width]
        series = self.members[self.first_member[block] + member]
        step = row - self.begins[series]
        if self.stride > 1:
            step = step.div(self.stride, rounding_mode="floor")
        return self.numbers[series] + step

    def to(self, device: torch.device | str) -> PartedOrder:
        tensors = {k: v.to(device) for k, v in vars(self).items() if k != "stride"}
        return PartedOrder(**tensors, stride=self.stride)


def _sort_by_parts(codes: Codes, windows: WindowIndex) -> Sorted:
    timeline = windows.series.timeline
    rows, series = len(timeline.moments), len(windows.series.item_ids)
    moment_codes, moment_class = _classes(codes.moments, rows)
    series_codes, series_class = _classes(codes.series, series)
    counts, begins = windows.counts.cpu().numpy(), windows.begins()
    stride = windows.stride

    # Series with the same forecast starts have the same rows in every class.
    spans, span_of = np.unique(np.stack([begins, counts]), axis=1, return_inverse=True)
    span_of = span_of.reshape(-1)

    # Rows sorted by phase within the stride and class: a span's rows of one class, which
    # are ``stride`` apart, are a stretch there.
    classes = len(moment_codes)
    group = np.arange(rows) % stride * classes + moment_class
    sorted_rows = np.argsort(group, kind="stable")
    keys = group[sorted_rows] * (rows + 1) + sorted_rows
    wanted = (spans[0] % stride * classes)[:, None] + np.arange(classes)
    begin = np.searchsorted(keys, wanted * (rows + 1) + spans[0][:, None])
    last = spans[0] + (spans[1] - 1) * stride
    width = np.searchsorted(keys, wanted * (rows + 1) + last[:, None], "right") - begin

    # Cells: the series of one class with one span, as stretches of ``members``.
    cell_of = series_class * spans.shape[1] + span_of
    members = np.argsort(cell_of, kind="stable")
    cells, first_member, cell_size = np.unique(
        cell_of[members], return_index=True, return_counts=True
    )
    cell_class, cell_span = np.divmod(cells, spans.shape[1])

    # Blocks: cells × classes of moments that hold a window, sorted by stratum.
    cell, moment = np.nonzero(width[cell_span] > 0)
    block_codes = moment_codes[moment] + series_codes[cell_class[cell]]
    found, stratum = np.unique(block_codes, return_inverse=True)
    by_stratum = np.argsort(stratum.reshape(-1), kind="stable")
    cell, moment = cell[by_stratum], moment[by_stratum]
    widths = width[cell_span[cell], moment]
    block_sizes = widths * cell_size[cell]
    sizes = np.zeros(len(found), dtype=np.int64)
    np.add.at(sizes, stratum.reshape(-1)[by_stratum], block_sizes)

    def place(array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(windows.device)

    def small(array: np.ndarray) -> Tensor:
        """With a million strata, half the bytes count."""
        fits = len(array) == 0 or array.max() < 2**31
        return place(array.astype(np.int32) if fits else array)

    order = PartedOrder(
        ends=place(block_sizes.cumsum()),
        first_row=small(begin[cell_span[cell], moment]),
        width=small(widths),
        first_member=small(first_member[cell]),
        rows=small(sorted_rows),
        members=small(members),
        begins=place(begins),
        numbers=place(counts.cumsum() - counts),
        stride=stride,
    )
    return Sorted(found, sizes, order)


def _classes(codes: np.ndarray | None, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The codes that occur, and for each place which of them it has."""
    if codes is None:
        return np.zeros(1, dtype=np.int64), np.zeros(size, dtype=np.int64)
    found, place = np.unique(codes, return_inverse=True)
    return found, place.reshape(-1)
