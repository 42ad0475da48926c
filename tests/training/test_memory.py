"""Memory: what training holds at most, and that it does not grow.

Both are measured in a process of their own, by the kernel's count of resident pages.
"""

from __future__ import annotations

import pytest
from helpers.memory import DEEP, RESET, run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not RESET.exists(), reason="needs Linux' counts of memory"),
]

PEAK = f"""
{DEEP}
network = Deep()
trainer = lambda: quiet_trainer(
    method=sys.argv[1], optimizer="adam", batch_size=4, anchor_batch_size=2,
    inner_steps=3, num_batches_per_epoch=6, gamma=None, clip_gradient=10.0,
)
trainer().fit(tiny_network(torch.float32), windows)  # loads what is loaded once
before = kilobytes("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
trainer().fit(network, windows)
size = sum(4 * p.numel() for p in network.parameters()) / 1024
print((kilobytes("VmHWM") - before) / size)
"""

GROWTH = """
network = tiny_network(torch.float32)
sizes, loops = {}, 0

def weigh(module, inputs):
    global loops
    loops += len(inputs[0]) == 18  # an anchor: 9 strata, b = 2
    if loops in (1000, 20000):
        sizes.setdefault(loops, kilobytes("VmRSS"))

network.layers.register_forward_pre_hook(weigh)
quiet_trainer(
    stratifier=Stratifier.periodic(3) * Stratifier.series(),
    batch_size=4, anchor_batch_size=2, inner_steps=1, num_batches_per_epoch=20_100,
).fit(network, windows)
print(sizes[20000] - sizes[1000])
"""


@pytest.mark.parametrize(
    ("method", "sets"),
    [
        # A gradient and two of Adam; with an anchor also snapshot and anchor, but no
        # second gradient: both passes add to one.
        ("plain", 1 + 2),
        ("scott", 1 + 2 + 2),
    ],
)
def test_training_holds_no_more_copies_of_the_parameters_than_it_needs(method, sets):
    copies = run(PEAK, method)
    assert sets - 0.5 < copies < sets + 0.3


def test_twenty_thousand_outer_loops_need_no_more_than_one_thousand():
    # The history itself is ten numbers of eight bytes for each outer loop.
    history = 19_000 * 80 / 1024
    assert run(GROWTH) < history + 1024
