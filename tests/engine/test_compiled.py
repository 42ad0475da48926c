"""Compiled steps equal eager ones, and callbacks and checkpoints see them alike."""

from __future__ import annotations

import lightning.pytorch as pl
import pytest
import torch
from helpers.odd_networks import (
    ExpandedGradient,
    SlicedParameter,
    TiedWeight,
    TransposedGradient,
    TransposedParameter,
    weight,
)
from helpers.series import wave_windows
from helpers.training import (
    QUIET,
    TinyNetwork,
    assert_same_parameters,
    fit_waves,
    quiet_trainer,
    tiny_network,
)
from torch import nn

from pts_scott import ScottTrainer, Stratifier
from pts_scott.errors import ModelError
from pts_scott.method.methods import METHODS

STRATIFIER = Stratifier.periodic(3) * Stratifier.series()


@pytest.fixture(autouse=True)
def _loops_of_equal_length(monkeypatch):
    """Give compiled and eager runs the same outer loops, to compare their histories."""
    monkeypatch.setattr("pts_scott.training.runner.STEPS_TOGETHER", 1)


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
def test_compiled_steps_equal_eager_ones(method, optimizer):
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
def test_options_have_the_same_effect_in_compiled_steps(arguments):
    assert_equal_runs(
        trainer(compile=True, **arguments), trainer(compile=False, **arguments)
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", ["scott", "stratified"])
def test_steps_from_the_cpp_compiler_equal_eager_ones(method):
    one, other = (
        trainer(method=method, optimizer="adam", compile=c) for c in (True, False)
    )
    assert_equal_runs(one, other)


class RecordEnd(pl.Callback):
    """Records Lightning's steps and the optimizer state when training ends."""

    def __init__(self) -> None:
        self.steps = 0
        self.state: dict = {}

    def on_train_end(self, trainer, pl_module):
        self.steps = trainer.global_step
        self.state = trainer.optimizers[0].state_dict()


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("optimizer", ["adam", "adagrad"])
def test_lightning_counts_compiled_steps_and_torch_finds_its_state(optimizer):
    seen = []
    for compiled in (True, False):
        end = RecordEnd()
        fit(
            trainer(
                optimizer=optimizer,
                compile=compiled,
                trainer_kwargs={**QUIET, "callbacks": end},
            )
        )
        assert end.steps == 20
        seen.append(end.state)
    fused, eager = seen
    assert fused["state"].keys() == eager["state"].keys()
    for number, state in eager["state"].items():
        assert fused["state"][number].keys() == state.keys()
        torch.testing.assert_close(fused["state"][number], state, rtol=1e-9, atol=1e-11)


class CountUpdates(pl.Callback):
    calls = 0

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.calls += 1


@pytest.mark.usefixtures("traced")
def test_callback_before_optimizer_steps_is_called_at_each_step():
    callback = CountUpdates()
    kwargs = {**QUIET, "callbacks": [callback]}
    assert_equal_runs(trainer(compile=True, trainer_kwargs=kwargs), trainer())
    assert callback.calls == 20


class Compilations:
    """Counts compiled functions, and runs their graphs uncompiled."""

    count = 0

    def __call__(self, graph, arguments):
        self.count += 1
        return graph


@pytest.fixture
def compilations(monkeypatch, traced):
    counter = Compilations()
    monkeypatch.setattr("pts_scott.engine.compilation.compile_graph", counter)
    return counter


class HalveStepSize(pl.Callback):
    def on_train_batch_end(self, trainer, pl_module, *_):
        trainer.optimizers[0].param_groups[0]["lr"] *= 0.5


@pytest.mark.usefixtures("traced")
def test_new_step_size_is_used_without_recompilation(compilations):
    kwargs = {**QUIET, "callbacks": [HalveStepSize()]}
    one, other = (
        trainer(optimizer="adam", compile=c, coefficient="linear", trainer_kwargs=kwargs)
        for c in (True, False)
    )
    assert_equal_runs(one, other)
    assert compilations.count == 3  # the anchor, the step along it, the inner step


@pytest.mark.usefixtures("traced")
def test_anchors_of_several_passes_compile_a_fixed_number_of_times(
    monkeypatch, compilations
):
    monkeypatch.setattr("pts_scott.engine.eager.MAX_PASS", 16)
    one = trainer(method="svrg", compile=True, gamma=None, num_batches_per_epoch=40)
    fit(one)
    assert one.history["anchors"].iloc[-1] > 5
    # Full passes of an anchor, its last and smaller one, v(t,0), and the inner step.
    assert 0 < compilations.count <= 4


class ChangeOptions(pl.Callback):
    """Changes options of the optimizer in the second epoch."""

    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == 1:
            group = trainer.optimizers[0].param_groups[0]
            group["weight_decay"], group["betas"] = 0.5, (0.8, 0.99)


@pytest.mark.usefixtures("traced")
def test_options_changed_by_a_callback_are_used():
    kwargs = {**QUIET, "callbacks": [ChangeOptions()]}
    one, other = (
        trainer(optimizer="adam", compile=c, epochs=2, trainer_kwargs=kwargs)
        for c in (True, False)
    )
    assert_equal_runs(one, other)


class HalveStepSizeTensor(pl.Callback):
    def on_train_batch_end(self, trainer, pl_module, *_):
        trainer.optimizers[0].param_groups[0]["lr"].mul_(0.5)


@pytest.mark.usefixtures("traced")
def test_step_size_may_be_a_tensor_that_changes():
    def make(compiled):
        return trainer(
            optimizer=lambda p: torch.optim.SGD(p, lr=torch.tensor(0.05)),
            compile=compiled,
            trainer_kwargs={**QUIET, "callbacks": [HalveStepSizeTensor()]},
        )

    assert_equal_runs(make(True), make(False))


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("method", ["stratified", "svrg"])
def test_step_of_several_passes_counts_once(method, monkeypatch, compilations):
    half = 9  # of the windows: 9 strata x 2 windows
    monkeypatch.setattr("pts_scott.engine.eager.MAX_PASS", half)
    end = RecordEnd()
    kwargs = {**QUIET, "callbacks": [end]}
    one, other = (
        trainer(method=method, compile=c, trainer_kwargs=kwargs) for c in (True, False)
    )
    fit(one)
    assert end.steps == 20
    assert 0 < compilations.count <= 4
    assert_equal_runs(one, other)


def test_network_that_does_not_compile_is_trained_eagerly(monkeypatch):
    def broken(graph, inputs):
        raise AssertionError

    monkeypatch.setattr("pts_scott.engine.compilation.compile_graph", broken)
    monkeypatch.setattr("pts_scott.training.compile_policy.has_compiler", lambda: True)
    failed, eager = trainer(compile=True), trainer()
    with pytest.warns(UserWarning, match="TinyNetwork could not be compiled.*"):
        compiled = fit(failed)
    torch.testing.assert_close(compiled, fit(eager), rtol=0, atol=0)
    assert failed.history["gradients"].tolist() == eager.history["gradients"].tolist()


class NonFiniteAbove(TinyNetwork):
    """Non-finite on the few windows above a limit."""

    limit = 2.9

    def loss(self, past_target, future_target):
        bad = past_target[:, -1] > self.limit
        return torch.where(bad, torch.nan, super().loss(past_target, future_target))


@pytest.mark.usefixtures("traced")
@pytest.mark.filterwarnings("ignore::pts_scott.errors.FaultWarning")
@pytest.mark.parametrize("optimizer", ["adam", "adagrad"])
def test_fault_in_a_step_of_several_passes_keeps_the_optimizer_state(
    optimizer, monkeypatch
):
    monkeypatch.setattr("pts_scott.engine.eager.MAX_PASS", 3)  # a step has 4 windows
    counts = {}
    for compiled in (True, False):
        end = RecordEnd()
        kwargs = {**QUIET, "callbacks": [end]}
        one = trainer(
            method="plain",
            optimizer=optimizer,
            compile=compiled,
            skip_limit=99,
            num_batches_per_epoch=60,
            trainer_kwargs=kwargs,
        )
        one.fit(NonFiniteAbove().double(), wave_windows())
        skipped = int(one.history["skipped"].iloc[-1])
        assert skipped > 0
        steps = [float(own["step"]) for own in end.state["state"].values()]
        counts[compiled] = {*steps}
        assert counts[compiled] == {60.0 - skipped}


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize(
    "network",
    [
        TransposedGradient,
        TransposedParameter,
        SlicedParameter,
        ExpandedGradient,
        TiedWeight,
    ],
)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("method", ["plain", "scott", "stratified"])
def test_compiled_steps_of_odd_networks_equal_eager_ones(network, method, optimizer):
    settings = {"method": method, "optimizer": optimizer, "anchor_batch_size": 2}
    one, other = (fit_waves(network(), compile=c, **settings) for c in (True, False))
    assert_same_parameters(one, other, rtol=1e-8, atol=1e-10)


class HalfPrecisionFirst(nn.Module):
    """A first parameter that is coarser than the others."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
        self.weight = nn.Parameter(weight(2, 6).float())

    def loss(self, past_target, future_target):
        forecast = past_target @ self.weight.T + self.shift.float()
        return (forecast - future_target).square().mean(dim=1)


@pytest.mark.usefixtures("traced")
def test_numbers_of_an_update_are_not_in_half_precision():
    found = []
    for compiled in (True, False):
        network = HalfPrecisionFirst()
        quiet_trainer(
            method="plain",
            optimizer="adamw",
            weight_decay=1.0,  # 1 - lr * weight_decay is 1 in half precision
            num_batches_per_epoch=60,
            compile=compiled,
        ).fit(network, wave_windows(torch.float32))
        found.append(network.weight.detach())
    torch.testing.assert_close(*found, rtol=2e-3, atol=2e-4)


class Changeable(TinyNetwork):
    """A network with attributes of every kind that a callback may change."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.number = 1.0
        self.numbers = [1.0]
        self.tensor = torch.ones((), dtype=torch.float64)
        self.register_buffer("buffer", torch.ones((), dtype=torch.float64))
        self.frozen = nn.Parameter(self.tensor.clone(), requires_grad=False)

    def loss(self, past_target, future_target):
        factor = self.number * self.numbers[0] * self.tensor * self.buffer * self.frozen
        return factor * super().loss(self.dropout(past_target), future_target)


def replace_tensor(network, optimizer):
    network.tensor = torch.full((), 0.1, dtype=torch.float64)


def replace_buffer(network, optimizer):
    network.buffer = torch.full((), 0.1, dtype=torch.float64)


def fill_buffer(network, optimizer):
    network.buffer.fill_(0.1)


def change_number(network, optimizer):
    network.number = 0.1


def change_list(network, optimizer):
    network.numbers = [0.1]


def change_mode(network, optimizer):
    network.dropout.eval()


def replace_frozen_data(network, optimizer):
    network.frozen.data = torch.full((), 0.1, dtype=torch.float64)


def clear_state(network, optimizer):
    optimizer.state.clear()


def replace_moments(network, optimizer):
    for state in optimizer.state.values():
        state["exp_avg"] = torch.zeros_like(state["exp_avg"])


class ChangeAfterALoop(pl.Callback):
    def __init__(self, change) -> None:
        self.change = change

    def on_train_batch_end(self, trainer, pl_module, *_):
        if trainer.global_step == 21:  # three outer loops
            self.change(pl_module.losses.network, trainer.optimizers[0])


@pytest.mark.usefixtures("traced")
@pytest.mark.filterwarnings("ignore:.*is trained without compilation from step 21")
@pytest.mark.parametrize("method", ["plain", "scott"])
@pytest.mark.parametrize(
    "change",
    [
        *(replace_tensor, replace_buffer, fill_buffer, change_number, change_list),
        *(change_mode, replace_frozen_data, clear_state, replace_moments),
    ],
)
def test_changes_by_callbacks_have_the_effect_they_have_on_eager_steps(change, method):
    found = []
    for compiled in (True, False):
        torch.manual_seed(0)
        network = Changeable().double()
        kwargs = {**QUIET, "callbacks": [ChangeAfterALoop(change)]}
        one = trainer(
            **{"optimizer": "adam", "method": method, "compile": compiled},
            **{"gamma": None, "num_batches_per_epoch": 42, "trainer_kwargs": kwargs},
        )
        one.fit(network, wave_windows())
        found.append([p.detach() for p in network.parameters()])
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-11)


