"""Predictors are loaded without running code that their files name."""

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
from pts_scott.models.predictors import STATE_FILES

GLUONTS = backend.NAME == "gluonts"
TYPE = "gluonts-config.json" if GLUONTS else "type.txt"
NETWORK = "predictor.json" if GLUONTS else "prediction_net.json"
STATE = STATE_FILES[0] if GLUONTS else STATE_FILES[1]
MODELS = {
    "SimpleFeedForwardEstimator": {"hidden_dimensions": [4]},
    "NBEATSEstimator": {"num_stacks": 2, "widths": [4]},
    "LSTMEstimator": {"hidden_size": 4},
    "VAREstimator": {},
}
MY_PACKAGE = """
import pathlib
import gluonts.transform
from os import system

pathlib.Path({ran!r}).touch()

class Custom(gluonts.transform.Identity):
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
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


def insert(folder: Path, part: dict[str, Any], file: str = NETWORK) -> None:
    """Insert an encoded object into a file of a predictor, several levels deep."""
    tree = json.loads((folder / file).read_text())
    tree["kwargs"]["more"] = [{"deep": part}]
    (folder / file).write_text(json.dumps(tree))


def rename_class(folder: Path, name: str) -> None:
    """Replace the name of the predictor's class."""
    text = json.dumps({"type": name}) if GLUONTS else name
    (folder / TYPE).write_text(text)


# -- valid folders --------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_loaded_predictor_equals_the_serialised_one(name, tmp_path):
    predictor = trained(name)
    predictor.serialize(tmp_path)
    again = load_predictor(str(tmp_path), device="cpu")
    expected = Predictor.deserialize(tmp_path)
    assert type(again) is type(expected)
    for key, value in predictor.prediction_net.state_dict().items():
        torch.testing.assert_close(again.prediction_net.state_dict()[key], value)
    if name != "SimpleFeedForwardEstimator":  # its forecasts are random
        entries = ListDataset(wave_entries(), freq="h" if GLUONTS else "H")
        found, wanted = (next(iter(p.predict(entries))).mean for p in (again, expected))
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.skipif(not GLUONTS, reason="PyTorchTS' files name no device")
def test_predictor_of_a_gpu_is_loaded_where_there_is_none(tmp_path):
    estimator = pts_scott.VAREstimator("h", 2, 6, trainer=quiet_trainer(device="cpu"))
    estimator.trainer.device = torch.device("cuda")
    network = estimator.create_network(None)
    estimator.create_predictor(network, None).serialize(tmp_path)
    again = load_predictor(tmp_path)
    for name, value in again.prediction_net.state_dict().items():
        assert torch.equal(value, network.state_dict()[name])


def test_plain_value_types_are_allowed(folder):
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
        # Functions and classes of the libraries that are not part of a predictor,
        *("gluonts.model.predictor.ParallelizedPredictor", "gluonts.shell.train.run"),
        *("gluonts.dataset.common.FileDataset", "pts_scott.cli.main"),
        *(
            "pts_scott.training.checkpoint_files.read",
            "pts_scott.models.predictors.load_predictor",
        ),
        # and paths that lead out of the allowed modules.
        *("gluonts.torch.model.predictor.torch.load", "gluonts.transform._base.abc.ABC"),
        *("pts_scott.models.networks.torch.load", "pts_scott.models.networks.nn.Module"),
        *("pts_scott.backends.backend", "pts_scott.backends.find_spec"),
        *("pts_scott.backends.ScottTrainer", "pts_scott.models.networks.nbeats_network"),
        *("pts_scott.backends.gluonts.train_model", "gluonts.time_feature.lag.np.load"),
        *("gluonts.time_feature._base.__builtins__", "gluonts", "", "..", "a b.c"),
    ],
)
@pytest.mark.parametrize("kind", ["instance", "type", "stateful"])
def test_name_outside_the_allowlist_raises(folder, name, kind, tmp_path):
    ran = tmp_path / "ran"
    insert(folder, {"__kind__": kind, "class": name, "args": [f"touch {ran}"]})
    with pytest.raises(UnsafePredictorError, match=f"{NETWORK} names"):
        load_predictor(folder)
    assert not ran.exists()


def test_function_may_be_referenced_but_not_called(folder):
    name = "gluonts.time_feature.lag.get_lags_for_frequency"
    part = {"__kind__": "type", "class": name, "args": ["h"]}
    (folder / "notes.json").write_text(json.dumps(part))
    load_predictor(folder)
    (folder / "notes.json").write_text(json.dumps({**part, "__kind__": "instance"}))
    with pytest.raises(UnsafePredictorError, match="get_lags_for_frequency"):
        load_predictor(folder)


