"""Costs of a chain whose whole activations may go to host memory and back: no recomputation.

Forwards ``F_0 .. F_L`` run once in this order, then backwards ``B_L .. B_0``. ``F_i`` makes
``x_{i+1}`` from ``x_i``; ``B_i`` makes ``y_i`` from ``x_i``, ``x_{i+1}`` and ``y_{i+1}``.
``x_{i+1}`` is reserved when ``F_i`` starts, ``y_i`` when ``B_i`` does (``y_{L+1}`` with the
first); ``x_{i+1}`` and ``y_{i+1}`` are free when ``B_i`` ends, and ``x_0`` at the very end.

==========================  ================================================
symbol in [BES20]           name here
==========================  ================================================
``|x_i|``, ``0..L+1``       ``activations``
``|y_i|``, ``0..L+1``       ``gradients``
``ex_i^F``, ``ex_i^B``      ``forward_overheads``, ``backward_overheads``
``u_{F_i}``, ``u_{B_i}``    ``forward_times``, ``backward_times``
``M_peak``                  ``peak_bytes``
==========================  ================================================
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from itertools import accumulate
from typing import Final, Self

from chainstay import documents
from chainstay.errors import InvalidProfileError, type_with_article
from chainstay.profiles.chain import ChainProfile
from chainstay.profiles.quantities import whole

_KIND: Final = "offload-profile"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadProfile:
    """A chain of n = L + 1 stages whose activations can be offloaded.

    Attributes:
        activations: Shape (n + 1,), bytes of ``x_0 .. x_{L+1}``; ``x_0`` is there from the start.
        gradients: Shape (n + 1,), bytes of ``y_0 .. y_{L+1}``.
        forward_overheads: Shape (n,), bytes needed during a forward only.
        backward_overheads: Shape (n,), bytes needed during a backward only.
        forward_times: Shape (n,), in ns (or any other unit of the link's bandwidth).
        backward_times: Shape (n,), in the same unit.

    Raises:
        InvalidProfileError: Lengths that do not fit together, or something that is not a
            whole number from 0 to 2**48.

    Example:
        >>> profile = OffloadProfile(activations=(2, 3, 4), gradients=(0, 0, 0),
        ...     forward_overheads=(0, 1), backward_overheads=(0, 0),
        ...     forward_times=(1, 2), backward_times=(2, 3))
        >>> len(profile), profile.least_time, profile.peak_bytes, profile.required_bytes
        (2, 8, 10, 8)
    """

    activations: tuple[int, ...]
    gradients: tuple[int, ...]
    forward_overheads: tuple[int, ...]
    backward_overheads: tuple[int, ...]
    forward_times: tuple[int, ...]
    backward_times: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in _FIELDS:
            value = getattr(self, name)
            if isinstance(value, str | bytes) or not hasattr(value, "__iter__"):
                raise InvalidProfileError(f"{name} is {value!r}, must be a tuple of whole numbers")
            numbers = tuple(whole(number, f"{name}[{i}]") for i, number in enumerate(value))
            object.__setattr__(self, name, numbers)
        stages = len(self.forward_times)
        if not stages:
            raise InvalidProfileError("forward_times is empty; a chain needs at least one stage")
        for name in _FIELDS:
            expected = stages + (name in _BETWEEN_STAGES)
            if (found := len(getattr(self, name))) != expected:
                raise InvalidProfileError(
                    f"{name} has {found} entries; with {stages} forward_times it needs {expected}"
                )

    @classmethod
    def from_chain(cls, profile: ChainProfile) -> Self:
        """Return the same network, with what its stages save as the activations to offload.

        ``x_{i+1}`` is what stage i saves, its output included, and ``x_0`` the input. The
        gradient of the chain's output, which a `ChainProfile` holds from the start, adds to
        every forward's overhead, so that keeping everything has the same peak in both.

        Nothing runs again, so every stage is kept whole (option 0), at the costs of its first
        run; what it saves in order to run again is left out. The other options recompute a part
        of their stage: plans that use them beside transfers are those of `solve_hybrid`.

        Raises:
            InvalidProfileError: The chain has skips: what a stage saves is then read by
                later forwards, which this model does not represent.
        """
        if not isinstance(profile, ChainProfile):
            raise InvalidProfileError(
                f"profile is {type_with_article(profile)}, must be a ChainProfile"
            )
        if profile.skips:
            raise InvalidProfileError(
                f"this chain has {len(profile.skips)} skips, which offloading whole activations "
                "does not support; extract the model with granularity='blocks' or a smaller number "
                "of stages, so that it has none"
            )
        kept, last = [stage.all_options[0] for stage in profile.stages], len(profile)
        return cls(
            activations=(profile.input_bytes, *(stage.saved_bytes for stage in kept)),
            gradients=tuple(profile.gradient_bytes(i) for i in range(last + 1)),
            forward_overheads=tuple(
                stage.first.overhead_bytes + profile.gradient_bytes(last) for stage in kept
            ),
            backward_overheads=tuple(stage.backward_overhead_bytes for stage in kept),
            forward_times=tuple(stage.first.time for stage in kept),
            backward_times=tuple(stage.first.backward_time for stage in kept),
        )

    def __len__(self) -> int:
        return len(self.forward_times)

    @property
    def least_time(self) -> int:
        """Time of every forward and every backward once: no schedule is faster."""
        return sum(self.forward_times) + sum(self.backward_times)

    @property
    def forward_loads(self) -> tuple[int, ...]:
        """Bytes in use during every forward when nothing is offloaded, of shape (n,)."""
        stored = list(accumulate(self.activations))
        return tuple(stored[i + 1] + self.forward_overheads[i] for i in range(len(self)))

    @property
    def backward_loads(self) -> tuple[int, ...]:
        """Bytes in use during every backward when nothing is offloaded, of shape (n,)."""
        stored, y = list(accumulate(self.activations)), self.gradients
        return tuple(
            stored[i + 1] + y[i] + y[i + 1] + self.backward_overheads[i] for i in range(len(self))
        )

    @property
    def peak_bytes(self) -> int:
        """Bytes that training without offloading needs."""
        return max(*self.forward_loads, *self.backward_loads)

    @property
    def required_bytes(self) -> int:
        """The least feasible budget in bytes: every operation with all older activations away."""
        older = [0, *accumulate(self.activations)]
        loads = zip(self.forward_loads, self.backward_loads, strict=True)
        return max(max(pair) - older[i] for i, pair in enumerate(loads))

    def to_json(self) -> str:
        """Return the profile as a JSON document; `from_json` gives an equal profile back."""
        return documents.dump(_KIND, _VERSION, asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the document that `to_json` writes.

        Raises:
            InvalidProfileError: Malformed, of another kind or version, or not a profile;
                the text names the field.
        """
        with documents.parse(text, _KIND, _VERSION, InvalidProfileError) as document:
            return cls(**{name: document.integers(name) for name in _FIELDS})


_FIELDS: Final = tuple(field.name for field in fields(OffloadProfile))
_BETWEEN_STAGES: Final = ("activations", "gradients")
