"""Extraction runs the user's forward; this undoes what that did to the modules' attributes.

Buffers, training flags and random states are `preserve`'s business; here are the plain
Python attributes that a forward may assign, a counter, say.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import nn

__all__ = ["Attributes", "attributes_kept"]


@dataclass(slots=True)
class Attributes:
    """What a forward assigned.

    Attributes:
        assigned: Path and name of every attribute that is another object than before.
    """

    assigned: list[str] = field(default_factory=list)


@contextmanager
def attributes_kept(model: nn.Module) -> Iterator[Attributes]:
    """Put all attributes of all modules of `model` back at the end, and tell which were assigned.

    Tensors that modules register are found in the dictionaries that hold them.
    """
    before = [(path, module, dict(vars(module))) for path, module in model.named_modules()]
    found = Attributes()
    try:
        yield found
    finally:
        for path, module, attributes in before:
            present = vars(module)
            changed = {
                name
                for name in present.keys() | attributes.keys()
                if present.get(name, _MISSING) is not attributes.get(name, _MISSING)
            }
            for name in sorted(changed):
                found.assigned.append(f"{path}.{name}" if path else name)
                if name in attributes:
                    present[name] = attributes[name]
                else:
                    del present[name]


_MISSING = object()
