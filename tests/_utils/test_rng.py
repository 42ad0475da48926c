"""Random state: streams are independent, and global state is preserved."""

from __future__ import annotations

import random

import numpy as np
import torch

from pts_scott._utils.rng import (
    Generators,
    changed_sources,
    global_state,
    isolated_rng,
    offset_global_seed,
    preserved_rng,
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
            offset_global_seed(rank)
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
