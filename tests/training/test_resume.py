"""Resuming: an interrupted run ends exactly as an uninterrupted one."""

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
from helpers.runs import CrashAt, DropoutNetwork, assert_identical, run
from helpers.training import QUIET, tiny_network
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn

from pts_scott import Stratifier
from pts_scott.errors import CheckpointMismatchError, ScottWarning
from pts_scott.method.methods import METHODS
from pts_scott.strata.learned import tree_class
from pts_scott.training.checkpoint_files import read, write
from pts_scott.training.run_state import KEY

OPTIMIZERS = ("sgd", "adam", "adagrad")

# -- another device -----------------------------------------------------------------


def test_checkpoint_of_another_kind_of_device_is_resumed_with_a_warning(tmp_path):
    """Dropout goes on with other random numbers; the windows are the same."""
    run(tmp_path, 20, network=DropoutNetwork())
    path = tmp_path / "last.ckpt"
    checkpoint = read(path)
    for state in checkpoint[KEY]["random"]:
        state["device"] = torch.zeros(16, dtype=torch.uint8)  # as of CUDA
    write(checkpoint, path)
    with pytest.warns(ScottWarning, match="written on another kind of device"):
        _, trainer = run(tmp_path, network=DropoutNetwork())
    assert trainer.history["step"].iloc[-1] >= 54


# -- exact resume -------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("method", METHODS)
def test_resumed_run_equals_an_uninterrupted_one(method, optimizer, tmp_path):
    settings = {"method": method, "optimizer": optimizer}
    whole = run(**settings)
    for crash in (3, 18, 30, 53):  # in the first epoch, at its end, later, almost done
        folder = tmp_path / str(crash)
        run(folder, crash, **settings)
        assert_identical(run(folder, **settings), whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "optimizer"), [("scott", "adam"), ("plain", "sgd"), ("svrg", "adagrad")]
)
def test_compiled_run_is_resumed_exactly(method, optimizer, tmp_path):
    settings = {"method": method, "optimizer": optimizer, "compile": True}
    whole = run(**settings)
    run(tmp_path, 30, **settings)
    assert_identical(run(tmp_path, **settings), whole)


@pytest.mark.long
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("method", METHODS)
def test_every_compiled_run_is_resumed_exactly(method, optimizer, tmp_path):
    settings = {"method": method, "optimizer": optimizer, "compile": True}
    whole = run(**settings)
    run(tmp_path, 30, **settings)
    assert_identical(run(tmp_path, **settings), whole)


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
def test_resume_is_exact_with_every_setting(settings, tmp_path):
    whole = run(**settings)
    for crash in (10, 33):
        run(tmp_path / str(crash), crash, **settings)
        assert_identical(run(tmp_path / str(crash), **settings), whole)


def test_dropout_and_running_buffers_are_resumed_exactly(tmp_path):
    whole = run(network=DropoutNetwork())
    run(tmp_path, 30, network=DropoutNetwork())
    assert_identical(run(tmp_path, network=DropoutNetwork()), whole)


def test_callbacks_are_resumed_with_the_run(tmp_path):
    def stop() -> list[pl.Callback]:
        return [EarlyStopping(monitor="val_loss", patience=3, min_delta=1e9)]

    settings: dict[str, Any] = {"epochs": 9}
    whole = run(callbacks=stop(), **settings)
    run(tmp_path, 40, callbacks=stop(), **settings)
    assert_identical(run(tmp_path, callbacks=stop(), **settings), whole)
    assert whole[1].history["epoch"].max() == 3


@pytest.mark.slow
def test_crash_in_every_outer_loop_changes_nothing(tmp_path):
    whole = run()
    for crash in range(1, 54, 2):
        run(tmp_path, crash)
    assert_identical(run(tmp_path), whole)


def test_validation_every_few_outer_loops_is_resumed_exactly(tmp_path):
    kwargs = {"check_val_every_n_epoch": None, "val_check_interval": 3}
    settings = {"output": "best", "gamma": None}

    def validated_run(
        folder: Path | None, crash: float = math.inf
    ) -> tuple[nn.Module, Any]:
        callbacks = {"callbacks": [CrashAt(crash)]}
        return run(
            folder, crash, trainer_kwargs={**QUIET, **kwargs, **callbacks}, **settings
        )

    whole = validated_run(None)
    assert whole[1].history["val_loss"].notna().sum() == 3
    for crash in (10, 30):
        validated_run(tmp_path / str(crash), crash)
        assert_identical(validated_run(tmp_path / str(crash)), whole)


# -- faults -------------------------------------------------------------------------


class FailingNetwork(nn.Module):
    """A network that is non-finite in every ninth call, and always after the 40th."""

    def __init__(self, fails: bool = True) -> None:
        super().__init__()
        self.network, self.fails = tiny_network(), fails
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def loss(self, past_target, future_target):
        losses = self.network.loss(past_target, future_target)
        if not self.training or not self.fails:
            return losses
        self.calls = self.calls + 1
        bad = int(self.calls) % 9 == 0 or int(self.calls) > 40
        return losses * (torch.nan if bad else 1.0)


