"""Patches of TorchDynamo, for code that it refuses, or makes a graph of that costs more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from itertools import groupby
from types import FunctionType, MethodType
from typing import Any, Final
from unittest.mock import patch

import torch

from chainstay.runtime.capture.custom_functions import require_gradient

_ORIGINAL: Final = "_torchdynamo_orig_callable"
"""Where `torch.compiler.disable` keeps the function that it is given."""


def tracer_patches() -> Iterator[AbstractContextManager[object]]:
    """Yield changes of how TorchDynamo traces, if this release of torch has what they change.

    ``random.Random`` objects are not traced: their numbers would become constants. What is known
    while tracing, such as sizes, can be printed behind the graph. What a user's code keeps from
    compilers is traced, and so is ``requires_grad_()``. And guards are not timed for
    torch's log: flushing the processor's caches for that takes 25 ms per graph.
    """
    from torch._dynamo import guards, variables  # noqa: PLC0415  # takes more than a second
    from torch._dynamo.variables import builder, builtin, misc  # noqa: PLC0415  # likewise

    drawing: Any = getattr(variables, "RandomVariable", None)
    printed: Any = getattr(misc, "DebuggingVariable", None)
    objects, tensors = variables.UserDefinedObjectVariable, variables.TensorVariable
    iterators = variables.ItertoolsVariable
    functions, skipped = variables.UserFunctionVariable, variables.SkipFunctionVariable
    wrappers = variables.functions.WrapperUserFunctionVariable
    for place, name, value in (
        (drawing, "is_supported_random_obj", staticmethod(lambda _: False)),
        (builder, "is_sparse_any", _is_refused),
        (builtin, "is_sparse_any", _is_refused),
        (printed, "can_reorder_logs", _printing(printed)),
        (guards, "profile_guard_manager", lambda *_: 0.0),
        (objects, "call_method", _reading_context_variables(objects)),
        (iterators, "call_function", _grouping(iterators)),
        (tensors, "unpack_var_sequence", _unpacking(tensors)),
        (tensors, "call_method", _requiring_gradients(tensors)),
        (functions, "__init__", _taking_the_original(functions)),
        (skipped, "create_with_source", _tracing_the_original(skipped, wrappers)),
    ):
        if hasattr(place, name):
            yield patch.object(place, name, value)


def _is_refused(tensor: torch.Tensor) -> bool:
    """Whether a sparse tensor is refused: those in coordinates (COO) are not, unless trained.

    TorchDynamo refuses all, though its guards tell them from dense ones, and look at their sizes
    and types.
    """
    from torch._subclasses.meta_utils import is_sparse_any  # noqa: PLC0415  # takes a second

    is_taken = tensor.layout == torch.sparse_coo and not tensor.requires_grad
    return is_sparse_any(tensor) and not is_taken


def _printing(printed: Any) -> Any:
    """Return what says that constants among what is printed need no graph."""
    can_be_moved: Any = getattr(printed, "can_reorder_logs", None)

    def can_be_printed(*given: Any) -> bool:
        *function, args, kwargs = given  # torch 2.15 leaves the function out
        moved = [arg for arg in args if not arg.is_python_constant()]
        return bool(can_be_moved(*function, moved, kwargs))

    return staticmethod(can_be_printed)


def _reading_context_variables(objects: Any) -> Callable[..., Any]:
    """Return a method by which context variables can be read, and are guarded.

    Models of ``transformers`` whose attentions are asked for read one in each block.
    """
    from torch._dynamo.source import (  # noqa: PLC0415  # takes more than a second
        AttrSource,
        CallFunctionNoArgsSource,
    )
    from torch._dynamo.variables.base import VariableTracker  # noqa: PLC0415  # likewise

    call: Callable[..., Any] = objects.call_method

    def called(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        is_read = isinstance(self.value, ContextVar) and name == "get" and not (args or kwargs)
        if is_read and self.source is not None:
            try:
                held = self.value.get()
            except LookupError:
                pass  # as unknown to TorchDynamo as before
            else:
                source = CallFunctionNoArgsSource(AttrSource(self.source, "get"))
                return VariableTracker.build(tx, held, source)
        return call(self, tx, name, args, kwargs)

    return called


def _grouping(iterators: Any) -> Callable[..., Any]:
    """Return a method by which `itertools.groupby` takes its key by position, too.

    Vision-language models of ``transformers`` give it so.
    """
    call: Callable[..., Any] = iterators.call_function

    def called(self: Any, tx: Any, args: Sequence[Any], kwargs: Any) -> Any:
        if self.value is groupby and len(args) == 2:
            args, kwargs = args[:1], {"key": args[1]}
        return call(self, tx, args, kwargs)

    return called


def _unpacking(tensors: Any) -> Callable[..., Any]:
    """Return a method by which a tensor is unpacked by one `unbind`, as it is outside of graphs.

    With a selection for each part, a backward makes a gradient of all of the tensor for each.
    """
    selected: Callable[..., Any] = tensors.unpack_var_sequence

    def unpacked(self: Any, tx: Any, idxes: Sequence[int] | None = None) -> Any:
        if idxes is not None or type(self) is not tensors or not self.size:
            return selected(self, tx, idxes)
        return self.call_method(tx, "unbind", [], {}).unpack_var_sequence(tx)

    return unpacked


def _requiring_gradients(tensors: Any) -> Callable[..., Any]:
    """Return a method by which what the forward makes may be made to require a gradient.

    ``enable_input_require_grads()`` of ``transformers`` does that to embeddings that are not
    trained, as LoRA needs it for checkpoints inside.
    """
    call: Callable[..., Any] = tensors.call_method

    def called(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        is_made = name == "requires_grad_" and self.source is None
        if not (is_made and all(v.as_python_constant() for v in (*args, *kwargs.values()))):
            return call(self, tx, name, args, kwargs)
        example = self.as_proxy().node.meta["example_value"]
        if not example.requires_grad:
            tx.output.create_proxy("call_function", require_gradient, (self.as_proxy(),), {})
            example.requires_grad_()
            self.requires_grad = True
        return self

    return called


def _taking_the_original(functions: Any) -> Callable[..., None]:
    """Return a constructor by which methods under `torch.compiler.disable` are traced.

    They are to be kept from compilers, and nothing is compiled here.
    """
    begin: Callable[..., None] = functions.__init__

    def begun(self: Any, fn: Any, *args: Any, **kwargs: Any) -> None:
        original = _original(fn)
        begin(self, original if isinstance(original, FunctionType) else fn, *args, **kwargs)

    return begun


def _tracing_the_original(skipped: Any, wrappers: Any) -> Any:
    """Return a class method by which functions under `torch.compiler.disable` are traced."""
    create: Callable[..., Any] = skipped.create_with_source.__func__

    def created(cls: Any, value: Any, source: Any) -> Any:
        if _original(value) is None:
            return create(cls, value, source)
        return wrappers(value, _ORIGINAL, source=source)

    return classmethod(created)


def _original(function: Any) -> FunctionType | MethodType | None:
    """Return the function that is disabled; None if none is, or torch or chainstay disabled it.

    What these disable, such as hooks of FSDP and forwards of fitted models, is no part of a graph.
    """
    if not getattr(function, "_torchdynamo_disable", False):
        return None
    original = getattr(function, _ORIGINAL, None)
    home = str(getattr(original, "__module__", "")).partition(".")[0]
    is_theirs = home not in ("torch", __package__.partition(".")[0])
    return original if isinstance(original, FunctionType | MethodType) and is_theirs else None
