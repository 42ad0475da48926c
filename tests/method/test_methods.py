"""A method is a class and a row in one table, and nothing else."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
from helpers.engine import assemble
from helpers.series import wave_windows
from helpers.training import assert_same_parameters, quiet_trainer, tiny_network

import pts_scott
from pts_scott import Stratifier
from pts_scott._utils.rng import Generators
from pts_scott.method.hyperparameters import Hyperparameters
from pts_scott.method.methods import METHODS, ControlVariate, Plain
from pts_scott.method.protocol import Sample
from pts_scott.method.samplers import FullSampler, UniformSampler

SOURCES = sorted(Path(pts_scott.__file__).parent.rglob("*.py"))


class HalfBatch(Plain):
    """A toy method: plain steps with half of a mini-batch."""

    def make_step_sampler(self):
        size = self.hyperparameters.batch_size // 2
        return UniformSampler(self.windows, size, self._generators.inner)


class HalfCoefficient(ControlVariate):
    """A toy method with an anchor and its own direction: half of the coefficient."""

    def make_anchor_sampler(self):
        return FullSampler(self.windows)

    def direction(self, engine, xi, anchor, coefficient):
        return engine.direction(xi, anchor, coefficient / 2)


@pytest.mark.parametrize("compiled", [False, "traced"])
def test_new_method_needs_one_class_and_one_row(monkeypatch, compiled):
    if compiled:
        monkeypatch.setattr(
            "pts_scott.engine.compilation.compile_graph", lambda graph, _: graph
        )
        monkeypatch.setattr(
            "pts_scott.training.compile_policy.has_compiler", lambda: True
        )
    monkeypatch.setitem(METHODS, "half", HalfBatch)
    settings = {"batch_size": 8, "optimizer": "adam", "compile": bool(compiled)}
    toy = quiet_trainer(method="half", **settings)
    network = tiny_network()
    toy.fit(network, wave_windows())
    assert toy.history["gradients"].iloc[-1] == 20 * 4
    assert toy.compiled is bool(compiled)

    plain = quiet_trainer(method="plain", **{**settings, "batch_size": 4})
    same = tiny_network()
    plain.fit(same, wave_windows())
    assert_same_parameters(network, same)


def test_new_method_may_have_an_anchor_and_its_own_direction(monkeypatch):
    monkeypatch.setitem(METHODS, "half", HalfCoefficient)
    found = {}
    for name, coefficient in (("half", 1.0), ("svrg", 0.5)):
        network = tiny_network()
        quiet_trainer(method=name, coefficient=coefficient, gamma=None).fit(
            network, wave_windows()
        )
        found[name] = list(network.parameters())
    for x, y in zip(*found.values(), strict=True):
        assert torch.equal(x, y)


def compared_strings(path: Path) -> set[str]:
    """Return the string constants that a module compares with something."""
    return {
        part.value
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Compare)
        for side in (node.left, *node.comparators)
        for part in ast.walk(side)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    }


def test_no_module_compares_method_names():
    # compile, threads, device and output know the word "auto", too: see the next test.
    names = set(METHODS) - {"auto"}
    found = {
        f"{path.name}: {name}"
        for path in SOURCES
        for name in compared_strings(path) & names
    }
    assert found == set()


def compares_method(node: ast.Compare) -> bool:
    """Return whether something called ``method`` is compared with a string."""
    parts = [p for side in (node.left, *node.comparators) for p in ast.walk(side)]
    names = {getattr(p, "attr", getattr(p, "id", None)) for p in parts}
    strings = [p for p in parts if isinstance(getattr(p, "value", None), str)]
    return "method" in names and bool(strings)


def test_no_module_compares_a_method_with_a_string():
    found = {
        f"{path.name}: {ast.unparse(node)}"
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Compare) and compares_method(node)
    }
    assert found == set()


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("config.method == 'auto'", True),
        ("method in ('auto', 'plain')", True),
        ("METHODS[config.method].uses_anchor == True", False),
        ("config.output == 'auto'", False),
    ],
)
def test_comparisons_of_methods_are_recognised(code, expected):
    assert compares_method(ast.parse(code, mode="eval").body) is expected


@pytest.mark.parametrize("method", METHODS)
def test_gradients_and_anchors_are_counted(method):
    windows = wave_windows()
    run = assemble(tiny_network(), windows, method, batch_size=3, anchor_batch_size=2)
    strata = len(Stratifier.calendar("hour").stratify(windows))
    anchor = {"scott": 2 * strata, "scsg": 2 * strata, "svrg": len(windows)}
    step = {"auto": 3, "plain": 3, "mars": 3, "stratified": 3}
    assert run.method.anchor_windows == anchor.get(method, 0)
    assert run.method.step_cost == step.get(method, 6)
    run.outer_loop(5)
    computed = 4 if method in anchor else 5  # v(t,0) is the anchor
    expected = anchor.get(method, 0) + computed * step.get(method, 6)
    expected -= 3 if method == "storm" else 0  # the first step has no second pass
    assert run.counters.gradients == expected
    assert run.counters.anchors == (method in anchor)


def test_equal_allocation_counts_b_windows_per_stratum():
    windows = wave_windows()
    strata = len(Stratifier.calendar("hour").stratify(windows))
    run = assemble(
        tiny_network(), windows, "stratified", batch_size=2 * strata, allocation="equal"
    )
    assert run.method.step_cost == 2 * strata
    run.outer_loop(5)
    assert run.counters.gradients == 5 * 2 * strata
    assert run.counters.anchors == 0


@pytest.mark.parametrize("method", METHODS)
def test_cancelled_windows_are_drawn_again(method):
    run = assemble(tiny_network(), wave_windows(), method)
    first = run.method.minibatch()
    run.method.put_back(first)
    state = run.method.state_dict()
    assert_same_sample(run.method.minibatch(), first)
    assert not torch.equal(run.method.minibatch().windows, first.windows)
    run.method.load_state_dict(state)
    assert_same_sample(run.method.minibatch(), first)


def assert_same_sample(found: Sample, expected: Sample) -> None:
    torch.testing.assert_close(tuple(found), tuple(expected), rtol=0, atol=0)


def test_allocation_leaves_svrg_one_stratum_per_window():
    windows = wave_windows()
    strata = Stratifier.series().stratify(windows)
    numbers = Hyperparameters("svrg", allocation="equal")
    method = METHODS["svrg"](numbers, windows, strata, Generators.from_seed(0))
    assert method.num_strata == len(windows)