@pytest.mark.filterwarnings("ignore::pts_scott.errors.FaultWarning")
@pytest.mark.parametrize("method", ["scott", "plain"])
def test_fault_counts_continue_after_a_crash(method, tmp_path):
    settings: dict[str, Any] = {"method": method, "skip_limit": 8, "inner_steps": 3}
    settings |= {"gamma": None, "batch_size": 4}
    whole = run(network=FailingNetwork(), **settings)
    assert whole[1].gave_up
    history = whole[1].history
    faulty = history["step"][history["skipped"] > 0]
    for crash in faulty.iloc[[0, -3]]:
        run(tmp_path / str(crash), crash, network=FailingNetwork(), **settings)
        again = run(tmp_path / str(crash), network=FailingNetwork(), **settings)
        assert_identical(again, whole)
        assert again[1].gave_up


@pytest.mark.filterwarnings("ignore::pts_scott.errors.FaultWarning")
def test_run_that_gave_up_is_retried_with_a_larger_budget(tmp_path):
    settings: dict[str, Any] = {"skip_limit": 2, "inner_steps": 3, "gamma": None}
    _, first = run(tmp_path, network=FailingNetwork(), epochs=4, **settings)
    assert first.gave_up
    _, second = run(tmp_path, network=FailingNetwork(fails=False), epochs=5, **settings)
    assert not second.gave_up
    assert second.history["step"].iloc[-1] == 90


@pytest.mark.filterwarnings("ignore:.*training diverges:pts_scott.errors.ScottWarning")
def test_divergence_state_is_resumed(tmp_path):
    settings = {"learning_rate": 3.0, "inner_steps": 1, "method": "plain", "epochs": 1}
    run(tmp_path, 14, **settings)
    assert read(tmp_path / "last.ckpt")[KEY]["faults"]["first_loss"] < 100
    run(tmp_path / "whole", **settings)
    expected = read(tmp_path / "whole" / "last.ckpt")[KEY]["faults"]
    run(tmp_path, **settings)
    assert read(tmp_path / "last.ckpt")[KEY]["faults"] == expected


# -- finished runs and larger budgets -----------------------------------------------


def test_resumed_run_is_not_marked_finished_before_its_end(tmp_path):
    run(tmp_path, epochs=1)
    run(tmp_path, crash=30, epochs=3)
    assert not read(tmp_path / "last.ckpt")[KEY]["finished"]
    _, trainer = run(tmp_path, epochs=3)
    assert trainer.history["step"].iloc[-1] == 54


def test_run_whose_budget_is_used_up_makes_no_step(tmp_path):
    first = run(tmp_path, crash=40)
    for epochs in (1, 2):
        _, trainer = run(tmp_path, crash=0, epochs=epochs)  # a step would crash
        steps = trainer.history["step"].iloc[-1]
        assert 18 * epochs <= steps <= first[1].history["step"].iloc[-1]


def test_finished_run_is_loaded_and_not_trained_again(tmp_path):
    first = run(tmp_path, output="best")
    again = run(tmp_path, crash=0, output="best")  # a step would crash
    assert_identical(first, again)
    assert again[1].report() == first[1].report() != ""


def test_finished_run_continues_with_a_larger_budget(tmp_path):
    """Exactly for independent steps; the last outer loop of SCott was cut short."""
    run(tmp_path / "plain", epochs=2, method="plain")
    longer = run(tmp_path / "plain", epochs=3, method="plain")
    assert_identical(longer, run(epochs=3, method="plain"))
    run(tmp_path / "scott", epochs=2)
    _, trainer = run(tmp_path / "scott", epochs=3)
    assert trainer.history["step"].iloc[-1] == 54
    assert trainer.history["step"].is_monotonic_increasing


def test_without_resume_a_run_starts_from_the_beginning(tmp_path):
    run(tmp_path, 30)
    with pytest.warns(ScottWarning, match="which this one will replace.*resume=True"):
        again = run(tmp_path, resume=False)
    assert_identical(again, run())


def test_time_before_the_crash_counts_against_the_budget(tmp_path, ticking_time):
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
    assert abs(steps[0] - steps[1]) <= 7, "equal up to one outer loop"


# -- files of callbacks -------------------------------------------------------------


def test_callback_file_from_the_middle_of_an_epoch_is_refused(tmp_path):
    files = ModelCheckpoint(dirpath=tmp_path / "own", save_weights_only=False)
    run(callbacks=[files])
    os.replace(files.best_model_path, tmp_path / "last.ckpt")
    with pytest.raises(CheckpointMismatchError, match="in the middle of an epoch"):
        run(tmp_path)


