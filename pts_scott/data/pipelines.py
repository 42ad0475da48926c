"""Pipelines: the libraries' chains of transformations, read as windows.

A chain prepares entries, splits instances out of them, and may work on the instances
afterwards. What is known of it becomes a `Layout` and steps on whole batches; anything
else runs as the library wrote it, one instance at a time.
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
    RenameFields,
    SelectFields,
    Transformation,
    TransformedDataset,
    UniformSplitSampler,
)
from torch import Tensor

from pts_scott.data.instances import (
    InstanceIndex,
    Layout,
    PipelineIndex,
    Sampling,
    Step,
    read_entries,
)
from pts_scott.data.validation import CheckedDataset, Entry, name_of
from pts_scott.data.windows import Batch
from pts_scott.errors import DataError, ModelError, ScottError, ScottWarning, cause, quote


@dataclass(frozen=True)
class Pipeline:
    """A chain of transformations, taken apart where it splits.

    Parameters
    ----------
    prepare
        What is done to entries before they are split.
    splitter
        Makes instances of an entry.
    finish
        What is done to instances.
    fields
        Names that the instances keep; None for all.
    """

    prepare: tuple[Transformation, ...]
    splitter: FlatMapTransformation
    finish: tuple[Transformation, ...]
    fields: tuple[str, ...] | None

    @classmethod
    def read(cls, transformation: Transformation) -> Pipeline:
        """Take a chain apart; what comes after the selection of fields is left off.

        Raises
        ------
        ModelError
            If nothing in it splits, or the splitter cannot be told where to split.
        """
        parts = list(_flatten(transformation))
        splitters = (
            n
            for n, part in enumerate(parts)
            if isinstance(part, FlatMapTransformation)  # as a filter of entries is, too
            and hasattr(part, "instance_sampler")
        )
        place = next(splitters, None)
        if place is None:
            names = ", ".join(type(part).__name__ for part in parts)
            raise ModelError(
                "the model's pipeline has no splitter with an instance_sampler, so its "
                f"windows cannot be numbered; it does: {names}."
            )
        finish: list[Transformation] = []
        fields = None
        for part in parts[place + 1 :]:
            if isinstance(part, SelectFields):
                fields = tuple(part.input_fields)
            if isinstance(part, SelectFields) or type(part).__name__ == "Batch":
                break  # from here on it is about batches
            if not isinstance(part, Identity):
                finish.append(part)
        return cls(tuple(parts[:place]), parts[place], tuple(finish), fields)

    def windows(self, dataset: Iterable[Entry]) -> InstanceIndex:
        """The windows of a dataset that goes through this pipeline.

        Those that a library's sampler may draw; of a sampler that always takes the last
        split, the last of each series.
        """
        sampling = _sampling(self.splitter.instance_sampler)
        layout = _layout(self.splitter)
        steps = [_step(part) for part in self.finish]
        entries = prepared(dataset, self.prepare)
        if layout is None or None in steps or self.fields is None:
            index = self._library_windows(entries, sampling)
        else:
            known = [step for step in steps if step is not None]
            index = _known_windows(entries, layout, sampling, known, self.fields)
        return index.last() if sampling.last else index

    def _library_windows(
        self, entries: Iterable[Entry], sampling: Sampling
    ) -> InstanceIndex:
        names = [type(part).__name__ for part in (self.splitter, *self.finish)]
        warnings.warn(
            f"{' + '.join(names)} is not known here, so the library's own pipeline makes "
            "the instances one by one: training is right, and as slow as the library is.",
            ScottWarning,
            stacklevel=3,
        )
        splitter = copy.copy(self.splitter)
        sampler = splitter.instance_sampler = _At()
        chain = Chain([splitter, *self.finish])

        def instance(entry: Entry, split: int) -> Entry:
            sampler.split = split
            found = list(chain([dict(entry)], is_train=True))
            if len(found) != 1:
                raise ModelError(
                    f"{' + '.join(names)} makes {len(found)} instances of one split, and "
                    "a window needs exactly one."
                )
            return found[0]

        layout = _outline(self.splitter)
        series, _, kept = read_entries(entries, layout, sampling, (), keep=True)
        return PipelineIndex(series, layout, sampling, self.fields, kept, instance)


def prepared(dataset: Any, parts: Sequence[Transformation]) -> Iterator[Entry]:
    """The entries of a dataset, checked, and prepared one by one.

    Parameters
    ----------
    dataset
        Entries, perhaps with transformations of their own.
    parts
        What is done to each.

    Raises
    ------
    DataError
        With the name of the series at which a transformation failed.
    """
    parts = list(parts)
    while isinstance(dataset, TransformedDataset):
        parts.insert(0, dataset.transformation)
        dataset = dataset.base_dataset
    if not isinstance(dataset, CheckedDataset):
        dataset = CheckedDataset(dataset)
    chain = Chain(parts)
    for position, entry in enumerate(dataset):
        try:
            # A value that overflows is refused later.
            with np.errstate(over="ignore"):
                entries = list(chain([entry], is_train=True))
        except ScottError:
            raise
        except Exception as error:
            raise DataError(
                "the model's own pipeline failed on series "
                f"{quote(name_of(entry, position))}: {cause(error)}. See that start, "
                "target and features are what the model takes, as "
                "gluonts.dataset.common.ListDataset gives them."
            ) from error
        yield from entries


def _outline(splitter: Any) -> Layout:
    """Lengths of a splitter that is not known."""
    past = getattr(splitter, "past_length", getattr(splitter, "instance_length", None))
    if past is None:
        raise ModelError(
            f"{type(splitter).__name__} has neither past_length nor instance_length, so "
            "it cannot be told which windows there are; use an InstanceSplitter."
        )
    target = getattr(splitter, "target_field", "target")
    return Layout(
        past_length=past,
        future_length=getattr(splitter, "future_length", 0),
        lead_time=getattr(splitter, "lead_time", 0),
        target=target,
        split=(target,),
    )


class _At:
    """A sampler that splits where it is told."""

    split = 0

    def __call__(self, target: np.ndarray) -> np.ndarray:
        return np.array([self.split])


def _known_windows(
    entries: Iterable[Entry],
    layout: Layout,
    sampling: Sampling,
    steps: Sequence[Step],
    fields: Sequence[str],
) -> InstanceIndex:
    needed = set(fields)
    for step in reversed(steps):
        needed = step.needs(needed)
    static = sorted(needed - set(layout.pieces()))
    series, store, _ = read_entries(entries, layout, sampling, static)
    return InstanceIndex(series, store, layout, sampling, steps, fields)


def _flatten(transformation: Transformation) -> Iterator[Transformation]:
    if isinstance(transformation, Chain):
        for part in transformation.transformations:
            yield from _flatten(part)
    else:
        yield transformation


def _layout(splitter: Any) -> Layout | None:
    """The layout of a splitter whose every argument is understood here."""
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


def _step(transformation: Transformation) -> Step | None:
    if type(transformation) is RenameFields:
        return _Rename(dict(transformation.mapping))
    if type(transformation).__name__ == "QuantizeMeanScaled":
        return _Quantize(transformation)
    return None


@dataclass(frozen=True)
class _Rename:
    """GluonTS' RenameFields."""

    mapping: dict[str, str]

    def needs(self, names: set[str]) -> set[str]:
        old = {new: name for name, new in self.mapping.items()}
        return {old.get(name, name) for name in names}

    def __call__(self, batch: Batch) -> Batch:
        return {self.mapping.get(name, name): value for name, value in batch.items()}


class _Quantize:
    """GluonTS' QuantizeMeanScaled, by which WaveNet sees a target in bins."""

    def __init__(self, transformation: Any) -> None:
        self._edges = torch.as_tensor(transformation.bin_edges)
        self._past = transformation.past_target_field
        self._future = transformation.future_target_field
        self._observed = transformation.past_observed_values_field
        self._scale = transformation.scale_field

    def needs(self, names: set[str]) -> set[str]:
        return (names - {self._scale}) | {self._past, self._future, self._observed}

    def __call__(self, batch: Batch) -> Batch:
        past, observed = batch[self._past], batch[self._observed]
        mean = (past.abs() * observed).sum(1) / observed.sum(1)
        scale = torch.where(mean > 0, mean, 1.0)[:, None]
        return batch | {
            self._past: self._bins(past / scale),
            self._future: self._bins(batch[self._future] / scale),
            self._scale: scale,
        }

    def _bins(self, values: Tensor) -> Tensor:
        # As numpy.digitize, which compares in the precision of the edges.
        edges = self._edges.to(values.device)
        return torch.bucketize(values.to(edges.dtype), edges, right=True)
