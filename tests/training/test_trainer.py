"""ScottTrainer.fit: what it returns, its random numbers, and repeated runs."""

from __future__ import annotations

import random

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from helpers.runs import fit_tiny_network, flat_parameters
from helpers.series import wave_windows
from helpers.training import QUIET, TinyNetwork, quiet_trainer, tiny_network
from lightning.pytorch.callbacks import EarlyStopping

from pts_scott import ScottTrainer
from pts_scott.engine.losses import Losses, evaluate
from pts_scott.errors import ArgumentError
from pts_scott.method.methods import METHODS
from pts_scott.method.output import OutputSelector


def test_defaults_are_those_of_a_user_who_knows_nothing_of_the_method():
    trainer = ScottTrainer()
    assert trainer.hyperparameters.method == "auto"
    assert trainer.hyperparameters.allocation is None
    assert trainer.hyperparameters.replacement is True
    assert (trainer.optimizer, trainer.learning_rate) == ("adam", 1e-3)
    assert (trainer.clip_gradient, trainer.output) == (10.0, "auto")
    assert trainer.objective == "windows"
    assert (trainer.history.empty, trainer.strata, trainer.report()) == (True, None, "")


def test_train_loss_falls_on_learnable_data():
    trainer = quiet_trainer(
        optimizer="adam", learning_rate=1e-2, epochs=4, num_batches_per_epoch=100
    )
    fit_tiny_network(trainer)
    losses = trainer.history["train_loss"]
    assert losses.tail(5).mean() < 0.5 * losses.head(2).mean()


# -- inputs -------------------------------------------------------------------------


@pytest.mark.parametrize("network", [TinyNetwork, "network"])
def test_network_must_be_a_module_instance(network):
    with pytest.raises(ArgumentError, match="an instance of torch.nn.Module"):
        quiet_trainer().fit(network, wave_windows())


def test_dataset_instead_of_windows_raises_with_the_remedy():
    with pytest.raises(ArgumentError, match="WindowIndex.from_dataset"):
        quiet_trainer().fit(tiny_network(), [{"start": "2024-01-01", "target": [1.0]}])


# -- output -------------------------------------------------------------------------


def test_best_output_has_the_lowest_validation_loss():
    trainer = quiet_trainer(
        learning_rate=0.2, epochs=12, num_batches_per_epoch=10, output="best"
    )
    network = fit_tiny_network(trainer, validate=True)
    windows = wave_windows()
    final = float(evaluate(Losses(network), windows.last()))
    assert final == pytest.approx(trainer.history["val_loss"].min(), rel=1e-9)


def test_default_output_is_the_best_with_validation_data_and_the_last_without():
    settings = {"learning_rate": 0.2, "epochs": 12, "num_batches_per_epoch": 10}
    found = {
        (output, validates): flat_parameters(
            fit_tiny_network(quiet_trainer(**settings, output=output), validates)
        )
        for output, validates in (
            ("auto", True),
            ("best", True),
            ("auto", False),
            ("last", False),
        )
    }
    assert torch.equal(found["auto", True], found["best", True])
    assert torch.equal(found["auto", False], found["last", False])
    assert not torch.equal(found["auto", True], found["auto", False])


def test_best_output_warns_if_training_ends_before_the_first_validation():
    selector = OutputSelector("best", Losses(tiny_network()), torch.Generator())
    with pytest.warns(UserWarning, match="before the first validation"):
        selector.restore()


def test_best_output_needs_validation_data():
    with pytest.raises(ArgumentError, match="validation data"):
        fit_tiny_network(quiet_trainer(output="best"))


def test_sampled_output_is_one_of_the_snapshots():
    snapshots: list[torch.Tensor] = []

    class RecordSnapshots(pl.Callback):
        def on_train_batch_start(self, trainer, module, *_):
            snapshots.append(flat_parameters(module.losses))

    trainer = quiet_trainer(
        output="sampled",
        inner_steps=4,
        trainer_kwargs={**QUIET, "callbacks": [RecordSnapshots()]},
    )
    network = fit_tiny_network(trainer)
    assert any(torch.equal(flat_parameters(network), s) for s in snapshots[:-1])
    assert not torch.equal(flat_parameters(network), snapshots[-1])


