"""A model's forward while it is fitted: by a plan where there are gradients, plainly elsewhere."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, update_wrapper
from types import FrameType
from typing import Any, Final, cast

import torch
from torch import nn

from chainstay.dp.jit import compilation_told
from chainstay.errors import ChainstayError, PlanMismatchError, UnsupportedModelError
from chainstay.fitting.blocks import (
    BlockForward,
    blocks_for,
    blocks_needed,
    running,
)
from chainstay.fitting.planner import AnyPlanned, NotedPlan, PlanMaker, Planner, PlannerSettings
from chainstay.fitting.repeated_traces import RepeatedTraces
from chainstay.fitting.transformers_models import (
    caches_set,
    caching_configs,
    is_same_without_caches,
    may_be_packed,
    output_hooks_installed,
)
from chainstay.fitting.waiting_calls import WaitingCalls
from chainstay.plans.kept_in_part import KeptInPart
from chainstay.runtime.capture.blocks.entrances import close_entrances
from chainstay.runtime.capture.dynamo import (
    CapturedForward,
    GraphCapture,
    GraphForward,
    NothingToPlanError,
    Sizes,
    UnplannedGraphError,
)
from chainstay.runtime.capture.graph import NoStagesError
from chainstay.runtime.capture.tracing import NoFullGraphError, NotRunError, NotTheModelError
from chainstay.runtime.capture.trials.call import Call, SampleFailsError
from chainstay.runtime.capture.trials.dispatch_modes import require_no_transform, without_modes
from chainstay.runtime.capture.trials.isolation import gradients_kept, require_initialised
from chainstay.runtime.capture.trials.model_forward import (
    is_stand_in,
    restore_forward,
    stand_in_for,
    stood_in_forward,
    unbound_forward,
)
from chainstay.runtime.execute.alternatives import Alternative
from chainstay.runtime.execute.block_executor import PlannedBlocks
from chainstay.runtime.execute.handles import dropping, hooks_set_aside
from chainstay.runtime.execute.planned import Planned
from chainstay.runtime.execute.repeatable import other_bits_accepted
from chainstay.runtime.measures.measured import MEASURING
from chainstay.runtime.stage.staged_graph import PlannedGraph
from chainstay.solution import Solution


class _CachesNeededError(Exception):
    """The model gives other bits without its caches, or fails; nothing has been run yet."""


class Fitted:
    """Stands in for ``model.forward``, and shows what it does there.

    Args:
        model: Whose forward it is; nothing of it is changed before `install`.
        settings: The arguments of `chainstay.fit`.
        maker: Makes plans.
    """

    def __init__(self, model: nn.Module, settings: PlannerSettings, maker: PlanMaker) -> None:
        self._name = type(model).__name__
        self._kind: type[nn.Module] | None = type(model)
        self._plain = unbound_forward(model)
        self._caching = caching_configs(model)
        self._capture: GraphCapture | None = None
        self._blocks: BlockForward | None = None
        self._latest: tuple[GraphForward, Sizes] | None = None
        self._forwards: tuple[tuple[type[nn.Module], Callable[..., Any]], ...] = ()
        self.settings = settings
        self.planner = Planner(self._name, settings, maker)
        self.waiting = WaitingCalls(self._name, settings.say)
        self.traces = RepeatedTraces(self._name, settings.say)

    def __call__(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the model's output."""
        if type(model) is not self._kind or any(
            kind.forward is not known for kind, known in self._forwards
        ):
            self._forget_graphs(model)
        is_own = self._blocks is not None and running.now is self._blocks  # it calls itself
        if is_own or not torch.is_grad_enabled() or _is_exporting():
            return self._plain(model, *args, **kwargs)
        require_no_transform(self._name)
        call = Call(model, args, kwargs, self._plain)
        output = self._without_caches(call, partial(self._run, call))
        if self.planner.plans:
            self.waiting.add(output, self.solution)
        return output

    def _without_caches(self, call: Call, run: Callable[..., Any]) -> Any:
        """Do `run` with caches off if the model has any, and on if that makes a difference."""
        configs = [config for config in self._caching if config.use_cache]
        if configs and call.model.training and not may_be_packed(call):
            try:
                with caches_set(configs, kept=False):
                    return run(uncached=configs)
            except _CachesNeededError:
                self._caching = ()
                self.settings.say(
                    f"{self._name} gives other bits without its cache of keys and values, or "
                    "fails, so the plan has it, too; where it runs with config.use_cache = False, "
                    "that takes less memory"
                )
        return run()

    def _run(self, call: Call, *, uncached: Sequence[Any] = ()) -> Any:
        """Go by the plan for such a call; make one where there is none."""
        if self._capture is not None:
            try:
                output = self._capture.run(call.model, *call.args, **call.kwargs)
            except NotRunError:
                pass
            else:
                self.traces.reset()
                return output
        if self._blocks is not None and (kind := self._blocks.known_kind(call)) is not None:
            return self._blocks(call, kind)
        try:
            return self._run_new(call, uncached=uncached)
        except SampleFailsError as failure:
            cause = failure.__cause__ or failure
        with dropping():
            call()  # it fails after all that it draws and changes before, as in plain training
        raise cause

    def plan_for(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Make a plan for calls like this one, without making the call."""
        call = Call(model, args, kwargs, self._plain)
        with torch.enable_grad():
            try:
                self._without_caches(call, partial(self._run_new, call, is_real=False))
            except Exception as failure:
                is_own = isinstance(failure, SampleFailsError)
                error = (failure.__cause__ or failure) if is_own else failure
                if isinstance(error, ChainstayError):
                    raise
                error.add_note(f"raised while {self._name} was planned for the sample of fit")
                raise error  # noqa: B904  # as the model raises it, with its own cause

    def use(self, planned: AnyPlanned) -> None:
        """Replace the plan made last by another plan of the same stages."""
        if isinstance(planned, PlannedBlocks):
            assert self._blocks is not None, "blocks were planned last"
            self._blocks.use(planned)
        else:
            assert self._latest is not None, "a graph was planned last"
            forward, sizes = self._latest
            forward.plans[sizes] = planned
        self.planner.use(planned)

    def install(self, model: nn.Module) -> None:
        """Stand in for the model's forward from now on, in place of what did before."""
        if (before := fitted_of(model)) is not None:
            before.close()
        stand_in_for(model, _forward_of(self._plain))
        vars(model)["chainstay"] = self
        if self._blocks is not None:
            self._blocks.open_entrances(model)

    def uninstall(self, model: nn.Module) -> None:
        """Leave the model as it was; it can be installed again."""
        self.require_in_place(model)
        restore_forward(model)
        del vars(model)["chainstay"]
        close_entrances(model)

    def require_in_place(self, model: nn.Module) -> None:
        """Refuse a model whose forward was replaced since it was fitted."""
        if not is_stand_in(vars(model).get("forward")):
            raise UnsupportedModelError(
                f"the forward of this {self._name} was replaced or wrapped after fitting; undo "
                "that first, then call chainstay.unfit(model)"
            )

    def close(self) -> None:
        """Let go of what the plans hold besides the model."""
        for planned in self.plans:
            planned.close()

    def _forget_graphs(self, model: nn.Module) -> None:
        """Forget all graphs: nothing guards the class of the model, nor the forwards of classes."""
        self._kind, self._plain, self._forwards = type(model), stood_in_forward(model), ()
        self._caching = caching_configs(model)  # a copy of a model has a configuration of its own
        self._capture = self._blocks = self._latest = None
        close_entrances(model)

    def _run_new(self, call: Call, *, is_real: bool = True, uncached: Sequence[Any] = ()) -> Any:
        """Plan a call that there is no graph for; then make it, if `is_real`."""
        call.require_plannable()
        require_initialised(call.model)  # tracing would do that, and draw other random numbers
        with (
            MEASURING,
            compilation_told(self.settings.say),
            other_bits_accepted.set_to(value=not self.settings.bit_for_bit),
        ):
            kinds = {type(module) for module in call.model.modules()}
            kinds.update(kind for kind, _ in self._forwards)
            self._forwards = tuple(
                (kind, kind.forward) for kind in kinds if hasattr(kind, "forward")
            )
            if uncached and self.settings.bit_for_bit:
                with _unnoticed(call.model):
                    if not is_same_without_caches(call, uncached):
                        raise _CachesNeededError
            reason, refusal = blocks_needed(call, self.settings.by), None
            if self._blocks is None and not reason:
                try:
                    return self._run_graph(call, is_real=is_real)
                except (NoFullGraphError, NoStagesError, NotTheModelError) as found:
                    if self.settings.by in ("graph", "export"):
                        raise
                    reason, refusal = str(found), found
            try:
                with _unnoticed(call.model):
                    blocks = self._blocks or blocks_for(self.planner, call, reason)
                    kind = blocks.plan_for(call)
            except UnsupportedModelError as other:
                if refusal is None or isinstance(other, SampleFailsError):
                    raise
                raise UnsupportedModelError(
                    f"{self._name} cannot be planned: {refusal} (as one graph). Nor can its "
                    f"blocks be stages: {other} (by blocks)"
                ) from refusal
            self._blocks, self._capture = blocks, None
        if kind.planned is None and not is_real:
            raise self._nothing_to_plan()
        return blocks(call, kind, is_new=True) if is_real else None

    def _run_graph(self, call: Call, *, is_real: bool) -> Any:
        """Trace the call and plan it; then make it, if `is_real`."""
        try:
            return self._run_traced(call, is_real=is_real)
        except NoFullGraphError:
            with output_hooks_installed(call) as has_changed:
                if not has_changed:
                    raise
                return self._run_traced(call, is_real=is_real)

    def _run_traced(self, call: Call, *, is_real: bool) -> Any:
        if self._capture is None:
            self._capture = GraphCapture(self._plain, GraphForward.if_trained, self._name)

        def plan(found: UnplannedGraphError) -> CapturedForward:
            with _unnoticed(call.model):
                planned = self.planner.plan_graph(found.forward, found.inputs, call)
            if isinstance(planned, PlannedGraph) and planned is not self.latest.planned:
                self.traces.add()
            self._latest = found.forward, found.forward.sizes(found.inputs)
            return planned

        args = (call.model, *call.args)
        try:
            return self._capture.capture(plan, args, call.kwargs, is_run=is_real)
        except NothingToPlanError:
            raise self._nothing_to_plan() from None

    def _nothing_to_plan(self) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"nothing that {self._name} returns for this sample requires a gradient, so "
            "there is nothing to plan; let parameters or the input require one"
        )

    @property
    def plans(self) -> tuple[Planned, ...]:
        """All plans, the one made last at the end."""
        return tuple(noted.planned for noted in self.planner.plans)

    @property
    def alternatives(self) -> tuple[Alternative, ...]:
        """The alternatives of the plan made last, the plan itself included."""
        return self.latest.planned.alternatives

    @property
    def kept_in_part(self) -> tuple[KeptInPart, ...]:
        """The stages that the plan made last keeps in part: what each drops, saves and costs."""
        return self.latest.kept_in_part

    @property
    def solution(self) -> Solution:
        """The plan made last: schedule, predicted time and peak, and how good it is."""
        return self.latest.planned.solution

    @property
    def latest(self) -> NotedPlan:
        """The plan made last."""
        if not self.planner.plans:
            raise PlanMismatchError(
                f"this {self._name} has no plan yet; it is planned by its first training call"
            )
        return self.planner.plans[-1]

    def __str__(self) -> str:
        if not self.plans:
            return f"{self._name}, not planned yet: its first training call does that"
        others = f"; {len(self.plans)} plans are kept" if len(self.plans) > 1 else ""
        return self.latest.describe(self._name, others)

    def __repr__(self) -> str:
        told = self.solution.describe() if self.plans else "not planned yet"
        return f"<{type(self).__name__} {self._name}: {told}>"

    def __deepcopy__(self, memo: dict[int, Any]) -> Fitted:
        """Return the state for a copy of the model, which is planned when it trains."""
        copied = memo[id(self)] = Fitted.__new__(Fitted)
        vars(copied).update(vars(self))
        copied.planner = self.planner.for_copy()
        vars(copied).update(_capture=None, _blocks=None, _latest=None, _forwards=())
        copied.waiting = WaitingCalls(self._name, self.settings.say)
        vars(copied).update(_kind=None)  # the copy of a forward of the model's own is another one
        return copied

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        """Leave nothing in a pickle: the model is plain when it is loaded."""
        return _nothing, ()


