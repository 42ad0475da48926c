"""Losses and gradients that are not finite: skipped, counted, and traced to windows."""

from __future__ import annotations

import math
import warnings
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from helpers.engine import assemble
from helpers.series import wave_windows
from helpers.training import QUIET, quiet_trainer, tiny_network
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.plugins import MixedPrecision
from torch import nn

from pts_scott import Stratifier
from pts_scott.engine.losses import Losses
from pts_scott.engine.nonfinite_windows import name_windows, nonfinite_windows
from pts_scott.errors import (
    ArgumentError,
    DivergenceError,
    FaultWarning,
    ScottWarning,
)
from pts_scott.method.protocol import Sample

CHEAP = {"batch_size": 4, "anchor_batch_size": 2, "stratifier": Stratifier.series()}


class Faulty(nn.Module):
    """Fails on windows whose last value is above a limit.

    The check before training looks at a few windows and finds nothing.
    """

    def __init__(self, kind: str = "loss", limit: float = 2.9) -> None:
        super().__init__()
        self.network = tiny_network()
        self.kind, self.limit = kind, limit

    def loss(self, past_target, future_target):
        losses = self.network.loss(past_target, future_target)
        bad = past_target[:, -1] > self.limit
        if self.kind == "loss":
            return torch.where(bad, torch.nan, losses)
        if self.kind == "infinite":
            return torch.where(bad, torch.inf, losses)
        # Of a finite loss, an infinite gradient: the root of zero.
        zero = 0.0 * sum(p.sum() for p in self.parameters())
        return losses + torch.where(bad, zero, 1.0).sqrt()


class Break(pl.Callback):
    """Makes every window bad, once the checks before training have passed."""

    def on_train_start(self, trainer, pl_module):
        pl_module.losses.network.limit = -9.0


BROKEN = {**QUIET, "callbacks": [Break()]}


class BreakSome(pl.Callback):
    """Makes many windows bad, but for those that were checked before training."""

    def on_train_start(self, trainer, pl_module):
        pl_module.losses.network.limit = 1.4


def bad_windows() -> set[int]:
    windows = wave_windows()
    past = windows.gather(torch.arange(len(windows)))["past_target"]
    return set((past[:, -1] > 2.9).nonzero().flatten().tolist())


def trained(network: nn.Module, **settings: Any) -> tuple[Any, list[str]]:
    trainer = quiet_trainer(**{"learning_rate": 0.01, "epochs": 3, **CHEAP, **settings})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(network, wave_windows())
    return trainer, [str(w.message) for w in caught if w.category is FaultWarning]


@pytest.mark.parametrize("kind", ["loss", "infinite", "gradient"])
@pytest.mark.parametrize("method", ["scott", "svrg", "stratified", "plain"])
def test_steps_that_are_not_finite_are_skipped_and_counted(method, kind):
    network = Faulty(kind)
    settings = {"method": method, "skip_limit": 100, "gamma": None, "optimizer": "adam"}
    trainer, messages = trained(network, **settings)
    history = trainer.history
    assert history["skipped"].iloc[-1] > 0
    assert history["skipped"].is_monotonic_increasing
    assert history["step"].iloc[-1] == 60, "skipped steps are steps"
    assert all(bool(p.isfinite().all()) for p in network.parameters())
    assert messages
    assert "was skipped" in messages[0]


def test_skipping_leaves_no_trace():
    """No moment of Adam's, and no weight decay."""
    moves = {}
    for kind in ("none", "loss"):
        network = tiny_network() if kind == "none" else Faulty("loss")
        before = [p.detach().clone() for p in network.parameters()]
        kwargs = QUIET if kind == "none" else BROKEN
        trained(network, optimizer="adam", weight_decay=0.1, trainer_kwargs=kwargs)
        pairs = zip(network.parameters(), before, strict=True)
        moves[kind] = max(float((p.detach() - b).abs().max()) for p, b in pairs)
    assert moves["none"] > 0
    assert moves["loss"] == 0.0


def test_an_anchor_that_is_not_finite_is_drawn_anew():
    trainer, messages = trained(Faulty("loss"), gamma=None, inner_steps=20, skip_limit=99)
    history = trainer.history
    assert history["anchors"].iloc[-1] > 3, "of three outer loops without a fault"
    assert len(messages) == history["skipped"].iloc[-1]


