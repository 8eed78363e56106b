"""Plans of models as files: saved, and applied to the same model somewhere else.

What takes long about `chainstay.fit` is measuring and solving. `apply_plan` does neither: it
looks whether model, call and machine are what the plan was made for, cuts the model into the
same stages, and lets it go by the schedule.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import add, itemgetter, sub
from typing import Any, Literal, TypeVar, cast

import torch
from torch import nn

from chainstay.errors import InvalidPlanError, PlanMismatchError
from chainstay.fitting.fingerprints import fingerprint_of
from chainstay.fitting.fitted import Fitted, require_fitted
from chainstay.fitting.front import require_model
from chainstay.fitting.planner import GraphCall, PlannerSettings
from chainstay.fitting.strategies.joins import planned_join
from chainstay.plans import Cut, Fingerprint, OptionChoice, Plan, load_plan
from chainstay.problems.arguments import whole_bytes
from chainstay.problems.hybrid import HybridSolution
from chainstay.problems.offload import OffloadSolution
from chainstay.profiles import ChainProfile, JoinProfile, OffloadProfile
from chainstay.runtime.capture.blocks.chain import BlockChain
from chainstay.runtime.capture.cuts.cut import cut_into_chain
from chainstay.runtime.capture.cuts.cut_points import Granularity
from chainstay.runtime.capture.cuts.stage_names import repeated_blocks
from chainstay.runtime.capture.extract import require_module_and_tuple
from chainstay.runtime.capture.trials.call import Call
from chainstay.runtime.execute.block_executor import BlockSchedule, PlannedBlocks
from chainstay.runtime.execute.items import movable_chain, standing_bytes
from chainstay.runtime.execute.planned import Planned
from chainstay.runtime.joins.branch_graphs import cut_into_join
from chainstay.runtime.joins.staged_join import parts_of, staged
from chainstay.runtime.measures.blocks.around_blocks import Around, UnreachedBlocksError
from chainstay.runtime.measures.blocks.block_costs import unmeasured_blocks
from chainstay.runtime.measures.costs import Subject
from chainstay.runtime.measures.measured import effects_of, measuring
from chainstay.runtime.measures.option_costs import ChosenOption, restored_options
from chainstay.runtime.options.selection import Selection
from chainstay.runtime.stage.chain_stage import ChainStage
from chainstay.runtime.stage.loss_stage import SumLoss
from chainstay.runtime.stage.staged_graph import (
    PlannedGraph,
    StagedGraph,
    subject_of,
    unmeasured_graph,
)
from chainstay.runtime.transfer import PlannedTransfers, engine_for, program_of

Module = TypeVar("Module", bound=nn.Module)
_Planned = TypeVar("_Planned", bound=Planned)
_Staged = TypeVar("_Staged", bound=StagedGraph)


def save_plan(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write the plan by which a fitted model goes to a file, for `apply_plan`.

    The file is JSON, versioned, and holds no value of any tensor. It is there whole or not at
    all.

    Args:
        model: A model fitted by `chainstay.fit`; of plans for several shapes the last used counts.
        path: The path of the file.

    Raises:
        UnsupportedModelError: The model is not fitted.
        OSError: The folder is not there, or cannot be written to.

    Example:
        >>> import tempfile, chainstay
        >>> layers = [nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)]
        >>> model, sample = nn.Sequential(*layers), (torch.zeros(2, 8),)
        >>> fitted = chainstay.fit(model, sample, budget="100%", progress=False)
        >>> path = tempfile.mkdtemp() + "/plan.json"
        >>> save_plan(fitted, path)
        >>> again = apply_plan(chainstay.unfit(model), sample, plan=path)
        >>> again.chainstay.solution.method
        'auto, free discards'
    """
    plan_of(model).save(path)


def plan_of(model: nn.Module) -> Plan:
    """Return the plan by which a fitted model trains, and what it is for.

    Raises:
        UnsupportedModelError: The model is not fitted.
    """
    fitted = require_fitted(model)
    noted = fitted.latest
    assert noted.fingerprint is not None, "a fitted model is planned by calls of it"
    granularity = fitted.settings.granularity
    return planned_as_plan(noted.planned, type(model).__name__, granularity, noted.fingerprint)


