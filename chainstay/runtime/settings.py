"""What a module computes besides what its tensors say: numbers that it holds, hooks, its forward.

An exported graph has them as they were at extraction, and a stage of modules that runs again
must find them as they were when it ran first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, Final
from weakref import WeakKeyDictionary

from torch import nn
from torch.nn.modules import module as torch_modules

__all__ = ["Settings", "change_since", "global_hooks", "settings_of", "values_of"]

Settings = tuple[object, ...]
"""Equal as long as the module computes the same from the same tensors."""

_SCALARS: Final = (bool, int, float, str)

_readers: WeakKeyDictionary[nn.Module, tuple[tuple[str, ...], Callable[[Any], object]]] = (
    WeakKeyDictionary()
)
"""Names of a module's values, and what reads them all at once: they are read in every step."""


def values_of(module: nn.Module) -> object:
    """The numbers and texts that `module` holds for its forward.

    All those of torch's own modules. Of others, which may count and take notes, the floats.
    """
    known = _readers.get(module)
    if known is None:
        names = tuple(_names_of(module))
        known = _readers[module] = (names, itemgetter(*names) if names else _nothing)
    try:
        return known[1](module.__dict__)
    except KeyError:
        return None  # one was deleted


def settings_of(module: nn.Module) -> Settings:
    """Its values, how many hooks it has, and the forward that stands in for its class's."""
    own = module.__dict__
    hooks = len(own["_forward_hooks"]) + len(own["_forward_pre_hooks"])
    return values_of(module), own.get("forward"), hooks


def change_since(module: nn.Module, before: Settings) -> str:
    """For people: in what the settings of `module` differ from those `before`."""
    values, forward, _ = settings_of(module)
    kind = type(module).__name__
    if values != before[0]:
        names, _ = _readers[module]
        pairs = zip(names, _tuple(before[0]), _tuple(values), strict=False)
        changed = next((f"{n} is {v!r} and was {b!r}" for n, b, v in pairs if v != b), "a value")
        return f"in a {kind}, {changed}"
    return f"a {kind} has another {'set of hooks' if forward == before[1] else 'forward'}"


def global_hooks() -> int:
    """How many hooks there are that torch calls around the forward of any module."""
    return len(torch_modules._global_forward_hooks) + len(  # noqa: SLF001  # no public way to see
        torch_modules._global_forward_pre_hooks  # noqa: SLF001  # likewise
    )


def _names_of(module: nn.Module) -> list[str]:
    is_torchs = type(module).__module__.startswith("torch.nn.modules.")
    return [
        name
        for name, value in vars(module).items()
        if name != "training"
        and not name.startswith("_")
        and (type(value) is float or (is_torchs and _is_plain(value)))
    ]


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(isinstance(each, _SCALARS) for each in value)
    return isinstance(value, _SCALARS)


def _nothing(_: Mapping[str, object]) -> object:
    return ()


def _tuple(values: object) -> tuple[object, ...]:
    return values if isinstance(values, tuple) else (values,)
