"""Compilation of the functions that are called in every step.

A function is traced (`pts_scott.engine.tracing`) for the shapes of its arguments, and
compiled by Inductor. Nothing is guarded: which function is called with which shapes is
known here, and the network, its parameters and its mode are the same in every step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from pts_scott._utils.rng import preserved_rng
from pts_scott.engine.graph_passes import (
    keep_fused_lstm,
    lift_constants,
    lift_random_numbers,
)
from pts_scott.engine.tracing import trace

# In C++, calls of the kernels take up to a quarter less of a small step. Compiled apart
# from them, and optimized less: a thousand calls in one function would take minutes.
# On the CPU only: elsewhere they would need the headers of the accelerator's toolkit.
OPTIONS = {"cpp_wrapper": True, "cpp_wrapper_build_separate": True}


class CompiledFunction:
    """A compiled function of tensors.

    Parameters
    ----------
    function
        From tensors to a tuple of tensors; it may change its arguments in place.
    module
        The module that the function calls.
    has_two_passes
        Whether it contains two passes that must draw the same random numbers.
    """

    def __init__(
        self,
        function: Callable[..., tuple[Tensor, ...]],
        module: nn.Module,
        *,
        has_two_passes: bool = False,
    ) -> None:
        self._function, self._module = function, module
        self._has_two_passes = has_two_passes
        self._compiled: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self._reads: list[tuple[Tensor, int]] = []

    def __call__(self, fixed: Sequence[Tensor], *varying: Tensor) -> tuple[Tensor, ...]:
        """Call the function with ``(*fixed, *varying)``.

        Parameters
        ----------
        fixed
            Tensors whose shapes, types and layouts never change.
        varying
            Tensors that may differ in these: for each combination, the function is
            compiled once.
        """
        if any(tensor._version != version for tensor, version in self._reads):
            self._compiled.clear()  # Python has read a value that is another one now
            self._reads.clear()
        kinds = tuple([(x.shape, x.dtype, x.stride()) for x in varying])
        compiled = self._compiled.get(kinds)
        if compiled is None:
            compiled = self._compiled[kinds] = self._compile([*fixed, *varying])
        with torch.no_grad():
            found: tuple[Tensor, ...] = compiled(*fixed, *varying)
        return found

    def _compile(self, arguments: list[Tensor]) -> Callable[..., Any]:
        graph, read = trace(self._function, arguments, self._module)
        self._reads += [(tensor, tensor._version) for tensor in read]
        keep_fused_lstm(graph)
        draws = lift_random_numbers(graph, has_two_passes=self._has_two_passes)
        constants = lift_constants(graph)
        with preserved_rng(arguments[0].device):
            random = [draw() for draw in draws]
        run = compile_graph(graph, [*arguments, *random, *constants])
        return lambda *inputs: run(*inputs, *[draw() for draw in draws], *constants)


def compile_graph(graph: GraphModule, arguments: Sequence[Tensor]) -> Callable[..., Any]:
    """Compile a graph for arguments of such shapes and types."""
    # Imported here because it takes a second, and few runs are compiled.
    from torch._guards import TracingContext, tracing
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    # Without an environment of shapes, the compiler does not use its cache on disk.
    mode = FakeTensorMode(shape_env=ShapeEnv())
    with torch.no_grad(), tracing(TracingContext(mode)):
        examples = [mode.from_tensor(x, static_shapes=True) for x in arguments]
        supported = all(hasattr(config, name) for name in OPTIONS)  # newer torch only
        supported &= all(x.device.type == "cpu" for x in arguments)
        patches = OPTIONS if supported else {}
        run: Any = compile_fx(graph, examples, config_patches=patches)
    return run  # type: ignore[no-any-return]