@contextmanager
def _unnoticed(model: nn.Module) -> Iterator[None]:
    """Inside, what runs is seen by no mode or hook of the user's, its gradients by no optimizer."""
    with without_modes(), hooks_set_aside(), gradients_kept(model.parameters()):
        yield


def fitted_of(model: nn.Module) -> Fitted | None:
    """Return the `Fitted` of `model`, or ``None`` if the model is not fitted."""
    found = getattr(model, "__dict__", {}).get("chainstay")
    return found if isinstance(found, Fitted) else None


def require_fitted(model: nn.Module) -> Fitted:
    """Return the `Fitted` of `model`, which has to be fitted."""
    fitted = fitted_of(model)
    if fitted is None:
        raise UnsupportedModelError(
            f"this {type(model).__name__} is not fitted; call chainstay.fit(model, ...) first"
        )
    return fitted


def _is_exporting() -> bool:
    """Whether torch.export or torch.jit.trace looks at what runs, for use without training."""
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None  # noqa: SLF001  # torch.jit.is_tracing has no types


def _nothing() -> None:
    """Stands for a plan in a pickled model."""


def _forward_of(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return the forward of a fitted model, which stands for its plain one."""

    @torch.compiler.disable(recursive=True)  # type: ignore[untyped-decorator]  # a traced plan gives silently wrong gradients
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        model = _called_module(self)
        fitted = fitted_of(model)
        if fitted is None or model is not self:
            return unbound_forward(model)(model, *args, **kwargs)
        return fitted(model, args, kwargs)

    update_wrapper(forward, plain)
    forward.__signature__ = inspect.signature(plain)  # some trainers read argument names
    return cast("Callable[..., Any]", forward)


def _called_module(model: nn.Module) -> nn.Module:
    """Return the module that is called: a shallow copy of a model has the model's own forward."""
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001  # no other way to tell
    for _ in range(6):
        if frame is None:
            return model
        if frame.f_code is _CALL:
            found = frame.f_locals["self"]
            is_copy = vars(found).get("forward") is vars(model).get("forward")
            return found if is_copy else model
        frame = frame.f_back
    return model


_CALL: Final = nn.Module._call_impl.__code__  # noqa: SLF001  # where every call of a module passes
