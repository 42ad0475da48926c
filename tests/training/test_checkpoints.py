"""Checkpoints: a run that was interrupted ends as if it had not been."""

from __future__ import annotations

import itertools
import math
import os
import signal
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from helpers.runs import CrashAt, Dropped, assert_same, run
from helpers.training import QUIET, tiny_network
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import nn

from pts_scott import Checkpoints, ScottTrainer, Stratifier
from pts_scott.errors import ArgumentError, CheckpointMismatchError, ScottWarning
from pts_scott.method.methods import METHODS
from pts_scott.training.checkpoint_files import read, write
from pts_scott.training.run_state import KEY

# -- exact resume ----------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad"])
@pytest.mark.parametrize("method", METHODS)
def test_a_run_that_crashed_ends_as_one_that_did_not(method, optimizer, tmp_path):
    settings = {"method": method, "optimizer": optimizer}
    whole = run(**settings)
    for crash in (3, 18, 30, 53):  # in the first epoch, at its end, later, almost done
        folder = tmp_path / str(crash)
        run(folder, crash, **settings)
        assert_same(run(folder, **settings), whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "optimizer"), [("scott", "adam"), ("plain", "sgd"), ("svrg", "adagrad")]
)
def test_compiled_runs_are_resumed_exactly(method, optimizer, tmp_path):
    settings = {"method": method, "optimizer": optimizer, "compile": True}
    whole = run(**settings)
    run(tmp_path, 30, **settings)
    assert_same(run(tmp_path, **settings), whole)


@pytest.mark.long
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad"])
@pytest.mark.parametrize("method", METHODS)
def test_every_compiled_run_is_resumed_exactly(method, optimizer, tmp_path):
    settings = {"method": method, "optimizer": optimizer, "compile": True}
    whole = run(**settings)
    run(tmp_path, 30, **settings)
    assert_same(run(tmp_path, **settings), whole)


def exponential(optimizer):
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)


@pytest.mark.parametrize(
    "settings",
    [
        {"output": "best"},
        {"output": "sampled"},
        {"inner_length": "geometric", "gamma": None},
        {"coefficient": "linear"},
        {"gradient_budget": 700, "epochs": None},
        {"scheduler": exponential, "optimizer": "adam"},
        {"scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau},
        {"optimizer": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.9)},
        {"clip_gradient": 0.1, "stratifier": Stratifier.random(5)},
        {"num_batches_per_epoch": 3, "epochs": 15},  # shorter than an outer loop
    ],
    ids=lambda settings: "-".join(settings),
)
def test_whatever_is_set_is_resumed_exactly(settings, tmp_path):
    whole = run(**settings)
    for crash in (10, 33):
        run(tmp_path / str(crash), crash, **settings)
        assert_same(run(tmp_path / str(crash), **settings), whole)


def test_dropout_and_running_values_are_resumed_exactly(tmp_path):
    whole = run(network=Dropped())
    run(tmp_path, 30, network=Dropped())
    assert_same(run(tmp_path, network=Dropped()), whole)


def test_callbacks_are_resumed_with_the_run(tmp_path):
    def stop() -> list[pl.Callback]:
        return [EarlyStopping(monitor="val_loss", patience=3, min_delta=1e9)]

    settings: dict[str, Any] = {"epochs": 9}
    whole = run(callbacks=stop(), **settings)
    run(tmp_path, 40, callbacks=stop(), **settings)
    assert_same(run(tmp_path, callbacks=stop(), **settings), whole)
    assert whole[1].history["epoch"].max() == 3


def test_a_crash_in_every_outer_loop_changes_nothing(tmp_path):
    whole = run()
    for crash in range(1, 54, 2):
        run(tmp_path, crash)
    assert_same(run(tmp_path), whole)


def test_validation_by_the_number_of_outer_loops_is_resumed_exactly(tmp_path):
    kwargs = {"check_val_every_n_epoch": None, "val_check_interval": 3}
    settings = {"output": "best", "gamma": None}

    def one(folder: Path | None, crash: float = math.inf) -> tuple[nn.Module, Any]:
        callbacks = {"callbacks": [CrashAt(crash)]}
        return run(
            folder, crash, trainer_kwargs={**QUIET, **kwargs, **callbacks}, **settings
        )

    whole = one(None)
    assert whole[1].history["val_loss"].notna().sum() == 3
    for crash in (10, 30):
        one(tmp_path / str(crash), crash)
        assert_same(one(tmp_path / str(crash)), whole)


