"""Questions that a forward asks of values in its arguments: of yes or no, how large, how many.

A forward may ask whether a mask hides anything, or whether there is a label too large, and go
another way then: of that TorchDynamo makes no graph. It may select by a mask, as networks on graphs
do that leave out edges: the values decide how large the result is. Or it reads a number, such as
the longest of the lengths that it is given. What is made of the call's arguments alone can be
looked up while it is traced, and asked again in front of each later call: another answer is another
graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from textwrap import shorten
from typing import Any, Final, Literal, TypeAlias

import torch
from torch import fx
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import is_fake, unset_fake_temporarily

from chainstay.runtime.capture.subgraphs import CHECKPOINTS, called_name, subgraph, values_read
from chainstay.runtime.capture.values.origins import operators_behind
from chainstay.runtime.devices.thread_value import ThreadValue
from chainstay.runtime.stage.states import tensors_in

Aspect: TypeAlias = Literal["truth", "sizes", "numbers"]
"""What is asked of a value: whether it is true, how large it is, or all its numbers."""

Answer: TypeAlias = bool | str
"""Yes or no, or sizes or numbers as a text for people, such as ``2 x 20`` and ``[3, 5]``."""

_TOLD: Final = 60
"""Characters of an answer that a message has."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A question to tensors of a call.

    Attributes:
        text: A text that is equal for equal questions.
        function: Computes what the answer is about.
        places: Where in the call's tensors those are that it takes.
        aspect: What is asked of that.
    """

    text: str
    function: Callable[..., Any]
    places: tuple[int, ...]
    aspect: Aspect = "truth"

    def answer(self, tensors: Sequence[torch.Tensor]) -> Answer | None:
        """Return the answer for the tensors of a call; ``None`` if they have none."""
        try:
            found = self.result(tensors)
            match self.aspect:
                case "truth":
                    return bool(found)
                case "sizes":
                    return ", ".join(" x ".join(map(str, t.shape)) for t in tensors_in(found))
                case "numbers":
                    return str(found.tolist())
        except (IndexError, RuntimeError, TypeError):  # the call is of another kind
            return None

    def result(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Return what the answer is about."""
        with torch.no_grad():
            return self.function(*(tensors[place] for place in self.places))


@dataclass(frozen=True, slots=True)
class Inquiry:
    """The questions that a trace asks of the tensors of its call.

    Attributes:
        tensors: The tensors.
        conditions: What it has asked.
    """

    tensors: Sequence[torch.Tensor] = ()
    conditions: list[Condition] = field(default_factory=list)

    @property
    def places(self) -> dict[int, int]:
        """Return where each tensor is, by its identity; fake ones, without values, are nowhere."""
        return {id(t): place for place, t in enumerate(self.tensors) if not is_fake(t)}

    @property
    def amounts(self) -> tuple[Answer | None, ...]:
        """The sizes and the numbers that it has asked for."""
        return tuple(c.answer(self.tensors) for c in self.conditions if c.aspect != "truth")

    @property
    def amounts_text(self) -> str:
        """The same for people: ``2 x 20, [3, 5]``."""
        return shorten(", ".join(map(str, dict.fromkeys(self.amounts))), _TOLD, placeholder=" ...")

    def asks_more_than(self, known: list[Condition]) -> bool:
        """Add what it has asked to what is known to be asked; whether that was new."""
        texts, before = {condition.text for condition in known}, len(known)
        known += {c.text: c for c in self.conditions if c.text not in texts}.values()
        return len(known) > before

    def answer(self, condition: Condition) -> Answer | None:
        """Return the answer, and note that it was asked for."""
        answer = condition.answer(self.tensors)
        if answer is not None:
            self.conditions.append(condition)
        return answer

    def is_usual(self, tensor: object) -> bool:
        """Whether a tensor of the call, of two dimensions, is what masks of whole rows are made of.

        That is nothing but ones, or the numbers of its columns in every row.
        """
        place = self.places.get(id(tensor), -1)
        if place < 0 or self.tensors[place].dim() != 2:
            return False
        asked = (Condition(f"{place} {ask.__name__}", ask, (place,)) for ask in (_ones, _columns))
        return any(self.answer(condition) for condition in asked)


def _ones(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor == 1).all()


def _columns(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor == torch.arange(tensor.shape[1], device=tensor.device)).all()


inquiry: Final = ThreadValue(Inquiry())
"""What the trace that is made in a thread asks of values; outside of all traces nothing."""


_NEVER_CAST: Final = frozenset(
    (
        *("full", "ones", "ones_like", "zeros", "zeros_like", "triu"),
        *("masked_fill", "masked_fill_", "where", "to", "float", "type"),
        *("add", "sub", "rsub", "mul", "div", "truediv", "neg", "floor", "ceil"),
        *("getitem", "setitem", "expand", "flatten", "reshape", "squeeze", "unsqueeze", "view"),
    )
)
"""Operators whose numbers have one type under autocast, too: those that make masks and lengths."""


def _question(node: fx.Node, aspect: Aspect) -> Condition | None:
    """Return what asks the present inquiry's tensors for the value of a node.

    Returns:
        ``None`` if it is not made of these tensors alone, or they do not answer.
    """
    present = inquiry.now
    if not present.tensors or any(map(_may_change_all, node.graph.nodes)):
        return None
    examples = {
        placeholder: getattr(placeholder.meta.get("grapharg"), "example", None)
        for placeholder in node.graph.find_nodes(op="placeholder")
    }
    places = present.places
    inputs = {p: places[id(given)] for p, given in examples.items() if id(given) in places}
    operators = operators_behind(node, inputs)
    if operators is None or any(_may_be_cast(other) for other in operators if other is not node):
        return None
    read = values_read(operators, (node,) if node in inputs else ())
    with unset_fake_temporarily():
        module = subgraph({}, operators, read, (node,))
    numbers = tuple(inputs[given] for given in read)
    text = f"{aspect} of {numbers} {module.code}"
    condition = Condition(text, lambda *given: module(*given)[0], numbers, aspect)
    return None if present.answer(condition) is None else condition


def looked_up(node: fx.Node, aspect: Aspect) -> Any:
    """Return the value of a node, of which an aspect is asked for; ``None`` as `_question`."""
    condition = _question(node, aspect)
    if condition is None:
        return None
    with unset_fake_temporarily():
        return condition.result(inquiry.now.tensors)


def _may_change_all(node: fx.Node) -> bool:
    """Whether a node is a higher-order operator that may change what it is given in place.

    Torch has no backward through a `torch.utils.checkpoint` that does.
    """
    return isinstance(node.target, HigherOrderOperator) and called_name(node) not in CHECKPOINTS


def _may_be_cast(node: fx.Node) -> bool:
    """Whether autocast may have another result of an operator."""
    if called_name(node) in _NEVER_CAST:
        return False
    tensors = tensors_in(node.meta.get("example_value"))
    return not tensors or any(t.is_floating_point() or t.is_complex() for t in tensors)