def planned_as_plan(
    planned: Planned, name: str, granularity: Granularity, fingerprint: Fingerprint
) -> Plan:
    """Return the plan file of a planned model.

    Args:
        planned: The model by it.
        name: The model's name, for people.
        granularity: How finely it is cut into stages.
        fingerprint: What the plan may be applied to.
    """
    solution = planned.solution
    about: dict[str, Any] = {
        "solution": solution,
        "overheads": planned.overheads,
        "model": name,
        "cut": Cut(by=_cut_of(planned), granularity=granularity),
        "fingerprint": fingerprint,
        "choices": tuple(_choices_of(planned)),
        "plain_time": planned.plain_time,
        "plain_peak": planned.plain_peak,
    }
    chain = planned.profile
    if isinstance(chain, JoinProfile):
        return Plan(profile=chain, keep=chain.keeps_input_gradients, **about)
    if isinstance(solution, OffloadSolution):
        if isinstance(solution, HybridSolution):
            beside = standing_bytes(chain, solution.schedule)  # the runtime counts it by itself
            about["overheads"] = tuple(map(add, planned.overheads or (), beside))
        return Plan(profile=moved_profile(solution, chain), chain=chain, **about)
    return Plan(profile=chain, **about)


def moved_profile(solution: OffloadSolution, chain: ChainProfile) -> OffloadProfile | ChainProfile:
    """Return the profile that a plan with transfers for `chain` solves."""
    movable = movable_chain(chain)
    return movable if isinstance(solution, HybridSolution) else OffloadProfile.from_chain(movable)


def apply_plan(  # noqa: PLR0913  # a call of the model, the plan, and two settings
    model: Module,
    sample_args: tuple[Any, ...],
    sample_kwargs: Mapping[str, Any] | None = None,
    *,
    plan: Plan | str | os.PathLike[str],
    on_new_shape: Literal["refuse", "run plainly"] = "refuse",
    bit_for_bit: bool = True,
    host_budget: int | str | None = None,
) -> Module:
    """Make `model` train by a plan that was made before, without measuring or solving again.

    The model trains as it did when the plan was saved; `chainstay.unfit` undoes it.

    Args:
        model: Like the one that the plan was made for: structure, parameters' shapes and
            types, training flags, device. Values do not matter. A plan that it has already is
            replaced.
        sample_args: Positional arguments of a call like those to come.
        sample_kwargs: Keyword arguments, likewise.
        plan: A file by `save_plan` or ``chainstay plan``, or what `chainstay.load_plan` read.
        on_new_shape: A call unlike the sample is refused, or runs plainly.
        bit_for_bit: As for `chainstay.fit`.
        host_budget: Where the plan offloads: bytes of host memory for what is away at a time;
            ``None`` for no limit.

    Returns:
        `model` itself.

    Raises:
        InvalidPlanError: The file is no plan, or its schedule does not do what it says.
        PlanMismatchError: The plan is for something else; ``error.differences`` names each
            thing that differs.
        UnsupportedModelError: Not a module, wrapped since it was fitted, it can no longer be
            cut, or `sample_args` is no tuple.
        HostBudgetError: What the plan has away at a time exceeds `host_budget`.
        ValueError: `on_new_shape` is none.

    Complexity:
        A few seconds of tracing, and some five forwards.
    """
    require_model(model)
    require_module_and_tuple(model, sample_args)
    if on_new_shape not in ("refuse", "run plainly"):
        raise ValueError(f"on_new_shape is {on_new_shape!r}, must be 'refuse' or 'run plainly'")
    known = plan if isinstance(plan, Plan) else load_plan(plan)
    limit = None if host_budget is None else whole_bytes("host_budget", host_budget)
    settings = PlannerSettings(
        budget=None,
        by="blocks" if known.cut is not None and known.cut.by == "blocks" else "graph",
        granularity=_granularity_of(known),
        on_new_shape=on_new_shape,
        bit_for_bit=bit_for_bit,
        progress=False,
    )
    fitted = Fitted(model, settings, _AppliedPlan(known, limit))
    fitted.plan_for(model, sample_args, dict(sample_kwargs or {}))
    fitted.install(model)
    return model