class SetMomentum(pl.Callback):
    def on_train_batch_end(self, trainer, pl_module, *_):
        trainer.optimizers[0].param_groups[0]["momentum"] = 0.9


@pytest.mark.usefixtures("traced")
def test_options_that_compiled_steps_do_not_contain_are_refused():
    kwargs = {**QUIET, "callbacks": [SetMomentum()]}
    with pytest.raises(ModelError, match="momentum=0.9 of the optimizer was set"):
        fit(trainer(optimizer="sgd", compile=True, trainer_kwargs=kwargs))


@pytest.mark.usefixtures("traced")
def test_sampled_outputs_are_those_of_eager_steps(monkeypatch):
    monkeypatch.setattr("pts_scott.training.runner.STEPS_TOGETHER", 100)
    one, other = (
        trainer(method="plain", output="sampled", compile=c, num_batches_per_epoch=100)
        for c in (True, False)
    )
    assert_equal_runs(one, other)


@pytest.mark.usefixtures("traced")
def test_steps_without_anchor_are_grouped_by_a_hundred(monkeypatch):
    monkeypatch.setattr("pts_scott.training.runner.STEPS_TOGETHER", 100)
    one = trainer(method="plain", compile=True, num_batches_per_epoch=250)
    fit(one)
    assert one.history["step"].tolist() == [100, 200, 250]


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("method", ["plain", "stratified", "auto"])
def test_loops_without_anchor_extend_past_epochs_that_nothing_observes(
    monkeypatch, method
):
    monkeypatch.setattr("pts_scott.training.runner.STEPS_TOGETHER", 100)
    settings = {"method": method, "compile": True, "gamma": None}
    short, long = (
        trainer(epochs=n, num_batches_per_epoch=250 // n, **settings) for n in (5, 1)
    )
    found = [fit(one) for one in (short, long)]
    assert all(map(torch.equal, *found))
    assert short.history["step"].tolist() == long.history["step"].tolist()
    assert short.history["step"].iloc[-1] == 250
    if method != "auto":  # which ends loops for its probes, too
        assert short.history["step"].tolist() == [100, 200, 250]
        assert short.history["epoch"].tolist() == [0, 2, 4]


class RecordEpochs(pl.Callback):
    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_train_epoch_end(self, trainer, pl_module):
        self.steps.append(pl_module.steps)


@pytest.mark.usefixtures("traced")
def test_loops_end_with_epochs_that_something_observes(monkeypatch):
    monkeypatch.setattr("pts_scott.training.runner.STEPS_TOGETHER", 100)
    settings = {"method": "plain", "compile": True, "gamma": None, "epochs": 3}
    rates = []

    def scheduler(optimizer):
        def factor(epoch):
            rates.append(epoch)
            return 0.5**epoch

        return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)

    epochs = RecordEpochs()
    called = trainer(**settings, trainer_kwargs={**QUIET, "callbacks": [epochs]})
    scheduled = trainer(**settings, scheduler=scheduler)
    validated = trainer(**settings)
    for one in (called, scheduled):
        fit(one)
    validated.fit(tiny_network(), wave_windows(), wave_windows())
    for one in (called, scheduled, validated):
        assert one.history["step"].tolist() == [20, 40, 60]
    assert epochs.steps == [20, 40, 60]
    assert rates == [0, 1, 2, 3]
    assert validated.history["val_loss"].notna().all()


