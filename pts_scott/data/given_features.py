"""The features of series as their entries give them, for functions of a window.

A library's pipeline stacks features with others and drops their names, and the paper's
models use none. A stratifier that is a user's function sees them all the same, under the
names and in the layout of GluonTS' instance splitter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from pts_scott._utils.text import one_line, quote
from pts_scott.errors import DataError

Given = Mapping[str, Any]

#: The key under which a prepared entry keeps the features that were given.
KEY = "_given_features"

KNOWN = ("feat_dynamic_real", "feat_dynamic_cat")
PAST = ("past_feat_dynamic_real", "past_feat_dynamic_cat")
STATIC = ("feat_static_real", "feat_static_cat")
FEATURES = (*KNOWN, *PAST, *STATIC)


def features_of(entry: Mapping[str, Any]) -> Given:
    """Return the features of an entry under their names, as they are."""
    return {name: entry[name] for name in FEATURES if entry.get(name) is not None}


def collected(features: Iterable[Given]) -> tuple[Given, ...]:
    """Return the features of all series; nothing if no series has any."""
    every = tuple(features)
    return every if any(every) else ()


def feature_arrays(given: Given, item_id: str) -> dict[str, np.ndarray]:
    """Return the features of a series as arrays, without empty ones.

    Raises
    ------
    DataError
        If one cannot be read.
    """
    found = {name: _array(field, name, item_id) for name, field in given.items()}
    return {name: values for name, values in found.items() if values.size}


def window_features(
    given: Mapping[str, np.ndarray], item_id: str, context: range, prediction: range
) -> dict[str, np.ndarray]:
    """Return the features of one window.

    Parameters
    ----------
    given
        What `feature_arrays` returned of its series: steps are the last dimension.
    item_id
        The series, for messages.
    context, prediction
        Steps of the series. Steps before its beginning have zeros.

    Returns
    -------
    ``past_…`` and ``future_…`` of each feature that changes with time, of shape (steps,)
    or (steps, features), and static features as they were given.

    Raises
    ------
    DataError
        If a feature ends before the window.
    """
    found: dict[str, np.ndarray] = {}
    for name, values in given.items():
        if name in STATIC:
            found[name] = values.copy()  # the function may write into it
            continue
        found[f"past_{name}"] = _steps(values, context, name, item_id)
        if name in KNOWN:
            found[f"future_{name}"] = _steps(values, prediction, name, item_id)
    return found


def _array(field: Any, name: str, item_id: str) -> np.ndarray:
    try:
        return np.asarray(field)
    except Exception as error:  # any library's array type can raise anything
        raise DataError(
            f"{name!r} of series {quote(item_id)} cannot be read: {one_line(error)}. "
            "Give an array of numbers, of shape (features, steps)."
        ) from error


def _steps(values: np.ndarray, steps: range, name: str, item_id: str) -> np.ndarray:
    length = values.shape[-1] if values.ndim else 0
    if steps.stop > length:
        raise DataError(
            f"{name!r} of series {quote(item_id)} has shape {values.shape}, so it ends "
            f"before step {steps.stop} of the window; a time series feature needs one "
            "value per step of the target."
        )
    part = values[..., max(steps.start, 0) : max(steps.stop, 0)].T
    missing = len(steps) - len(part)
    padding = [(missing, 0)] + [(0, 0)] * (part.ndim - 1)
    return np.pad(part, padding)  # a copy, which the function may write into
