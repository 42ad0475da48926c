"""Sketches of the gradients of single windows, as cheaply as possible.

A sketch is a random projection to few dimensions: the inner product of two sketches is,
on average, that of the gradients. They come from one batched pass where the linear maps
of the network carry a good part of its gradient, as they do in nearly all forecasting
models, and are then of that part; otherwise from the gradients of single windows.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pts_scott._utils.rng import draw_integers
from pts_scott._utils.spacing import evenly_spaced
from pts_scott.data.window_index import Batch, WindowIndex
from pts_scott.diagnostics.linear_maps import (
    Map,
    RecordLinear,
    WindowFactors,
    projections,
    squared_norms,
    window_factors,
)
from pts_scott.diagnostics.window_gradients import WindowGradients
from pts_scott.engine.isolation import constant, evaluation_passes
from pts_scott.engine.losses import Losses
from pts_scott.method.protocol import Tensors

DIMENSIONS = 64
PASS_WINDOWS = 256  # windows per batched pass
CHECKED_PASS, CHECKED_WINDOWS = 31, 3  # an unusual size, so that no layout fits by chance
#: Share of a gradient's squared norm that linear maps must carry to stand for all of it:
#: the heads of recurrent networks do, and differentiating windows one by one is slow.
ENOUGH = 0.2
#: Share of what all linear maps carry that those of the sketches carry. In deep networks
#: a few of them do, and the others would cost as much.
KEPT = 0.95
# Costs of a window in gradients of a batch, measured on networks of these benchmarks.
LINEAR_COST, SINGLE_COST = 3, 32


class GradientSketches:
    """Sketches of the gradients of one network.

    The network is used in evaluation mode; neither it nor global random state changes.

    Parameters
    ----------
    losses
        The window losses of the network.
    seed
        Seed of the projection.
    dimensions
        Dimensions of a sketch.
    """

    def __init__(self, losses: Losses, seed: int, dimensions: int = DIMENSIONS) -> None:
        self._losses, self._seed, self._dimensions = losses, seed, dimensions
        self._parameters: Tensors = tuple(losses.trainable().values())
        self._window_gradients = WindowGradients(losses)
        #: The linear maps that sketches are made of; empty for gradients one by one.
        self._maps: frozenset[Map] | None = None
        self._signs: dict[tuple[int, tuple[int, ...]], Tensor] = {}

    def is_linear(self, windows: WindowIndex) -> bool:
        """Return whether linear maps carry enough of a gradient, measured once."""
        if self._maps is None:
            self._maps = self._find_maps(windows)
        return bool(self._maps)

    def state_dict(self) -> dict[str, Any]:
        """Return what was measured once."""
        maps = None if self._maps is None else sorted(self._maps, key=str)
        return {"maps": None if maps is None else [list(key) for key in maps]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        maps = state["maps"]
        self._maps = None if maps is None else frozenset((m[0], m[1]) for m in maps)

    def cost(self, windows: WindowIndex) -> int:
        """Return the cost of one window, in gradients of a batch."""
        return LINEAR_COST if self.is_linear(windows) else SINGLE_COST

    def __call__(self, windows: WindowIndex, numbers: Tensor) -> Tensor:
        """Return the sketches of some windows at the network's current parameters.

        Their shape is (windows, dimensions), and their type float64.
        """
        return self.at(self._parameters, windows, numbers)

    def at(self, parameters: Tensors, windows: WindowIndex, numbers: Tensor) -> Tensor:
        """Return the sketches of some windows at other parameters."""
        linear = self.is_linear(windows)
        size = PASS_WINDOWS if linear else self._window_gradients.chunk
        parts = []
        with evaluation_passes(self._losses, windows.device):
            for part in numbers.split(size):
                batch = windows.gather(part, self._losses.fields)
                batch = {name: constant(values) for name, values in batch.items()}
                sketch = self._by_factors if linear else self._by_windows
                parts.append(sketch(parameters, batch))
        return torch.cat(parts).cpu().double()  # MPS has no double precision

    # -- from the linear maps of one pass ----------------------------------------------

    def _by_factors(self, parameters: Tensors, batch: Batch) -> Tensor:
        parts = []
        for key, factors in self._factors(parameters, batch).items():
            stream = 3 * (key[0] if key[0] is not None else key[1] or 0)
            inputs, deltas = factors
            signs = (
                self._signs_of(stream, (inputs.shape[-1], self._dimensions), inputs),
                self._signs_of(stream + 1, (deltas.shape[-1], self._dimensions), inputs),
                self._signs_of(stream + 2, (self._dimensions,), inputs),
            )
            parts.append(projections(key, factors, *signs))
        return torch.stack(parts).sum(dim=0) / math.sqrt(self._dimensions)

    def _factors(self, parameters: Tensors, batch: Batch) -> dict[Map, WindowFactors]:
        """Return the factors of each linear map."""
        values = parameters
        if parameters is not self._parameters:
            values = tuple(constant(p).requires_grad_() for p in parameters)
        # The backward pass may run parts of the network again, at these parameters, too.
        with self._losses.exchanged(self._losses.places(), values):
            with RecordLinear(values) as recorded:
                losses = self._losses(batch)
            calls = recorded.calls
            if self._maps is not None:
                calls = [call for call in calls if (call.weight, call.bias) in self._maps]
            return window_factors(losses, calls)

    def _signs_of(self, stream: int, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return random signs, the same at every call."""
        if (stream, shape) not in self._signs:
            self._signs[stream, shape] = self._random_signs(stream, shape).to(like)
        return self._signs[stream, shape]

    def _random_signs(self, stream: int, shape: tuple[int, ...]) -> Tensor:
        generator = torch.Generator().manual_seed(self._seed * 2**20 + stream)
        return 2 * torch.randint(2, shape, generator=generator) - 1

    def _find_maps(self, windows: WindowIndex) -> frozenset[Map]:
        """Return the linear maps, if they give the right norms, and enough of a gradient.

        They would be wrong in a network that mixes windows, or orders its rows in
        another way; three windows differentiated one by one show it.
        """
        numbers = evenly_spaced(len(windows), CHECKED_PASS).to(windows.device)
        with evaluation_passes(self._losses, windows.device):
            batch = windows.gather(numbers, self._losses.fields)
            batch = {name: constant(values) for name, values in batch.items()}
            found = self._factors(self._parameters, batch)
            if not found:
                return frozenset()
            point = tuple(map(constant, self._parameters))
            few = {name: values[:CHECKED_WINDOWS] for name, values in batch.items()}
            exact = self._window_gradients(point, few)
        norms = {key: squared_norms(key, factors) for key, factors in found.items()}
        shares = dict.fromkeys(found, 0.0)
        for number in range(min(CHECKED_WINDOWS, len(numbers))):
            squares = [float(g[number].cpu().double().square().sum()) for g in exact]
            covered = sum(squares[p] for key in found for p in key if p is not None)
            norm = sum(float(own[number]) for own in norms.values())
            right = math.isclose(norm, covered, rel_tol=1e-2, abs_tol=1e-30)
            if not right or covered < ENOUGH * sum(squares):
                return frozenset()
            for key, own in norms.items():
                shares[key] += float(own[number]) / max(norm, 1e-300)
        return _largest(shares)

    # -- from gradients of single windows ----------------------------------------------

    def _by_windows(self, parameters: Tensors, batch: Batch) -> Tensor:
        point = tuple(map(constant, parameters))
        gradients = self._window_gradients(point, batch)
        flat = [g.reshape(len(g), -1) for g in gradients]
        rows = flat[0].new_zeros(len(flat[0]), self._dimensions)
        for place, g in enumerate(flat):  # a count sketch: each number into one bucket
            signs = self._random_signs(2 * place, (g.shape[1],)).to(g)
            generator = torch.Generator().manual_seed(self._seed * 2**20 + 2 * place + 1)
            shape, cpu = (g.shape[1],), torch.device("cpu")
            bucket = draw_integers(self._dimensions, shape, generator, cpu)
            rows.index_add_(1, bucket.to(g.device), g * signs)
        return rows


def _largest(shares: dict[Map, float]) -> frozenset[Map]:
    """Return the largest parts that together are nearly all."""
    total, kept = sum(shares.values()), 0.0
    chosen = []
    for key in sorted(shares, key=lambda key: -shares[key]):
        if kept >= KEPT * total:
            break
        kept += shares[key]
        chosen.append(key)
    return frozenset(chosen)
