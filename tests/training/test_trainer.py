"""ScottTrainer: its arguments, budgets, outputs, history and randomness."""

from __future__ import annotations

import dataclasses
import random
import time
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import pandas as pd
import pytest
import torch
from helpers.series import wave_windows
from helpers.training import QUIET, TinyNetwork, quiet_trainer, tiny_network
from lightning.pytorch.callbacks import (
    BaseFinetuning,
    EarlyStopping,
    LearningRateMonitor,
    ModelCheckpoint,
)
from lightning.pytorch.loggers import CSVLogger
from torch import nn

from pts_scott import ScottTrainer, Stratifier, WindowIndex
from pts_scott.engine.eager import EagerEngine
from pts_scott.engine.gradients import Gradients
from pts_scott.engine.losses import Losses, evaluate
from pts_scott.errors import (
    ArgumentError,
    ModelError,
    ScottError,
    UnknownArgumentError,
)
from pts_scott.method.methods import METHODS
from pts_scott.method.output import OutputSelector
from pts_scott.method.scott import Algorithm
from pts_scott.training import lightning_module
from pts_scott.training.compile_policy import wants_compilation
from pts_scott.training.history import History
from pts_scott.training.trainer_checks import DECIDED_HERE

COLUMNS = [
    "step",
    "outer",
    "epoch",
    "gradients",
    "anchors",
    "seconds",
    "train_loss",
    "val_loss",
    "update_norm",
    "skipped",
    "compile_seconds",
]


def fit(trainer: ScottTrainer, validate: bool = False, **kwargs) -> TinyNetwork:
    network = tiny_network()
    windows = wave_windows()
    trainer.fit(network, windows, windows.last() if validate else None, **kwargs)
    return network


def parameters(network) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in network.parameters()])


# -- history and budgets ------------------------------------------------------------


def test_history_has_the_documented_columns():
    trainer = quiet_trainer(stratifier=Stratifier.series())
    assert trainer.history.columns.tolist() == COLUMNS
    assert trainer.history.empty
    fit(trainer, validate=True)
    history = trainer.history
    assert history.columns.tolist() == COLUMNS
    for column in ("step", "outer", "gradients", "seconds"):
        assert history[column].is_monotonic_increasing
    assert history["train_loss"].notna().all()
    assert history["val_loss"].notna().sum() == 1
    assert (history["update_norm"] > 0).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("gamma", [None, 0.5])
def test_an_epoch_has_the_steps_it_should_have(method, gamma):
    trainer = quiet_trainer(
        method=method, gamma=gamma, epochs=3, num_batches_per_epoch=17, inner_steps=5
    )
    fit(trainer, validate=True)
    history = trainer.history
    assert history["step"].iloc[-1] == 51
    assert history["val_loss"].notna().sum() == 3
    last = history.groupby("epoch")["step"].max()
    # An outer loop is not cut at the end of an epoch, but the next epoch is shorter.
    assert (last.to_numpy() - [17, 34, 51] < 5).all()
    assert (last.to_numpy() >= [17, 34, 51]).all()


@pytest.mark.parametrize("method", METHODS)
def test_a_gradient_budget_is_used_but_never_exceeded(method):
    budget = 1000
    trainer = quiet_trainer(
        method=method, batch_size=4, epochs=None, gradient_budget=budget, inner_steps=5
    )
    fit(trainer)
    used = trainer.history["gradients"].iloc[-1]
    largest = 117 + 8 if method == "svrg" else 48 + 8
    assert budget - largest < used <= budget


def slowed(monkeypatch, owner, name: str, seconds: float) -> list[float]:
    """Make a function slower; returns the pauses that it made."""
    original = getattr(owner, name)
    pauses: list[float] = []

    def slow(*args, **kwargs):
        began = time.perf_counter()
        time.sleep(seconds)
        pauses.append(time.perf_counter() - began)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, slow)
    return pauses