def redirect_model_checkpoint(folder: Path, name: str, path: Path) -> None:
    """Let the state of a ModelCheckpoint in the folder's checkpoint name another file."""
    file = folder / "last.ckpt"
    checkpoint = torch.load(file, weights_only=True)
    (state,) = (s for k, s in checkpoint["callbacks"].items() if "ModelCheckpoint" in k)
    state[name] = str(path)
    state["best_k_models"] = {str(path): torch.tensor(99.0)}
    torch.save(checkpoint, file)


NOT_EMPTY = "ignore:Checkpoint directory .* exists and is not empty:UserWarning"


@pytest.mark.filterwarnings(NOT_EMPTY)
@pytest.mark.parametrize("relative", [True, False])
def test_tampered_checkpoint_deletes_no_file_elsewhere(tmp_path, relative):
    own, victim = tmp_path / "own", tmp_path / "precious.ckpt"
    victim.write_text("mine")

    def best() -> ModelCheckpoint:
        return ModelCheckpoint(dirpath=own, monitor="val_loss", save_top_k=1)

    run(tmp_path / "run", 20, callbacks=[best()])
    path = own / ".." / victim.name if relative else victim
    redirect_model_checkpoint(tmp_path / "run", "kth_best_model_path", path)
    redirect_model_checkpoint(tmp_path / "run", "best_model_path", path)
    refusal = (
        pytest.warns(ScottWarning, match="left alone") if relative else nullcontext()
    )
    with refusal:  # of an absolute path, Lightning itself deletes nothing
        run(tmp_path / "run", callbacks=[best()])
    assert victim.read_text() == "mine"
    assert len(list(own.glob("*.ckpt"))) >= 1


@pytest.mark.filterwarnings(NOT_EMPTY)
def test_model_checkpoint_deletes_its_own_files_after_a_resume(tmp_path):
    def best() -> ModelCheckpoint:
        return ModelCheckpoint(dirpath=tmp_path / "own", monitor="val_loss", save_top_k=1)

    run(tmp_path / "run", 25, callbacks=[best()])
    run(tmp_path / "run", callbacks=[best()])
    assert len(list((tmp_path / "own").glob("*.ckpt"))) == 1


# -- killed processes ---------------------------------------------------------------


PAIRS = list(itertools.product(METHODS, OPTIMIZERS))


def kill_at_random(folder: Path, kills: int, seed: int) -> dict[str, int]:
    """Kill runs at random moments and resume them, until each is finished.

    Each attempt runs in a forked child, which starts at once. The runs cycle through all
    methods and optimizers, each in its own folder, and each must end equal to a run that
    was never killed.

    Returns
    -------
    The number of kills, of kills between the first and the last checkpoint ("hits"), and
    of finished runs.
    """
    # What the first run of a process imports, children would import anew each time.
    tree_class()
    run(folder / "first", epochs=1)
    generator = np.random.default_rng(seed)
    seen = {"kills": 0, "hits": 0, "finished": 0}
    while seen["kills"] < kills:
        method, optimizer = PAIRS[(seen["finished"] + seed) % len(PAIRS)]
        settings = {"method": method, "optimizer": optimizer, "epochs": 60}
        place = folder / str(seen["finished"])
        while is_killed(place, settings, float(generator.uniform(0.02, 0.4))):
            seen["kills"] += 1
            path = place / "last.ckpt"
            if path.exists() and not read(path)[KEY]["finished"]:
                seen["hits"] += 1
            if seen["kills"] >= kills:
                break
        assert_identical(run(place, **settings), run(**settings))
        seen["finished"] += 1
    return seen


def is_killed(folder: Path, settings: dict[str, Any], after: float) -> bool:
    """Start a run in a child; return whether it was killed before it finished."""
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
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_runs_survive_twenty_kills(tmp_path):
    seen = kill_at_random(tmp_path, kills=20, seed=0)
    assert seen["kills"] == 20
    assert seen["hits"] > 0, "no kill left a run to resume"


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_runs_survive_five_hundred_kills(tmp_path):
    seen = kill_at_random(tmp_path, kills=500, seed=1)
    print(seen)
    assert seen["hits"] > 250
    assert seen["finished"] >= len(PAIRS), "every method and optimizer was included"


class IdleFirst(nn.Module):
    """A network whose first parameter never has a gradient, so that Adam skips it."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(3, dtype=torch.float64))
        self.network = tiny_network()

    def loss(self, past_target, future_target):
        return self.network.loss(past_target, future_target)


@pytest.mark.slow
def test_compiled_steps_continue_the_count_of_eager_ones(tmp_path):
    adam = {"method": "plain", "optimizer": "adam", "learning_rate": 0.05}
    whole, _ = run(network=IdleFirst(), **adam)
    run(tmp_path, 30, network=IdleFirst(), compile=False, **adam)
    resumed, trainer = run(tmp_path, network=IdleFirst(), compile=True, **adam)
    assert trainer.compiled
    for one, other in zip(resumed.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)
