"""torch.export, with its many ways to fail told by name."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import compiler, nn
from torch.distributions import Distribution
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from chainstay.errors import UnsupportedModelError

__all__ = ["export_quietly"]

_LOUD: Final = ("torch.fx.experimental.symbolic_shapes", "torch._subclasses.fake_tensor")
"""They log whole stacks of what they raise anyway."""


def export_quietly(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> ExportedProgram:
    """The program of ``model(*args, **kwargs)``, in the mode that the model is in.

    Raises:
        UnsupportedModelError: torch.export cannot trace the model.
    """
    with _told_by_name(model), _quiet(), _trusting(), _unaware(model):
        return torch.export.export(model, args, dict(kwargs), strict=False)


@contextmanager
def _unaware(model: nn.Module) -> Iterator[None]:
    """Do not let the forward of `model` know that it is traced.

    Models that ask take another way then, with other operators: Transformers' attention gets
    a mask where it would get a flag. The chain shall do what the model does when it trains.
    """

    def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # the model's own
        flags = compiler._is_compiling_flag, compiler._is_exporting_flag  # noqa: SLF001
        compiler._is_compiling_flag = compiler._is_exporting_flag = False  # noqa: SLF001
        try:
            return model._call_impl(*args, **kwargs)  # noqa: SLF001
        except GuardOnDataDependentSymNode as cause:  # outside, torch prints the graph so far
            raise UnsupportedModelError(
                f"the forward of {type(model).__name__} decides by the values of a tensor "
                f"({_first_line(cause)}); write that with torch.where or torch.cond, or use "
                "intercept() on its blocks"
            ) from cause
        finally:
            compiler._is_compiling_flag, compiler._is_exporting_flag = flags  # noqa: SLF001

    compiled = model._compiled_call_impl  # noqa: SLF001  # where Module.__call__ looks first
    model._compiled_call_impl = call  # noqa: SLF001
    try:
        yield
    finally:
        model._compiled_call_impl = compiled  # noqa: SLF001


@contextmanager
def _trusting() -> Iterator[None]:
    """Let distributions not look at the values they are given, as torch.compile does.

    Each looks by default, and that is all that many a model with a distribution inside ever
    decides by values.
    """
    kept = Distribution._validate_args  # noqa: SLF001  # there is no public way to ask
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(kept)


@contextmanager
def _quiet() -> Iterator[None]:
    """What tracing warns of is torch's own business; a failure tells all there is to know."""
    loggers = [logging.getLogger(name) for name in _LOUD]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def _told_by_name(model: nn.Module) -> Iterator[None]:
    name = type(model).__name__
    try:
        yield
    except (torch.OutOfMemoryError, UnsupportedModelError):
        raise  # tells its own story
    except Exception as cause:  # a model is the user's code and may raise anything
        raise UnsupportedModelError(
            f"torch.export cannot trace {name}: {type(cause).__name__}: {_first_line(cause)}; "
            "check that the model runs on the sample, or use intercept() on its blocks"
        ) from cause


def _first_line(cause: Exception) -> str:
    lines = str(cause).strip().splitlines()
    return lines[0].strip().rstrip(".") if lines else "no message"
