"""Variables of the Pyomo models of offloading, and the schedule that their values describe.

==============  ======================================================================
variable        meaning
==============  ======================================================================
``start[k]``    when computation k starts (forwards 0 .. n-1, backwards n-1 .. 0)
``moves[j]``    activation j is offloaded and prefetched
``leaves[j]``   when its offload starts; ``gone[j]``: when its memory is free
``returns[j]``  when its prefetch starts, and takes memory
``slot[j,q]``   its prefetch starts in slot q
``away[j,k]``   it is on the host when computation k starts
``out[i,j]``    activation i is on the host when the prefetch of j starts
``first[a,b]``  transfer a has the link before transfer b; transfers are (direction, j)
``held[i,j]``   activation i has its place on a limited host when the offload of j starts
==============  ======================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from chainstay.formulations.pyomo_types import Expression, Model, pyo
from chainstay.problems.offload import OffloadProblem
from chainstay.schedule import Op, OpKind, Schedule
from chainstay.timetable import computations

OUT: Final = OpKind.OFFLOAD_ACTIVATION
"""The direction of an offload."""
BACK: Final = OpKind.PREFETCH_ACTIVATION
"""The direction of a prefetch."""
Transfer: TypeAlias = tuple[OpKind, int]
"""The direction of a transfer, and the activation that moves."""


@dataclass(frozen=True, slots=True)
class OffloadModel:
    """A model of forwards 0 .. n-1 and backwards n-1 .. 0.

    Attributes:
        model: The Pyomo model. Yours to write out or hand to any solver.
        problem: The problem that it states.
        unit: Ticks of the link in a unit of the model's times.
    """

    model: Model
    problem: OffloadProblem
    unit: int

    @property
    def stages(self) -> int:
        """The number of stages, the paper's L + 1."""
        return len(self.problem.profile)

    @property
    def times(self) -> list[int]:
        """The times of the computations, in units."""
        profile, ticks = self.problem.profile, self.problem.link.ticks
        both = (*profile.forward_times, *reversed(profile.backward_times))
        return [u * ticks // self.unit for u in both]

    @property
    def movable(self) -> list[int]:
        """The activations that it can make sense to move."""
        return [j for j in range(self.stages - 1) if self.problem.profile.activations[j]]


@dataclass(frozen=True, slots=True)
class OffloadFormulation(OffloadModel):
    """A model that minimises ``model.makespan``, and the meaning of its variables.

    Attributes:
        size_unit: Bytes in a unit of the model's sizes.
        horizon: Time units that no answer exceeds.
    """

    size_unit: int
    horizon: float

    @property
    def loads(self) -> list[float]:
        """The memory in use during each computation when nothing is away, in units of size."""
        profile = self.problem.profile
        both = (*profile.forward_loads, *reversed(profile.backward_loads))
        return [load / self.size_unit for load in both]

    @property
    def rests(self) -> list[float]:
        """The memory in use after each computation when nothing is away, in units of size."""
        x, y, n = self.problem.profile.activations, self.problem.profile.gradients, self.stages
        forward = [sum(x[: i + 2]) for i in range(n)]
        backward = [sum(x[: i + 1]) + y[i] for i in reversed(range(n))]
        return [size / self.size_unit for size in forward + backward]

    @property
    def transfers(self) -> list[Transfer]:
        """The offloads and prefetches of movable activations."""
        return [(kind, j) for kind in (OUT, BACK) for j in self.movable]

    def size(self, j: int) -> float:
        """Return the size of activation j, in units."""
        return self.problem.profile.activations[j] / self.size_unit

    def moving(self, j: int) -> int:
        """Return how long activation j is on the link, in units of time."""
        size = self.problem.profile.activations[j]
        return self.problem.link.transfer_ticks(size) // self.unit

    def backward(self, j: int) -> int:
        """Return the number of computation ``B_j``."""
        return 2 * self.stages - 1 - j

    def end(self, k: int) -> Expression:
        """Return when computation k ends, in units of time."""
        return self.model.start[k] + self.times[k]

    def begin(self, transfer: Transfer) -> Expression:
        """Return when a transfer starts, in units of time."""
        kind, j = transfer
        return self.model.leaves[j] if kind is OUT else self.model.returns[j]

    def slots(self, j: int) -> range:
        """Return the slots in which the prefetch of j can start."""
        return range(2 * j + 1, 2 * self.backward(j))

    def decode(self) -> Schedule:
        """Return the schedule that the variables describe.

        Computations and prefetches come by slots, an offload as early as the link's order allows.
        """
        model = self.model
        moved = [j for j in self.movable if _is_on(model.moves[j])]
        returns = sorted(moved, key=lambda j: pyo.value(model.returns[j]))
        ops: list[Op] = []
        for k, op in enumerate(computations(self.stages)):
            ops.append(op)
            for q in (2 * k, 2 * k + 1):
                ops += [
                    Op(BACK, j) for j in returns if q in self.slots(j) and _is_on(model.slot[j, q])
                ]
        served = sorted(
            (transfer for transfer in self.transfers if transfer[1] in moved),
            key=lambda transfer: pyo.value(self.begin(transfer)),
        )
        before: list[Op] = []
        for kind, j in served:
            op = Op(kind, j)
            if kind is OUT:
                maker = [Op(OpKind.FORWARD_KEEP_ALL, j - 1)] if j else []
                ops.insert(max((ops.index(other) for other in maker + before), default=-1) + 1, op)
            if kind is OUT or not self.problem.link.is_full_duplex:
                before = [op]
        return Schedule(tuple(ops))


def _is_on(variable: Expression) -> bool:
    """Return the value of a binary variable."""
    return bool(round(pyo.value(variable)) == 1)