def _granularity_of(plan: Plan) -> Granularity:
    return cast("Granularity", plan.cut.granularity) if plan.cut else "fine"


@dataclass(frozen=True, slots=True)
class _AppliedPlan:
    """A `PlanMaker` that has a plan already.

    Attributes:
        plan: The plan that is applied.
        host_budget: Bytes for what is away at a time; ``None`` for no limit.
    """

    plan: Plan
    host_budget: int | None

    @property
    def budget_bytes(self) -> int | None:
        """The budget of the plan, in bytes; see `PlanMaker`."""
        return self.plan.solution.budget

    def of_graph(self, call: GraphCall, *, is_first: bool) -> PlannedGraph:  # noqa: ARG002  # as `PlanMaker`
        """Apply the plan to a captured graph; see `PlanMaker`.

        Raises:
            PlanMismatchError: The plan is for something else.
        """
        plan, device = self.plan, call.device
        assert call.call is not None, "plans are applied to models"
        self._require_model(call.call, device)
        profile = _profile_of(plan)
        granularity, blocks = _granularity_of(plan), repeated_blocks(call.call.model)
        if isinstance(profile, JoinProfile):
            join = cut_into_join(call.observed, granularity, blocks)
            with measuring(device):
                parts = parts_of(join, call.inputs, _any_loss(profile.closing), device)
                stages = staged(join, parts, effects_of(parts))
                stages = self._with_options(stages, call.call, parts, profile)
            return self._measured(planned_join(stages, plan.solution, profile))
        graph = cut_into_chain(call.observed, granularity, blocks)
        with measuring(device):
            subject = subject_of(graph, call.inputs, _any_loss(profile), device)
            own = unmeasured_graph(graph, subject)
            own = self._with_options(own, call.call, [subject], profile)
        return self._measured(own.planned(plan.solution, profile, self._transfers(device)))

    def _with_options(
        self,
        own: _Staged,
        call: Call,
        subjects: Sequence[Subject],
        profile: ChainProfile | JoinProfile,
    ) -> _Staged:
        """Return stages with the options of the plan; refuse others than it was made for."""
        self._require_stages(call, own.chain.device, own.chain.stages)
        options = restored_options(subjects, _chosen_options(self.plan, profile), is_checked=True)
        return replace(own, chain=replace(own.chain, options=options))

    def _measured(self, planned: _Planned) -> _Planned:
        """Return `planned` with what was measured when the plan was made."""
        time, peak = self.plan.plain_time, self.plan.plain_peak
        return replace(planned, overheads=self._overheads, plain_time=time, plain_peak=peak)

    def of_blocks(self, around: Around, *, is_first: bool) -> PlannedBlocks:  # noqa: ARG002  # as `PlanMaker`
        """Apply the plan to the blocks of a model; see `PlanMaker`.

        Raises:
            PlanMismatchError: The plan is for something else.
            UnreachedBlocksError: The plan has all blocks but some.
        """
        plan, device, call = self.plan, around.device, around.host.call
        self._require_model(call, device)
        self._require_reached(around.chain)
        self._require_stages(call, device, around.chain.chain_stages)
        chain = unmeasured_blocks(around, _chosen_options(plan, plan.stages))
        schedule = BlockSchedule.from_schedule(around.chain, chain, plan.solution.schedule)
        planned = PlannedBlocks(schedule=schedule, solution=plan.solution, profile=plan.stages)
        return self._measured(planned)

    def _require_model(self, call: Call, device: torch.device) -> None:
        """Refuse another model, call or machine."""
        if self.plan.fingerprint is None or self.plan.cut is None:
            raise PlanMismatchError(
                "the plan is for a profile and not for a model, so nobody knows what its stages "
                "are; make one by chainstay.fit and chainstay.save_plan, or: chainstay plan MODEL"
            )
        present = fingerprint_of(call, device)
        _require_equal(replace(self.plan.fingerprint, stages={}), present)

    def _require_reached(self, blocks: BlockChain) -> None:
        """Refuse blocks that the plan leaves out, as no gradient of its loss reaches them."""
        planned = {stage.name for stage in self.plan.stages.stages}
        names = [stage.name for stage in blocks.stages]
        others = [name for name in names if name not in planned]
        if others and len(names) - len(others) in (len(planned), len(planned) - 1):  # or the loss
            raise UnreachedBlocksError(f"the plan does not have {', '.join(others)}", others)

    def _require_stages(
        self, call: Call, device: torch.device, stages: tuple[ChainStage, ...]
    ) -> None:
        """Refuse a model that is the same by name, and computes something else."""
        assert self.plan.fingerprint is not None, "it was looked at"
        present = fingerprint_of(call, device, stages)
        _require_equal(self.plan.fingerprint, present)

    @property
    def _overheads(self) -> tuple[int, ...] | None:
        """The overheads of the plan's operations, as the runtime wants them."""
        plan, schedule = self.plan, self.plan.solution.schedule
        if plan.overheads is None or not isinstance(plan.solution, HybridSolution):
            return plan.overheads
        return tuple(map(sub, plan.overheads, standing_bytes(plan.stages, schedule)))

    def _transfers(self, device: torch.device) -> PlannedTransfers | None:
        """Return the plan's transfers with their engine, or ``None`` if the plan has none."""
        solution = self.plan.solution
        if not isinstance(solution, OffloadSolution):
            return None
        overheads, count = self._overheads or (), len(program_of(solution))
        if len(overheads) != count:
            raise InvalidPlanError(
                f"the plan has {len(overheads)} overheads for {count} operations; plan again"
            )
        engine = engine_for(device, link=solution.link, host_budget=self.host_budget)
        return PlannedTransfers.of(solution, self.plan.stages, overheads, engine)