def test_snapshots_are_sampled_in_proportion_to_their_weights():
    generator = torch.Generator().manual_seed(0)
    weights = [1.0, 3.0, 2.0]
    counts = np.zeros(3)
    repeats = 6000
    network = tiny_network()
    value, losses = network.layers[2].bias.data[:1], Losses(network)
    for _ in range(repeats):
        value.fill_(0)
        selector = OutputSelector("sampled", losses, generator)
        for number, weight in enumerate(weights):
            value.fill_(number)
            selector.offer_snapshot(weight)
        selector.restore()
        counts[int(value)] += 1
    expected = np.array(weights) / sum(weights)
    # Five standard errors of a binomial proportion: never exceeded by chance.
    error = np.sqrt(expected * (1 - expected) / repeats)
    assert (abs(counts / repeats - expected) < 5 * error).all()


# -- random numbers -----------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_equal_seeds_give_bitwise_equal_parameters(method):
    torch.manual_seed(1)
    first = fit_tiny_network(quiet_trainer(method=method, seed=5))
    torch.manual_seed(2)
    np.random.seed(3)
    second = fit_tiny_network(quiet_trainer(method=method, seed=5))
    other = fit_tiny_network(quiet_trainer(method=method, seed=6))
    assert torch.equal(flat_parameters(first), flat_parameters(second))
    assert not torch.equal(flat_parameters(first), flat_parameters(other))


def test_global_random_state_is_unchanged_after_training():
    torch.manual_seed(1)
    np.random.seed(2)
    random.seed(3)
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    fit_tiny_network(quiet_trainer(), validate=True)
    assert torch.equal(before[0], torch.get_rng_state())
    assert all(np.array_equal(x, y) for x, y in zip(before[1], np.random.get_state()))
    assert before[2] == random.getstate()


def test_runs_without_a_seed_differ():
    first = fit_tiny_network(quiet_trainer(seed=None))
    second = fit_tiny_network(quiet_trainer(seed=None))
    assert not torch.equal(flat_parameters(first), flat_parameters(second))


# -- optimizers and clipping --------------------------------------------------------


def test_optimizer_factory_is_called_once_and_used():
    made = []

    def factory(params):
        made.append(torch.optim.RMSprop(params, lr=1e-2))
        return made[0]

    network = fit_tiny_network(quiet_trainer(optimizer=factory))
    assert len(made) == 1
    assert not torch.equal(flat_parameters(network), flat_parameters(tiny_network()))


def test_optimizer_factory_must_return_an_optimizer():
    with pytest.raises(ArgumentError, match="returned list"):
        fit_tiny_network(quiet_trainer(optimizer=lambda params: list(params)))


def test_clipping_bounds_every_update():
    clip, rate = 0.01, 0.1
    path = [flat_parameters(tiny_network())]

    def factory(params):
        optimizer = torch.optim.SGD(params, lr=rate)
        optimizer.register_step_post_hook(
            lambda *_: path.append(torch.cat([p.detach().reshape(-1) for p in params]))
        )
        return optimizer

    fit_tiny_network(quiet_trainer(optimizer=factory, clip_gradient=clip))
    lengths = [float((b - a).norm()) for a, b in zip(path, path[1:])]
    assert max(lengths) <= clip * rate * 1.001
    assert len(lengths) == 20


# -- repeated runs ------------------------------------------------------------------


def test_trainer_kwargs_of_the_user_are_not_modified():
    given = {**QUIET, "callbacks": [EarlyStopping("train_loss")]}
    trainer = quiet_trainer(trainer_kwargs=given)
    fit_tiny_network(trainer)
    fit_tiny_network(trainer)
    assert len(given["callbacks"]) == 1
    assert given["enable_progress_bar"] is False


def test_second_run_starts_with_an_empty_history():
    trainer = quiet_trainer()
    fit_tiny_network(trainer)
    first = trainer.history
    fit_tiny_network(trainer)
    assert trainer.history["step"].tolist() == first["step"].tolist()
    assert trainer.history["train_loss"].tolist() == first["train_loss"].tolist()
