"""Non-finite losses and gradients: skipped, counted, and traced to their windows."""

from __future__ import annotations

import math
import warnings

import lightning.pytorch as pl
import pytest
import torch
from helpers.engine import assemble
from helpers.faults import (
    ALL_NONFINITE,
    MANY_NONFINITE,
    SMALL_BATCHES,
    FaultyNetwork,
    fit_with_warnings,
    nonfinite_wave_windows,
)
from helpers.series import wave_windows
from helpers.training import QUIET, quiet_trainer, tiny_network
from lightning.pytorch.callbacks import EarlyStopping
from torch import nn

from pts_scott import Stratifier
from pts_scott.engine.losses import Losses
from pts_scott.engine.nonfinite_windows import name_windows, nonfinite_windows
from pts_scott.errors import ScottWarning
from pts_scott.method.protocol import LoopReport, Sample, Step
from pts_scott.training.fault_log import FaultLog

# -- skipped steps ------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["loss", "infinite", "gradient"])
@pytest.mark.parametrize("method", ["scott", "svrg", "stratified", "plain"])
def test_nonfinite_steps_are_skipped_and_counted(method, kind):
    network = FaultyNetwork(kind)
    settings = {"method": method, "skip_limit": 100, "gamma": None, "optimizer": "adam"}
    trainer, messages = fit_with_warnings(network, **settings)
    history = trainer.history
    assert history["skipped"].iloc[-1] > 0
    assert history["skipped"].is_monotonic_increasing
    assert history["step"].iloc[-1] == 60, "skipped steps count as steps"
    assert all(bool(p.isfinite().all()) for p in network.parameters())
    assert messages
    assert "was skipped" in messages[0]


def test_skipped_step_changes_no_parameter():
    """Neither Adam's moments nor weight decay move the parameters."""
    moves = {}
    for kind in ("none", "loss"):
        network = tiny_network() if kind == "none" else FaultyNetwork("loss")
        before = [p.detach().clone() for p in network.parameters()]
        kwargs = QUIET if kind == "none" else ALL_NONFINITE
        fit_with_warnings(
            network, optimizer="adam", weight_decay=0.1, trainer_kwargs=kwargs
        )
        pairs = zip(network.parameters(), before, strict=True)
        moves[kind] = max(float((p.detach() - b).abs().max()) for p, b in pairs)
    assert moves["none"] > 0
    assert moves["loss"] == 0.0


def test_nonfinite_anchor_is_drawn_again():
    trainer, messages = fit_with_warnings(
        FaultyNetwork("loss"), gamma=None, inner_steps=20, skip_limit=99
    )
    history = trainer.history
    assert history["anchors"].iloc[-1] > 3, "three outer loops without faults"
    assert len(messages) == history["skipped"].iloc[-1]


@pytest.mark.parametrize("kind", ["loss", "gradient"])
def test_nonfinite_windows_are_found_and_named(kind):
    windows, losses = wave_windows(), Losses(FaultyNetwork(kind))
    found = nonfinite_windows(losses, windows, torch.arange(len(windows)))
    assert set(found.tolist()) == nonfinite_wave_windows()
    text = name_windows(windows, found[:1])
    series, row = windows.rows(found[:1].numpy())
    assert windows.series.item_ids[int(series[0])] in text
    assert str(windows.series.timeline.moments[int(row[0])]) in text


def test_warning_names_series_and_time_and_a_remedy():
    _, messages = fit_with_warnings(FaultyNetwork("loss"), skip_limit=99)
    assert "'s2 from 2021-03-0" in messages[0]
    assert "lower learning_rate" in messages[0]


# -- giving up ----------------------------------------------------------------------


def test_skip_limit_ends_training_with_the_last_finite_parameters():
    network = FaultyNetwork("loss")
    before = [p.detach().clone() for p in network.parameters()]
    trainer, messages = fit_with_warnings(
        network, skip_limit=4, inner_steps=2, method="plain", trainer_kwargs=ALL_NONFINITE
    )
    assert trainer.history["skipped"].iloc[-1] == 4
    assert "training ends: 4 steps in a row" in messages[-1]
    for x, y in zip(network.parameters(), before, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0)


def test_repeatedly_rolled_back_loops_end_training():
    """Gradients of plain steps are not checked one by one: the loop is rolled back."""
    network = FaultyNetwork("gradient")
    before = [p.detach().clone() for p in network.parameters()]
    trainer, messages = fit_with_warnings(
        network, skip_limit=3, inner_steps=5, method="plain", trainer_kwargs=ALL_NONFINITE
    )
    assert trainer.gave_up
    assert trainer.history["skipped"].tolist() == [5, 10]
    assert len(messages) == 3
    for x, y in zip(network.parameters(), before, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0)