def test_evaluation_is_not_counted_as_training(monkeypatch):
    pauses = slowed(monkeypatch, lightning_module, "evaluate", 1.0)
    trainer = quiet_trainer(method="plain", epochs=3, num_batches_per_epoch=10)
    fit(trainer, validate=True)
    assert len(pauses) == 3
    assert trainer.history["seconds"].iloc[-1] < 1.0, "30 steps of a few milliseconds"


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (WindowIndex, "gather"),
        (WindowIndex, "draw"),
        (Gradients, "weighted"),
        (Gradients, "control_variate"),
        (Algorithm, "_anchor"),
        (EagerEngine, "_update"),
    ],
)
def test_every_part_of_training_is_counted_as_training(monkeypatch, owner, name):
    trainer = quiet_trainer(gamma=None, inner_steps=5)
    windows, network = wave_windows(), tiny_network()

    class SlowFromNow(pl.Callback):
        def on_train_epoch_start(self, *_):  # after the self-check
            self.pauses = slowed(monkeypatch, owner, name, 0.05)

    slow = SlowFromNow()
    trainer.trainer_kwargs = {**QUIET, "callbacks": [slow]}
    trainer.fit(network, windows)
    assert len(slow.pauses) >= 4
    assert trainer.history["seconds"].iloc[-1] >= sum(slow.pauses)


def test_a_time_budget_ends_training():
    trainer = quiet_trainer(method="plain", epochs=None, time_budget=0.5)
    fit(trainer)
    # Up to one outer loop before the end, or a pause of a busy machine after it.
    assert 0.3 < trainer.history["seconds"].iloc[-1] < 5


def test_train_loss_falls_on_what_can_be_learned():
    trainer = quiet_trainer(
        optimizer="adam", learning_rate=1e-2, epochs=4, num_batches_per_epoch=100
    )
    fit(trainer)
    losses = trainer.history["train_loss"]
    assert losses.tail(5).mean() < 0.5 * losses.head(2).mean()


# -- what comes back ----------------------------------------------------------------


def test_best_returns_the_parameters_of_the_lowest_validation_loss():
    trainer = quiet_trainer(
        learning_rate=0.2, epochs=12, num_batches_per_epoch=10, output="best"
    )
    network = fit(trainer, validate=True)
    windows = wave_windows()
    final = float(evaluate(Losses(network), windows.last()))
    assert final == pytest.approx(trainer.history["val_loss"].min(), rel=1e-9)


def test_best_without_a_validation_is_warned_about():
    kept = OutputSelector("best", Losses(tiny_network()), torch.Generator())
    with pytest.warns(UserWarning, match="before the first validation"):
        kept.restore()


def test_best_needs_validation_data():
    with pytest.raises(ArgumentError, match="validation data"):
        fit(quiet_trainer(output="best"))


def test_sampled_returns_a_snapshot():
    snapshots: list[torch.Tensor] = []

    class Watch(pl.Callback):
        def on_train_batch_start(self, trainer, module, *_):
            snapshots.append(parameters(module.losses))

    trainer = quiet_trainer(
        output="sampled", inner_steps=4, trainer_kwargs={**QUIET, "callbacks": [Watch()]}
    )
    network = fit(trainer)
    assert any(torch.equal(parameters(network), s) for s in snapshots[:-1])
    assert not torch.equal(parameters(network), snapshots[-1])


def test_a_snapshot_is_kept_in_proportion_to_its_weight():
    generator = torch.Generator().manual_seed(0)
    weights = [1.0, 3.0, 2.0]
    counts = np.zeros(3)
    repeats = 6000
    network = tiny_network()
    value, losses = network.layers[2].bias.data[:1], Losses(network)
    for _ in range(repeats):
        value.fill_(0)
        kept = OutputSelector("sampled", losses, generator)
        for number, weight in enumerate(weights):
            value.fill_(number)
            kept.offer_snapshot(weight)
        kept.restore()
        counts[int(value)] += 1
    expected = np.array(weights) / sum(weights)
    error = np.sqrt(expected * (1 - expected) / repeats)
    assert (abs(counts / repeats - expected) < 5 * error).all()


# -- randomness ---------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_one_seed_gives_equal_parameters_bit_for_bit(method):
    torch.manual_seed(1)
    first = fit(quiet_trainer(method=method, seed=5))
    torch.manual_seed(2)
    np.random.seed(3)
    second = fit(quiet_trainer(method=method, seed=5))
    other = fit(quiet_trainer(method=method, seed=6))
    assert torch.equal(parameters(first), parameters(second))
    assert not torch.equal(parameters(first), parameters(other))


