"""Plans of models as files: saved, and applied to the same model somewhere else.

What takes long about `chainstay.fit` is measuring and solving. `apply_plan` does neither: it
looks whether model, call and machine are what the plan was made for, cuts the model into the
same stages, and lets it go by the schedule.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeVar, cast

import torch
from torch import nn
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_unflatten

from chainstay.errors import InvalidPlanError, PlanMismatchError, UnsupportedModelError
from chainstay.fitting.cut_joins import CutJoin, cut_join
from chainstay.fitting.cut_models import CutBy, CutModel, cut_model
from chainstay.fitting.front import require_model
from chainstay.hybrid import HybridSolution
from chainstay.offloading import OffloadSolution
from chainstay.plans import Cut, Fingerprint, Plan, load_plan
from chainstay.profiles import ChainProfile, JoinProfile, OffloadProfile
from chainstay.runtime.caching import digest_of
from chainstay.runtime.calls import Planned, PlannedBlocks, PlannedCall, TensorEnds
from chainstay.runtime.device_memory import plain_bytes
from chainstay.runtime.extraction.calling import TensorPromise
from chainstay.runtime.extraction.cutting import Granularity
from chainstay.runtime.fitted import Fitted
from chainstay.runtime.items import movable_chain
from chainstay.runtime.joining.executor import PlannedJoin
from chainstay.runtime.situation import Situation, modules_of
from chainstay.runtime.stages import ChainStage
from chainstay.runtime.transfers import Transport, engine_for, program_of

__all__ = [
    "apply_plan",
    "fingerprint_of",
    "moved_profile",
    "plan_of",
    "planned_as_plan",
    "save_plan",
]

Module = TypeVar("Module", bound=nn.Module)

_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")
_LONGEST: Final = 400
"""Characters of a description."""


def save_plan(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write the plan by which a fitted model goes to a file, for `apply_plan`.

    The file is JSON, versioned, and holds no value of any tensor. It is there whole or not at
    all.

    Args:
        model: By `chainstay.fit`; of several plans, for several shapes, the one used last.
        path: Of the file.

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
    """The plan by which a fitted model goes, with what it is for.

    Raises:
        UnsupportedModelError: The model is not fitted.
    """
    fitted = getattr(model, "chainstay", None)
    if not isinstance(fitted, Fitted):
        raise UnsupportedModelError(
            f"this {type(model).__name__} is not fitted; call chainstay.fit(model, ...) first"
        )
    situation, planned = fitted.latest
    if not isinstance(planned, PlannedCall | PlannedBlocks | PlannedJoin):
        raise UnsupportedModelError(
            f"a {type(planned).__name__} cannot be saved; fit the model again where it is needed"
        )
    cut = Cut(by=_cut_of(planned), granularity=getattr(fitted.planner, "granularity", "fine"))
    fingerprint = fingerprint_of(model, situation, planned.executor.stages)
    return planned_as_plan(planned, type(model).__name__, cut, fingerprint)


def planned_as_plan(
    planned: PlannedCall | PlannedBlocks | PlannedJoin,
    name: str,
    cut: Cut,
    fingerprint: Fingerprint,
) -> Plan:
    """What `planned` goes by, as a plan for a file."""
    solution = planned.solution
    about: dict[str, Any] = {
        "solution": solution,
        "overheads": planned.overheads,
        "model": name,
        "cut": cut,
        "fingerprint": fingerprint,
    }
    if isinstance(planned, PlannedJoin):
        return Plan(profile=planned.profile, keep=planned.keep, **about)
    chain = planned.profile
    if isinstance(solution, OffloadSolution):
        return Plan(profile=moved_profile(solution, chain), chain=chain, **about)
    return Plan(profile=chain, **about)


def moved_profile(solution: OffloadSolution, chain: ChainProfile) -> OffloadProfile | ChainProfile:
    """What a plan with transfers for `chain` is a solution of."""
    movable = movable_chain(chain)
    is_hybrid = isinstance(solution, HybridSolution)
    return movable if is_hybrid else OffloadProfile.from_chain(movable)


def apply_plan(  # noqa: PLR0913  # a call of the model, the plan, and two settings
    model: Module,
    sample_args: tuple[Any, ...],
    sample_kwargs: Mapping[str, Any] | None = None,
    *,
    plan: Plan | str | os.PathLike[str],
    on_new_shape: Literal["refuse", "run plainly"] = "refuse",
    host_budget: int | str | None = None,
) -> Module:
    """Make `model` train by a plan that was made before, without measuring or solving again.

    What comes out is what `chainstay.fit` gave when the plan was saved; `chainstay.unfit`
    takes it away.

    Args:
        model: Like the one that the plan was made for: structure, parameters' shapes and
            types, training flags, device. Values do not matter.
        sample_args: Positional arguments of a call like those to come.
        sample_kwargs: Keyword arguments, likewise.
        plan: A file by `save_plan` or ``chainstay plan``, or what `chainstay.load_plan` read.
        on_new_shape: A call unlike the sample is refused, or runs plainly.
        host_budget: Of a plan that offloads: bytes of host memory for what is away at a time;
            ``None`` for no limit.

    Returns:
        `model` itself.

    Raises:
        InvalidPlanError: The file is no plan, or its schedule does not do what it says.
        PlanMismatchError: The plan is for something else; ``error.differences`` names each
            thing that differs.
        UnsupportedModelError: Not a module, fitted already, or it can no longer be cut.
        HostBudgetError: What the plan has away at a time exceeds `host_budget`.
        ValueError: `on_new_shape` is none.

    Complexity:
        A few seconds of tracing, and some five forwards.
    """
    require_model(model)
    if on_new_shape not in ("refuse", "run plainly"):
        raise ValueError(f"on_new_shape is {on_new_shape!r}, must be 'refuse' or 'run plainly'")
    known = plan if isinstance(plan, Plan) else load_plan(plan)
    limit = None if host_budget is None else plain_bytes("host_budget", host_budget)
    planner = _Applied(model, known, limit)
    fitted = Fitted(model, planner, on_new_shape)
    fitted.plan_for(sample_args, dict(sample_kwargs or {}))
    fitted.install()
    return model


@dataclass(frozen=True, slots=True)
class _Applied:
    """Makes of a plan what `chainstay.fit` made when it was saved."""

    model: nn.Module
    plan: Plan
    host_budget: int | None

    @property
    def granularity(self) -> Granularity:
        """Of the export, if there is one."""
        return cast("Granularity", self.plan.cut.granularity) if self.plan.cut else "fine"

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Planned:
        """Cut the model, if it is the plan's, and let it go by the plan."""
        plan = self.plan
        if plan.fingerprint is None or plan.cut is None:
            raise PlanMismatchError(
                "the plan is for a profile and not for a model, so nobody knows what its stages "
                "are; make one by chainstay.fit and chainstay.save_plan, or: chainstay plan MODEL"
            )
        situation = Situation.now(args, kwargs, modules_of(self.model))
        before = fingerprint_of(self.model, situation, ())
        _require_equal(replace(plan.fingerprint, stages={}), before)
        profile = _profile_of(plan, plan.cut.by)
        loss = (profile.closing if isinstance(profile, JoinProfile) else profile).stages[-1]
        settings: dict[str, Any] = {
            "granularity": self.granularity,
            "has_loss": loss.forward_time > 0,
        }
        cut: CutModel | CutJoin
        if isinstance(profile, JoinProfile):
            cut = cut_join(self.model, args, kwargs, **settings)
        else:
            by = cast("CutBy", plan.cut.by)
            cut = cut_model(self.model, args, kwargs, by=by, **settings)
        _require_equal(plan.fingerprint, replace(before, stages=_stages(cut.chain.stages)))
        return self._planned(cut)

    def _planned(self, cut: CutModel | CutJoin) -> Planned:
        """The model, cut like that of the plan, by the plan."""
        plan = self.plan
        if isinstance(cut, CutJoin):
            assert isinstance(plan.profile, JoinProfile), "so it was cut"
            return cut.planned(plan.solution, plan.profile, overheads=plan.overheads)
        transport = self._transport(cut)
        return cut.planned(
            plan.solution, plan.stages, overheads=plan.overheads, transport=transport
        )

    def _transport(self, cut: CutModel) -> Transport | None:
        """What makes the plan's transfers, if it has any."""
        solution = self.plan.solution
        if not isinstance(solution, OffloadSolution):
            return None
        engine = engine_for(cut.chain.device, link=solution.link, host_budget=self.host_budget)
        overheads = self.plan.overheads or ()
        if len(overheads) != len(program_of(solution)):
            raise InvalidPlanError(
                f"the plan has {len(overheads)} overheads for {len(program_of(solution))} "
                "operations; there must be one for each, so plan again"
            )
        return Transport.of(solution, self.plan.stages, overheads, engine)


