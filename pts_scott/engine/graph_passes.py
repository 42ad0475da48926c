"""Changes to a traced graph before it is compiled."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from pts_scott.engine import recurrent_ops
from pts_scott.errors import CompilationError

aten = torch.ops.aten

# Random operators that read nothing but the shape of their arguments, so that two passes
# with the same generator draw the same numbers, whatever the parameters are.
SHAPE_ONLY = {
    packet
    for name in (
        *("bernoulli_", "uniform_", "normal_", "random_", "exponential_", "rand"),
        *("randn", "randint", "rand_like", "randn_like", "randint_like", "randperm"),
    )
    if (packet := getattr(aten, name, None)) is not None
}
SHAPE_ONLY_OVERLOADS = {aten.bernoulli.p}


def lift_constants(graph_module: GraphModule) -> list[Tensor]:
    """Turn the tensors that a graph holds into further arguments, and return them.

    The compiler would copy constants, or write their values into its cache.
    """
    graph = graph_module.graph
    constants: list[Tensor] = []
    placed: dict[int, Node] = {}
    last = [node for node in graph.nodes if node.op == "placeholder"][-1]
    for node in list(graph.nodes):
        if node.op != "get_attr":
            continue
        tensor = getattr(graph_module, node.target)
        if id(tensor) not in placed:
            with graph.inserting_after(last):
                last = graph.placeholder(f"constant_{len(constants)}")
            last.meta = dict(node.meta)
            placed[id(tensor)] = last
            constants.append(tensor.detach())
        node.replace_all_uses_with(placed[id(tensor)])
        graph.erase_node(node)
    graph_module.recompile()
    return constants


def keep_fused_lstm(graph_module: GraphModule) -> None:
    """Replace oneDNN's LSTM with operators that the compiler leaves as they are.

    Raises
    ------
    CompilationError
        For other recurrent layers, which the compiler would unroll step by step.
    """
    for node in graph_module.graph.nodes:
        arguments = node.args
        if node.target is aten.mkldnn_rnn_layer.default:
            size = recurrent_ops.workspace_size([_real(x) for x in arguments])
            node.target = torch.ops.pts_scott.lstm_layer.default
            reverse, has_biases = arguments[7], arguments[12]
            node.args = (*arguments[:7], reverse, has_biases, size)
        elif node.target is aten.mkldnn_rnn_layer_backward.default:
            node.target = torch.ops.pts_scott.lstm_layer_backward.default
            reverse, has_biases, workspace = arguments[13], arguments[17], arguments[22]
            node.args = (*arguments[:13], reverse, has_biases, workspace)
    graph_module.recompile()


def share_random_numbers(graph_module: GraphModule) -> None:
    """Let the second of two passes use the random numbers of the first.

    Raises
    ------
    CompilationError
        If the passes draw different kinds of numbers, or numbers that depend on the
        parameters.
    """
    nodes = [node for node in graph_module.graph.nodes if _is_random(node)]
    first, second = nodes[: len(nodes) // 2], nodes[len(nodes) // 2 :]
    if [_signature(node) for node in first] != [_signature(node) for node in second]:
        raise CompilationError("its two passes draw different random numbers")
    for one, other in zip(first, second, strict=True):
        packet = one.target.overloadpacket  # type: ignore[union-attr]
        if packet not in SHAPE_ONLY and one.target not in SHAPE_ONLY_OVERLOADS:
            raise CompilationError(
                f"the random numbers of {one.target} cannot be repeated"
            )
        graph = graph_module.graph
        # A copy, because what is drawn may be changed in place later.
        with graph.inserting_after(one):
            drawn = graph.call_function(aten.clone.default, (one,))
        with graph.inserting_before(other):
            if _changes_itself(other):
                again = graph.call_function(aten.copy_.default, (other.args[0], drawn))
            else:
                again = graph.call_function(aten.clone.default, (drawn,))
        other.replace_all_uses_with(again)
        graph.erase_node(other)
    graph_module.recompile()


def _is_random(node: Node) -> bool:
    is_operator = isinstance(node.target, torch._ops.OpOverload)
    return is_operator and torch.Tag.nondeterministic_seeded in node.target.tags  # type: ignore[union-attr]


def _signature(node: Node) -> tuple[Any, ...]:
    plain = [x for x in node.args if not isinstance(x, Node)]
    value = node.meta["val"]
    shapes = [v.shape for v in value] if isinstance(value, tuple | list) else value.shape
    return node.target, str(plain), str(node.kwargs), str(shapes)


def _changes_itself(node: Node) -> bool:
    (first, *_) = node.target._schema.arguments  # type: ignore[union-attr]
    return first.alias_info is not None and first.alias_info.is_write


def _real(argument: Any) -> Any:
    """Return zeros in place of a tensor of the graph."""
    if not isinstance(argument, Node):
        return argument
    value = argument.meta["val"]
    return torch.zeros(value.shape, dtype=value.dtype)
