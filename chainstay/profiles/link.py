"""The link between a device and its host: how long a transfer takes, exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from numbers import Rational
from typing import Final, Self, SupportsIndex

from chainstay import documents
from chainstay.errors import InvalidProfileError
from chainstay.profiles.quantities import whole

_KIND: Final = "link"
_VERSION: Final = 3
_OLDEST_VERSION: Final = 2
_LARGEST: Final = 2**64


class Duplex(StrEnum):
    """The ways in which the two directions of a link may share it.

    Attributes:
        HALF: One transfer at a time, in either direction.
        FULL: One transfer at a time in each direction.
    """

    HALF = "half"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link that moves whole tensors, one at a time, to the host.

    Attributes:
        bandwidth: Bytes per time unit of the profile (per ns for measured ones), an exact
            rational; a float is refused because it seldom is what was meant.
        latency: Time units before the first byte of every transfer; an exact rational.
        duplex: ``"half"`` or ``"full"``.
        capacity: Bytes that the host may hold at any time, ``None`` for no limit.

    Raises:
        InvalidProfileError: A bandwidth that is not a positive rational, a latency that is
            negative or no rational, an unknown `duplex`, or a negative `capacity`.

    Example:
        >>> Link(bandwidth=Fraction(25, 2)).transfer_time(100)
        Fraction(8, 1)
    """

    bandwidth: Fraction | int
    latency: Fraction | int = 0
    duplex: Duplex | str = Duplex.HALF
    capacity: int | None = None

    def __post_init__(self) -> None:
        bandwidth, latency = (
            _rational(self.bandwidth, "bandwidth"),
            _rational(self.latency, "latency"),
        )
        if bandwidth == 0:
            raise InvalidProfileError("bandwidth is 0, must be positive (bytes per time unit)")
        if self.duplex not in tuple(Duplex):
            raise InvalidProfileError(f"duplex is {self.duplex!r}, must be 'half' or 'full'")
        if self.capacity is not None:
            object.__setattr__(self, "capacity", whole(self.capacity, "capacity"))
        object.__setattr__(self, "bandwidth", bandwidth)
        object.__setattr__(self, "latency", latency)
        object.__setattr__(self, "duplex", Duplex(self.duplex))

    @classmethod
    def from_bytes_per_second(
        cls,
        bytes_per_second: SupportsIndex | Fraction,
        *,
        latency_ns: int = 0,
        duplex: Duplex | str = Duplex.HALF,
    ) -> Self:
        """Return the link of a real machine, for profiles with times in ns.

        Example:
            >>> Link.from_bytes_per_second(12_500_000_000).bandwidth
            Fraction(25, 2)
        """
        bandwidth = _rational(bytes_per_second, "bytes_per_second")
        return cls(bandwidth=bandwidth / 10**9, latency=latency_ns, duplex=duplex)

    @property
    def is_full_duplex(self) -> bool:
        """True if transfers in opposite directions run side by side."""
        return self.duplex == Duplex.FULL

    @property
    def is_plain(self) -> bool:
        """True if it is half-duplex, without latency, and to a memory without limit."""
        return self.capacity is None and not self.latency and not self.is_full_duplex

    @property
    def room(self) -> float:
        """Bytes that the host may hold at any time, infinite without a limit."""
        return math.inf if self.capacity is None else self.capacity

    @property
    def relaxed(self) -> Link:
        """A half-duplex link without latency or limit that can do at least as much.

        One direction at a time at twice the bandwidth does whatever two directions do.
        """
        return Link(bandwidth=self.bandwidth * (2 if self.is_full_duplex else 1))

    def within(self, capacity: int | None) -> Self:
        """Return the link to a host that may hold at most `capacity` bytes, ``None`` for any."""
        limits = [limit for limit in (self.capacity, capacity) if limit is not None]
        return replace(self, capacity=min(limits, default=None))

    @property
    def ticks(self) -> int:
        """The number of ticks in a time unit; in ticks, every transfer takes a whole number."""
        bandwidth, latency = self._rationals
        return math.lcm(bandwidth.numerator, latency.denominator)

    def transfer_time(self, size: int) -> Fraction:
        """Return the time units that moving `size` bytes takes, in either direction."""
        return Fraction(self.latency) + Fraction(size) / self.bandwidth

    def transfer_ticks(self, size: int) -> int:
        """Return the `ticks` that moving `size` bytes takes."""
        (bandwidth, latency), ticks = self._rationals, self.ticks  # without fractions: often asked
        moving = size * bandwidth.denominator * (ticks // bandwidth.numerator)
        return latency.numerator * (ticks // latency.denominator) + moving

    @property
    def _rationals(self) -> tuple[Fraction, Fraction]:
        """Bandwidth and latency, which are kept as fractions."""
        assert isinstance(self.bandwidth, Fraction)
        assert isinstance(self.latency, Fraction)
        return self.bandwidth, self.latency

    def to_json(self) -> str:
        """Return the link as a JSON document; `from_json` gives an equal link back."""
        body = {
            "bandwidth": str(self.bandwidth),
            "latency": str(self.latency),
            "duplex": str(self.duplex),
            "capacity": "" if self.capacity is None else str(self.capacity),
        }
        return documents.dump(_KIND, _VERSION, body)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the document that `to_json` writes.

        Raises:
            InvalidProfileError: Malformed, of another kind or version, not a link, or with a
                second memory ``beyond`` the host.
        """
        with documents.parse(
            text, _KIND, _VERSION, InvalidProfileError, oldest=_OLDEST_VERSION
        ) as document:
            if document.has("beyond") and document.values["beyond"]:
                raise InvalidProfileError(
                    "link document: field 'beyond' names a second memory behind the host's, "
                    "which this chainstay does not support; remove the field, and solve again for "
                    "the link to the host alone"
                )
            return cls(
                bandwidth=document.rational("bandwidth"),
                latency=document.rational("latency"),
                duplex=document.choice("duplex", Duplex),
                capacity=_whole_or_none(document, "capacity"),
            )


def _whole_or_none(document: documents.Fields, name: str) -> int | None:
    if not document.string(name):
        return None
    number = document.rational(name)
    if number.denominator != 1:
        raise InvalidProfileError(f"{name} is {number}, must be a whole number of bytes")
    return int(number)


def _rational(value: object, what: str) -> Fraction:
    if hasattr(value, "__index__") and not isinstance(value, bool):
        value = int(value)
    if not isinstance(value, Rational) or isinstance(value, bool):
        raise InvalidProfileError(
            f"{what} is {value!r}, must be an exact rational: an int or a fractions.Fraction"
        )
    number = Fraction(value)
    if not 0 <= number <= _LARGEST or number.denominator > _LARGEST:
        raise InvalidProfileError(f"{what} is {number}, must be from 0 to 2**64, in terms below it")
    return number
