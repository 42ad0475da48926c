"""Predictors, read from their folder without running code that the files name.

GluonTS' ``Predictor.deserialize`` imports and calls what type file and JSON files say,
so that a folder from elsewhere can run anything. Here every name is looked at before
anything is imported, and tensors are read as tensors only; then GluonTS reads.
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

# Where that of which predictors are made is defined: networks, distributions,
# transformations and features. Making one of these classes computes, and no more.
MODULES = (
    *("gluonts.model.forecast_generator", "gluonts.time_feature"),
    *("gluonts.torch", "gluonts.transform"),
    *("pts.feature", "pts.model", "pts.modules"),
    *("pts_scott.models.networks", "pts_scott.backends"),
)
FUNCTIONS = ("gluonts.time_feature",)  # which are named, and never called, by a file
VALUES = {
    *(f"builtins.{name}" for name in ("bool", "float", "int", "str")),
    *(f"builtins.{name}" for name in ("dict", "frozenset", "list", "set", "tuple")),
    *(f"numpy.float{bits}" for bits in (16, 32, 64)),
    *(f"numpy.{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *("numpy.array", "numpy.bool", "numpy.bool_", "numpy.datetime64", "numpy.dtype"),
    *("pandas.Period", "pandas.Timestamp", "pandas.tseries.frequencies.to_offset"),
    *(
        "pts_scott.models.with_scott.SavedEstimator",
        "pts_scott.training.trainer.ScottTrainer",
    ),
}
TYPES = ("gluonts-config.json", "type.txt")  # by either version, as below
STATES = ("prediction-net-state.pt", "prediction_net_state")  # by either version
AGAIN = "write it again with predictor.serialize(folder)."


def load_predictor(
    path: str | Path,
    device: str | torch.device | None = None,
    *,
    trusted: Sequence[str] = (),
) -> Predictor:
    """Read a predictor from its folder; nothing in it can run code of its own.

    Parameters
    ----------
    path
        The folder to which ``predictor.serialize`` wrote.
    device
        Where the predictor computes; None for what its files say, or the CPU.
    trusted
        Packages of yours whose classes the files may name, e.g. ``("my_package",)``.
        They are imported. What GluonTS, PyTorchTS and this package need is known.

    Returns
    -------
    Predictor
        As GluonTS' ``Predictor.deserialize`` gives it.

    Raises
    ------
    PredictorError
        If there is no such folder, or a class that it names is not installed.
    DamagedPredictorError
        If a file is not whole.
    UnsafePredictorError
        If a file names anything but the parts of a predictor, or holds anything but
        tensors.

    Examples
    --------
    >>> predictor = load_predictor("results/train/small/runs/SGD-seed0/predictor")
    >>> forecasts = list(predictor.predict(dataset))
    """
    if isinstance(trusted, str):
        raise ArgumentError(
            f"trusted={trusted!r}: expected names of packages, trusted=({trusted!r},)."
        )
    folder = Path(path)
    if not folder.is_dir():
        found = "is a file" if folder.is_file() else "is not there"
        raise PredictorError(
            f"{str(folder)!r} {found}; give the folder to which "
            "predictor.serialize(folder) wrote."
        )
    if not any((folder / name).exists() for name in (*TYPES, *STATES)):
        checkpoint = (folder / "last.ckpt").exists()
        found = "the checkpoint of a run, which trains on with resume=True,"
        raise PredictorError(
            f"{str(folder)!r} has {found if checkpoint else 'something else, but'} no "
            "predictor; give the folder to which predictor.serialize(folder) wrote."
        )
    kind = _class_of(folder, tuple(trusted))
    for file in sorted(folder.iterdir()):
        if file.suffix.lower() == ".json":
            for use, name in _read(file, lambda text: list(_names(json.loads(text)))):
                _check(use, name, file, tuple(trusted))
        elif file.name.lower() in STATES:
            _check_tensors(file)
    place = None if device is None else torch.device(device)
    try:
        return backend.made_whole(kind.deserialize(folder, device=place))
    except Exception as error:  # whatever its own classes say to arguments of a file
        raise DamagedPredictorError(
            f"the predictor in {folder} cannot be made from its files ({cause(error)}). "
            "Read it with the versions of GluonTS and of this package that wrote it, or "
            f"{AGAIN}"
        ) from error


def _class_of(folder: Path, trusted: tuple[str, ...]) -> Any:
    """The predictor's class, from the file that names it, by either version."""
    new, old = (folder / name for name in TYPES)
    if new.exists():
        file, name = new, _read(new, lambda text: json.loads(text)["type"])
    else:
        file, name = old, _read(old, str.strip)
    found = _check("type", name, file, trusted)
    base = backend.PyTorchPredictor  # type: ignore[attr-defined]
    if _within(name, trusted):
        base = Predictor
    if not (isinstance(found, type) and issubclass(found, base)):
        raise UnsafePredictorError(
            f"{file} names {quote(name)}, which is no predictor of a torch model; {AGAIN}"
        )
    return found


