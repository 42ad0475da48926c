"""The library's own estimators by name: ``gluonts.DeepAR``, ``pts.Transformer``."""

from __future__ import annotations

import functools
import importlib
import pkgutil

from pts_scott.backends import backend

SUFFIX = "Estimator"


@functools.cache
def library_estimators() -> dict[str, type]:
    """Return the estimator classes of the backend's library.

    Only the library's own packages are imported, whatever names a config has.
    """
    package = importlib.import_module(backend.ESTIMATOR_PACKAGE)
    found: dict[str, type] = {}
    for _, path, is_package in pkgutil.iter_modules(package.__path__):
        if is_package:
            module = importlib.import_module(f"{package.__name__}.{path}")
            found |= _estimators_in(vars(module))
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def _estimators_in(names: dict[str, object]) -> dict[str, type]:
    root = backend.ESTIMATOR_PACKAGE.split(".")[0]
    return {
        f"{root}.{name.removesuffix(SUFFIX)}": value
        for name, value in names.items()
        if isinstance(value, type)
        and issubclass(value, backend.LIBRARY_ESTIMATORS)
        and value not in backend.LIBRARY_ESTIMATORS[:1]  # the base of the others
    }


def short_name(path: str) -> str | None:
    """Return the name of the estimator that an import path refers to.

    None if the library has no such estimator. ``gluonts.DeepAREstimator`` and
    ``gluonts.torch.model.deepar.DeepAREstimator`` are both ``gluonts.DeepAR``.
    """
    module, _, name = path.rpartition(".")
    short = f"{module.split('.')[0]}.{name.removesuffix(SUFFIX)}"
    found = library_estimators().get(short)
    if found is None or not f"{found.__module__}.".startswith(f"{module}."):
        return None
    return short
