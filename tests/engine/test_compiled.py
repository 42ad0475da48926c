"""Compiled whole steps: equal to eager ones, and good neighbours of Lightning."""

from __future__ import annotations

import lightning.pytorch as pl
import pytest
import torch
from helpers.series import wave_windows
from helpers.training import TinyNetwork, quiet_trainer, tiny_network
from torch._dynamo.utils import counters

from pts_scott import ScottTrainer, Stratifier
from pts_scott.engine.update_rules import can_fuse
from pts_scott.method.methods import METHODS

STRATIFIER = Stratifier.periodic(3) * Stratifier.series()


@pytest.fixture
def traced(monkeypatch):
    """Trace steps as for compilation, but run them without the C++ compiler."""
    monkeypatch.setattr("pts_scott.engine.compilation.BACKEND", "aot_eager")
    monkeypatch.setattr("pts_scott.training.compile_policy.has_compiler", lambda: True)


def trainer(**kwargs) -> ScottTrainer:
    settings = {
        "stratifier": STRATIFIER,
        "learning_rate": 0.05,
        "weight_decay": 1e-3,
        "batch_size": 4,
        "anchor_batch_size": 2,
        "inner_steps": 7,
        "gamma": 0.6,
        **kwargs,
    }
    return quiet_trainer(**settings)


def fit(one: ScottTrainer) -> list[torch.Tensor]:
    network = tiny_network()
    one.fit(network, wave_windows())
    return [p.detach() for p in network.parameters()]