def test_training_leaves_global_random_state_alone():
    torch.manual_seed(1)
    np.random.seed(2)
    random.seed(3)
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    fit(quiet_trainer(), validate=True)
    assert torch.equal(before[0], torch.get_rng_state())
    assert all(np.array_equal(x, y) for x, y in zip(before[1], np.random.get_state()))
    assert before[2] == random.getstate()


def test_without_a_seed_runs_differ():
    first, second = fit(quiet_trainer(seed=None)), fit(quiet_trainer(seed=None))
    assert not torch.equal(parameters(first), parameters(second))


# -- optimizers, clipping and Lightning ---------------------------------------------


def test_any_torch_optimizer_can_be_used():
    made = []

    def factory(params):
        made.append(torch.optim.RMSprop(params, lr=1e-2))
        return made[0]

    network = fit(quiet_trainer(optimizer=factory))
    assert len(made) == 1
    assert not torch.equal(parameters(network), parameters(tiny_network()))


def test_a_factory_that_returns_something_else_is_refused():
    with pytest.raises(ArgumentError, match="returned list"):
        fit(quiet_trainer(optimizer=lambda params: list(params)))


def test_clipping_bounds_every_update():
    clip, rate = 0.01, 0.1
    path = [parameters(tiny_network())]

    def factory(params):
        optimizer = torch.optim.SGD(params, lr=rate)
        optimizer.register_step_post_hook(
            lambda *_: path.append(torch.cat([p.detach().reshape(-1) for p in params]))
        )
        return optimizer

    fit(quiet_trainer(optimizer=factory, clip_gradient=clip))
    lengths = [float((b - a).norm()) for a, b in zip(path, path[1:])]
    assert max(lengths) <= clip * rate * 1.001
    assert len(lengths) == 20


def test_lightnings_callbacks_and_loggers_work(tmp_path):
    checkpoint = ModelCheckpoint(
        dirpath=tmp_path / "kept", monitor="val_loss", save_top_k=1
    )
    stop = EarlyStopping(monitor="val_loss", patience=1, min_delta=1e9)
    trainer = quiet_trainer(
        epochs=20,
        trainer_kwargs={
            **QUIET,
            "callbacks": [checkpoint, stop],
            "logger": CSVLogger(tmp_path, name="log"),
            "log_every_n_steps": 1,
        },
    )
    fit(trainer, validate=True)
    assert trainer.history["epoch"].max() == 1, "EarlyStopping ended training"
    state = torch.load(checkpoint.best_model_path, weights_only=True)["state_dict"]
    assert any("layers" in name for name in state)
    assert "val_loss" in (tmp_path / "log" / "version_0" / "metrics.csv").read_text()


def test_early_stopping_starts_anew_in_a_second_run():
    stop = EarlyStopping(monitor="val_loss", patience=2, min_delta=1e9)
    trainer = quiet_trainer(epochs=9, trainer_kwargs={**QUIET, "callbacks": stop})
    for _ in range(2):
        fit(trainer, validate=True)
        assert trainer.history["epoch"].max() == 2
        assert stop.stopped_epoch == 2


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_the_best_file_of_a_second_run_is_its_own(tmp_path):
    best = ModelCheckpoint(dirpath=tmp_path, monitor="val_loss")
    trainer = quiet_trainer(epochs=2, trainer_kwargs={**QUIET, "callbacks": best})
    windows = wave_windows()
    for size in (1.0, 100.0):
        series = dataclasses.replace(windows.series, values=size * windows.series.values)
        larger = WindowIndex(series, 6, 2)
        trainer.fit(tiny_network(), larger, larger.last())
        losses = trainer.history["val_loss"]
        assert float(best.best_model_score) == pytest.approx(losses.min())


def test_epochs_within_an_anchors_steps_bring_nothing_to_callbacks():
    """Of 40 epochs of 5 steps, each outer loop makes four: they are one to a watcher."""
    stop = EarlyStopping(monitor="val_loss", patience=2)
    rates = Rates()
    trainer = quiet_trainer(
        learning_rate=0.01,
        epochs=40,
        num_batches_per_epoch=5,
        gamma=None,
        scheduler=lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
        trainer_kwargs={**QUIET, "callbacks": [stop, rates]},
    )
    windows = wave_windows()
    trainer.fit(tiny_network(), windows, windows.last())
    history = trainer.history
    assert history["step"].iloc[-1] > 60, "the loss falls, and nothing ends it"
    assert history["val_loss"].notna().all()
    assert history["epoch"].tolist() == list(range(0, 4 * len(history), 4))
    made = 4 * (len(rates.rates) - 1)
    assert rates.rates[-1] == pytest.approx(0.01 * 0.9**made)


