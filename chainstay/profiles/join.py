r"""Costs of a join: several chains whose outputs meet, and the chain after them.

Two memory models, two data types:

- `JoinProfile`: stages of their own times and sizes, each of which may save more than its
  output. Branch outputs are together the input of the tail; the last stage of the tail is
  the loss. Without a tail the loss costs nothing.
- `HomogeneousJoin`, the model of [BHPS20]: all steps alike, every value takes one slot of
  memory, a step writes over its input unless told to keep it, and a backward step needs the
  input of its forward step alone.

==================  ==============================================================
symbol in [BHPS20]  name here
==================  ==============================================================
``k``, ``ℓ_j``      number of branches, ``lengths[j]``
``c``               the budget, in slots
``b_j``             ``keep[j]``: whether the gradient of the input of branch j is to
                    stay in memory until the end
``u_f, u_b, u_t``   ``forward_time``, ``backward_time``, ``turn_time``
==================  ==============================================================
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Self, TypeAlias

from chainstay import documents
from chainstay.documents import Fields
from chainstay.errors import InvalidProfileError
from chainstay.profiles.chain import ChainProfile, require_no_environments
from chainstay.profiles.quantities import all_of, whole
from chainstay.profiles.stage import Stage

_KIND: Final = "join-profile"
_HOMOGENEOUS_KIND: Final = "homogeneous-join"
_VERSION: Final = 2
_VERSION_WITHOUT_SHARED: Final = 1
_HOMOGENEOUS_VERSION: Final = 1
_TIMES: Final = ("forward_time", "backward_time", "turn_time")


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedGradient:
    """A gradient with summands of several stages, such as that of a weight that towers share.

    It is in memory from the first of these stages' backwards to the last, both included.

    Attributes:
        bytes: Its size.
        users: The stages, ascending, by their numbers in `JoinProfile.all_stages`; at least two.

    Raises:
        InvalidProfileError: A number that is negative or not whole, or too few users.
    """

    bytes: int
    users: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "bytes", whole(self.bytes, "bytes of a shared gradient"))
        if not isinstance(self.users, Iterable):
            raise InvalidProfileError(
                f"users of a shared gradient are {self.users!r}, must be a tuple of stages"
            )
        users = tuple(whole(user, "a user of a shared gradient") for user in self.users)
        object.__setattr__(self, "users", users)
        if len(users) < 2 or users != tuple(sorted(set(users))):
            raise InvalidProfileError(
                f"users of a shared gradient are {users}, must be two or more stages, ascending"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinProfile:
    """Chains that meet, and the chain after them.

    Stages of branch ``j`` are ``j:0, j:1, …``; stage 0 of the tail reads the outputs of all
    branches. The gradient of a branch's input is dropped as soon as it is there, unless a
    solve is told to keep it.

    Attributes:
        branches: The chains before the join, at least one; none of them ends with a loss.
        tail: The chain from where the branches meet to the loss. Its input is all branch outputs
            together, so ``tail.input_bytes`` and ``tail.input_gradient_bytes`` are their sums.
            None: the loss is all there is, and free; a schedule writes it ``T``.
        shared: Gradients that several stages sum. All others that stay until the end of the step
            are no part of a profile.

    Raises:
        InvalidProfileError: No branch, something that is not a `ChainProfile`, a tail whose
            input is not the branches' outputs, a shared gradient of a stage that is not there, or
            what joins do not take: skips, and options that keep several stages.

    Example:
        >>> tower = ChainProfile(input_bytes=8, input_gradient_bytes=0, stages=(
        ...     Stage(forward_time=1, output_bytes=4, saved_bytes=6, gradient_bytes=4),))
        >>> JoinProfile(branches=(tower, tower)).least_time
        2
    """

    branches: tuple[ChainProfile, ...]
    tail: ChainProfile | None = None
    shared: tuple[SharedGradient, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "branches", all_of(self.branches, ChainProfile, "branches"))
        if not self.branches:
            raise InvalidProfileError("a join needs at least one branch, got none")
        if self.tail is not None and not isinstance(self.tail, ChainProfile):
            raise InvalidProfileError(f"tail is {self.tail!r}, must be a ChainProfile or None")
        for name, chain in (*enumerate(self.branches), ("tail", self.tail)):
            if chain is None:
                continue
            where = name if name == "tail" else f"branches[{name}]"
            if any(option.stages > 1 for stage in chain.stages for option in stage.options):
                raise InvalidProfileError(
                    f"{where} has an option that keeps several stages by one record, which joins "
                    "do not take; leave it out, or merge these stages into one"
                )
            require_no_environments(chain, "a join")
            if chain.skips:
                raise InvalidProfileError(
                    f"{where} has {len(chain.skips)} skips, and joins take none; merge the stages "
                    "that a skip spans into one"
                )
        if self.tail is not None:
            self._require_match(self.tail)
        object.__setattr__(self, "shared", all_of(self.shared, SharedGradient, "shared"))
        for n, gradient in enumerate(self.shared):
            if gradient.users[-1] >= self.stages:
                raise InvalidProfileError(
                    f"shared[{n}] has user {gradient.users[-1]}, and there are {self.stages} stages"
                )

    def _require_match(self, tail: ChainProfile) -> None:
        for field, found, needed in (
            ("input_bytes", tail.input_bytes, self.output_bytes),
            ("input_gradient_bytes", tail.input_gradient_bytes, self.output_gradient_bytes),
        ):
            if found != needed:
                raise InvalidProfileError(
                    f"tail.{field} is {found}, and the outputs of the {len(self.branches)} "
                    f"branches add up to {needed}; the tail's input is all of them together"
                )

    @staticmethod
    def homogeneous(
        lengths: Sequence[int],
        *,
        forward_time: int,
        backward_time: int,
        turn_time: int,
        tail_steps: int | None = None,
    ) -> HomogeneousJoin:
        """Return a join in the model of [BHPS20]: unit slots, all steps alike.

        Args:
            lengths: Forward steps of each branch; 0 for a branch that is its input alone.
            forward_time: Time of every forward step, in ns.
            backward_time: Time of every backward step, in ns.
            turn_time: Time of the turn, where forward becomes backward, in ns.
            tail_steps: Steps between the join step and the turn. None: there is no join step
                and the turn itself reads all branch outputs, as in the paper.

        Raises:
            InvalidProfileError: No branch, or a number that is negative or not whole.
        """
        return HomogeneousJoin(
            lengths=lengths,  # type: ignore[arg-type]  # made a tuple there, or refused
            forward_time=forward_time,
            backward_time=backward_time,
            turn_time=turn_time,
            tail_steps=tail_steps,
        )

    @property
    def output_bytes(self) -> int:
        """Bytes of all branch outputs together."""
        return sum(branch.activation_bytes(len(branch)) for branch in self.branches)

    @property
    def output_gradient_bytes(self) -> int:
        """Bytes of the gradients of all branch outputs together."""
        return sum(branch.gradient_bytes(len(branch)) for branch in self.branches)

    @property
    def closing(self) -> ChainProfile:
        """The tail; where there is none, a chain of one stage that costs nothing."""
        if self.tail is not None:
            return self.tail
        return ChainProfile(
            input_bytes=self.output_bytes,
            input_gradient_bytes=self.output_gradient_bytes,
            stages=(Stage(name="turn"),),
        )

    @property
    def chains(self) -> tuple[ChainProfile, ...]:
        """The branches, and the chain that closes the join."""
        return (*self.branches, self.closing)

    @property
    def stages(self) -> int:
        """The number of stages in all branches and the tail."""
        return sum(map(len, self.branches)) + (len(self.tail) if self.tail else 0)

    def __len__(self) -> int:
        return self.stages

    @property
    def all_stages(self) -> tuple[Stage, ...]:
        """All stages in the order of plain training: branch by branch, then the tail."""
        return tuple(stage for chain in self.chains for stage in chain.stages)

    @property
    def keeps_input_gradients(self) -> tuple[bool, ...]:
        """Say for each branch whether its input has a gradient, which stays until the step ends."""
        return tuple(branch.input_gradient_bytes > 0 for branch in self.branches)

    @property
    def users(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """The users of each shared gradient by chain, the tail being the last, and stage."""
        places = [(c, i) for c, chain in enumerate(self.chains) for i in range(len(chain))]
        return tuple(tuple(places[user] for user in gradient.users) for gradient in self.shared)

    @property
    def is_plain(self) -> bool:
        """Whether no stage has options, or costs that depend on the kind of its run."""
        return all(chain.is_plain for chain in self.chains)

    @property
    def least_time(self) -> int:
        """A time, in ns, that no schedule is below: each stage once, under its fastest option."""
        return sum(chain.least_time for chain in self.chains)

    def to_json(self) -> str:
        """Return the profile as a JSON document; `from_json` gives an equal profile back."""
        tails = [] if self.tail is None else [self.tail]
        body = {
            "branches": [json.loads(branch.to_json()) for branch in self.branches],
            "tail": [json.loads(tail.to_json()) for tail in tails],
            "shared": [
                {"bytes": gradient.bytes, "users": gradient.users} for gradient in self.shared
            ],
        }
        return documents.dump(_KIND, _VERSION, body)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the document that `to_json` writes.

        Raises:
            InvalidProfileError: Malformed, of another kind or version, or not a join.
        """
        with documents.parse(
            text, _KIND, _VERSION, InvalidProfileError, oldest=_VERSION_WITHOUT_SHARED
        ) as document:
            has_shared = document.integer("version") > _VERSION_WITHOUT_SHARED
            tails = document.children("tail")
            if len(tails) > 1:
                raise InvalidProfileError(
                    f"{_KIND}: field 'tail' has {len(tails)} chains, at most 1"
                )
            return cls(
                branches=tuple(map(_chain, document.children("branches"))),
                tail=_chain(tails[0]) if tails else None,
                shared=tuple(
                    SharedGradient(
                        bytes=gradient.integer("bytes"), users=gradient.integers("users")
                    )
                    for gradient in (document.children("shared") if has_shared else ())
                ),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class HomogeneousJoin:
    """A join whose steps are all alike and whose values take one slot each.

    Made by `JoinProfile.homogeneous`. Where sizes are in bytes elsewhere, they are in slots
    here.

    Attributes:
        lengths: Forward steps of each branch.
        forward_time: Time of every forward step, in ns.
        backward_time: Time of every backward step, in ns.
        turn_time: Time of the turn, in ns.
        tail_steps: Steps between the join step and the turn; None without a join step.

    Raises:
        InvalidProfileError: No branch, or a number that is negative or not whole.
    """

    lengths: tuple[int, ...]
    forward_time: int
    backward_time: int
    turn_time: int
    tail_steps: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.lengths, Iterable):
            raise InvalidProfileError(f"lengths is {self.lengths!r}, must be a tuple of numbers")
        lengths = tuple(whole(n, f"lengths[{j}]") for j, n in enumerate(self.lengths))
        if not lengths:
            raise InvalidProfileError("lengths is empty; a join needs at least one branch")
        object.__setattr__(self, "lengths", lengths)
        for field in _TIMES:
            object.__setattr__(self, field, whole(getattr(self, field), field))
        if self.tail_steps is not None:
            object.__setattr__(self, "tail_steps", whole(self.tail_steps, "tail_steps"))

    @property
    def tail_length(self) -> int:
        """The number of forward steps after the branches, the join step included."""
        return 0 if self.tail_steps is None else self.tail_steps + 1

    @property
    def stages(self) -> int:
        """The number of forward steps of all branches and the tail."""
        return sum(self.lengths) + self.tail_length

    def __len__(self) -> int:
        return self.stages

    @property
    def enough_slots(self) -> int:
        """The number of slots with which nothing has to be recomputed: more are of no use."""
        return self.stages + len(self.lengths) + (self.tail_length > 0)

    @property
    def least_time(self) -> int:
        """Time of every forward, every backward and the turn once, in ns: none is faster."""
        return self.makespan(self.stages)

    def makespan(self, forwards: int) -> int:
        """Return the time of a schedule with so many forwards, in ns: the rest runs once."""
        once = self.stages * self.backward_time + self.turn_time
        return forwards * self.forward_time + once

    def to_json(self) -> str:
        """Return the join as a JSON document; `from_json` gives an equal one back."""
        tail = [] if self.tail_steps is None else [self.tail_steps]
        body = {"lengths": self.lengths, **{time: getattr(self, time) for time in _TIMES}}
        return documents.dump(_HOMOGENEOUS_KIND, _HOMOGENEOUS_VERSION, body | {"tail_steps": tail})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the document that `to_json` writes.

        Raises:
            InvalidProfileError: Malformed, of another kind or version, or not such a join.
        """
        with documents.parse(
            text, _HOMOGENEOUS_KIND, _HOMOGENEOUS_VERSION, InvalidProfileError
        ) as document:
            tail = document.integers("tail_steps")
            if len(tail) > 1:
                raise InvalidProfileError(
                    f"{_HOMOGENEOUS_KIND}: field 'tail_steps' has {len(tail)} numbers, at most 1"
                )
            return cls(
                lengths=document.integers("lengths"),
                forward_time=document.integer("forward_time"),
                backward_time=document.integer("backward_time"),
                turn_time=document.integer("turn_time"),
                tail_steps=tail[0] if tail else None,
            )


Join: TypeAlias = JoinProfile | HomogeneousJoin
"""A join in either model."""


def kept_gradients(profile: Join, keep: Sequence[bool] | None) -> tuple[bool, ...]:
    """Return, for each branch, whether the gradient of its input stays in memory until the end.

    Args:
        profile: The join.
        keep: One flag a branch (0 and 1 will do), or None for none of them.

    Raises:
        InvalidProfileError: Not one flag for each branch.
    """
    branches = len(profile.lengths if isinstance(profile, HomogeneousJoin) else profile.branches)
    if keep is None:
        return (False,) * branches
    flags: tuple[object, ...] = tuple(keep) if isinstance(keep, tuple | list) else ()
    if len(flags) != branches or any(flag not in (0, 1) for flag in flags):
        raise InvalidProfileError(
            f"keep is {keep!r}, must be {branches} of True or False, one for each branch"
        )
    return tuple(map(bool, flags))


def _chain(fields: Fields) -> ChainProfile:
    return ChainProfile.from_json(fields.text())