@pytest.mark.parametrize("kind", ["loss", "gradient"])
def test_the_windows_behind_it_are_found_and_named(kind):
    windows, losses = wave_windows(), Losses(Faulty(kind))
    found = nonfinite_windows(losses, windows, torch.arange(len(windows)))
    assert set(found.tolist()) == bad_windows()
    text = name_windows(windows, found[:1])
    series, row = windows.rows(found[:1].numpy())
    assert windows.series.item_ids[int(series[0])] in text
    assert str(windows.series.timeline.moments[int(row[0])]) in text


def test_a_warning_names_series_and_time():
    _, messages = trained(Faulty("loss"), skip_limit=99)
    assert "'s2 from 2021-03-0" in messages[0]
    assert "lower learning_rate" in messages[0]


def test_after_a_number_in_a_row_training_ends_with_the_last_good_parameters():
    network = Faulty("loss")
    before = [p.detach().clone() for p in network.parameters()]
    trainer, messages = trained(
        network, skip_limit=4, inner_steps=2, method="plain", trainer_kwargs=BROKEN
    )
    assert trainer.history["skipped"].iloc[-1] == 4
    assert "training ends: 4 steps in a row" in messages[-1]
    for x, y in zip(network.parameters(), before, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0)


def test_loops_that_are_undone_again_and_again_end_training():
    """Of plain steps nobody looks at a gradient; a bad one takes its loop with it."""
    network = Faulty("gradient")
    before = [p.detach().clone() for p in network.parameters()]
    trainer, messages = trained(
        network, skip_limit=3, inner_steps=5, method="plain", trainer_kwargs=BROKEN
    )
    assert trainer.gave_up
    assert trainer.history["skipped"].tolist() == [5, 10]
    assert len(messages) == 3
    for x, y in zip(network.parameters(), before, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0)


@pytest.mark.parametrize("compile", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_after_a_loop_that_is_lost_single_steps_are(compile):
    settings = {"method": "plain", "gamma": None, "inner_steps": 20, "epochs": 20}
    trainer, _ = trained(Faulty("gradient"), compile=compile, skip_limit=99, **settings)
    skipped = trainer.history["skipped"]
    assert skipped.iloc[0] == 20, "the first loop had a bad window, and nobody looked"
    assert 0 < skipped.iloc[-1] - 20 < 60, "of 380 others, one window in 40 being bad"


def test_a_length_of_zero_does_not_hide_steps_in_a_row():
    settings = {"inner_length": "geometric", "gamma": None, "skip_limit": 10}
    settings |= {"stratifier": Stratifier.custom(lambda *_: 0), "anchor_batch_size": 8}
    trainer, _ = trained(Faulty("loss"), trainer_kwargs=BROKEN, **settings)
    assert trainer.gave_up
    assert trainer.history["skipped"].iloc[-1] == 10


def test_many_faults_do_not_take_a_search_and_a_warning_each():
    searched = []
    network = Faulty("loss")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "pts_scott.training.fault_log.nonfinite_windows",
            lambda *args: (searched.append(args), nonfinite_windows(*args))[1],
        )
        kwargs = {**QUIET, "callbacks": [BreakSome()]}
        trainer, messages = trained(network, skip_limit=999, trainer_kwargs=kwargs)
    assert 32 <= trainer.history["skipped"].iloc[-1] < 64
    assert len(searched) == 10
    assert len(messages) == 10 + 2, "the 16th and the 32nd"
    assert "the 32th fault" in messages[-1]


