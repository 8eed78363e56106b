"""A model's forward while it is fitted: by a plan where there are gradients, plainly elsewhere."""

from __future__ import annotations

import copy
import inspect
import logging
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import update_wrapper
from threading import RLock
from typing import Any, Final, Literal, NoReturn, Self

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from chainstay.errors import PlanMismatchError, UnsupportedModelError
from chainstay.runtime.alternatives import Alternative, table_of
from chainstay.runtime.calls import Planned
from chainstay.runtime.situation import ModuleList, Situation
from chainstay.solution import Solution
from chainstay.units import format_bytes

__all__ = ["Fitted", "OnNewShape", "Planner"]

_log = logging.getLogger(__name__)

OnNewShape = Literal["plan", "refuse", "run plainly"]
"""What to do about a call for which there is no plan yet."""

Planner = Callable[[tuple[Any, ...], Mapping[str, Any]], Planned]
"""Makes a plan for calls like a sample."""

_MOST_PLANS: Final = 8
_PLANNING: Final = RLock()
"""One thread at a time takes models apart and looks at clocks."""


class Fitted:
    """Stands in for ``model.forward``, and shows what it does there.

    Plans are kept for the last few kinds of calls: shapes, types, training flags, autocast.

    Attributes:
        plain: The model's forward without a plan.
        planner: As the argument.

    Args:
        model: Whose forward it is; nothing of it is changed here.
        planner: Makes plans.
        on_new_shape: What to do about a call for which there is no plan yet.
    """

    def __init__(self, model: nn.Module, planner: Planner, on_new_shape: OnNewShape) -> None:
        self.plain = model.forward
        self._replaced = vars(model).get("forward")
        self.planner = planner
        self._model = model
        self._modules = ModuleList(model)
        self._on_new_shape = on_new_shape
        self._plans: OrderedDict[int, tuple[Situation, Planned]] = OrderedDict()
        self._made = 0
        update_wrapper(self, self.plain)
        self.__signature__ = inspect.signature(self.plain)  # some trainers read argument names

    # A traced plan gives silently wrong gradients.
    @torch.compiler.disable(recursive=True)  # type: ignore[untyped-decorator]
    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # the model's own
        """The model's output.

        Raises:
            PlanMismatchError: Gradients are wanted, there is no plan for such a call, and
                none is to be made.
            ChainstayError: Whatever `chainstay.fit` raises, if a plan has to be made.
        """
        if not torch.is_grad_enabled():
            return self.plain(*args, **kwargs)
        sorted_kwargs = dict(sorted(kwargs.items()))
        call = (args, sorted_kwargs, self._modules.now())
        situation, planned = self._known(*call) or (Situation.now(*call), None)
        if not situation.wants_gradients:
            return self.plain(*args, **kwargs)
        kwargs = sorted_kwargs
        if planned is None:
            if self._on_new_shape == "run plainly":
                return self.plain(*args, **kwargs)
            if self._on_new_shape == "refuse":
                self._refuse(situation)
            _log.info("planning for a new kind of call of %s", type(self._model).__name__)
            planned = self.plan_for(args, kwargs)
        return planned(*args, **kwargs)

    def plan_for(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Planned:
        """Make a plan for calls like this one, and keep it.

        Raises:
            ChainstayError: Whatever `chainstay.fit` raises.
        """
        kwargs = dict(sorted(kwargs.items()))
        situation = Situation.now(args, kwargs, self._modules.now())
        with _PLANNING, self._removed():  # tracing reads the code of the model's own forward
            planned = self.planner(*_leaves_of(args, kwargs))
        self._made += 1
        self._plans[self._made] = (situation, planned)
        if len(self._plans) > _MOST_PLANS:
            self._plans.popitem(last=False)
        return planned

    def install(self) -> None:
        """Stand in for the model's forward from now on."""
        self._model.forward = self  # in front of the class's
        self._model.chainstay = self  # type: ignore[assignment]  # a plain attribute

    def remove(self) -> None:
        """Leave the model as it was.

        Raises:
            UnsupportedModelError: Its forward was replaced since, so that this one's removal
                would take the replacement along.
        """
        if vars(self._model).get("forward") is not self:
            raise UnsupportedModelError(
                f"the forward of this {type(self._model).__name__} was replaced or wrapped after "
                "fitting; undo that first, then call chainstay.unfit(model)"
            )
        del self._model.forward, self._model.chainstay
        if self._replaced is not None:
            self._model.forward = self._replaced
        for planned in self.plans:
            planned.close()

    @contextmanager
    def _removed(self) -> Iterator[None]:
        """The model is its plain self inside, whoever wrapped its forward since."""
        attributes = vars(self._model)
        held = {name: attributes.pop(name, None) for name in ("forward", "chainstay")}
        if self._replaced is not None:
            attributes["forward"] = self._replaced
        try:
            yield
        finally:
            attributes.pop("forward", None)
            attributes.update({name: value for name, value in held.items() if value is not None})

    @property
    def plans(self) -> tuple[Planned, ...]:
        """All plans that are kept, the one used last at the end."""
        return tuple(planned for _, planned in self._plans.values())

    @property
    def latest(self) -> tuple[Situation, Planned]:
        """The plan used last, and what it holds for."""
        return next(reversed(self._plans.values()))

    @property
    def alternatives(self) -> tuple[Alternative, ...]:
        """What the plan used last was weighed against, itself included."""
        return self.plans[-1].alternatives

    @property
    def solution(self) -> Solution:
        """The plan used last: schedule, predicted time and peak, and how good it is."""
        return self.plans[-1].solution

    def __str__(self) -> str:
        planned = self.plans[-1]
        solution, profile = planned.solution, planned.profile
        others = f"; {len(self._plans)} plans are kept" if len(self._plans) > 1 else ""
        least = planned.plain_time or profile.least_time
        slower = float(solution.makespan) / least - 1 if least else 0.0
        return (
            f"{type(self._model).__name__} in {len(profile)} stages, the loss included: "
            f"{solution.describe()}\n{planned.origin}"
            f"predicted {slower:.1%} slower than plain training at a peak of "
            f"{format_bytes(solution.peak_bytes)}{others}\n"
            f"{table_of(planned.alternatives) + chr(10) if planned.alternatives else ''}"
            f"{solution.schedule}"
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {type(self._model).__name__}: {self.solution.describe()}>"

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """For a copy of the model, with plans for the copy."""
        copied = memo[id(self)] = type(self).__new__(type(self))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch copies its own TreeSpec
            vars(copied).update(copy.deepcopy(vars(self), memo))
        return copied

    def __reduce__(self) -> NoReturn:
        raise PlanMismatchError(
            f"a fitted {type(self._model).__name__} cannot be pickled with its plan; save "
            "model.state_dict(), or call chainstay.unfit(model) before"
        )

    def _known(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], modules: Sequence[nn.Module]
    ) -> tuple[Situation, Planned] | None:
        for number, known in reversed(tuple(self._plans.items())):  # other threads move them
            situation, _ = known
            if situation.is_now(args, kwargs, modules):
                self._plans.move_to_end(number)
                return known
        return None

    def _refuse(self, situation: Situation) -> NoReturn:
        known, _ = next(reversed(self._plans.values()))
        raise PlanMismatchError(
            f"no plan of this {type(self._model).__name__} is for such a call, which differs in "
            f"{known.difference(situation)}; call it like the sample, fit with "
            "on_new_shape='plan', or run it under torch.no_grad()"
        )


def _leaves_of(
    args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same call outside of any graph: a model may be part of a larger one."""

    def leaf(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if tensor.is_leaf else tensor.detach().requires_grad_()

    leaves: tuple[tuple[Any, ...], dict[str, Any]] = tree_map_only(
        torch.Tensor, leaf, (args, dict(kwargs))
    )
    return leaves
