"""A stage run node by node."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import fx

from chainstay.runtime.capture.subgraphs import node_result
from chainstay.runtime.execute.environment import in_mid_chain, random_states, restore_random_states
from chainstay.runtime.execute.handles import dropping
from chainstay.runtime.options.composition import Composition
from chainstay.runtime.options.instruments import Instruments
from chainstay.runtime.stage.chain_stage import ChainStage
from chainstay.runtime.stage.states import State, detached, is_equal

Held: TypeAlias = dict[fx.Node, Any]
"""What nodes have given, as long as others read it."""


class Cast(NamedTuple):
    """A copy that autocast makes of an argument.

    Attributes:
        argument: What is copied.
        user: The node that it is made for.
        dtype: The precision of the copy.
        value: The number of the copy among the stage's values.
    """

    argument: fx.Node
    user: fx.Node
    dtype: torch.dtype
    value: int


@dataclass(frozen=True, slots=True)
class StageRun:
    """Runs the nodes of a stage one by one.

    Attributes:
        composition: The stage's graph.
        stage: The stage.
        given: Its input, and what all stages may read.
    """

    composition: Composition
    stage: ChainStage
    given: tuple[State, Sequence[Any]]

    @property
    def nodes(self) -> Iterable[fx.Node]:
        """All nodes, in order."""
        return self.composition.graph.nodes

    def inputs(self) -> list[Any]:
        """Return inputs of the graph as in mid-chain: copies of what the stage changes."""
        return self._inputs(in_mid_chain(self.stage, detached(self.given[0])))

    def _inputs(self, state: State) -> list[Any]:
        return [*state, *(self.given[1][position] for position in self.composition.shared)]

    def is_faithful(self, device: torch.device) -> bool:
        """Whether the nodes give what the stage gives.

        That is its output, the gradients of its input, and where they leave the random numbers of
        the device, bit for bit; and autograd saves tensors of the same sizes and types in the same
        order, as a stage may be dropped as a whole and then kept in part. Call it inside
        `measuring`: the stage is run, and its nodes are.
        """

        def by_nodes(state: State) -> Sequence[torch.Tensor]:
            return self.run(self._inputs(state), lambda _node, _held, call: call())

        random = random_states(device)
        saved, values = self._observed(lambda state: self.stage(state, self.given[1]), device)
        restore_random_states(random)
        try:
            saved_by_nodes, others = self._observed(by_nodes, device)
        except RuntimeError:  # a part does not take what the operator itself takes
            return False
        return saved == saved_by_nodes and all(
            is_equal(one, other) for one, other in zip(values, others, strict=True)
        )

    def _observed(
        self, forward: Callable[[State], Sequence[torch.Tensor]], device: torch.device
    ) -> tuple[list[tuple[torch.Size, torch.dtype]], list[torch.Tensor]]:
        """Return the sizes and types of what a forward saves, and all that it gives."""
        saved: list[tuple[torch.Size, torch.dtype]] = []

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            saved.append((tensor.shape, tensor.dtype))
            return tensor.detach()

        leaves = detached(self.given[0])
        hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
        with torch.enable_grad(), hooks:
            output = forward(in_mid_chain(self.stage, leaves))
        ends = [tensor for tensor in output if tensor.requires_grad]
        starts = [tensor for tensor in leaves if tensor.requires_grad]
        gradients: Sequence[torch.Tensor] = ()
        if ends and starts:
            gradients = torch.autograd.grad(
                ends, starts, [end.detach() for end in ends], materialize_grads=True
            )
        return saved, [*output, *gradients, *(state for _, state in random_states(device))]

    def run(
        self, inputs: Sequence[Any], around: Callable[[fx.Node, Held, Callable[[], Any]], Any]
    ) -> list[Any]:
        """Run all nodes; return the results.

        `around` gets every operator, what is held, and the call; it returns the operator's result.
        """
        held: Held = {}
        given, called = iter(inputs), self.composition.root.get_submodule
        last = {source: node for node in self.nodes for source in node.all_input_nodes}
        for node in self.nodes:
            match node.op:
                case "placeholder":
                    held[node] = next(given)
                case "get_attr":
                    held[node] = called(str(node.target))
                case "output":
                    return [held[leaf] for leaf in self.composition.results]
                case _:
                    held[node] = around(node, held, partial(node_result, node, held, called))
                    for source in (*node.all_input_nodes, node):
                        if last.get(source, node) is node:
                            del held[source]
        raise AssertionError("a graph without an output")


def operator_times(
    run: StageRun,
    casts: Sequence[Cast],
    device: torch.device,
    instruments: Instruments,
    repeats: int,
) -> dict[fx.Node | Cast, int]:
    """Return the least time of every node, and of copies by autocast, in a few runs, in ns."""
    least: dict[fx.Node | Cast, int] = defaultdict(lambda: 1 << 62)

    def note(key: fx.Node | Cast, call: Callable[[], Any]) -> Any:
        value, elapsed = instruments.timed(call, device)
        least[key] = min(least[key], max(elapsed, 1))  # clocks may stand still, work is never free
        return value

    def around(node: fx.Node, held: Held, call: Callable[[], Any]) -> Any:
        for cast in casts:
            if cast.user is node:
                note(cast, partial(held[cast.argument].to, cast.dtype))
        return note(node, call)

    with torch.enable_grad(), dropping():
        for _ in range(repeats):
            run.run(run.inputs(), around)
    return least