def assert_equal_runs(compiled: ScottTrainer, eager: ScottTrainer) -> None:
    # In double precision only the order of sums differs.
    torch.testing.assert_close(fit(compiled), fit(eager), rtol=1e-9, atol=1e-11)
    for name in ("step", "gradients", "anchors"):
        assert compiled.history[name].tolist() == eager.history[name].tolist()
    for name in ("train_loss", "update_norm"):
        torch.testing.assert_close(
            torch.tensor(compiled.history[name].to_numpy()),
            torch.tensor(eager.history[name].to_numpy()),
            rtol=1e-9,
            atol=1e-11,
        )


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "adagrad"])
@pytest.mark.parametrize("method", METHODS)
def test_whole_steps_equal_eager_ones(method, optimizer):
    one, other = (
        trainer(method=method, optimizer=optimizer, compile=c) for c in (True, False)
    )
    assert_equal_runs(one, other)
    assert one.compile_seconds > 0
    assert (one.history["compile_seconds"] == one.compile_seconds).all()
    assert (other.history["compile_seconds"] == 0).all()


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize(
    "arguments",
    [
        {"clip_gradient": 0.1},
        {"coefficient": "linear"},
        {"inner_length": "geometric"},
        {"optimizer": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)},
        {"optimizer": torch.optim.RMSprop, "learning_rate": 0.01},
    ],
    ids=["clipped", "linear", "geometric", "momentum", "rmsprop"],
)
def test_options_mean_the_same_compiled(arguments):
    assert_equal_runs(
        trainer(compile=True, **arguments), trainer(compile=False, **arguments)
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", ["scott", "stratified"])
def test_really_compiled_steps_equal_eager_ones(method):
    one, other = (
        trainer(method=method, optimizer="adam", compile=c) for c in (True, False)
    )
    assert_equal_runs(one, other)


class Watching(pl.Callback):
    def __init__(self) -> None:
        self.steps = 0
        self.state: dict = {}

    def on_train_end(self, trainer, pl_module):
        self.steps = trainer.global_step
        self.state = trainer.optimizers[0].state_dict()


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("optimizer", ["adam", "adagrad"])
def test_lightning_sees_the_steps_and_torch_its_own_state(optimizer):
    seen = []
    for compiled in (True, False):
        watching = Watching()
        fit(
            trainer(
                optimizer=optimizer,
                compile=compiled,
                trainer_kwargs={"callbacks": watching, "enable_progress_bar": False},
            )
        )
        assert watching.steps == 20
        seen.append(watching.state)
    fused, eager = seen
    assert fused["state"].keys() == eager["state"].keys()
    for number, state in eager["state"].items():
        assert fused["state"][number].keys() == state.keys()
        torch.testing.assert_close(fused["state"][number], state, rtol=1e-9, atol=1e-11)


class EveryUpdate(pl.Callback):
    calls = 0

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.calls += 1


@pytest.mark.usefixtures("traced")
def test_a_callback_that_watches_updates_is_called_at_each():
    callback = EveryUpdate()
    kwargs = {"callbacks": [callback], "enable_progress_bar": False}
    assert_equal_runs(trainer(compile=True, trainer_kwargs=kwargs), trainer())
    assert callback.calls == 20


class Halving(pl.Callback):
    def on_train_batch_end(self, trainer, pl_module, *_):
        trainer.optimizers[0].param_groups[0]["lr"] *= 0.5


@pytest.mark.usefixtures("traced")
def test_a_new_step_size_is_used_and_compiles_nothing_anew():
    kwargs = {"callbacks": [Halving()], "enable_progress_bar": False}
    one, other = (
        trainer(optimizer="adam", compile=c, coefficient="linear", trainer_kwargs=kwargs)
        for c in (True, False)
    )
    counters.clear()
    assert_equal_runs(one, other)
    assert counters["stats"]["unique_graphs"] == 2  # the anchor, and the inner step


@pytest.mark.usefixtures("traced")
def test_anchors_of_several_passes_compile_a_fixed_number_of_times(monkeypatch):
    monkeypatch.setattr("pts_scott.engine.eager.MAX_PASS", 16)
    counters.clear()
    one = trainer(method="svrg", compile=True, gamma=None, num_batches_per_epoch=40)
    fit(one)
    assert one.history["anchors"].iloc[-1] > 5
    # An anchor's full passes, its last and smaller one, and the inner step.
    assert counters["stats"]["unique_graphs"] <= 3


class Decaying(pl.Callback):
    """Changes options of the optimizer in the second epoch."""

    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == 1:
            group = trainer.optimizers[0].param_groups[0]
            group["weight_decay"], group["betas"] = 0.5, (0.8, 0.99)


@pytest.mark.usefixtures("traced")
def test_options_that_a_callback_changes_are_heard():
    kwargs = {"callbacks": [Decaying()], "enable_progress_bar": False}
    one, other = (
        trainer(optimizer="adam", compile=c, epochs=2, trainer_kwargs=kwargs)
        for c in (True, False)
    )
    assert_equal_runs(one, other)


class ShrinkingTensor(pl.Callback):
    def on_train_batch_end(self, trainer, pl_module, *_):
        trainer.optimizers[0].param_groups[0]["lr"].mul_(0.5)


@pytest.mark.usefixtures("traced")
def test_a_step_size_that_is_a_tensor_may_change():
    def make(compiled):
        return trainer(
            optimizer=lambda p: torch.optim.SGD(p, lr=torch.tensor(0.05)),
            compile=compiled,
            trainer_kwargs={
                "callbacks": [ShrinkingTensor()],
                "enable_progress_bar": False,
            },
        )

    assert_equal_runs(make(True), make(False))


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("method", ["stratified", "svrg"])
def test_steps_of_several_passes_count_once(method, monkeypatch):
    monkeypatch.setattr(
        "pts_scott.engine.eager.MAX_PASS", 9
    )  # half of 9 strata x 2 windows
    watching = Watching()
    kwargs = {"callbacks": [watching], "enable_progress_bar": False}
    one, other = (
        trainer(method=method, compile=c, trainer_kwargs=kwargs) for c in (True, False)
    )
    counters.clear()
    fit(one)
    before = counters["stats"]["unique_graphs"]
    assert watching.steps == 20
    assert before <= 3
    assert_equal_runs(one, other)


def test_a_network_that_does_not_compile_is_trained_without(monkeypatch):
    def broken(graph, inputs):
        raise AssertionError

    monkeypatch.setattr("pts_scott.engine.compilation.BACKEND", broken)
    monkeypatch.setattr("pts_scott.training.compile_policy.has_compiler", lambda: True)
    failed, eager = trainer(compile=True), trainer()
    with pytest.warns(UserWarning, match="TinyNetwork could not be compiled.*"):
        compiled = fit(failed)
    torch.testing.assert_close(compiled, fit(eager), rtol=0, atol=0)
    assert failed.history["gradients"].tolist() == eager.history["gradients"].tolist()


def test_what_cannot_be_fused_is_known():
    parameters = tuple(torch.nn.Parameter(torch.ones(n)) for n in (1, 2))

    def fuses(optimizer):
        return can_fuse(optimizer, parameters)

    assert fuses(torch.optim.Adam(parameters, fused=True))
    assert fuses(torch.optim.SGD(parameters, lr=0.1, weight_decay=0.1))
    assert fuses(torch.optim.Adagrad(parameters, lr_decay=0.1))
    assert not fuses(torch.optim.Adam(parameters, amsgrad=True))
    decoupled = torch.optim.Adam(parameters)
    decoupled.param_groups[0]["decoupled_weight_decay"] = True  # an argument from 2.7 on
    assert not fuses(decoupled)
    assert fuses(torch.optim.AdamW(parameters))
    assert not fuses(torch.optim.SGD(parameters, lr=0.1, momentum=0.9))
    assert not fuses(torch.optim.SGD(parameters, lr=0.1, maximize=True))
    assert not fuses(torch.optim.SGD(parameters[:1], lr=0.1))
    assert not fuses(torch.optim.SGD([{"params": [p]} for p in parameters], lr=0.1))
    watched = torch.optim.SGD(parameters, lr=0.1)
    watched.register_step_post_hook(lambda *_: None)
    assert not fuses(watched)
    uneven = torch.optim.Adagrad(parameters)
    uneven.state[parameters[0]]["step"] += 1
    assert not fuses(uneven)


class Spoiled(TinyNetwork):
    """Not finite in one step, compiled or not: on windows with a rare value."""

    limit = 2.9

    def loss(self, past_target, future_target):
        bad = past_target[:, -1] > self.limit
        return torch.where(bad, torch.nan, super().loss(past_target, future_target))


@pytest.mark.usefixtures("traced")
@pytest.mark.filterwarnings("ignore::pts_scott.errors.FaultWarning")
@pytest.mark.parametrize("optimizer", ["adam", "adagrad"])
def test_a_fault_in_a_step_of_several_passes_does_not_reset_the_optimizer(
    optimizer, monkeypatch
):
    monkeypatch.setattr("pts_scott.engine.eager.MAX_PASS", 3)  # a step has 4 windows
    counts = {}
    for compiled in (True, False):
        watching = Watching()
        kwargs = {"callbacks": [watching], "enable_progress_bar": False}
        one = trainer(
            method="plain",
            optimizer=optimizer,
            compile=compiled,
            skip_limit=99,
            num_batches_per_epoch=60,
            trainer_kwargs=kwargs,
        )
        one.fit(Spoiled().double(), wave_windows())
        skipped = int(one.history["skipped"].iloc[-1])
        assert skipped > 0
        steps = [float(own["step"]) for own in watching.state["state"].values()]
        counts[compiled] = {*steps}
        assert counts[compiled] == {60.0 - skipped}
