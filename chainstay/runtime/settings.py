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

__all__ = ["Reader", "Settings", "change_since", "global_hooks", "names_of", "settings_of"]

Settings = tuple[tuple[str, ...], tuple[object, ...] | None, object, int]
"""Names of values that the module holds, they, its own forward, and how many hooks it has.

Equal as long as the module computes the same from the same tensors.
"""

_SCALARS: Final = (bool, int, float, str)

Reader = Callable[[Any], tuple[object, ...]]
_readers: WeakKeyDictionary[nn.Module, tuple[tuple[str, ...], Reader]] = WeakKeyDictionary()
"""Names of a module's values, and what reads them all at once: they are read in every step."""


def names_of(module: nn.Module) -> tuple[str, ...]:
    """Of the numbers and texts that `module` holds for its forward.

    All those of torch's own modules. Of others, which may count and take notes, the floats.
    """
    is_torchs = type(module).__module__.startswith("torch.nn.modules.")
    return tuple(
        name
        for name, value in vars(module).items()
        if name != "training"
        and not name.startswith("_")
        and (type(value) is float or (is_torchs and _is_plain(value)))
    )


def settings_of(module: nn.Module) -> Settings:
    """What they are now."""
    known = _readers.get(module)
    if known is None:
        names = names_of(module)
        # The last one twice: a tuple even of one.
        known = _readers[module] = (names, itemgetter(*names, *names[-1:]) if names else _nothing)
    names, read = known
    own = module.__dict__
    try:
        values = read(own)
    except KeyError:
        values = None  # one of them was deleted
    hooks = len(own["_forward_hooks"]) + len(own["_forward_pre_hooks"])
    return names, values, own.get("forward"), hooks


def change_since(module: nn.Module, before: Settings) -> str:
    """For people: in what the settings of `module` differ from those `before`."""
    names, values, forward, _ = before
    kind, own = type(module).__name__, vars(module)
    for name, old in zip(names, values or (), strict=False):
        if own.get(name) != old:
            return f"in a {kind}, {name} is {own.get(name)!r} and was {old!r}"
    return f"a {kind} has another {'set of hooks' if own.get('forward') == forward else 'forward'}"


def global_hooks() -> int:
    """How many hooks there are that torch calls around the forward of any module."""
    return len(torch_modules._global_forward_hooks) + len(  # noqa: SLF001  # no public way to see
        torch_modules._global_forward_pre_hooks  # noqa: SLF001  # likewise
    )


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(isinstance(each, _SCALARS) for each in value)
    return isinstance(value, _SCALARS)


def _nothing(_: Mapping[str, object]) -> tuple[()]:
    return ()
