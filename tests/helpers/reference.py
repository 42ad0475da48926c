"""Training recorded step by step, and the same steps by the plain reference."""

from __future__ import annotations

import copy
import itertools

import torch
from torch.func import functional_call

from helpers.series import wave_windows
from helpers.training import PAPER, QUIET, TinyNetwork, tiny_network
from pts_scott import ScottTrainer, Stratifier
from pts_scott._utils.rng import Generators
from pts_scott.data.window_index import WindowIndex
from pts_scott.engine.losses import Losses
from pts_scott.method import reference
from pts_scott.method.methods import METHODS
from pts_scott.method.samplers import AllocatedSampler
from pts_scott.strata.partition import Strata
from pts_scott.strata.policies import Single

SEED = 11
STEPS = 26
INNER_STEPS = 7
BATCH = 3
B_PER_STRATUM = 2
STRATIFIER = Stratifier.periodic(3) * Stratifier.series()
STRATA = 9
#: Settings of single methods: stratified steps of b windows per stratum.
OWN_SETTINGS = {
    "stratified": {"allocation": "equal", "batch_size": STRATA * B_PER_STRATUM}
}


class RecordingTrainer(ScottTrainer):
    """A trainer that records v and the parameters after every step."""

    def _make_optimizer(self, parameters):
        self.directions, self.path = [], []
        optimizer = super()._make_optimizer(parameters)

        def record(*_):
            self.directions.append([p.grad.clone() for p in parameters])
            self.path.append([p.detach().clone() for p in parameters])

        optimizer.register_step_post_hook(record)
        return optimizer


def train(
    method: str,
    optimizer: str = "sgd",
    network: TinyNetwork | None = None,
    windows: WindowIndex | None = None,
    **kwargs,
) -> RecordingTrainer:
    """Train with fixed settings and return the trainer with its records."""
    settings = {
        **PAPER,
        "learning_rate": 0.05,
        "weight_decay": 1e-3,
        "stratifier": STRATIFIER,
        "batch_size": BATCH,
        "anchor_batch_size": B_PER_STRATUM,
        "inner_steps": INNER_STEPS,
        "epochs": 1,
        "num_batches_per_epoch": STEPS,
        "compile": False,
        "seed": SEED,
        "trainer_kwargs": QUIET,
        **OWN_SETTINGS.get(method, {}),
        **kwargs,
        "method": method,
        "optimizer": optimizer,
    }
    trainer = RecordingTrainer(**settings)
    trainer.fit(network or tiny_network(), windows or wave_windows())
    return trainer


def reference_path(
    method: str,
    optimizer: str,
    gamma: float | None,
    windows: WindowIndex,
    strata: Strata,
    network: torch.nn.Module | None = None,
) -> list[list[torch.Tensor]]:
    """Return the parameters after every step, by the reference with the same draws."""
    losses = Losses(network or tiny_network(), windows.fields)
    names = list(losses.trainable())
    generators = Generators.from_seed(SEED)

    def loss(theta: list[torch.Tensor], window: int) -> torch.Tensor:
        batch = windows.gather(torch.tensor([window]), losses.fields)
        return functional_call(losses, dict(zip(names, theta)), (batch,))[0]

    gradient = reference.window_gradient(loss)

    def draw_uniform(size: int, generator: torch.Generator) -> list[int]:
        return windows.draw(size, generator).tolist()

    def draw_stratified() -> list[tuple[float, list[int]]]:
        numbers = strata.draw(B_PER_STRATUM, generators.anchor)
        parts = numbers.reshape(len(strata), B_PER_STRATUM).tolist()
        return list(zip(strata.weights.tolist(), parts))

    # Uniform until the first measurement, and drawn as a partition with one stratum.
    everything = Single().stratify(windows)
    automatic = AllocatedSampler(everything, everything.weights, BATCH, generators.anchor)
    samples = {
        "auto": lambda: [(1.0, automatic.draw().windows.tolist())],
        "scott": draw_stratified,
        "stratified": draw_stratified,
        "scsg": lambda: [
            (1.0, draw_uniform(len(strata) * B_PER_STRATUM, generators.anchor))
        ],
        "svrg": lambda: [(1.0, list(range(len(windows))))],
        "plain": lambda: [(1.0, draw_uniform(BATCH, generators.inner))],
    }
    theta = [p.detach().clone() for p in losses.trainable().values()]
    update = reference.REFERENCE_OPTIMIZERS[optimizer](0.05, 1e-3)

    def draw_minibatch() -> list[int]:
        return draw_uniform(BATCH, generators.inner)

    literature = {
        "mars": lambda *given: reference.mars(*given, gamma=0.025, beta=0.95),
        "storm": lambda *given: reference.storm(*given, a=0.1),
    }
    if method in literature:
        steps = literature[method](gradient, theta, draw_minibatch, update)
    elif METHODS[method].uses_anchor:
        steps = reference.scott(
            gradient,
            theta,
            samples[method],
            draw_minibatch,
            update,
            lambda: INNER_STEPS,
            gamma,
        )
    else:
        steps = reference.single_gradient(gradient, theta, samples[method], update)
    return [theta for _, _, theta in itertools.islice(steps, STEPS)]


def assert_equals_reference(
    method: str, network: torch.nn.Module, windows: WindowIndex
) -> None:
    """Train a network, and compare it with the reference after every step."""
    copied = copy.deepcopy(network)
    strata = STRATIFIER.stratify(windows)
    trainer = train(method, "sgd", network=network, windows=windows, gamma=0.6)
    expected = reference_path(method, "sgd", 0.6, windows, strata, copied)
    assert len(trainer.path) == len(expected)
    for found, wanted in zip(trainer.path, expected):
        for x, y in zip(found, wanted):
            torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-8)
