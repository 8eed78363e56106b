"""Descriptions of a model, a call of it and a machine, as text that can be compared.

Nothing of a model's values is in them. Equal fingerprints mean that memory and graph of a
training step are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Final, Self

from chainstay.documents import Fields

_SHOWN: Final = 8
"""Differences that a message lists; the rest is counted."""
_LONGEST: Final = 160
"""Characters of a description in a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """Descriptions by name, in sections.

    Attributes:
        modules: Class and settings of every module, by its path in the model.
        parameters: Shape, type, device and ``requires_grad``; of a tied one, whose it is.
        buffers: Shape, type and device of every buffer.
        training: Training flag of the model, and of each module that differs from the one
            around it.
        call: Every leaf of the arguments: of tensors shape, type, device, ``requires_grad``.
        stages: A digest of what each stage computes, by number and name.
        setting: Versions, device and autocast.
    """

    modules: Mapping[str, str]
    parameters: Mapping[str, str]
    buffers: Mapping[str, str]
    training: Mapping[str, str]
    call: Mapping[str, str]
    stages: Mapping[str, str]
    setting: Mapping[str, str]

    def differences(self, present: Fingerprint) -> tuple[str, ...]:
        """List each difference from `present`, for people, the most informative ones first.

        Where modules, parameters or the call differ, so do stages: these are left out then.
        """
        found: list[str] = []
        for section in _ORDER:
            if section != "stages" or not found:
                noun = _NOUNS[section]
                found += _differences(noun, getattr(self, section), getattr(present, section))
        return tuple(found)

    def to_fields(self) -> dict[str, dict[str, str]]:
        """Return the fields for a document; `from_fields` reads them."""
        return {section: dict(getattr(self, section)) for section in _ORDER}

    @classmethod
    def from_fields(cls, found: Fields) -> Self:
        """Read the fields that `to_fields` returns; `found` says which error to raise."""
        return cls(**{section: found.texts(section) for section in _ORDER})

    @staticmethod
    def listing(differences: tuple[str, ...]) -> str:
        """Return `differences` as indented lines, long lists cut."""
        lines = [f"  {difference}" for difference in differences[:_SHOWN]]
        if len(differences) > _SHOWN:
            lines.append(f"  and {len(differences) - _SHOWN} more")
        return "\n".join(lines)


_ORDER: Final = tuple(field.name for field in fields(Fingerprint))
_NOUNS: Final = {
    "modules": "module",
    "parameters": "parameter",
    "buffers": "buffer",
    "training": "mode of",
    "call": "argument",
    "stages": "stage",
    "setting": "",
}


def _differences(
    noun: str, planned: Mapping[str, str], present: Mapping[str, str]
) -> Iterator[str]:
    for name in dict.fromkeys((*planned, *present)):
        title = f"{noun} {name or 'the model itself'}".strip()
        if name not in present:
            yield f"{title}: is not there, in the plan it is {_cut(planned[name])}"
        elif name not in planned:
            yield f"{title}: is {_cut(present[name])}, the plan has none"
        elif planned[name] != present[name]:
            yield f"{title}: is {_cut(present[name])}, in the plan {_cut(planned[name])}"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
