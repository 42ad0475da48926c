"""Large data: training from a mapped file takes memory for series, not for their values.

Measured in a separate process, by anonymous pages: those of the mapped file are not
counted, because the operating system can drop them at any time.
"""

from __future__ import annotations

import numpy as np
import pytest
from helpers.memory import RESET, run

pa = pytest.importorskip("pyarrow")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not RESET.exists(), reason="needs Linux's /proc"),
]

SERIES, STEPS, BATCH = 100_000, 1_000, 10_000
MEGABYTES = 4 * SERIES * STEPS / 1e6  # of all values in single precision

PEAK = """
import threading, time
from pts_scott import ArrowDataset, ScottTrainer, SimpleFeedForwardEstimator

OPTIONS = {
    "defaults": {"epochs": 30},  # enough to afford a probe
    "learned": {
        "epochs": 4,
        "method": "stratified",
        "stratifier": Stratifier.learned(32),
        "allocation": "spread",
    },
}

def train(dataset, **options):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    trainer = ScottTrainer(seed=0, trainer_kwargs=quiet, **options)
    SimpleFeedForwardEstimator("h", 24, 72, trainer=trainer).train(dataset)
    return trainer

def watch():
    global peak
    while watching:
        peak = max(peak, kilobytes("RssAnon"))
        time.sleep(0.005)

few = [{"item_id": "0", "start": "2024-01-01", "target": torch.rand(500).numpy()}]
train(few, **OPTIONS["learned"])  # loads lazy imports
before = peak = kilobytes("RssAnon")
watching = True
thread = threading.Thread(target=watch)
thread.start()
trainer = train(ArrowDataset(sys.argv[1], "h"), **OPTIONS[sys.argv[2]])
watching = False
thread.join()
assert trainer.history["probe_gradients"].iloc[-1] > 0
print((peak - before) / 1e3)
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Return a file of series, written without holding all of them."""
    path = tmp_path_factory.mktemp("large") / "series.arrow"
    rng = np.random.default_rng(0)
    values = rng.lognormal(size=(BATCH, 1)) * rng.random((BATCH, STEPS))
    offsets = np.arange(BATCH + 1, dtype=np.int32) * STEPS
    target = pa.ListArray.from_arrays(offsets, values.astype(np.float32).reshape(-1))
    start = pa.array([np.datetime64("2024-01-01", "us")] * BATCH, pa.timestamp("us"))
    kinds = {"item_id": pa.string(), "start": start.type, "target": target.type}
    with pa.RecordBatchFileWriter(str(path), pa.schema(kinds.items())) as writer:
        for first in range(0, SERIES, BATCH):
            item_ids = pa.array([str(k) for k in range(first, first + BATCH)])
            columns = [item_ids, start, target]
            writer.write_batch(pa.record_batch(columns, names=list(kinds)))
    return path


@pytest.mark.parametrize("options", ["defaults", "learned"])
def test_values_of_a_mapped_file_are_never_in_memory(path, options):
    # Half of the values; the promise is 1,000 MB.
    assert run(PEAK, str(path), options) < MEGABYTES / 2
