"""Objectives: how much each window counts in the loss that is minimised.

An objective changes what is minimised, on purpose: each window j has a weight u_j, with
mean 1, and the loss is the mean of u_j·f_j. An allocation changes only which windows are
drawn to estimate the gradient of that loss, and never what is minimised.
"""

from __future__ import annotations

import datetime
import math
import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from pts_scott._utils.text import quote
from pts_scott.data.offsets import nanoseconds
from pts_scott.data.window_index import WindowIndex
from pts_scott.errors import ArgumentError
from pts_scott.method.labels import values_by_label
from pts_scott.method.protocol import Sample
from pts_scott.method.samplers import Sampler, uniform_weights
from pts_scott.strata.partition import Strata

OBJECTIVES = ("windows", "series")
CHUNK = 2**20  # windows whose weights are computed at once


def check_objective(objective: Any) -> str | pd.Timedelta | dict[str, float]:
    """Return an objective: a name, a half-life, or weights by label.

    Raises
    ------
    ArgumentError
    """
    if isinstance(objective, str) and objective in OBJECTIVES:
        return objective
    if isinstance(objective, Mapping):
        return _check_table(objective)
    has_unit = not isinstance(objective, str) or any(map(str.isalpha, objective))
    if has_unit and isinstance(objective, str | datetime.timedelta | np.timedelta64):
        try:
            half_life = pd.Timedelta(objective)
        except ValueError:
            half_life = pd.NaT
        if half_life is not pd.NaT and half_life > pd.Timedelta(0):
            return half_life
    raise ArgumentError(
        f"objective={objective!r}: expected 'windows', 'series', a half-life such as "
        "'90 days', or weights by stratum, e.g. {'Sat': 2.0, 'Sun': 2.0, 'Mon': 1.0, …}."
    )


def _check_table(table: Mapping[Any, Any]) -> dict[str, float]:
    weights: dict[str, float] = {}
    for label, weight in table.items():
        number = isinstance(weight, numbers.Real) and not isinstance(weight, bool)
        if not number or not 0 <= weight < math.inf:
            raise ArgumentError(
                f"objective: the weight of {quote(label)} is {weight!r}; expected a "
                "finite number of at least 0."
            )
        weights[str(label)] = float(weight)
    if not sum(weights.values()) > 0:
        raise ArgumentError("objective: no stratum has a weight above 0.")
    return weights


class Objective:
    """The weight u_j of each window in the loss, with mean 1 over all windows.

    Weights are a product of a factor of the window's series, one of its forecast start
    and one of its stratum.

    Parameters
    ----------
    windows
        The index.
    series, moments
        Factors of the series and of the timeline's moments; None for 1.
    strata, factors
        The partition, and a factor for each of its strata; None for 1.
    """

    def __init__(
        self,
        windows: WindowIndex,
        *,
        series: np.ndarray | None = None,
        moments: np.ndarray | None = None,
        strata: Strata | None = None,
        factors: np.ndarray | None = None,
    ) -> None:
        self.windows = windows
        self._series, self._moments = series, moments
        self._strata, self._factors = strata, factors
        self._scale = 1.0
        self._scale = 1.0 / self._mean()

    @classmethod
    def of(
        cls,
        objective: str | pd.Timedelta | Mapping[str, float],
        windows: WindowIndex,
        strata: Strata | None,
    ) -> Objective | None:
        """Return the weights of an objective; None if each window counts alike.

        Raises
        ------
        ArgumentError
            If a table names an unknown stratum, or omits one.
        """
        if isinstance(objective, str):
            if objective == "windows":
                return None
            return cls(windows, series=1.0 / windows.counts.cpu().numpy())
        if isinstance(objective, pd.Timedelta):
            moments = nanoseconds(windows.series.timeline.moments)
            age = (moments[windows.starts()].max() - moments) / objective.value
            return cls(windows, moments=np.exp2(-np.clip(age, 0.0, 1000.0)))
        assert strata is not None
        otherwise = "0 to leave it out"
        factors = values_by_label("objective", "weight", objective, strata, otherwise)
        return cls(windows, strata=strata, factors=np.array(factors))

    def weights(self, windows: np.ndarray) -> np.ndarray:
        """Return u_j of some windows."""
        weights = np.full(len(windows), self._scale)
        if self._series is not None or self._moments is not None:
            series, rows = self.windows.rows(windows)
            if self._series is not None:
                weights *= self._series[series]
            if self._moments is not None:
                weights *= self._moments[rows]
        if self._strata is not None and self._factors is not None:
            weights *= self._factors[self._strata.members(windows)]
        return weights

    def weighted(self, rows: Tensor, windows: Tensor) -> Tensor:
        """Return a row of each window, such as its gradient, times u_j."""
        factors = torch.from_numpy(self.weights(windows.cpu().numpy()))
        return rows * factors[:, None]

    def _mean(self) -> float:
        count, total = len(self.windows), 0.0
        for begin in range(0, count, CHUNK):
            numbers = np.arange(begin, min(begin + CHUNK, count), dtype=np.int64)
            total += float(self.weights(numbers).sum())
        return total / count


class ObjectiveSampler:
    """A sampler whose weights are multiplied by those of an objective.

    Parameters
    ----------
    sampler
        Draws the windows.
    objective
        The weights of the windows in the loss.
    """

    is_weighted = True

    def __init__(self, sampler: Sampler, objective: Objective) -> None:
        self.size = sampler.size
        self._sampler, self._objective = sampler, objective
        self._returned: Sample | None = None

    def draw(self) -> Sample:
        sample, self._returned = self._returned, None
        if sample is not None:
            return sample
        windows, weights = self._sampler.draw()
        factors = torch.from_numpy(self._objective.weights(windows.cpu().numpy()))
        if weights is None:
            weights = uniform_weights(self._objective.windows, self.size)
        return Sample(windows, weights * factors.to(weights))

    def put_back(self, sample: Sample) -> None:
        self._returned = sample

    def state_dict(self) -> dict[str, Any]:
        returned = None if self._returned is None else list(self._returned)
        return {"sampler": self._sampler.state_dict(), "returned": returned}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sampler.load_state_dict(state["sampler"])
        returned = state["returned"]
        device = self._objective.windows.device
        self._returned = returned and Sample(*(part.to(device) for part in returned))
