"""The library's own estimators by name: ``gluonts.DeepAR``, ``pts.Transformer``."""

from __future__ import annotations

from pts_scott.backends import backend

SUFFIX = "Estimator"
#: The first word of the names: that of the library's package.
LIBRARY = backend.MODELS[0].__module__.partition(".")[0]


def library_estimators() -> dict[str, type]:
    """Return the estimator classes of the backend's library."""
    return {
        f"{LIBRARY}.{estimator.__name__.removesuffix(SUFFIX)}": estimator
        for estimator in backend.MODELS
    }


def short_name(path: str) -> str | None:
    """Return the name of the estimator that an import path refers to.

    None if the library has no such estimator. ``gluonts.DeepAREstimator`` and
    ``gluonts.torch.model.deepar.DeepAREstimator`` are both ``gluonts.DeepAR``. Nothing is
    imported.
    """
    module, _, name = path.rpartition(".")
    short = f"{module.split('.')[0]}.{name.removesuffix(SUFFIX)}"
    found = library_estimators().get(short)
    if found is None or not f"{found.__module__}.".startswith(f"{module}."):
        return None
    return short
