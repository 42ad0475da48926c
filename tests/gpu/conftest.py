"""The device of all tests here; without one they are skipped, with one reason."""

from __future__ import annotations

import pytest
import torch
from helpers.accelerator import NO_ACCELERATOR, find_device


@pytest.fixture(autouse=True)
def device() -> torch.device:
    """The accelerator."""
    found = find_device()
    if found is None:
        pytest.skip(NO_ACCELERATOR)
    return found
