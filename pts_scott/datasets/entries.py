"""Series from the entries of a GluonTS dataset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from pts_scott._utils.text import shorten
from pts_scott.data.offsets import frequency_of
from pts_scott.data.series_store import SeriesStore
from pts_scott.datasets.columns import repeated_names
from pts_scott.datasets.frequency import timestamp_frequency
from pts_scott.datasets.raw_series import RawSeries
from pts_scott.errors import DataError, MixedFrequencyError


def series_from_entries(
    dataset: Iterable[Mapping[str, Any]], freq: Any = None
) -> RawSeries:
    """Read a GluonTS dataset, or any entries with ``start`` and ``target``.

    Without ``freq`` the first start must carry the frequency, or all entries have a field
    ``freq``, as those of GIFT-Eval do.

    Raises
    ------
    DataError, EmptyDatasetError, FrequencyError, InfiniteValuesError
    """
    if freq is None and isinstance(dataset, Iterable):
        dataset = list(dataset)
        first = dataset[0] if dataset else {}
        start = first.get("start") if isinstance(first, Mapping) else None
        carried = frequency_of(start)
        freq = _own_freq(dataset) if carried is None else carried.freqstr
    # No warning about series without values: they count as constant, and the caller
    # decides about those.
    store = SeriesStore.from_dataset(dataset, freq, torch.float64, warns=False)
    _check_store(store)
    values = store.values.numpy()
    starts = [store.timeline.moments[origin] for origin in store.timeline.origins]
    spans = zip(store.begins.tolist(), store.lengths.tolist())
    return RawSeries(
        timestamp_frequency(freq, starts[0]),
        list(store.item_ids),
        starts,
        [values[begin : begin + length] for begin, length in spans],
    )


def _own_freq(entries: list[Any]) -> str | None:
    """Return the frequency that entries name in a field ``freq``; None without one."""
    fields = (entry.get("freq") for entry in entries if isinstance(entry, Mapping))
    named = {None if freq is None else str(freq) for freq in fields}
    if len(named) > 1:
        raise MixedFrequencyError(
            f"the series have different frequencies: {shorten(sorted(map(str, named)))}; "
            "load those of each frequency on their own."
        )
    return named.pop() if named else None


def _check_store(store: SeriesStore) -> None:
    """Raise unless the series are univariate, not empty, and have distinct names."""
    if store.dimensions is not None:
        raise DataError(
            f"the series have {store.dimensions} dimensions; split them into univariate "
            "series, one entry each."
        )
    empty = [store.item_ids[row] for row in np.flatnonzero(store.lengths == 0)]
    if empty:
        raise DataError(f"series {shorten(empty)} have no values; remove them.")
    repeated = repeated_names(store.item_ids)
    if repeated:
        raise DataError(
            f"series {shorten(repeated)} are in the dataset more than once; rolling test "
            "splits repeat a series: keep the longest entry of each, or rename them."
        )
