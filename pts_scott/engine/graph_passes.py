"""Changes to a traced graph before it is compiled."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from pts_scott.engine import recurrent_ops
from pts_scott.errors import CompilationError

aten = torch.ops.aten

# Random operators that read nothing but the shape of their arguments, so that two passes
# with the same generator draw the same numbers, whatever the parameters are.
SHAPE_ONLY = {
    *(
        "bernoulli_.float",
        "bernoulli.p",
        "uniform_",
        "normal_",
        "random_",
        "exponential_",
    ),
    *("rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "randperm"),
}


class Draw(NamedTuple):
    """Random numbers that a graph takes as an argument.

    They are drawn before each call, by the operators, in the order and in the memory
    layout of uncompiled passes, so that those draw the same numbers.
    """

    operator: Any
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    def __call__(self) -> Tensor:
        """Draw the numbers."""
        drawn: Tensor = self.operator(*self.arguments, **self.options)
        return drawn


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
        if not isinstance(tensor, Tensor):
            raise CompilationError(f"it uses a {type(tensor).__name__} of its own")
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


def lift_random_numbers(graph_module: GraphModule, *, has_two_passes: bool) -> list[Draw]:
    """Turn random numbers into further arguments, and return how they are drawn.

    Parameters
    ----------
    graph_module
        The graph.
    has_two_passes
        Whether it contains two passes; the second uses the numbers of the first.

    Raises
    ------
    CompilationError
        If numbers depend on other values, or two passes draw different ones.
    """
    graph = graph_module.graph
    nodes = [node for node in graph.nodes if _is_random(node)]
    passes = [nodes]
    if has_two_passes:
        passes = [nodes[: len(nodes) // 2], nodes[len(nodes) // 2 :]]
        if len({str([_signature(node) for node in nodes]) for nodes in passes}) > 1:
            raise CompilationError("its two passes draw different random numbers")
    draws = [_draw(node) for node in passes[0]]
    last = [node for node in graph.nodes if node.op == "placeholder"][-1]
    for number, same in enumerate(zip(*passes, strict=True)):
        with graph.inserting_after(last):
            last = graph.placeholder(f"random_{number}")
        last.meta = dict(same[0].meta)
        for node in same:
            if node.target is aten.native_dropout.default:
                _use_mask(node, last)
                continue
            with graph.inserting_before(node):
                if _changes_itself(node):
                    new = graph.call_function(aten.copy_.default, (node.args[0], last))
                else:  # a copy, because it may be changed in place
                    new = graph.call_function(aten.clone.default, (last,))
            new.meta = dict(node.meta)
            node.replace_all_uses_with(new)
            graph.erase_node(node)
    graph_module.recompile()
    return draws


def _use_mask(node: Node, mask: Node) -> None:
    """Replace the fused dropout of accelerators with a product with its mask."""
    values, share, training = node.args
    scale = 1.0 if training is False else 1.0 / (1.0 - share)  # type: ignore[operator]
    dropped, mask.meta["val"] = node.meta["val"]
    with node.graph.inserting_before(node):
        kept = node.graph.call_function(aten.mul.Tensor, (values, mask))
        scaled = node.graph.call_function(aten.mul.Tensor, (kept, scale))
    kept.meta = scaled.meta = {"val": dropped}
    for user in list(node.users):  # one of its two results each
        user.replace_all_uses_with((scaled, mask)[user.args[1]])  # type: ignore[index]
        node.graph.erase_node(user)
    node.graph.erase_node(node)


def _dropout_mask(*arguments: Any) -> Tensor:
    """Draw the mask of a fused dropout, which depends on the shape of its input alone."""
    mask: Tensor = aten.native_dropout(*arguments)[1]
    return mask


def _draw(node: Node) -> Draw:
    operator: Any = node.target
    if operator is aten.native_dropout.default:
        return Draw(_dropout_mask, tuple(_like(x) for x in node.args), {})
    names = {str(operator.overloadpacket).split(".")[-1], operator.name().split("::")[-1]}
    if not names & SHAPE_ONLY:
        raise CompilationError(f"random numbers of {operator} depend on other values")
    # The numbers are read before they are drawn again, so one tensor holds them all.
    arguments = tuple(_like(x) for x in node.args)
    return Draw(operator, arguments, dict(node.kwargs))


def _is_random(node: Node) -> bool:
    operator = node.target
    if not isinstance(operator, torch._ops.OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded not in operator.tags:
        return False
    # Attention is tagged as random, but draws nothing without dropout.
    names = [argument.name for argument in operator._schema.arguments]
    given = dict(zip(names, node.args)) | node.kwargs
    return not ("dropout_p" in names and given.get("dropout_p", 0.0) == 0.0)


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
    like = _like(argument)
    return like.zero_() if isinstance(like, Tensor) else like


def _like(argument: Any) -> Any:
    """Return a tensor of the same layout in place of one of the graph."""
    if not isinstance(argument, Node):
        return argument
    value = argument.meta["val"]
    return torch.empty_strided(
        value.shape, value.stride(), dtype=value.dtype, device=value.device
    )
