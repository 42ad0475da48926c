"""RunAssembly: checks that need the data, the strata and the method together."""

from __future__ import annotations

import pytest
from helpers.runs import fit_tiny_network
from helpers.series import wave_windows
from helpers.training import quiet_trainer, tiny_network

from pts_scott import Stratifier
from pts_scott.errors import ArgumentError, ScottWarning


def test_anchor_smaller_than_a_mini_batch_gives_a_warning():
    trainer = quiet_trainer(stratifier=Stratifier.calendar("year"), anchor_batch_size=31)
    with pytest.warns(
        UserWarning, match="1 strata x anchor_batch_size=31 averages fewer windows"
    ):
        fit_tiny_network(trainer)


def test_gradient_budget_below_the_first_step_is_refused():
    trainer = quiet_trainer(gradient_budget=10, stratifier=Stratifier.series())
    with pytest.raises(ArgumentError, match="first step .* needs 112 gradients"):
        fit_tiny_network(trainer)


@pytest.mark.parametrize(
    ("method", "stratified"),
    [
        ("scott", True),
        ("stratified", True),
        ("scsg", True),
        ("svrg", False),
        ("plain", False),
        ("auto", False),  # before its first measurement
    ],
)
def test_strata_are_made_for_methods_that_use_them(method, stratified):
    trainer = quiet_trainer(method=method, stratifier=Stratifier.series())
    fit_tiny_network(trainer)
    assert (trainer.strata is not None) == stratified


def test_warnings_point_to_the_caller_of_fit(monkeypatch):
    monkeypatch.setattr("pts_scott.training.compile_policy.has_compiler", lambda: False)
    trainer = quiet_trainer(
        compile=True, stratifier=Stratifier.calendar("year"), anchor_batch_size=31
    )
    with pytest.warns(ScottWarning) as caught:
        trainer.fit(tiny_network(), wave_windows())
    assert {warning.filename for warning in caught} == {__file__}
    assert len(caught) == 2