class Huge(nn.Module):
    """A gradient that is finite in float32, and its square is not, for a while."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.network = tiny_network(torch.float32)
        self.size, self.calls = size, 0

    def loss(self, past_target, future_target):
        losses = self.network.loss(past_target, future_target)
        if not self.training:
            return losses
        self.calls += 1
        return losses * (self.size if 60 <= self.calls < 63 else 1.0)


class CountFromHere(pl.Callback):
    """Begin to count at the first step, whatever the checks before it did."""

    def on_train_epoch_start(self, trainer, pl_module):
        if pl_module.current_epoch == 0:
            pl_module.losses.network.calls = 6


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad"])
@pytest.mark.parametrize("method", ["scott", "stratified", "plain"])
@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_huge_gradient_does_not_freeze_the_optimizer(method, optimizer, clip):
    network = Huge(1e25)
    settings = {"method": method, "optimizer": optimizer, "clip_gradient": clip}
    settings["trainer_kwargs"] = {**QUIET, "callbacks": [CountFromHere()]}
    trainer = quiet_trainer(learning_rate=0.01, epochs=6, **CHEAP, **settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(network, wave_windows(torch.float32))
    history = trainer.history
    if clip is None:
        assert any("far too large" in str(w.message) for w in caught)
        assert history["skipped"].iloc[-1] > 0
    else:
        assert history["skipped"].iloc[-1] == 0, "clipped, it is a step like others"
    state = trainer.lightning.optimizers[0].state
    tensors = [t for own in state.values() for t in own.values() if torch.is_tensor(t)]
    assert all(bool(t.isfinite().all()) for t in [*tensors, *network.parameters()])
    assert history["train_loss"].iloc[-1] < history["train_loss"].iloc[0]


def test_a_fault_is_no_divergence_and_no_loss_for_callbacks():
    stop = EarlyStopping(monitor="train_loss", patience=99)
    kwargs = {**QUIET, "callbacks": [stop]}
    trainer = quiet_trainer(
        learning_rate=0.01, epochs=6, skip_limit=99, trainer_kwargs=kwargs, **CHEAP
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(Faulty("loss"), wave_windows())
    assert trainer.history["train_loss"].isna().any()
    assert trainer.history["step"].iloc[-1] == 120
    assert not any("diverges" in str(w.message) for w in caught)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad"])
@pytest.mark.parametrize("method", ["scott", "plain"])
def test_compiled_steps_are_undone_with_their_outer_loop(method, optimizer):
    """One step an outer loop: then that is what eager ones do."""
    found = []
    for compile in (False, True):
        network = Faulty("loss")
        settings = {"method": method, "optimizer": optimizer, "skip_limit": 99}
        trainer, _ = trained(network, compile=compile, inner_steps=1, **settings)
        found.append((network, trainer.history))
    (eager, one), (compiled, other) = found
    assert one["skipped"].iloc[-1] > 0
    assert one["skipped"].tolist() == other["skipped"].tolist()
    for x, y in zip(eager.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-8, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["loss", "gradient"])
@pytest.mark.parametrize("method", ["scott", "plain"])
def test_a_fault_among_compiled_steps_leaves_nothing_behind(method, kind):
    network = Faulty(kind)
    settings = {"method": method, "gamma": None, "inner_steps": 5, "optimizer": "adam"}
    trainer, messages = trained(network, compile=True, skip_limit=99, **settings)
    history = trainer.history
    assert history["step"].iloc[-1] == 60
    skipped = history["skipped"].iloc[-1]
    assert 0 < skipped < 60
    assert history["skipped"][history["skipped"] > 0].iloc[0] == 5, "a whole outer loop"
    assert all(bool(p.isfinite().all()) for p in network.parameters())
    made = trainer.lightning.optimizers[0].state[next(network.parameters())]["step"]
    assert int(made) == 60 - skipped
    assert messages


class FixedSampler:
    """A sampler with given windows."""

    is_weighted = False
    size = 2

    def __init__(self, samples: list[list[int]]) -> None:
        self._samples = iter(samples)

    def draw(self) -> Sample:
        return Sample(torch.tensor(next(self._samples)))


@pytest.mark.parametrize("looks_ahead", [False, True])
def test_nonfinite_gradient_becomes_zero_update_on_accelerators(monkeypatch, looks_ahead):
    target = "pts_scott.engine.build.should_look_ahead"
    monkeypatch.setattr(target, lambda *_: looks_ahead)
    windows, network = wave_windows(), Faulty("loss")
    run = assemble(network, windows, "plain", clip_gradient=9.0)
    run.method.step_sampler = FixedSampler([[0, 1], [min(bad_windows()), 2], [3, 4]])
    report = run.outer_loop(3)
    assert [math.isnan(loss) for loss in report.losses] == [False, True, False]
    assert all(bool(p.isfinite().all()) for p in network.parameters())


def test_a_run_that_diverges_says_so_once_and_suggests():
    trainer = quiet_trainer(learning_rate=1.5, epochs=2, gamma=None, **CHEAP)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(tiny_network(), wave_windows())
    diverges = [w for w in caught if "training diverges" in str(w.message)]
    finite = [w for w in diverges if w.category is ScottWarning]
    assert len(finite) == 1
    assert "Lower learning_rate" in str(finite[0].message)


# -- half precision ----------------------------------------------------------------------


def half(kind: str, scale: float | None = None) -> dict[str, Any]:
    """Lightning's plugin; on the CPU its trainer takes it, and no word, for float16."""
    scaler = None
    if scale is not None:
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=10**6)
    return {**QUIET, "plugins": [MixedPrecision(kind, "cpu", scaler)]}


class Seen(pl.Callback):
    """The scale after every outer loop."""

    def __init__(self) -> None:
        self.scales: list[float] = []

    def on_train_batch_end(self, trainer, pl_module, *_):
        self.scales.append(pl_module.runner.parts.engine.gradients.scale)


