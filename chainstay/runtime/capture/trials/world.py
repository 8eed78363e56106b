"""Python objects outside of a model that its code may change, put back after a trial.

From the functions that run, whatever they reach is looked after: globals that they name, cells
of closures, default arguments, attributes of functions and classes, and what lies in these:
containers, tensors, generators of random numbers, objects of the user's classes. The place of an
iterator cannot be put back, so a trial that took items from one is refused.
"""

from __future__ import annotations

import dis
import random
import sys
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from operator import length_hint
from types import CellType, CodeType, FunctionType, GeneratorType, MethodType
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch._subclasses.fake_tensor import FakeTensor

from chainstay.errors import UnsupportedModelError
from chainstay.runtime.devices.generators import OtherGenerators
from chainstay.runtime.execute.environment import (
    RandomStates,
    random_states,
    restore_random_states,
)
from chainstay.runtime.stage.states import is_equal


@dataclass(frozen=True, slots=True)
class RandomNumbers:
    """States of all generators that a forward may draw from.

    Attributes:
        states: Those of torch's generators, in memory that is not torch's: it may be held in a step
            whose memory is measured.
        others: Those of Python's and NumPy's.
    """

    states: tuple[tuple[torch.device, NDArray[np.uint8]], ...]
    others: OtherGenerators

    @classmethod
    def of(cls, states: RandomStates, others: OtherGenerators) -> RandomNumbers:
        """Return a copy of these states."""
        copies = [(where, state.numpy().copy()) for where, state in states]
        return cls(tuple(copies), others)

    @classmethod
    def now(cls, device: torch.device) -> RandomNumbers:
        """Return the present states, for a model on `device`."""
        return cls.of(random_states(device), OtherGenerators.now())

    @classmethod
    def seeded(cls, seed: int, device: torch.device) -> RandomNumbers:
        """Return the states behind a seed, for a model on `device`."""
        generators = [(where, torch.Generator(where)) for where, _ in random_states(device)]
        states = [(where, own.manual_seed(seed).get_state()) for where, own in generators]
        return cls.of(tuple(states), OtherGenerators.seeded(seed))

    def restore(self) -> None:
        """Put them back."""
        states = [(where, torch.from_numpy(state)) for where, state in self.states]
        restore_random_states(tuple(states))
        self.others.restore()


@contextmanager
def random_numbers_kept(device: torch.device) -> Iterator[None]:
    """Put back the states of torch's, Python's and NumPy's generators at the end."""
    before = RandomNumbers.now(device)
    try:
        yield
    finally:
        before.restore()


@contextmanager
def world_kept(functions: Sequence[object], device: torch.device) -> Iterator[None]:
    """Run the user's Python inside; what it does outside of its model is undone at the end.

    Raises:
        UnsupportedModelError: It took items from an iterator, which stays where it is.
    """
    found = _World()
    found.look_at(functions)
    dtype = torch.get_default_dtype()
    with random_numbers_kept(device):
        try:
            yield
        finally:
            for restore in found.restores:
                restore()
            if torch.get_default_dtype() != dtype:
                torch.set_default_dtype(dtype)
    for iterator, place, held in found.places:
        if place != _place_of(iterator) or not _is_same(held, _held_by(iterator)):
            raise UnsupportedModelError(
                f"the forward takes items from an iterator ({type(iterator).__name__}) that lives "
                "on between calls; planning, which runs the forward more than once, has used some "
                "up and cannot put them back: keep a list and a position instead"
            )


