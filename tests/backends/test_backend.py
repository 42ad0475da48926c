"""The interface of backends, and the trainer class that each of them provides."""

from __future__ import annotations

import copy
import inspect
import pickle
import subprocess
import sys

import pytest
from gluonts.core import serde
from helpers.training import quiet_trainer

import pts_scott
from pts_scott.backends import Backend, backend
from pts_scott.errors import UnknownArgumentError
from pts_scott.training import trainer as training


def test_backend_offers_the_whole_interface():
    members = {*Backend.__annotations__, *vars(Backend)}
    names = {name for name in members if not name.startswith("_")}
    assert names >= {"NAME", "ScottTrainer", "make_predictor", "nbeats", "train_model"}
    assert [name for name in sorted(names) if not hasattr(backend, name)] == []
    for name in names:
        expected = vars(Backend).get(name)
        if inspect.isfunction(expected):
            found = inspect.signature(getattr(backend, name)).parameters
            required = list(inspect.signature(expected).parameters)[1:]
            assert list(found)[: len(required) - 1] == required[:-1]


def test_public_trainer_is_that_of_the_backend():
    assert pts_scott.ScottTrainer is backend.ScottTrainer
    assert issubclass(pts_scott.ScottTrainer, training.ScottTrainer)


def test_trainer_of_the_backend_has_the_documented_interface():
    cls = pts_scott.ScottTrainer
    assert cls.__name__ == "ScottTrainer"
    assert cls.__doc__ == training.ScottTrainer.__doc__
    assert inspect.signature(cls) == inspect.signature(training.ScottTrainer)
    assert repr(cls(gamma=0.2)) == "ScottTrainer(gamma=0.2)"
    with pytest.raises(UnknownArgumentError, match="ScottTrainer has no argument 'gama'"):
        cls(gama=0.2)


def test_trainer_survives_copies_pickles_and_json():
    trainer = quiet_trainer(gamma=0.2)
    for again in (
        copy.deepcopy(trainer),
        pickle.loads(pickle.dumps(trainer)),
        serde.load_json(serde.dump_json(trainer)),
    ):
        assert type(again) is pts_scott.ScottTrainer
        assert again.given_arguments == trainer.given_arguments


def test_folder_named_pts_is_not_taken_for_pytorchts(tmp_path):
    (tmp_path / "pts").mkdir()
    code = "from pts_scott.backends import backend; print(backend.NAME)"
    command = [sys.executable, "-W", "ignore", "-c", code]
    run = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == backend.NAME
