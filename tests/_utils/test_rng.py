"""Random state: streams are independent, and global state is preserved."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from pts_scott._utils.rng import (
    Generators,
    changed_sources,
    draw_device,
    global_state,
    is_of_device,
    isolated_rng,
    offset_global_seed,
    preserved_rng,
    set_global_state,
)

CPU = torch.device("cpu")


def draw() -> tuple[float, float, float]:
    return float(torch.rand(())), float(np.random.rand()), random.random()


def test_isolated_draws_depend_only_on_the_seed_and_leave_no_trace():
    before = global_state(CPU)
    with isolated_rng(3, CPU):
        first = draw()
    assert changed_sources(before, global_state(CPU)) == frozenset()
    with preserved_rng(CPU):
        draw()
        with isolated_rng(3, CPU):
            assert draw() == first
        with isolated_rng(4, CPU):
            assert draw() != first


def test_state_is_preserved_after_an_error():
    before = global_state(CPU)
    try:
        with preserved_rng(CPU):
            draw()
            raise KeyError
    except KeyError:
        assert changed_sources(before, global_state(CPU)) == frozenset()


def test_changed_sources_names_the_generators_that_were_used():
    with preserved_rng(CPU):
        before = global_state(CPU)
        np.random.rand()
        assert changed_sources(before, global_state(CPU)) == {"numpy"}
        torch.rand(())
        random.random()
        after = global_state(CPU)
        assert changed_sources(before, after) == {"numpy", "torch", "python"}


def test_ranks_draw_different_numbers():
    drawn = []
    for rank in (0, 1):
        with isolated_rng(5, CPU):
            offset_global_seed(rank, CPU)
            drawn.append(draw())
    with isolated_rng(5, CPU):
        assert drawn[0] == draw()
    with isolated_rng(6, CPU):
        assert drawn[1] == draw()


def test_streams_of_training_do_not_depend_on_further_streams():
    """Runs of earlier versions had four streams, whose numbers have to stay the same."""
    seeds = np.random.SeedSequence(7).generate_state(4, dtype=np.uint64)
    generators = Generators.from_seed(7)
    for name, seed in zip(("anchor", "inner", "length", "output"), seeds, strict=True):
        expected = torch.Generator().manual_seed(int(seed) % 2**63)
        found = torch.rand(3, generator=getattr(generators, name))
        assert torch.equal(found, torch.rand(3, generator=expected)), name


def test_every_stream_has_its_own_numbers():
    generators = Generators.from_seed(7)
    drawn = {
        float(torch.rand((), generator=getattr(generators, name)))
        for name in ("anchor", "inner", "length", "output", "probe")
    }
    assert len(drawn) == 5


def test_streams_resume_from_their_state():
    generators = Generators.from_seed(0)
    torch.rand(3, generator=generators.inner)
    state = generators.state_dict()
    expected = torch.rand(3, generator=generators.inner)
    resumed = Generators.from_seed(1)
    resumed.load_state_dict(state)
    assert torch.equal(torch.rand(3, generator=resumed.inner), expected)


def test_seeding_leaves_other_devices_alone(monkeypatch):
    seeded = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    with isolated_rng(5, CPU):
        inside = torch.rand(())
    assert not seeded
    assert inside == torch.rand((), generator=torch.Generator().manual_seed(5))


class FakeDevice:
    """The random state of a device that is not there."""

    def __init__(self, size: int) -> None:
        self.state = torch.zeros(size, dtype=torch.uint8)

    def get_rng_state(self, device=None):
        return self.state

    def set_rng_state(self, state, device=None):
        self.state = state


def test_random_state_of_another_kind_of_device_is_recognised(monkeypatch):
    cuda = torch.device("cuda")
    monkeypatch.setattr("pts_scott._utils.rng._device_rng", lambda _: FakeDevice(16))
    on_cpu, on_cuda = global_state(CPU), global_state(cuda)
    assert is_of_device(on_cpu, CPU)
    assert is_of_device(on_cuda, cuda)
    assert not is_of_device(on_cpu, cuda)
    assert not is_of_device(on_cuda, CPU)
    assert not is_of_device({"device": torch.zeros(44, dtype=torch.uint8)}, cuda)


def test_random_state_of_another_kind_of_device_is_not_set(monkeypatch):
    fake = FakeDevice(16)
    monkeypatch.setattr("pts_scott._utils.rng._device_rng", lambda _: fake)
    cuda, ones = torch.device("cuda"), torch.ones(16, dtype=torch.uint8)
    set_global_state({"device": torch.ones(44, dtype=torch.uint8)}, cuda)
    assert not fake.state.any()
    set_global_state({"device": ones}, CPU)
    assert not fake.state.any()
    set_global_state({"device": ones}, cuda)
    assert fake.state.all()


@pytest.mark.parametrize("kind", ["cpu", "cuda", "mps", "xpu"])
def test_numbers_for_all_devices_are_drawn_on_the_cpu(kind):
    assert draw_device(torch.device(kind)) == CPU