class TwoNames(TinyNetwork):
    """A changing buffer that is registered twice."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("level", torch.zeros((), dtype=torch.float64))
        self.register_buffer("same", self.level)

    def loss(self, past_target, future_target):
        losses = super().loss(past_target - self.same, future_target)
        if self.training:
            self.level.lerp_(past_target.mean().detach(), 0.1)
        return losses


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("method", ["plain", "scott"])
def test_buffers_with_two_names_are_one(method):
    found = []
    for compiled in (True, False):
        torch.manual_seed(0)
        network = TwoNames()
        network = network.double()
        network.same = network.level
        settings = {"method": method, "optimizer": "adam", "gamma": None}
        trainer(compile=compiled, **settings).fit(network, wave_windows())
        found.append([p.detach() for p in network.parameters()])
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("types", [(torch.float64, torch.float32)])
def test_weights_have_the_type_for_which_steps_are_compiled(types):
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Parameter(weight(4, 6).to(types[0]))
            self.second = nn.Parameter(weight(2, 4).to(types[1]))

        def loss(self, past_target, future_target):
            hidden = past_target.to(types[0]) @ self.first.T
            forecast = hidden.to(types[1]) @ self.second.T
            return (forecast - future_target).square().mean(1)

    found = []
    for compiled in (True, False):
        network = Mixed()
        one = trainer(method="stratified", batch_size=9, compile=compiled)
        one.fit(network, wave_windows(torch.float32))
        found.append([p.detach() for p in network.parameters()])
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-6)