@pytest.mark.parametrize("compile", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_after_a_rolled_back_loop_single_steps_are_skipped(compile):
    settings = {"method": "plain", "gamma": None, "inner_steps": 20, "epochs": 20}
    trainer, _ = fit_with_warnings(
        FaultyNetwork("gradient"), compile=compile, skip_limit=99, **settings
    )
    skipped = trainer.history["skipped"]
    first = 200 if compile else 20
    most = 60 * (400 - first) / 380  # one window in 40 is bad
    assert skipped.iloc[0] == first, "the first loop was rolled back as a whole"
    assert 0 < skipped.iloc[-1] - first < most, "of the other steps"


def test_outer_loops_of_length_zero_do_not_reset_the_skip_count():
    settings = {"inner_length": "geometric", "gamma": None, "skip_limit": 10}
    settings |= {"stratifier": Stratifier.custom(lambda *_: 0), "anchor_batch_size": 8}
    trainer, _ = fit_with_warnings(
        FaultyNetwork("loss"), trainer_kwargs=ALL_NONFINITE, **settings
    )
    assert trainer.gave_up
    assert trainer.history["skipped"].iloc[-1] == 10


def test_searches_and_warnings_are_limited():
    searches = []
    network = FaultyNetwork("loss")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "pts_scott.training.fault_log.nonfinite_windows",
            lambda *args: (searches.append(args), nonfinite_windows(*args))[1],
        )
        trainer, messages = fit_with_warnings(
            network, skip_limit=999, trainer_kwargs=MANY_NONFINITE
        )
    assert 32 <= trainer.history["skipped"].iloc[-1] < 64
    assert len(searches) == 10
    assert len(messages) == 10 + 2, "the 16th and the 32nd"
    assert "fault number 32" in messages[-1]


# -- the log alone ------------------------------------------------------------------


def report(*losses: float, rolled_back: bool = False) -> LoopReport:
    """An outer loop with these losses, each of its steps on window 0."""
    steps = [
        Step(torch.zeros(1, dtype=torch.long), torch.tensor(x), torch.tensor(1.0))
        for x in losses
    ]
    return LoopReport(steps, rolled_back=rolled_back)


def make_log(limit: int = 3) -> FaultLog:
    """A log that is not allowed to warn."""
    log = FaultLog(Losses(tiny_network()), wave_windows(), limit, lambda: False)
    log.begin(torch.arange(4))
    return log


@pytest.mark.parametrize(
    ("loops", "skipped", "gave_up"),
    [
        ([report(1.0, 1.0)], 0, False),
        ([report(math.nan, 1.0, math.nan, math.nan)], 3, False),
        ([report(math.nan, math.nan, math.nan)], 3, True),
        ([report(1.0, math.nan), report(math.nan, math.nan)], 3, True),
        ([report(1.0, math.nan), report(1.0), report(math.nan, math.nan)], 3, False),
        ([report(1.0, math.nan), report(), report(math.nan, math.nan)], 3, True),
        ([report(1.0, 1.0, math.nan, rolled_back=True)] * 2, 6, False),
        ([report(1.0, 1.0, math.nan, rolled_back=True)] * 3, 9, True),
    ],
)
def test_log_counts_skipped_steps_in_all_and_in_a_row(loops, skipped, gave_up):
    log, steps = make_log(limit=3), 0
    for loop in loops:
        steps += len(loop.steps)
        log.record(loop, steps)
    assert log.skipped == skipped
    assert log.gave_up is gave_up


def test_log_state_round_trip_continues_the_count():
    log, restored = make_log(), make_log()
    log.record_loss(1.0, 1)
    log.record(report(math.nan, math.nan), 2)
    restored.load_state_dict(log.state_dict())
    assert restored.state_dict() == log.state_dict()
    restored.record(report(math.nan), 3)
    assert restored.gave_up, "the third in a row"
    restored.retry()
    assert not restored.gave_up
    restored.record(report(math.nan), 4)
    assert not restored.gave_up, "counting starts again after a retry"
    assert restored.skipped == 4


# -- finite, but far too large ------------------------------------------------------