def _any_loss(profile: ChainProfile) -> ChainStage | None:
    """Return a stage in place of the loss, if one was measured: it decides about the last cut."""
    has_loss = profile.stages[-1].forward_time > 0
    return ChainStage("loss", (SumLoss(),), is_loss=True) if has_loss else None


def _profile_of(plan: Plan) -> ChainProfile | JoinProfile:
    """Return the costs of the model's stages that the plan was made for.

    Raises:
        InvalidPlanError: It is no profile of a model that was cut in such a way.
    """
    if plan.cut is None or plan.cut.by != "join":
        return plan.stages
    if not isinstance(plan.profile, JoinProfile) or plan.profile.tail is None:
        raise InvalidPlanError(
            f"the plan cuts its model into branches and a tail, and is of a "
            f"{type(plan.profile).__name__} without them; plan again"
        )
    return plan.profile


def _require_equal(planned: Fingerprint, present: Fingerprint) -> None:
    differences = planned.differences(present)
    if differences:
        count = f"{len(differences)} things differ" if len(differences) > 1 else "one thing differs"
        raise PlanMismatchError(
            f"the plan was made for something else, {count}:\n"
            f"{Fingerprint.listing(differences)}\n"
            "Make a plan for this one: chainstay.fit(model, ...), or chainstay plan MODEL.",
            differences=differences,
        )


def _cut_of(planned: Planned) -> str:
    if isinstance(planned.profile, JoinProfile):
        return "join"
    return "blocks" if isinstance(planned, PlannedBlocks) else "graph"


def _chosen_options(
    plan: Plan, profile: ChainProfile | JoinProfile
) -> dict[tuple[int, int], ChosenOption]:
    """Return the options that the plan's schedule uses, by stage and number."""
    found: dict[tuple[int, int], ChosenOption] = {}
    stages = profile.all_stages if isinstance(profile, JoinProfile) else profile.stages
    for choice in plan.choices:
        option = stages[choice.stage].options[choice.option - 1]
        selection = Selection(
            kept_bytes=option.saved_bytes,
            replay_time=0,
            replayed=frozenset(choice.replayed),
            redrawn=frozenset(choice.redrawn),
        )
        found[choice.stage, choice.option] = ChosenOption(selection, option.stages)
    return found


def _choices_of(planned: Planned) -> Iterator[OptionChoice]:
    """Yield the options that a plan uses."""
    for (stage, number), option in sorted(planned.chain.options.items(), key=itemgetter(0)):
        selection = option.selection
        yield OptionChoice(
            stage=stage,
            option=number,
            replayed=tuple(sorted(selection.replayed)),
            redrawn=tuple(sorted(selection.redrawn)),
        )
