"""Safe loading of predictors, by an allowlist of the classes that their files may name.

GluonTS' ``Predictor.deserialize`` imports and calls anything that the type file and the
JSON files name, so an untrusted folder can run arbitrary code. Here every name is checked
before anything is imported, and tensor files may hold only tensors; then GluonTS reads.
"""

from __future__ import annotations

import json
import pickle
import sys
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from pydoc import locate
from types import FunctionType
from typing import Any

import torch
from gluonts.model.predictor import Predictor

from pts_scott._utils.text import cause, quote
from pts_scott.backends import backend
from pts_scott.errors import (
    ArgumentError,
    DamagedPredictorError,
    PredictorError,
    UnsafePredictorError,
)
from pts_scott.training.trainer_checks import available_accelerators

# Modules that define what predictors consist of: networks, distributions,
# transformations and features. Instantiating their classes only computes.
ALLOWED_MODULES = (
    *("gluonts.model.forecast_generator", "gluonts.time_feature"),
    *("gluonts.torch", "gluonts.transform"),
    *("pts.feature", "pts.model", "pts.modules"),
    "pts_scott.models.networks",
    *("pts_scott.backends.pytorchts.networks", "pts_scott.backends.pytorchts.predictor"),
)
# Modules whose functions files may refer to, but never call.
FUNCTION_MODULES = ("gluonts.time_feature",)
ALLOWED_NAMES = {
    *(f"builtins.{name}" for name in ("bool", "float", "int", "str")),
    *(f"builtins.{name}" for name in ("dict", "frozenset", "list", "set", "tuple")),
    *(f"numpy.float{bits}" for bits in (16, 32, 64)),
    *(f"numpy.{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *("numpy.array", "numpy.bool", "numpy.bool_", "numpy.datetime64", "numpy.dtype"),
    *("pandas.Period", "pandas.Timestamp", "pandas.tseries.frequencies.to_offset"),
    "pts_scott.models.with_scott.SavedEstimator",
    "pts_scott.training.trainer.ScottTrainer",
    "pts_scott.backends.pytorchts.trainer.ScottTrainer",
}
# File names of GluonTS' current version and of 0.9.
TYPE_FILES = ("gluonts-config.json", "type.txt")
STATE_FILES = ("prediction-net-state.pt", "prediction_net_state")
WRITE_AGAIN = "write it again with predictor.serialize(folder)."


def load_predictor(
    path: str | Path,
    device: str | torch.device | None = None,
    *,
    trusted: Sequence[str] = (),
) -> Predictor:
    """Load a predictor from its folder without running code from its files.

    Parameters
    ----------
    path
        The folder to which ``predictor.serialize`` wrote.
    device
        Device of the predictor; None for the one in its files, or the CPU.
    trusted
        Your own packages whose classes the files may name, e.g. ``("my_package",)``.
        They are imported. GluonTS, PyTorchTS and this package need not be listed.

    Returns
    -------
    Predictor
        As GluonTS' ``Predictor.deserialize`` returns it.

    Raises
    ------
    PredictorError
        If there is no such folder, or a class that it names is not installed.
    DamagedPredictorError
        If a file is missing, truncated or changed.
    UnsafePredictorError
        If a file names a class that is not on the allowlist, or a tensor file holds
        anything but tensors.

    Examples
    --------
    >>> predictor.serialize(Path("model"))                   # doctest: +SKIP
    >>> predictor = load_predictor("model")                  # doctest: +SKIP
    >>> forecasts = list(predictor.predict(dataset))         # doctest: +SKIP
    """
    if isinstance(trusted, str):
        raise ArgumentError(
            f"trusted={trusted!r}: expected a sequence of package names, e.g. "
            f"trusted=({trusted!r},)."
        )
    folder, packages = Path(path), tuple(trusted)
    _check_folder(folder)
    predictor_class = _predictor_class(folder, packages)
    for file in sorted(folder.iterdir()):
        if file.suffix.lower() == ".json":
            for kind, name in _read(file, lambda text: list(_names(json.loads(text)))):
                _resolve(kind, name, file, packages)
        elif file.name.lower() in STATE_FILES:
            _check_tensors(file)
    if device is None and not available_accelerators():
        device = "cpu"  # the files may be of a machine that has one
    place = None if device is None else torch.device(device)
    try:
        return backend.restore_predictor(
            predictor_class.deserialize(folder, device=place)
        )
    except Exception as error:  # a class may raise anything if its arguments are wrong
        raise DamagedPredictorError(
            f"the predictor in {folder} cannot be created from its files "
            f"({cause(error)}). Load it with the versions of GluonTS and of this package "
            f"that wrote it, or {WRITE_AGAIN}"
        ) from error


def _check_folder(folder: Path) -> None:
    """Raise if there is no predictor in a folder."""
    if not folder.is_dir():
        found = "is a file" if folder.is_file() else "does not exist"
        raise PredictorError(
            f"{str(folder)!r} {found}; expected the folder to which "
            "predictor.serialize(folder) wrote."
        )
    if not any((folder / name).exists() for name in (*TYPE_FILES, *STATE_FILES)):
        found = "contains no predictor"
        if (folder / "last.ckpt").exists():
            found += ", but the checkpoint of a run, which resume=True continues"
        raise PredictorError(
            f"{str(folder)!r} {found}; expected the folder to which "
            "predictor.serialize(folder) wrote."
        )


def _predictor_class(folder: Path, trusted: tuple[str, ...]) -> Any:
    """Return the predictor's class, from the type file of either version."""
    new, old = (folder / name for name in TYPE_FILES)
    if new.exists():
        file, name = new, _read(new, lambda text: json.loads(text)["type"])
    else:
        file, name = old, _read(old, str.strip)
    found = _resolve("type", name, file, trusted)
    base = Predictor if _is_within(name, trusted) else backend.PREDICTOR
    if not (isinstance(found, type) and issubclass(found, base)):
        raise UnsafePredictorError(
            f"{file} names {quote(name)}, which is not a predictor of a torch model; "
            f"{WRITE_AGAIN}"
        )
    return found


def _read(file: Path, parse: Any) -> Any:
    """Parse a text file, or raise that it is damaged."""
    try:
        return parse(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise DamagedPredictorError(
            f"{file} cannot be read ({cause(error)}): it is missing, truncated, or was "
            f"changed after it was written; {WRITE_AGAIN}"
        ) from error


def _names(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every name that GluonTS would import, after its kind.

    Kinds are "type", "instance" and "stateful".
    """
    if isinstance(tree, dict):
        if "__kind__" in tree:
            yield tree["__kind__"], tree.get("class")
        tree = list(tree.values())
    if isinstance(tree, list):
        for branch in tree:
            yield from _names(branch)


def _is_within(name: str, packages: Sequence[str]) -> bool:
    return any(name.startswith(f"{package}.") for package in packages)


def _resolve(kind: Any, name: Any, file: Path, trusted: tuple[str, ...]) -> Any:
    """Return the object that a name refers to, if the allowlist permits it."""
    if not isinstance(name, str):
        raise DamagedPredictorError(
            f"{file} has {quote(name)} in place of a class name; {WRITE_AGAIN}"
        )
    is_trusted = _is_within(name, trusted)
    if not (is_trusted or name in ALLOWED_NAMES or _is_within(name, ALLOWED_MODULES)):
        raise _refused(name, file)
    try:
        found = locate(name)  # imports modules and follows attributes
    except Exception as error:
        raise PredictorError(
            f"{file} names {name}, which cannot be imported here ({cause(error)}). "
            "Install the packages that it needs."
        ) from error
    if found is None:
        raise PredictorError(
            f"{file} names {name}, which is not installed here. Install the versions of "
            "GluonTS, PyTorchTS and this package that wrote the predictor."
        )
    if name in ALLOWED_NAMES:
        return found
    # A name may lead out of its module: gluonts.torch.util.torch.load
    there = f"{getattr(found, '__module__', '')}.{getattr(found, '__qualname__', '')}"
    if isinstance(found, type):
        is_harmless = kind in ("type", "instance")
    else:
        is_function = isinstance(found, FunctionType)
        is_harmless = (
            is_function and kind == "type" and _is_within(name, FUNCTION_MODULES)
        )
    if there != name or not (is_trusted or is_harmless):
        raise _refused(name, file)
    return found


def _refused(name: str, file: Path) -> UnsafePredictorError:
    package = name.split(".")[0]
    known = {
        *sys.stdlib_module_names,
        *(module.split(".")[0] for module in ALLOWED_MODULES),
        *("numpy", "pandas", "torch"),
    }
    remedy = "No predictor needs it: do not use files from this source."
    if package.isidentifier() and package not in known:
        remedy = f"If that package is your own, pass trusted=({package!r},)."
    return UnsafePredictorError(
        f"{file} names {quote(name)}, which is not part of GluonTS', PyTorchTS' or this "
        f"package's predictors; loading it could run arbitrary code. {remedy}"
    )


def _check_tensors(file: Path) -> None:
    """Raise if a file holds anything but tensors, or is damaged.

    GluonTS relies on torch's default for what may be unpickled, which environment
    variables change.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, about pickles that it refuses
            torch.load(file, map_location="cpu", weights_only=True)
        with zipfile.ZipFile(file) as archive:  # torch does not verify checksums
            broken = archive.testzip()
    except pickle.UnpicklingError as error:
        raise UnsafePredictorError(
            f"{file} holds more than tensors, and loading it could run arbitrary code; "
            f"it was not loaded. If it is your own, {WRITE_AGAIN}"
        ) from error
    except Exception as error:  # for other bytes torch raises many kinds of errors
        raise DamagedPredictorError(
            f"{file} is not a complete file of tensors ({cause(error)}); it was "
            f"truncated, or changed after it was written; {WRITE_AGAIN}"
        ) from error
    if broken is not None:
        raise DamagedPredictorError(
            f"{file} was changed after it was written: the checksum of {broken} is "
            f"wrong; {WRITE_AGAIN}"
        )