def _profile_of(plan: Plan, by: str) -> ChainProfile | JoinProfile:
    """What the stages of the model cost.

    Raises:
        InvalidPlanError: It is no profile of a model that was cut in such a way.
    """
    if by != "join":
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


def fingerprint_of(
    model: nn.Module, situation: Situation, stages: Sequence[ChainStage]
) -> Fingerprint:
    """What a plan for `model` in this situation, cut into `stages`, is for."""
    named = dict(model.named_modules())
    autocast = situation.autocast
    return Fingerprint(
        modules={path: _module(each) for path, each in named.items()},
        parameters=dict(_tensors(model.named_parameters(remove_duplicate=False))),
        buffers=dict(_tensors(model.named_buffers(remove_duplicate=False))),
        training=_training(named, situation),
        call=_call(situation),
        stages=_stages(stages),
        setting={
            "torch": torch.__version__,
            "device": _device(model, situation),
            "autocast": "off" if autocast is None else str(autocast),
        },
    )


def _module(module: nn.Module) -> str:
    """Its class, wherever that was imported from, and its settings."""
    settings = _ADDRESS.sub("", module.extra_repr())
    return f"{type(module).__qualname__}({settings})"[:_LONGEST]


def _tensors(named: Iterator[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, str]]:
    known: dict[int, str] = {}
    for name, tensor in named:
        if id(tensor) in known:
            yield name, f"the same as {known[id(tensor)]}"
            continue
        known[id(tensor)] = name
        trained = ", trained" if tensor.requires_grad else ""
        yield name, f"{tuple(tensor.shape)} {tensor.dtype} on {tensor.device.type}{trained}"