def test_a_users_trainer_kwargs_are_not_changed():
    given = {**QUIET, "callbacks": [EarlyStopping("train_loss")]}
    trainer = quiet_trainer(trainer_kwargs=given)
    fit(trainer)
    fit(trainer)
    assert len(given["callbacks"]) == 1
    assert given["enable_progress_bar"] is False


def test_a_second_run_starts_its_history_anew():
    trainer = quiet_trainer()
    fit(trainer)
    first = trainer.history
    fit(trainer)
    assert trainer.history["step"].tolist() == first["step"].tolist()
    assert trainer.history["train_loss"].tolist() == first["train_loss"].tolist()


def test_an_anchor_smaller_than_a_mini_batch_is_warned_about():
    with pytest.warns(UserWarning, match="1 strata x anchor_batch_size=31 rests"):
        fit(quiet_trainer(stratifier=Stratifier.calendar("year"), anchor_batch_size=31))


def test_an_anchor_without_a_step_is_counted_but_makes_no_row():
    # 3 strata x 16 windows and steps of 2 x 32: the budget ends behind the second anchor.
    trainer = quiet_trainer(gamma=None, inner_steps=1, epochs=None, gradient_budget=112)
    fit(trainer)
    assert trainer.history["train_loss"].notna().all()
    history = History()
    history.extend(gradients=5)
    history.add(step=1, outer=1, epoch=0, anchors=1, gradients=10, train_loss=0.5)
    history.extend(gradients=15)
    assert history.frame()["gradients"].tolist() == [15]


@pytest.mark.parametrize("network", [TinyNetwork, "network"])
def test_what_is_not_a_network_is_refused(network):
    with pytest.raises(ArgumentError, match="an instance of torch.nn.Module"):
        quiet_trainer().fit(network, wave_windows())


def test_a_dataset_in_place_of_windows_is_refused_with_what_to_do():
    with pytest.raises(ArgumentError, match="WindowIndex.from_dataset"):
        quiet_trainer().fit(tiny_network(), [{"start": "2024-01-01", "target": [1.0]}])


@pytest.mark.slow
def test_a_compiled_run_equals_an_eager_one():
    eager = fit(quiet_trainer(compile=False))
    trainer = quiet_trainer(compile=True)
    compiled = fit(trainer)
    assert trainer.compile_seconds > 0
    assert trainer.history["gradients"].iloc[-1] > 0
    # In double precision only the order of sums differs.
    torch.testing.assert_close(
        parameters(compiled), parameters(eager), rtol=1e-8, atol=1e-10
    )


@pytest.mark.parametrize(
    ("arguments", "network", "expected"),
    [
        ({"epochs": 10, "num_batches_per_epoch": 1000}, nn.Linear(6, 2), True),
        ({"epochs": 10, "num_batches_per_epoch": 999}, nn.Linear(6, 2), False),
        ({"epochs": None, "time_budget": 60.0}, nn.Linear(6, 2), True),
        ({"epochs": None, "time_budget": 59.0}, nn.Linear(6, 2), False),
        ({"epochs": None, "gradient_budget": 640_000}, nn.Linear(6, 2), True),
        ({"epochs": None, "gradient_budget": 639_999}, nn.Linear(6, 2), False),
        ({"num_batches_per_epoch": 10_000}, nn.LSTM(6, 2), False),
        ({"num_batches_per_epoch": 10_000}, nn.Linear(2000, 2000), False),
        ({"num_batches_per_epoch": 9_999, "compile": True}, nn.Linear(6, 2), True),
        ({"num_batches_per_epoch": 10_000, "compile": False}, nn.Linear(6, 2), False),
    ],
)
def test_auto_compiles_small_networks_for_long_runs(
    arguments, network, expected, monkeypatch
):
    monkeypatch.setattr("pts_scott.training.compile_policy.has_compiler", lambda: True)
    trainer = quiet_trainer(**{"compile": "auto", **arguments})
    numbers, budget = trainer.hyperparameters, trainer.budget
    found = wants_compilation(trainer.compile, network, wave_windows(), numbers, budget)
    assert found is expected


