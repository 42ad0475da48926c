"""EngineSetup: an engine that replaces another one in the middle of a run."""

from __future__ import annotations

import lightning.pytorch as pl
import pytest
from helpers.series import wave_windows
from helpers.training import QUIET, TinyNetwork, quiet_trainer

from pts_scott.engine.guard import GuardedEngine
from pts_scott.engine.lookahead import LookaheadEngine
from pts_scott.errors import ScottWarning


class ScaledNetwork(TinyNetwork):
    """A network with an attribute that compiled steps treat as constant."""

    factor = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.factor = 1.0

    def loss(self, past_target, future_target):
        return self.factor * super().loss(past_target, future_target)


class ChangeFactor(pl.Callback):
    """Changes the attribute in the second epoch, and records the engine's wrapper."""

    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == 1:
            pl_module.losses.network.factor = 0.5

    def on_train_batch_end(self, trainer, pl_module, *_):
        self.wrapper = pl_module.runner.parts.wrapper


@pytest.fixture
def change(monkeypatch) -> ChangeFactor:
    monkeypatch.setattr(
        "pts_scott.engine.compilation.compile_graph", lambda graph, _: graph
    )
    monkeypatch.setattr("pts_scott.training.compile_policy.has_compiler", lambda: True)
    return ChangeFactor()


def fit(change: ChangeFactor, **settings) -> None:
    kwargs = {**QUIET, "callbacks": [change]}
    trainer = quiet_trainer(compile=True, epochs=2, trainer_kwargs=kwargs, **settings)
    with pytest.warns(ScottWarning, match="'factor' of the network"):
        trainer.fit(ScaledNetwork().double(), wave_windows())
    assert not trainer.compiled
    assert trainer.compile_fallback


@pytest.mark.parametrize("method", ["plain", "stratified", "scott"])
def test_engine_after_a_fallback_checks_every_step(change, method):
    fit(change, method=method)
    assert isinstance(change.wrapper, GuardedEngine)
    assert change.wrapper._rollback is None


def test_engine_after_a_fallback_looks_ahead_as_before(change, monkeypatch):
    """Processes decide on their own, and must go on to reduce in the same order."""
    target = "pts_scott.training.engine_setup.should_look_ahead"
    monkeypatch.setattr(target, lambda *_: True)
    fit(change, method="scott")
    assert isinstance(change.wrapper, LookaheadEngine)
