"""Tables of the results page on the variance of gradients."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from pts_scott.diagnostics.sampler_formulas import SamplerFormulas, StepSettings

ROOT = Path(__file__).parents[1]
TOTAL, SNAPSHOT, CHANGE = 8.0, 6.0, 3.0  # σ² at θ and at the snapshot, and τ²


@pytest.fixture
def tables(monkeypatch):
    """Import the module from the folder of benchmarks."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("variance_tables")


def measured(gradients=69, inner_steps=20.0):
    """Return a measurement of strata with half of the variance of all windows."""
    settings = StepSettings(gradients, 1, inner_steps, coefficient=1.0)
    everywhere = torch.tensor([[[TOTAL, SNAPSHOT, CHANGE]]])
    formulas = SamplerFormulas(settings, everywhere, exact=True)

    class FourStrata(SimpleNamespace):
        def __len__(self):
            return 4

    strata = FourStrata(weights=torch.full((4,), 0.25))
    inside = everywhere.expand(4, 1, 3) / 2
    rows = [formulas.uniform(), *formulas.stratified("weekday", strata, inside)]
    table = pd.DataFrame([dataclasses.asdict(row) for row in rows])
    return table.assign(setting="mlp-M32", step=100)


def test_parts_of_the_variance_of_an_inner_step_are_recovered(tables):
    found = tables.control_variate(measured(), {"mlp-M32": 32}).loc["mlp-M32"]
    assert found["steps"] == pytest.approx(20.0)
    assert found["left"] == pytest.approx(CHANGE / TOTAL)
    # Of four strata with a quarter of the windows each, b = 1: Σ w² σ² = σ²/8.
    assert found["anchor"] == pytest.approx(32 * (SNAPSHOT / 8) / TOTAL)


def test_variances_relative_to_uniform_mini_batches(tables):
    header, _, row = tables.sampler_table(measured()).markdown().splitlines()[:3]
    assert [cell.strip() for cell in header.split("|")[2:5]] == [
        "stratified",
        "SCott",
        "SCSG",
    ]
    assert row.split("|")[2].strip() == "0.50"
