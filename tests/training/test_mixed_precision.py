"""Training in half precision by Lightning's autocast and gradient scaler."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import pandas as pd
import pytest
import torch
from helpers.faults import SMALL_BATCHES
from helpers.series import wave_windows
from helpers.training import QUIET, quiet_trainer, tiny_network
from lightning.pytorch.plugins import MixedPrecision


def mixed_precision(kind: str, scale: float | None = None) -> dict[str, Any]:
    """Return trainer_kwargs with Lightning's plugin.

    On the CPU, Lightning accepts float16 as a plugin but not as ``precision=``.
    """
    scaler = None
    if scale is not None:
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=10**6)
    return {**QUIET, "plugins": [MixedPrecision(kind, "cpu", scaler)]}


class RecordScale(pl.Callback):
    """Records the scale after each outer loop."""

    def __init__(self) -> None:
        self.scales: list[float] = []

    def on_train_batch_end(self, trainer, pl_module, *_):
        self.scales.append(pl_module.runner.parts.engine.gradients.scale)


def fit_float32(**settings: Any) -> tuple[list[torch.Tensor], pd.DataFrame]:
    """Train a float32 network; return its parameters and the history."""
    network = tiny_network(torch.float32)
    trainer = quiet_trainer(**{"learning_rate": 0.02, **SMALL_BATCHES, **settings})
    trainer.fit(network, wave_windows(torch.float32))
    return [p.detach() for p in network.parameters()], trainer.history


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("method", ["scott", "plain"])
def test_steps_in_half_precision_are_close_to_full_precision(method, optimizer):
    """Both passes have the same scale: steps differ by the rounding of float16 only."""
    settings = {"method": method, "optimizer": optimizer, "gamma": None}
    expected, _ = fit_float32(**settings)
    start = [p.detach() for p in tiny_network(torch.float32).parameters()]
    for kind, scale in (("16-mixed", 1024.0), ("bf16-mixed", None)):
        kwargs = mixed_precision(kind, scale)
        found, history = fit_float32(trainer_kwargs=kwargs, **settings)
        assert history["skipped"].iloc[-1] == 0
        for x, y, begin in zip(found, expected, start, strict=True):
            assert float((x - y).norm()) < 0.1 * float((y - begin).norm())


@pytest.mark.parametrize("method", ["scott", "plain"])
def test_overflow_is_handled_by_the_scaler_and_is_no_fault(method):
    recorder = RecordScale()
    kwargs = mixed_precision("16-mixed", 2.0**30)  # far too large for float16
    kwargs["callbacks"] = [recorder]
    found, history = fit_float32(method=method, epochs=3, trainer_kwargs=kwargs)
    assert recorder.scales[-1] < 2.0**30
    assert all(bool(x.isfinite().all()) for x in found)
    assert history["skipped"].iloc[-1] == 0, "an overflow is no fault"
    start = list(tiny_network(torch.float32).parameters())
    assert not torch.equal(found[0], start[0]), "training continues after it"


@pytest.mark.parametrize("outer", [False, True], ids=["lightning", "user"])
@pytest.mark.parametrize("method", ["scott", "plain"])
def test_weights_cached_by_autocast_are_not_reused_after_an_update(
    monkeypatch, method, outer
):
    """Lightning 2.5.0 to 2.5.4 cache them for all steps of an outer loop."""
    found = []
    for cached in (True, False):

        def autocast(*_: Any, cached: bool = cached) -> Any:
            return torch.autocast("cpu", torch.bfloat16, cache_enabled=cached)

        if outer:
            with autocast():
                found.append(fit_float32(method=method)[0])
        else:
            monkeypatch.setattr(MixedPrecision, "autocast_context_manager", autocast)
            kwargs = {**QUIET, "precision": "bf16-mixed"}
            found.append(fit_float32(method=method, trainer_kwargs=kwargs)[0])
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0)