def _read(file: Path, parse: Any) -> Any:
    """What a text file says, or that it is not whole."""
    try:
        return parse(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise DamagedPredictorError(
            f"{file} cannot be read ({cause(error)}): it is not there, or was cut off or "
            f"changed after it was written; {AGAIN}"
        ) from error


def _names(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Whatever GluonTS would import, and what for: "type", "instance" or "stateful"."""
    if isinstance(tree, dict):
        if "__kind__" in tree:
            yield tree["__kind__"], tree.get("class")
        tree = list(tree.values())
    if isinstance(tree, list):
        for branch in tree:
            yield from _names(branch)


def _within(name: str, packages: Sequence[str]) -> bool:
    return any(name.startswith(f"{package}.") for package in packages)


def _check(use: Any, name: Any, file: Path, trusted: tuple[str, ...]) -> Any:
    """What a name stands for; an error if a predictor has no need of it."""
    if not isinstance(name, str):
        raise DamagedPredictorError(f"{file} names no class: {quote(name)}; {AGAIN}")
    mine = _within(name, trusted)
    if not (mine or name in VALUES or _within(name, MODULES)):
        raise _refused(name, file)
    try:
        found = locate(name)  # it imports, and follows attributes
    except Exception as error:
        raise PredictorError(
            f"{file} names {name}, which cannot be imported here ({cause(error)}). "
            "Install what it needs."
        ) from error
    if found is None:
        raise PredictorError(
            f"{file} names {name}, which is not installed here. Install the versions of "
            "GluonTS, PyTorchTS and this package with which the predictor was written."
        )
    if name in VALUES:
        return found
    # A name may lead out of its module: gluonts.torch.util.torch.load
    there = f"{getattr(found, '__module__', '')}.{getattr(found, '__qualname__', '')}"
    function = use == "type" and _within(name, FUNCTIONS)
    harmless = isinstance(found, type) or (function and isinstance(found, FunctionType))
    if there != name or not (mine or (harmless and use in ("type", "instance"))):
        raise _refused(name, file)
    return found


def _refused(name: str, file: Path) -> UnsafePredictorError:
    package = name.split(".")[0]
    known = {*sys.stdlib_module_names, *(module.split(".")[0] for module in MODULES)}
    remedy = "No predictor needs it: do not use what comes from there."
    if package.isidentifier() and package not in {*known, "numpy", "pandas", "torch"}:
        remedy = f"If that package is yours, pass trusted=({package!r},)."
    return UnsafePredictorError(
        f"{file} names {quote(name)}, which is no part of GluonTS', PyTorchTS' or this "
        f"package's predictors, and reading it could run someone else's code. {remedy}"
    )


def _check_tensors(file: Path) -> None:
    """Refuse what is not tensors alone.

    GluonTS leaves it to torch's default whether anything else may be unpickled, and
    environment variables change that. What is read here holds nothing else.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, about pickles that it refuses
            torch.load(file, map_location="cpu", weights_only=True)
        with zipfile.ZipFile(file) as archive:  # check sums, which torch leaves alone
            broken = archive.testzip()
    except pickle.UnpicklingError as error:
        raise UnsafePredictorError(
            f"{file} holds more than tensors, and reading it could run someone else's "
            f"code; it is not read. If it is yours, {AGAIN}"
        ) from error
    except Exception as error:  # of bytes that are no such file, torch says many things
        raise DamagedPredictorError(
            f"{file} is not a whole file of tensors ({cause(error)}); it was cut off or "
            f"changed after it was written; {AGAIN}"
        ) from error
    if broken is not None:
        raise DamagedPredictorError(
            f"{file} was changed after it was written: {broken} is not as it was; {AGAIN}"
        )
