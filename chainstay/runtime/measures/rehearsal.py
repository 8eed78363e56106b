"""One step by a plan, before it is used: whether it needs what was predicted.

Prediction and rehearsal share nothing but the allocator. What is counted wrongly, or not seen
at all while stages are measured one by one, shows here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from chainstay.runtime.capture.blocks.sample import blocks_run_by
from chainstay.runtime.capture.trials.isolation import zeroed_gradients
from chainstay.runtime.devices.memory import operator_beyond, trace_memory
from chainstay.runtime.execute.block_executor import BlockRun, PlannedBlocks
from chainstay.runtime.measures.blocks.around_blocks import Around
from chainstay.runtime.measures.boundary import Gradients, seeded
from chainstay.runtime.stage.chain_stage import ChainStage
from chainstay.runtime.stage.loss_stage import on_stand_ins
from chainstay.runtime.stage.staged_graph import PlannedGraph
from chainstay.runtime.stage.states import state_bytes


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """The memory that a step by a plan needed.

    Attributes:
        peak_bytes: The most in use, the model's inputs included.
        operator: Which went beyond the limit first; empty if none did.
    """

    peak_bytes: int
    operator: str


def rehearse_graph(
    planned: PlannedGraph, inputs: Sequence[Any], loss: ChainStage | None, limit: int
) -> Rehearsal:
    """Run a captured graph by its plan, forward and backward; call it inside `measuring`."""
    graph = planned.graph
    device = planned.chain.device
    stand_ins = graph.stand_ins(inputs)
    given = stand_ins.of_all(inputs)
    loss = None if loss is None else on_stand_ins(loss, stand_ins)
    leaves = [
        value
        for position, value in enumerate(given)
        if isinstance(value, torch.Tensor)
        and value.requires_grad
        and position not in graph.state_inputs
    ]

    def step() -> None:
        state, shared = graph.begin(given)
        state = planned.executor(state, shared)
        output = graph.finish(state, shared)
        root = seeded(state, Gradients.usual(state)) if loss is None else loss(state, shared)[0]
        del state, shared
        torch.autograd.backward(root)
        del output

    held = state_bytes(tensor for tensor in graph.counted(given) if tensor.device == device)
    with zeroed_gradients(leaves):
        return _rehearsed(step, device, held, limit)


def rehearse_blocks(around: Around, planned: PlannedBlocks, limit: int) -> Rehearsal:
    """Run a model's own forward and its blocks by their plan; call it inside `measuring`."""
    device = around.device
    with around.host.fresh() as (model, run):
        leaves = [leaf for leaf in model.parameters() if leaf.requires_grad]

        def step() -> None:
            block_run = BlockRun(planned.schedule)
            with blocks_run_by(model, around.chain, around.graphs, block_run.block):
                output = run()
            block_run.end()
            root = around.root(output)
            torch.autograd.backward(root)
            del output

        with zeroed_gradients(leaves):
            return _rehearsed(step, device, around.input_bytes, limit)


def _rehearsed(step: Callable[[], None], device: torch.device, held: int, limit: int) -> Rehearsal:
    peak = trace_memory(step, device).peak_bytes + held
    return Rehearsal(peak, "" if peak <= limit else operator_beyond(step, device, limit - held))
