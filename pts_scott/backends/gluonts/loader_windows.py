"""The windows that GluonTS' data loaders draw from, found without running the loader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from gluonts.dataset.common import Dataset
from gluonts.itertools import Cyclic, IterableSlice, PseudoShuffled
from gluonts.transform import Chain, Transformation, TransformedDataset

from pts_scott.data.instance_index import InstanceIndex
from pts_scott.data.pipeline import Pipeline, prepared_entries


class SinglePassDataset:
    """A transformed dataset that stops cyclic loaders after one pass.

    Parameters
    ----------
    dataset
        Entries with ``start`` and ``target``.
    transformation
        The estimator's own transformation, which is applied to each entry.
    """

    class _PassEndedError(Exception):
        """Raised in place of a second pass."""

    def __init__(self, dataset: Dataset, transformation: Transformation) -> None:
        self._dataset, self._transformation = dataset, transformation
        self._passes: int | None = None  # counted only within `single_pass`

    def __iter__(self) -> Iterator[Any]:
        if self._passes is not None:
            self._passes += 1
            if self._passes > 1:
                raise self._PassEndedError
        yield from prepared_entries(self._dataset, [self._transformation])

    def single_pass(self, stream: Iterable[Any]) -> Iterator[Any]:
        """Yield each entry of a possibly infinite stream over this dataset once."""
        first, self._passes = None, 0
        try:
            for entry in stream:
                if entry is first:  # the stream has cached its entries and repeats them
                    return
                first = entry if first is None else first
                yield entry
        except self._PassEndedError:
            return
        finally:
            self._passes = None


def loader_windows(loader: Any, dataset: SinglePassDataset) -> InstanceIndex:
    """Return the windows that a loader would draw from its dataset.

    Parameters
    ----------
    loader
        A loader as GluonTS' estimators create it: nested slices, shuffles, cycles and
        transformed datasets.
    dataset
        The dataset that the loader was created for. An estimator may have wrapped it in
        another dataset.
    """
    parts: list[Transformation] = []
    while True:
        if type(loader) is TransformedDataset:
            parts.insert(0, loader.transformation)
            loader = loader.base_dataset
        elif type(loader) in (IterableSlice, PseudoShuffled, Cyclic):
            loader = loader.iterable
        else:
            break
    return Pipeline.read(Chain(parts)).windows(dataset.single_pass(loader))