def _training(named: Mapping[str, nn.Module], situation: Situation) -> dict[str, str]:
    """The model's own flag, and those that differ from that of the module around."""
    model = named[""]
    flags = {id(m): flag for m, flag in zip(modules_of(model), situation.training, strict=True)}
    found = {}
    for path, module in named.items():
        parent = named.get(path.rpartition(".")[0]) if path else None
        if parent is None or flags[id(parent)] != flags[id(module)]:
            found[path] = "training" if flags[id(module)] else "evaluation"
    return found


def _call(situation: Situation) -> dict[str, str]:
    signature = situation.arguments
    numbered = tree_unflatten(list(range(len(signature.leaves))), signature.spec)
    paths, _ = tree_flatten_with_path(numbered)
    found = {}
    for path, number in paths:
        which, *inner = path
        is_positional = getattr(which, "idx", 0) == 0
        name = f"{'args' if is_positional else 'kwargs'}{keystr(tuple(inner))}"
        leaf = signature.leaves[number]
        found[name] = _ADDRESS.sub("", str(leaf))[:_LONGEST]
    return found


def _stages(stages: Sequence[ChainStage]) -> dict[str, str]:
    return {f"{index} ({stage.name})": digest_of(stage) for index, stage in enumerate(stages)}


def _device(model: nn.Module, situation: Situation) -> str:
    device = next((each.device for each in model.parameters()), None) or _device_of(situation)
    if device.type == "cuda":
        return f"cuda, {torch.cuda.get_device_name(device)}"
    return f"{device.type}, {platform.machine()}"


def _device_of(situation: Situation) -> torch.device:
    """That of the call's first tensor."""
    promises = (leaf for leaf in situation.arguments.leaves if isinstance(leaf, TensorPromise))
    return next((each.layout.device for each in promises), torch.device("cpu"))


def _cut_of(planned: PlannedCall | PlannedBlocks | PlannedJoin) -> str:
    if isinstance(planned, PlannedJoin):
        return "join"
    if isinstance(planned, PlannedBlocks):
        return "blocks"
    return "chain" if isinstance(planned.ends, TensorEnds) else "export"
