"""k-means policy: strata by clusters of cheap features of the window's context."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from pts_scott._utils.arguments import nearest, whole_number
from pts_scott._utils.spacing import evenly_spaced
from pts_scott._utils.text import cause
from pts_scott.data.window_index import WindowIndex
from pts_scott.errors import ArgumentError, NotFittedError, StratificationError
from pts_scott.strata.codes import Codes
from pts_scott.strata.policy import Policy, strata_count

FeatureFunction = Callable[[np.ndarray], np.ndarray]

FREQUENCIES = 8  # lowest frequencies of the spectrum: enough shape, few numbers
FIT_WINDOWS = 20_000  # evenly spaced windows on which the clusters are fitted
CHUNK = 16_384  # windows whose features are computed at once


def _spectrum(contexts: np.ndarray) -> np.ndarray:
    centred = contexts - contexts.mean(axis=1, keepdims=True)
    norm = np.linalg.norm(centred, axis=1, keepdims=True)
    power = np.abs(np.fft.rfft(centred / np.where(norm > 0, norm, 1.0), axis=1))
    return power[:, 1 : 1 + FREQUENCIES]


def _level(contexts: np.ndarray) -> np.ndarray:
    return np.log1p(np.abs(contexts).mean(axis=1, keepdims=True))


def _spread(contexts: np.ndarray) -> np.ndarray:
    return np.log1p(contexts.std(axis=1, keepdims=True))


def _zeros(contexts: np.ndarray) -> np.ndarray:
    return (contexts == 0).mean(axis=1, keepdims=True)


FEATURES: dict[str, FeatureFunction] = {
    "spectrum": _spectrum,
    "level": _level,
    "spread": _spread,
    "zeros": _zeros,
}


class KMeans(Policy):
    """Strata by the nearest cluster centre.

    ``fit`` learns ``centres``, ``mean`` and ``scale``; features are standardised before
    distances are computed.
    """

    def __init__(
        self,
        count: int,
        features: Sequence[str] | FeatureFunction = tuple(FEATURES),
        seed: int = 0,
        centres: Sequence[Sequence[float]] | None = None,
        mean: Sequence[float] | None = None,
        scale: Sequence[float] | None = None,
    ) -> None:
        self.count = strata_count("count", count)
        self.features = features if callable(features) else _feature_names(features)
        self.seed = whole_number("seed", seed, minimum=0)
        self.centres = None if centres is None else np.asarray(centres, dtype=np.float64)
        self.mean = None if mean is None else np.asarray(mean, dtype=np.float64)
        self.scale = None if scale is None else np.asarray(scale, dtype=np.float64)

    def fit(self, windows: WindowIndex) -> Policy:
        if self.centres is not None:
            return self
        # Imported on first use, which takes a while.
        from sklearn.cluster import KMeans as Clustering
        from sklearn.exceptions import ConvergenceWarning

        self.check_count(windows)
        sample = evenly_spaced(len(windows), FIT_WINDOWS).numpy()
        features = np.concatenate(list(self._features_of(windows, sample)))
        mean, scale = features.mean(axis=0), features.std(axis=0)
        scale[scale == 0] = 1.0
        clustering = Clustering(self.count, n_init=4, random_state=self.seed)
        with warnings.catch_warnings():
            # About fewer distinct windows than clusters; check_occupied raises then.
            warnings.simplefilter("ignore", ConvergenceWarning)
            clustering.fit((features - mean) / scale)
        centres = clustering.cluster_centers_
        assert self.count is not None
        return KMeans(self.count, self.features, self.seed, centres, mean, scale)

    def codes(self, windows: WindowIndex) -> Codes:
        numbers = np.arange(len(windows), dtype=np.int64)
        clusters = [self._nearest(part) for part in self._features_of(windows, numbers)]
        return Codes(windows=np.concatenate(clusters))

    def code(self, instance: Mapping[str, Any]) -> int:
        context = np.nan_to_num(np.asarray(instance["past_target"], dtype=np.float32))
        return int(self._nearest(self._compute(context[None]))[0])

    def label(self, item_id: str, moment: pd.Timestamp, code: int) -> str:
        return f"cluster {code}"

    def _features_of(
        self, windows: WindowIndex, numbers: np.ndarray
    ) -> Iterator[np.ndarray]:
        """Yield the features of windows, chunk by chunk."""
        for begin in range(0, len(numbers), CHUNK):
            part = torch.from_numpy(numbers[begin : begin + CHUNK]).to(windows.device)
            contexts = windows.contexts(part)
            yield self._compute(contexts.cpu().numpy())

    def _compute(self, contexts: np.ndarray) -> np.ndarray:
        """Return features of contexts of shape (windows, steps) or (…, dimensions)."""
        contexts = contexts.astype(np.float32).astype(np.float64)
        if contexts.ndim == 3:
            columns = [self._compute(contexts[..., d]) for d in range(contexts.shape[2])]
            return np.concatenate(columns, axis=1)
        if callable(self.features):
            return self._call(self.features, contexts)
        parts = [FEATURES[name](contexts) for name in self.features]
        return np.concatenate(parts, axis=1)

    def _call(self, function: FeatureFunction, contexts: np.ndarray) -> np.ndarray:
        """Return the features by a user's function, checked."""
        try:
            features = np.asarray(function(contexts), dtype=np.float64)
            features = features.reshape(len(contexts), -1)
            if not np.isfinite(features).all():
                raise ValueError("it returned NaN or infinity")
        except Exception as error:
            raise StratificationError(
                f"{self}: the feature function failed on contexts of shape "
                f"{contexts.shape}: {cause(error)}. It must return finite numbers of "
                f"shape ({len(contexts)}, features)."
            ) from error
        return features

    def _nearest(self, features: np.ndarray) -> np.ndarray:
        if self.centres is None or self.mean is None or self.scale is None:
            raise NotFittedError(
                f"{self} has no clusters yet: call "
                "stratifier = stratifier.fit(windows) first."
            )
        standard = (features - self.mean) / self.scale
        distance = ((standard[:, None] - self.centres[None]) ** 2).sum(axis=2)
        return distance.argmin(axis=1)

    def _arguments(self) -> dict[str, Any]:
        fitted = {"centres": self.centres, "mean": self.mean, "scale": self.scale}
        features = self.features if callable(self.features) else list(self.features)
        return {
            "count": self.count,
            "features": features,
            "seed": self.seed,
            **{k: None if v is None else v.tolist() for k, v in fitted.items()},
        }

    def __repr__(self) -> str:
        return f"Stratifier.kmeans({self.count})"


def _feature_names(features: Sequence[str]) -> tuple[str, ...]:
    """Return the names of window features, checked."""
    names = (features,) if isinstance(features, str) else tuple(features)
    if not names:
        raise ArgumentError(f"features is empty; choose from {', '.join(FEATURES)}.")
    for name in names:
        if name not in FEATURES:
            raise ArgumentError(
                f"{name!r} is not a window feature. {nearest(str(name), FEATURES)}"
            )
    return names
