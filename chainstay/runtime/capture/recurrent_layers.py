"""Recurrent networks of several layers as one operator per layer.

``nn.LSTM(num_layers=4)`` is one operator in a captured graph, and could only be kept or run again
whole. torch runs its layers one behind another, with dropout in between: so do these operators, on
the CPU with the same bits. Libraries of other devices run all layers at once, in their own way.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import fx

from chainstay.runtime.capture.subgraphs import example_of

_STATES: Final[dict[Any, int]] = {
    torch.lstm: 2,
    torch.gru: 1,
    torch.rnn_tanh: 1,
    torch.rnn_relu: 1,
}
"""How many states each has: tensors that the next call may start from."""

_AddOperator = Callable[[Callable[..., Any], tuple[Any, ...]], fx.Node]
"""Adds an operator to a graph: a function, and its arguments."""


def has_layers(node: fx.Node) -> bool:
    """Whether a node runs several layers, one behind another, on the CPU."""
    if node.target not in _STATES or len(node.args) != 9 or node.kwargs:
        return False
    initial, weights, layers = node.args[1], node.args[2], node.args[4]
    example = example_of(node.args[0])
    return (  # sequences that are packed have their weights elsewhere
        isinstance(weights, list | tuple)
        and isinstance(initial, list | tuple) == (_STATES[node.target] > 1)
        and isinstance(layers, int)
        and layers > 1
        and example is not None
        and example.device.type == "cpu"
        and all(user.target is operator.getitem for user in node.users)
    )


def split_layers(node: fx.Node, arguments: Sequence[Any], add: _AddOperator) -> tuple[Any, ...]:
    """Add one operator per layer; return the results of all: the output, and the last states.

    The `node`, which `has_layers`, has these `arguments` in the graph that operators are added to.
    """
    function: Any = node.target
    states = _STATES[function]
    sequence, initial, weights, has_biases, layers, rate, is_training, *flags = arguments
    is_bidirectional, is_batch_first = flags
    given = initial if states > 1 else (initial,)
    width = 2 if is_bidirectional else 1
    share = len(weights) // layers
    kinds = (has_biases, 1, 0.0, is_training, is_bidirectional, False)
    last: list[list[fx.Node]] = [[] for _ in given]
    if is_batch_first:
        sequence = add(torch.transpose, (sequence, 0, 1))
    for layer in range(layers):
        start = [add(torch.narrow, (state, 0, layer * width, width)) for state in given]
        own = list(weights[layer * share : (layer + 1) * share])
        step = add(function, (sequence, tuple(start) if states > 1 else start[0], own, *kinds))
        sequence, *ends = [add(operator.getitem, (step, index)) for index in range(states + 1)]
        for known, end in zip(last, ends, strict=True):
            known.append(end)
        if is_training and rate and layer < layers - 1:
            sequence = add(torch.dropout, (sequence, rate, True))
    if is_batch_first:
        sequence = add(torch.transpose, (sequence, 0, 1))
    used = {user.args[1] for user in node.users}
    return (sequence, *(add(torch.cat, (e,)) if n in used else None for n, e in enumerate(last, 1)))
