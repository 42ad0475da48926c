"""The two stacks: PyTorchTS where it is installed, the current GluonTS otherwise.

Everything that knows ``pts`` or ``gluonts.torch`` lives in the two modules here,
which offer the same names; the rest of the package asks this one.
"""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("pts") is not None:
    from pts_scott.stacks import pytorchts as stack
else:
    from pts_scott.stacks import gluonts as stack  # type: ignore[no-redef]

__all__ = ["stack"]