@dataclass(slots=True)
class _World:
    """The objects that were found, and how to put them back."""

    restores: list[Callable[[], object]] = field(default_factory=list)
    places: list[tuple[Iterator[object], str, list[object]]] = field(default_factory=list)
    seen: dict[int, object] = field(default_factory=dict)  # held: no identity is used twice

    def look_at(self, values: Iterable[object]) -> None:
        """Take note of these values and of what they reach, as far as a forward is likely to."""
        pending = [(value, 0) for value in values]
        while pending:
            value, depth = pending.pop()
            if id(value) in self.seen or isinstance(value, _PLAIN):
                continue
            self.seen[id(value)] = value
            if isinstance(value, (FunctionType, MethodType, partial)):
                pending += [(part, depth) for part in self._function(value)]
            elif depth < _DEPTH:
                pending += [(part, depth + 1) for part in self._parts_of(value)]

    def _parts_of(self, value: Any) -> Iterable[object]:
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, torch.nn.Module):
            return self._module(value)
        if type(value) in _CONTAINERS or isinstance(value, tuple):
            return self._container(value)
        if isinstance(value, Iterator) and type(value).__module__ in _OF_ITERATORS:
            self.places.append((value, _place_of(value), _held_by(value)))
            return ()
        return () if self._generator(value) else self._object(value)

    def _function(self, function: FunctionType | MethodType | partial[Any]) -> Iterable[object]:
        if isinstance(function, partial):
            return (function.func, *function.args, *function.keywords.values())
        if isinstance(function, MethodType):
            owner = function.__self__
            return (function.__func__, None if isinstance(owner, torch.nn.Module) else owner)
        return self._plain_function(function)

    def _plain_function(self, function: FunctionType) -> Iterator[object]:
        yield getattr(function, "__wrapped__", None)
        for cell in function.__closure__ or ():
            yield from self._cell(cell)
        if _is_module_of_users(function.__module__):
            yield from function.__defaults__ or ()
            yield from (function.__kwdefaults__ or {}).values()
            yield from self._dict(vars(function))
            own, names = function.__globals__, global_names(function.__code__)
            before = {name: own[name] for name in names if name in own}
            self.restores.append(partial(_restore_globals, own, names, before))
            yield from before.values()

    def _cell(self, cell: CellType) -> Iterator[object]:
        try:
            content = cell.cell_contents
        except ValueError:  # empty
            return
        self.restores.append(partial(setattr, cell, "cell_contents", content))
        yield content

    def _class(self, kind: type) -> Iterator[object]:
        if not _is_module_of_users(kind.__module__):
            return
        before = {name: value for name, value in vars(kind).items() if _is_state(name, value)}

        def restore() -> None:
            now = {name for name, value in vars(kind).items() if _is_state(name, value)}
            for name in now - before.keys():
                delattr(kind, name)
            for name, value in before.items():
                if vars(kind).get(name, _ABSENT) is not value:
                    setattr(kind, name, value)

        self.restores.append(restore)
        yield from before.values()

    def _container(self, value: Any) -> Iterable[object]:
        if len(value) > _MOST_ITEMS:
            return ()
        if isinstance(value, dict):
            return self._dict(value)
        return value if isinstance(value, tuple) else self._sequence(value)

    def _object(self, value: object) -> Iterable[object]:
        own = getattr(value, "__dict__", None)
        is_users = _is_module_of_users(type(value).__module__) or type(value) is threading.local
        return self._dict(own) if is_users and isinstance(own, dict) else ()

    def _module(self, module: torch.nn.Module) -> Iterator[object]:
        """Yield the attributes and buffers; parameters are the optimizer's."""
        for submodule in module.modules():
            yield from (part for part in self._dict(vars(submodule)) if type(part) in _CONTAINERS)
            yield from submodule.buffers(recurse=False)

    def _dict(self, values: dict[Any, Any]) -> Iterable[object]:
        if type(values).items not in (dict.items, OrderedDict.items):
            return ()  # what is in there may be made (or imported) when somebody looks
        before = dict(values)

        def restore() -> None:
            if list(values) != list(before) or not _is_same(values.values(), before.values()):
                values.clear()
                values.update(before)

        self.restores.append(restore)
        return before.values()

    def _sequence(self, values: list[Any] | deque[Any] | set[Any]) -> Iterable[object]:
        before = list(values)

        def restore() -> None:
            if not _is_same(values, before):
                values.clear()
                values.update(before) if isinstance(values, set) else values.extend(before)

        self.restores.append(restore)
        return before

    def _tensor(self, tensor: torch.Tensor) -> Iterable[object]:
        if isinstance(tensor, (FakeTensor, torch.nn.Parameter)) or tensor.numel() > _MOST_NUMBERS:
            return ()
        before = tensor.detach().to("cpu", copy=True)

        def restore() -> None:
            if tensor.shape == before.shape and not is_equal(tensor.detach().cpu(), before):
                with torch.no_grad():
                    tensor.copy_(before)

        self.restores.append(restore)
        return ()

    def _generator(self, value: Any) -> bool:
        numpy = sys.modules.get("numpy")
        if isinstance(value, random.Random):
            self.restores.append(partial(value.setstate, value.getstate()))
        elif isinstance(value, torch.Generator):
            self.restores.append(partial(value.set_state, value.get_state()))
        elif numpy is not None and isinstance(value, numpy.random.Generator):
            bits: Any = value.bit_generator
            self.restores.append(partial(setattr, bits, "state", bits.state))
        elif numpy is not None and isinstance(value, numpy.ndarray):
            self.restores.append(partial(numpy.copyto, value, value.copy()))
        else:
            return False
        return True


