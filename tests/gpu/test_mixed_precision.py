"""Half precision on the accelerator, by Lightning's autocast and gradient scaler."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from helpers.accelerator import fit_on, gpu_tests, parameters_of
from helpers.series import wave_windows
from helpers.training import QUIET, tiny_network
from lightning.pytorch.plugins import MixedPrecision

pytestmark = gpu_tests


@pytest.fixture(autouse=True)
def has_half_precision(device):
    """Skip devices for which Lightning has no mixed precision."""
    if device.type not in ("cuda", "cpu"):
        pytest.skip("Lightning has mixed precision on CUDA only")
    if device.type == "cuda" and not torch.cuda.is_bf16_supported():
        pytest.skip("this GPU has no bfloat16")


def precision_kwargs(device: torch.device, kind: str) -> dict[str, Any]:
    """Return trainer_kwargs; on the CPU, Lightning takes float16 as a plugin only."""
    if device.type == "cpu" and kind == "16-mixed":
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        return {**QUIET, "plugins": [MixedPrecision(kind, "cpu", scaler)]}
    return {**QUIET, "precision": kind}


def fit_float32(device: torch.device, **settings: Any):
    network, windows = tiny_network(torch.float32), wave_windows(torch.float32)
    settings = {"gamma": None, "learning_rate": 0.02, **settings}
    return fit_on(device, network, windows, **settings)


@pytest.mark.parametrize("kind", ["16-mixed", "bf16-mixed"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("method", ["scott", "plain", "mars"])
def test_half_precision_is_close_to_full_precision(device, method, optimizer, kind):
    """It is off by rounding: less than a tenth of the way that training has gone."""
    settings = {"method": method, "optimizer": optimizer}
    expected = parameters_of(fit_float32(device, **settings)[0])
    kwargs = precision_kwargs(device, kind)
    network, trainer = fit_float32(device, trainer_kwargs=kwargs, **settings)
    start = parameters_of(tiny_network(torch.float32))
    distance = (parameters_of(network) - expected).norm()
    assert float(distance) < 0.1 * float((expected - start).norm())
    assert float(distance) > 0, "nothing was computed in half precision"
    assert trainer.history["skipped"].iloc[-1] == 0


class RecordScale(pl.Callback):
    """Records the scale after each outer loop."""

    def __init__(self) -> None:
        self.scales: list[float] = []

    def on_train_batch_end(self, trainer, pl_module, *_):
        self.scales.append(pl_module.runner.parts.engine.gradients.scale)


@pytest.mark.parametrize("method", ["scott", "plain"])
def test_overflow_lowers_the_scale_and_is_no_fault(device, method):
    recorder = RecordScale()
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0**30, growth_interval=10**6)
    plugin = MixedPrecision("16-mixed", device.type, scaler)
    kwargs = {**QUIET, "plugins": [plugin], "callbacks": [recorder]}
    network, trainer = fit_float32(device, method=method, epochs=3, trainer_kwargs=kwargs)
    assert recorder.scales[-1] < 2.0**30
    assert trainer.history["skipped"].iloc[-1] == 0
    found = parameters_of(network)
    assert bool(found.isfinite().all())
    assert not torch.equal(found, parameters_of(tiny_network(torch.float32)))