def test_gluonts_alone_would_run_the_code(folder, tmp_path):
    """Without the allowlist a file of a predictor runs any command on GluonTS 0.9."""
    ran = tmp_path / "ran"
    part = {"__kind__": "instance", "class": "os.system", "args": [f"touch {ran}"]}
    insert(folder, part)
    with pytest.raises(Exception, match=r"os\.system|more"):
        Predictor.deserialize(folder)
    assert ran.exists() != GLUONTS  # GluonTS 0.17 refuses this name, 0.9 does not
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
def test_class_that_is_not_a_predictor_raises(folder, name):
    rename_class(folder, name)
    with pytest.raises(UnsafePredictorError, match=TYPE):
        load_predictor(folder)


@pytest.fixture
def my_package(tmp_path, monkeypatch) -> Path:
    ran = tmp_path / "imported"
    (tmp_path / "my_package.py").write_text(MY_PACKAGE.format(ran=str(ran)))
    monkeypatch.syspath_prepend(tmp_path)
    yield ran
    sys.modules.pop("my_package", None)


def test_own_package_is_imported_only_if_trusted(folder, my_package):
    part = {"__kind__": "instance", "class": "my_package.Custom"}
    (folder / "notes.json").write_text(json.dumps(part))
    with pytest.raises(UnsafePredictorError, match=r"trusted=\('my_package',\)"):
        load_predictor(folder)
    assert not my_package.exists()
    load_predictor(folder, trusted=["my_package"])
    assert my_package.exists()
    # Names that lead out of the package are not trusted.
    for name in ("my_package.system", "my_package.gluonts.core.serde.load_json"):
        (folder / "notes.json").write_text(json.dumps({**part, "class": name}))
        with pytest.raises(UnsafePredictorError, match="No predictor needs|trusted="):
            load_predictor(folder, trusted=["my_package"])


def test_trusted_given_as_a_string_raises(folder):
    with pytest.raises(ArgumentError, match=r"trusted=\('my_package',\)"):
        load_predictor(folder, trusted="my_package")


def test_class_of_another_version_says_what_to_install(folder):
    insert(folder, {"__kind__": "instance", "class": "gluonts.torch.model.gone.Network"})
    with pytest.raises(PredictorError, match="not installed here. Install the versions"):
        load_predictor(folder)


# -- tensors --------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["torch", "pickle", "legacy"])
def test_pickle_that_runs_code_raises(folder, way, tmp_path, monkeypatch):
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
    assert ran.exists()  # the file was not harmless


def test_changed_tensors_raise(folder):
    file = folder / STATE
    data = bytearray(file.read_bytes())
    with zipfile.ZipFile(file) as archive:
        name = next(n for n in archive.namelist() if n.endswith("data/0"))
        place = data.find(archive.read(name))
    data[place] ^= 1
    file.write_bytes(data)
    with pytest.raises(DamagedPredictorError, match="changed after it was written"):
        load_predictor(folder)


# -- missing and damaged files --------------------------------------------------------


def test_folder_without_a_predictor_raises(tmp_path):
    with pytest.raises(PredictorError, match="nothing' does not exist; .*serialize"):
        load_predictor(tmp_path / "nothing")
    with pytest.raises(
        PredictorError, match="contains no predictor; expected the folder"
    ):
        load_predictor(tmp_path)
    (tmp_path / "last.ckpt").write_text("")
    with pytest.raises(PredictorError, match="no predictor, but the checkpoint of a run"):
        load_predictor(tmp_path)
    with pytest.raises(PredictorError, match="last.ckpt' is a file; .*serialize"):
        load_predictor(tmp_path / "last.ckpt")


@pytest.mark.parametrize("file", [TYPE, NETWORK, STATE])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.98, None])
def test_truncated_file_is_named(folder, file, share):
    path = folder / file
    if share is None:
        path.unlink()
    else:
        data = path.read_bytes()
        path.write_bytes(data[: int(share * len(data))])
    # Half of a class name is a different name; all other damage is recognised.
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
def test_malformed_json_raises(folder, text):
    data = text if isinstance(text, bytes) else text.encode()
    (folder / NETWORK).write_bytes(data)
    with pytest.raises(DamagedPredictorError):
        load_predictor(folder)


def test_wrong_constructor_arguments_raise(folder):
    tree = json.loads((folder / NETWORK).read_text())
    tree["kwargs"]["prediction_length"] = "many"
    (folder / NETWORK).write_text(json.dumps(tree))
    with pytest.raises(DamagedPredictorError, match="cannot be created from its files"):
        load_predictor(folder)
