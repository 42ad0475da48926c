"""Predictors are read without running code that their files name."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gluonts.dataset.common import ListDataset
from gluonts.model.predictor import Predictor
from helpers.series import wave_entries
from helpers.training import quiet_trainer

import pts_scott
from pts_scott import load_predictor
from pts_scott.backends import backend
from pts_scott.errors import (
    ArgumentError,
    DamagedPredictorError,
    PredictorError,
    UnsafePredictorError,
)
from pts_scott.models.predictors import STATES

GLUONTS = backend.NAME == "gluonts"
TYPE = "gluonts-config.json" if GLUONTS else "type.txt"
NETWORK = "predictor.json" if GLUONTS else "prediction_net.json"
STATE = STATES[0] if GLUONTS else STATES[1]
MODELS = {
    "SimpleFeedForwardEstimator": {"hidden_dimensions": [4]},
    "NBEATSEstimator": {"num_stacks": 2, "widths": [4]},
    "LSTMEstimator": {"hidden_size": 4},
    "VAREstimator": {},
}
MINE = """
import pathlib
import gluonts.transform
from os import system

pathlib.Path({ran!r}).touch()

class Mine(gluonts.transform.Identity):
    pass
"""


def trained(name: str) -> Predictor:
    estimator = getattr(pts_scott, name)(
        freq="h",
        prediction_length=2,
        context_length=6,
        trainer=quiet_trainer(num_batches_per_epoch=2),
        **MODELS[name],
    )
    return estimator.train(wave_entries())


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("predictor")
    trained("VAREstimator").serialize(folder)
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return shutil.copytree(written, tmp_path / "predictor")


class Touch:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


def add(folder: Path, part: dict[str, Any], file: str = NETWORK) -> None:
    """Put an encoded object somewhere deep into a file of a predictor."""
    tree = json.loads((folder / file).read_text())
    tree["kwargs"]["more"] = [{"deep": part}]
    (folder / file).write_text(json.dumps(tree))


def rename(folder: Path, name: str) -> None:
    """Let the predictor be of another class."""
    text = json.dumps({"type": name}) if GLUONTS else name
    (folder / TYPE).write_text(text)


# -- what is right --------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_what_was_written_is_read_again(name, tmp_path):
    predictor = trained(name)
    predictor.serialize(tmp_path)
    again = load_predictor(str(tmp_path), device="cpu")
    expected = Predictor.deserialize(tmp_path)
    assert type(again) is type(expected)
    for key, value in predictor.prediction_net.state_dict().items():
        torch.testing.assert_close(again.prediction_net.state_dict()[key], value)
    if name != "SimpleFeedForwardEstimator":  # whose forecasts are random
        entries = ListDataset(wave_entries(), freq="h" if GLUONTS else "H")
        found, wanted = (next(iter(p.predict(entries))).mean for p in (again, expected))
        np.testing.assert_array_equal(found, wanted)


def test_values_that_files_have_are_allowed(folder):
    for name in ("numpy.float32", "builtins.int", "numpy.int64", "pandas.Timestamp"):
        (folder / "notes.json").write_text(
            json.dumps({"__kind__": "type", "class": name})
        )
        load_predictor(folder)


# -- names ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        *("builtins.eval", "builtins.exec", "builtins.getattr", "builtins.open"),
        *("os.system", "posix.system", "subprocess.Popen", "functools.partial"),
        *("torch.load", "torch.hub.load", "numpy.load", "numpy.fromfile"),
        *("pandas.read_pickle", "pathlib.Path", "importlib.import_module"),
        # Functions and classes of the libraries that are no part of a predictor,
        *("gluonts.model.predictor.ParallelizedPredictor", "gluonts.shell.train.run"),
        *("gluonts.dataset.common.FileDataset", "pts_scott.cli.main"),
        *(
            "pts_scott.training.checkpoint_files.read",
            "pts_scott.models.predictors.load_predictor",
        ),
        # and ways out of the modules that are.
        *("gluonts.torch.model.predictor.torch.load", "gluonts.transform._base.abc.ABC"),
        *("pts_scott.models.networks.torch.load", "pts_scott.models.networks.nn.Module"),
        *("pts_scott.backends.backend", "gluonts.time_feature.lag.np.load"),
        *("gluonts.time_feature._base.__builtins__", "gluonts", "", "..", "a b.c"),
    ],
)
@pytest.mark.parametrize("kind", ["instance", "type", "stateful"])
def test_a_name_that_no_predictor_needs_is_refused(folder, name, kind, tmp_path):
    ran = tmp_path / "ran"
    add(folder, {"__kind__": kind, "class": name, "args": [f"touch {ran}"]})
    with pytest.raises(UnsafePredictorError, match=f"{NETWORK} names"):
        load_predictor(folder)
    assert not ran.exists()


def test_a_function_is_named_but_never_called(folder):
    name = "gluonts.time_feature.lag.get_lags_for_frequency"
    part = {"__kind__": "type", "class": name, "args": ["h"]}
    (folder / "notes.json").write_text(json.dumps(part))
    load_predictor(folder)
    (folder / "notes.json").write_text(json.dumps({**part, "__kind__": "instance"}))
    with pytest.raises(UnsafePredictorError, match="get_lags_for_frequency"):
        load_predictor(folder)


def test_gluonts_alone_would_run_it(folder, tmp_path):
    """What the check is for: with its way out of a module, if not with any name."""
    ran = tmp_path / "ran"
    part = {"__kind__": "instance", "class": "os.system", "args": [f"touch {ran}"]}
    add(folder, part)
    with pytest.raises(Exception, match=r"os\.system|more"):
        Predictor.deserialize(folder)
    assert ran.exists() != GLUONTS  # of which 0.17 refuses this name, and 0.9 does not
    ran.unlink(missing_ok=True)
    with pytest.raises(UnsafePredictorError):
        load_predictor(folder)
    assert not ran.exists()


@pytest.mark.parametrize(
    "name",
    [
        *("os.system", "builtins.object"),
        "gluonts.model.predictor.ParallelizedPredictor",
        *(
            "pts_scott.models.networks.VARNetwork",
            "gluonts.torch.model.predictor.torch.Tensor",
        ),
    ],
)
def test_a_class_that_is_no_predictor_is_refused(folder, name):
    rename(folder, name)
    with pytest.raises(UnsafePredictorError, match=TYPE):
        load_predictor(folder)


@pytest.fixture
def my_package(tmp_path, monkeypatch) -> Path:
    ran = tmp_path / "imported"
    (tmp_path / "my_package.py").write_text(MINE.format(ran=str(ran)))
    monkeypatch.syspath_prepend(tmp_path)
    yield ran
    sys.modules.pop("my_package", None)


def test_ones_own_package_is_imported_if_it_is_trusted(folder, my_package):
    part = {"__kind__": "instance", "class": "my_package.Mine"}
    (folder / "notes.json").write_text(json.dumps(part))
    with pytest.raises(UnsafePredictorError, match=r"trusted=\('my_package',\)"):
        load_predictor(folder)
    assert not my_package.exists()
    load_predictor(folder, trusted=["my_package"])
    assert my_package.exists()
    # Trust ends where the package does.
    for name in ("my_package.system", "my_package.gluonts.core.serde.load_json"):
        (folder / "notes.json").write_text(json.dumps({**part, "class": name}))
        with pytest.raises(UnsafePredictorError, match="No predictor needs|trusted="):
            load_predictor(folder, trusted=["my_package"])


def test_trust_in_one_text_is_a_mistake(folder):
    with pytest.raises(ArgumentError, match=r"trusted=\('my_package',\)"):
        load_predictor(folder, trusted="my_package")


def test_a_class_of_another_version_says_what_to_install(folder):
    add(folder, {"__kind__": "instance", "class": "gluonts.torch.model.gone.Network"})
    with pytest.raises(PredictorError, match="not installed here. Install the versions"):
        load_predictor(folder)


# -- tensors --------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["torch", "pickle", "legacy"])
def test_a_pickle_that_runs_code_is_refused(folder, way, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # GluonTS 0.9 obeys it
    ran, file = tmp_path / "ran", folder / STATE
    state = {**torch.load(file, weights_only=True), "more": Touch(ran)}
    if way == "pickle":
        file.write_bytes(pickle.dumps(state["more"]))
    else:
        torch.save(state, file, _use_new_zipfile_serialization=way == "torch")
    with pytest.raises(UnsafePredictorError, match=f"{STATE} holds more than tensors"):
        load_predictor(folder)
    assert not ran.exists()
    if way == "pickle":
        pickle.loads(file.read_bytes())
    else:
        torch.load(file, weights_only=False)
    assert ran.exists()  # so it was no harmless file


def test_tensors_that_were_changed_are_refused(folder):
    file = folder / STATE
    data = bytearray(file.read_bytes())
    with zipfile.ZipFile(file) as archive:
        name = next(n for n in archive.namelist() if n.endswith("data/0"))
        place = data.find(archive.read(name))
    data[place] ^= 1
    file.write_bytes(data)
    with pytest.raises(DamagedPredictorError, match="changed after it was written"):
        load_predictor(folder)


# -- what is not whole ----------------------------------------------------------------


def test_a_folder_that_is_not_there_or_has_no_predictor_is_named(tmp_path):
    with pytest.raises(PredictorError, match="nothing' is not there; .*serialize"):
        load_predictor(tmp_path / "nothing")
    with pytest.raises(PredictorError, match="has something else, but no predictor"):
        load_predictor(tmp_path)
    (tmp_path / "last.ckpt").write_text("")
    with pytest.raises(PredictorError, match="the checkpoint of a run.*no predictor"):
        load_predictor(tmp_path)
    with pytest.raises(PredictorError, match="last.ckpt' is a file; .*serialize"):
        load_predictor(tmp_path / "last.ckpt")


@pytest.mark.parametrize("file", [TYPE, NETWORK, STATE])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.98, None])
def test_a_file_that_was_cut_off_is_named(folder, file, share):
    path = folder / file
    if share is None:
        path.unlink()
    else:
        data = path.read_bytes()
        path.write_bytes(data[: int(share * len(data))])
    # Half a name is another name; everything else is known to be damage.
    error = PredictorError if file == "type.txt" else DamagedPredictorError
    words = "type.txt" if file == TYPE and share is None else file
    with pytest.raises(error, match=words):
        load_predictor(folder)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "\ud800".encode("utf-8", "surrogatepass"),
        b"\0\xff\xfe",
        '{"__kind__": "instance"}',
        '{"__kind__": "instance", "class": 5}',
        '{"__kind__": ["x"], "class": {"a": 1}}',
        "null",
    ],
)
def test_nonsense_is_refused(folder, text):
    data = text if isinstance(text, bytes) else text.encode()
    (folder / NETWORK).write_bytes(data)
    with pytest.raises(DamagedPredictorError):
        load_predictor(folder)


def test_arguments_that_do_not_fit_are_told(folder):
    tree = json.loads((folder / NETWORK).read_text())
    tree["kwargs"]["prediction_length"] = "many"
    (folder / NETWORK).write_text(json.dumps(tree))
    with pytest.raises(DamagedPredictorError, match="cannot be made from its files"):
        load_predictor(folder)
