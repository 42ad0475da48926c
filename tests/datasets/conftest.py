"""Files to read."""

from __future__ import annotations

import gzip

import pytest


@pytest.fixture
def write(tmp_path):
    """Write text to a file, packed if its name ends in .gz."""

    def write(text, name="my.txt"):
        path = tmp_path / name
        data = text if isinstance(text, bytes) else text.encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write
