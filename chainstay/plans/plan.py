"""A plan: a solution and its profile. It is replayed as soon as it exists."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Final

from chainstay import documents
from chainstay.errors import InvalidPlanError, type_with_article
from chainstay.files import write_file
from chainstay.plans.fingerprint import Fingerprint
from chainstay.plans.option_choice import OptionChoice
from chainstay.problems import AnyProblem, problem_of
from chainstay.profiles import AnyProfile, ChainProfile, JoinProfile
from chainstay.solution import Solution
from chainstay.validation.event_machine import TransferReplay
from chainstay.validation.replay import replay
from chainstay.validation.simulate import Replay

KIND: Final = "plan"
VERSION: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The way in which a model was cut into the stages of a schedule.

    Attributes:
        by: ``"graph"`` or ``"blocks"``, see `chainstay.fit`; ``"join"`` (a graph whose branches
            are cut apart).
        granularity: ``"fine"``, ``"blocks"`` or the most stages, for a graph or a join.
    """

    by: str
    granularity: str | int


CUTS: Final = ("graph", "blocks", "join")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A solution, what it is a solution of, and what it may be applied to.

    Attributes:
        solution: The schedule, its time, peak and proof. The bounds are the solver's word.
        profile: The costs that it was solved for and replayed on; for a measured model, those of
            this schedule alone.
        overheads: Bytes that each operation of a measured chain or join needs besides what is
            stored, in place of the profile's; with recomputation and transfers, besides what may
            move. With transfers alone only the runtime asks for them.
        chain: The chain that the profile of an offloading problem was made of, which is what a
            model is cut into; ``None`` where there is no model.
        keep: For each branch of a join, whether its input's gradient stays; empty for none.
        model: Name of the model, for people.
        cut: The cut of the model into stages; ``None`` where there is no model.
        fingerprint: Description of what the plan may be applied to; ``None`` for nothing.
        choices: The options of a model's stages that the schedule uses.
        plain_time: Time of a step of plain training, in ns; ``None`` where it was not measured:
            that of the profile comes close, in which stages that run again take longer.
        plain_peak: Its peak in bytes; ``None`` where it was not measured.

    Raises:
        InvalidPlanError: The schedule takes another time than the solution says, needs more
            memory, or is no solution of such a profile.
        InvalidScheduleError: The schedule cannot be run.
    """

    solution: Solution
    profile: AnyProfile
    overheads: tuple[int, ...] | None = None
    chain: ChainProfile | None = None
    keep: tuple[bool, ...] = ()
    model: str = ""
    cut: Cut | None = None
    fingerprint: Fingerprint | None = None
    choices: tuple[OptionChoice, ...] = ()
    plain_time: int | None = None
    plain_peak: int | None = None

    def __post_init__(self) -> None:
        count = len(self.solution.schedule)
        problem = self.problem
        is_own = self.chain is None or problem.kind != "offload"
        if self.overheads is not None and problem.unit == "slots":
            raise InvalidPlanError("the plan has overheads in bytes, and its join has slots")
        if self.overheads is not None and is_own and len(self.overheads) != count:
            raise InvalidPlanError(
                f"the plan has {len(self.overheads)} overheads for {count} operations; there must "
                "be one for each"
            )
        for choice in self.choices:
            known = self.profile
            stages = known.all_stages if isinstance(known, JoinProfile) else self.stages.stages
            if not 0 <= choice.stage < len(stages) or not (
                1 <= choice.option <= len(stages[choice.stage].options)
            ):
                raise InvalidPlanError(
                    f"the plan has option {choice.option} of stage {choice.stage}, which its "
                    "profile has not; plan again"
                )
        self._require_sound()

    def _require_sound(self) -> None:
        """Refuse a solution whose replay contradicts its own numbers.

        Its peak may be above the simulated one: a runtime makes some tensors twice.
        """
        replayed, solution = self.replay(), self.solution
        if replayed.makespan != solution.makespan:
            contradiction = f"takes {solution.makespan} ns; replayed, it takes {replayed.makespan}"
        elif replayed.peak_bytes > solution.peak_bytes:
            says, found = solution.peak_bytes, replayed.peak_bytes
            contradiction = f"needs {says} bytes; replayed, it needs {found}"
        else:
            return
        raise InvalidPlanError(
            f"the plan says that it {contradiction}. The file was changed, or is damaged: plan "
            "again"
        )

    @property
    def problem(self) -> AnyProblem:
        """The problem that the solution solves.

        Raises:
            InvalidPlanError: Solution and profile do not go together.
        """
        return problem_of(self.solution, self.profile, keep=self.keep, error=InvalidPlanError)

    @property
    def stages(self) -> ChainProfile:
        """Costs of the stages of the model.

        Raises:
            InvalidPlanError: It is a plan of something else than a chain.
        """
        found = self.chain or self.profile
        if not isinstance(found, ChainProfile):
            raise InvalidPlanError(f"the plan is of {type_with_article(found)}, not of a chain")
        return found

    def replay(self) -> Replay | TransferReplay:
        """Simulate the schedule."""
        return replay(self.problem, self.solution, overheads=self.overheads)

    def to_json(self) -> str:
        """Return the plan as a JSON document; `chainstay.plans.parse_plan` reads it."""
        cut = self.cut
        body = {
            "model": self.model,
            "solution": json.loads(self.solution.to_json()),
            "profile": json.loads(self.profile.to_json()),
            "chain": {} if self.chain is None else json.loads(self.chain.to_json()),
            "overheads": [] if self.overheads is None else list(self.overheads),
            "keep": list(map(int, self.keep)),
            "cut": {} if cut is None else {"by": cut.by, "granularity": str(cut.granularity)},
            "fingerprint": {} if self.fingerprint is None else self.fingerprint.to_fields(),
            "choices": [asdict(choice) for choice in self.choices],
            "plain_time": self.plain_time,
            "plain_peak": self.plain_peak,
        }
        return documents.dump(KIND, VERSION, body)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan to a file, whole or not at all.

        Raises:
            OSError: The folder is not there, or cannot be written to.
        """
        write_file(path, self.to_json())
