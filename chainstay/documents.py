"""JSON documents with a kind and a version; whatever is malformed is refused by field name.

Nothing here can run code, and a document larger than any honest profile or schedule is
refused before it is parsed.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from fractions import Fraction
from itertools import chain
from typing import Final, Self, TypeVar

from chainstay.errors import ChainstayError, type_with_article

_Value = TypeVar("_Value")

_LARGEST_DOCUMENT: Final = 64 * 1024**2
_MOST_VALUES: Final = 4_000_000
"""Limit on the values of a document: an empty list of three characters takes some hundred bytes."""
_MADE_BY: Final = {"plan": "`chainstay plan`"}
_RATIONAL: Final = re.compile(r"-?[0-9]{1,40}(?:/[1-9][0-9]{0,39})?")


def dump(kind: str, version: int, body: Mapping[str, object]) -> str:
    """Return the text of a document of `kind` and `version` that holds the fields of `body`."""
    return json.dumps({"chainstay": kind, "version": version, **body}, indent=1)


def parse(
    text: str, kind: str, version: int, error: type[ChainstayError], *, oldest: int | None = None
) -> Fields:
    """Read the fields of a document of one kind and version.

    Args:
        text: The document.
        kind: Kind that it must be of, for example ``"chain-profile"``.
        version: The version understood.
        error: Class of the error to raise, now and by the fields, with the field's name.
        oldest: The first of several versions understood, `version` being the last.
    """
    value = _loaded(text, f"{kind} document", error)
    fields = Fields(_mapping(value, kind, error), kind, error)
    if (found := fields.string("chainstay")) != kind:
        hint = f"; make one by {_MADE_BY[kind]}" if kind in _MADE_BY else ""
        raise error(f"the document is a {_excerpt(found)}, must be a {kind!r}{hint}")
    oldest = version if oldest is None else oldest
    if not oldest <= (found_version := fields.integer("version")) <= version:
        known = f"version {version}" if oldest == version else f"versions {oldest} to {version}"
        raise error(
            f"{kind} document: field 'version' is {_excerpt(found_version)}; this chainstay reads "
            f"{known}"
        )
    return fields


def parse_fields(text: str, error: type[ChainstayError]) -> Fields:
    """Read the fields of a document of any kind and version.

    Raises:
        ChainstayError: `error`: it is too large, or no JSON object.
    """
    return Fields(_mapping(_loaded(text, "document", error), "document", error), "document", error)


def _loaded(text: str, title: str, error: type[ChainstayError]) -> object:
    if not isinstance(text, str):
        raise error(f"{title}: {type_with_article(text)}, must be JSON text, as read from its file")
    if len(text) > _LARGEST_DOCUMENT:
        raise error(f"{title}: {len(text)} characters, at most {_LARGEST_DOCUMENT}")
    if (values := sum(map(text.count, ",[{"))) > _MOST_VALUES:
        raise error(f"{title}: about {values} values, at most {_MOST_VALUES}")
    try:
        value: object = json.loads(text, object_pairs_hook=_distinct)
    except _DuplicateError as twice:
        raise error(f"{title}: field {_excerpt(twice.name)} is there twice; keep one") from twice
    except (ValueError, RecursionError) as cause:
        raise error(f"{title}: not JSON ({cause})") from cause
    return value


class _DuplicateError(Exception):
    """An object has two fields of one name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def _distinct(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return an object by its fields; refuse two of one name, of which Python keeps one."""
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise _DuplicateError(counts.most_common(1)[0][0])
    return found


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of one JSON object, read by name and type.

    As a context, it refuses in the end what nobody has asked for: a misspelt name of a field that
    may be left out would change the problem silently.

    Attributes:
        values: The object.
        path: Position in the document, for messages.
        error: Class of the error to raise when a field is missing, unknown or of the wrong type.
        asked: The objects in each field that was asked for.
    """

    values: Mapping[str, object]
    path: str
    error: type[ChainstayError]
    asked: dict[str, list[Fields]] = field(default_factory=dict, repr=False, compare=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        waiting = [self] if kind is None else []
        while waiting:
            found = waiting.pop()
            for name in sorted(found.values.keys() - found.asked.keys()):
                close = get_close_matches(name, found.asked, n=1)
                hint = f"did you mean {close[0]!r}?" if close else "remove it"
                raise self.error(f"{found.path}: there is no field {_excerpt(name)}; {hint}")
            waiting += chain.from_iterable(found.asked.values())

    def text(self) -> str:
        """Return the object as a document, whose own reader asks for its fields."""
        self.asked.update((name, []) for name in self.values)
        return json.dumps(dict(self.values))

    def has(self, name: str) -> bool:
        """Return whether there is a field `name`, other than null."""
        self.asked.setdefault(name, [])
        return self.values.get(name) is not None

    def boolean(self, name: str) -> bool:
        """Return field `name`, true or false."""
        return self._typed(name, bool, "true or false")

    def integer(self, name: str) -> int:
        """Return field `name`, a whole number."""
        return self._typed(name, int, "a whole number")

    def number(self, name: str) -> float:
        """Return field `name`, a finite number."""
        value = self._value(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(name, value, "a number")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise self._wrong(name, value, "a finite number")
        return number

    def string(self, name: str) -> str:
        """Return field `name`, a string."""
        return self._typed(name, str, "a string")

    def choice(self, name: str, choices: Iterable[str]) -> str:
        """Return field `name`, one of `choices`."""
        value, known = self.string(name), list(choices)
        if value not in known:
            raise self._wrong(name, value, f"one of {', '.join(known)}")
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        """Return field `name`, a list of whole numbers."""
        expected = "a list of whole numbers"
        value = self._typed(name, list, expected)
        for item in value:
            if isinstance(item, bool) or not isinstance(item, int):
                raise self._wrong(name, item, expected)
        return tuple(value)

    def rational(self, name: str) -> Fraction:
        """Return field `name`, an exact rational: a whole number, or text such as ``"25/2"``."""
        value = self._value(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return Fraction(value)
        if isinstance(value, str) and _RATIONAL.fullmatch(value):
            return Fraction(value)
        raise self._wrong(name, value, "a whole number or a fraction such as '25/2'")

    def texts(self, name: str) -> dict[str, str]:
        """Return field `name`, an object whose values are strings."""
        found = self.child(name)
        return {key: found.string(key) for key in found.values}

    def child(self, name: str) -> Fields:
        """Return field `name`, an object."""
        path = f"{self.path}.{name}"
        found = Fields(_mapping(self._value(name), path, self.error), path, self.error)
        self.asked[name] = [found]
        return found

    def children(self, name: str) -> list[Fields]:
        """Return field `name`, a list of objects."""
        value = self._typed(name, list, "a list")
        paths = [f"{self.path}.{name}[{position}]" for position in range(len(value))]
        self.asked[name] = [
            Fields(_mapping(item, path, self.error), path, self.error)
            for item, path in zip(value, paths, strict=True)
        ]
        return self.asked[name]

    def _value(self, name: str) -> object:
        self.asked.setdefault(name, [])
        if name not in self.values:
            other = "; chainstay did not write it" if name == "chainstay" else ""
            raise self.error(f"{self.path}: field {name!r} is missing{other}")
        return self.values[name]

    def _typed(self, name: str, kind: type[_Value], expected: str) -> _Value:
        """Return field `name`, of a type; true and false are no numbers."""
        value = self._value(name)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self._wrong(name, value, expected)
        return value

    def _wrong(self, name: str, value: object, expected: str) -> ChainstayError:
        return self.error(f"{self.path}: field {name!r} is {_excerpt(value)}, must be {expected}")


def _mapping(value: object, path: str, error: type[ChainstayError]) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise error(f"{path}: a JSON object was expected, not {_excerpt(value)}")
    return value


def _excerpt(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
