"""The fused LSTM kernel of the CPU as operators that a compiled function can contain.

Inductor would take oneDNN's LSTM apart into one matrix product per time step, which is
several times slower. Behind operators of our own, forward and backward stay the two
kernels that autograd calls.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_LSTM = 2  # oneDNN's number of the kind of cell; it has no other kernel for training


@torch.library.custom_op(
    "pts_scott::lstm_layer",
    mutates_args=(),
    schema="(Tensor x, Tensor w_ih, Tensor w_hh, Tensor b_ih, Tensor b_hh, Tensor h, "
    "Tensor c, bool reverse, bool has_biases, int workspace_size) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
)
def lstm_layer(
    x: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor,
    b_hh: Tensor,
    h: Tensor,
    c: Tensor,
    reverse: bool,
    has_biases: bool,
    workspace_size: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return output, h and c of one layer, and the workspace of its backward pass."""
    numbers: tuple[Any, ...]
    numbers = (reverse, [], _LSTM, w_hh.shape[1], 1, has_biases, False, False, True)
    with torch.enable_grad():  # otherwise the kernel keeps no workspace
        found = torch.ops.aten.mkldnn_rnn_layer(x, w_ih, w_hh, b_ih, b_hh, h, c, *numbers)
    return tuple(t.detach() for t in found)


@lstm_layer.register_fake
def _(x, w_ih, w_hh, b_ih, b_hh, h, c, reverse, has_biases, workspace_size):  # type: ignore[no-untyped-def]
    output = x.new_empty(*x.shape[:2], w_hh.shape[1])
    workspace = x.new_empty(workspace_size, dtype=torch.uint8)
    return output, torch.empty_like(h), torch.empty_like(c), workspace


@torch.library.custom_op(
    "pts_scott::lstm_layer_backward",
    mutates_args=(),
    schema="(Tensor x, Tensor w_ih, Tensor w_hh, Tensor b_ih, Tensor b_hh, Tensor h, "
    "Tensor c, Tensor output, Tensor last_h, Tensor last_c, Tensor? grad_output, "
    "Tensor? grad_h, Tensor? grad_c, bool reverse, bool has_biases, Tensor workspace) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def lstm_layer_backward(
    x: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor,
    b_hh: Tensor,
    h: Tensor,
    c: Tensor,
    output: Tensor,
    last_h: Tensor,
    last_c: Tensor,
    grad_output: Tensor | None,
    grad_h: Tensor | None,
    grad_c: Tensor | None,
    reverse: bool,
    has_biases: bool,
    workspace: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients with respect to the first seven arguments of `lstm_layer`."""
    given = (g if g is None else g.contiguous() for g in (grad_output, grad_h, grad_c))
    numbers: tuple[Any, ...]
    numbers = (reverse, _LSTM, w_hh.shape[1], 1, has_biases, True, False, [], False)
    found = torch.ops.aten.mkldnn_rnn_layer_backward(
        x,
        *(w_ih, w_hh, b_ih, b_hh, h, c),
        *(output, last_h, last_c, *given),
        *numbers,
        workspace,
    )
    # Both biases have one gradient; an operator must not return a tensor twice.
    return (*found[:4], found[4].clone(), *found[5:])


@lstm_layer_backward.register_fake
def _(x, w_ih, w_hh, b_ih, b_hh, h, c, *_):  # type: ignore[no-untyped-def]
    return tuple(
        torch.empty_like(t, memory_format=torch.contiguous_format)
        for t in (x, w_ih, w_hh, b_ih, b_hh, h, c)
    )


def workspace_size(arguments: list[Tensor | int | bool | list[int]]) -> int:
    """Return the bytes of the workspace that the kernel needs for such arguments."""
    with torch.enable_grad():
        return int(torch.ops.aten.mkldnn_rnn_layer(*arguments)[3].numel())
