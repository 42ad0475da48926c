"""Examples in Markdown pages."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# A marker before a block, which readers do not see, says why a test cannot run it.
BLOCK = re.compile(r"(<!-- not run: \S.*? -->\s*)?^```python\n(.*?)^```", re.M | re.S)


def examples(page: Path) -> list[str]:
    """Return the blocks of Python code of a page, without those marked as not run."""
    return [code for marker, code in BLOCK.findall(page.read_text()) if not marker]


def run_examples(page: Path) -> dict[str, Any]:
    """Run the examples of a page in order, and return the names that they define.

    Those that need the library that is not installed are left out.
    """
    names: dict[str, Any] = {}
    has_pytorchts = find_spec("pts") is not None
    for code in examples(page):
        other = "from gluonts.torch.model" if has_pytorchts else "from pts."
        if other not in code:
            exec(compile(code, str(page), "exec"), names)
    return names
