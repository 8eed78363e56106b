"""Values that a graph computes on the host of its accelerator have to be in order."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

import torch

from chainstay.runtime.capture.graph import NoStagesError


def require_one_thread(values: Iterable[torch.Tensor | None]) -> None:
    """Refuse a graph whose backward goes on in two threads at once.

    Autograd has a thread for the host and one for the accelerator. Plans bring back what a stage
    saved in the order of the stages. So values with gradients may be on the host before all of
    those on the accelerator (an embedding there) and behind them (a loss), but not between. The
    `values` are those that the graph's operators make, in order.

    Raises:
        NoStagesError: Some are on the host between those on the accelerator.
    """
    kinds = [tensor.device.type for tensor in values if tensor is not None and tensor.requires_grad]
    runs = [kind for kind, _ in groupby(kinds)]
    if "cpu" in runs[1:-1]:
        raise NoStagesError(
            "values with gradients are computed on the host while the accelerator computes others, "
            "so that two threads run the backward at once; move them to the model's device"
        )
