"""Training on the accelerator equals training on the CPU, up to rounding."""

from __future__ import annotations

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from helpers.accelerator import (
    CPU,
    assert_same_parameters,
    assert_same_run,
    fit_on,
    gpu_tests,
    parameters_of,
    precision_of,
)
from helpers.faults import FaultyNetwork
from helpers.series import wave_entries, wave_windows
from helpers.training import QUIET
from torch import nn

from pts_scott import Stratifier, WindowIndex
from pts_scott._utils.rng import changed_sources, global_state
from pts_scott.engine.lookahead import LookaheadEngine
from pts_scott.engine.losses import Losses
from pts_scott.engine.training_effects import training_effects
from pts_scott.errors import FaultWarning
from pts_scott.method.methods import METHODS

pytestmark = gpu_tests

#: By name, and one that torch has no fused kernel for by class.
OPTIMIZERS = ["sgd", "adam", "adamw", "adagrad", torch.optim.RMSprop]
ANCHORED = [name for name, kind in METHODS.items() if kind.uses_anchor]


# -- data ---------------------------------------------------------------------------


@pytest.mark.parametrize("context", ["full", "padded"])
@pytest.mark.parametrize("missing", [False, True])
def test_windows_are_stored_and_gathered_on_the_device(device, context, missing):
    entries = wave_entries()
    if missing:
        entries[0]["target"][8] = np.nan
    dtype = precision_of(device)
    windows = WindowIndex.from_dataset(entries, "h", 6, 2, context=context, dtype=dtype)
    moved, numbers = windows.to(device), torch.arange(len(windows))
    assert moved.device.type == device.type
    found = moved.gather(numbers.to(device))
    for name, expected in windows.gather(numbers).items():
        assert found[name].device.type == device.type
        assert torch.equal(found[name].cpu(), expected), name


@pytest.mark.parametrize("policy", ["uniform", "series", "calendar"])
def test_one_seed_draws_the_same_windows_on_all_devices(device, policy):
    drawn = []
    for place in (CPU, device):
        windows = wave_windows(precision_of(device)).to(place)
        generator = torch.Generator().manual_seed(3)
        if policy == "uniform":
            found = windows.draw(50, generator)
        else:
            parts = () if policy == "series" else ("hour",)
            strata = getattr(Stratifier, policy)(*parts).stratify(windows)
            found = strata.draw(4, generator)
        assert found.device.type == place.type
        drawn.append(found.cpu())
    assert torch.equal(*drawn)


# -- methods and optimizers -----------------------------------------------------------


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_and_optimizer_equals_the_cpu(device, method, optimizer):
    settings = {"method": method, "optimizer": optimizer}
    found, expected = fit_on(device, **settings), fit_on(CPU, **settings)
    assert_same_run(found, expected)
    place = next(found[0].parameters()).device
    assert place.type == device.type, "the network stays where it was trained"


@pytest.mark.parametrize("settings", [{"clip_gradient": 0.1}, {"replacement": False}])
@pytest.mark.parametrize("method", ["scott", "plain", "stratified"])
def test_clipping_and_reshuffling_equal_the_cpu(device, method, settings):
    settings = {"method": method, **settings}
    assert_same_run(fit_on(device, **settings), fit_on(CPU, **settings))


def test_measured_sampler_equals_the_cpu(device, monkeypatch):
    """Probes measure gradients of single windows, from which strata are learned."""
    for name, value in (("SHARE", 1.0), ("PROBE_OVERHEAD", 0), ("MAX_WINDOWS", 64)):
        monkeypatch.setattr(f"pts_scott.training.probe_schedule.{name}", value)
    entries = wave_entries(lengths=(80, 80, 80, 80))
    entries[3]["target"] *= 20
    windows = WindowIndex.from_dataset(entries, "h", 6, 2, dtype=precision_of(device))
    settings = {"method": "auto", "num_batches_per_epoch": 220, "windows": windows}
    found, expected = fit_on(device, **settings), fit_on(CPU, **settings)
    assert found[1].history["sampler"].tolist() == expected[1].history["sampler"].tolist()
    assert found[1].history["sampler"].nunique() > 1, "no probe changed the sampler"
    assert_same_run(found, expected, rtol=1e-6 if device.type != "mps" else 1e-2)


# -- the early stop, which is evaluated one step late ----------------------------------


@pytest.mark.parametrize("gamma", [0.05, 0.4, 0.9])
@pytest.mark.parametrize("method", ANCHORED)
def test_deferred_early_stop_ends_loops_at_the_same_steps(device, method, gamma):
    settings = {"method": method, "gamma": gamma, "optimizer": "sgd"}
    found, expected = fit_on(device, **settings), fit_on(CPU, **settings)
    assert_same_run(found, expected)
    loops = expected[1].history["step"].diff().dropna()
    if gamma > 0.05:
        assert (loops < 7).any(), "no loop was stopped"
    # The gradients of a cancelled direction are counted: at most one for each loop.
    more = found[1].history["gradients"] - expected[1].history["gradients"]
    assert (more >= 0).all()
    assert (more <= 2 * 4 * found[1].history["outer"]).all()


class KeepWrapper(pl.Callback):
    """Keeps the wrapper of the engine."""

    wrapper: object = None

    def on_train_epoch_start(self, trainer, pl_module):
        self.wrapper = pl_module.runner.parts.wrapper


@pytest.mark.parametrize("method", ["scott", "plain"])
def test_steps_do_not_wait_for_the_accelerator(device, method):
    kept = KeepWrapper()
    fit_on(device, method=method, trainer_kwargs={**QUIET, "callbacks": [kept]})
    assert kept.wrapper is not None
    assert isinstance(kept.wrapper, LookaheadEngine) is (device.type != "cpu")


@pytest.mark.parametrize("kind", ["loss", "gradient"])
@pytest.mark.parametrize("method", ["scott", "plain"])
def test_nonfinite_steps_are_reported_and_leave_finite_parameters(device, method, kind):
    network = FaultyNetwork(kind).to(precision_of(device))
    with pytest.warns(FaultWarning, match="was skipped"):
        _, trainer = fit_on(device, network, method=method, skip_limit=1000)
    assert trainer.history["skipped"].iloc[-1] > 0
    assert bool(parameters_of(network).isfinite().all())


# -- random numbers of the network -------------------------------------------------------


class NoisyLSTM(nn.Module):
    """Two recurrent layers with dropout between them, which cuDNN draws by itself."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.lstm = nn.LSTM(1, 8, num_layers=2, dropout=0.4, batch_first=True)
            self.head = nn.Linear(8, 2)

    def loss(self, past_target, future_target):
        hidden, _ = self.lstm(past_target[..., None])
        return (self.head(hidden[:, -1]) - future_target).square().mean(1)


@pytest.mark.parametrize("method", ["scott", "plain", "storm"])
def test_dropout_of_recurrent_layers_repeats_in_both_passes(device, method):
    """The self-check before the first step compares v(t,0) with its anchor."""
    windows = wave_windows(torch.float32)
    runs = [fit_on(device, NoisyLSTM(), windows, method=method) for _ in range(2)]
    effects = training_effects(Losses(runs[0][0], windows.fields), windows.to(device))
    assert effects.random, "dropout was not noticed"
    assert_same_parameters(runs[0][0], runs[1][0], rtol=1e-3)


def test_random_state_of_the_caller_is_left_alone(device):
    torch.rand(3, device=device)
    network, windows = NoisyLSTM(), wave_windows(torch.float32)
    before = global_state(device)
    assert ("device" in before) is (device.type != "cpu")
    fit_on(device, network, windows)
    assert not changed_sources(before, global_state(device))