class Spoiled(nn.Module):
    """A network that fails in some steps, and then for good."""

    def __init__(self) -> None:
        super().__init__()
        self.network = tiny_network()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def loss(self, past_target, future_target):
        losses = self.network.loss(past_target, future_target)
        if not self.training:
            return losses
        self.calls = self.calls + 1
        bad = int(self.calls) % 9 == 0 or int(self.calls) > 40
        return losses * (torch.nan if bad else 1.0)


@pytest.mark.filterwarnings("ignore::pts_scott.errors.FaultWarning")
@pytest.mark.parametrize("method", ["scott", "plain"])
def test_faults_are_counted_on_after_a_crash(method, tmp_path):
    settings: dict[str, Any] = {"method": method, "skip_limit": 8, "inner_steps": 3}
    settings |= {"gamma": None, "batch_size": 4}
    whole = run(network=Spoiled(), **settings)
    assert whole[1].gave_up
    history = whole[1].history
    faulty = history["step"][history["skipped"] > 0]
    for crash in faulty.iloc[[0, -3]]:
        run(tmp_path / str(crash), crash, network=Spoiled(), **settings)
        again = run(tmp_path / str(crash), network=Spoiled(), **settings)
        assert_same(again, whole)
        assert again[1].gave_up


@pytest.mark.filterwarnings("ignore::pts_scott.errors.FaultWarning")
def test_a_run_that_gave_up_is_tried_again_with_a_larger_budget(tmp_path):
    settings: dict[str, Any] = {"skip_limit": 2, "inner_steps": 3, "gamma": None}
    _, first = run(tmp_path, network=Spoiled(), epochs=4, **settings)
    assert first.gave_up
    network = Spoiled()
    type(network).loss, before = TinyLoss.loss, Spoiled.loss
    try:
        _, second = run(tmp_path, network=network, epochs=5, **settings)
    finally:
        Spoiled.loss = before
    assert not second.gave_up
    assert second.history["step"].iloc[-1] == 90


class TinyLoss:
    def loss(self, past_target, future_target):
        return self.network.loss(past_target, future_target)


@pytest.mark.filterwarnings("ignore:.*training diverges:pts_scott.errors.ScottWarning")
def test_divergence_is_not_said_again_after_a_crash(tmp_path):
    settings = {"learning_rate": 3.0, "inner_steps": 1, "method": "plain", "epochs": 1}
    run(tmp_path, 14, **settings)
    assert read(tmp_path / "last.ckpt")[KEY]["faults"]["first_loss"] < 100
    run(tmp_path / "whole", **settings)
    said = read(tmp_path / "whole" / "last.ckpt")[KEY]["faults"]
    run(tmp_path, **settings)
    assert read(tmp_path / "last.ckpt")[KEY]["faults"] == said


def test_a_run_that_goes_on_is_not_finished_meanwhile(tmp_path):
    run(tmp_path, epochs=1)
    run(tmp_path, crash=30, epochs=3)
    assert not read(tmp_path / "last.ckpt")[KEY]["finished"]
    _, trainer = run(tmp_path, epochs=3)
    assert trainer.history["step"].iloc[-1] == 54


def test_a_budget_that_is_used_up_already_ends_at_once(tmp_path):
    first = run(tmp_path, crash=40)
    for epochs in (1, 2):
        _, trainer = run(tmp_path, crash=0, epochs=epochs)  # a step would crash
        steps = trainer.history["step"].iloc[-1]
        assert 18 * epochs <= steps <= first[1].history["step"].iloc[-1]


def test_a_finished_run_is_read_and_not_trained_again(tmp_path):
    first = run(tmp_path, output="best")
    again = run(tmp_path, crash=0, output="best")  # a step would crash
    assert_same(first, again)


def test_a_finished_run_goes_on_with_a_larger_budget(tmp_path):
    """Exactly for steps that nothing ties together; SCott's last anchor was cut short."""
    run(tmp_path / "plain", epochs=2, method="plain")
    longer = run(tmp_path / "plain", epochs=3, method="plain")
    assert_same(longer, run(epochs=3, method="plain"))
    run(tmp_path / "scott", epochs=2)
    _, trainer = run(tmp_path / "scott", epochs=3)
    assert trainer.history["step"].iloc[-1] == 54
    assert trainer.history["step"].is_monotonic_increasing


def test_without_resume_a_run_starts_anew(tmp_path):
    run(tmp_path, 30)
    with pytest.warns(ScottWarning, match="which this one will replace.*resume=True"):
        again = run(tmp_path, resume=False)
    assert_same(again, run())