class HugeGradientNetwork(nn.Module):
    """A network whose gradient is finite in float32, but not its square, for a while."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.network = tiny_network(torch.float32)
        self.factor, self.calls = factor, 0

    def loss(self, past_target, future_target):
        losses = self.network.loss(past_target, future_target)
        if not self.training:
            return losses
        self.calls += 1
        return losses * (self.factor if 60 <= self.calls < 63 else 1.0)


class ResetCalls(pl.Callback):
    """Sets the number of calls at the first step, however many the checks needed."""

    def on_train_epoch_start(self, trainer, pl_module):
        if pl_module.current_epoch == 0:
            pl_module.losses.network.calls = 6


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad"])
@pytest.mark.parametrize("method", ["scott", "stratified", "plain"])
@pytest.mark.parametrize("clip", [None, 1.0])
def test_huge_gradient_does_not_spoil_the_optimizer_state(method, optimizer, clip):
    network = HugeGradientNetwork(1e25)
    settings = {"method": method, "optimizer": optimizer, "clip_gradient": clip}
    settings["trainer_kwargs"] = {**QUIET, "callbacks": [ResetCalls()]}
    trainer = quiet_trainer(learning_rate=0.01, epochs=6, **SMALL_BATCHES, **settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(network, wave_windows(torch.float32))
    history = trainer.history
    if clip is None:
        assert any("far too large" in str(w.message) for w in caught)
        assert history["skipped"].iloc[-1] > 0
    else:
        assert history["skipped"].iloc[-1] == 0, "once clipped, it is an ordinary step"
    state = trainer.lightning.optimizers[0].state
    tensors = [t for own in state.values() for t in own.values() if torch.is_tensor(t)]
    assert all(bool(t.isfinite().all()) for t in [*tensors, *network.parameters()])
    assert history["train_loss"].iloc[-1] < history["train_loss"].iloc[0]


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad"])
def test_large_networks_are_restored_after_a_rolled_back_loop(monkeypatch, optimizer):
    monkeypatch.setattr("pts_scott.engine.rollback.SMALL", 0)
    network = FaultyNetwork("gradient")
    settings = {"method": "plain", "optimizer": optimizer, "skip_limit": 99}
    trainer, _ = fit_with_warnings(network, inner_steps=5, **settings)
    assert 0 < trainer.history["skipped"].iloc[-1] < trainer.history["step"].iloc[-1]
    assert all(bool(p.isfinite().all()) for p in network.parameters())


# -- compiled steps and accelerators ------------------------------------------------


@pytest.fixture
def loops_of_inner_steps(monkeypatch):
    """Give compiled steps without an anchor outer loops of K steps."""
    monkeypatch.setattr("pts_scott.training.runner.STEPS_TOGETHER", 1)


@pytest.mark.slow
@pytest.mark.usefixtures("loops_of_inner_steps")
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad"])
@pytest.mark.parametrize("method", ["scott", "plain"])
def test_compiled_loops_of_one_step_skip_the_same_steps_as_eager_ones(method, optimizer):
    """Compiled steps are rolled back with their outer loop, here a single step."""
    runs = []
    for compile in (False, True):
        network = FaultyNetwork("loss")
        settings = {"method": method, "optimizer": optimizer, "skip_limit": 99}
        trainer, _ = fit_with_warnings(
            network, compile=compile, inner_steps=1, **settings
        )
        runs.append((network, trainer.history))
    (eager, eager_history), (compiled, compiled_history) = runs
    assert eager_history["skipped"].iloc[-1] > 0
    assert eager_history["skipped"].tolist() == compiled_history["skipped"].tolist()
    for x, y in zip(eager.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-8, atol=1e-10)


@pytest.mark.slow
@pytest.mark.usefixtures("loops_of_inner_steps")
@pytest.mark.parametrize("kind", ["loss", "gradient"])
@pytest.mark.parametrize("method", ["scott", "plain"])
def test_fault_in_a_compiled_loop_rolls_it_back_completely(method, kind):
    network = FaultyNetwork(kind)
    settings = {"method": method, "gamma": None, "inner_steps": 5, "optimizer": "adam"}
    trainer, messages = fit_with_warnings(
        network, compile=True, skip_limit=99, **settings
    )
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
    """A sampler that returns the given windows."""

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
    windows, network = wave_windows(), FaultyNetwork("loss")
    run = assemble(network, windows, "plain", clip_gradient=9.0)
    bad = min(nonfinite_wave_windows())
    run.method.step_sampler = FixedSampler([[0, 1], [bad, 2], [3, 4]])
    report = run.outer_loop(3)
    assert [math.isnan(loss) for loss in report.losses] == [False, True, False]
    assert all(bool(p.isfinite().all()) for p in network.parameters())


# -- divergence ---------------------------------------------------------------------


def test_fault_is_neither_divergence_nor_a_loss_for_callbacks():
    stop = EarlyStopping(monitor="train_loss", patience=99)
    kwargs = {**QUIET, "callbacks": [stop]}
    trainer = quiet_trainer(
        learning_rate=0.01,
        epochs=6,
        skip_limit=99,
        trainer_kwargs=kwargs,
        **SMALL_BATCHES,
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(FaultyNetwork("loss"), wave_windows())
    assert trainer.history["train_loss"].isna().any()
    assert trainer.history["step"].iloc[-1] == 120
    assert not any("diverges" in str(w.message) for w in caught)


def test_diverging_loss_gives_one_warning_with_a_remedy():
    trainer = quiet_trainer(learning_rate=1.5, epochs=2, gamma=None, **SMALL_BATCHES)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(tiny_network(), wave_windows())
    diverges = [w for w in caught if "training diverges" in str(w.message)]
    finite = [w for w in diverges if w.category is ScottWarning]
    assert len(finite) == 1
    assert "Lower learning_rate" in str(finite[0].message)


@pytest.mark.parametrize("method", ["scott", "plain", "stratified"])
def test_divergence_is_reported_once_and_names_no_window(method):
    settings = {"method": method, "learning_rate": 1000.0, "epochs": 5, **SMALL_BATCHES}
    trainer = quiet_trainer(**settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(tiny_network(), wave_windows())
    messages = [str(w.message) for w in caught if issubclass(w.category, ScottWarning)]
    assert trainer.gave_up
    assert ["diverges" in message for message in messages] == [True, False]
    assert " from 2021" not in messages[0], "no window is named"
    assert "training ends" in messages[1]
