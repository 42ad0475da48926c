"""Budget: when training ends."""

from __future__ import annotations

import pytest
from helpers.runs import fit_tiny_network
from helpers.training import quiet_trainer

from pts_scott.method.methods import METHODS
from pts_scott.training.budget import Budget


@pytest.mark.parametrize(
    ("budget", "allowed"),
    [
        (Budget(None, None, None), True),
        (Budget(6, None, None), True),
        (Budget(5, None, None), False),
        (Budget(None, 2.1, None), True),
        (Budget(None, 2.0, None), False),
        (Budget(None, None, 108), True),
        (Budget(None, None, 107), False),
        (Budget(6, 2.0, 108), False),
    ],
)
def test_every_part_of_the_budget_must_allow_the_next_step(budget, allowed):
    assert budget.allows(steps=5, seconds=2.0, gradients=100, cost=8) is allowed


@pytest.mark.parametrize(
    ("budget", "share"),
    [
        (Budget(None, None, None), 0.0),
        (Budget(20, None, None), 0.25),
        (Budget(20, 4.0, 1000), 0.5),
        (Budget(2, None, None), 1.0),
    ],
)
def test_spent_share_is_that_of_the_part_nearest_to_its_end(budget, share):
    assert budget.spent(steps=5, seconds=2.0, gradients=100) == share


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("gamma", [None, 0.5])
def test_run_has_the_steps_of_its_epochs(method, gamma):
    trainer = quiet_trainer(
        method=method, gamma=gamma, epochs=3, num_batches_per_epoch=17, inner_steps=5
    )
    fit_tiny_network(trainer, validate=True)
    history = trainer.history
    assert history["step"].iloc[-1] == 51
    assert history["val_loss"].notna().sum() == 3
    last = history.groupby("epoch")["step"].max()
    # An outer loop may extend past the end of an epoch; the next epoch is then shorter.
    assert (last.to_numpy() - [17, 34, 51] < 5).all()
    assert (last.to_numpy() >= [17, 34, 51]).all()


@pytest.mark.parametrize("method", METHODS)
def test_gradient_budget_is_used_but_never_exceeded(method):
    budget = 1000
    trainer = quiet_trainer(
        method=method, batch_size=4, epochs=None, gradient_budget=budget, inner_steps=5
    )
    fit_tiny_network(trainer)
    used = trainer.history["gradients"].iloc[-1]
    largest = 117 + 8 if method == "svrg" else 48 + 8  # cost of an anchor and a step
    assert budget - largest < used <= budget


def test_time_budget_ends_training():
    trainer = quiet_trainer(method="plain", epochs=None, time_budget=0.5)
    fit_tiny_network(trainer)
    # It may end one outer loop early, or late by a pause of a busy machine.
    assert 0.3 < trainer.history["seconds"].iloc[-1] < 5