def test_without_a_compiler_it_says_so_and_stays_eager(monkeypatch):
    monkeypatch.setattr("pts_scott.training.compile_policy.has_compiler", lambda: False)
    with pytest.warns(UserWarning, match="no C\\+\\+ compiler"):
        fit(quiet_trainer(compile=True))


# -- arguments ----------------------------------------------------------------------


def test_an_unknown_argument_names_the_nearest():
    with pytest.raises(UnknownArgumentError, match="'lerning_rate'.*'learning_rate'"):
        ScottTrainer(lerning_rate=0.1)
    with pytest.raises(UnknownArgumentError, match="'lr'. Did you mean 'learning_rate'"):
        ScottTrainer(lr=0.1)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("method", "scot"),
        ("method", None),
        ("optimizer", "adamw2"),
        ("learning_rate", 0.0),
        ("learning_rate", -1.0),
        ("learning_rate", float("nan")),
        ("learning_rate", "fast"),
        ("weight_decay", -1e-5),
        ("stratifier", "weekday"),
        ("batch_size", 0),
        ("batch_size", 1.5),
        ("anchor_batch_size", 0),
        ("inner_steps", -1),
        ("inner_length", "random"),
        ("gamma", -0.1),
        ("gamma", 1.0),
        ("coefficient", 1.5),
        ("coefficient", "quadratic"),
        ("epochs", 0),
        ("epochs", None),
        ("num_batches_per_epoch", True),
        ("time_budget", 0),
        ("gradient_budget", 0),
        ("output", "first"),
        ("clip_gradient", 0.0),
        ("device", "gpux"),
        ("device", "meta"),
        pytest.param(
            "device",
            "cuda",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is here"),
        ),
        ("compile", "maybe"),
        ("seed", -1),
        ("seed", 2**70),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_name(argument, value):
    with pytest.raises(ArgumentError, match=argument) as caught:
        ScottTrainer(**{argument: value})
    assert isinstance(caught.value, ScottError)
    assert isinstance(caught.value, ValueError)


def test_unknown_trainer_kwargs_name_the_nearest():
    with pytest.raises(UnknownArgumentError, match="'callbacks'"):
        ScottTrainer(trainer_kwargs={"callback": []})


def test_several_processes_that_do_not_share_the_work_are_refused():
    kwargs = {**QUIET, "strategy": "ddp_spawn", "devices": 2}
    with pytest.raises(ArgumentError, match="'strategy': 'ddp'"):
        fit(quiet_trainer(trainer_kwargs=kwargs))


def test_a_random_length_is_for_methods_with_an_anchor():
    trainer = quiet_trainer(method="plain", inner_length="geometric", inner_steps=5)
    fit(trainer)
    assert trainer.history["step"].tolist() == [5, 10, 15, 20]


@pytest.mark.parametrize("given", [3, ["callbacks"]])
def test_trainer_kwargs_that_are_no_dict_are_refused(given):
    with pytest.raises(ArgumentError, match="expected a dict"):
        ScottTrainer(trainer_kwargs=given)


def test_an_optimizer_in_place_of_a_factory_is_refused():
    made = torch.optim.SGD(tiny_network().parameters(), lr=0.1)
    with pytest.raises(ArgumentError, match="a function that makes one"):
        ScottTrainer(optimizer=made)


@pytest.mark.parametrize("name", DECIDED_HERE)
def test_what_the_trainer_decides_is_not_taken_from_trainer_kwargs(name):
    with pytest.raises(ArgumentError, match=f"'{name}', which ScottTrainer decides"):
        ScottTrainer(trainer_kwargs={name: 3})


def test_a_gradient_budget_below_one_step_is_refused():
    with pytest.raises(ArgumentError, match="first step .* needs 112 gradients"):
        fit(quiet_trainer(gradient_budget=10, stratifier=Stratifier.series()))


# -- schedulers, and what else of Lightning goes on ------------------------------------


class Rates(pl.Callback):
    """The step size in each epoch."""

    def __init__(self) -> None:
        self.rates: list[float] = []

    def on_train_epoch_end(self, trainer, pl_module):
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])


