"""Needs of ``transformers`` models besides a plan: their caches off, their hooks installed.

Language models keep keys and values for generating unless told otherwise, in training, too, where
nobody reads them. Under their own gradient checkpointing they turn that off; so does a plan,
where the model gives the same bits without: keys that a cache has copied lie otherwise in memory,
and gradients of attention with dropout may differ in their last bits by that.

Models collect their hidden states by hooks, which they install in their first call, under a lock,
which no graph can hold. They are installed before the call is traced, if the call would install
them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import compress
from typing import Any, Final

from torch import nn

from chainstay.runtime.capture.blocks.host import Host
from chainstay.runtime.capture.cuts.stage_names import outermost
from chainstay.runtime.capture.output_leaves import output_leaves
from chainstay.runtime.capture.trials.call import Call, SampleFailsError
from chainstay.runtime.capture.trials.equivalence import Trial
from chainstay.runtime.capture.trials.isolation import StandIns
from chainstay.runtime.devices.sharding import is_sharded

_MODULE: Final = "transformers.utils.output_capturing"
_MARK: Final = "_output_capturing_hooks_installed"


def caching_configs(model: nn.Module) -> tuple[Any, ...]:
    """Return the distinct configurations in `model` that can have keys and values kept."""
    configs = (getattr(module, "config", None) for module in model.modules())
    return tuple(
        {id(config): config for config in configs if hasattr(config, "use_cache")}.values()
    )


def may_be_packed(call: Call) -> bool:
    """Whether a call gives positions and no mask, which may be those of several packed sequences.

    Models look whether they are only where they keep no keys and values: the values of a later call
    decide whether it gives the same without. One that asks for a mask never looks.
    """
    given = call.kwargs
    return given.get("position_ids") is not None and given.get("attention_mask") is None


@contextmanager
def caches_set(configs: Sequence[Any], *, kept: bool) -> Iterator[None]:
    """Inside, models of these configurations keep what they need for generating, or do not.

    A call may ask for the contrary.
    """
    before = [config.use_cache for config in configs]
    try:
        for config in configs:
            config.use_cache = kept
        yield
    finally:
        for config, was_kept in zip(configs, before, strict=True):
            config.use_cache = was_kept


def is_same_without_caches(call: Call, configs: Sequence[Any]) -> bool:
    """Whether `call` gives the same as with caches, gradients included; it may fail without.

    Args:
        call: A call of the model.
        configs: The configurations in it whose caches are off at present, and were on.

    Raises:
        SampleFailsError: The model itself fails on the call, with caches, too.
    """
    if is_sharded(call.model):  # no copy of such a model can be tried
        return True
    held = {id(value): value for value in (*call.model.parameters(), *call.tensors)}
    inputs, off = tuple(held.values()), set(map(id, configs))
    are_off = [id(config) in off for config in caching_configs(call.model)]

    def with_caches(*given: Any) -> list[Any]:
        pairs = zip(inputs, given, strict=True)
        shadow = call.of_shadow(StandIns(known={id(pair[0]): pair for pair in pairs}))
        own = [*compress(caching_configs(shadow.model), are_off)]
        with caches_set(own, kept=True):
            return output_leaves(shadow())

    try:
        return Trial(call, inputs, with_caches, frozenset(), call.device).is_same()
    except SampleFailsError:
        with (
            Host(call, call.device).fresh() as (shadow, run),
            caches_set([*compress(caching_configs(shadow), are_off)], kept=True),
        ):
            run()
        return False


@contextmanager
def output_hooks_installed(call: Call) -> Iterator[bool]:
    """Install the hooks that `call` would; take them away again if the body raises.

    Yields:
        Whether there were any to install.
    """
    transformers: Any = sys.modules.get(_MODULE)
    has_any = any(getattr(module, "_can_record_outputs", None) for module in call.model.modules())
    owners = _owners(call) if has_any and transformers is not None else []
    modules = [module for owner in owners for module in owner.modules()]
    before = [(module, set(module._forward_hooks), _MARK in vars(module)) for module in modules]  # noqa: SLF001  # torch has no other list of them
    try:
        for owner in owners:
            transformers.maybe_install_capturing_hooks(owner)
        yield bool(owners)
    except BaseException:
        for module, hooks, is_marked in before:
            for key in [key for key in module._forward_hooks if key not in hooks]:  # noqa: SLF001  # torch has no other list of them
                del module._forward_hooks[key]  # noqa: SLF001  # torch has no other list of them
            if not is_marked:
                vars(module).pop(_MARK, None)
        raise


def _owners(call: Call) -> Sequence[nn.Module]:
    """Return the outermost parts of the model for which the call would install hooks."""
    with Host(call, call.device).fresh() as (shadow, run):
        run()
        marked = [name for name, module in shadow.named_modules() if _MARK in vars(module)]
    new = [name for name in marked if _MARK not in vars(call.model.get_submodule(name))]
    return [call.model.get_submodule(name) for name in outermost(new)]
