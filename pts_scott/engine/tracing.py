"""Tracing: a function of tensors becomes a graph of torch's elementary operators.

The function runs once, on tensors without values, and every operator that it calls is
recorded, those of autograd's backward pass included. Its Python does not run again, so
whatever it decides must not depend on the values of its arguments.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot, make_fx
from torch.overrides import TorchFunctionMode

from pts_scott.errors import CompilationError

DEPENDS = (
    "its Python code depends on the values of a batch, of parameters or of random numbers"
)

# Methods by which Python reads the value of a tensor.
_READS = {
    torch.Tensor.__bool__: bool,
    torch.Tensor.__int__: int,
    torch.Tensor.__index__: int,
    torch.Tensor.__float__: float,
    torch.Tensor.item: lambda value: value,
    torch.Tensor.tolist: lambda value: value,
}


def trace(
    function: Callable[..., Any], arguments: Sequence[Tensor], module: nn.Module
) -> tuple[GraphModule, list[Tensor]]:
    """Return the graph of a function, and the constants whose values Python has read.

    Neither arguments nor module are changed.

    Parameters
    ----------
    function
        From tensors to a tuple of tensors; it may change its arguments in place.
    arguments
        Tensors of the shapes and types of the arguments.
    module
        The module that the function calls.

    Raises
    ------
    CompilationError
        If the function reads the value of a tensor that depends on its arguments.
    Exception
        Any error of torch on a function that cannot be traced.
    """
    with torch.no_grad(), _unchecked_distributions(), _same_attributes(module):
        constants = _ConstantValues()

        def run(*inputs: Tensor) -> Any:
            with constants:
                return function(*inputs)

        traced = make_fx(run, tracing_mode="fake", _allow_non_fake_inputs=True)
        return traced(*arguments), constants.read


class _ConstantValues(TorchFunctionMode):
    """Tells Python the values of tensors that are the same in every call.

    Attention layers compare a mask with the causal one, for instance. Such values are
    computed from what was recorded so far, if that contains no argument and no random
    number.
    """

    def __init__(self) -> None:
        super().__init__()
        self.read: list[Tensor] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        mode = get_proxy_mode()
        if func not in _READS or mode is None:
            return func(*args, **(kwargs or {}))
        node = get_proxy_slot(args[0], mode.tracer, None, lambda slot: slot.proxy.node)
        if node is None:
            self.read.append(args[0])
            value = args[0]
        else:
            value, read = _evaluate(node, mode.tracer)
            self.read += read
        found = value.tolist() if func is torch.Tensor.tolist else value.item()
        return _READS[func](found)  # type: ignore[operator]


def _evaluate(node: Node, tracer: Any) -> tuple[Tensor, list[Tensor]]:
    """Compute a node of an unfinished graph whose ancestors are constant.

    Returns
    -------
    Its value, and the constants it was computed from.
    """
    needed: set[Node] = set()
    stack = [node]
    while stack:
        current = stack.pop()
        if current in needed:
            continue
        tags = getattr(current.target, "tags", ())
        if current.op == "placeholder" or torch.Tag.nondeterministic_seeded in tags:
            raise CompilationError(DEPENDS)
        needed.add(current)
        stack += current.all_input_nodes
    if any(_writes_to(other, needed) for other in tracer.graph.nodes):
        raise CompilationError(DEPENDS)
    graph = torch.fx.Graph()
    copies: dict[Node, Node] = {}
    for current in tracer.graph.nodes:
        if current in needed:
            copies[current] = graph.node_copy(current, copies.__getitem__)
    graph.output(copies[node])
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        found: Tensor = Interpreter(GraphModule(tracer.root, graph)).run()
    held = [getattr(tracer.root, str(x.target)) for x in needed if x.op == "get_attr"]
    return found, held


def _writes_to(node: Node, needed: set[Node]) -> bool:
    """Return whether a node outside of those needed changes one, or a view of one."""
    schema = getattr(node.target, "_schema", None)
    if node in needed or schema is None or not schema.is_mutable:
        return False
    changed = node.args[0] if node.args else None
    while isinstance(changed, Node) and changed not in needed:
        changed = _viewed(changed)
    return isinstance(changed, Node)


def _viewed(node: Node) -> Any:
    """Return what a node is a view of: itself changed in place, a slice, a part."""
    schema = getattr(node.target, "_schema", None)
    is_view = schema is not None and any(r.alias_info is not None for r in schema.returns)
    is_view |= node.target is operator.getitem  # one of the views that a split returns
    return node.args[0] if is_view and node.args else None


@contextmanager
def _unchecked_distributions() -> Iterator[None]:
    """Switch off the argument checks of distributions, which read values."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)


@contextmanager
def _same_attributes(module: nn.Module) -> Iterator[None]:
    """Restore attributes to which a pass assigns tensors; traced ones have no values."""
    before = [(part, dict(vars(part))) for part in module.modules()]
    held = [value for _, own in before for value in own.values()]
    tables = [(x, dict(x)) for x in held if type(x) is dict]
    lists = [(x, list(x)) for x in held if type(x) is list]
    try:
        yield
    finally:
        for part, attributes in before:
            vars(part).clear()
            vars(part).update(attributes)
        for table, content in tables:
            table.clear()
            table.update(content)
        for sequence, items in lists:
            sequence[:] = items
