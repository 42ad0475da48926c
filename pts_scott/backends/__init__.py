"""The two stacks: PyTorchTS where it is installed, the current GluonTS otherwise.

Everything that knows ``pts`` or ``gluonts.torch`` lives in the two modules here,
which offer the same names; the rest of the package asks this one.
"""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("pts") is not None:
    from pts_scott.backends import pytorchts as backend
else:
    from pts_scott.backends import gluonts as backend  # type: ignore[no-redef]

__all__ = ["backend"]