_PLAIN: Final = (int, float, complex, str, bytes, type(None), torch.dtype, torch.device)

_CONTAINERS: Final = (dict, OrderedDict, defaultdict, list, deque, set)
"""Others may do anything when they are read."""

_OF_ITERATORS: Final = ("builtins", "itertools")

_ABSENT: Final = object()

_DEPTH: Final = 4
"""How deep in containers and objects is looked."""
_MOST_ITEMS: Final = 10_000
_MOST_NUMBERS: Final = 1 << 24
"""In what is copied; more are somebody's data, which a forward does not change."""


def _restore_globals(
    own: dict[str, Any], names: Iterable[str], before: Mapping[str, object]
) -> None:
    """Put back globals with these names, and take away those that are new."""
    for name in names:
        if name not in before:
            own.pop(name, None)
        elif own.get(name, _ABSENT) is not before[name]:
            own[name] = before[name]


def _place_of(iterator: Iterator[object]) -> str:
    """Return where an iterator is, as far as it tells: some only tell that they are iterators."""
    frame = iterator.gi_frame if isinstance(iterator, GeneratorType) else None
    return f"{iterator!r} {length_hint(iterator, -1)} {frame and frame.f_lasti}"


def _held_by(iterator: Iterator[object]) -> list[object]:
    """Return the local variables of a Python generator."""
    frame = iterator.gi_frame if isinstance(iterator, GeneratorType) else None
    return [] if frame is None else list(frame.f_locals.values())


def _is_same(one: Iterable[object], other: Iterable[object]) -> bool:
    return list(map(id, one)) == list(map(id, other))


def _is_state(name: str, value: object) -> bool:
    """Whether a class attribute is data, and not part of how the class works."""
    is_special = name.startswith("__") and name.endswith("__")
    return not (is_special or callable(value) or hasattr(value, "__get__"))


def _is_module_of_users(name: str | None) -> bool:
    package = (name or "").partition(".")[0]
    return package not in _OTHERS and package not in sys.stdlib_module_names - {"__main__"}


_OTHERS: Final = ("torch", "numpy", "chainstay", "builtins", "")


@lru_cache(maxsize=4096)
def global_names(code: CodeType) -> tuple[str, ...]:
    """Return the globals that a function, or one that is defined inside, reads or sets."""
    names: dict[str, None] = {}
    pending = [code]
    while pending:
        current = pending.pop()
        for instruction in dis.get_instructions(current):
            if instruction.opname in ("LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL"):
                names[instruction.argval] = None
        pending += [const for const in current.co_consts if isinstance(const, CodeType)]
    return tuple(names)
