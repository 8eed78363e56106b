"""Costs of stages and of chains of stages, and nothing about how to schedule them.

Sizes are whole bytes, times whole nanoseconds, so that "optimal" can be tested with
``==``. Stages are numbered from 0; stage ``n - 1`` is the loss. Activation ``a^i`` is the
input of stage ``i`` and ``a^n`` the output of the loss. An activation may be several
tensors: one that passes through stages unchanged (a skip connection) is part of several
activations and a `Skip` of the profile; whatever stores it stores the same bytes.

======================  =====================================================
symbol in [BEHJS24]     name here
======================  =====================================================
``u_f``, ``u_b``        ``forward_time``, ``backward_time``
``ω_a``                 ``output_bytes`` (``input_bytes`` for ``a^0``)
``ω_ā``                 ``saved_bytes``: all that backward needs, the output
                        included, the input and what passes through from it not
``ω_δ``                 ``gradient_bytes`` (``input_gradient_bytes`` for ``δ^0``)
``o_f``, ``o_b``        ``forward_overhead_bytes``, ``backward_overhead_bytes``
======================  =====================================================
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from chainstay import documents
from chainstay.errors import InvalidProfileError
from chainstay.profiles.quantities import all_of, whole
from chainstay.profiles.stage import Stage, StageOption

_KIND: Final = "chain-profile"
_VERSION: Final = 3
_VERSION_WITHOUT_SKIPS: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """A tensor that is part of neighbouring activations, ``a^first`` to ``a^last``.

    Stage ``first - 1`` makes it (with ``first = 0`` it is part of the network's input), stage
    `last` is the last one to read it, and the stages between pass it on. Each activation's
    size counts it; memory holds it once, whatever is stored. With no bytes but a gradient's, it is
    what stage `last` and stage ``first - 1`` sum: the gradient of a weight that both use.

    Attributes:
        first: Index of the first activation that it is part of.
        last: Index of the last one, larger than `first`.
        bytes: Bytes of the tensor.
        gradient_bytes: Bytes of its gradient, part of ``δ^first`` to ``δ^last``.

    Raises:
        InvalidProfileError: A field is not a whole number in its range.

    Example:
        >>> 3 in Skip(first=1, last=4, bytes=10).states
        True
    """

    first: int
    last: int
    bytes: int
    gradient_bytes: int = 0

    def __post_init__(self) -> None:
        for field in _SKIP_FIELDS:
            object.__setattr__(self, field, whole(getattr(self, field), f"skip: {field}"))
        if self.first >= self.last:
            raise InvalidProfileError(
                f"a skip goes from a{self.first} to a{self.last}; it must be part of at least two "
                "activations, in ascending order (a tensor of one activation needs no skip)"
            )

    @property
    def states(self) -> range:
        """Indices of the activations that it is part of."""
        return range(self.first, self.last + 1)


_SKIP_FIELDS: Final = tuple(field.name for field in fields(Skip))


class ChainArrays(NamedTuple):
    """A chain as int64 arrays for numeric kernels; `n` is the number of stages.

    Attributes:
        forward_time: Shape (n,), ns.
        backward_time: Shape (n,), ns.
        activation: Shape (n + 1,), bytes of ``a^0 .. a^n``.
        saved: Shape (n,), bytes saved by stage 0 .. n-1.
        gradient: Shape (n + 1,), bytes of ``δ^0 .. δ^n``.
        forward_overhead: Shape (n,), bytes.
        backward_overhead: Shape (n,), bytes.
        fresh: Shape (n, n + 1), at [i, j]: bytes of ``a^j`` that are no part of ``a^i``; 0
            where i = j. Without skips, other entries are ``activation[j]``.
        gradients: Shape (n,), bytes of ``δ^i`` and ``δ^{i+1}`` together, for stage i.
    """

    forward_time: NDArray[np.int64]
    backward_time: NDArray[np.int64]
    activation: NDArray[np.int64]
    saved: NDArray[np.int64]
    gradient: NDArray[np.int64]
    forward_overhead: NDArray[np.int64]
    backward_overhead: NDArray[np.int64]
    fresh: NDArray[np.int64]
    gradients: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainProfile:
    """A chain of stages whose last one is the loss.

    Attributes:
        input_bytes: Bytes of the network's input ``a^0``, in memory from the start.
        input_gradient_bytes: Bytes of the gradient with respect to it (0 when not wanted).
        stages: The stages, at least one.
        skips: Tensors that are part of several activations. Sizes of activations and
            gradients are those of all their tensors; ``saved_bytes`` counts the skips in the
            output that its stage (or an option's stages) makes, not those that pass through.

    Raises:
        InvalidProfileError: No stage, something that is not a `Stage` or `Skip`, a bad size,
            or skips larger than what they are part of.
    """

    input_bytes: int
    input_gradient_bytes: int
    stages: tuple[Stage, ...]
    skips: tuple[Skip, ...] = ()

    def __post_init__(self) -> None:
        for field in ("input_bytes", "input_gradient_bytes"):
            object.__setattr__(self, field, whole(getattr(self, field), field))
        object.__setattr__(self, "stages", all_of(self.stages, Stage, "stages"))
        object.__setattr__(self, "skips", all_of(self.skips, Skip, "skips"))
        if not self.stages:
            raise InvalidProfileError("a chain needs at least one stage (the loss), got none")
        for i, stage in enumerate(self.stages):
            for option in stage.options:
                if i + option.stages > len(self.stages):
                    raise InvalidProfileError(
                        f"option {option.name!r} of stage {i} keeps {option.stages} stages, and "
                        f"from there to the loss there are only {len(self.stages) - i}"
                    )
        if self.skips:
            _require_room(self)

    def __len__(self) -> int:
        return len(self.stages)

    def activation_bytes(self, index: int) -> int:
        """Return the bytes of ``a^index``, the input of stage `index` (``0 <= index <= n``)."""
        return self.stages[index - 1].output_bytes if index else self.input_bytes

    def gradient_bytes(self, index: int) -> int:
        """Return the bytes of ``δ^index``, the gradient with respect to ``a^index``."""
        return self.stages[index - 1].gradient_bytes if index else self.input_gradient_bytes

    @property
    def is_plain(self) -> bool:
        """Whether no stage has options, or costs that depend on the kind of its run."""
        return all(stage.is_plain for stage in self.stages)

    @property
    def has_environments(self) -> bool:
        """Whether a stage saves buffers or random states if it runs more than once."""
        return any(stage.environment_bytes for stage in self.stages)

    @property
    def plain_time(self) -> int:
        """Time of plain training, in ns: every stage once, kept under option 0."""
        return sum(
            stage.first.total_time if stage.first else stage.forward_time + stage.backward_time
            for stage in self.stages
        )

    @property
    def least_time(self) -> int:
        """A time, in ns, that no schedule is below: each stage once, under its fastest option."""
        if self.is_plain:
            return self.plain_time
        kept_together = {
            j
            for i, stage in enumerate(self.stages)
            for option in stage.options
            for j in range(i, i + option.stages)
            if option.stages > 1
        }
        least = [0] * (len(self) + 1)  # of stages i .. n-1
        for i, stage in reversed(list(enumerate(self.stages))):
            earlier = 0 if i in kept_together else _earlier_time(stage)
            least[i] = min(
                _kept_time(option, earlier) + least[i + option.stages]
                for option in stage.all_options
            )
        return least[0]

    def arrays(self) -> ChainArrays:
        """Return the chain as int64 arrays for kernels: a derived view of the profile."""
        activation = self._column("output_bytes", first=self.input_bytes)
        gradient = self._column("gradient_bytes", first=self.input_gradient_bytes)
        fresh = np.tile(activation, (len(self), 1))
        gradients = gradient[:-1] + gradient[1:]
        for skip in self.skips:
            states = slice(skip.first, skip.last + 1)
            fresh[states, states] -= skip.bytes
            gradients[skip.first : skip.last] -= skip.gradient_bytes
        np.fill_diagonal(fresh, 0)
        return ChainArrays(
            forward_time=self._column("forward_time"),
            backward_time=self._column("backward_time"),
            activation=activation,
            saved=self._column("saved_bytes"),
            gradient=gradient,
            forward_overhead=self._column("forward_overhead_bytes"),
            backward_overhead=self._column("backward_overhead_bytes"),
            fresh=fresh,
            gradients=gradients,
        )

    def _column(self, field: str, first: int | None = None) -> NDArray[np.int64]:
        head = [] if first is None else [first]
        return np.array(head + [getattr(stage, field) for stage in self.stages], dtype=np.int64)

    def to_json(self) -> str:
        """Return the profile as a JSON document; `from_json` gives an equal profile back."""
        body = {
            "input_bytes": self.input_bytes,
            "input_gradient_bytes": self.input_gradient_bytes,
            "stages": [stage.to_fields() for stage in self.stages],
            "skips": [asdict(skip) for skip in self.skips],
        }
        return documents.dump(_KIND, _VERSION, body)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the document that `to_json` writes, or that of a version without options or skips.

        Raises:
            InvalidProfileError: Malformed, of another kind or version, or not a chain;
                the text names the field.
        """
        with documents.parse(
            text, _KIND, _VERSION, InvalidProfileError, oldest=_VERSION_WITHOUT_SKIPS
        ) as document:
            has_skips = document.integer("version") > _VERSION_WITHOUT_SKIPS
            return cls(
                input_bytes=document.integer("input_bytes"),
                input_gradient_bytes=document.integer("input_gradient_bytes"),
                stages=tuple(map(Stage.from_fields, document.children("stages"))),
                skips=tuple(
                    Skip(**{field: skip.integer(field) for field in _SKIP_FIELDS})
                    for skip in (document.children("skips") if has_skips else ())
                ),
            )


def require_plain(profile: ChainProfile, what: str) -> None:
    """Refuse a chain with options, or costs by kind of run, where `what` takes none.

    Raises:
        InvalidProfileError: Always, if there are any; the text names the first such stage.
    """
    for i, stage in enumerate(profile.stages):
        if not stage.is_plain:
            kind = "options" if stage.options else "costs by kind of run"
            if stage.environment_bytes:
                kind = "an environment"
            raise InvalidProfileError(
                f"stage {i} of this chain has {kind}, which {what} does not take; use DP(), or "
                "leave them out of the profile"
            )


def require_no_environments(profile: ChainProfile, what: str) -> None:
    """Refuse a chain whose stages save buffers or random states, where `what` does not count them.

    Raises:
        InvalidProfileError: There are any; the text names the first such stage.
    """
    for i, stage in enumerate(profile.stages):
        if stage.environment_bytes:
            raise InvalidProfileError(
                f"stage {i} of this chain has environment_bytes={stage.environment_bytes}, which "
                f"{what} does not take; use DP(), or count them in the overheads"
            )


def require_single_stage_options(profile: ChainProfile) -> None:
    """Refuse, beside offloading, more than options of one stage that need its input.

    Raises:
        InvalidProfileError: There are costs by kind of run, options of several stages, or ones
            that need no input; the text names the first such stage.
    """
    for i, stage in enumerate(profile.stages):
        refusal = ""
        if any(option.stages > 1 for option in stage.options):
            refusal = "an option that keeps several stages"
        elif not (stage.needs_input and all(option.needs_input for option in stage.options)):
            refusal = "an option that needs no input"
        elif stage.has_costs_by_kind or any(option.again for option in stage.options):
            refusal = "costs by kind of run"
        elif stage.environment_bytes:
            refusal = "an environment"
        if refusal:
            raise InvalidProfileError(
                f"stage {i} of this chain has {refusal}, which recomputing with offloading does "
                "not take; use DP(), or leave it out of the profile"
            )


def _earlier_time(stage: Stage) -> int:
    """Return the least ns of a first run of a stage that no option keeps together with others."""
    return min(stage.dropped(first=True).time, *(way.first.time for way in stage.all_options))


def _kept_time(option: StageOption, earlier: int) -> int:
    """Return a time, in ns, that keeping a stage and its backward take at least."""
    first, again = option.runs
    return min(first.total_time, earlier + again.total_time)


def _require_room(profile: ChainProfile) -> None:
    """Refuse skips that are larger than what they are part of, or that reach the loss's output."""
    last = len(profile) - 1
    for position, skip in enumerate(profile.skips):
        if skip.last > last:
            raise InvalidProfileError(
                f"skips[{position}] reaches a{skip.last}, and the last activation that a stage of "
                f"this {len(profile)}-stage chain reads is a{last}; end it there at the latest"
            )
    for i in range(len(profile)):
        here = [skip for skip in profile.skips if skip.first <= i <= skip.last]
        made = [skip for skip in here if skip.first == i]
        saved = profile.stages[i - 1].saved_bytes if i else profile.input_bytes
        for what, size, part in (
            (f"a{i}", profile.activation_bytes(i), sum(skip.bytes for skip in here)),
            (
                f"the gradient of a{i}",
                profile.gradient_bytes(i),
                sum(skip.gradient_bytes for skip in here),
            ),
            (f"what stage {i - 1} saves", saved, sum(skip.bytes for skip in made)),
        ):
            if part > size:
                raise InvalidProfileError(
                    f"{what} has {size} bytes, and skips in it have {part}; its size must count "
                    "them, each once"
                )
    for i, stage in enumerate(profile.stages):
        for number, option in enumerate(stage.options, 1):
            part = sum(
                skip.bytes
                for skip in profile.skips
                if i < skip.first <= i + option.stages <= skip.last
            )
            if part > option.saved_bytes:
                raise InvalidProfileError(
                    f"what option {number} of stage {i} saves has {option.saved_bytes} bytes, and "
                    f"skips in it have {part}; its size must count them, each once"
                )
