"""The reference: formulas by hand, torch's optimizers, and the return line."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import numpy as np
import pytest
import torch

from pts_scott.method import reference

VALUES = [1.0, 3.0, 8.0]  # f_i(θ) = (θ − value_i)² / 2 has the gradient θ − value_i
gradient = reference.window_gradient(lambda theta, i: (theta[0] - VALUES[i]) ** 2 / 2)


def number(value: float) -> list[torch.Tensor]:
    return [torch.tensor(value, dtype=torch.float64)]


def test_gradient_of_one_window():
    assert float(gradient(number(5.0), 2)[0]) == -3.0


def test_uniform_mini_batch_is_the_mean_of_its_windows():
    (found,) = reference.average(gradient, number(5.0), [0, 0, 2])
    assert float(found) == pytest.approx((4 + 4 - 3) / 3)


def test_stratified_sample_is_weighted_by_stratum():
    sample = [(0.75, [0, 1]), (0.25, [2])]
    (found,) = reference.stratified(gradient, number(5.0), sample)
    assert float(found) == pytest.approx(0.75 * (4 + 2) / 2 + 0.25 * -3)


def test_inner_steps_are_corrected_by_the_anchor():
    batches = iter([[0], [2], [1]])
    steps = reference.scott(
        gradient,
        number(5.0),
        lambda: [(1.0, [0, 1, 2])],
        lambda: next(batches),
        reference.SGD(0.5, 0.0),
        lambda: 2,
        coefficient=1.0,
    )
    found = [(t, float(v[0]), float(x[0])) for t, v, x in itertools.islice(steps, 3)]
    # The gradients of these windows differ by constants, which the anchor removes:
    # v is the full gradient θ − 4, and each step halves the way to 4.
    assert [t for t, _, _ in found] == [0, 0, 1]
    assert [v for _, v, _ in found] == pytest.approx([1.0, 0.5, 0.25])
    assert [x for _, _, x in found] == pytest.approx([4.5, 4.25, 4.125])


def test_outer_loop_ends_when_the_norm_has_decreased_to_gamma():
    steps = reference.scott(
        gradient,
        number(5.0),
        lambda: [(1.0, [0, 1, 2])],
        lambda: [0],
        reference.SGD(0.5, 0.0),
        lambda: 9,
        gamma=1 / 16,  # ‖v‖² is divided by 4 in each step
    )
    assert [t for t, _, _ in itertools.islice(steps, 7)] == [0, 0, 0, 1, 1, 1, 2]


def test_mars_adds_the_change_of_the_gradient():
    batches = iter([[0], [2], [2]])
    steps = reference.mars(
        gradient,
        number(5.0),
        lambda: next(batches),
        reference.SGD(0.5, 0.0),
        gamma=0.25,
        beta=0.8,  # γ·β/(1 − β) = 1
    )
    found = [(float(v[0]), float(x[0])) for _, v, x in itertools.islice(steps, 3)]
    # Gradients 4, 3 − 8 = −5 and 10 − 8 = 2; the change of the first is not known.
    assert [v for v, _ in found] == pytest.approx([4.0, -5.0 - 9.0, 2.0 + 7.0])
    assert [x for _, x in found] == pytest.approx([3.0, 10.0, 5.5])


def test_storm_corrects_its_direction_and_forgets_a_share_of_it():
    batches = iter([[0], [2], [1]])
    steps = reference.storm(
        gradient, number(5.0), lambda: next(batches), reference.SGD(0.5, 0.0), a=0.5
    )
    found = [(float(v[0]), float(x[0])) for _, v, x in itertools.islice(steps, 3)]
    # d = 4 at 5; at 3 it is −5 + (4 + 3) / 2; at 3.75 it is 0.75 + (−1.5 − 0) / 2.
    assert [v for v, _ in found] == pytest.approx([4.0, -1.5, 0.0])
    assert [x for _, x in found] == pytest.approx([3.0, 3.75, 3.75])


@pytest.mark.parametrize("name", reference.REFERENCE_OPTIMIZERS)
def test_optimizers_equal_those_of_torch(name):
    kinds = {
        "sgd": torch.optim.SGD,
        "adam": torch.optim.Adam,
        "adagrad": torch.optim.Adagrad,
    }
    generator = torch.Generator().manual_seed(0)
    parameter = torch.nn.Parameter(torch.ones(4, dtype=torch.float64))
    optimizer = kinds[name]([parameter], lr=0.1, weight_decay=0.1)
    update = reference.REFERENCE_OPTIMIZERS[name](0.1, 0.1)
    theta = [parameter.detach().clone()]
    for _ in range(5):
        v = torch.randn(4, generator=generator, dtype=torch.float64)
        theta = update(theta, [v])
        parameter.grad = v.clone()
        optimizer.step()
        torch.testing.assert_close(theta[0], parameter.detach(), rtol=1e-12, atol=1e-14)


def test_snapshots_are_sampled_in_proportion_to_their_step_sizes():
    snapshots = [number(float(t)) for t in range(4)]
    step_sizes, repeats = [0.4, 0.1, 0.2, 0.1], 8000
    rng, counts = random.Random(0), Counter()
    for _ in range(repeats):
        (theta,) = reference.sampled_snapshot(snapshots, step_sizes, rng)
        counts[int(theta)] += 1
    for t, step_size in enumerate(step_sizes):
        p = step_size / sum(step_sizes)
        # Five standard errors: a right sampler fails once in about 400,000 runs.
        error = np.sqrt(p * (1 - p) / repeats)
        assert abs(counts[t] / repeats - p) < 5 * error
