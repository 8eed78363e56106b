"""Truths and numbers that a forward reads from its arguments, looked up while it is traced."""

from __future__ import annotations

import dis
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from operator import not_
from typing import Any, Final
from unittest.mock import patch

import torch

from chainstay.runtime.capture.subgraphs import example_of
from chainstay.runtime.capture.values.conditions import Inquiry, inquiry, looked_up

_JUMPS: Final = tuple(
    number
    for name, number in dis.opmap.items()
    if re.fullmatch(r"POP_JUMP_(FORWARD_|BACKWARD_)?IF_(TRUE|FALSE)", name)
)
"""The instructions that go on elsewhere by whether a value is true, and do not keep it."""


@contextmanager
def values_looked_up(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Inside, TorchDynamo knows what it is asked of these tensors of a call."""
    from torch._dynamo.symbolic_convert import (  # noqa: PLC0415  # takes more than a second
        InstructionTranslatorBase,
    )
    from torch._dynamo.variables import BuiltinVariable, TensorVariable  # noqa: PLC0415  # likewise

    call_tensor: Callable[..., Any] = TensorVariable.call_method
    call: Callable[..., Any] = BuiltinVariable.call_function
    asked = {bool: _truth, not_: _truth, int: _item, range: _item}

    def call_method(self: Any, translator: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        read = {"item": _item, "tolist": _list}.get(name)
        found = read and read(self, translator)
        return found or call_tensor(self, translator, name, *args, **kwargs)

    def call_function(self: Any, translator: Any, args: Sequence[Any], kwargs: Any) -> Any:
        if read := asked.get(self.fn):
            args = [read(v, translator) or v if isinstance(v, TensorVariable) else v for v in args]
        return call(self, translator, args, kwargs)

    with inquiry.set_to(Inquiry(tensors)), ExitStack() as stack:
        stack.enter_context(patch.object(TensorVariable, "call_method", call_method))
        stack.enter_context(patch.object(BuiltinVariable, "call_function", call_function))
        translators: list[Any] = [InstructionTranslatorBase]
        for translator in translators:  # grows meanwhile
            translators += translator.__subclasses__()
            before = translator.dispatch_table
            jumps = {number: _jump_by_truth(before, number) for number in _JUMPS}
            table = [jumps.get(number, instruction) for number, instruction in enumerate(before)]
            stack.enter_context(patch.object(translator, "dispatch_table", table))
        yield


def _jump_by_truth(table: Sequence[Callable[..., None]], number: int) -> Callable[..., None]:
    """Return an instruction that looks up the value that decides, and then jumps as the table."""
    from torch._dynamo.variables import TensorVariable  # noqa: PLC0415  # takes more than a second

    def jump_by_truth(self: Any, instruction: Any) -> None:
        jump = table[number]
        if isinstance(self.stack[-1], TensorVariable):
            self.stack[-1] = _truth(self.stack[-1], self) or self.stack[-1]
        if isinstance(self.stack[-1], TensorVariable) and _asserts_not(self, instruction):
            jump = table[dis.opmap[instruction.opname.replace("FALSE", "TRUE")]]
            self.stack[-1] = self.stack[-1].call_method(self, "logical_not", [], {})
        jump(self, instruction)

    return jump_by_truth


def _asserts_not(translator: Any, jump: Any) -> bool:
    """Whether a jump is one of ``assert not``; TorchDynamo traces those of ``assert`` only."""
    following = translator.instructions[translator.instruction_pointer].opname
    return bool(jump.opname.endswith("IF_FALSE") and following == "LOAD_ASSERTION_ERROR")


def _truth(variable: Any, translator: Any) -> Any:
    """Return TorchDynamo's constant for whether a value is true, if that can be looked up."""
    example = _integer_example(variable)
    if example is None or example.numel() != 1:
        return None
    value = looked_up(variable.as_proxy().node, "truth")
    return None if value is None else _constant(translator, bool(value))


def _item(variable: Any, translator: Any) -> Any:
    """Return TorchDynamo's constant for the one number of a tensor, likewise."""
    example = _integer_example(variable)
    if example is not None and example.dtype == torch.bool:
        return _truth(variable, translator)
    numbers = _numbers(variable)
    return None if numbers is None else _constant(translator, numbers.item())


def _list(variable: Any, translator: Any) -> Any:
    """Return TorchDynamo's list of the numbers of a tensor, likewise."""
    numbers = _numbers(variable)
    return None if numbers is None else _constant(translator, numbers.tolist())


def _numbers(variable: Any) -> torch.Tensor | None:
    """Return the integers of a tensor, likewise."""
    numbers: torch.Tensor | None = None
    if _integer_example(variable) is not None:
        numbers = looked_up(variable.as_proxy().node, "numbers")
    return numbers


def _integer_example(variable: Any) -> torch.Tensor | None:
    """Return a variable's tensor while tracing, if it is one of integers or truths.

    Numbers with fractions are not looked up: they seldom come again.
    """
    example = example_of(variable.as_proxy().node)
    has_fractions = example is None or example.is_floating_point() or example.is_complex()
    return None if has_fractions else example


def _constant(translator: Any, value: object) -> Any:
    """Return TorchDynamo's constant for a Python number, or a list of some."""
    from torch._dynamo.variables.base import VariableTracker  # noqa: PLC0415  # takes a second

    return VariableTracker.build(translator, value)
