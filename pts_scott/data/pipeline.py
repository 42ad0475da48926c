"""The libraries' chains of transformations, read as windows.

A chain prepares entries, splits instances out of them, and may transform the instances.
Parts that are supported natively become a `Layout` and transforms of whole batches;
anything else runs in the library's own code, one instance at a time.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gluonts.transform import (
    Chain,
    ExpectedNumInstanceSampler,
    FlatMapTransformation,
    Identity,
    InstanceSplitter,
    SelectFields,
    Transformation,
    TransformedDataset,
    UniformSplitSampler,
)

from pts_scott._utils.text import cause, quote
from pts_scott.data.batch_transforms import batch_transform
from pts_scott.data.given_features import KEY, features_of
from pts_scott.data.instance_index import InstanceIndex, PipelineIndex
from pts_scott.data.instance_layout import (
    BatchTransform,
    Layout,
    Sampling,
    required_fields,
)
from pts_scott.data.instance_reader import read_instances
from pts_scott.data.validation import CheckedDataset, Entry, name_of
from pts_scott.errors import DataError, ModelError, ScottError, ScottWarning


@dataclass(frozen=True)
class Pipeline:
    """A chain of transformations, separated at its splitter.

    Parameters
    ----------
    prepare
        Transformations of entries, before they are split.
    splitter
        Transformation from an entry to instances.
    finish
        Transformations of instances.
    fields
        Names that the instances keep; None for all.
    """

    prepare: tuple[Transformation, ...]
    splitter: FlatMapTransformation
    finish: tuple[Transformation, ...]
    fields: tuple[str, ...] | None

    @classmethod
    def read(cls, transformation: Transformation) -> Pipeline:
        """Separate a chain at its splitter; drop what follows the selection of fields.

        Raises
        ------
        ModelError
            If it has no splitter whose instance sampler can be replaced.
        """
        parts = list(_flatten(transformation))
        splitters = (
            n
            for n, part in enumerate(parts)
            if isinstance(part, FlatMapTransformation)  # filters of entries are, too
            and hasattr(part, "instance_sampler")
        )
        place = next(splitters, None)
        if place is None:
            names = ", ".join(type(part).__name__ for part in parts)
            raise ModelError(
                "the model's pipeline has no splitter with an instance_sampler, so its "
                f"windows cannot be numbered; it consists of: {names}."
            )
        finish: list[Transformation] = []
        fields = None
        for part in parts[place + 1 :]:
            if isinstance(part, SelectFields):
                fields = tuple(part.input_fields)
            if isinstance(part, SelectFields) or type(part).__name__ == "Batch":
                break  # the rest is about batches
            if not isinstance(part, Identity):
                finish.append(part)
        return cls(tuple(parts[:place]), parts[place], tuple(finish), fields)

    def windows(self, dataset: Iterable[Entry]) -> InstanceIndex:
        """Return the windows that the library's sampler may draw from a dataset.

        For a sampler that always takes the last split, the last window of each series.
        """
        sampling = _sampling(self.splitter.instance_sampler)
        layout = _layout(self.splitter)
        transforms = [batch_transform(part) for part in self.finish]
        entries = prepared_entries(dataset, self.prepare)
        if layout is None or None in transforms or self.fields is None:
            index = self._library_windows(entries, sampling)
        else:
            supported = [transform for transform in transforms if transform is not None]
            index = _native_windows(entries, layout, sampling, supported, self.fields)
        return index.last() if sampling.last else index

    def _library_windows(
        self, entries: Iterable[Entry], sampling: Sampling
    ) -> InstanceIndex:
        parts = (self.splitter, *self.finish)
        names = " + ".join(type(part).__name__ for part in parts)
        warnings.warn(
            f"{names} is not supported natively, so the library's own pipeline creates "
            "the instances one by one: training is correct, but as slow as the library.",
            ScottWarning,
            stacklevel=3,
        )
        splitter = copy.copy(self.splitter)
        sampler = splitter.instance_sampler = _FixedSampler()
        chain = Chain([splitter, *self.finish])

        def make_instance(entry: Entry, split: int) -> Entry:
            sampler.split = split
            found = list(chain([dict(entry)], is_train=True))
            if len(found) != 1:
                raise ModelError(
                    f"{names} makes {len(found)} instances of one split, but a window "
                    "needs exactly one."
                )
            return found[0]

        layout = _lengths_only(self.splitter)
        series, _, kept = read_instances(entries, layout, sampling, (), keep=True)
        return PipelineIndex(series, layout, sampling, self.fields, kept, make_instance)


class _FixedSampler:
    """An instance sampler that always returns ``split``."""

    split = 0

    def __call__(self, target: np.ndarray) -> np.ndarray:
        return np.array([self.split])


def prepared_entries(dataset: Any, parts: Sequence[Transformation]) -> Iterator[Entry]:
    """Iterate over the entries of a dataset, validated and transformed one by one.

    Parameters
    ----------
    dataset
        Entries, possibly a GluonTS dataset with its own transformations.
    parts
        Transformations of the entries.

    Raises
    ------
    DataError
        With the name of the series at which a transformation failed.
    """
    own: list[Transformation] = []
    while isinstance(dataset, TransformedDataset):
        own.insert(0, dataset.transformation)
        dataset = dataset.base_dataset
    if not isinstance(dataset, CheckedDataset):
        dataset = CheckedDataset(dataset)
    first, then = Chain(own), Chain(list(parts))
    for position, entry in enumerate(dataset):
        prepared: list[Entry] = []
        try:
            with np.errstate(over="ignore"):  # an overflow is reported later
                for raw in first([entry], is_train=True):
                    given = raw[KEY] if KEY in raw else features_of(raw)
                    prepared += (
                        {**done, KEY: given} for done in then([raw], is_train=True)
                    )
        except ScottError:
            raise
        except Exception as error:
            raise DataError(
                "the model's own pipeline failed on series "
                f"{quote(name_of(entry, position))}: {cause(error)}. Check that start, "
                "target and features are what the model expects, as in "
                "gluonts.dataset.common.ListDataset."
            ) from error
        yield from prepared


def _native_windows(
    entries: Iterable[Entry],
    layout: Layout,
    sampling: Sampling,
    transforms: Sequence[BatchTransform],
    fields: Sequence[str],
) -> InstanceIndex:
    static = sorted(required_fields(fields, transforms) - set(layout.pieces()))
    series, store, _ = read_instances(entries, layout, sampling, static)
    return InstanceIndex(series, store, layout, sampling, transforms, fields)


def _flatten(transformation: Transformation) -> Iterator[Transformation]:
    if isinstance(transformation, Chain):
        for part in transformation.transformations:
            yield from _flatten(part)
    else:
        yield transformation


def _layout(splitter: Any) -> Layout | None:
    """Return the layout of a splitter; None if it is not supported natively."""
    kind = type(splitter)
    is_tft = kind.__name__ == "TFTInstanceSplitter" and kind.__module__.startswith(
        ("gluonts.", "pts.")
    )
    if kind is not InstanceSplitter and not is_tft:
        return None
    common: dict[str, Any] = {
        "past_length": splitter.past_length,
        "future_length": splitter.future_length,
        "lead_time": splitter.lead_time,
        "target": splitter.target_field,
        "pad": f"past_{splitter.is_pad_field}",
        "dummy_value": splitter.dummy_value,
        "time_first": splitter.output_NTC,
    }
    if not is_tft:
        return Layout(split=(*splitter.ts_fields, splitter.target_field), **common)
    observed = splitter.observed_value_field
    return Layout(
        split=(splitter.target_field, *([] if observed is None else [observed])),
        joined=tuple(splitter.ts_fields),
        past_only=tuple(splitter.past_ts_fields),
        pad_dtype=torch.float64,
        **common,
    )


def _lengths_only(splitter: Any) -> Layout:
    """Return a layout with the lengths of a splitter that is not supported natively."""
    past = getattr(splitter, "past_length", getattr(splitter, "instance_length", None))
    if past is None:
        raise ModelError(
            f"{type(splitter).__name__} has neither past_length nor instance_length, so "
            "its windows cannot be determined; use an InstanceSplitter."
        )
    target = getattr(splitter, "target_field", "target")
    return Layout(
        past_length=past,
        future_length=getattr(splitter, "future_length", 0),
        lead_time=getattr(splitter, "lead_time", 0),
        target=target,
        split=(target,),
    )


def _sampling(sampler: Any) -> Sampling:
    last = type(sampler).__name__ == "PredictionSplitSampler"
    uniform = isinstance(sampler, ExpectedNumInstanceSampler | UniformSplitSampler)
    if not (last or uniform):
        warnings.warn(
            f"{type(sampler).__name__} is not used: every window that it may draw is "
            "drawn with the same probability.",
            ScottWarning,
            stacklevel=3,
        )
    return Sampling(
        getattr(sampler, "min_past", 0), getattr(sampler, "min_future", 0), last
    )