@pytest.mark.parametrize("compile", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_scheduler_is_stepped_after_each_epoch(compile):
    rates = Rates()
    trainer = quiet_trainer(
        learning_rate=0.1,
        epochs=3,
        compile=compile,
        scheduler=lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.5),
        trainer_kwargs={**QUIET, "callbacks": [rates]},
    )
    trainer.fit(tiny_network(torch.float32), wave_windows(torch.float32))
    # A callback is asked before the module, which steps.
    assert rates.rates == pytest.approx([0.1, 0.05, 0.025])


@pytest.mark.parametrize("validated", [False, True])
def test_a_plateau_is_seen_by_the_right_loss(validated):
    seen = []

    class Plateau(torch.optim.lr_scheduler.ReduceLROnPlateau):
        def step(self, metrics, epoch=None):
            seen.append(float(metrics))
            super().step(metrics, epoch)

    trainer = quiet_trainer(epochs=2, scheduler=Plateau)
    windows = wave_windows()
    trainer.fit(tiny_network(), windows, windows.last() if validated else None)
    history = trainer.history
    last = history.groupby("epoch").last()["train_loss"]
    expected = history["val_loss"].dropna() if validated else last
    assert seen == pytest.approx(expected.tolist())


def test_a_plateau_is_not_seen_in_epochs_without_a_validation():
    rates = Rates()
    trainer = quiet_trainer(
        learning_rate=0.01,
        epochs=10,
        scheduler=lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=2),
        trainer_kwargs={**QUIET, "callbacks": [rates], "check_val_every_n_epoch": 5},
    )
    windows = wave_windows()
    trainer.fit(tiny_network(), windows, windows.last())
    losses = trainer.history["val_loss"].dropna()
    assert len(losses) == 2, "fewer than it waits for"
    assert set(rates.rates) == {0.01}


def test_the_monitor_of_the_step_size_works(tmp_path):
    logger = CSVLogger(tmp_path)
    trainer = quiet_trainer(
        epochs=2,
        scheduler=lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.5),
        trainer_kwargs={
            **QUIET,
            "logger": logger,
            "log_every_n_steps": 1,
            "callbacks": [LearningRateMonitor()],
        },
    )
    trainer.fit(tiny_network(), wave_windows())
    logged = pd.read_csv(Path(logger.log_dir) / "metrics.csv")
    assert logged["lr-SGD"].dropna().nunique() == 2


@pytest.mark.parametrize("given", [3, lambda optimizer: optimizer])
def test_what_is_no_scheduler_is_refused(given):
    with pytest.raises(ArgumentError, match="scheduler"):
        quiet_trainer(scheduler=given).fit(tiny_network(), wave_windows())


class HeadOnly(BaseFinetuning):
    def freeze_before_training(self, pl_module):
        self.freeze(pl_module.losses.network.layers[0])

    def finetune_function(self, pl_module, epoch, optimizer):
        pass


class Toggle(pl.Callback):
    """Freezes a parameter at a moment of its own choice."""

    def __init__(self, hook: str) -> None:
        setattr(self, hook, self.toggle)

    def toggle(self, trainer, pl_module, *_):
        pl_module.losses.network.layers[0].bias.requires_grad_(False)


def test_callbacks_that_freeze_parameters_are_refused_with_the_reason():
    kwargs = {**QUIET, "callbacks": [HeadOnly()]}
    with pytest.raises(ArgumentError, match=r"HeadOnly freezes .* in two runs"):
        quiet_trainer(trainer_kwargs=kwargs)


@pytest.mark.parametrize(
    "hook", ["on_fit_start", "on_train_start", "on_train_epoch_start"]
)
def test_a_parameter_that_is_frozen_during_a_run_is_noticed(hook):
    kwargs = {**QUIET, "callbacks": [Toggle(hook)]}
    with pytest.raises(ModelError, match=r"requires_grad of 'network.layers.0.bias'"):
        fit(quiet_trainer(trainer_kwargs=kwargs))


@pytest.mark.parametrize("kind", ["mps", "xpu"])
def test_an_accelerator_that_torch_has_is_accepted(monkeypatch, kind):
    device = torch.device(kind)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: device)
    known = {"cpu", "cuda", "mps", "xpu"}
    monkeypatch.setattr(
        "pts_scott.training.trainer_checks.AcceleratorRegistry.available_accelerators",
        lambda: known,
    )
    assert ScottTrainer(device=kind).device == device
    known.remove(kind)
    with pytest.raises(ArgumentError, match="Lightning trains on"):
        ScottTrainer(device=kind)
