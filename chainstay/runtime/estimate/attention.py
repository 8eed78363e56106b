"""Attention with dropout as GPUs do it: in one kernel.

Stand-ins are on the CPU, whose fused kernel has no dropout; with dropout the CPU makes the
whole matrix of attention weights, and saves it. On GPUs fused kernels draw the mask anew in
the backward. Without dropout both are alike: so dropout is left out for stand-ins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from torch import fx
from torch.nn import functional

_RATES: Final[Mapping[Callable[..., Any], int]] = {
    functional.scaled_dot_product_attention: 4,
    functional.multi_head_attention_forward: 10,
}
"""Functions that do attention, and the position of the dropout's rate among their arguments."""


def leave_out_attention_dropout(graph: fx.Graph) -> None:
    """Let attention in a captured graph have no dropout, but where the caller wants its weights."""
    for node in graph.nodes:
        rate = _RATES.get(node.target)
        is_whole = node.target is functional.multi_head_attention_forward
        if rate is None or (is_whole and node.kwargs.get("need_weights", True)):
            continue
        if len(node.args) > rate:
            node.update_arg(rate, 0.0)
        else:
            node.update_kwarg("dropout_p", 0.0)
