"""Memory: the peak of training is bounded, and it does not grow with time.

Both are measured in a separate process, by the kernel's count of resident pages.
"""

from __future__ import annotations

import pytest
from helpers.memory import DEEP, RESET, run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not RESET.exists(), reason="needs Linux's /proc"),
]

PEAK = f"""
{DEEP}
network = Deep()
trainer = lambda: quiet_trainer(
    method=sys.argv[1], optimizer="adam", batch_size=4, anchor_batch_size=2,
    inner_steps=3, num_batches_per_epoch=6, gamma=None, clip_gradient=10.0,
)
trainer().fit(tiny_network(torch.float32), windows)  # loads lazy imports
before = kilobytes("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # reset the peak
trainer().fit(network, windows)
size = sum(4 * p.numel() for p in network.parameters()) / 1024
print((kilobytes("VmHWM") - before) / size)
"""

GROWTH = """
network = tiny_network(torch.float32)
sizes, loops = {}, 0

def measure(module, inputs):
    global loops
    loops += len(inputs[0]) == 18  # an anchor: 9 strata, b = 2
    if loops in (1000, 20000):
        sizes.setdefault(loops, kilobytes("VmRSS"))

network.layers.register_forward_pre_hook(measure)
quiet_trainer(
    stratifier=Stratifier.periodic(3) * Stratifier.series(),
    batch_size=4, anchor_batch_size=2, inner_steps=1, num_batches_per_epoch=20_100,
).fit(network, windows)
print(sizes[20000] - sizes[1000])
"""


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        # The gradient and two moments of Adam; with an anchor also snapshot and anchor,
        # but no second gradient: both passes accumulate into one.
        ("plain", 1 + 2),
        ("scott", 1 + 2 + 2),
    ],
)
def test_peak_memory_is_the_expected_copies_of_the_parameters(method, expected):
    copies = run(PEAK, method)
    assert expected - 0.5 < copies < expected + 0.3


def test_memory_does_not_grow_over_twenty_thousand_outer_loops():
    # The history is thirteen numbers of eight bytes per outer loop.
    history = 19_000 * 13 * 8 / 1024
    assert run(GROWTH) < history + 1024
