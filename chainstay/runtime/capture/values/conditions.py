"""Questions that a forward asks of values in its arguments: of yes or no, and how many.

A forward may ask whether a mask hides anything, or whether there is a label too large, and go
another way then: of that TorchDynamo makes no graph. Or it selects by a mask, as networks on graphs
do that leave out edges: the values decide how large the result is. What is made of the call's
arguments alone can be looked up while it is traced, and asked again in front of each later call:
another answer is another graph. Numbers are not looked up, of which there may be as many as calls.
"""

from __future__ import annotations

import dis
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from operator import not_
from typing import Any, Final, TypeAlias, cast
from unittest.mock import patch

import torch
from torch import fx
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import is_fake, unset_fake_temporarily

from chainstay.runtime.capture.subgraphs import called_name, example_of, subgraph, values_read
from chainstay.runtime.capture.values.constant_masks import steady_operators_behind
from chainstay.runtime.devices.thread_value import ThreadValue
from chainstay.runtime.stage.states import tensors_in

Answer: TypeAlias = bool | tuple[torch.Size, ...]
"""Yes or no, or the sizes of tensors."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A question to tensors of a call: of yes or no, or how large something is.

    Attributes:
        text: A text that is equal for equal questions.
        function: Computes what the answer is about.
        places: Where in the call's tensors those are that it takes.
        is_of_sizes: Whether it asks how large that is.
    """

    text: str
    function: Callable[..., Any]
    places: tuple[int, ...]
    is_of_sizes: bool = False

    def answer(self, tensors: Sequence[torch.Tensor]) -> Answer | None:
        """Return the answer for the tensors of a call; ``None`` if they have none."""
        try:
            found = self.result(tensors)
            return tuple(t.shape for t in tensors_in(found)) if self.is_of_sizes else bool(found)
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
    def sizes(self) -> tuple[Answer | None, ...]:
        """How large all is whose size was asked for."""
        return tuple(c.answer(self.tensors) for c in self.conditions if c.is_of_sizes)

    @property
    def sizes_text(self) -> str:
        """The same for people: ``2 x 20, 2 x 21``."""
        sizes = (size for answer in self.sizes for size in cast("tuple[torch.Size, ...]", answer))
        return ", ".join(" x ".join(map(str, size)) for size in dict.fromkeys(sizes))

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


@contextmanager
def values_looked_up(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Inside, TorchDynamo knows what it is asked of these tensors of a call."""
    from torch._dynamo import symbolic_convert  # noqa: PLC0415  # takes more than a second
    from torch._dynamo.variables import BuiltinVariable, TensorVariable  # noqa: PLC0415  # likewise

    call_tensor: Callable[..., Any] = TensorVariable.call_method
    call: Callable[..., Any] = BuiltinVariable.call_function

    def call_method(self: Any, translator: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        answer = _looked_up(self) if name == "item" else None
        return answer or call_tensor(self, translator, name, *args, **kwargs)

    def call_function(self: Any, translator: Any, args: Sequence[Any], kwargs: Any) -> Any:
        if self.fn in (bool, not_) and len(args) == 1 and isinstance(args[0], TensorVariable):
            args = [_looked_up(args[0]) or args[0]]
        return call(self, translator, args, kwargs)

    def looking(table: Sequence[Callable[..., None]], number: int) -> Callable[..., None]:
        def jump_by_value(self: Any, instruction: Any) -> None:
            jump = table[number]
            if isinstance(self.stack[-1], TensorVariable):
                self.stack[-1] = _looked_up(self.stack[-1]) or self.stack[-1]
            if isinstance(self.stack[-1], TensorVariable) and _asserts_not(self, instruction):
                jump = table[dis.opmap[instruction.opname.replace("FALSE", "TRUE")]]
                self.stack[-1] = self.stack[-1].call_method(self, "logical_not", [], {})
            jump(self, instruction)

        return jump_by_value

    with inquiry.set_to(Inquiry(tensors)), ExitStack() as stack:
        stack.enter_context(patch.object(TensorVariable, "call_method", call_method))
        stack.enter_context(patch.object(BuiltinVariable, "call_function", call_function))
        pending: list[Any] = [symbolic_convert.InstructionTranslatorBase]
        for translator in pending:  # grows meanwhile
            pending += translator.__subclasses__()
            before = translator.dispatch_table
            table = list(before)
            for number in _JUMPS:
                table[number] = looking(before, number)
            stack.enter_context(patch.object(translator, "dispatch_table", table))
        yield


_NEVER_CAST: Final = frozenset(("full", "masked_fill_", "triu", "zeros_like"))
"""Operators whose numbers have one type under autocast, too: those that make masks of attention."""
_JUMPS: Final = tuple(
    number
    for name, number in dis.opmap.items()
    if re.fullmatch(r"POP_JUMP_(FORWARD_|BACKWARD_)?IF_(TRUE|FALSE)", name)
)
"""The instructions that go on elsewhere by whether a value is true, and do not keep it."""


def _asserts_not(translator: Any, jump: Any) -> bool:
    """Whether a jump is one of ``assert not``; TorchDynamo traces those of ``assert`` only."""
    following = translator.instructions[translator.instruction_pointer].opname
    return bool(jump.opname.endswith("IF_FALSE") and following == "LOAD_ASSERTION_ERROR")


def _looked_up(variable: Any) -> Any:
    """Return TorchDynamo's constant for a value of yes or no that can be looked up, else None."""
    from torch._dynamo.variables import ConstantVariable  # noqa: PLC0415  # takes more than a second

    present = inquiry.now
    condition = _condition(variable.as_proxy().node, present.places) if present.tensors else None
    answer = None if condition is None else present.answer(condition)
    return None if answer is None else ConstantVariable.create(answer)


def _condition(node: fx.Node, places: dict[int, int]) -> Condition | None:
    """Return the condition that a node tells, if it is made of tensors of the call alone."""
    example = example_of(node)
    if example is None or example.dtype != torch.bool or example.numel() != 1:
        return None
    return question(node, places)


def question(
    node: fx.Node, places: dict[int, int], *, is_of_sizes: bool = False
) -> Condition | None:
    """Return what asks for the value of a node, if it is made of tensors of the call alone.

    Those are, by their identity, at these `places` among the call's.
    """
    if any(isinstance(other.target, HigherOrderOperator) for other in node.graph.nodes):
        return None  # nothing is known of what it changes
    examples = {
        placeholder: getattr(placeholder.meta.get("grapharg"), "example", None)
        for placeholder in node.graph.find_nodes(op="placeholder")
    }
    inputs = {p: places[id(given)] for p, given in examples.items() if id(given) in places}
    operators = steady_operators_behind(node, inputs)
    if not operators or any(_may_be_cast(other) for other in operators if other is not node):
        return None
    read = values_read(operators)
    with unset_fake_temporarily():
        module = subgraph({}, operators, read, (node,))
    numbers = tuple(inputs[given] for given in read)
    text = f"{'size' if is_of_sizes else 'truth'} of {numbers} {module.code}"
    return Condition(text, lambda *given: module(*given)[0], numbers, is_of_sizes)


def _may_be_cast(node: fx.Node) -> bool:
    """Whether autocast may have another result of an operator."""
    if called_name(node) in _NEVER_CAST:
        return False
    tensors = tensors_in(node.meta.get("example_value"))
    return not tensors or any(t.is_floating_point() or t.is_complex() for t in tensors)
