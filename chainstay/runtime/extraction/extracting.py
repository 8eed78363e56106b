"""The front of extraction: any module and a sample call in, an `ExtractedChain` out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only

from chainstay.errors import NotAJoinError, UnsupportedModelError
from chainstay.runtime.extraction.assembling import Parts, assemble
from chainstay.runtime.extraction.calling import CallSignature
from chainstay.runtime.extraction.calls import device_of, require_module_and_tuple
from chainstay.runtime.extraction.chain import ExtractedChain
from chainstay.runtime.extraction.crossing import find_crossings
from chainstay.runtime.extraction.cutting import Granularity, choose_cuts
from chainstay.runtime.extraction.exporting import export_quietly
from chainstay.runtime.extraction.flattening import FlatGraph, flatten
from chainstay.runtime.extraction.identities import without_identities
from chainstay.runtime.extraction.likeness import hooks_of
from chainstay.runtime.extraction.naming import repeated_blocks
from chainstay.runtime.extraction.observing import Observations, observe
from chainstay.runtime.extraction.referee import require_same
from chainstay.runtime.extraction.sharing import movable_nodes
from chainstay.runtime.extraction.towers import find_towers
from chainstay.runtime.extraction.untouched import attributes_kept
from chainstay.runtime.generators import OtherGenerators
from chainstay.runtime.preserve import undisturbed
from chainstay.runtime.settings import global_hooks

__all__ = ["extract", "require_granularity", "trace"]


def extract(
    model: nn.Module,
    sample_args: tuple[Any, ...],
    sample_kwargs: Mapping[str, Any] | None = None,
    *,
    granularity: Granularity = "fine",
) -> ExtractedChain:
    """Cut the forward of `model` into stages.

    The model is traced by torch.export in its present mode (training flags, autocast), then
    model and chain are run once each and compared. It is left as it was: parameters,
    buffers, training flags, attributes and random states, even when extraction fails.

    Args:
        model: Any module. Its forward may take and return nested tuples, lists, dicts.
        sample_args: Positional arguments of a call like those to come. Numbers, strings and
            ``None`` are part of the plan; tensors may change their values, not their shapes.
        sample_kwargs: Keyword arguments, likewise.
        granularity: ``"fine"`` cuts wherever little crosses, some two to four stages per
            block; ``"blocks"`` only between the model's repeated blocks; a number sets the
            most stages there may be. Finer chains leave more to choose, and take longer to
            measure and to solve.

    Raises:
        UnsupportedModelError: The model cannot be traced, or does things that a chain of
            stages would not do; the text says what to do instead.

    Complexity:
        Linear in the number of operators but for torch.export itself: seconds.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 1))
        >>> chain = extract(model, (torch.zeros(2, 8),))
        >>> [stage.name for stage in chain.stages]
        ['0+1', '2']
    """
    kwargs = dict(sample_kwargs or {})
    require_granularity(granularity)
    flat, seen, device = trace(model, sample_args, kwargs)
    movable = movable_nodes(flat, seen)
    crossings = find_crossings(flat, seen, movable)
    cuts = choose_cuts(crossings, seen, granularity, repeated_blocks(model))
    chain = assemble(
        Parts(model=model, flat=flat, seen=seen, crossings=crossings, cuts=cuts),
        CallSignature.of(sample_args, kwargs),
    )
    _refuse_written_parameters(model, chain)
    require_same(model, chain, sample_args, kwargs, device)
    try:
        find_towers(flat, seen, movable)
    except NotAJoinError as reason:
        return replace(chain, not_a_join=str(reason))
    return chain


def trace(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[FlatGraph, Observations, torch.device]:
    """The graph of a call, what its operators do, and where.

    Raises:
        UnsupportedModelError: The model cannot be traced; it is left as it was.
    """
    require_module_and_tuple(model, args)
    device = device_of(model, args, kwargs)
    _refuse_hooks(model)
    args, kwargs = _distinct(args, kwargs)
    with undisturbed(model.modules(), device), attributes_kept(model), torch.enable_grad():
        others = OtherGenerators.now()
        program = export_quietly(model, args, kwargs)
        if others != OtherGenerators.now():
            raise UnsupportedModelError(
                f"the forward of {type(model).__name__} draws random numbers from Python's or "
                "NumPy's generator, which its stages would never draw again; draw them from "
                "torch's, or use intercept() on its blocks"
            )
        flat = flatten(program, model)
        seen = observe(flat, tree_leaves((args, kwargs)))
        return without_identities(flat, seen), seen, device


def _distinct(
    args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call with a tensor of its own in every place: torch.export takes equal ones for one."""
    seen: set[int] = set()

    def own(leaf: torch.Tensor) -> torch.Tensor:
        if id(leaf) in seen:
            return leaf.detach().clone().requires_grad_(leaf.requires_grad)
        seen.add(id(leaf))
        return leaf

    call: tuple[tuple[Any, ...], dict[str, Any]] = tree_map_only(
        torch.Tensor, own, (args, dict(kwargs))
    )
    return call


def require_granularity(granularity: object) -> None:
    """Refuse what says nothing about stages.

    Raises:
        ValueError: Neither a name nor a number of stages.
    """
    is_count = isinstance(granularity, int) and granularity >= 1
    if not is_count and granularity not in ("fine", "blocks"):
        raise ValueError(
            f"granularity is {granularity!r}, must be 'fine', 'blocks' or a number of stages, "
            "at least 1"
        )


def _refuse_written_parameters(model: nn.Module, chain: ExtractedChain) -> None:
    for stage in chain.stages:
        for tensor in stage.changes:
            if isinstance(tensor.read(), nn.Parameter):
                raise UnsupportedModelError(
                    f"the forward of {type(model).__name__} changes its parameter {tensor.path} in "
                    "place, which stages that run again cannot; if that is how it is initialised, "
                    "call it once before, otherwise make it a buffer, or use intercept()"
                )


def _refuse_hooks(model: nn.Module) -> None:
    if global_hooks():
        raise UnsupportedModelError(
            "there are hooks for all modules (torch.nn.modules.module), which stages would skip; "
            "remove them, or use intercept(), which runs them"
        )
    for path, module in model.named_modules():
        if hooks_of(module):
            raise UnsupportedModelError(
                f"{path or 'the model'} ({type(module).__name__}) has {hooks_of(module)}, which "
                "its stages would skip; remove them, or use intercept(), which runs them"
            )
