"""The problem of recomputing and offloading together: problem, claim, method and solution."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, Self

from chainstay import documents
from chainstay.errors import InvalidProfileError, InvalidSolutionError
from chainstay.problems.chain import ChainProblem
from chainstay.problems.offload import OffloadClaim, OffloadSolution, TransferProblem
from chainstay.profiles import ChainProfile
from chainstay.profiles.chain import require_single_stage_options
from chainstay.schedule import Discards
from chainstay.solution import Solution
from chainstay.timetable import Time, Transfers, exact
from chainstay.units import format_time


@dataclass(frozen=True, slots=True)
class HybridProblem(TransferProblem):
    """A chain without skips, all of which may be recomputed or moved.

    Its stages may have options, each of one stage: the chosen one says what there is to move.

    Raises:
        InvalidProfileError: Skips, costs by kind of run, options of several stages or that need no
            input, other transfers, or fractional ones over a link with
            latency or two directions, or to a memory with a limit.
    """

    profile: ChainProfile
    kind: ClassVar[str] = "hybrid"
    techniques: ClassVar[str] = "recomputing and offloading"

    def __post_init__(self) -> None:
        if self.transfers not in (Transfers.INTEGRAL, Transfers.FRACTIONAL):
            raise InvalidProfileError(
                f"transfers is {self.transfers!r}, must be 'integral' or 'fractional' where "
                "stages may be recomputed"
            )
        object.__setattr__(self, "transfers", Transfers(self.transfers))
        require_single_stage_options(self.profile)
        if self.profile.skips:
            raise InvalidProfileError(
                f"this chain has {len(self.profile.skips)} skips, which transfers do not support; "
                "extract the model with granularity='blocks' or a smaller number of stages"
            )
        if self.transfers is Transfers.FRACTIONAL and not self.link.is_plain:
            raise InvalidProfileError(
                "fractional transfers are defined for a half-duplex link without latency to one "
                f"memory without limit, not for {self.link}; use transfers='integral'"
            )

    @property
    def required_bytes(self) -> int:
        """The least feasible budget in bytes, with everything on the host that can be spared.

        It assumes no limit on host memory; with one, something more may be needed. So it may
        where the host would need what a stage saved under two options.

        A stage's input is its predecessor's output, plain or in what that saved by some option;
        each is made once, with a larger gradient held the earlier, and read from the host ever
        after.
        """
        profile = self.profile
        count = len(profile)
        required = profile.input_bytes + profile.gradient_bytes(count)
        # the forms of a stage's input, plain first: by the gradient held, the least memory to have
        # made it; and its bytes
        forms = [([required] * (count + 1), profile.input_bytes)]
        for i, stage in enumerate(profile.stages):
            gradients = profile.gradient_bytes(i) + stage.gradient_bytes
            beside = stage.output_bytes + stage.forward_overhead_bytes
            following = [(_made(profile, forms, beside), stage.output_bytes)]
            needs = []
            for option in stage.all_options:
                made = _made(profile, forms, option.saved_bytes + option.first.overhead_bytes)
                following.append((made, option.saved_bytes))
                own = option.saved_bytes + gradients + option.backward_overhead_bytes
                backward = min(max(known[i + 1], size + own) for known, size in forms)
                needs.append(max(made[i + 1], backward))
            required, forms = max(required, min(needs)), following
        return required

    def simpler(self) -> Iterator[Self]:
        """Yield problems on a simpler chain or with a smaller budget, over the same link."""
        for simpler in ChainProblem(self.profile, self.budget).simpler():
            yield replace(self, profile=simpler.profile, budget=simpler.budget)


def _made(profile: ChainProfile, forms: list[tuple[list[int], int]], beside: int) -> list[int]:
    """Return, by the gradient held, the least memory to have made something now or before."""
    least = [0] * (len(profile) + 1)
    for held in range(len(profile), 0, -1):
        need = beside + profile.gradient_bytes(held)
        now = min(max(known[held], size + need) for known, size in forms)
        least[held] = now if held == len(profile) else min(now, least[held + 1])
    return least


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridClaim(OffloadClaim):
    """A solver's claim: the fields of `OffloadClaim`, and more bounds.

    Attributes:
        unrestricted_bound: Time in ns that no schedule of the problem's transfers goes below.
        fractional_makespan: Makespan in ns of the best plan known when parts of items may
            move; None if not computed.
        fractional_bound: Lower bound in ns on all such plans: persistent, and nothing leaves
            after the loss or comes back before it. No bound on other schedules.
        alternatives: Makespan in ns of each strategy that was tried, by name; ``None`` where it
            does not fit.
    """

    unrestricted_bound: Time = 0
    fractional_makespan: Time | None = None
    fractional_bound: Time = 0
    alternatives: tuple[tuple[str, Time | None], ...] = ()


class HybridMethod(Protocol):
    """A method that solves hybrid problems: one of ours, or your own, checked like ours."""

    def __call__(self, problem: HybridProblem) -> HybridClaim:
        """Return a schedule of `problem` with its makespan and a lower bound."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridSolution(OffloadSolution):
    """An `OffloadSolution` whose schedule may recompute, too.

    The makespan is that of whole transfers where `transfers` are integral; lower bounds speak
    about the same transfers.

    Attributes:
        fractional_makespan: Makespan in ns of the best plan known when parts of items may
            move; None if not computed.
        fractional_bound: Lower bound in ns on all such plans. With integral transfers it is
            shown for what it is and is no part of `lower_bound`.
        alternatives: Makespan in ns of each strategy that was tried, by name; ``None`` where it
            does not fit.
    """

    fractional_makespan: Time | None = None
    fractional_bound: Time = 0
    alternatives: tuple[tuple[str, Time | None], ...] = ()
    document: ClassVar[tuple[str, int]] = ("hybrid-solution", 1)
    techniques: ClassVar[str] = ""

    def describe(self) -> str:
        """Return one sentence for people: `Solution.describe`, what moves and what runs again."""
        offloads = sum(op.kind.is_offload for op in self.schedule)
        again = sum(op.kind.is_forward for op in self.schedule) - sum(
            op.kind == "B" for op in self.schedule
        )
        text = (
            f"{Solution.describe(self)}; {offloads} offload{'s' * (offloads != 1)}, "
            f"{again} recomputed forward{'s' * (again != 1)}"
        )
        if self.transfers is Transfers.INTEGRAL and self.fractional_bound:
            text += (
                f"; moving parts of tensors, persistent plans take at least "
                f"{format_time(int(self.fractional_bound))}"
            )
        return text

    def _to_fields(self) -> dict[str, object]:
        value, offloading = self.fractional_makespan, super(HybridSolution, self)._to_fields()
        return {
            "solution": documents.dump(*OffloadSolution.document, offloading),
            "discards": self.discards,
            "fractional_makespan": "" if value is None else str(value),
            "fractional_bound": str(self.fractional_bound),
            "alternatives": [
                {"name": name, "makespan": "" if time is None else str(time)}
                for name, time in self.alternatives
            ],
        }

    @classmethod
    def _from_fields(cls, document: documents.Fields) -> dict[str, Any]:
        text = document.string("solution")
        with documents.parse(text, *OffloadSolution.document, InvalidSolutionError) as offloading:
            return super(HybridSolution, cls)._from_fields(offloading) | {
                "discards": Discards(document.choice("discards", Discards)),
                "fractional_makespan": _time(document, "fractional_makespan"),
                "fractional_bound": exact(document.rational("fractional_bound")),
                "alternatives": tuple(
                    (strategy.string("name"), _time(strategy, "makespan"))
                    for strategy in document.children("alternatives")
                ),
            }


def _time(fields: documents.Fields, name: str) -> Time | None:
    return exact(fields.rational(name)) if fields.string(name) else None
