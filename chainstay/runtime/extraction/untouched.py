"""Extraction runs the user's forward; this undoes what that did to the modules' attributes.

Buffers, training flags and random states are `preserve`'s business; here are the plain
Python attributes that a forward may assign, a counter, say, and the dictionaries in which
modules keep their hooks, parameters and children.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from torch import nn

__all__ = ["Attributes", "attributes_kept"]

_MISSING: Final = object()


@dataclass(slots=True)
class Attributes:
    """What a forward assigned.

    Attributes:
        assigned: Path and name of every attribute that is another object than before, or
            has other contents.
    """

    assigned: list[str] = field(default_factory=list)


@contextmanager
def attributes_kept(model: nn.Module) -> Iterator[Attributes]:
    """Put back all attributes of all modules of `model` at the end; tell which were assigned."""
    before = [_Snapshot.of(path, module) for path, module in model.named_modules()]
    found = Attributes()
    try:
        yield found
    finally:
        for snapshot in before:
            found.assigned += snapshot.restore()


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """One module's attributes.

    Attributes:
        path: Of the module.
        module: The module.
        attributes: By name.
        contents: Of those that are torch's own dictionaries.
    """

    path: str
    module: nn.Module
    attributes: dict[str, object]
    contents: dict[str, dict[Any, Any]]

    @classmethod
    def of(cls, path: str, module: nn.Module) -> _Snapshot:
        attributes = dict(vars(module))
        own = vars(nn.Module()).keys()
        contents = {
            name: dict(value)
            for name, value in attributes.items()
            if name in own and isinstance(value, dict)
        }
        return cls(path, module, attributes, contents)

    def restore(self) -> list[str]:
        """Put everything back; the paths of what had changed."""
        changed = [*_put_back(vars(self.module), self.attributes)]
        for name, content in self.contents.items():
            if _put_back(vars(self.module)[name], content):
                changed.append(name)
        return [f"{self.path}.{name}" if self.path else name for name in changed]


def _put_back(present: dict[Any, Any], before: dict[Any, Any]) -> list[Any]:
    """Make `present` what `before` is, object by object; the keys that differed."""
    changed = [
        key
        for key in {**before, **present}
        if present.get(key, _MISSING) is not before.get(key, _MISSING)
    ]
    for key in changed:
        if key in before:
            present[key] = before[key]
        else:
            del present[key]
    return changed
