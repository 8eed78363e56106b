r"""Homogeneous chains: binomial checkpointing (`chainstay.problems.binomial`) as a method.

*Where it is the optimum among persistent schedules* (and equal to `DP`'s): all stages are
alike in times and sizes, the input is as large as an activation and its gradient as any
other, ``saved_bytes >= output_bytes``, and saved data of two stages never fits at once. With
``base = saved + max(gradient + forward overhead, 2 gradients + backward overhead)``, that is
a budget of ``(c + 1) output + base`` plus less than one output, and ``c output < saved``. Then
``Fa`` runs only right before its ``B``, and the persistent recursion of `recursion` loses its
first line but for single stages::

    T(1, c) = 1,   T(l, c) = min_k  k + T(l - k, c - 1) + T(k, c),   T(l > 1, 0) = ∞

With more memory, keeping the saved data of some stages is better: `Revolve` still answers,
with a lower bound that says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from chainstay.errors import InfeasibleBudgetError, InvalidProfileError
from chainstay.problems.binomial import binomial_schedule, least_forwards
from chainstay.profiles import ChainProfile, Stage
from chainstay.profiles.chain import require_plain
from chainstay.schedule import Schedule
from chainstay.solution import Claim, Family


@dataclass(frozen=True, slots=True)
class Revolve:
    """Binomial checkpointing as a method: for homogeneous chains, in no time at any length.

    Example:
        >>> stage = Stage(forward_time=1, backward_time=2, output_bytes=10, saved_bytes=90)
        >>> chain = ChainProfile(input_bytes=10, input_gradient_bytes=0, stages=(stage,) * 4)
        >>> claim = Revolve()(chain, 120)
        >>> str(claim.schedule), claim.makespan == claim.lower_bound
        ('Fc0 Fc1 Fn2 Fa3 B3 Fc1 Fa2 B2 Fa1 B1 Fa0 B0', True)
    """

    def __str__(self) -> str:
        return "revolve"

    def __call__(
        self, profile: ChainProfile, budget: int, *, hint: Schedule | None = None
    ) -> Claim:
        """Return the binomial schedule with as many slots as `budget` has room for.

        Returns:
            A claim whose lower bound equals its makespan where the module's conditions hold, and is
            `ChainProfile.least_time` where the budget has room for saved data of two stages.

        Raises:
            InvalidProfileError: The chain is not homogeneous, or not plain.
            InfeasibleBudgetError: Nothing fits; ``error.required`` is the least budget.
        """
        del hint
        require_plain(profile, "Revolve()")
        stage, stages = _common_stage(profile), len(profile)
        required = profile.input_bytes + _base(stage) + (stage.output_bytes if stages > 1 else 0)
        if budget < required:
            raise InfeasibleBudgetError(
                budget=budget, required=required, stages=stages, family=Family.PERSISTENT
            )
        free = budget - profile.input_bytes - _base(stage)
        slots = min(stages, free // stage.output_bytes) if stage.output_bytes else stages
        makespan = least_forwards(stages, slots) * stage.forward_time + stages * stage.backward_time
        is_exact = stages == 1 or free < stage.saved_bytes
        return Claim(
            schedule=binomial_schedule(stages, slots),
            makespan=makespan,
            lower_bound=makespan if is_exact else profile.least_time,
            family=Family.PERSISTENT,
        )


def _common_stage(profile: ChainProfile) -> Stage:
    """Return the stage that all stages are equal to, without its name.

    Raises:
        InvalidProfileError: The chain is not homogeneous.
    """
    if profile.skips:
        raise InvalidProfileError(
            f"the chain has {len(profile.skips)} skips: not a homogeneous chain. "
            "DP() takes any chain."
        )
    stage = replace(profile.stages[0], name="")
    for position, other in enumerate(profile.stages):
        if replace(other, name="") != stage:
            raise InvalidProfileError(
                f"stages[{position}] differs from stages[0]: not a homogeneous chain. "
                "DP() takes any chain."
            )
    if (profile.input_bytes, profile.input_gradient_bytes) != (
        stage.output_bytes,
        stage.gradient_bytes,
    ):
        raise InvalidProfileError(
            f"the input has {profile.input_bytes} bytes and its gradient "
            f"{profile.input_gradient_bytes}, must be {stage.output_bytes} and "
            f"{stage.gradient_bytes} as after every stage. DP() takes any chain."
        )
    if stage.saved_bytes < stage.output_bytes:
        raise InvalidProfileError(
            f"saved_bytes is {stage.saved_bytes}, must be at least output_bytes, "
            f"{stage.output_bytes}. DP() takes any chain."
        )
    return stage


def _base(stage: Stage) -> int:
    """Return the bytes for one stage's ``Fa`` and ``B`` besides activations."""
    forward = stage.gradient_bytes + stage.forward_overhead_bytes
    backward = 2 * stage.gradient_bytes + stage.backward_overhead_bytes
    return stage.saved_bytes + max(forward, backward)