def parameters_after(**settings: Any) -> tuple[list[torch.Tensor], Any]:
    network = tiny_network(torch.float32)
    trainer = quiet_trainer(**{"learning_rate": 0.02, **CHEAP, **settings})
    trainer.fit(network, wave_windows(torch.float32))
    return [p.detach() for p in network.parameters()], trainer.history


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("method", ["scott", "plain"])
def test_half_precision_is_scaled_in_both_passes_alike(method, optimizer):
    """The steps are those of full precision, up to the rounding of float16."""
    settings = {"method": method, "optimizer": optimizer, "gamma": None}
    expected, _ = parameters_after(**settings)
    start = [p.detach() for p in tiny_network(torch.float32).parameters()]
    for kind, scale in (("16-mixed", 1024.0), ("bf16-mixed", None)):
        found, history = parameters_after(trainer_kwargs=half(kind, scale), **settings)
        assert history["skipped"].iloc[-1] == 0
        for x, y, begin in zip(found, expected, start, strict=True):
            assert float((x - y).norm()) < 0.1 * float((y - begin).norm())


@pytest.mark.parametrize("method", ["scott", "plain"])
def test_an_overflow_is_left_to_the_scaler(method):
    seen = Seen()
    kwargs = half("16-mixed", 2.0**30)  # far too much for float16
    kwargs["callbacks"] = [seen]
    found, history = parameters_after(method=method, epochs=3, trainer_kwargs=kwargs)
    assert seen.scales[-1] < 2.0**30
    assert all(bool(x.isfinite().all()) for x in found)
    assert history["skipped"].iloc[-1] == 0, "an overflow is no fault"
    start = list(tiny_network(torch.float32).parameters())
    assert not torch.equal(found[0], start[0]), "after it, training goes on"


def test_other_precisions_are_refused():
    with pytest.raises(ArgumentError, match="16-mixed, bf16-mixed"):
        quiet_trainer(trainer_kwargs={"precision": "64-true"})


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad"])
def test_large_networks_survive_a_loop_that_is_rolled_back(monkeypatch, optimizer):
    monkeypatch.setattr("pts_scott.engine.rollback.SMALL", 0)
    network = Faulty("gradient")
    settings = {"method": "plain", "optimizer": optimizer, "skip_limit": 99}
    trainer, _ = trained(network, inner_steps=5, **settings)
    assert 0 < trainer.history["skipped"].iloc[-1] < trainer.history["step"].iloc[-1]
    assert all(bool(p.isfinite().all()) for p in network.parameters())


@pytest.mark.parametrize("outer", [False, True], ids=["lightning", "user"])
@pytest.mark.parametrize("method", ["scott", "plain"])
def test_weights_that_autocast_has_cached_are_not_used_after_an_update(
    monkeypatch, method, outer
):
    """Lightning 2.5.0 to 2.5.4 cache them for all steps of an outer loop."""
    found = []
    for cached in (True, False):

        def region(*_: Any, cached: bool = cached) -> Any:
            return torch.autocast("cpu", torch.bfloat16, cache_enabled=cached)

        if outer:
            with region():
                found.append(parameters_after(method=method)[0])
        else:
            monkeypatch.setattr(MixedPrecision, "autocast_context_manager", region)
            kwargs = {**QUIET, "precision": "bf16-mixed"}
            found.append(parameters_after(method=method, trainer_kwargs=kwargs)[0])
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0)


class Validating(nn.Module):
    """Checks its own numbers and raises, as torch's distributions do."""

    def __init__(self) -> None:
        super().__init__()
        self.network = tiny_network()

    def loss(self, past_target, future_target):
        losses = self.network.loss(past_target, future_target)
        if not bool((losses < 1e6).all()):
            raise ValueError("expected parameter loc to be within bounds")
        return losses


def test_a_network_that_fails_because_training_diverges_does_not_blame_the_data():
    with pytest.raises(DivergenceError, match="Lower learning_rate") as caught:
        trained(Validating(), learning_rate=1000.0)
    assert "category" not in str(caught.value)
    assert "within bounds" in str(caught.value)


@pytest.mark.parametrize("method", ["scott", "plain", "stratified"])
def test_divergence_is_told_once(method):
    settings = {"method": method, "learning_rate": 1000.0, "epochs": 5, **CHEAP}
    trainer = quiet_trainer(**settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(tiny_network(), wave_windows())
    messages = [str(w.message) for w in caught if issubclass(w.category, ScottWarning)]
    assert trainer.gave_up
    assert ["diverges" in message for message in messages] == [True, False]
    assert " from 2021" not in messages[0], "no window is named"
    assert "training ends" in messages[1]