class Ticking:
    """A clock on which every look takes a millisecond, on any machine."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 0.001
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Ticking:
    """The clock of training and of checkpoints; the disk does not wait for it."""
    ticking = Ticking()
    monkeypatch.setattr("pts_scott.training.clock.time", ticking)
    monkeypatch.setattr("pts_scott.training.checkpoints.time", ticking)
    return ticking


def test_time_that_was_used_counts_against_the_budget(tmp_path, clock):
    settings = {"epochs": None, "time_budget": 0.4, "gamma": None}
    _, whole = run(tmp_path / "whole", **settings)
    run(tmp_path, crash=100, **settings)
    used = read(tmp_path / "last.ckpt")[KEY]["seconds"]
    assert 0.1 < used < 0.3
    _, trainer = run(tmp_path, **settings)
    seconds = trainer.history["seconds"]
    assert seconds.is_monotonic_increasing
    assert used < seconds.iloc[-1] < 0.42
    steps = trainer.history["step"].iloc[-1], whole.history["step"].iloc[-1]
    assert abs(steps[0] - steps[1]) <= 7, "as many as without, up to an outer loop"


# -- when it is written ----------------------------------------------------------------


class Written(pl.Callback):
    """Steps at which the file changed."""

    def __init__(self, path: Path) -> None:
        self.path, self.steps, self.seen = path, [], None

    def on_train_batch_end(self, trainer, pl_module, *_):
        stamp = self.path.stat().st_mtime_ns if self.path.exists() else None
        if stamp != self.seen:
            self.seen = stamp
            self.steps.append(read(self.path)[KEY]["counters"]["steps"])


def test_checkpoints_come_every_so_many_steps(tmp_path):
    written = Written(tmp_path / "last.ckpt")
    checkpoint = Checkpoints(tmp_path, steps=20)
    run(tmp_path, callbacks=[written], checkpoint=checkpoint, gamma=None)
    assert written.steps == [21, 42]
    assert read(written.path)[KEY]["finished"]


def slow_disk(monkeypatch, clock: Ticking, seconds: float) -> None:
    def slow(checkpoint, path, check):
        clock.now += seconds
        write(checkpoint, path, check)

    monkeypatch.setattr("pts_scott.training.checkpoint_files.write", slow)


def test_by_the_clock_they_take_no_more_than_their_share(tmp_path, monkeypatch, clock):
    """However slow the disk is, and however often they are asked for."""
    slow_disk(monkeypatch, clock, 0.01)
    checkpoint = Checkpoints(tmp_path, minutes=0.0)
    settings = {"epochs": None, "time_budget": 2.5, "gamma": None}
    _, trainer = run(tmp_path, checkpoint=checkpoint, **settings)
    written = round(trainer.checkpoint_seconds / 0.011)
    assert written == 1 + 4 + 1, "at once, after fifty times its cost, and at the end"


def test_the_clock_of_training_stands_still_meanwhile(tmp_path, monkeypatch, clock):
    histories = []
    for seconds in (0.0, 5.0):
        slow_disk(monkeypatch, clock, seconds)
        _, trainer = run(tmp_path / str(seconds))
        histories.append(trainer.history["seconds"])
        assert trainer.checkpoint_seconds >= seconds * len(trainer.history)
    np.testing.assert_allclose(histories[0], histories[1], atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"resume": True}, "needs a folder"),
        ({"checkpoint": 3}, "expected a folder"),
        ({"resume": "yes", "checkpoint": "x"}, "True or False"),
        ({"skip_limit": 0}, "skip_limit=0"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        ScottTrainer(**arguments)


def test_callbacks_that_would_write_the_same_files_are_refused(tmp_path):
    with pytest.raises(ArgumentError, match="ModelCheckpoint and checkpoint= write"):
        run(tmp_path, callbacks=[ModelCheckpoint(dirpath=tmp_path, save_last=True)])
    kwargs = {**QUIET, "plugins": [TorchCheckpointIO()]}
    with pytest.raises(ArgumentError, match="another CheckpointIO"):
        run(tmp_path, trainer_kwargs=kwargs)


def test_a_callbacks_file_from_the_midst_of_an_epoch_is_not_gone_on_from(tmp_path):
    files = ModelCheckpoint(dirpath=tmp_path / "own", save_weights_only=False)
    run(callbacks=[files])
    os.replace(files.best_model_path, tmp_path / "last.ckpt")
    with pytest.raises(CheckpointMismatchError, match="in the middle of an epoch"):
        run(tmp_path)


def test_a_file_in_place_of_a_folder_is_refused(tmp_path):
    (tmp_path / "last.ckpt").write_text("")
    with pytest.raises(ArgumentError, match="is a file; give the folder that it is in"):
        ScottTrainer(checkpoint=tmp_path / "last.ckpt")


def test_a_folder_of_the_home_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Checkpoints("~/runs").path == tmp_path / "runs" / "last.ckpt"


@pytest.mark.parametrize(
    "arguments", [{"minutes": -1}, {"steps": 0}, {"on_error": "panic"}, {"folder": 3}]
)
def test_wrong_settings_are_refused(arguments):
    with pytest.raises(ArgumentError):
        Checkpoints(**{"folder": "x", **arguments})


# -- killed at any moment --------------------------------------------------------------


PAIRS = list(itertools.product(METHODS, ("sgd", "adam", "adagrad")))


def kill_at_random(folder: Path, kills: int, seed: int) -> dict[str, int]:
    """Kill runs again and again at random moments, until each of them is finished.

    A child is forked for each attempt, so that it starts at once. Runs take turns through
    all methods and optimizers, each in a folder of its own.

    Returns
    -------
    What was seen: kills, those that hit a run between its first and last checkpoint, and
    runs that were finished, equal to one that was never killed.
    """
    generator = np.random.default_rng(seed)
    seen = {"kills": 0, "hits": 0, "finished": 0}
    while seen["kills"] < kills:
        method, optimizer = PAIRS[(seen["finished"] + seed) % len(PAIRS)]
        settings = {"method": method, "optimizer": optimizer, "epochs": 12}
        place = folder / str(seen["finished"])
        while killed(place, settings, float(generator.uniform(0.02, 0.4))):
            seen["kills"] += 1
            path = place / "last.ckpt"
            if path.exists() and not read(path)[KEY]["finished"]:
                seen["hits"] += 1
            if seen["kills"] >= kills:
                break
        assert_same(run(place, **settings), run(**settings))
        seen["finished"] += 1
    return seen


def killed(folder: Path, settings: dict[str, Any], after: float) -> bool:
    """Whether a run in a process of its own was still going after some seconds."""
    child = os.fork()
    if child == 0:
        os.setsid()
        try:
            run(folder, **settings)
        except BaseException:
            os._exit(1)
        os._exit(0)
    time.sleep(after)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked")
def test_twenty_kills_change_nothing(tmp_path):
    seen = kill_at_random(tmp_path, kills=20, seed=0)
    assert seen["kills"] == 20
    assert seen["hits"] > 0, "none of them left a run to go on with"


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked")
def test_five_hundred_kills_change_nothing(tmp_path):
    seen = kill_at_random(tmp_path, kills=500, seed=1)
    print(seen)
    assert seen["hits"] > 250
    assert seen["finished"] >= len(PAIRS), "every method and optimizer was among them"


def tampered(folder: Path, name: str, path: Path) -> None:
    """Let the state of a ModelCheckpoint in a checkpoint name another file."""
    file = folder / "last.ckpt"
    checkpoint = torch.load(file, weights_only=True)
    (state,) = (s for k, s in checkpoint["callbacks"].items() if "ModelCheckpoint" in k)
    state[name] = str(path)
    state["best_k_models"] = {str(path): torch.tensor(99.0)}
    torch.save(checkpoint, file)


NOT_EMPTY = "ignore:Checkpoint directory .* exists and is not empty:UserWarning"


@pytest.mark.filterwarnings(NOT_EMPTY)
@pytest.mark.parametrize("relative", [True, False])
def test_a_checkpoint_that_was_changed_deletes_no_file_elsewhere(tmp_path, relative):
    own, victim = tmp_path / "own", tmp_path / "precious.ckpt"
    victim.write_text("mine")

    def best() -> ModelCheckpoint:
        return ModelCheckpoint(dirpath=own, monitor="val_loss", save_top_k=1)

    run(tmp_path / "run", 20, callbacks=[best()])
    path = own / ".." / victim.name if relative else victim
    tampered(tmp_path / "run", "kth_best_model_path", path)
    tampered(tmp_path / "run", "best_model_path", path)
    told = pytest.warns(ScottWarning, match="left alone") if relative else nullcontext()
    with told:  # elsewhere, Lightning itself does not delete
        run(tmp_path / "run", callbacks=[best()])
    assert victim.read_text() == "mine"
    assert len(list(own.glob("*.ckpt"))) >= 1


@pytest.mark.filterwarnings(NOT_EMPTY)
def test_a_model_checkpoint_deletes_its_own_files_after_a_resume(tmp_path):
    def best() -> ModelCheckpoint:
        return ModelCheckpoint(dirpath=tmp_path / "own", monitor="val_loss", save_top_k=1)

    run(tmp_path / "run", 25, callbacks=[best()])
    run(tmp_path / "run", callbacks=[best()])
    assert len(list((tmp_path / "own").glob("*.ckpt"))) == 1
